//! Tests of the slab: bounds, reuse and stale tickets.

use super::Slab;
use crate::wire::Ticket;

#[test]
fn a_ticket_finds_its_value_until_it_is_taken_out() {
    let mut slab = Slab::new(4);
    let ticket = slab.insert("a").expect("room");
    assert_eq!(slab.at(ticket), Some(&"a"));
    *slab.at_mut(ticket).expect("there") = "b";
    assert_eq!(slab.remove(ticket), Some("b"));
    assert_eq!(slab.at(ticket), None);
    assert_eq!(slab.at_mut(ticket), None);
    assert_eq!(slab.remove(ticket), None);
    assert_eq!(slab.len(), 0);
}

#[test]
fn a_slot_used_again_has_another_generation() {
    let mut slab = Slab::new(4);
    let old = slab.insert(1).expect("room");
    slab.remove(old);
    let new = slab.insert(2).expect("room");
    assert_eq!(new.index, old.index, "the warm slot first");
    assert_ne!(new.generation, old.generation);
    assert_eq!(slab.at(old), None);
    assert_eq!(slab.remove(old), None);
    assert_eq!(slab.at(new), Some(&2));
}

#[test]
fn a_full_slab_hands_the_value_back() {
    let mut slab = Slab::new(2);
    let first = slab.insert(1).expect("room");
    slab.insert(2).expect("room");
    assert_eq!(slab.insert(3), Err(3));
    slab.remove(first);
    assert!(slab.insert(3).is_ok());
}

#[test]
fn tickets_that_were_never_given_find_nothing() {
    let mut slab = Slab::new(2);
    slab.insert(1).expect("room");
    for (index, generation) in [(1, 0), (0, 1), (u32::MAX, 0)] {
        let ticket = Ticket { index, generation };
        assert_eq!(slab.at(ticket), None);
        assert_eq!(slab.remove(ticket), None);
    }
}

#[test]
fn generations_wrap_within_a_ticket() {
    let mut slab = Slab::new(1);
    for round in 0..(1_u32 << Ticket::GENERATION_BITS) + 2 {
        let ticket = slab.insert(round).expect("room");
        assert_eq!(Ticket::unpack(ticket.packed()), ticket);
        assert_eq!(slab.remove(ticket), Some(round));
    }
}

/// What a peer says late of a ticket is never taken for a word about the value that has the same one later.
#[test]
fn a_ticket_comes_again_when_every_slot_is_worn_and_not_before() {
    let mut slab = Slab::new(8);
    let first = slab.insert(0).expect("room");
    slab.remove(first);
    for use_of in 1..8_u32 << Ticket::GENERATION_BITS {
        let ticket = slab.insert(use_of).expect("room");
        assert_ne!(ticket, first, "use {use_of}");
        if use_of % 2 == 0 {
            assert_eq!(slab.remove(ticket), Some(use_of));
        } else {
            assert!(slab.discard(ticket));
        }
        assert_eq!(slab.len(), 0);
    }
    assert_eq!(slab.insert(0), Ok(first));
    assert!((0..7).all(|value| slab.insert(value).is_ok()));
    assert_eq!(slab.insert(9), Err(9));
}

#[test]
fn draining_takes_all_and_leaves_every_ticket_stale() {
    let mut slab = Slab::new(4);
    let tickets: Vec<_> = (0..3)
        .map(|value| slab.insert(value).expect("room"))
        .collect();
    slab.remove(tickets[1]);
    assert_eq!(slab.tickets().collect::<Vec<_>>(), [tickets[0], tickets[2]]);
    let mut all = slab.drain();
    all.sort_unstable();
    assert_eq!(all, [0, 2]);
    assert_eq!(slab.len(), 0);
    assert!(tickets.iter().all(|&ticket| slab.at(ticket).is_none()));
}
