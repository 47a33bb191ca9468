//! Who turns the shards, by every setting: threads that contend for them, futures, tasks, and no caller at all.
//!
//! `RENDEZ_DRIVE_ROUNDS=1000000 cargo test --release --test engine drive` goes on for longer.

use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;

use rendez::control::Address;
use rendez::drive::{Driver, PollPolicy};
use rendez::engine::{CancelToken, Config, Engine, Require};
use rendez::ground::{Code, DType, Key, Shape, StepId, catalogue};
use rendez::mail::wait::Awaited;
use rendez::memory::Tensor;
use rendez::shard::{Task, TaskContext, TaskEvent};

const PATIENCE: Duration = Duration::from_secs(60);
const STEP: StepId = StepId(1);
const ALL: [Driver; 3] = [Driver::Adaptive, Driver::Thread, Driver::Caller];

fn engine(name: &str, shards: usize, drive: Driver) -> Engine {
    engine_with(name, shards, drive, PollPolicy::Adaptive)
}

fn engine_with(name: &str, shards: usize, drive: Driver, poll: PollPolicy) -> Engine {
    let mut config = Config::new(format!("/job:{name}/task:0"));
    (config.shards, config.share_cores, config.control) = (shards, true, false);
    (config.drive, config.poll) = (drive, poll);
    config.arena.segment_bytes = 1 << 20;
    Engine::start(config).unwrap()
}

fn key(from: &str, to: &str, edge: &str) -> Key {
    Key::between(from, to, edge).unwrap()
}

fn driven(engine: &Engine) -> u64 {
    engine.stats().iter().map(|stats| stats.driven).sum()
}

fn rounds() -> u32 {
    let rounds = std::env::var("RENDEZ_DRIVE_ROUNDS").ok();
    rounds.map_or(5_000, |rounds| rounds.parse().expect("a number"))
}

/// Sends `count` numbers by `key` and receives as many by another, in lots, each in order.
fn exchange(engine: &Engine, out: &Key, into: &Key, count: u32) {
    const LOT: u32 = 16;
    let step = engine.step(STEP);
    for lot in (0..count).step_by(LOT as usize) {
        let until = count.min(lot + LOT);
        for number in lot..until {
            step.send(out, Tensor::scalar(number)).unwrap();
        }
        for number in lot..until {
            let received = step.recv(into).deadline(PATIENCE).wait().unwrap();
            assert_eq!(received.item::<u32>().unwrap(), number);
        }
    }
}

#[test]
fn threads_that_contend_lose_nothing_and_keep_their_order() {
    for drive in ALL {
        for poll in [PollPolicy::Adaptive, PollPolicy::Park] {
            let engine = engine_with("a", 1, drive, poll);
            thread::scope(|scope| {
                for pair in 0..2 {
                    let keys = [0, 1].map(|way| key("a", "a", &format!("{pair}_{way}")));
                    let [there, back] = keys.clone();
                    scope.spawn({
                        let engine = &engine;
                        move || exchange(engine, &there, &back, rounds() / 4)
                    });
                    let [there, back] = keys;
                    let engine = &engine;
                    scope.spawn(move || exchange(engine, &back, &there, rounds() / 4));
                }
            });
            assert_eq!(driven(&engine) > 0, drive != Driver::Thread, "{drive:?}");
            engine.shutdown(PATIENCE);
        }
    }
}

#[test]
fn two_engines_are_turned_by_the_threads_that_wait() {
    for [one, other] in [
        [Driver::Adaptive, Driver::Adaptive],
        [Driver::Caller, Driver::Caller],
        [Driver::Adaptive, Driver::Caller],
        [Driver::Thread, Driver::Adaptive],
    ] {
        let (a, b) = (engine("a", 2, one), engine("b", 2, other));
        a.connect_local(&b).unwrap();
        thread::scope(|scope| {
            for lane in 0..2 {
                let there = key("a", "b", &format!("there_{lane}"));
                let back = key("b", "a", &format!("back_{lane}"));
                let (out, into) = (there.clone(), back.clone());
                let (a, b) = (&a, &b);
                scope.spawn(move || exchange(a, &out, &into, rounds() / 4));
                scope.spawn(move || exchange(b, &back, &there, rounds() / 4));
            }
        });
        // Both at once: the one waits for what the other says at its end.
        thread::scope(|scope| {
            scope.spawn(|| a.shutdown(PATIENCE));
            scope.spawn(|| b.shutdown(PATIENCE));
        });
    }
}

/// A key whose values the shard `shard` of two has.
fn key_of_shard(from: &str, to: &str, shard: u32) -> Key {
    let mut keys = (0..).map(|edge| key(from, to, &format!("edge_{edge}")));
    keys.find(|key| key.shard_of(2) == shard).unwrap()
}

/// What one shard has still to send is sent while the only thread there is waits for the other, awake and asleep.
#[test]
fn without_a_thread_who_waits_turns_the_other_shards_too() {
    for poll in [PollPolicy::Adaptive, PollPolicy::Busy, PollPolicy::Park] {
        let a = engine_with("a", 2, Driver::Caller, poll);
        let b = engine("b", 2, Driver::Thread);
        let (there, back) = (key_of_shard("a", "b", 0), key_of_shard("b", "a", 1));
        // No one waits yet: it stays in its shard.
        let step = a.step(STEP);
        step.send(&there, Tensor::scalar(1_u32)).unwrap();
        a.connect_local(&b).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let step = b.step(STEP);
                let received = step.recv(&there).deadline(PATIENCE).wait().unwrap();
                // Long enough for the other to fall asleep.
                thread::sleep(Duration::from_millis(20));
                step.send(&back, received.tensor).unwrap();
            });
            let received = step.recv(&back).deadline(PATIENCE).wait().unwrap();
            assert_eq!(received.item::<u32>().unwrap(), 1);
        });
        thread::scope(|scope| {
            scope.spawn(|| a.shutdown(PATIENCE));
            scope.spawn(|| b.shutdown(PATIENCE));
        });
    }
}

#[test]
fn engines_that_meet_by_their_control_planes_are_turned_by_callers() {
    for drive in ALL {
        for require in [Require::Shm, Require::Tcp] {
            let start = |name: &str| {
                let mut config = Config::new(format!("/job:{name}/task:0"));
                (config.shards, config.share_cores) = (1, true);
                (config.drive, config.require) = (drive, require);
                config.arena.segment_bytes = 1 << 20;
                if require == Require::Tcp {
                    config.listen = Some(Address::Tcp {
                        host: "127.0.0.1".into(),
                        port: 0,
                    });
                }
                Engine::start(config).unwrap()
            };
            let (a, b) = (start("a"), start("b"));
            for (one, other) in [(&a, &b), (&b, &a)] {
                // Where it listens by TCP, that is how it is reached.
                let address = other.tcp_address().or_else(|| other.address());
                one.add_peer(other.task().clone(), address.unwrap().clone());
            }
            let (there, back) = (key("a", "b", "there"), key("b", "a", "back"));
            thread::scope(|scope| {
                scope.spawn(|| exchange(&a, &there, &back, 2_000));
                scope.spawn(|| exchange(&b, &back, &there, 2_000));
            });
            thread::scope(|scope| {
                scope.spawn(|| a.shutdown(PATIENCE));
                scope.spawn(|| b.shutdown(PATIENCE));
            });
        }
    }
}

#[test]
fn a_leader_that_sleeps_is_woken_by_a_value() {
    for drive in ALL {
        let engine = engine("a", 1, drive);
        let (step, key) = (engine.step(STEP), key("a", "a", "late"));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| step.recv(&key).deadline(PATIENCE).wait().unwrap());
            }
            // They sleep by now, and one leads.
            thread::sleep(Duration::from_millis(100));
            for number in 0..3_u32 {
                step.send(&key, Tensor::scalar(number)).unwrap();
                thread::sleep(Duration::from_millis(10));
            }
        });
        engine.shutdown(PATIENCE);
    }
}

#[test]
fn deadlines_and_cancels_end_a_leader() {
    for drive in ALL {
        let engine = engine("a", 1, drive);
        let (step, key) = (engine.step(STEP), key("a", "a", "never"));
        let late = step.recv_timeout(&key, Duration::from_millis(30));
        assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
        let token = CancelToken::new();
        let waiting = step.recv(&key).cancel_on(&token);
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiting.wait());
            thread::sleep(Duration::from_millis(20));
            token.cancel();
            assert_eq!(waits.join().unwrap().unwrap_err().code(), Code::Cancelled);
        });
        engine.shutdown(PATIENCE);
    }
}

/// A wait that is bounded by itself hears of its token's cancel when that comes, and not when its patience is over.
#[test]
fn a_cancel_ends_a_wait_for_at_most_a_while() {
    for drive in ALL {
        let engine = engine("a", 1, drive);
        let token = CancelToken::new();
        let mut receive = engine
            .step(STEP)
            .recv(&key("a", "a", "never"))
            .cancel_on(&token);
        assert!(receive.wait_at_most(Duration::from_millis(5)).is_none());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                token.cancel();
            });
            let outcome = receive.wait_at_most(PATIENCE);
            assert_eq!(
                outcome.expect("in time").unwrap_err().code(),
                Code::Cancelled
            );
        });
        engine.shutdown(PATIENCE);
    }
}

/// What never comes.
struct Never;

impl Awaited for Never {
    type Outcome = ();

    fn look(&self) -> Option<()> {
        None
    }

    fn watch(&self, _: &Waker) -> Poll<()> {
        Poll::Pending
    }
}

/// What no shard brings ends with the shard too, for those that wait when it ends and for those that come later.
#[test]
fn a_wait_for_what_never_comes_ends_with_the_shard() {
    for drive in ALL {
        let engine = engine("a", 1, drive);
        let (told, heard) = mpsc::channel();
        let waiting = engine.clone();
        let thread = thread::spawn(move || {
            for _ in 0..2 {
                told.send(waiting.wait_for(0, &Never, None)).unwrap();
            }
        });
        assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
        engine.shutdown(PATIENCE);
        for _ in 0..2 {
            assert_eq!(heard.recv_timeout(PATIENCE), Ok(None), "{drive:?}");
        }
        thread.join().unwrap();
    }
}

/// A segment that an engine adds while it is being connected to another is known to that one too.
#[test]
fn values_in_segments_that_were_added_while_engines_met_arrive() {
    for _ in 0..30 {
        let (a, b) = (
            engine("a", 1, Driver::Adaptive),
            engine("b", 1, Driver::Adaptive),
        );
        let tensors = thread::scope(|scope| {
            let grows = scope.spawn(|| {
                let made = |_| b.tensor(DType::U8, &[900_000]).unwrap().finish();
                (0..40).map(made).collect::<Vec<_>>()
            });
            a.connect_local(&b).unwrap();
            grows.join().unwrap()
        });
        let (from, to) = (b.step(STEP), a.step(STEP));
        for (number, tensor) in tensors.into_iter().enumerate() {
            let key = key("b", "a", &format!("edge_{number}"));
            from.send(&key, tensor).unwrap();
            let received = to.recv(&key).deadline(PATIENCE / 4).wait();
            assert_eq!(received.unwrap().tensor.size(), 900_000);
        }
        b.shutdown(PATIENCE);
        a.shutdown(PATIENCE);
    }
}

/// A task that goes on without a pause, until it is told to end.
struct Busy(mpsc::Receiver<()>);

impl Task for Busy {
    fn handle(&mut self, _: TaskEvent, context: &mut TaskContext<'_>) {
        match self.0.try_recv() {
            Err(mpsc::TryRecvError::Empty) => context.again(),
            _ => context.finish(),
        }
    }
}

/// Who turns a shard that always has work is not kept for longer than it has patience.
#[test]
fn a_patience_ends_though_the_shard_has_work_all_the_time() {
    for drive in ALL {
        let engine = engine("a", 1, drive);
        let (end, until) = mpsc::channel();
        engine.spawn(0, Box::new(Busy(until))).unwrap();
        let (told, heard) = mpsc::channel();
        let waiting = engine.clone();
        let thread = thread::spawn(move || {
            let mut receive = waiting.step(STEP).recv(&key("a", "a", "never"));
            let outcome = receive.wait_at_most(Duration::from_millis(20));
            told.send(outcome.is_none()).unwrap();
        });
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(true), "{drive:?}");
        thread.join().unwrap();
        drop(end);
        engine.shutdown(PATIENCE);
    }
}

/// Who turned the shard until its patience was over, and then waited, was patient once more.
#[test]
fn a_patience_is_had_once() {
    const A_WHILE: Duration = Duration::from_secs(1);
    for drive in ALL {
        let engine = engine("a", 1, drive);
        let mut receive = engine.step(STEP).recv(&key("a", "a", "never"));
        let began = Instant::now();
        assert!(receive.wait_at_most(A_WHILE).is_none());
        let took = began.elapsed();
        assert!(A_WHILE <= took && took < A_WHILE * 2, "{drive:?}: {took:?}");
        drop(receive);
        engine.shutdown(PATIENCE);
    }
}

/// A wait that a token may cancel turns the shard as any other.
#[test]
fn a_wait_on_a_token_brings_values_and_ends_in_time() {
    for drive in ALL {
        let (a, b) = (engine("a", 1, drive), engine("b", 1, drive));
        a.connect_local(&b).unwrap();
        let (there, never) = (key("a", "b", "there"), key("a", "b", "never"));
        let (step, token) = (b.step(STEP), CancelToken::new());
        thread::scope(|scope| {
            let wait = || {
                step.recv(&there)
                    .deadline(PATIENCE)
                    .cancel_on(&token)
                    .wait()
            };
            let waits = scope.spawn(wait);
            thread::sleep(Duration::from_millis(20));
            a.step(STEP).send(&there, Tensor::scalar(7_u32)).unwrap();
            assert_eq!(waits.join().unwrap().unwrap().item::<u32>().unwrap(), 7);
        });
        let patience = Duration::from_millis(30);
        let late = step
            .recv(&never)
            .deadline(patience)
            .cancel_on(&token)
            .wait();
        assert_eq!(
            late.unwrap_err().code(),
            Code::DeadlineExceeded,
            "{drive:?}"
        );
        let shut = |engine: Engine| move || engine.shutdown(PATIENCE);
        let other = thread::spawn(shut(a.clone()));
        b.shutdown(PATIENCE);
        other.join().unwrap();
    }
}

/// Started at once and ended at once: a task hears of both, in that order, no matter which thread turns the shard.
#[test]
fn a_task_that_begins_before_a_shutdown_ends_with_it() {
    struct Says(mpsc::Sender<&'static str>);
    impl Task for Says {
        fn handle(&mut self, event: TaskEvent, _: &mut TaskContext<'_>) {
            let what = match event {
                TaskEvent::Started => "started",
                TaskEvent::Stopping => "stopping",
                _ => "something else",
            };
            self.0.send(what).unwrap();
        }
    }
    for drive in ALL {
        for _ in 0..20 {
            let engine = engine("a", 1, drive);
            let (step, never) = (engine.step(STEP), key("a", "a", "never"));
            let (said, heard) = mpsc::channel();
            thread::scope(|scope| {
                let waits = scope.spawn(|| step.recv(&never).wait());
                thread::sleep(Duration::from_millis(2));
                let task = engine.spawn(0, Box::new(Says(said))).unwrap();
                engine.shutdown(PATIENCE);
                let end = engine.task_ended(&task).wait(PATIENCE);
                assert!(end.is_some(), "{drive:?}: its end is told");
                assert!(waits.join().unwrap().is_err());
            });
            let heard: Vec<_> = heard.iter().collect();
            assert_eq!(heard, ["started", "stopping"], "{drive:?}");
        }
    }
}

#[test]
fn those_who_wait_hear_of_a_shutdown() {
    for drive in ALL {
        let engine = engine("a", 1, drive);
        let (step, key) = (engine.step(STEP), key("a", "a", "never"));
        thread::scope(|scope| {
            let waits: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| step.recv(&key).wait()))
                .collect();
            thread::sleep(Duration::from_millis(20));
            engine.shutdown(Duration::from_millis(50));
            for wait in waits {
                let status = wait.join().unwrap().unwrap_err();
                assert_eq!(status.reason(), catalogue::SHUTDOWN, "{drive:?}: {status}");
            }
        });
    }
}

#[test]
fn futures_go_on_when_nobody_waits() {
    for drive in [Driver::Adaptive, Driver::Thread] {
        let (a, b) = (engine("a", 1, drive), engine("b", 1, drive));
        a.connect_local(&b).unwrap();
        let (there, back) = (key("a", "b", "there"), key("b", "a", "back"));
        let echo = thread::spawn({
            let (b, there, back) = (b.clone(), there.clone(), back.clone());
            move || {
                block_on(async {
                    let step = b.step(STEP);
                    for _ in 0..200 {
                        let received = step.recv(&there).await.unwrap();
                        step.send_async(&back, received.tensor).await.unwrap();
                    }
                });
            }
        });
        block_on(async {
            let step = a.step(STEP);
            for number in 0..200_u32 {
                step.send_async(&there, Tensor::scalar(number))
                    .await
                    .unwrap();
                let received = step.recv(&back).deadline(PATIENCE).await.unwrap();
                assert_eq!(received.item::<u32>().unwrap(), number);
            }
        });
        echo.join().unwrap();
        a.shutdown(PATIENCE);
        b.shutdown(PATIENCE);
    }
}

/// Sends back what it receives, and says on which thread.
struct Echo {
    into: Key,
    out: Key,
    said: mpsc::Sender<Option<String>>,
}

impl Task for Echo {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let name = thread::current().name().map(str::to_owned);
        self.said.send(name).unwrap();
        if let TaskEvent::Received {
            outcome: Ok(received),
            ..
        } = event
        {
            let out = context.prepare(&self.out).unwrap();
            context.send(STEP, out, received.tensor).unwrap();
        }
        let into = context.prepare(&self.into).unwrap();
        context.recv(STEP, into, 1);
    }
}

/// A task begins while a thread waits as leader: the shard goes to its own thread, and the value still comes, once.
#[test]
fn a_leader_that_leaves_the_shard_to_its_thread_has_its_value() {
    for number in 0..20_u32 {
        let engine = engine("a", 1, Driver::Adaptive);
        let (into, out) = (key("a", "a", "there"), key("a", "a", "back"));
        let (step, late) = (engine.step(STEP), key("a", "a", "late"));
        let (said, names) = mpsc::channel();
        thread::scope(|scope| {
            let waits = scope.spawn(|| step.recv(&late).deadline(PATIENCE).wait().unwrap());
            thread::sleep(Duration::from_millis(2));
            engine.spawn(0, Box::new(Echo { into, out, said })).unwrap();
            let name = names.recv().unwrap();
            assert_eq!(name.as_deref(), Some("rendez-shard-0"));
            step.send(&late, Tensor::scalar(number)).unwrap();
            assert_eq!(waits.join().unwrap().item::<u32>().unwrap(), number);
        });
        engine.shutdown(PATIENCE);
    }
}

#[test]
fn a_task_runs_on_the_thread_of_its_shard_and_nowhere_else() {
    for drive in [Driver::Adaptive, Driver::Thread] {
        let engine = engine("a", 1, drive);
        let (there, back) = (key("a", "a", "there"), key("a", "a", "back"));
        let step = engine.step(STEP);
        // The shard is in the hands of callers when the task is to begin.
        for number in 0..100_u32 {
            step.send(&there, Tensor::scalar(number)).unwrap();
        }
        let (said, names) = mpsc::channel();
        let task = Echo {
            into: there.clone(),
            out: back.clone(),
            said,
        };
        engine.spawn(0, Box::new(task)).unwrap();
        for number in 0..1000_u32 {
            step.send(&there, Tensor::scalar(number)).unwrap();
            let received = step.recv(&back).deadline(PATIENCE).wait().unwrap();
            let expected = if number < 100 { number } else { number - 100 };
            assert_eq!(received.item::<u32>().unwrap(), expected);
        }
        let before = driven(&engine);
        step.send(&there, Tensor::scalar(0_u32)).unwrap();
        assert_eq!(driven(&engine), before, "its shard is kept");
        engine.shutdown(PATIENCE);
        assert!(
            names
                .iter()
                .all(|name| name.as_deref() == Some("rendez-shard-0")),
            "{drive:?}"
        );
    }
}

#[test]
fn a_peer_is_answered_while_no_thread_looks() {
    let (a, b) = (
        engine("a", 1, Driver::Adaptive),
        engine("b", 1, Driver::Adaptive),
    );
    a.connect_local(&b).unwrap();
    let large = key("a", "b", "large");
    let tensor = Tensor::from_vec(vec![7_u8; 3 << 20], Shape::row(3 << 20).unwrap()).unwrap();
    a.step(STEP).send(&large, tensor).unwrap();
    // No caller in `a` looks from here on; its shard's thread gives the peer the bytes.
    thread::sleep(Duration::from_millis(20));
    let received = b.step(STEP).recv(&large).deadline(PATIENCE).wait().unwrap();
    assert_eq!(received.tensor.host().unwrap(), vec![7_u8; 3 << 20]);
    drop(received);
    a.shutdown(PATIENCE);
    b.shutdown(PATIENCE);
}

#[test]
fn without_a_thread_progress_goes_on_by_hand() {
    let (a, b) = (
        engine("a", 1, Driver::Caller),
        engine("b", 1, Driver::Caller),
    );
    a.connect_local(&b).unwrap();
    let large = key("a", "b", "large");
    let tensor = Tensor::from_vec(vec![7_u8; 3 << 20], Shape::row(3 << 20).unwrap()).unwrap();
    a.step(STEP).send(&large, tensor).unwrap();
    let mut waiting = Box::pin(b.step(STEP).recv(&large).deadline(PATIENCE));
    let received = block_on(async {
        loop {
            if let Some(outcome) = futures_lite::future::poll_once(&mut waiting).await {
                break outcome;
            }
            a.progress();
            b.progress();
        }
    });
    assert_eq!(
        received.unwrap().tensor.host().unwrap(),
        vec![7_u8; 3 << 20]
    );
    a.shutdown(Duration::ZERO);
    b.shutdown(Duration::ZERO);
}
