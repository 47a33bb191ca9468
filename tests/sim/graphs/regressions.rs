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

/// A step that only a peer spoke of was kept for ever where the shard had no other timer.
#[test]
fn a_step_that_only_peers_speak_of_ends_by_its_time() {
    pass(&[3802, 4743, 7778], "the_tables_timer_alone");
}
