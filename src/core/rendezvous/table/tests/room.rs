//! Room: what is held counts as what is parked does, on the shard and on its step, and is given back exactly.

use crate::ground::{FrameIter, Nanos, StepId};
use crate::rendezvous::{KeyId, Limits, Refusal, Sent, Slot, Table};

fn slot(step: u64, key: u32) -> Slot {
    Slot {
        step: StepId(step),
        key: KeyId(key),
        at: FrameIter::default(),
    }
}

fn table() -> Table<u8, u32> {
    Table::new(Limits {
        parked_bytes: 100,
        parked_bytes_per_step: 60,
        ..Limits::default()
    })
    .unwrap()
}

#[test]
fn what_is_held_takes_room_until_it_is_given_back() {
    let mut table = table();
    table.send(Nanos::ZERO, slot(1, 1), 0, 20).unwrap();
    table.hold(Some(StepId(1)), 30);
    assert_eq!(table.room(StepId(1), 10), Ok(()));
    assert_eq!(table.room(StepId(1), 11), Err(Refusal::ParkedBytesOfStep));
    // It meets both bounds: its step's is the one to wait for.
    assert_eq!(table.room(StepId(1), 51), Err(Refusal::ParkedBytesOfStep));
    assert_eq!(table.room(StepId(2), 50), Ok(()));
    assert_eq!(table.room(StepId(2), 51), Err(Refusal::ParkedBytes));
    let refused = table.send(Nanos::ZERO, slot(1, 1), 0, 11);
    assert_eq!(refused, Err((Refusal::ParkedBytesOfStep, 0)));
    table.hold(Some(StepId(1)), -30);
    assert_eq!(
        table.send(Nanos::ZERO, slot(1, 1), 0, 40),
        Ok(Sent::Parked { ordinal: 1 })
    );
    assert_eq!(table.stats().held_bytes, 0);
}

/// A lease may outlive its step by far: what is given back then is the shard's, and no other step's.
#[test]
fn what_outlives_its_step_is_given_back_to_the_shard() {
    let mut table = table();
    table.open_step(Nanos::ZERO, StepId(1)).unwrap();
    table.hold(Some(StepId(1)), 60);
    table.finish(Nanos::ZERO, StepId(1), &mut |_| {});
    assert_eq!(table.room(StepId(2), 41), Err(Refusal::ParkedBytes));
    table.hold(Some(StepId(1)), -60);
    assert_eq!(table.room(StepId(2), 60), Ok(()));
    assert_eq!(table.room(StepId(2), 61), Err(Refusal::ParkedBytesOfStep));
}

#[test]
fn a_value_longer_than_the_bound_is_offered_alone() {
    let mut table = table();
    assert_eq!(table.room_to_offer(StepId(1), 1000), Ok(()));
    table.open_step(Nanos::ZERO, StepId(1)).unwrap();
    table.hold(Some(StepId(1)), 1);
    assert_eq!(
        table.room_to_offer(StepId(1), 1000),
        Err(Refusal::ParkedBytesOfStep)
    );
}

#[test]
fn a_slot_says_what_becomes_of_its_next_value() {
    let mut table = table();
    let here = slot(1, 1);
    assert!(table.is_clear(&here) && !table.is_awaited(&here));
    table.recv(Nanos::ZERO, here, 7, Nanos::NEVER).unwrap();
    assert!(table.is_clear(&here) && table.is_awaited(&here));
    table.send(Nanos::ZERO, here, 0, 1).unwrap();
    table.send(Nanos::ZERO, here, 0, 1).unwrap();
    assert!(!table.is_clear(&here) && !table.is_awaited(&here));
}
