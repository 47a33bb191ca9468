//! What follows a call is looked for without a sleep: nothing else waits for that, and answers are acknowledged.

use std::time::{Duration, Instant};

use rendez::control::{Control, ControlConfig, Incoming, Services};
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};

use super::raw::{Raw, hello};
use super::refusals::connected_as;
use super::support::{Answers, BOTH, Event, PATIENCE, Task, config, start_with};
use super::tcp::open;

const ECHO: u32 = 1;

fn start(config: ControlConfig, lookout: Duration) -> Task {
    let answers = Answers {
        channels: 1,
        services: Services::new().on(ECHO, |call: &Incoming| Ok(call.payload.clone())),
        ..Answers::default()
    };
    start_with(ControlConfig { lookout, ..config }, answers)
}

fn ask(control: &Control, whom: &str) {
    let answer = control.call(whom, ECHO, b"x", PATIENCE);
    assert_eq!(answer.expect("answered"), b"x");
}

/// Tasks that look out for longer than the test lasts: strangers are greeted, goodbyes are said and heard, all at once.
#[test]
fn who_looks_out_for_calls_sees_to_all_else() {
    for kind in BOTH {
        let began = Instant::now();
        let task = |name, incarnation| start(open(name, incarnation, kind), 10 * PATIENCE);
        let (a, c) = (task("a", 1), task("c", 3));
        c.dial(&a, "a");
        ask(&c.control, "a");
        assert!(matches!(a.next(), Event::Up(_)) && matches!(c.next(), Event::Up(_)));
        let d = task("d", 4);
        d.dial(&a, "a");
        ask(&d.control, "a");
        ask(&c.control, "a");
        assert!(matches!(a.next(), Event::Up(_)) && matches!(d.next(), Event::Up(_)));
        let silent = connected_as(a.control.address(), hello("b", "a", 2));
        let Event::Up(up) = a.next() else {
            panic!("no peer")
        };
        drop(silent);
        assert!(matches!(a.next(), Event::Gone(peer, _) if peer == up.peer));
        d.stop();
        assert!(matches!(a.next(), Event::Gone(..)));
        ask(&c.control, "a");
        a.stop();
        assert!(matches!(c.next(), Event::Gone(..)));
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    }
}

/// Calls that come faster than they can be read one by one.
#[test]
fn a_flood_of_calls_is_read_while_it_is_looked_for() {
    for kind in BOTH {
        let (a, b) = (
            start(config("a", 1, kind), 10 * PATIENCE),
            start(config("b", 2, kind), 10 * PATIENCE),
        );
        b.dial(&a, "a");
        let calls: Vec<_> = (0..2000_u32)
            .map(|call| {
                let payload = call.to_le_bytes();
                b.control.begin_call("a", ECHO, &payload, 0, PATIENCE)
            })
            .collect();
        for (call, pending) in (0_u32..).zip(calls) {
            let answer = pending.expect("taken").wait().expect("answered");
            assert_eq!(answer, call.to_le_bytes());
        }
    }
}

/// A peer that is played by hand, and can be called.
fn by_hand(a: &Task, name: &str) -> Raw {
    let can_be_called = proto::Hello {
        abilities: 1,
        ..hello(name, "a", 2)
    };
    connected_as(a.control.address(), can_be_called)
}

/// Answers the call that comes next; its number.
fn answered(raw: &mut Raw) -> u64 {
    let Some(Envelope { id, body, .. }) = raw.hear() else {
        panic!("no call")
    };
    let Some(Body::Call(call)) = body else {
        panic!("expected a call, got {body:?}")
    };
    let payload = call.payload;
    let reply = proto::CallReply {
        payload,
        ..proto::CallReply::default()
    };
    raw.say(id, true, Body::CallReply(reply));
    call.request
}

/// The calls that the next message acknowledges.
fn acknowledged(raw: &mut Raw) -> Vec<u64> {
    match raw.hear().and_then(|envelope| envelope.body) {
        Some(Body::CallDone(done)) => done.requests,
        other => panic!("expected an acknowledgement, got {other:?}"),
    }
}

/// More peers than are looked at: the answer of each is acknowledged, though nothing more is said to it.
#[test]
fn answers_of_many_peers_are_acknowledged() {
    for kind in BOTH {
        let mut config = config("a", 1, kind);
        // A ping would take along what is to be acknowledged.
        (config.ping_every, config.lost_after) = (10 * PATIENCE, 20 * PATIENCE);
        let a = start(config, 10 * PATIENCE);
        let mut peers = Vec::new();
        for at in 0..20 {
            let name = format!("b{at}");
            let mut raw = by_hand(&a, &name);
            std::thread::scope(|scope| {
                let call = scope.spawn(|| ask(&a.control, &name));
                let request = answered(&mut raw);
                call.join().expect("answered");
                assert_eq!(acknowledged(&mut raw), [request], "{kind:?} {name}");
            });
            peers.push(raw);
        }
    }
}

/// An answer is acknowledged ahead of the next call, or when there is none soon.
#[test]
fn answers_are_acknowledged() {
    for (kind, lookout) in BOTH
        .into_iter()
        .flat_map(|kind| [Duration::ZERO, Duration::from_millis(1), PATIENCE].map(|l| (kind, l)))
    {
        let a = start(config("a", 1, kind), lookout);
        let mut raw = by_hand(&a, "b");
        std::thread::scope(|scope| {
            let control = &a.control;
            let calls = scope.spawn(|| (0..2).for_each(|_| ask(control, "b")));
            let first = answered(&mut raw);
            assert_eq!(acknowledged(&mut raw), [first], "{kind:?} {lookout:?}");
            let second = answered(&mut raw);
            calls.join().expect("answered");
            if lookout == PATIENCE {
                // Whatever is said takes it along.
                a.control.stop("the end", PATIENCE / 10);
            }
            assert_eq!(acknowledged(&mut raw), [second], "{kind:?} {lookout:?}");
        });
    }
}
