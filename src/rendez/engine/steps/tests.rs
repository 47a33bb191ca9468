//! What hears of a step's end: handles that are made after it, and peers.

use std::time::{Duration, Instant};

use super::*;
use crate::engine::tests::{Way, pair};
use crate::engine::{Config, Engine};
use crate::ground::{Code, catalogue};

const PATIENCE: Duration = Duration::from_secs(10);

fn one(value: u8) -> Tensor {
    Tensor::scalar(value)
}

#[test]
fn a_handle_made_after_the_end_knows_of_it() {
    let (a, b) = pair(Way::Loopback);
    let key = Key::between("a", "b", "edge").unwrap();
    let broke = || Status::new(Code::Internal, "TEST", "it broke");
    // Connected, and both know the steps.
    for step in 1..=4 {
        a.step(StepId(step)).send(&key, one(1)).unwrap();
        let received = b.step(StepId(step)).recv(&key).deadline(PATIENCE).wait();
        received.unwrap();
    }
    a.step(StepId(1)).finish();
    a.step(StepId(2)).abort(broke());
    b.step(StepId(3)).abort(broke());
    a.step(StepId(4)).deadline(Duration::ZERO).unwrap();
    // The last two are told by shards: a waiter learns when.
    for step in [3, 4] {
        let never = Key::between("b", "a", "never").unwrap();
        let waited = a.step(StepId(step)).recv(&never).deadline(PATIENCE).wait();
        waited.unwrap_err();
        let until = Instant::now() + PATIENCE;
        while a.step(StepId(step)).state.ended.get().is_none() {
            assert!(Instant::now() < until, "no handle of step {step} knows");
            std::thread::yield_now();
        }
    }
    for (step, code, reason) in [
        (1, Code::Aborted, catalogue::STEP_FINISHED),
        (2, Code::Internal, "TEST"),
        (3, Code::Internal, catalogue::PEER_STATUS),
        (4, Code::DeadlineExceeded, catalogue::DEADLINE),
    ] {
        let fresh = || a.step(StepId(step));
        let status = fresh().send(&key, one(1)).unwrap_err();
        assert_eq!((status.code(), status.reason()), (code, reason));
        assert_eq!(fresh().send_dead(&key, one(1)).unwrap_err(), status);
        let unsent = fresh().send_async(&key, one(7)).wait().unwrap_err();
        assert_eq!(*unsent.status(), status);
        assert_eq!(unsent.into_tensor().unwrap().host().unwrap(), [7]);
        let back = Key::between("b", "a", "back").unwrap();
        assert_eq!(fresh().recv(&back).wait().unwrap_err(), status);
        fresh().abort(Status::new(Code::Unknown, "TEST", "too late"));
        assert_eq!(fresh().send(&key, one(1)).unwrap_err(), status);
    }
}

#[test]
fn as_many_ended_steps_are_known_as_shards_remember() {
    let steps = Steps::default();
    let most = u64::from(limits::TOMBSTONES);
    for step in 1..=most + 1 {
        assert!(steps.finish(StepId(step)));
    }
    let is_over = |step| steps.state(StepId(step)).ended.get().is_some();
    assert!(!is_over(1) && is_over(2) && is_over(most + 1));
    assert!(!steps.finish(StepId(2)), "the first end stays");
    let known = steps.known.locked();
    assert_eq!(
        (known.ended.len(), known.order.len()),
        (most as usize, most as usize)
    );
}

fn hears_of_finish(way: Way) {
    let (a, b) = pair(way);
    let (step, there) = (a.step(StepId(7)), b.step(StepId(7)));
    let key = |edge: usize| Key::between("a", "b", &format!("edge{edge}")).unwrap();
    for edge in 0..4 {
        step.send(&key(edge), one(1)).unwrap();
        there.recv(&key(edge)).deadline(PATIENCE).wait().unwrap();
    }
    // These have begun to wait, two of each key.
    let waiting: Vec<_> = (0..8)
        .map(|at| there.recv(&key(at % 4)).deadline(PATIENCE).start().unwrap())
        .collect();
    while b.stats().iter().map(|stats| stats.waiting).sum::<u64>() < 8 {
        std::thread::yield_now();
    }
    // What was sent before arrives: at a receive that waits, and at a later one.
    step.send(&key(0), one(10)).unwrap();
    let large = |mark: u8| {
        let mut builder = a.tensor(crate::ground::DType::U8, &[300_000]).unwrap();
        builder.bytes_mut().fill(mark);
        builder.finish()
    };
    step.send(&key(4), one(40)).unwrap();
    step.send(&key(4), large(41)).unwrap();
    step.send(&key(4), one(42)).unwrap();
    step.finish();
    let mut outcomes = waiting.into_iter().map(|recv| recv.wait());
    let first = outcomes.next().unwrap().unwrap();
    assert_eq!(first.tensor.host().unwrap(), [10]);
    let over = |status: Status| {
        assert_eq!(status.code(), Code::Aborted, "{status}");
        assert_eq!(status.message(), faults::step_finished(StepId(7)).message());
    };
    outcomes.for_each(|outcome| over(outcome.unwrap_err()));
    for mark in 40..43 {
        let received = there.recv(&key(4)).deadline(PATIENCE).wait().unwrap();
        assert_eq!(received.tensor.host().unwrap()[0], mark);
    }
    // A receive that begins now hears it too, by any handle.
    for edge in 0..6 {
        let late = b.step(StepId(7)).recv(&key(edge)).deadline(PATIENCE);
        over(late.wait().unwrap_err());
    }
    // The step goes on without them.
    let local = Key::between("b", "b", "local").unwrap();
    there.send(&local, one(2)).unwrap();
    there.recv(&local).deadline(PATIENCE).wait().unwrap();
}

#[test]
fn who_waits_for_a_task_that_has_finished_the_step_hears_so() {
    hears_of_finish(Way::Loopback);
}

#[test]
fn a_finish_is_told_over_shared_memory() {
    hears_of_finish(Way::Shm);
}

#[test]
fn a_finish_is_told_over_tcp() {
    hears_of_finish(Way::Tcp);
}

fn config(name: &str, shards: usize) -> Config {
    let mut config = Config::new(format!("/job:{name}/task:0"));
    (config.shards, config.share_cores, config.control) = (shards, true, false);
    config.arena.segment_bytes = 1 << 20;
    config
}

fn start(name: &str, shards: usize) -> Engine {
    Engine::start(config(name, shards)).unwrap()
}

/// Steps that end while the peer is yet to come: it hears of them when it is there, and begins to wait afterwards.
#[test]
fn a_peer_that_comes_later_hears_how_steps_ended() {
    for shards in [1, 2] {
        let (a, b) = (start("a", shards), start("b", shards));
        let key = Key::between("a", "b", "edge").unwrap();
        a.step(StepId(1)).send(&key, one(1)).unwrap();
        // From here on it is awaited.
        wait_until(|| !a.pending().is_empty());
        a.step(StepId(1)).abort(broke());
        // The step's home tells the other shards: a value that waits at one of them goes then.
        wait_until(|| a.pending().is_empty());
        a.step(StepId(2)).send(&key, one(2)).unwrap();
        a.step(StepId(2)).finish();
        a.step(StepId(3)).send(&key, one(3)).unwrap();
        a.connect_local(&b).unwrap();
        let received = b.step(StepId(3)).recv(&key).deadline(PATIENCE).wait();
        assert_eq!(received.unwrap().tensor.host().unwrap(), [3]);
        for (step, reason) in [(1, catalogue::PEER_STATUS), (2, catalogue::STEP_FINISHED)] {
            let waited = b.step(StepId(step)).recv(&key).deadline(PATIENCE).wait();
            assert_eq!(waited.unwrap_err().reason(), reason, "{shards} shards");
        }
    }
}

/// The same, of a peer that was given up before.
#[test]
fn a_peer_that_was_given_up_hears_how_steps_ended() {
    let mut config = config("a", 1);
    config.connect_timeout = Duration::from_secs(1);
    let a = Engine::start(config).unwrap();
    let key = Key::between("a", "b", "edge").unwrap();
    a.step(StepId(1)).send(&key, one(1)).unwrap();
    wait_until(|| !a.pending().is_empty());
    wait_until(|| a.pending().is_empty());
    a.step(StepId(2)).abort(broke());
    let b = start("b", 1);
    a.connect_local(&b).unwrap();
    let waited = b.step(StepId(2)).recv(&key).deadline(PATIENCE).wait();
    assert_eq!(waited.unwrap_err().reason(), catalogue::PEER_STATUS);
}

/// Of more ends than are kept for a peer that is not there it hears the last 256, as the failure model says.
#[test]
fn a_peer_that_comes_later_hears_of_the_last_256_ends() {
    let (a, b) = (start("a", 1), start("b", 1));
    let key = Key::between("a", "b", "edge").unwrap();
    a.step(StepId(1_000)).send(&key, one(1)).unwrap();
    // From here on it is awaited.
    wait_until(|| !a.pending().is_empty());
    for step in 1..=257 {
        match step % 2 {
            0 => a.step(StepId(step)).abort(broke()),
            _ => a.step(StepId(step)).finish(),
        }
    }
    a.connect_local(&b).unwrap();
    let waited = |step, time| {
        let recv = b.step(StepId(step)).recv(&key).deadline(time).wait();
        recv.unwrap_err().reason()
    };
    for step in 2..=257 {
        let told = match step % 2 {
            0 => catalogue::PEER_STATUS,
            _ => catalogue::STEP_FINISHED,
        };
        assert_eq!(waited(step, PATIENCE), told, "step {step}");
    }
    // It would have been told before those.
    assert_eq!(waited(1, Duration::ZERO), catalogue::DEADLINE);
}

fn broke() -> Status {
    Status::new(Code::Internal, "TEST", "it broke")
}

fn wait_until(is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "it never was so");
        std::thread::yield_now();
    }
}

#[test]
fn what_was_sent_before_the_finish_is_sent() {
    let (a, b) = pair(Way::Loopback);
    let key = Key::between("a", "b", "edge").unwrap();
    a.step(StepId(1)).send(&key, one(1)).unwrap();
    let received = b.step(StepId(1)).recv(&key).deadline(PATIENCE).wait();
    received.unwrap();
    for round in 2..500 {
        let step = a.step(StepId(round));
        for value in 0..3 {
            step.send(&key, one(value)).unwrap();
        }
        step.finish();
        for value in 0..3 {
            let received = b.step(StepId(round)).recv(&key).deadline(PATIENCE).wait();
            assert_eq!(
                received.unwrap().tensor.host().unwrap(),
                [value],
                "round {round}"
            );
        }
        b.step(StepId(round)).finish();
    }
}

#[test]
fn the_state_of_a_step_that_has_a_handle_stays_when_many_come() {
    let steps = Steps::default();
    let held = steps.state(StepId(1));
    for step in 2..3 * limits::STEP_HANDLES as u64 {
        drop(steps.state(StepId(step)));
        assert!(steps.known.locked().live.len() <= limits::STEP_HANDLES);
    }
    let status = Status::new(Code::Internal, "TEST", "it broke");
    assert!(steps.end(StepId(1), &status));
    assert_eq!(held.ended.get(), Some(&status));
    assert!(!steps.known.locked().live.contains_key(&StepId(1)));
}
