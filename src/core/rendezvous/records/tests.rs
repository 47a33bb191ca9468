//! Tests of records: how slots find theirs, and what ends with them.

use std::collections::BTreeMap;

use super::super::names::{KeyId, Limits, Slot};
use super::super::slab::NONE;
use super::{Records, TOUCHED_AT_ONCE};
use crate::ground::rng::Rng;
use crate::ground::{FrameIter, Nanos, StepId};
use crate::rendezvous::waiters::WaiterRecord;

fn slot(step: u64, key: u64, iter: u64) -> Slot {
    Slot {
        step: StepId(step),
        key: KeyId(key as u32),
        at: FrameIter { frame: 0, iter },
    }
}

fn records(most: u32, hash_seed: u64) -> Records<u32> {
    Records::new(&Limits {
        records: most,
        hash_seed,
        ..Limits::default()
    })
    .unwrap()
}

#[test]
fn slots_find_their_records_and_no_others() {
    let mut rng = Rng::new(3);
    let mut records = records(8, 5);
    let mut model: BTreeMap<Slot, u32> = BTreeMap::new();
    for _ in 0..20_000 {
        let slot = slot(rng.below(3), rng.below(3), rng.below(4));
        match rng.below(20) {
            0 => {
                // The records of one key in one step end.
                let mut at = records.first_of(slot.step.0 as u32);
                while at != NONE {
                    let (gone, next) = (records.at(at).slot(), records.next(at));
                    assert_eq!(gone.step, slot.step);
                    if gone.key == slot.key {
                        assert_eq!(model.remove(&gone), Some(at));
                        records.remove(at);
                    }
                    at = next;
                }
                assert!(
                    model
                        .keys()
                        .all(|left| (left.step, left.key) != (slot.step, slot.key))
                );
            }
            1..8 if !model.contains_key(&slot) => {
                let at = records.insert(&slot, slot.step.0 as u32, false);
                assert!(model.values().all(|other| *other != at));
                model.insert(slot, at);
            }
            _ => assert_eq!(records.seek(&slot), model.get(&slot).copied()),
        }
        assert_eq!(records.find(&slot), model.get(&slot).copied());
        assert_eq!(records.count() as usize, model.len());
        let is_used = model.keys().any(|other| other.key == slot.key);
        assert_eq!(records.is_used(slot.key), is_used);
        let all: BTreeMap<_, _> = records
            .each()
            .map(|(at, record)| (record.slot(), at))
            .collect();
        assert_eq!(all, model);
    }
}

#[test]
fn what_was_taken_from_a_record_knows_it_from_its_successor() {
    let mut records = records(1, 0);
    let at = records.insert(&slot(1, 1, 0), 0, false);
    let waiter = |generation| WaiterRecord {
        tag: 9,
        since: Nanos(4),
        generation,
    };
    let name = records.at_mut(at).seat(at, waiter(1));
    let origin = records.origin(at, 0);
    assert_eq!(
        (records.record_of(origin), records.seat_of(name)),
        (Some(at), Some(at))
    );
    assert_eq!(records.at_mut(at).unseat(), Some(9));
    assert_eq!(records.seat_of(name), None, "it has left");
    records.at_mut(at).seat(at, waiter(2));
    assert_eq!(records.seat_of(name), None, "and another waits there");
    records.at_mut(at).unseat();
    assert_eq!(records.first_of(0), at);
    records.remove(at);
    assert_eq!(records.record_of(origin), None);
    assert_eq!(records.insert(&slot(1, 1, 0), 0, false), at);
    assert_eq!(
        records.record_of(origin),
        None,
        "a younger one in the same memory"
    );
    assert_eq!(records.record_of(records.origin(at, 0)), Some(at));
}

#[test]
fn a_step_in_grace_is_opened_for_all_its_records() {
    let mut records = records(4, 0);
    let all = [0, 1, 2].map(|key| records.insert(&slot(1, key, 0), 7, true));
    let other = records.insert(&slot(2, 0, 0), 8, true);
    records.open(7);
    assert!(
        all.iter()
            .all(|at| !records.at(*at).is_grace() && records.at(*at).step() == 7)
    );
    assert!(records.at(other).is_grace());
}

#[test]
fn a_burst_of_slots_is_found_with_one_key_and_with_many() {
    for keys in [1, 7, 1000] {
        let mut records = records(4, 0);
        let slots: Vec<Slot> = (0..1000).map(|at| slot(1, at % keys, at)).collect();
        let made: Vec<u32> = slots
            .iter()
            .map(|slot| records.insert(slot, 0, false))
            .collect();
        for (burst, made) in slots
            .chunks(TOUCHED_AT_ONCE)
            .zip(made.chunks(TOUCHED_AT_ONCE))
        {
            let mut found = [NONE; TOUCHED_AT_ONCE];
            records.warm(burst, &mut found);
            assert_eq!(found[..burst.len()], *made);
        }
        let mut found = [5; TOUCHED_AT_ONCE];
        records.warm(&[slot(9, 2000, 0)], &mut found);
        assert_eq!(found[0], NONE);
    }
}
