//! Regressions: seeds that once failed, by what was wrong.

use crate::dials::Dials;

fn passes(seed: u64, change: impl FnOnce(&mut Dials)) {
    let mut dials = Dials::of_seed(seed);
    change(&mut dials);
    assert_eq!(crate::run(dials), Ok(()));
}

/// A turn whose timers had ended a receive called itself idle, and whoever waited heard of it at the next arrival: a
/// task of the same shard, or of a neighbour.
#[test]
fn a_turn_that_ended_a_receive_was_not_idle() {
    passes(219, |dials| {
        dials.one_sided_one_in = 2;
        dials.hold_one_in = 0;
        dials.is_stream = false;
    });
    passes(3061, |_| {});
}

/// Landings that a broken connection took with it were opened anew beside those that had taken their room.
#[test]
fn renewed_landings_keep_to_the_budget() {
    for seed in [31, 237, 281] {
        passes(seed, |_| {});
    }
}

/// A peer that was given up, and lived, read on in memory that was used again.
#[test]
fn what_a_lost_peer_reads_stays() {
    for seed in 0..20 {
        passes(seed, |dials| {
            dials.read_domain = true;
            dials.settings.lease = true;
            dials.bytes_max = 8_000;
            dials.hold_one_in = 1;
            dials.loss_one_in = 30;
        });
    }
}

fn lives(seed: u64) {
    assert_eq!(crate::run(Dials::of_seed(seed)), Ok(()), "seed {seed}");
}

/// The last lease lay with a value that waited behind an offer which waited for a lease.
#[test]
fn an_offer_that_finds_no_lease_free_is_copied() {
    lives(2252);
}

/// Offered again after a broken write, while no lease was free: nobody fetched it.
#[test]
fn an_offer_renewed_is_still_wanted() {
    lives(746);
}

/// The demand of an offer was taken back before it was asked: the offer stayed at its sender for ever.
#[test]
fn an_offer_whose_demand_nobody_heard_of_is_released() {
    lives(2538);
}
