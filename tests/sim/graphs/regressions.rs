//! Regressions: seeds of worlds with graphs that once failed, by what was wrong.

use crate::reaching;

/// Worlds pass, and the state that they are about is reached in one of them.
fn pass(seeds: &[u64], state: &str) {
    let (_, times) = reaching(state, || {
        for &seed in seeds {
            assert_eq!(super::run(seed).map(drop), Ok(()), "seed {seed}");
        }
    });
    assert_ne!(
        times,
        Some(0),
        "none of them comes to {state} any more: look for other seeds"
    );
}

/// A worker's part was to run by a message that stood behind values of that part: they took all places on offer, and
/// nothing asked for them before the part ran. The worker did not ask for the message, as it held no lease.
#[test]
fn a_message_behind_values_on_offer_is_asked_for() {
    pass(&[1372, 7393], "pressed_by_what_is_on_offer");
}

/// A step that only a peer spoke of was kept for ever where the shard had no other timer.
#[test]
fn a_step_that_only_peers_speak_of_ends_by_its_time() {
    pass(&[3802, 4743, 7778], "the_tables_timer_alone");
}

/// An in-shard task began to receive from a life of a peer that had just been given up: the receive waited for a life
/// that does not come back, and with it a master's session and its steps.
#[test]
fn a_receive_of_a_life_that_is_over_is_told() {
    pass(&[486, 515, 531], "a_receive_names_a_life_that_is_over");
}

/// A task gave another up and the other did not know: what the other sent before it heard was dropped, and a receive
/// that had begun in between waited for ever.
#[test]
fn a_receive_of_what_was_dropped_meanwhile_is_told() {
    pass(&[9321, 12147, 12230], "received_what_was_dropped");
}

/// Two tasks broke, and with them all that knew why: what the client heard was a consequence, told as if it were a
/// cause.
#[test]
fn a_failure_that_followed_from_another_says_so() {
    pass(&[13380], "a_step_of_no_known_cause");
}
