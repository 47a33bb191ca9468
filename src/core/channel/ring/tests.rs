//! A ring behaves as the standard library's queue does.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::Ring;

#[derive(Clone, Copy, Debug)]
enum Act {
    Push(u8),
    Insert(usize, u8),
    Drop(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => any::<u8>().prop_map(Act::Push),
        1 => (0..20usize, any::<u8>()).prop_map(|(at, entry)| Act::Insert(at, entry)),
        2 => (0..6usize).prop_map(Act::Drop),
    ];
    prop::collection::vec(act, 0..200)
}

proptest! {
    #[test]
    fn it_is_a_queue(room in 1..9usize, acts in acts()) {
        let mut ring = Ring::new(room, 0u8);
        let mut queue = VecDeque::new();
        let mut dropped = 0;
        for act in acts {
            match act {
                Act::Push(entry) => {
                    ring.push(&entry);
                    queue.push_back(entry);
                }
                Act::Insert(at, entry) => {
                    let at = at.min(queue.len());
                    let at_number = ring.first() + at as u64;
                    // Two places more than are needed.
                    ring.extend(3);
                    ring.shorten(2);
                    for later in (at_number + 1..ring.end()).rev() {
                        ring.copy(later - 1, later);
                    }
                    *ring.at_mut(at_number).unwrap() = entry;
                    queue.insert(at, entry);
                }
                Act::Drop(count) => {
                    let count = count.min(queue.len());
                    ring.drop_first(count);
                    queue.drain(..count);
                    dropped += count as u64;
                }
            }
            prop_assert_eq!(ring.len(), queue.len());
            prop_assert!(ring.first_of(usize::MAX).eq(queue.iter()));
            prop_assert_eq!(ring.first(), dropped);
            prop_assert_eq!(ring.at_mut(ring.end()), None);
            prop_assert_eq!(ring.at(dropped).copied(), queue.front().copied());
        }
    }
}
