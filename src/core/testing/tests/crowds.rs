//! Many sends that wait for room, in many steps: what a turn looks at.

use super::admitting::{Bench, key, reason};
use crate::ground::{Nanos, StepId};
use crate::testing::solo::Sending;

/// Steps, each at its bound, and each with a send that waits.
const STEPS: u64 = 200;
const OTHER: StepId = StepId(STEPS);

/// In each step a value fills its room, and one more waits.
fn crowd(room: u64) -> (Bench, Vec<Sending>) {
    let mut bench = Bench::with_room(room, 100);
    let waiting = (0..STEPS).map(|step| {
        bench.send(StepId(step), &key("full"), 90, 1).unwrap();
        bench.send_in_turn(StepId(step), &key("x"), 50, 2)
    });
    let waiting: Vec<_> = waiting.collect();
    assert!(
        waiting
            .iter()
            .all(|sending| reason(sending.take()) == "waits")
    );
    (bench, waiting)
}

fn looks(bench: &mut Bench) -> u64 {
    bench.solo.core_mut().send_queue.looks.take()
}

/// A value that comes and goes in one step is no news for those that wait in others.
#[test]
fn a_turn_looks_at_no_send_that_waits_in_another_step() {
    let (mut bench, _waiting) = crowd(1 << 20);
    looks(&mut bench);
    for mark in 0..50 {
        bench.send(OTHER, &key("x"), 10, mark).unwrap();
        assert_eq!(bench.recv(OTHER, &key("x")), Some(mark));
    }
    assert!(looks(&mut bench) <= 50);
}

/// Each send goes when its own step has room, and those that wait beside it are not looked at for that.
#[test]
fn room_in_a_step_costs_a_look_at_what_waits_there() {
    let (mut bench, waiting) = crowd(1 << 20);
    looks(&mut bench);
    // The youngest first.
    for (step, sending) in waiting.iter().enumerate().rev() {
        assert_eq!(reason(sending.take()), "waits");
        assert_eq!(bench.recv(StepId(step as u64), &key("full")), Some(1));
        assert_eq!(reason(sending.take()), "sent");
    }
    let looks = looks(&mut bench);
    assert!(looks <= 4 * STEPS, "{looks} looks");
    assert!(bench.solo.is_free());
}

/// The shard is full as well: one that waits for the shard's room stands before those of other steps.
#[test]
fn a_step_with_room_waits_behind_one_that_needs_the_shards() {
    let (mut bench, waiting) = crowd(STEPS * 90 + 5);
    let large = bench.send_in_turn(OTHER, &key("large"), 100, 3);
    let small = bench.send_in_turn(StepId(OTHER.0 + 1), &key("small"), 1, 4);
    assert_eq!(
        (reason(large.take()), reason(small.take())),
        ("waits".into(), "waits".into())
    );
    // These came before it.
    assert_eq!(bench.recv(StepId(7), &key("full")), Some(1));
    assert_eq!(reason(waiting[7].take()), "sent");
    let late = bench.send_in_turn(StepId(7), &key("late"), 90, 5);
    assert_eq!(bench.recv(StepId(7), &key("x")), Some(2));
    // It fits, and would leave none for the one before it.
    assert_eq!(
        (reason(large.take()), reason(late.take())),
        ("waits".into(), "waits".into())
    );
    looks(&mut bench);
    for _ in 0..50 {
        bench.solo.turn();
    }
    assert!(looks(&mut bench) <= 50);
    // Room for what came before, for the first of them, and for one more byte.
    assert_eq!(bench.recv(StepId(8), &key("full")), Some(1));
    let outcomes = [&waiting[8], &large, &small, &late].map(|sending| reason(sending.take()));
    assert_eq!(outcomes, ["sent", "sent", "sent", "waits"]);
    assert_eq!(bench.recv(OTHER, &key("large")), Some(3));
    assert_eq!(reason(late.take()), "sent");
}

/// A deadline that passes costs a look at its own send.
#[test]
fn a_deadline_ends_its_own_send_alone() {
    let (mut bench, waiting) = crowd(1 << 20);
    let hasty = bench.solo.send_in_turn(
        StepId(3),
        &key("x"),
        super::admitting::tensor(1, 9),
        Nanos(100),
    );
    bench.settle();
    looks(&mut bench);
    bench.wait_until(100);
    assert_eq!(reason(hasty.unwrap().take()), "DEADLINE");
    assert!(looks(&mut bench) <= 8);
    assert_eq!(reason(waiting[3].take()), "waits");
}
