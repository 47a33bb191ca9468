//! Events behave as the standard library's queue does, and those that never end take no more places.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{EventHead, Events};
use crate::ground::faults;
use crate::rendezvous::Origin;
use crate::shard::TaskEvent;
use crate::shard::ids::{Id, TaskId};

fn head(number: u16) -> EventHead {
    EventHead {
        task: TaskId::of_row(usize::from(number % 3)),
        trace: number,
        shard: 0,
        from: Origin::NOWHERE,
    }
}

/// Where the event of that number is told apart by its token.
fn event(number: u16) -> TaskEvent {
    TaskEvent::Received {
        token: u64::from(number),
        outcome: Err(faults::cancelled()),
    }
}

fn number(event: TaskEvent) -> Option<u64> {
    match event {
        TaskEvent::Received { token, .. } => Some(token),
        _ => None,
    }
}

proptest! {
    #[test]
    fn they_are_a_queue(room in 1..5usize, acts in prop::collection::vec(any::<bool>(), 0..300)) {
        let (mut events, mut queue) = (Events::new(room), VecDeque::new());
        for (at, is_push) in acts.into_iter().enumerate() {
            let at = at as u16;
            if is_push {
                events.push(head(at), event(at));
                queue.push_back(at);
            } else if let Some(first) = queue.pop_front() {
                prop_assert_eq!(events.front().map(|head| head.trace), Some(first));
                prop_assert_eq!(number(events.pop()), Some(u64::from(first)));
            } else {
                prop_assert!(events.front().is_none());
            }
            prop_assert_eq!(events.len(), queue.len());
            prop_assert_eq!(events.is_empty(), queue.is_empty());
        }
    }
}

/// A task that always answers itself leaves some standing for ever: the row begins anew nevertheless.
#[test]
fn those_that_never_end_take_no_more_places() {
    let mut events = Events::new(8);
    (0..6).for_each(|number| events.push(head(number), event(number)));
    for number in 6..10_000 {
        events.push(head(number), event(number));
        assert_eq!(number_of_next(&mut events), Some(u64::from(number) - 6));
    }
    assert_eq!(events.places.len(), 16);
}

fn number_of_next(events: &mut Events) -> Option<u64> {
    events.front()?;
    number(events.pop())
}
