//! How a shard ends, or does not: what was taken still leaves, what comes is refused, and what panics beside it.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::posting::{Pair, STEP};
use crate::ground::{FrameIter, Key, Nanos, Shape, StepId, faults};
use crate::mail::mailbox::Command;
use crate::mail::wait::WaitCell;
use crate::memory::Tensor;
use crate::rendezvous::{Limits, Slot};
use crate::shard::core::Core;
use crate::shard::{Call, Progress, Settings};

fn values(len: usize) -> Tensor {
    Tensor::from_vec(vec![7_u8; len], Shape::row(len as u64).unwrap()).unwrap()
}

/// Two tasks, with room for two values of each step on their way out, and ten that were sent. No sender hears of them.
fn crowded() -> (Pair, Key) {
    let (pair, key) = crowded_by("b", 10);
    assert_eq!(pair.solos[0].stats().waiting_sends, 8);
    (pair, key)
}

/// The same with so many sent to one of them, and a key to the second.
fn crowded_by(to: &str, sent: usize) -> (Pair, Key) {
    let mut pair = Pair::new(Settings {
        table: Limits {
            parked_bytes: 1 << 20,
            parked_bytes_per_step: 20_000,
            ..Limits::default()
        },
        ..Settings::default()
    });
    let [crowding, key] = [to, "b"].map(|to| Key::between("a", to, "x").unwrap());
    pair.settle();
    for _ in 0..sent {
        pair.solos[0].send_unheard(STEP, &crowding, values(8_000));
        pair.settle();
    }
    (pair, key)
}

/// The sender was told that they are taken. They leave as the peer makes room.
#[test]
fn values_that_were_taken_and_found_no_room_leave_before_the_end() {
    let (mut pair, key) = crowded();
    pair.solos[0].shut_down(Nanos(1 << 40));
    pair.settle();
    for value in 0..10 {
        let waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
        pair.settle();
        let outcome = waiting.take();
        assert!(outcome.is_some_and(|outcome| outcome.is_ok()), "{value}");
    }
    pair.pass(1_000_000_000);
    pair.settle();
    assert_eq!(pair.solos[0].turn(), Progress::Stopped);
    assert_eq!(pair.solos[0].stats().dropped, 0);
}

/// Those for which there is no time are counted, and end their step.
#[test]
fn values_that_were_taken_and_found_no_room_are_not_lost_in_silence() {
    let (mut pair, _) = crowded();
    let end = Nanos(1 << 40);
    pair.solos[0].shut_down(end);
    pair.settle();
    assert_eq!(pair.solos[0].stats().waiting_sends, 8, "they wait on");
    pair.pass(end.0);
    assert_eq!(pair.solos[0].turn(), Progress::Stopped);
    assert_eq!(pair.solos[0].stats().waiting_sends, 0);
    assert!(pair.solos[0].stats().dropped >= 8);
    assert!(pair.solos[0].core_mut().table.has_ended(STEP));
}

/// The room of own values, which are received no more, is for those that are to leave.
#[test]
fn own_values_that_are_not_received_hold_up_no_value_for_a_peer() {
    let (mut pair, key) = crowded_by("a", 2);
    pair.solos[0].send_unheard(STEP, &key, values(8_000));
    pair.settle();
    assert_eq!(pair.solos[0].stats().waiting_sends, 1);
    pair.solos[0].shut_down(Nanos(1 << 40));
    pair.settle();
    let waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.pass(1_000_000_000);
    pair.settle();
    assert!(waiting.take().is_some_and(|outcome| outcome.is_ok()));
    assert_eq!(pair.solos[0].turn(), Progress::Stopped);
}

/// What stands in the mailbox was taken for its senders, however much it is.
#[test]
fn values_that_were_taken_before_a_stop_leave_before_the_end() {
    let mut pair = Pair::new(Settings::default());
    let [own, key] = ["a", "b"].map(|to| Key::between("a", to, "x").unwrap());
    // More than a turn takes.
    for _ in 0..40 {
        pair.solos[0].send_unheard(STEP, &own, values(8));
    }
    pair.solos[0].send_unheard(STEP, &key, values(8));
    pair.solos[0].shut_down(Nanos(1 << 40));
    pair.settle();
    let waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.settle();
    assert!(waiting.take().is_some_and(|outcome| outcome.is_ok()));
}

/// It turns a while longer, to tell its peers. A value that it took then would go nowhere.
#[test]
fn a_shard_that_another_of_its_engine_fails_takes_nothing_from_its_callers() {
    let mut pair = Pair::new(Settings::default());
    let key = Key::between("a", "b", "x").unwrap();
    pair.solos[0].send_of_caller(STEP, &key, values(8)).unwrap();
    let status = faults::shutdown();
    pair.solos[0].mailbox().call(Call::Fail {
        status: status.clone(),
    });
    assert_ne!(pair.solos[0].turn(), Progress::Stopped);
    let sent = pair.solos[0].send_of_caller(StepId(2), &key, values(8));
    assert_eq!(sent, Err(status));
}

struct Trap;

impl Wake for Trap {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

/// Wakers are their futures', which have their outcome all the same.
#[test]
fn a_waker_that_panics_is_not_taken_for_the_shard() {
    let mut pair = Pair::new(Settings::default());
    let key = Key::between("a", "a", "x").unwrap();
    let cell = Arc::new(WaitCell::default());
    assert!(cell.poll(&Waker::from(Arc::new(Trap))).is_pending());
    let command = Command::Recv {
        key: key.clone(),
        step: STEP,
        deadline: Nanos::NEVER,
        cell: Arc::clone(&cell),
        stops: None,
    };
    assert!(pair.solos[0].mailbox().command(command).is_ok());
    pair.settle();
    pair.send(0, &key, 8);
    pair.settle();
    assert!(cell.take().is_some_and(|outcome| outcome.is_ok()));
}

/// A peer that leaves an ordinal out in a step that is not used here: what came after it ends with the step, and the
/// peer's link is as it was.
#[test]
fn what_came_early_ends_with_a_step_that_no_receiver_claims() {
    let mut pair = Pair::new(Settings::default());
    let [key, other, offered] = ["x", "y", "z"].map(|edge| Key::between("a", "b", edge).unwrap());
    pair.send(0, &key, 8);
    let taken = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.settle();
    assert!(taken.take().is_some());
    // Values may overtake each other only where something is asked for.
    let _waiting = pair.solos[1].recv(STEP, &other, Nanos::NEVER);
    let slot_of = |core: &mut Core, key: &Key, step| Slot {
        step,
        key: core.keys.find(key).unwrap(),
        at: FrameIter::default(),
    };
    let core = pair.solos[1].core_mut();
    let asked = slot_of(core, &other, STEP);
    let link = core.links.ids().next().unwrap();
    core.ask_for_waiting(link, asked);
    pair.settle();
    // Another step, of which the receiver knows by an offer alone.
    let step = StepId(2);
    let send = |pair: &mut Pair, key: &Key, len| {
        let sent = pair.solos[0].enter(|context| {
            let key = context.prepare(key)?;
            context.send(step, key, values(len))
        });
        sent.unwrap();
    };
    send(&mut pair, &offered, 30_000);
    pair.settle();
    assert_eq!(pair.solos[1].holdings().steps, [1, 1]);
    let core = pair.solos[0].core_mut();
    let slot = slot_of(core, &key, step);
    let now = core.now;
    assert!(core.table.pass(now, slot).is_ok(), "one number is left out");
    for len in [8, 30_000] {
        send(&mut pair, &key, len);
    }
    pair.settle();
    assert_eq!(pair.solos[1].holdings().early, 2);
    pair.pass(Limits::default().grace_ttl_ns + 1);
    pair.settle();
    let held = pair.solos[1].holdings();
    assert_eq!((held.early, held.incoming), (0, 0), "{held:?}");
}
