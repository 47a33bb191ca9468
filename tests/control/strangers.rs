//! TCP peers that break the rules, and networks that break: each costs its own connection and nothing else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message;
use rendez::control::{Address, PathWish, PeerGone, RuntimeKind};
use rendez::ground::{Code, Incarnation, Status};
use rendez_proto::envelope::Body;
use rendez_proto::hello_reply::Outcome;
use rendez_proto::{self as proto, Envelope};

use super::raw::hello;
use super::relay::Relay;
use super::security::hear_all;
use super::support::{Answers, BOTH, PATIENCE, Task, start_with};
use super::tcp::{address, assert_joined, dial, open, start};

/// A TCP dialler by hand, without a secret.
struct Raw {
    stream: TcpStream,
    next_id: u64,
}

fn connect(address: &Address) -> TcpStream {
    let stream = TcpStream::connect(address.to_string()).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

impl Raw {
    /// Connects and shakes hands.
    fn connect(address: &Address) -> Self {
        let mut stream = connect(address);
        stream.write_all(b"rendezC\x01").expect("sent");
        let mut verdict = [0; 8];
        stream.read_exact(&mut verdict).expect("answered");
        assert_eq!(&verdict, b"rendezW\x01");
        let challenge = [&[0u8; 8][..], &std::process::id().to_le_bytes(), &[7; 28]].concat();
        stream.write_all(&challenge).expect("sent");
        let mut challenge = [0; 40];
        stream.read_exact(&mut challenge).expect("answered");
        Self { stream, next_id: 1 }
    }

    fn ask(&mut self, body: Body) -> Option<Body> {
        let id = self.next_id;
        self.next_id += 1;
        let bytes = Envelope {
            id,
            reply: false,
            body: Some(body),
        }
        .encode_to_vec();
        let len = u32::try_from(bytes.len()).expect("short");
        self.stream
            .write_all(&[&len.to_le_bytes()[..], &bytes].concat())
            .ok()?;
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        self.stream.read_exact(&mut bytes).ok()?;
        Envelope::decode(bytes.as_slice()).expect("a message").body
    }

    fn greet(&mut self, task: &str, incarnation: u64) -> Outcome {
        let mut hello = hello(task, "a", incarnation);
        hello.path = proto::PathWish::Tcp.into();
        match self.ask(Body::Hello(hello)) {
            Some(Body::HelloReply(reply)) => reply.outcome.expect("an outcome"),
            other => panic!("expected an answer to the hello, got {other:?}"),
        }
    }

    fn open_data(&mut self, channels: u32) -> proto::DataOpenReply {
        match self.ask(Body::DataOpen(proto::DataOpen {
            channels,
            ..proto::DataOpen::default()
        })) {
            Some(Body::DataOpenReply(reply)) => reply,
            other => panic!("expected a ticket, got {other:?}"),
        }
    }
}

/// A data preamble without a signature.
fn preamble(incarnation: u64, channel: u32, reply: &proto::DataOpenReply) -> Vec<u8> {
    let mut bytes = b"rendezD\x01".to_vec();
    bytes.extend_from_slice(&incarnation.to_le_bytes());
    bytes.extend_from_slice(&channel.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&reply.ticket);
    bytes.extend_from_slice(&reply.expires_ms.to_le_bytes());
    bytes.extend_from_slice(&[0; 32]);
    bytes
}

/// The answer to a data preamble, and the connection.
fn present(address: &Address, bytes: &[u8]) -> (Vec<u8>, TcpStream) {
    let mut stream = connect(address);
    stream.write_all(bytes).expect("sent");
    let mut answer = vec![0; 8];
    stream.read_exact(&mut answer).expect("answered");
    (answer, stream)
}

#[test]
fn a_ticket_is_good_once_and_in_time() {
    for kind in BOTH {
        let a = start(open("a", 1, kind));
        let at = address(&a);
        let mut raw = Raw::connect(&at);
        assert!(matches!(raw.greet("b", 2), Outcome::Accepted(_)));
        let reply = raw.open_data(3);
        let unknown = proto::DataOpenReply {
            ticket: vec![9; 16],
            ..reply.clone()
        };
        assert_eq!(present(&at, &preamble(1, 0, &unknown)).0, b"rendezU\x01");
        assert_eq!(present(&at, &preamble(2, 0, &reply)).0, b"rendezU\x01");
        assert_eq!(present(&at, &preamble(1, 3, &reply)).0, b"rendezU\x01");
        let mut joined: Vec<_> = (0..2)
            .map(|at_| present(&at, &preamble(1, at_, &reply)))
            .collect();
        assert!(joined.iter().all(|(answer, _)| answer == b"rendezW\x01"));
        assert_eq!(present(&at, &preamble(1, 1, &reply)).0, b"rendezR\x01");
        // A preamble in pieces is one all the same.
        let mut slow = connect(&at);
        for byte in preamble(1, 2, &reply) {
            slow.write_all(&[byte]).expect("sent");
        }
        let mut answer = [0; 8];
        slow.read_exact(&mut answer).expect("answered");
        assert_eq!(&answer, b"rendezW\x01");
        joined.push((answer.to_vec(), slow));
        let acked = raw.ask(Body::DataReady(proto::DataReady {}));
        assert!(matches!(acked, Some(Body::Ack(_))));
        let up = a.up();
        assert_eq!(up.descriptors.sockets.len(), 3);
        assert_eq!(present(&at, &preamble(1, 1, &reply)).0, b"rendezR\x01");
        // Another greeting, given up before its data connections were there.
        let mut raw = Raw::connect(&at);
        assert!(matches!(raw.greet("c", 3), Outcome::Accepted(_)));
        let reply = raw.open_data(3);
        drop(raw);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (answer, _) = present(&at, &preamble(1, 0, &reply));
            if answer == b"rendezE\x01" {
                break;
            }
            assert!(Instant::now() < deadline, "{answer:?}");
        }
    }
}

#[test]
fn both_sides_must_count_the_same_channels() {
    let a = start(open("a", 1, RuntimeKind::Poll));
    let other = Answers {
        channels: 4,
        ..Answers::default()
    };
    let b = start_with(open("b", 2, RuntimeKind::Poll), other);
    dial(&b, &a, "a", PathWish::Tcp);
    let status = b.dial_failed();
    assert_eq!(status.reason(), "PEER_REFUSED");
    assert!(
        status.message().contains('4') && status.message().contains('3'),
        "{status}"
    );
    let none = Answers {
        refuse_tcp: Some(Status::new(
            Code::Unimplemented,
            "PATH_REFUSED",
            "no TCP here",
        )),
        ..Answers::default()
    };
    let c = start_with(open("c", 3, RuntimeKind::Poll), none);
    dial(&c, &a, "a", PathWish::Tcp);
    assert_eq!(c.dial_failed().reason(), "PATH_REFUSED");
    dial(&a, &c, "c", PathWish::Tcp);
    assert_eq!(a.dial_failed().reason(), "PATH_REFUSED");
}

#[test]
fn a_demanded_way_that_is_not_there_is_refused() {
    let a = start(open("a", 1, RuntimeKind::Poll));
    let b = start(open("b", 2, RuntimeKind::Poll));
    b.control
        .dial_by("a", a.control.address().clone(), PathWish::Tcp, PATIENCE)
        .expect("taken");
    assert_eq!(b.dial_failed().reason(), "PATH_REFUSED");
    let mut only_tcp = open("c", 3, RuntimeKind::Poll);
    only_tcp.path_wish = PathWish::Tcp;
    let c = start(only_tcp);
    dial(&b, &c, "c", PathWish::Shm);
    assert_eq!(b.dial_failed().reason(), "PATH_REFUSED");
    dial(&b, &c, "c", PathWish::Auto);
    assert_joined(b.up(), c.up());
}

#[test]
fn an_unknown_host_and_a_dead_port_are_told() {
    let a = start(open("a", 1, RuntimeKind::Poll));
    let soon = Duration::from_millis(300);
    for (host, words) in [
        ("name.invalid:5", "cannot be resolved"),
        ("127.0.0.1:1", "refused"),
    ] {
        let address: Address = host.parse().expect("an address");
        a.control.dial("b", address, soon).expect("taken");
        let status = a.dial_failed();
        assert_eq!(
            (status.code(), status.reason()),
            (Code::Unavailable, "CONNECT_DEADLINE")
        );
        assert!(status.message().contains(host), "{status}");
        assert!(
            status.message().contains(words) || status.message().contains("deadline"),
            "{status}"
        );
    }
}

#[test]
fn another_version_is_refused_by_name() {
    let a = start(open("a", 1, RuntimeKind::Poll));
    let mut newer = connect(&address(&a));
    newer.write_all(b"rendezC\x02").expect("sent");
    assert_eq!(hear_all(&newer), b"rendezV\x01");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let at: Address = listener
        .local_addr()
        .expect("bound")
        .to_string()
        .parse()
        .expect("an address");
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("dialled");
        let mut opening = [0; 8];
        stream.read_exact(&mut opening).expect("an opening");
        stream.write_all(b"rendezV\x09").expect("sent");
        hear_all(&stream)
    });
    a.control.dial("b", at, PATIENCE).expect("taken");
    let status = a.dial_failed();
    assert_eq!(status.reason(), "PEER_VERSION");
    assert!(status.message().contains("version 9"), "{status}");
    assert!(other.join().expect("no panic").is_empty());
    // The version of the hello is judged as over a Unix socket.
    let mut raw = Raw::connect(&address(&a));
    let mut hello = hello("b", "a", 2);
    hello.protocol_version = 77;
    let Some(Body::HelloReply(reply)) = raw.ask(Body::Hello(hello)) else {
        panic!("no answer")
    };
    assert!(
        matches!(reply.outcome, Some(Outcome::Refused(refusal)) if refusal.reason == "PEER_VERSION")
    );
}

#[test]
fn a_second_life_is_refused_while_the_first_answers() {
    let a = start(open("a", 1, RuntimeKind::Poll));
    let b = start(open("b", 2, RuntimeKind::Poll));
    dial(&b, &a, "a", PathWish::Tcp);
    let up = a.up();
    let other = start(open("b", 3, RuntimeKind::Poll));
    dial(&other, &a, "a", PathWish::Tcp);
    let status = other.dial_failed();
    assert_eq!(
        (status.code(), status.reason()),
        (Code::AlreadyExists, "PEER_DUPLICATE_NAME")
    );
    b.stop();
    assert_eq!(a.gone().0, up.peer);
    dial(&other, &a, "a", PathWish::Tcp);
    assert_eq!(a.up().incarnation, Incarnation(3));
}

/// Other processes of a connected task's name that come in turn, more of them than are remembered at once: each gets
/// its answer, though others have asked in between, and the task stays connected.
#[test]
fn rivals_that_come_in_turn_are_refused() {
    for kind in BOTH {
        let (a, b) = (start(open("a", 1, kind)), start(open("b", 2, kind)));
        dial(&b, &a, "a", PathWish::Tcp);
        assert_eq!(a.up().incarnation, Incarnation(2));
        let mut rivals: Vec<u64> = (3..43).collect();
        let began = Instant::now();
        while !rivals.is_empty() {
            assert!(began.elapsed() < PATIENCE / 3, "{kind:?}: {rivals:?}");
            rivals.retain(|rival| {
                let outcome = Raw::connect(&address(&a)).greet("b", *rival);
                let Outcome::Refused(refusal) = outcome else {
                    panic!("{rival} is let in")
                };
                if refusal.retry {
                    assert_eq!(refusal.reason, "PEER_BUSY");
                    return true;
                }
                assert_eq!(refusal.reason, "PEER_DUPLICATE_NAME");
                let message = refusal.message;
                assert!(message.contains("0000000000000002"), "{message}");
                assert!(message.contains("is at 127.0.0.1:"), "{message}");
                false
            });
        }
        assert!(a.events.try_recv().is_err(), "nothing became of them");
    }
}

/// Offers of a transport that no release knows, each declined: a greeting is not prolonged by them for ever.
#[test]
fn offers_without_end_end_a_greeting() {
    for kind in BOTH {
        let a = start(open("a", 1, kind));
        let mut raw = Raw::connect(&address(&a));
        assert!(matches!(raw.greet("b", 2), Outcome::Accepted(_)));
        let offer = proto::Offer {
            transport: 99,
            ends: vec![Vec::new(); 3],
            ..proto::Offer::default()
        };
        let mut declined = 0;
        while let Some(Body::OfferReply(reply)) = raw.ask(Body::Offer(offer.clone())) {
            assert!(!reply.no.is_empty());
            declined += 1;
            assert!(declined < 100, "{kind:?}");
        }
        assert!(declined > 3, "{kind:?}");
    }
}

/// Garbage, silence and floods, while a proper peer is served.
#[test]
fn strangers_on_the_port_are_hung_up_on() {
    for kind in BOTH {
        let mut quick = open("a", 1, kind);
        quick.greet_deadline = Duration::from_millis(300);
        let a = start(quick);
        let at = address(&a);
        let say = |bytes: &[u8]| {
            let mut stream = connect(&at);
            stream.write_all(bytes).expect("sent");
            stream
        };
        let strangers = vec![
            say(b""),
            say(b"ren"),
            say(b"GET / HTTP/1.1\r\n\r\n"),
            say(&[0xff; 200]),
            say(b"rendez\0\x01"),
            say(b"rendezD\x01short"),
            say(b"rendezC\x01"),
            say(b"rendezS\x01"),
            say(&[&b"rendezC\x01"[..], &[9; 100]].concat()),
            say(&[&b"rendezC\x01"[..], &[0; 40], &u32::MAX.to_le_bytes()].concat()),
            say(&[&b"rendezD\x01"[..], &[3; 72]].concat()),
        ];
        let flood: Vec<_> = (0..600)
            .map(|_| TcpStream::connect(at.to_string()))
            .collect();
        let mut loris = connect(&at);
        let b = start(open("b", 2, kind));
        dial(&b, &a, "a", PathWish::Tcp);
        let began = Instant::now();
        for byte in b"rendezC\x01".iter().chain(&[0; 40]) {
            if loris.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for stranger in &strangers {
            let _ = hear_all(stranger);
        }
        let _ = hear_all(&loris);
        assert!(began.elapsed() < PATIENCE / 3);
        drop(flood);
        assert_joined(b.up(), a.up());
    }
}

/// A link that is cut: both sides are told within the bound, and the same lives meet again once it is mended.
#[test]
fn a_cut_link_is_told_and_mended() {
    for kind in BOTH {
        let quick = |task, incarnation| {
            let mut config = open(task, incarnation, kind);
            config.ping_every = Duration::from_millis(30);
            config.doubtful_after = Duration::from_millis(100);
            config.lost_after = Duration::from_millis(400);
            config.greet_deadline = Duration::from_millis(500);
            start(config)
        };
        let (a, b) = (quick("a", 1), quick("b", 2));
        let relay = Relay::to(&address(&b));
        let dial = || {
            a.control
                .dial_by("b", relay.address.clone(), PathWish::Tcp, PATIENCE)
                .expect("taken");
        };
        dial();
        let (first_a, first_b) = (a.up(), b.up());
        relay.cut(true);
        let began = Instant::now();
        for (task, first) in [(&a, &first_a), (&b, &first_b)] {
            let lost = lost(task);
            assert_eq!(lost.0, first.peer);
            assert_eq!(lost.1.reason(), "PEER_LOST");
        }
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        dial();
        std::thread::sleep(Duration::from_millis(50));
        relay.cut(false);
        let (second_a, second_b) = (a.up(), b.up());
        assert_eq!(second_a.incarnation, Incarnation(2));
        assert_eq!(second_b.incarnation, Incarnation(1));
        assert_ne!(second_a.peer, first_a.peer);
        assert_joined(second_a, second_b);
    }
}

/// A task that pings so often, and after so long doubts a peer, and takes it for lost; all in milliseconds.
fn pinging(task: &str, incarnation: u64, kind: RuntimeKind, times: [u64; 3]) -> Task {
    let mut config = open(task, incarnation, kind);
    let times = times.map(Duration::from_millis);
    [config.ping_every, config.doubtful_after, config.lost_after] = times;
    start(config)
}

/// `a` dials `b`, through what is returned.
fn dial_through_relay(a: &Task, b: &Task) -> Relay {
    let relay = Relay::to(&address(b));
    a.control
        .dial_by("b", relay.address.clone(), PathWish::Tcp, PATIENCE)
        .expect("taken");
    relay
}

/// A task whose machine is gone without a word returns at once: it waits until its former life is given up, and is not
/// refused as a second one.
#[test]
fn a_task_returns_before_its_former_life_is_missed() {
    for kind in BOTH {
        let quick = |task, incarnation| pinging(task, incarnation, kind, [100, 1000, 2000]);
        let (a, b) = (quick("a", 1), quick("b", 2));
        let relay = dial_through_relay(&a, &b);
        assert_joined(a.up(), b.up());
        relay.cut(true);
        let again = quick("b", 3);
        dial(&again, &a, "a", PathWish::Tcp);
        assert_eq!(lost(&a).1.reason(), "PEER_LOST");
        let (at_a, at_b) = (a.up(), again.up());
        assert_eq!(at_a.incarnation, Incarnation(3));
        assert_joined(at_a, at_b);
    }
}

/// A way that is broken in one direction only is broken for both sides from one moment on: what the deaf side still
/// says to the mute one proves nothing to it.
#[test]
fn a_one_way_cut_counts_from_one_moment_at_both_sides() {
    for kind in BOTH {
        let quick = |task, incarnation| pinging(task, incarnation, kind, [40, 200, 500]);
        let (a, b) = (quick("a", 1), quick("b", 2));
        let relay = dial_through_relay(&a, &b);
        let met = Instant::now();
        assert_joined(a.up(), b.up());
        std::thread::sleep(Duration::from_millis(200));
        relay.habits.is_mute.store(true, Ordering::SeqCst);
        let muted = Instant::now();
        for task in [&a, &b] {
            assert_eq!(lost(task).1.reason(), "PEER_LOST");
            let proved = task.handler.proofs.lock().expect("no panic")[0];
            assert!(
                met < proved && proved <= muted,
                "{kind:?}: proved {:?} after it was mute",
                proved.saturating_duration_since(muted)
            );
        }
    }
}

/// The loss that is told next.
fn lost(task: &Task) -> (rendez::control::PeerId, Status) {
    match task.gone() {
        (peer, PeerGone::ConnectionLost(status)) => (peer, status),
        other => panic!("expected a loss, got {other:?}"),
    }
}

#[test]
fn who_hangs_up_may_dial_again() {
    for kind in BOTH {
        let (a, b) = (start(open("a", 1, kind)), start(open("b", 2, kind)));
        dial(&a, &b, "b", PathWish::Tcp);
        let (at_a, at_b) = (a.up(), b.up());
        a.control
            .hang_up(at_a.peer, "its data is broken")
            .expect("taken");
        let (peer, gone) = a.gone();
        assert!(peer == at_a.peer && gone.status("b").message().contains("its data is broken"));
        assert!(matches!(b.gone(), (peer, PeerGone::ConnectionLost(_)) if peer == at_b.peer));
        dial(&a, &b, "b", PathWish::Tcp);
        assert_joined(a.up(), b.up());
        a.control.hang_up(at_a.peer, "it is over").expect("taken");
        assert!(a.events.recv_timeout(Duration::from_millis(50)).is_err());
    }
}

/// A goodbye has as long as was said, however long that is.
#[test]
fn a_goodbye_without_an_end_waits_until_it_is_heard() {
    for kind in BOTH {
        let (a, b) = (start(open("a", 1, kind)), start(open("b", 2, kind)));
        let relay = dial_through_relay(&a, &b);
        assert_joined(a.up(), b.up());
        relay.cut(true);
        std::thread::scope(|scope| {
            let stopped = scope.spawn(|| a.control.stop("over", Duration::MAX));
            std::thread::sleep(Duration::from_millis(600));
            assert!(!stopped.is_finished(), "{kind:?}");
            relay.cut(false);
        });
        assert!(matches!(b.gone().1, PeerGone::Said { reason } if reason == "over"));
    }
}

/// What a dialler says next to one that it has dialled, which answers `body` if there is one.
fn answer(stream: &mut TcpStream, body: Option<Body>) -> Body {
    let mut len = [0; 4];
    stream.read_exact(&mut len).expect("a request");
    let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut bytes).expect("a request");
    let asked = Envelope::decode(bytes.as_slice()).expect("a message");
    if body.is_some() {
        let bytes = Envelope {
            id: asked.id,
            reply: true,
            body,
        }
        .encode_to_vec();
        let len = u32::try_from(bytes.len()).expect("short");
        let said = [&len.to_le_bytes()[..], &bytes].concat();
        stream.write_all(&said).expect("said");
    }
    asked.body.expect("a body")
}

/// A dial that counts and waits for the peer's last word takes another address, too.
#[test]
fn a_dial_takes_another_address_until_it_stands() {
    for kind in BOTH {
        let [a, b] = [("a", 1), ("b", 2)]
            .map(|(task, life)| start_with(open(task, life, kind), Answers::default()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = listener.local_addr().expect("bound").to_string();
        let (at, brief): (Address, _) = (at.parse().expect("an address"), PATIENCE / 6);
        a.control
            .dial_by("b", at, PathWish::Tcp, brief)
            .expect("taken");
        let (mut mute, _) = listener.accept().expect("dialled");
        mute.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut opening = [0; 8];
        mute.read_exact(&mut opening).expect("an opening");
        mute.write_all(b"rendezW\x01").expect("sent");
        mute.read_exact(&mut [0; 40]).expect("a challenge");
        mute.write_all(&[&[0u8; 8][..], &[8; 32]].concat())
            .expect("sent");
        let accepted = proto::HelloReply {
            outcome: Some(Outcome::Accepted(hello("b", "", 2))),
        };
        let said = answer(&mut mute, Some(Body::HelloReply(accepted)));
        assert!(matches!(said, Body::Hello(_)), "{said:?}");
        let ticket = proto::DataOpenReply {
            ticket: vec![1; 16],
            expires_ms: 1000,
        };
        let said = answer(&mut mute, Some(Body::DataOpenReply(ticket)));
        assert!(matches!(said, Body::DataOpen(_)), "{said:?}");
        let said = answer(&mut mute, None);
        assert!(matches!(said, Body::DataReady(_)), "{said:?}");
        dial(&a, &b, "b", PathWish::Tcp);
        std::thread::sleep(Duration::from_millis(100));
        drop((mute, listener));
        assert_eq!((a.up().task, b.up().task), ("b".into(), "a".into()));
    }
}
