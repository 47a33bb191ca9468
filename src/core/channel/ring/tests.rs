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
        for act in acts {
            match act {
                Act::Push(entry) => {
                    ring.push(entry);
                    queue.push_back(entry);
                }
                Act::Insert(at, entry) => {
                    let at = at.min(queue.len());
                    ring.insert(at, entry);
                    queue.insert(at, entry);
                }
                Act::Drop(count) => {
                    ring.drop_first(count);
                    queue.drain(..count.min(queue.len()));
                }
            }
            prop_assert_eq!(ring.len(), queue.len());
            prop_assert!(ring.first(usize::MAX).eq(queue.iter()));
            prop_assert_eq!(ring.at_mut(queue.len()), None);
            prop_assert_eq!(ring.at_mut(0).copied(), queue.front().copied());
        }
    }
}
