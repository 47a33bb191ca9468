//! Bad input through the public handle: each case gets its own error with a stable reason, and costs that operation
//! only.
//!
//! What peers, files and descriptors can do wrong is tested beside those who read them; here is what a program can.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rendez::engine::{Config, Engine, Recv, Step};
use rendez::ground::{Code, DType, Key, Shape, Status, StepId, catalogue};
use rendez::mail::PendingWhat;
use rendez::memory::Tensor;
use rendez::shard::{Task, TaskContext, TaskEvent};

use crate::support::{self, PATIENCE, config, until};

fn engine(change: impl FnOnce(&mut Config)) -> Engine {
    support::engine("a", change)
}

fn own_key(edge: &str) -> Key {
    Key::between("a", "a", edge).unwrap()
}

/// The bytes of the value that comes.
fn received(step: &Step, key: &Key) -> Vec<u8> {
    let received = step.recv(key).deadline(PATIENCE).wait().unwrap();
    received.tensor.host().unwrap().to_vec()
}

fn poll(receive: &mut Recv) -> Poll<Result<rendez::mail::Received, Status>> {
    Pin::new(receive).poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn assert_status(status: &Status, code: Code, reason: &str, texts: &[&str]) {
    assert_eq!((status.code(), status.reason()), (code, reason), "{status}");
    for text in texts {
        assert!(status.message().contains(text), "{text} in {status}");
    }
}

/// The engine does what it is for.
#[track_caller]
fn assert_works(engine: &Engine) {
    let (key, step) = (own_key("still works"), engine.step(StepId(999)));
    step.send(&key, Tensor::scalar(41u32)).unwrap();
    let received = step.recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!(received.tensor.as_slice::<u32>().unwrap(), [41]);
}

#[test]
fn malformed_keys_are_refused_by_their_text() {
    let good = own_key("x").text().to_string();
    for text in [
        "",
        ";;;;",
        "a;b",
        &good[1..],
        &good.replace(";x;", ";"),
        &format!("{good};0"),
        &good.replace("0:0", "0:x"),
    ] {
        let error = Key::parse(text).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("Invalid  rendezvous key: {text}")
        );
        assert_status(
            &Status::from(error),
            Code::InvalidArgument,
            catalogue::KEY_MALFORMED,
            &[],
        );
    }
    assert!(Key::between("a b", "a", "x").is_err() && Key::between("a", "a", "x;y").is_err());
    assert_eq!(Key::parse(&good).unwrap(), own_key("x"));
}

#[test]
fn foreign_keys_are_refused_to_both_sides() {
    let engine = engine(|_| {});
    let step = engine.step(StepId(1));
    let key = Key::between("b", "c", "x").unwrap();
    let sent = step.send(&key, Tensor::scalar(1u8)).unwrap_err();
    assert_status(
        &sent,
        Code::InvalidArgument,
        catalogue::DEVICE_FOREIGN_SOURCE,
        &[
            "this task is /job:a/replica:0/task:0",
            "source is /job:b/replica:0/task:0: send the value there",
            &key.text(),
        ],
    );
    let received = step.recv(&key).wait().map(drop).unwrap_err();
    assert_status(
        &received,
        Code::InvalidArgument,
        catalogue::DEVICE_FOREIGN_DESTINATION,
        &[
            "this task is /job:a/replica:0/task:0",
            "destination is /job:c/replica:0/task:0: receive the value there",
            &key.text(),
        ],
    );
    assert_works(&engine);
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let cores = core_affinity::get_core_ids().unwrap_or_default().len();
    let start = |change: &dyn Fn(&mut Config)| {
        let mut config = config("a");
        change(&mut config);
        Engine::start(config).map(drop).unwrap_err()
    };
    let status = start(&|config| (config.shards, config.share_cores) = (cores + 1, false));
    assert_status(
        &status,
        Code::InvalidArgument,
        catalogue::SHARDS_OVER_CORES,
        &["share_cores"],
    );
    let status = start(&|config| config.cores = vec![100_000]);
    assert_status(
        &status,
        Code::InvalidArgument,
        catalogue::CONFIG,
        &["100000", "affinity"],
    );
    let status = start(&|config| config.mailbox = 1);
    assert_status(
        &status,
        Code::InvalidArgument,
        catalogue::CONFIG,
        &["mailbox = 1"],
    );
    let status = start(&|config| config.inline_max = 1 << 30);
    assert_status(
        &status,
        Code::InvalidArgument,
        catalogue::CONFIG,
        &["inline_max"],
    );
    let status = start(&|config| config.arena.bytes_max = 0);
    assert_status(
        &status,
        Code::InvalidArgument,
        catalogue::CONFIG,
        &["arena_bytes"],
    );
    let status = start(&|config| config.task = "nobody/at:all".into());
    assert_eq!(status.code(), Code::InvalidArgument);
    let mut config = config("a");
    let status = config.apply_toml("shardz = 2", "here.toml").unwrap_err();
    assert_status(
        &status,
        Code::InvalidArgument,
        catalogue::CONFIG,
        &["here.toml", "shardz"],
    );
    let poll = |name: &str| (name == "RENDEZ_POLL").then(|| "often".to_owned());
    let status = config.apply_env(poll).unwrap_err();
    assert_status(
        &status,
        Code::InvalidArgument,
        catalogue::CONFIG,
        &["RENDEZ_POLL=often", "adaptive, busy or park"],
    );
}

#[test]
fn an_address_is_listened_on_once() {
    let first = Engine::start({
        let mut config = config("a");
        config.control = true;
        config
    })
    .unwrap();
    let mut second = config("b");
    (second.control, second.listen) = (true, first.address().cloned());
    let status = Engine::start(second).map(drop).unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(catalogue::find(status.reason()).is_some(), "{status}");
    assert_works(&first);
}

#[test]
fn an_arena_holds_what_it_holds() {
    let engine =
        engine(|config| (config.arena.segment_bytes, config.arena.bytes_max) = (1 << 20, 2 << 20));
    let unfit = engine.tensor(DType::U8, &[8 << 20]).map(drop).unwrap_err();
    assert_status(&unfit, Code::ResourceExhausted, catalogue::ARENA_UNFIT, &[]);
    let shape = engine
        .tensor(DType::U8, &[u64::MAX, 3])
        .map(drop)
        .unwrap_err();
    assert_eq!(shape.code(), Code::InvalidArgument, "{shape}");
    let mut held = Vec::new();
    let full = loop {
        match engine.tensor(DType::U8, &[512 << 10]) {
            Ok(builder) => held.push(builder),
            Err(status) => break status,
        }
        assert!(held.len() < 5, "two megabytes are not more");
    };
    assert_status(&full, Code::ResourceExhausted, catalogue::ARENA_FULL, &[]);
    drop(held);
    assert!(
        engine.tensor(DType::U8, &[512 << 10]).is_ok(),
        "what was dropped can be had again"
    );
    assert_works(&engine);
}

#[test]
fn a_peer_nobody_knows_is_waited_for_no_longer_than_said() {
    for control in [false, true] {
        let engine = engine(|config| {
            (config.control, config.connect_timeout) = (control, Duration::from_millis(50))
        });
        if control {
            engine.add_peer(
                "/job:b/task:0".parse_task(),
                "unix:@nobody-listens-here".parse().unwrap(),
            );
        }
        let key = Key::between("b", "a", "x").unwrap();
        let step = engine.step(StepId(1));
        let status = step.recv(&key).wait().map(drop).unwrap_err();
        assert_status(
            &status,
            Code::Unavailable,
            catalogue::CONNECT_DEADLINE,
            &["/job:b"],
        );
        // Who says how long it waits, waits that long.
        let begun = std::time::Instant::now();
        let patient = step.recv(&key).deadline(Duration::from_millis(200));
        let status = patient.wait().map(drop).unwrap_err();
        assert_status(
            &status,
            Code::DeadlineExceeded,
            catalogue::DEADLINE,
            &["/job:b"],
        );
        assert!(begun.elapsed() >= Duration::from_millis(200));
        assert!(engine.pending().is_empty());
        assert_works(&engine);
    }
}

/// A task's name from its text.
trait ParseTask {
    fn parse_task(&self) -> rendez::ground::device::TaskName;
}

impl ParseTask for str {
    fn parse_task(&self) -> rendez::ground::device::TaskName {
        rendez::ground::device::TaskName::parse(self).unwrap()
    }
}

#[test]
fn parked_bytes_are_bounded_and_the_bound_is_named() {
    const LEN: usize = 256 << 10;
    for is_step in [false, true] {
        let engine = engine(|config| {
            if is_step {
                config.parked_bytes_per_step = 4 * LEN as u64;
            } else {
                config.parked_bytes = 4 * LEN as u64;
            }
        });
        let (step, key) = (engine.step(StepId(1)), own_key("much"));
        let value =
            || Tensor::from_vec(vec![1u8; LEN], Shape::new(&[LEN as u64]).unwrap()).unwrap();
        for _ in 0..4 {
            step.send(&key, value()).unwrap();
        }
        let status = step.send(&key, value()).unwrap_err();
        let (reason, setting) = if is_step {
            (catalogue::PARKED_BYTES_OF_STEP, "`parked_bytes_per_step`")
        } else {
            (catalogue::PARKED_BYTES, "`parked_bytes`")
        };
        assert_status(
            &status,
            Code::ResourceExhausted,
            reason,
            &[setting, "1048576"],
        );
        let other = engine.step(StepId(2)).send(&key, value());
        assert_eq!(
            other.is_ok(),
            is_step,
            "another step has bytes of its own, but not another shard"
        );
        for _ in 0..4 {
            assert_eq!(received(&step, &key).len(), LEN);
        }
        step.send(&key, value()).unwrap();
        assert_works(&engine);
    }
}

/// Keeps its shard until it may go on.
struct Holding {
    holds: Arc<AtomicBool>,
    may_go: Arc<AtomicBool>,
}

impl Task for Holding {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if matches!(event, TaskEvent::Started) {
            self.holds.store(true, Ordering::SeqCst);
            while !self.may_go.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            context.finish();
        }
    }
}

#[test]
fn a_full_mailbox_refuses_and_empties() {
    let engine = engine(|config| config.mailbox = 4);
    let (holds, may_go) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let task = Holding {
        holds: Arc::clone(&holds),
        may_go: Arc::clone(&may_go),
    };
    engine.spawn(0, Box::new(task)).unwrap();
    until("a held shard", || holds.load(Ordering::SeqCst));
    let (step, key) = (engine.step(StepId(1)), own_key("x"));
    for value in 0..4u32 {
        step.send(&key, Tensor::scalar(value)).unwrap();
    }
    let sent = step.send(&key, Tensor::scalar(9u32)).unwrap_err();
    assert_status(
        &sent,
        Code::ResourceExhausted,
        catalogue::MAILBOX_FULL,
        &["4 requests", "`mailbox`"],
    );
    let received = step.recv(&key).wait().map(drop).unwrap_err();
    assert_status(
        &received,
        Code::ResourceExhausted,
        catalogue::MAILBOX_FULL,
        &[],
    );
    may_go.store(true, Ordering::SeqCst);
    until("room in the mailbox", || {
        engine.pending().iter().map(|item| item.count).sum::<u32>() == 4
    });
    for value in 0..4u32 {
        let received = step.recv(&key).deadline(PATIENCE).wait().unwrap();
        assert_eq!(received.tensor.as_slice::<u32>().unwrap(), [value]);
    }
    assert_works(&engine);
}

#[test]
fn too_many_receives_of_one_key_are_refused() {
    let limit = rendez::ground::limits::WAITERS_PER_KEY;
    let engine = engine(|config| config.mailbox = 2 * limit as usize);
    let (step, key) = (engine.step(StepId(1)), own_key("x"));
    let mut receives: Vec<_> = (0..limit).map(|_| step.recv(&key)).collect();
    for receive in &mut receives {
        assert!(poll(receive).is_pending());
    }
    let status = step.recv(&key).wait().map(drop).unwrap_err();
    assert_status(
        &status,
        Code::ResourceExhausted,
        catalogue::WAITERS_OF_KEY,
        &["4096", "ask for fewer values at once"],
    );
    assert_works(&engine);
    drop(receives);
    until("nothing waits", || engine.pending().is_empty());
    step.send(&key, Tensor::scalar(1u8)).unwrap();
    step.recv(&key).deadline(PATIENCE).wait().unwrap();
}

#[test]
fn ended_steps_answer_with_how_they_ended() {
    let engine = engine(|_| {});
    let key = own_key("x");
    let aborted = engine.step(StepId(7));
    let mut waiting = aborted.recv(&key);
    assert!(poll(&mut waiting).is_pending());
    let why = Status::new(Code::Internal, catalogue::STEP_ABORTED, "it broke");
    aborted.abort(why);
    aborted.abort(Status::new(
        Code::Aborted,
        catalogue::STEP_ABORTED,
        "too late",
    ));
    let mut outcome = Poll::Pending;
    until("the waiting receive's end", || {
        outcome = poll(&mut waiting);
        outcome.is_ready()
    });
    let Poll::Ready(Err(heard)) = outcome else {
        panic!("no value was sent")
    };
    let sent = aborted.send(&key, Tensor::scalar(1u8)).unwrap_err();
    let received = aborted.recv(&key).wait().map(drop).unwrap_err();
    for status in [heard, sent, received] {
        assert_status(
            &status,
            Code::Internal,
            catalogue::STEP_ABORTED,
            &["it broke"],
        );
    }
    let finished = engine.step(StepId(8));
    finished.finish();
    let status = finished.send(&key, Tensor::scalar(1u8)).unwrap_err();
    let text = "step 8 was finished";
    assert_status(&status, Code::Aborted, catalogue::STEP_FINISHED, &[text]);
    // A new handle hears it from the shard's tombstone.
    drop(finished);
    let status = engine
        .step(StepId(8))
        .recv(&key)
        .deadline(PATIENCE)
        .wait()
        .map(drop)
        .unwrap_err();
    assert_status(&status, Code::Aborted, catalogue::STEP_FINISHED, &[text]);
    assert_works(&engine);
}

#[test]
fn a_deadline_leaves_no_waiter_and_a_late_value_stays() {
    let engine = engine(|_| {});
    let (step, key) = (engine.step(StepId(1)), own_key("late"));
    let status = step
        .recv(&key)
        .deadline(Duration::from_millis(5))
        .wait()
        .map(drop)
        .unwrap_err();
    assert_status(&status, Code::DeadlineExceeded, catalogue::DEADLINE, &[]);
    assert!(engine.pending().is_empty());
    step.send(&key, Tensor::scalar(5u8)).unwrap();
    assert_eq!(received(&step, &key), [5]);
}

#[test]
fn a_dropped_receive_is_cancelled() {
    let engine = engine(|_| {});
    let (step, key) = (engine.step(StepId(1)), own_key("given up"));
    let mut receive = step.recv(&key);
    assert!(poll(&mut receive).is_pending());
    until("a waiter", || {
        engine
            .pending()
            .iter()
            .any(|item| item.what == PendingWhat::Receive)
    });
    drop(receive);
    until("no waiter", || engine.pending().is_empty());
    step.send(&key, Tensor::scalar(6u8)).unwrap();
    assert_eq!(received(&step, &key), [6]);
}
