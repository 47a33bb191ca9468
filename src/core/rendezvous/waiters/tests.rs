//! Tests of names, bounds and deadlines.

use super::super::Limits;
use super::super::slab::List;
use super::Waiters;
use crate::ground::Nanos;
use crate::rendezvous::Refusal;

fn waiters() -> Waiters<u32> {
    Waiters::new(Limits {
        waiters: 3,
        waiters_per_key: 2,
        ..Limits::default()
    })
    .unwrap()
}

#[test]
fn a_name_ends_with_its_waiter_and_a_place_is_used_again() {
    let mut waiters = waiters();
    let mut list = List::EMPTY;
    let mut names = Vec::new();
    for tag in 0..100 {
        let waiter = waiters.admit(0, tag, Nanos(4)).unwrap();
        let id = waiters.push(&mut list, 7, waiter, Nanos::NEVER);
        for earlier in &names {
            assert_eq!(waiters.find(*earlier), None);
        }
        names.push(id);
        let (index, record) = waiters.find(id).unwrap();
        assert_eq!((index, record), (0, 7));
        assert_eq!(waiters.remove(&mut list, index), tag);
        assert_eq!((waiters.find(id), waiters.count()), (None, 0));
    }
}

#[test]
fn both_bounds_count_those_in_records() {
    let mut waiters = waiters();
    assert_eq!(waiters.admit(2, 1, Nanos(4)), Err(Refusal::WaitersOfKey));
    for others in [0, 1, 0] {
        assert!(waiters.admit(others, 1, Nanos(4)).is_ok());
    }
    assert_eq!(waiters.admit(0, 1, Nanos(4)), Err(Refusal::Waiters));
    waiters.dismiss();
    assert!(waiters.admit(1, 1, Nanos(4)).is_ok());
}

#[test]
fn one_that_left_before_its_deadline_is_not_due() {
    let mut waiters = waiters();
    let mut list = List::EMPTY;
    let mut ids = Vec::new();
    for (tag, deadline) in [(1, Nanos(100)), (2, Nanos::NEVER), (3, Nanos(100))] {
        let waiter = waiters.admit(0, tag, Nanos(4)).unwrap();
        ids.push(waiters.push(&mut list, 9, waiter, deadline));
    }
    let timed = [0, 1, 2].map(|at| waiters.has_deadline(ids[at]));
    assert_eq!(timed, [true, false, true]);
    let (first, _) = waiters.find(ids[0]).unwrap();
    waiters.remove(&mut list, first);
    assert_eq!(waiters.next_deadline(), Some(Nanos(100)));
    let (last, record) = waiters.pop_due(Nanos(100)).unwrap();
    assert_eq!((Some((last, record)), record), (waiters.find(ids[2]), 9));
    assert_eq!(waiters.remove(&mut list, last), 3);
    assert_eq!(waiters.pop_due(Nanos(100)), None);
    let left: Vec<_> = waiters
        .each(list)
        .map(|(id, waiter)| (id, waiter.tag))
        .collect();
    assert_eq!(left, [(ids[1], 2)]);
}
