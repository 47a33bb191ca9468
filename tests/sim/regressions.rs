//! Regressions: seeds that once failed, by what was wrong.

use crate::dials::Dials;

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
