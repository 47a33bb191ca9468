//! How a shard ends, or does not: what was taken still leaves, what comes is refused, and what panics beside it.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::posting::{Pair, STEP};
use crate::ground::{Key, Nanos, Shape, StepId, faults};
use crate::mail::mailbox::Command;
use crate::mail::wait::WaitCell;
use crate::memory::Tensor;
use crate::rendezvous::Limits;
use crate::shard::{Call, Progress, Settings};

fn values(len: usize) -> Tensor {
    Tensor::from_vec(vec![7_u8; len], Shape::row(len as u64).unwrap()).unwrap()
}

/// Two tasks, with room for two values of each step on their way out, and ten that were sent. No sender hears of them.
fn crowded() -> (Pair, Key) {
    let mut pair = Pair::new(Settings {
        table: Limits {
            parked_bytes: 1 << 20,
            parked_bytes_per_step: 20_000,
            ..Limits::default()
        },
        ..Settings::default()
    });
    let key = Key::between("a", "b", "x").unwrap();
    pair.settle();
    for _ in 0..10 {
        pair.solos[0].send_unheard(STEP, &key, values(8_000));
        pair.settle();
    }
    assert_eq!(pair.solos[0].stats().waiting_sends, 8);
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
