//! Every no, by its reason; and peers that say what no control plane would.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use rendez::control::{Address, PROTOCOL_VERSION, PeerGone, RuntimeKind};
use rendez::ground::{Code, Incarnation, Status, catalogue};
use rendez_proto::envelope::Body;
use rendez_proto::hello_reply::Outcome;
use rendez_proto::{self as proto, Hello, descriptor::Kind};

use super::raw::{PREAMBLE, Raw, connect, hello, lane_pair, send};
use super::support::{Answers, BOTH, PATIENCE, Task, config, eventfd, memory, start, start_with};

fn refusal(task: &Task, hello: Hello) -> proto::Refusal {
    let mut raw = Raw::connect(task.control.address());
    let Outcome::Refused(refusal) = raw.greet(hello) else {
        panic!("accepted")
    };
    assert!(raw.is_closed());
    refusal
}

/// What is wrong with a hello.
type Change = fn(&mut Hello);

#[test]
fn hellos_are_refused_by_their_reason() {
    for kind in BOTH {
        let a = start(config("a", 1, kind));
        let cases: [(&str, u32, Change); 13] = [
            ("PEER_VERSION", 9, |hello| hello.protocol_version = 77),
            ("PEER_SELF", 3, |hello| hello.task = "a".into()),
            ("PEER_UNKNOWN", 5, |hello| hello.dialled = "c".into()),
            ("PEER_REFUSED", 3, |hello| hello.task = "b b".into()),
            ("PEER_REFUSED", 3, |hello| hello.task = "b".repeat(128)),
            ("PEER_REFUSED", 3, |hello| hello.incarnation = 0),
            ("PEER_REFUSED", 8, |hello| hello.shards = 0),
            ("PEER_REFUSED", 8, |hello| hello.shards = 70_000),
            ("PEER_REFUSED", 8, |hello| {
                hello.features = vec!["x".into(); 65]
            }),
            ("PEER_REFUSED", 8, |hello| {
                limits(hello).frame_window = 1 << 30
            }),
            ("PEER_REFUSED", 3, |hello| limits(hello).line_window = 1000),
            ("PEER_PROTOCOL", 3, |hello| hello.poll_policy = 0),
            ("PEER_REFUSED", 3, |hello| {
                hello.task = "/job:b/task:0".into()
            }),
        ];
        for (reason, code, change) in cases {
            let mut changed = hello("b", "a", 2);
            change(&mut changed);
            let refusal = refusal(&a, changed);
            assert_eq!(
                (refusal.reason.as_str(), refusal.code, refusal.retry),
                (reason, code, false),
                "{refusal:?}"
            );
        }
        let refusal = refusal(
            &a,
            Hello {
                protocol_version: 77,
                ..hello("b", "a", 2)
            },
        );
        assert!(
            refusal
                .message
                .contains(&format!("version {PROTOCOL_VERSION}"))
                && refusal.message.contains("version 77"),
            "{refusal:?}"
        );
        // After all that it is as good as new.
        let b = start(config("b", 2, kind));
        b.dial(&a, "a");
        assert_eq!(a.up().task, "b");
    }
}

fn limits(hello: &mut Hello) -> &mut proto::Limits {
    hello.limits.as_mut().expect("limits")
}

#[test]
fn a_second_life_is_refused_while_the_first_is_alive() {
    let a = start(config("a", 1, RuntimeKind::Glommio));
    let b = start(config("b", 2, RuntimeKind::Poll));
    b.dial(&a, "a");
    let up = a.up();
    assert_eq!(b.up().task, "a");
    let other = start(config("b", 3, RuntimeKind::Poll));
    other.dial(&a, "a");
    let status = other.dial_failed();
    assert_eq!(
        (status.code(), status.reason()),
        (Code::AlreadyExists, "PEER_DUPLICATE_NAME")
    );
    assert!(status.message().contains("0000000000000002"), "{status}");
    let process = format!("process {} of this machine", std::process::id());
    assert!(status.message().contains(&process), "{status}");
    // The same life again is merely early: its other connection may be on its way.
    let refusal = refusal(&a, hello("b", "a", 2));
    assert_eq!(
        (refusal.reason.as_str(), refusal.retry),
        ("PEER_BUSY", true)
    );
    b.stop();
    assert_eq!(a.gone().0, up.peer);
    other.dial(&a, "a");
    assert_eq!(other.up().task, "a");
}

#[test]
fn a_dial_fails_by_its_reason() {
    for kind in BOTH {
        let a = start(config("a", 1, kind));
        let status = a
            .control
            .dial("a", Address::unique("a"), PATIENCE)
            .expect_err("itself");
        assert_eq!(status.reason(), "PEER_SELF");
        let status = a
            .control
            .dial("not a name", Address::unique("x"), PATIENCE)
            .expect_err("no name");
        assert_eq!(status.code(), Code::InvalidArgument);
        a.control
            .dial(
                "nobody",
                Address::unique("nobody"),
                Duration::from_millis(20),
            )
            .expect("taken");
        let status = a.dial_failed();
        assert_eq!(
            (status.code(), status.reason()),
            (Code::Unavailable, "CONNECT_DEADLINE")
        );
        assert!(status.message().contains("nobody"), "{status}");
        let b = start(config("b", 2, kind));
        let soon = Duration::from_secs(1);
        a.control
            .dial("c", b.control.address().clone(), soon)
            .expect("taken");
        let status = a.dial_failed();
        assert_eq!(
            (status.code(), status.reason()),
            (Code::NotFound, "PEER_UNKNOWN")
        );
        assert!(status.message().contains("this is b"), "{status}");
        // Who asks which task is there, and an observer that asks for a task, has the answer at once.
        a.control
            .dial(
                "/job:observer/replica:0/task:9",
                b.control.address().clone(),
                PATIENCE,
            )
            .expect("taken");
        assert_eq!(a.dial_failed().reason(), "PEER_UNKNOWN");
        let observer = start(config("/job:observer/replica:0/task:1", 3, kind));
        observer.dial(&b, "c");
        let status = observer.dial_failed();
        assert_eq!(
            (status.code(), status.reason()),
            (Code::NotFound, "PEER_UNKNOWN")
        );
        assert!(status.message().contains("this is b"), "{status}");
        b.dial(&a, "a");
        assert_eq!(a.up().task, "b");
    }
}

/// An address that still leads to another task: the dial goes on until the task that is meant listens there. Its own
/// name, there, is this task's that had the address before.
#[test]
fn who_listens_where_another_did_is_met() {
    for kind in BOTH {
        for (number, other) in ["b", "a"].into_iter().enumerate() {
            let name = format!("refusals-{number}-{kind:?}-{}", std::process::id());
            let place = || Some(Address::Abstract(name.clone()));
            let at = |task: &str, incarnation| {
                let mut config = config(task, incarnation, kind);
                config.listen = place();
                start(config)
            };
            let a = start(config("a", 1, kind));
            let before = at(other, 2);
            a.dial(&before, "c");
            // It has been refused there before it ends.
            std::thread::sleep(Duration::from_millis(50));
            assert!(a.events.try_recv().is_err(), "{kind:?} {other}");
            before.stop();
            let c = at("c", 3);
            assert_eq!((a.up().task, c.up().task), ("c".into(), "a".into()));
        }
    }
}

/// What is left of a former run of the job, in which this task's former life is connected and lives, is no duplicate of
/// it: it is waited for until that has ended.
#[test]
fn what_is_left_of_a_former_run_is_waited_for() {
    for kind in BOTH {
        let (a, b) = (start(config("a", 1, kind)), start(config("b", 2, kind)));
        b.dial(&a, "a");
        let up = a.up();
        for reason in [catalogue::PEER_OTHER_EPOCH, catalogue::PEER_NOT_OF_CLUSTER] {
            let answers = || a.handler.answers.lock().expect("no panic");
            answers().refuse_all = Some(Status::of(reason, "not of this run"));
            let next = start(config("b", 3, kind));
            let soon = Duration::from_secs(1);
            let at = || a.control.address().clone();
            next.control.dial("a", at(), soon).expect("taken");
            let status = next.dial_failed();
            assert_eq!(status.reason(), reason, "{status}");
            assert!(status.message().contains("not of this run"), "{status}");
        }
        let next = start(config("b", 4, kind));
        next.dial(&a, "a");
        std::thread::sleep(Duration::from_millis(50));
        assert!(next.events.try_recv().is_err(), "{kind:?}");
        b.stop();
        assert_eq!(a.gone().0, up.peer);
        a.handler.answers.lock().expect("no panic").refuse_all = None;
        assert_eq!(
            (a.up().incarnation, next.up().incarnation),
            (Incarnation(4), Incarnation(1))
        );
    }
}

#[test]
fn a_handler_may_refuse() {
    for kind in BOTH {
        let no = || {
            Some(Status::new(
                Code::ResourceExhausted,
                "PEER_REFUSED",
                "no more of these",
            ))
        };
        for answers in [
            Answers {
                refuse_link: no(),
                ..Answers::default()
            },
            Answers {
                refuse_local: no(),
                ..Answers::default()
            },
        ] {
            let a = start(config("a", 1, kind));
            let b = start_with(config("b", 2, kind), answers);
            a.dial(&b, "b");
            let status = a.dial_failed();
            assert_eq!(
                (status.code(), status.reason()),
                (Code::ResourceExhausted, "PEER_REFUSED")
            );
            assert!(status.message().contains("no more of these"), "{status}");
            *b.handler.answers.lock().expect("no panic") = Answers::default();
            a.dial(&b, "b");
            assert_eq!((a.up().task, b.up().task), ("b".into(), "a".into()));
        }
    }
}

/// A side that has no descriptors left for a moment loses no peer by it.
#[test]
fn a_side_that_is_short_of_descriptors_is_met_when_it_has_some() {
    for kind in BOTH {
        for is_dialler in [true, false] {
            let (a, b) = (start(config("a", 1, kind)), start(config("b", 2, kind)));
            let short = if is_dialler { &a } else { &b };
            let none = Status::of(catalogue::SYSTEM_LIMIT, "no descriptor is left");
            let answers = || short.handler.answers.lock().expect("no panic");
            answers().refuse_local = Some(none);
            a.dial(&b, "b");
            std::thread::sleep(Duration::from_millis(30));
            answers().refuse_local = None;
            assert_eq!((a.up().task, b.up().task), ("b".into(), "a".into()));
        }
    }
}

/// All that a stranger may send first: each is hung up on, and a proper peer is served all the while.
#[test]
fn strangers_are_hung_up_on() {
    for kind in BOTH {
        let mut quick = config("a", 1, kind);
        quick.greet_deadline = Duration::from_millis(500);
        let a = start(quick);
        let address = a.control.address();
        let mut silent = connect(address);
        let mut half = connect(address);
        half.write_all(&PREAMBLE[..5]).expect("sent");
        let mut garbage = connect(address);
        garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        let mut laneless = connect(address);
        laneless.write_all(PREAMBLE).expect("sent");
        let mut no_lane = connect(address);
        send(&no_lane, PREAMBLE, &[eventfd().as_fd()]);
        let mut two_lanes = connect(address);
        send(
            &two_lanes,
            PREAMBLE,
            &[lane_pair().0.as_fd(), lane_pair().1.as_fd()],
        );
        let mut oversize = Raw::connect(address);
        oversize
            .stream
            .write_all(&u32::MAX.to_le_bytes())
            .expect("sent");
        let mut truncated = Raw::connect(address);
        truncated.stream.write_all(&[9, 0, 0, 0, 1]).expect("sent");
        let mut malformed = Raw::connect(address);
        malformed
            .stream
            .write_all(&[4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff])
            .expect("sent");
        let mut impolite = Raw::connect(address);
        impolite.say(1, false, Body::Ping(proto::Ping {}));
        let mut mute = Raw::connect(address);
        mute.say(1, false, Body::Hello(hello("mute", "a", 2)));
        let lanes = [
            oversize.stream,
            truncated.stream,
            malformed.stream,
            impolite.stream,
            mute.stream,
        ];
        for stream in [
            &mut silent,
            &mut half,
            &mut garbage,
            &mut laneless,
            &mut no_lane,
            &mut two_lanes,
        ] {
            assert_hung_up(stream);
        }
        for mut stream in lanes {
            assert_hung_up(&mut stream);
        }
        let b = start(config("b", 2, kind));
        b.dial(&a, "a");
        assert_eq!(a.up().task, "b");
    }
}

/// Whatever was said before, the end comes.
fn assert_hung_up(mut stream: impl Read) {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("expected the end, got {error}"),
    }
}

#[test]
fn more_newcomers_than_may_be_greeted_wait_for_their_turn() {
    let mut quick = config("a", 1, RuntimeKind::Poll);
    quick.greet_deadline = Duration::from_millis(50);
    let a = start(quick);
    let silent: Vec<_> = (0..100).map(|_| connect(a.control.address())).collect();
    let b = start(config("b", 2, RuntimeKind::Poll));
    b.dial(&a, "a");
    assert_eq!(a.up().task, "b");
    silent.into_iter().for_each(assert_hung_up);
}

fn named(kinds: Vec<Option<Kind>>, batch: u32, last: bool) -> Body {
    let entries = kinds
        .into_iter()
        .map(|kind| proto::Descriptor { kind })
        .collect();
    Body::Descriptors(proto::Descriptors {
        batch,
        entries,
        last,
    })
}

fn link() -> Option<Kind> {
    Some(Kind::Link(proto::LinkDescriptor {
        len: 1,
        numbers: vec![1, 2, u64::MAX],
    }))
}

fn bell(shard: u32) -> Option<Kind> {
    Some(Kind::Doorbell(proto::DoorbellDescriptor { shard }))
}

fn segment(arena: u32, segment: u32, len: u64) -> Option<Kind> {
    Some(Kind::Arena(proto::ArenaDescriptor {
        arena,
        segment,
        len,
        ..Default::default()
    }))
}

/// Broken promises about descriptors in the greeting: descriptors passed, what is said of them, the reason given.
#[test]
fn broken_promises_about_descriptors_are_refused() {
    let a = start(config("a", 1, RuntimeKind::Glommio));
    let ok = || (0..8).map(|_| memory("link b a")).collect::<Vec<_>>();
    let cases: Vec<(usize, u32, Body)> = vec![
        (0, 1, named(vec![link()], 1, true)),
        (2, 1, named(vec![link()], 1, true)),
        (1, 2, named(vec![link()], 2, true)),
        (1, 1, named(vec![link()], 2, true)),
        (0, 1, named(vec![], 1, true)),
        (2, 1, named(vec![link(), link()], 1, true)),
        (2, 1, named(vec![link(), bell(2)], 1, true)),
        (2, 1, named(vec![link(), bell(70_000)], 1, true)),
        (2, 1, named(vec![link(), None], 1, true)),
        (2, 1, named(vec![link(), segment(0, 0, 0)], 1, true)),
        (2, 1, named(vec![link(), segment(0, 70_000, 1)], 1, true)),
        (
            3,
            1,
            named(vec![link(), segment(0, 0, 1), segment(0, 0, 1)], 1, true),
        ),
        (
            6,
            1,
            named(
                std::iter::once(link())
                    .chain((0..5).map(|at| segment(0, at, 1)))
                    .collect(),
                1,
                true,
            ),
        ),
    ];
    for (count, batch, body) in cases {
        let mut raw = Raw::connect(a.control.address());
        assert!(matches!(
            raw.greet(hello("b", "a", 2)),
            Outcome::Accepted(_)
        ));
        raw.pass(batch, &ok()[..count]);
        let text = format!("{body:?}");
        raw.say(2, false, body);
        match raw.hear().and_then(|envelope| envelope.body) {
            Some(Body::Error(error)) => assert_eq!(error.reason, "PEER_PROTOCOL", "{text}"),
            other => panic!("expected an error for {text}, got {other:?}"),
        }
        assert!(raw.is_closed());
    }
    assert!(a.events.try_recv().is_err(), "no one was connected");
}

fn connected(a: &Task, incarnation: u64) -> Raw {
    connected_to(a.control.address(), incarnation)
}

/// Greets task `a` by hand as `b` until the connection counts.
pub(crate) fn connected_to(address: &Address, incarnation: u64) -> Raw {
    connected_as(address, hello("b", "a", incarnation))
}

/// The same with another hello.
pub(crate) fn connected_as(address: &Address, hello: proto::Hello) -> Raw {
    let mut raw = Raw::connect(address);
    let named_for = format!("link {} {}", hello.task, hello.dialled);
    assert!(matches!(raw.greet(hello), Outcome::Accepted(_)));
    raw.pass(1, &[memory(&named_for)]);
    raw.say(2, false, named(vec![link()], 1, true));
    assert!(matches!(
        raw.hear().and_then(|envelope| envelope.body),
        Some(Body::Ack(_))
    ));
    let theirs = raw.hear().expect("their descriptors");
    assert!(matches!(
        theirs.body,
        Some(Body::Descriptors(proto::Descriptors { last: true, .. }))
    ));
    raw.say(theirs.id, true, Body::Ack(proto::Ack {}));
    raw
}

/// A task that leaves in the middle of a greeting: the peer that counts it already hears why.
#[test]
fn who_is_greeted_during_the_end_hears_of_it() {
    for kind in BOTH {
        let a = start(config("a", 1, kind));
        let mut raw = Raw::connect(a.control.address());
        let outcome = raw.greet(hello("b", "a", 2));
        assert!(matches!(outcome, Outcome::Accepted(_)));
        raw.pass(1, &[memory("link b a")]);
        raw.say(2, false, named(vec![link()], 1, true));
        let acked = raw.hear().and_then(|envelope| envelope.body);
        assert!(matches!(acked, Some(Body::Ack(_))));
        let theirs = raw.hear().expect("their descriptors");
        std::thread::scope(|scope| {
            let control = &a.control;
            scope.spawn(|| control.stop("test over", PATIENCE));
            std::thread::sleep(Duration::from_millis(20));
            raw.say(theirs.id, true, Body::Ack(proto::Ack {}));
            let heard = raw.hear().and_then(|envelope| envelope.body);
            let Some(Body::Bye(bye)) = heard else {
                panic!("{kind:?}: {heard:?}")
            };
            assert_eq!(bye.reason, "test over");
        });
    }
}

#[test]
fn a_connected_peer_that_breaks_the_protocol_is_lost() {
    for kind in BOTH {
        let a = start(config("a", 1, kind));
        let added = |batch, at| {
            let arena = Some(proto::ArenaDescriptor {
                arena: 0,
                segment: at,
                len: 1,
                ..Default::default()
            });
            Body::SegmentAdded(proto::SegmentAdded { batch, arena })
        };
        let cases: Vec<(u64, bool, Body)> = vec![
            (3, false, added(9, 0)),
            (3, false, Body::Hello(hello("b", "a", 2))),
            (3, true, Body::Pong(proto::Pong {})),
            (3, true, Body::Ack(proto::Ack {})),
            (3, false, Body::Ack(proto::Ack {})),
        ];
        for (incarnation, (id, reply, body)) in (2..).zip(cases) {
            let mut raw = connected(&a, incarnation);
            let up = a.up();
            raw.say(3, false, Body::Ping(proto::Ping {}));
            assert!(matches!(
                raw.hear().and_then(|envelope| envelope.body),
                Some(Body::Pong(_))
            ));
            raw.say(id, reply, body);
            let (peer, gone) = a.gone();
            assert_eq!(peer, up.peer);
            let PeerGone::ConnectionLost(status) = &gone else {
                panic!("{gone:?}")
            };
            assert_eq!(status.reason(), "PEER_PROTOCOL");
            assert_eq!(gone.status("b").reason(), "PEER_LOST");
            assert!(raw.is_closed());
        }
        let mut raw = connected(&a, 99);
        let _ = a.up();
        raw.say(
            3,
            false,
            Body::Bye(proto::Bye {
                reason: "x".repeat(5000),
            }),
        );
        assert!(matches!(a.gone().1, PeerGone::Said { reason } if reason.len() == 1024));
        drop(connected(&a, 100));
        let _ = a.up();
        assert!(
            matches!(a.gone().1, PeerGone::ConnectionLost(status) if status.reason() == "PEER_LOST")
        );
    }
}

#[test]
fn a_flood_of_requests_without_reading_is_ended() {
    let a = start(config("a", 1, RuntimeKind::Poll));
    let mut raw = connected(&a, 2);
    let _ = a.up();
    raw.stream
        .set_write_timeout(Some(PATIENCE))
        .expect("a timeout");
    for id in 3..200_000 {
        raw.say(id, false, Body::Ping(proto::Ping {}));
    }
    assert!(
        matches!(a.gone().1, PeerGone::ConnectionLost(status) if status.reason() == "PEER_PROTOCOL")
    );
}
