//! Doorbells as a peer may send them.

use super::*;
use crate::fabric::doorbell::Doorbell;

/// Doorbells of these shards, each descriptor for itself: page, eventfd, page, eventfd.
fn offers(shards: &[u16]) -> Vec<DoorbellOffer> {
    let doorbell = Doorbell::new().expect("descriptors");
    let (page, event) = doorbell.fds();
    let fds = [page, event].into_iter().cycle();
    let offer = |(&shard, fd): (&u16, std::os::fd::BorrowedFd<'_>)| DoorbellOffer {
        shard,
        fd: fd.try_clone_to_owned().expect("a descriptor"),
    };
    shards.iter().zip(fds).map(offer).collect()
}

/// What a peer sends is the peer's fault, and no end of this engine.
#[test]
fn doorbells_come_as_one_pair_for_each_shard() {
    let wakes = |shards: &[u16]| wakes("b", offers(shards), 2, true);
    assert_eq!(wakes(&[0, 0, 1, 1]).expect("two pairs").len(), 2);
    assert_eq!(wakes(&[1, 1, 0, 0]).expect("in any order").len(), 2);
    for wrong in [
        &[0, 1, 1, 0][..],
        &[0, 0, 0, 0],
        &[0, 0, 2, 2],
        &[0, 0, 1, 1, 1, 1],
        &[0, 0],
        &[0, 0, 1],
        &[],
    ] {
        let status = wakes(wrong).expect_err("not as they should be");
        assert_eq!(status.reason(), catalogue::PEER_REFUSED, "{wrong:?}");
        assert!(status.message().contains("task b"), "{status}");
    }
    let none = super::wakes("b", Vec::new(), 2, false).expect("it never sleeps");
    assert_eq!(none.len(), 2);
}
