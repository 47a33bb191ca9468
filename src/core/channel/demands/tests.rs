//! What is asked for at a place is found, and only that, however many demands come and go.

use proptest::prelude::*;

use super::*;
use crate::ground::{FrameIter, StepId};

fn demand(key: u32, step: u64, iter: u64, ordinal: u32) -> Demand {
    let point = Point {
        step: StepId(step),
        at: FrameIter { frame: 0, iter },
    };
    Demand::new(0, KeyId(key), point, ordinal)
}

proptest! {
    #[test]
    fn a_place_has_the_demands_that_a_look_at_all_of_them_finds(
        does in prop::collection::vec((any::<bool>(), 0..4_u32, 0..4_u64, any::<prop::sample::Index>()), 0..400)
    ) {
        let mut demands = Demands::new(300);
        for (ordinal, (is_new, key, step, at)) in (0..).zip(does) {
            let tickets: Vec<_> = demands.tickets().collect();
            if is_new || tickets.is_empty() {
                let _ = demands.insert(demand(key, step, u64::from(ordinal) % 30, ordinal));
            } else {
                prop_assert!(demands.remove(*at.get(&tickets)).is_some());
            }
            for iter in 0..30 {
                let Demand { key, point, .. } = demand(key, step, iter, 0);
                let mut found: Vec<_> = demands.of_place(key, point).map(|(ticket, _)| ticket).collect();
                found.sort_by_key(|ticket| ticket.index);
                prop_assert_eq!(found, demands.picked(|demand| demand.key == key && demand.point == point));
            }
        }
        demands.drain();
        prop_assert!((0..demands.first.len()).all(|list| demands.list(list).next().is_none()));
    }
}

/// A press makes every waiting receive ask, and each looks whether it has: none may have to look at all the others.
#[test]
fn what_is_asked_for_at_a_place_is_found_at_once() {
    let many = 1 << 13;
    for spread in [
        |at| demand(at as u32, 7, 0, 0),
        |at| demand(3, at, 0, 0),
        |at| demand(3, 7, at, 0),
        |at| demand(at as u32 % 256, at / 256, 0, 0),
    ] {
        let mut demands = Demands::new(many as usize);
        for at in 0..many {
            demands.insert(spread(at)).unwrap();
        }
        let looks = |at| {
            let Demand { key, point, .. } = spread(at);
            demands.list(demands.list_of(key, &point)).count() as u64
        };
        assert!((0..many).map(looks).sum::<u64>() < 4 * many);
    }
}
