//! Calls of services: answers, deadlines, cancels, windows, and requests that come twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use prost::Message;
use rendez::control::{ControlConfig, Incoming, PathWish, RuntimeKind, Services};
use rendez::ground::{Code, Incarnation, Status};
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};

use super::raw::Raw;
use super::refusals::connected_to;
use super::relay::Relay;
use super::support::{Answers, BOTH, Event, PATIENCE, Task, config, start_with};
use super::tcp::{address, open, secret};

const ECHO: u32 = 1;
const FAIL: u32 = 2;
const PANIC: u32 = 3;
const SLOW: u32 = 4;
const LONG: u32 = 5;

/// What the services saw, and what lets the slow one go on.
#[derive(Debug, Default)]
struct Seen {
    slow: AtomicUsize,
    given_up: AtomicUsize,
    gate: Mutex<()>,
}

fn services(seen: &Arc<Seen>) -> Services {
    let slow = Arc::clone(seen);
    Services::new()
        .on(ECHO, |call: &Incoming| {
            let mut answer = call.payload.clone();
            answer.extend_from_slice(&call.trace.to_le_bytes());
            answer.extend_from_slice(call.task.as_bytes());
            Ok(answer)
        })
        .on(FAIL, |_| {
            Err(Status::new(
                Code::DataLoss,
                "DATA_MISMATCH",
                "these bytes are bad",
            ))
        })
        .on(PANIC, |_| panic!("a service that breaks down, on purpose"))
        .on(LONG, |_| Ok(vec![0; 1 << 20]))
        .on(SLOW, move |call| {
            slow.slow.fetch_add(1, Ordering::SeqCst);
            drop(slow.gate.lock().expect("no panic"));
            let began = Instant::now();
            while call.payload == b"until given up" && began.elapsed() < PATIENCE {
                if call.is_given_up() {
                    slow.given_up.fetch_add(1, Ordering::SeqCst);
                    // Both sides have the same deadline: an answer at once might still be in time.
                    std::thread::sleep(Duration::from_millis(200));
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(b"done".to_vec())
        })
}

fn serve(config: ControlConfig) -> (Task, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let answers = Answers {
        channels: 1,
        services: services(&seen),
        ..Answers::default()
    };
    (start_with(config, answers), seen)
}

fn plain(config: ControlConfig) -> Task {
    let answers = Answers {
        channels: 1,
        ..Answers::default()
    };
    start_with(config, answers)
}

fn eventually(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_call_is_answered_over_either_path() {
    for kind in BOTH {
        for wish in [PathWish::Tcp, PathWish::Shm] {
            let with_secret = |task, incarnation| {
                let mut config = open(task, incarnation, kind);
                config.secret = Some(secret("one"));
                config
            };
            let ((a, _), b) = (serve(with_secret("a", 1)), plain(with_secret("b", 2)));
            // It may be made before there is a connection.
            let early = b
                .control
                .begin_call("a", ECHO, b"x", 7, PATIENCE)
                .expect("taken");
            b.control
                .dial_by("a", address(&a), wish, PATIENCE)
                .expect("taken");
            assert_eq!(early.wait().expect("answered"), b"x\x07\0\0\0\0\0\0\0b");
            let fail = |method| {
                b.control
                    .call("a", method, b"", PATIENCE)
                    .expect_err("a no")
            };
            let status = fail(FAIL);
            assert_eq!(
                (status.code(), status.reason()),
                (Code::DataLoss, "DATA_MISMATCH")
            );
            assert!(status.message().contains("these bytes are bad"), "{status}");
            assert_eq!(fail(PANIC).reason(), "SERVICE_FAILED");
            assert_eq!(fail(LONG).reason(), "CALL_TOO_LONG");
            assert_eq!(fail(99).reason(), "CALL_UNKNOWN");
            let long = vec![1; 60 << 10];
            let answer = b
                .control
                .call("a", ECHO, &long, PATIENCE)
                .expect("answered");
            assert_eq!(answer.len(), long.len() + 9);
            let status = b
                .control
                .call("a", ECHO, &[0; 64 << 10], PATIENCE)
                .expect_err("too long");
            assert_eq!(status.reason(), "CALL_TOO_LONG");
            let status = a
                .control
                .call("b", ECHO, b"", PATIENCE)
                .expect_err("none there");
            assert_eq!(status.reason(), "CALL_UNKNOWN");
        }
    }
}

#[test]
fn many_threads_call_at_once() {
    let ((a, _), b) = (
        serve(config("a", 1, RuntimeKind::Poll)),
        plain(config("b", 2, RuntimeKind::Glommio)),
    );
    b.dial(&a, "a");
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let control = &b.control;
            scope.spawn(move || {
                // More than a window between them.
                let calls: Vec<_> = (0..50u8)
                    .map(|call| {
                        control
                            .begin_call("a", ECHO, &[thread, call], 0, PATIENCE)
                            .expect("taken")
                    })
                    .collect();
                for (call, pending) in (0..).zip(calls) {
                    let answer = pending.wait().expect("answered");
                    assert_eq!(&answer[..2], &[thread, call]);
                }
            });
        }
    });
}

#[test]
fn deadlines_and_cancels_reach_the_service() {
    for kind in BOTH {
        let ((a, seen), b) = (serve(config("a", 1, kind)), plain(config("b", 2, kind)));
        let nobody = b
            .control
            .call("nobody", ECHO, b"", Duration::from_millis(20));
        assert_eq!(nobody.expect_err("late").reason(), "CALL_DEADLINE");
        b.dial(&a, "a");
        let until = |deadline| {
            b.control
                .begin_call("a", SLOW, b"until given up", 0, deadline)
                .expect("taken")
        };
        // A call that is late before it has left is never heard: so the way is there before.
        assert!(b.control.call("a", ECHO, b"", PATIENCE).is_ok());
        let late = until(Duration::from_millis(300)).wait().expect_err("late");
        assert_eq!(
            (late.code(), late.reason()),
            (Code::DeadlineExceeded, "CALL_DEADLINE")
        );
        eventually("the deadline is told", || {
            seen.given_up.load(Ordering::SeqCst) == 1
        });
        let cancelled = until(PATIENCE);
        eventually("it is under way", || seen.slow.load(Ordering::SeqCst) == 2);
        cancelled.cancel();
        eventually("the cancel is told", || {
            seen.given_up.load(Ordering::SeqCst) == 2
        });
        assert!(b.control.call("a", ECHO, b"", PATIENCE).is_ok());
    }
}

/// A connection that ends while a call is under way: the call is sent again over the next, and carried out once.
#[test]
fn a_call_outlives_its_connection_and_is_carried_out_once() {
    for kind in BOTH {
        let ((a, seen), b) = (serve(open("a", 1, kind)), plain(open("b", 2, kind)));
        let relay = Relay::to(&address(&a));
        let dial = || {
            b.control
                .dial_by("a", relay.address.clone(), PathWish::Tcp, PATIENCE)
                .expect("taken");
        };
        dial();
        let Event::Up(up) = b.next() else {
            panic!("no peer")
        };
        let held = seen.gate.lock().expect("no panic");
        let call = b
            .control
            .begin_call("a", SLOW, b"", 0, PATIENCE)
            .expect("taken");
        eventually("it is under way", || seen.slow.load(Ordering::SeqCst) == 1);
        b.control.hang_up(up.peer, "a broken link").expect("taken");
        let Event::Gone(..) = b.next() else {
            panic!("not gone")
        };
        dial();
        let Event::Up(_) = b.next() else {
            panic!("no peer")
        };
        drop(held);
        assert_eq!(call.wait().expect("answered"), b"done");
        assert_eq!(seen.slow.load(Ordering::SeqCst), 1, "once");
    }
}

#[test]
fn a_call_to_a_life_that_ended_fails() {
    let (ended, other) = mpsc::channel();
    let (a, seen) = serve(open("a", 1, RuntimeKind::Poll));
    let b = plain(open("b", 2, RuntimeKind::Poll));
    b.control
        .dial_by("a", address(&a), PathWish::Tcp, PATIENCE)
        .expect("taken");
    let Event::Up(_) = b.next() else {
        panic!("no peer")
    };
    let held = seen.gate.lock().expect("no panic");
    let call = b
        .control
        .begin_call("a", SLOW, b"", 0, PATIENCE)
        .expect("taken");
    eventually("it is under way", || seen.slow.load(Ordering::SeqCst) == 1);
    a.stop();
    drop(held);
    // A dial of who is connected is nothing, and until then it is.
    let _ = b.gone();
    let (again, _) = serve(open("a", 3, RuntimeKind::Poll));
    b.control
        .dial_by("a", address(&again), PathWish::Tcp, PATIENCE)
        .expect("taken");
    std::thread::spawn(move || ended.send(call.wait()));
    let outcome = other.recv_timeout(PATIENCE).expect("in time");
    // The first life may have got its answer out before it left.
    if let Err(status) = outcome {
        assert_eq!(status.reason(), "PEER_RESTARTED");
    }
    assert!(b.control.call("a", ECHO, b"", PATIENCE).is_ok());
    b.stop();
    let status = b
        .control
        .call("a", ECHO, b"", PATIENCE)
        .expect_err("stopped");
    assert_eq!(status.reason(), "CONTROL_STOPPED");
}

fn call(request: u64, method: u32) -> proto::Call {
    proto::Call {
        version: 1,
        method,
        request,
        deadline_ms: 10_000,
        trace: 5,
        payload: b"y".to_vec(),
    }
}

fn answer(raw: &mut Raw) -> proto::CallReply {
    match raw.hear().and_then(|envelope| envelope.body) {
        Some(Body::CallReply(reply)) => reply,
        other => panic!("expected an answer, got {other:?}"),
    }
}

/// By hand: the same request again gives the same answer, until it is acknowledged; and other versions are refused.
#[test]
fn a_repeated_request_is_answered_from_memory() {
    let (a, seen) = serve(config("a", 1, RuntimeKind::Poll));
    let mut raw = connected_to(a.control.address(), 2);
    raw.say(3, false, Body::Call(call(77, SLOW)));
    assert_eq!(answer(&mut raw).payload, b"done");
    raw.say(4, false, Body::Call(call(77, SLOW)));
    assert_eq!(answer(&mut raw).payload, b"done");
    assert_eq!(seen.slow.load(Ordering::SeqCst), 1);
    drop(raw);
    let Event::Up(up) = a.next() else {
        panic!("no peer")
    };
    assert_eq!(up.incarnation, Incarnation(2));
    let _ = a.gone();
    let mut raw = connected_to(a.control.address(), 2);
    raw.say(3, false, Body::Call(call(77, SLOW)));
    assert_eq!(answer(&mut raw).payload, b"done");
    assert_eq!(
        seen.slow.load(Ordering::SeqCst),
        1,
        "over another connection, too"
    );
    raw.say(
        4,
        false,
        Body::CallDone(proto::CallDone {
            requests: vec![77, 78],
        }),
    );
    raw.say(5, false, Body::Call(call(77, SLOW)));
    assert_eq!(answer(&mut raw).payload, b"done");
    assert_eq!(
        seen.slow.load(Ordering::SeqCst),
        2,
        "acknowledged and forgotten"
    );
    let other = proto::Call {
        version: 2,
        ..call(78, ECHO)
    };
    raw.say(6, false, Body::Call(other));
    let refused = answer(&mut raw);
    assert_eq!(refused.reason, "PEER_VERSION");
    assert!(refused.message.contains("version 1") && refused.message.contains("version 2"));
    raw.say(7, false, Body::Call(call(0, ECHO)));
    assert!(raw.is_closed(), "a call without a number");
}

#[test]
fn a_caller_has_its_window() {
    let (a, seen) = serve(config("a", 1, RuntimeKind::Poll));
    let mut raw = connected_to(a.control.address(), 2);
    let held = seen.gate.lock().expect("no panic");
    for request in 1..=64 {
        raw.say(2 + request, false, Body::Call(call(request, SLOW)));
    }
    raw.say(99, false, Body::Call(call(99, SLOW)));
    let envelope = raw.hear().expect("an answer");
    assert_eq!(envelope.id, 99);
    assert!(matches!(envelope.body, Some(Body::CallReply(reply)) if reply.reason == "CALL_BUSY"));
    drop(held);
    for _ in 1..=64 {
        assert_eq!(answer(&mut raw).code, 0);
    }
}

/// Golden bytes: what a call and its answer look like on the stream.
#[test]
fn calls_have_these_bytes() {
    let frame = |id, reply, body| {
        Envelope {
            id,
            reply,
            body: Some(body),
        }
        .encode_to_vec()
    };
    assert_eq!(
        frame(3, false, Body::Call(call(77, 4))),
        b"\x08\x03\x8a\x01\x1c\x08\x01\x10\x04\x19\x4d\0\0\0\0\0\0\0\x20\x90\x4e\x29\x05\0\0\0\0\0\0\0\x32\x01y"
    );
    let reply = proto::CallReply {
        code: 8,
        reason: "R".into(),
        message: "m".into(),
        payload: vec![],
    };
    assert_eq!(
        frame(3, true, Body::CallReply(reply)),
        b"\x08\x03\x10\x01\x92\x01\x08\x08\x08\x12\x01R\x1a\x01m"
    );
    let cancel = frame(4, false, Body::CallCancel(proto::CallCancel { request: 1 }));
    assert_eq!(cancel, b"\x08\x04\x9a\x01\x09\x09\x01\0\0\0\0\0\0\0");
    let done = frame(
        5,
        false,
        Body::CallDone(proto::CallDone { requests: vec![1] }),
    );
    assert_eq!(done, b"\x08\x05\xa2\x01\x0a\x0a\x08\x01\0\0\0\0\0\0\0");
}
