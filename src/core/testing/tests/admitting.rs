//! Sends that wait for room, in one shard under a clock of its own: order, fairness, and every way a wait can end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use crate::fabric::{AnyPort, DownReason, LoopbackPort};
use crate::ground::device::TaskName;
use crate::ground::{Code, FrameIter, Incarnation, Key, Nanos, Shape, Status, StepId};
use crate::mail::{PendingWhat, Received};
use crate::memory::{ArenaConfig, HugePages, Segment, Tensor};
use crate::rendezvous::Limits;
use crate::shard::{Observer, Progress, Settings};
use crate::testing::solo::{Greeting, Queues, Sending, Solo, Team};
use crate::trace::Clock;

struct Deaf;

impl Observer for Deaf {
    fn peer_wanted(&self, _: &TaskName) {}
    fn step_ended(&self, _: StepId, _: &Status) {}
    fn link_down(&self, _: &TaskName, _: u32, _: DownReason) {}
    fn violated(&self, _: &TaskName, _: u32, _: &Status) {}
    fn segment_added(&self, _: Arc<Segment>) {}
}

/// A shard with room for 1000 bytes, 600 of them of one step.
pub(super) struct Bench {
    pub(super) solo: Solo,
    now: Arc<AtomicU64>,
}

const ROOM: u64 = 1000;
const ROOM_OF_STEP: u64 = 600;
const S1: StepId = StepId(1);
const S2: StepId = StepId(2);
const S3: StepId = StepId(3);

impl Bench {
    fn new() -> Self {
        Self::with_room(ROOM, ROOM_OF_STEP)
    }

    /// With room for so many bytes, and for so many of one step.
    pub(super) fn with_room(all: u64, of_step: u64) -> Self {
        let now = Arc::new(AtomicU64::new(1));
        let team = Team {
            task: TaskName::parse("/job:a/task:0").unwrap(),
            incarnation: Incarnation(7),
            settings: Settings {
                table: Limits {
                    parked_bytes: all,
                    parked_bytes_per_step: of_step,
                    ..Limits::default()
                },
                connect_timeout_ns: 1000,
                ..Settings::default()
            },
            clock: Clock::simulated(Arc::clone(&now)),
            arena: ArenaConfig {
                segment_bytes: 1 << 20,
                bytes_max: 1 << 20,
                huge_pages: HugePages::Off,
            },
            queues: Queues::default(),
        };
        let mut solos = team
            .muster(
                |_| vec![AnyPort::Loopback(LoopbackPort::new())],
                |_| Arc::new(Deaf),
            )
            .unwrap();
        let mut bench = Self {
            solo: solos.remove(0),
            now,
        };
        bench.settle();
        bench
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            if self.solo.turn() != Progress::Busy {
                return;
            }
        }
        panic!("the shard is never done");
    }

    pub(super) fn wait_until(&mut self, at: u64) {
        self.now.store(at, Ordering::Relaxed);
        self.settle();
    }

    pub(super) fn send(
        &mut self,
        step: StepId,
        key: &Key,
        len: usize,
        mark: u8,
    ) -> Result<(), Status> {
        let sent = self.solo.enter(|context| {
            let key = context.prepare(key)?;
            context.send(step, key, tensor(len, mark))
        });
        self.settle();
        sent
    }

    pub(super) fn send_in_turn(
        &mut self,
        step: StepId,
        key: &Key,
        len: usize,
        mark: u8,
    ) -> Sending {
        let tensor = tensor(len, mark);
        let sending = self.solo.send_in_turn(step, key, tensor, Nanos::NEVER);
        self.settle();
        sending.unwrap()
    }

    /// The peer `b` is there, in that life.
    fn greet(&mut self, incarnation: Incarnation) {
        self.solo.peer_up(Greeting {
            task: TaskName::parse("/job:b/task:0").unwrap(),
            incarnation,
            shards: 1,
            read_domain: false,
            segments: Vec::new(),
            links: Vec::new(),
        });
        self.settle();
    }

    /// The mark of the next value, if one is there.
    pub(super) fn recv(&mut self, step: StepId, key: &Key) -> Option<u8> {
        let waiting = self.solo.recv(step, key, Nanos::NEVER);
        self.settle();
        let outcome = waiting.take();
        if outcome.is_none() {
            self.solo.cancel(&waiting);
            self.settle();
        }
        outcome.map(mark)
    }
}

fn mark(outcome: Result<Received, Status>) -> u8 {
    outcome.unwrap().tensor.host().unwrap()[0]
}

pub(super) fn tensor(len: usize, mark: u8) -> Tensor {
    Tensor::from_vec(vec![mark; len], Shape::row(len as u64).unwrap()).unwrap()
}

pub(super) fn key(edge: &str) -> Key {
    Key::between("a", "a", edge).unwrap()
}

pub(super) fn reason(outcome: Option<Result<(), Status>>) -> String {
    match outcome {
        None => "waits".into(),
        Some(Ok(())) => "sent".into(),
        Some(Err(status)) => status.reason().to_owned(),
    }
}

/// Each is listed with its age and its bytes: a receive, a value, and the sends that wait behind it, as one.
#[test]
fn what_waits_is_listed() {
    let mut bench = Bench::new();
    let (full, empty) = (key("full"), key("empty"));
    bench.send(S1, &full, 400, 1).unwrap();
    bench.wait_until(11);
    let first = bench.send_in_turn(S1, &full, 300, 2);
    bench.wait_until(21);
    let second = bench.send_in_turn(S1, &full, 250, 3);
    let waiting = bench.solo.recv(S2, &empty, Nanos::NEVER);
    bench.wait_until(31);
    let listed: Vec<_> = bench.solo.pending();
    let listed: Vec<_> = listed
        .iter()
        .map(|item| (item.what, item.step, item.age_ns, item.bytes, item.count))
        .collect();
    assert_eq!(
        listed,
        [
            (PendingWhat::Value, S1, 30, 400, 1),
            (PendingWhat::Send, S1, 20, 550, 2),
            (PendingWhat::Receive, S2, 10, 0, 1),
        ]
    );
    drop((first, second, waiting));
    bench.solo.finish(S1);
    bench.solo.finish(S2);
    bench.settle();
    assert!(bench.solo.pending().is_empty());
}

#[test]
fn a_send_waits_for_room_and_goes_when_there_is_some() {
    let mut bench = Bench::new();
    let key = key("x");
    bench.send(S1, &key, 500, 1).unwrap();
    let (second, third) = (
        bench.send_in_turn(S1, &key, 500, 2),
        bench.send_in_turn(S1, &key, 50, 3),
    );
    assert_eq!(reason(second.take()), "waits");
    // It would fit, and comes after one of its key that does not.
    assert_eq!(reason(third.take()), "waits");
    assert_eq!(bench.solo.stats().waiting_sends, 2);
    assert_eq!(bench.recv(S1, &key), Some(1));
    assert_eq!(
        (reason(second.take()), reason(third.take())),
        ("sent".into(), "sent".into())
    );
    assert_eq!(bench.recv(S1, &key), Some(2));
    assert_eq!(bench.recv(S1, &key), Some(3));
    assert!(bench.solo.is_free());
}

#[test]
fn nothing_overtakes_a_value_of_its_key_that_waits() {
    let mut bench = Bench::new();
    let (full, key) = (key("full"), key("x"));
    bench.send(S1, &full, 600, 1).unwrap();
    let waiting = bench.send_in_turn(S1, &key, 10, 2);
    let status = bench.send(S1, &key, 0, 3).unwrap_err();
    assert_eq!(status.reason(), "SEND_BEHIND", "{status}");
    assert!(status.message().contains("x"), "{status}");
    assert_eq!(bench.recv(S1, &full), Some(1));
    assert_eq!(reason(waiting.take()), "sent");
    bench.send(S1, &key, 10, 3).unwrap();
    assert_eq!(
        (bench.recv(S1, &key), bench.recv(S1, &key)),
        (Some(2), Some(3))
    );
}

#[test]
fn one_step_at_its_bound_holds_up_no_other() {
    let mut bench = Bench::new();
    bench.send(S1, &key("x"), 600, 1).unwrap();
    let held_up = bench.send_in_turn(S1, &key("y"), 1, 2);
    let other = bench.send_in_turn(S2, &key("y"), 300, 3);
    assert_eq!(
        (reason(held_up.take()), reason(other.take())),
        ("waits".into(), "sent".into())
    );
    bench.send(S3, &key("z"), 100, 4).unwrap();
    // The shard's bound stops all, the oldest first.
    let (big, small) = (
        bench.send_in_turn(S2, &key("big"), 200, 5),
        bench.send_in_turn(S3, &key("small"), 1, 6),
    );
    assert_eq!(
        (reason(big.take()), reason(small.take())),
        ("waits".into(), "waits".into())
    );
    assert_eq!(bench.recv(S3, &key("z")), Some(4));
    assert_eq!(
        (reason(big.take()), reason(small.take())),
        ("waits".into(), "waits".into())
    );
    assert_eq!(bench.recv(S1, &key("x")), Some(1));
    for sending in [held_up, big, small] {
        assert_eq!(reason(sending.take()), "sent");
    }
}

/// Small values come and go all the time: the large one gets its room, because none of them takes it meanwhile.
#[test]
fn a_large_value_is_not_starved_by_small_ones() {
    let mut bench = Bench::new();
    let small = key("small");
    for mark in 0..6 {
        bench.send(S1, &small, 100, mark).unwrap();
    }
    let large = bench.send_in_turn(S1, &key("large"), 500, 99);
    for round in 0..5 {
        assert_eq!(reason(large.take()), "waits", "round {round}");
        assert!(bench.recv(S1, &small).is_some());
        let refused = bench.send(S1, &small, 100, 7);
        if round < 4 {
            assert_eq!(refused.unwrap_err().reason(), "PARKED_BYTES_OF_STEP");
        }
    }
    assert_eq!(reason(large.take()), "sent");
}

/// A send whose value a receiver waits for need not stand in line for room: it takes none.
#[test]
fn a_value_that_is_waited_for_goes_at_once() {
    let mut bench = Bench::new();
    bench.send(S1, &key("full"), 600, 1).unwrap();
    let first = bench.send_in_turn(S1, &key("x"), 100, 2);
    let second = bench.send_in_turn(S1, &key("y"), 100, 3);
    assert_eq!(bench.recv(S1, &key("y")), Some(3));
    assert_eq!(
        (reason(first.take()), reason(second.take())),
        ("waits".into(), "sent".into())
    );
    // And so for a value that comes when a receiver waits already, whether its send may wait or not.
    let waiting = bench.solo.recv(S1, &key("z"), Nanos::NEVER);
    bench.settle();
    bench.send(S1, &key("z"), 400, 4).unwrap();
    assert_eq!(waiting.take().map(mark), Some(4));
}

#[test]
fn an_end_of_the_step_reaches_those_who_wait_in_it() {
    let mut bench = Bench::new();
    for step in [S1, S2] {
        bench.send(step, &key("full"), 450, 1).unwrap();
    }
    let (aborted, finished) = (
        bench.send_in_turn(S1, &key("x"), 300, 42),
        bench.send_in_turn(S2, &key("x"), 300, 43),
    );
    bench
        .solo
        .abort(S1, Status::new(Code::Internal, "TEST", "it broke"));
    bench.settle();
    assert_eq!(reason(aborted.take()), "TEST");
    // The tensor is its sender's again.
    assert_eq!(aborted.take_tensor().unwrap().host().unwrap()[0], 42);
    // Room that the aborted step gave back.
    assert_eq!(reason(finished.take()), "waits");
    bench.solo.finish(S2);
    bench.settle();
    assert_eq!(reason(finished.take()), "STEP_FINISHED");
    let late = bench.send_in_turn(S1, &key("x"), 1, 44);
    assert_eq!(reason(late.take()), "TEST");
    assert!(bench.solo.is_free());
}

#[test]
fn a_stop_reaches_those_who_wait() {
    let mut bench = Bench::new();
    bench.send(S1, &key("full"), 600, 1).unwrap();
    let waiting = bench.send_in_turn(S1, &key("x"), 1, 2);
    bench.solo.shut_down(Nanos(1));
    while bench.solo.turn() != Progress::Stopped {}
    assert_eq!(reason(waiting.take()), "SHUTDOWN");
    let late = bench
        .solo
        .send_in_turn(S1, &key("x"), tensor(1, 3), Nanos::NEVER);
    assert_eq!(reason(late.unwrap().take()), "SHUTDOWN");
}

#[test]
fn a_destination_that_is_not_there_in_time_ends_the_wait() {
    let mut bench = Bench::new();
    let away = Key::between("a", "b", "x").unwrap();
    bench.send(S1, &away, 600, 1).unwrap();
    let waiting = bench.send_in_turn(S1, &away, 1, 2);
    bench.wait_until(500);
    assert_eq!(reason(waiting.take()), "waits");
    bench.wait_until(2000);
    assert_eq!(reason(waiting.take()), "CONNECT_DEADLINE");
    assert_eq!(waiting.take_tensor().unwrap().host().unwrap()[0], 2);
}

#[test]
fn a_send_gives_up_at_its_deadline() {
    let mut bench = Bench::new();
    bench.send(S1, &key("full"), 600, 1).unwrap();
    let sending = bench
        .solo
        .send_in_turn(S1, &key("x"), tensor(1, 2), Nanos(100));
    let patient = bench.send_in_turn(S1, &key("x"), 1, 3);
    let sending = sending.unwrap();
    bench.wait_until(99);
    assert_eq!(reason(sending.take()), "waits");
    assert_eq!(bench.solo.next_timer(), Nanos(100));
    bench.wait_until(100);
    assert_eq!(reason(sending.take()), "DEADLINE");
    bench.recv(S1, &key("full"));
    assert_eq!(reason(patient.take()), "sent");
    assert_eq!(bench.recv(S1, &key("x")), Some(3));
}

#[test]
fn a_send_that_is_given_up_leaves_nothing_behind() {
    let mut bench = Bench::new();
    bench.send(S1, &key("full"), 600, 1).unwrap();
    let sendings: Vec<_> = (0..4)
        .map(|at| bench.send_in_turn(S1, &key("x"), 1, at))
        .collect();
    // The memory is there at once, before the shard has heard.
    assert!(bench.solo.cancel_send(&sendings[0]).is_some());
    bench.solo.stop_send(&sendings[2]);
    bench.settle();
    assert_eq!(reason(sendings[2].take()), "SEND_CANCELLED");
    assert_eq!(sendings[2].take_tensor().unwrap().host().unwrap()[0], 2);
    assert_eq!(bench.solo.stats().waiting_sends, 2);
    bench.recv(S1, &key("full"));
    assert_eq!(
        (bench.recv(S1, &key("x")), bench.recv(S1, &key("x"))),
        (Some(1), Some(3))
    );
    // Too late: it was taken.
    bench.solo.stop_send(&sendings[3]);
    bench.settle();
    assert_eq!(reason(sendings[3].take()), "sent");
    assert!(bench.solo.is_free());
}

#[test]
fn a_value_longer_than_the_bound_does_not_wait() {
    let mut bench = Bench::new();
    let sending = bench.send_in_turn(S1, &key("x"), 601, 1);
    assert_eq!(reason(sending.take()), "PARKED_BYTES_OF_STEP");
    assert!(sending.take_tensor().is_some());
    // Unless a receiver waits for it.
    let waiting = bench.solo.recv(S1, &key("x"), Nanos::NEVER);
    bench.settle();
    assert_eq!(
        reason(bench.send_in_turn(S1, &key("x"), 601, 2).take()),
        "sent"
    );
    assert_eq!(waiting.take().map(mark), Some(2));
}

#[test]
fn a_value_longer_than_the_bound_ends_its_wait_when_it_is_first() {
    let mut bench = Bench::new();
    bench.send(S1, &key("x"), 500, 1).unwrap();
    let [other, behind, after] = [(350, 2), (601, 3), (100, 4)]
        .map(|(len, mark)| bench.send_in_turn(S1, &key("y"), len, mark));
    assert!(other.take().is_none(), "it waits for room");
    assert!(
        behind.take().is_none(),
        "it stands behind a value of its key"
    );
    assert_eq!(bench.recv(S1, &key("x")), Some(1));
    assert_eq!(reason(other.take()), "sent");
    // There will never be room for it, and what stands behind it does not wait for it.
    assert_eq!(reason(behind.take()), "PARKED_BYTES_OF_STEP");
    assert!(behind.take_tensor().is_some());
    assert_eq!(reason(after.take()), "sent");
    assert_eq!(bench.recv(S1, &key("y")), Some(2));
    assert_eq!(bench.recv(S1, &key("y")), Some(4));
    assert_eq!(bench.solo.stats().waiting_sends, 0);
}

/// The same of one whose sender was told that it was taken.
#[test]
fn a_taken_value_that_is_refused_in_its_turn_fails_its_step() {
    let mut bench = Bench::new();
    bench.send(S1, &key("x"), 600, 1).unwrap();
    for (len, mark) in [(350, 2), (601, 3)] {
        bench.solo.send_unheard(S1, &key("y"), tensor(len, mark));
    }
    let waiting = bench.solo.recv(S1, &key("z"), Nanos::NEVER);
    bench.settle();
    assert_eq!(bench.solo.stats().waiting_sends, 2);
    assert!(waiting.take().is_none());
    assert_eq!(bench.recv(S1, &key("x")), Some(1));
    let status = waiting.take().unwrap().unwrap_err();
    assert_eq!(status.reason(), "PARKED_BYTES_OF_STEP", "{status}");
    assert_eq!(bench.solo.stats().waiting_sends, 0);
}

#[test]
fn no_more_wait_than_may() {
    let mut bench = Bench::new();
    bench.send(S1, &key("full"), 600, 1).unwrap();
    let limit = crate::ground::limits::WAITING_SENDS;
    let sendings: Vec<_> = (0..limit)
        .map(|_| {
            bench
                .solo
                .send_in_turn(S1, &key("x"), tensor(1, 1), Nanos::NEVER)
                .unwrap()
        })
        .collect();
    assert!(
        bench
            .solo
            .send_in_turn(S1, &key("x"), tensor(1, 1), Nanos::NEVER)
            .is_none()
    );
    bench.settle();
    assert_eq!(bench.solo.stats().waiting_sends, u64::from(limit));
    assert!(bench.solo.cancel_send(&sendings[7]).is_some());
    bench.settle();
    assert!(
        bench
            .solo
            .send_in_turn(S1, &key("x"), tensor(1, 1), Nanos::NEVER)
            .is_some()
    );
}

/// More than the mailbox holds, put in at once: the last to come stand in the overflow, and all go in order.
#[test]
fn those_who_find_the_mailbox_full_keep_their_order() {
    let mut bench = Bench::new();
    let key = key("x");
    let mailbox = crate::ground::limits::MAILBOX;
    let waiting: Vec<_> = (0..mailbox - 10)
        .map(|_| {
            bench
                .solo
                .send_in_turn(S1, &key, tensor(0, 0), Nanos::NEVER)
                .unwrap()
        })
        .collect();
    assert!(!bench.solo.is_free());
    for sending in &waiting[..mailbox / 2] {
        bench.solo.cancel_send(sending);
    }
    bench.settle();
    for sending in &waiting[mailbox / 2..] {
        assert_eq!(reason(sending.take()), "sent");
    }
    assert!(bench.solo.is_free());
}

/// The end of a step takes all that was asked for before it, past what a turn takes: those in the overflow wait no more
/// for that.
#[test]
fn the_end_of_a_step_keeps_nobody_in_the_lane() {
    let mut bench = Bench::new();
    let (keys, mailbox) = (key("x"), crate::ground::limits::MAILBOX);
    for _ in 0..mailbox {
        bench.solo.send_unheard(S2, &keys, tensor(0, 0));
    }
    let last = bench
        .solo
        .send_in_turn(S1, &key("y"), tensor(0, 1), Nanos::NEVER)
        .unwrap();
    // One turn takes some of them, and counts the others.
    bench.solo.turn();
    assert!(last.take().is_none(), "it stands in the overflow");
    bench.solo.finish(S2);
    bench.settle();
    assert_eq!(reason(last.take()), "sent");
    assert!(bench.solo.is_free());
}

#[test]
fn a_step_ends_at_its_deadline() {
    let mut bench = Bench::new();
    bench.solo.end_by(S1, Nanos(500));
    bench.solo.end_by(S1, Nanos(100));
    bench.solo.end_by(S1, Nanos(900));
    bench.solo.end_by(S2, Nanos(100));
    bench.send(S1, &key("full"), 600, 1).unwrap();
    let sending = bench.send_in_turn(S1, &key("x"), 1, 2);
    let (late, early) = (
        bench.solo.recv(S1, &key("y"), Nanos(5000)),
        bench.solo.recv(S1, &key("y"), Nanos(50)),
    );
    bench.wait_until(50);
    assert_eq!(early.take().unwrap().unwrap_err().reason(), "DEADLINE");
    assert!(late.take().is_none());
    bench.solo.finish(S2);
    bench.wait_until(100);
    let status = late.take().unwrap().unwrap_err();
    assert_eq!(
        (status.code(), status.reason()),
        (Code::DeadlineExceeded, "DEADLINE")
    );
    assert!(status.message().contains("step 1"), "{status}");
    assert_eq!(reason(sending.take()), "DEADLINE");
    assert_eq!(bench.solo.stats().parked_bytes, 0);
    // It is over, and the one that was finished before ended as it did.
    assert_eq!(
        bench.send(S1, &key("y"), 1, 1).unwrap_err().reason(),
        "DEADLINE"
    );
    assert_eq!(
        bench.send(S2, &key("y"), 1, 1).unwrap_err().reason(),
        "STEP_FINISHED"
    );
    assert!(bench.solo.next_timer() > Nanos(10_000));
}

/// A cancelled receive hears so once, and the value that comes later is the next one's.
#[test]
fn a_cancelled_receive_leaves_its_value_to_the_next() {
    let mut bench = Bench::new();
    let (first, second) = (
        bench.solo.recv(S1, &key("x"), Nanos::NEVER),
        bench.solo.recv(S1, &key("x"), Nanos::NEVER),
    );
    bench.solo.stop(&first);
    bench.settle();
    let status = first.take().unwrap().unwrap_err();
    assert_eq!(
        (status.code(), status.reason()),
        (Code::Cancelled, "RECV_CANCELLED")
    );
    bench.send(S1, &key("x"), 1, 9).unwrap();
    assert_eq!(second.take().map(mark), Some(9));
    bench.solo.stop(&second);
    bench.settle();
    assert!(second.take().is_none());
    assert_eq!(bench.solo.holdings().waits, 0);
}

/// Its sender was told that it was taken: it waits, in its turn; and if it can never go, the step's waiters are told
/// that something of it is missing.
#[test]
fn a_value_that_was_taken_and_finds_no_room_is_not_lost_in_silence() {
    let mut bench = Bench::new();
    bench.send(S1, &key("full"), 600, 1).unwrap();
    bench.solo.send_unheard(S1, &key("x"), tensor(1, 2));
    bench.settle();
    assert_eq!(bench.solo.stats().waiting_sends, 1);
    let behind = bench.send(S1, &key("x"), 1, 3);
    assert_eq!(behind.unwrap_err().reason(), "SEND_BEHIND");
    assert_eq!(bench.recv(S1, &key("full")), Some(1));
    assert_eq!(bench.recv(S1, &key("x")), Some(2));

    bench.send(S1, &key("full"), 600, 1).unwrap();
    let waiting = bench.solo.recv(S1, &key("y"), Nanos::NEVER);
    bench.solo.send_unheard(S1, &key("x"), tensor(601, 2));
    bench.settle();
    let status = waiting.take().unwrap().unwrap_err();
    assert_eq!(status.reason(), "PARKED_BYTES", "{status}");
    // One that comes after the end of its step is no news.
    bench.solo.send_unheard(S1, &key("x"), tensor(1, 2));
    bench.settle();
    assert_eq!(bench.solo.stats().dropped, 3);
}

/// What waited for one life of a peer hears which it was, and which is there now, whichever way the value was to go.
#[test]
fn another_life_of_a_peer_is_named_with_the_one_that_was_expected() {
    let mut bench = Bench::new();
    let (out, back) = (
        Key::between("a", "b", "x").unwrap(),
        Key::between("b", "a", "x").unwrap(),
    );
    let (former, found) = (Incarnation(0xf0), Incarnation(0xf1));
    let of_former = Key::new(
        back.source(),
        former,
        back.destination(),
        "x",
        FrameIter::default(),
    )
    .unwrap();
    let names_both = |status: &Status| {
        assert_eq!(status.reason(), "PEER_RESTARTED", "{status}");
        for incarnation in [former, found] {
            assert!(
                status.message().contains(&incarnation.to_string()),
                "{status}"
            );
        }
    };
    // Before any peer of that name is there: the key says which one it means.
    let early = bench.solo.recv(S1, &of_former, Nanos::NEVER);
    bench.solo.recv_of_leader(S1, &of_former);
    let open = bench.solo.recv(S1, &back, Nanos::NEVER);
    bench.settle();
    assert!(bench.solo.take_led().is_none());
    bench.greet(found);
    names_both(&early.take().unwrap().unwrap_err());
    names_both(&bench.solo.take_led().unwrap().unwrap_err());
    assert!(open.take().is_none());
    // And when it is there.
    let late = bench.solo.recv(S1, &of_former, Nanos::NEVER);
    bench.settle();
    names_both(&late.take().unwrap().unwrap_err());

    let mut bench = Bench::new();
    bench.greet(former);
    let expected = bench.solo.recv(S1, &of_former, Nanos::NEVER);
    let open = bench.solo.recv(S1, &back, Nanos::NEVER);
    bench.send(S1, &out, 600, 1).unwrap();
    let waiting = bench.send_in_turn(S1, &out, 100, 2);
    assert_eq!(reason(waiting.take()), "waits");
    bench.greet(found);
    for receive in [expected, open] {
        names_both(&receive.take().unwrap().unwrap_err());
    }
    names_both(&waiting.take().unwrap().unwrap_err());
    // What was parked for the former is not for this one.
    assert_eq!(bench.solo.stats().parked_bytes, 0);
}

/// A receive that begins after its peer was lost is told what those were told that had begun before, if its key names
/// the life that is over: no other life's value is for it.
#[test]
fn a_receive_of_a_life_that_is_over_is_told_at_once() {
    let mut bench = Bench::new();
    let (over, next) = (Incarnation(0xf0), Incarnation(0xf1));
    let open = Key::between("b", "a", "x").unwrap();
    let bound = open.with_source_incarnation(over);
    bench.greet(over);
    let early = bench.solo.recv(S1, &open, Nanos::NEVER);
    bench.settle();
    let peer = open.source_task().clone();
    bench.solo.peer_exited(&peer, over);
    bench.settle();
    let told = early.take().unwrap().unwrap_err();
    assert_eq!(told.reason(), "PEER_LOST", "{told}");
    let late = [Nanos::NEVER, Nanos(u64::MAX / 2)].map(|by| bench.solo.recv(S1, &bound, by));
    let waiting = bench.solo.recv(S1, &open, Nanos::NEVER);
    bench.settle();
    for receive in late {
        let status = receive.take().unwrap().unwrap_err();
        assert_eq!(status.to_string(), told.to_string());
    }
    assert!(waiting.take().is_none(), "it takes what any life sends");
    bench.greet(next);
    let late = bench.solo.recv(S1, &bound, Nanos::NEVER);
    bench.settle();
    let status = late.take().unwrap().unwrap_err();
    assert_eq!(status.reason(), "PEER_RESTARTED", "{status}");
    // A life that was given up and is there after all goes on.
    bench.solo.peer_exited(&peer, next);
    bench.settle();
    bench.greet(next);
    let of_next = open.with_source_incarnation(next);
    let waiting = bench.solo.recv(S1, &of_next, Nanos::NEVER);
    bench.settle();
    assert!(waiting.take().is_none());
}

#[derive(Clone, Debug)]
enum Act {
    /// Step, key, bytes.
    Send(u64, usize, usize),
    Wait(u64, usize, usize),
    Recv(u64, usize),
    /// One of those that wait.
    GiveUp(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let place = || (0..2u64, 0..3usize);
    let len = || prop_oneof![0..50usize, 100..400usize, Just(600)];
    let act = prop_oneof![
        2 => (place(), len()).prop_map(|((step, key), len)| Act::Send(step, key, len)),
        4 => (place(), len()).prop_map(|((step, key), len)| Act::Wait(step, key, len)),
        4 => place().prop_map(|(step, key)| Act::Recv(step, key)),
        1 => (0..20usize).prop_map(Act::GiveUp),
    ];
    proptest::collection::vec(act, 1..120)
}

fn is_refused(sending: Option<&Sending>) -> bool {
    matches!(sending.map(Sending::take), Some(Some(Err(_))))
}

proptest! {
    /// Whatever is sent, waited for, received and given up: each key gives what was taken in the order in which it was
    /// put in, the bounds hold, and once all was received no send waits.
    #[test]
    fn order_and_bounds_hold(acts in acts()) {
        let mut bench = Bench::new();
        let keys = [key("x"), key("y"), key("z")];
        // What each slot must give: those sent and those that may yet be, in order.
        let mut owed: Vec<VecDeque<(u64, Option<Sending>)>> = vec![VecDeque::new(); 6];
        let mut serial = 0u64;
        let value = |serial: u64, len: usize| {
            let mut bytes = serial.to_le_bytes().to_vec();
            bytes.resize(8 + len, 0);
            let shape = Shape::row(bytes.len() as u64).unwrap();
            Tensor::from_vec(bytes, shape).unwrap()
        };
        let read = |outcome: Result<Received, Status>| {
            let tensor = outcome.unwrap().tensor;
            u64::from_le_bytes(tensor.host().unwrap()[..8].try_into().unwrap())
        };
        for act in acts {
            serial += 1;
            match act {
                Act::Send(step, key, len) => {
                    let sent = bench.solo.enter(|context| {
                        let key = context.prepare(&keys[key])?;
                        context.send(StepId(step), key, value(serial, len))
                    });
                    if sent.is_ok() {
                        owed[step as usize * 3 + key].push_back((serial, None));
                    }
                }
                Act::Wait(step, key, len) => {
                    let tensor = value(serial, len);
                    let step_id = StepId(step);
                    let sending = bench.solo.send_in_turn(step_id, &keys[key], tensor, Nanos::NEVER);
                    owed[step as usize * 3 + key].push_back((serial, sending));
                }
                Act::Recv(step, key) => {
                    let waiting = bench.solo.recv(StepId(step), &keys[key], Nanos::NEVER);
                    bench.settle();
                    let slot = &mut owed[step as usize * 3 + key];
                    match waiting.take() {
                        Some(outcome) => {
                            // Those refused on the way were never owed.
                            while let Some((_, Some(sending))) = slot.front()
                                && matches!(sending.take(), Some(Err(_)))
                            {
                                slot.pop_front();
                            }
                            let front = slot.pop_front().map(|(serial, _)| serial);
                            prop_assert_eq!(Some(read(outcome)), front);
                        }
                        None => {
                            bench.solo.cancel(&waiting);
                            slot.retain(|(_, sending)| !is_refused(sending.as_ref()));
                            prop_assert!(slot.is_empty(), "{:?} are owed", slot);
                        }
                    }
                }
                Act::GiveUp(which) => {
                    let slot = &mut owed[which % 6];
                    let at = slot.iter().position(|(_, sending)| sending.is_some());
                    if let Some(at) = at
                        && let Some(sending) = slot[at].1.clone()
                        && bench.solo.cancel_send(&sending).is_some()
                    {
                        slot.remove(at);
                    }
                }
            }
            bench.settle();
            let stats = bench.solo.stats();
            prop_assert!(stats.parked_bytes <= ROOM);
        }
        for (at, slot) in owed.iter_mut().enumerate() {
            let (step, key) = (StepId(at as u64 / 3), &keys[at % 3]);
            while let Some((serial, sending)) = slot.pop_front() {
                // What is longer than its step's bound is refused when it is the first, unless it is waited for.
                if is_refused(sending.as_ref()) {
                    continue;
                }
                let waiting = bench.solo.recv(step, key, Nanos::NEVER);
                bench.settle();
                prop_assert_eq!(waiting.take().map(read), Some(serial));
            }
        }
        prop_assert_eq!(bench.solo.stats().waiting_sends, 0);
        prop_assert_eq!(bench.solo.stats().parked_bytes, 0);
        prop_assert!(bench.solo.is_free());
    }
}

/// A shard that is gone without having ended in good order leaves no send waiting in its mailbox, and no memory.
#[test]
fn a_shard_that_is_dropped_answers_what_is_in_its_mailbox() {
    let mut bench = Bench::new();
    bench.send(S1, &key("full"), 600, 1).unwrap();
    let in_shard = bench.send_in_turn(S1, &key("x"), 600, 2);
    // The shard is turned no more: the one stays in the mailbox.
    let in_mailbox = bench
        .solo
        .send_in_turn(S1, &key("x"), tensor(600, 3), Nanos::NEVER)
        .unwrap();
    let asked = bench.solo.ask(S1, &key("y"), Nanos::NEVER).unwrap();
    let mailbox = Arc::downgrade(bench.solo.mailbox());
    drop(bench);
    assert_eq!(reason(in_mailbox.take()), "SHUTDOWN");
    assert_eq!(
        asked.take().map(|outcome| outcome.unwrap_err().reason()),
        Some("SHUTDOWN")
    );
    drop(in_shard);
    assert!(mailbox.upgrade().is_none(), "nothing keeps it");
}
