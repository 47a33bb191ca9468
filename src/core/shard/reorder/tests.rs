//! Whatever the lanes do, each key's values leave in the order of their ordinals, and each of them once.

use proptest::prelude::*;

use super::*;
use crate::ground::{FrameIter, StepId};
use crate::rendezvous::KeyId;

const fn link(number: u32) -> LinkId {
    LinkId::from_number(number)
}

fn slot(step: u64, key: u32) -> Slot {
    Slot {
        step: StepId(step),
        key: KeyId(key),
        at: FrameIter::default(),
    }
}

fn ordinals() -> impl Strategy<Value = Vec<u32>> {
    Just((0..20).collect::<Vec<u32>>()).prop_shuffle()
}

proptest! {
    #[test]
    fn any_order_becomes_that_of_the_ordinals(
        came in (ordinals(), ordinals()),
        first in prop_oneof![Just(0), u32::MAX - 21..=u32::MAX, (1 << 31) - 21..=1_u32 << 31],
    ) {
        let mut reorder = Reorder::new(40);
        let mut left = [Vec::new(), Vec::new()];
        for (one, other) in came.0.into_iter().zip(came.1) {
            for (key, rank) in [one, other].into_iter().enumerate() {
                let at = slot(1, key as u32);
                let left = &mut left[key];
                let turn = |left: &[u32]| first.wrapping_add(left.len() as u32);
                let ordinal = first.wrapping_add(rank);
                if ordinal == turn(left) {
                    left.push(rank);
                } else {
                    prop_assert_eq!(reorder.keep(link(0), at, ordinal, rank), Ok(None));
                }
                while let Some((ordinal, rank)) = reorder.next(link(0), at, turn(left)) {
                    prop_assert_eq!(ordinal, first.wrapping_add(rank));
                    left.push(rank);
                }
                prop_assert!(reorder.next(link(1), at, turn(left)).is_none(), "of another link");
            }
            let waiting = 2 * 20 - left.iter().map(Vec::len).sum::<usize>();
            prop_assert!(reorder.len() <= waiting);
        }
        prop_assert_eq!(reorder.len(), 0);
        prop_assert_eq!(&left[0], &(0..20).collect::<Vec<_>>());
        prop_assert_eq!(&left[0], &left[1]);
    }
}

#[test]
fn what_ended_is_taken_out_and_the_rest_stays() {
    let mut reorder = Reorder::new(20);
    for (of, step, key) in [(0, 1, 1), (0, 2, 1), (1, 1, 2), (1, 2, 2)] {
        let former = reorder.keep(link(of), slot(step, key), 5, (of, step));
        assert_eq!(former, Ok(None));
    }
    let gone = reorder.take_all(|_, slot| slot.step == StepId(1));
    assert_eq!(gone, [(link(0), (0, 1)), (link(1), (1, 1))]);
    assert!(reorder.has(|at| at.key == KeyId(2)) && !reorder.has(|at| at == slot(1, 2)));
    assert_eq!(reorder.take_all(|of, _| of == link(0)), [(link(0), (0, 2))]);
    assert!(!reorder.holds(link(0)) && reorder.holds(link(1)));
    assert_eq!(reorder.len(), 1);
    assert_eq!(reorder.next(link(1), slot(2, 2), 4), None, "one is missing");
    // A repeat of what was here before goes too, and the table knows it.
    assert_eq!(reorder.next(link(1), slot(2, 2), 9), Some((5, (1, 2))));
    assert_eq!(reorder.len(), 0);
}

#[test]
fn what_comes_for_the_very_same_place_takes_it() {
    let mut reorder = Reorder::new(20);
    assert_eq!(reorder.keep(link(0), slot(1, 1), 5, 'a'), Ok(None));
    assert_eq!(
        reorder.keep(link(1), slot(1, 1), 5, 'b'),
        Ok(None),
        "another link's"
    );
    assert_eq!(reorder.keep(link(0), slot(1, 1), 5, 'c'), Ok(Some('a')));
    assert_eq!(reorder.len(), 2);
}

#[test]
fn a_link_that_leaves_gaps_is_told_from_the_others() {
    let mut reorder = Reorder::new(3);
    for ordinal in 1..4 {
        assert_eq!(
            reorder.keep(link(0), slot(1, 1), ordinal, ordinal),
            Ok(None)
        );
    }
    assert_eq!(reorder.keep(link(0), slot(1, 2), 1, 7), Err(Gaps(7)));
    assert_eq!(reorder.keep(link(1), slot(1, 2), 1, 8), Ok(None));
    assert_eq!(reorder.next(link(0), slot(1, 1), 1), Some((1, 1)));
    assert_eq!(reorder.keep(link(0), slot(1, 2), 1, 7), Ok(None));
}
