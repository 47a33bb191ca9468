//! Links: by queue pair, spare ones, and which are due.

use super::*;
use crate::channel::{ChannelSettings, Rules};
use crate::ground::Incarnation;
use crate::shard::ids::Id;

fn channel() -> Channel<Value> {
    Channel::new(ChannelSettings {
        incarnation: Incarnation(1),
        frame_window: 8,
        line_window: 64,
        inline_max: 128,
        read_domain: true,
        requests: 16,
        offers: 16,
        interned: 4,
        ack_delay_ns: 1000,
        rules: Rules::ALL,
    })
}

fn peer(row: usize) -> PeerId {
    PeerId::of_row(row)
}

#[test]
fn a_queue_pair_has_the_link_that_was_connected_by_it_last() {
    let mut links = Links::new(2);
    let [one, other] = [0, 1].map(|row| links.assign(peer(row), channel));
    links.connect(one, (1, QpId(3)));
    assert_eq!(links.of_qp(1, QpId(3)), one);
    assert_eq!(links.of_qp(0, QpId(3)), NO_LINK);
    // The place goes to another while the Down of the first is still to come.
    links.connect(other, (1, QpId(3 | 1 << 16)));
    assert_eq!(links.of_qp(1, QpId(3 | 1 << 16)), other);
    assert_eq!(links.of_qp(1, QpId(3)), one);
    links[one].qp = None;
    assert_eq!(links.of_qp(1, QpId(3)), NO_LINK);
}

#[test]
fn a_spare_link_begins_behind_the_epoch_that_it_had() {
    let mut links = Links::new(1);
    let first = links.assign(peer(0), channel);
    links[first].channel.rebind(5);
    links.spare(vec![first, NO_LINK]);
    let again = links.assign(peer(1), || unreachable!("there is a spare one"));
    assert_eq!(again, first);
    assert_eq!(links[again].peer, peer(1));
    assert!(links[again].channel.epoch() > 5);
    // So does every new one, whose peer may be the one that knew the spare.
    let new = links.assign(peer(2), channel);
    assert!(new != again && links[new].channel.epoch() > 5);
}

#[test]
fn a_link_that_is_left_with_something_goes_to_another_when_nothing_is_left() {
    let mut links = Links::new(1);
    let first = links.assign(peer(0), channel);
    links[first].qp = Some((0, QpId(1)));
    links.spare(vec![first]);
    let second = links.assign(peer(1), channel);
    assert_ne!(second, first);
    links[first].qp = None;
    let third = links.assign(peer(2), || unreachable!("there is a spare one"));
    assert_eq!(third, first);
    assert_eq!(links.assign(peer(3), channel).row(), 2, "it is spare once");
}

#[test]
fn a_link_is_due_once_and_again_when_it_was_posted_to() {
    let mut links = Links::new(1);
    let [one, other] = [0, 1].map(|row| links.assign(peer(row), channel));
    assert!(!links.is_dirty());
    for link in [other, one, other] {
        links.touch(link);
    }
    let mut list = links.take_dirty();
    assert_eq!(list, [other, one]);
    links.touch(one);
    assert!(!links.is_dirty(), "it is still to be posted to");
    for link in list.drain(..) {
        links.clean(link);
    }
    links.touch(one);
    links.put_back(list);
    assert_eq!(
        links.take_dirty(),
        [one],
        "what became due meanwhile is kept"
    );
}
