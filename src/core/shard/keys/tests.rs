//! Keys against a plain map, and the hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::shard::ids::NO_LINK;

fn key(edge: u32) -> Key {
    Key::between("a", "a", &format!("edge{edge}")).unwrap()
}

fn insert(keys: &mut Keys, edge: u32) -> KeyId {
    keys.insert(KeyEntry::new(key(edge), Route::Local, 0, NO_LINK))
}

proptest! {
    /// The smallest index has 64 places, so that 40 keys collide and holes are closed.
    #[test]
    fn what_is_not_forgotten_is_found(moves in prop::collection::vec((0..40_u32, prop::bool::ANY), 0..400)) {
        let all: Vec<_> = (0..40).map(key).collect();
        let mut keys = Keys::new(usize::MAX);
        let mut model = BTreeMap::new();
        let mut serials = BTreeMap::new();
        for (edge, comes) in moves {
            match (comes, model.get(&edge).copied()) {
                (true, None) => {
                    let id = insert(&mut keys, edge);
                    let serial = keys.at(id).unwrap().serial;
                    prop_assert!(serials.insert(serial, edge).is_none(), "a serial is of one key");
                    model.insert(edge, id);
                }
                (false, Some(id)) => {
                    prop_assert_eq!(keys.remove(id).map(|entry| entry.key), Some(key(edge)));
                    model.remove(&edge);
                    prop_assert!(keys.at(id).is_none() && keys.remove(id).is_none());
                }
                _ => {}
            }
            prop_assert_eq!(keys.len(), model.len());
            for (edge, key) in (0..).zip(&all) {
                prop_assert_eq!(keys.find(key), model.get(&edge).copied());
            }
        }
    }
}

#[test]
fn the_hand_stops_at_keys_that_were_not_used_since_it_came_by() {
    let mut keys = Keys::new(usize::MAX);
    let ids: Vec<_> = (0..3).map(|edge| insert(&mut keys, edge)).collect();
    let round = |keys: &mut Keys| -> Vec<_> { (0..3).filter_map(|_| keys.step_hand()).collect() };
    assert_eq!(round(&mut keys), [], "all are new");
    keys.find(&key(1));
    assert_eq!(round(&mut keys), [ids[0], ids[2]]);
    assert_eq!(round(&mut keys), ids);
    keys.remove(ids[2]);
    assert_eq!(round(&mut keys), [ids[0], ids[1]]);
    let none = &mut Keys::new(usize::MAX);
    assert_eq!(none.step_hand(), None);
}
