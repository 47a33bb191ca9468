//! Peers that are let in and then never stop: others of the same control plane go on.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prost::Message;
use rendez::control::{Incoming, PathWish, PeerGone, RuntimeKind, Services};
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};

use super::raw::hello;
use super::refusals::{connected_as, connected_to};
use super::security::{Authority, with_tls};
use super::support::{Answers, BOTH, Event, PATIENCE, Task, config, start, start_with};
use super::tcp;

const ECHO: u32 = 1;
/// Bytes of a record, which one ticket fills with the 49 bytes around it: of tickets that lie across records a reader
/// takes few.
const RECORD: usize = 512;

fn serve(task: &str, kind: RuntimeKind) -> Task {
    let echo = Services::new().on(ECHO, |call: &Incoming| Ok(call.payload.clone()));
    let answers = Answers {
        services: echo,
        ..Answers::default()
    };
    start_with(config(task, 1, kind), answers)
}

fn bytes(id: u64, body: Body) -> Vec<u8> {
    let envelope = Envelope {
        id,
        reply: false,
        body: Some(body),
    };
    let bytes = envelope.encode_to_vec();
    let len = u32::try_from(bytes.len()).expect("short");
    [&len.to_le_bytes()[..], &bytes].concat()
}

/// What is not answered can be said without end: a socket that is never empty holds no other peer up.
#[test]
fn a_peer_that_never_stops_holds_no_other_up() {
    for kind in BOTH {
        let a = serve("a", kind);
        let raw = connected_to(a.control.address(), 2);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (mut stream, is_over) = (&raw.stream, &is_over);
            scope.spawn(move || {
                let done = proto::CallDone { requests: vec![7] };
                let flood = bytes(3, Body::CallDone(done)).repeat(4096);
                while !is_over.load(Ordering::Relaxed) && stream.write_all(&flood).is_ok() {}
            });
            std::thread::sleep(Duration::from_millis(200));
            let c = start(config("c", 3, kind));
            c.dial(&a, "a");
            let answers: Vec<_> = (0..3)
                .map(|_| c.control.call("a", ECHO, b"x", PATIENCE))
                .collect();
            is_over.store(true, Ordering::Relaxed);
            // The flood may wait for room.
            let _ = raw.stream.shutdown(std::net::Shutdown::Both);
            for answer in answers {
                assert_eq!(answer.expect("answered"), b"x", "{kind:?}");
            }
        });
    }
}

/// Tickets of no use.
#[derive(Debug)]
struct Tickets;

impl rustls::server::ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        1
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        Some(vec![7; RECORD - 49])
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// A peer with a certificate that is dialled, and in TLS sends what gives no text: others go on meanwhile.
#[test]
fn tickets_without_end_hold_no_other_up() {
    for kind in BOTH {
        let authority = Authority::new();
        let mut server = authority.server();
        server.ticketer = Arc::new(Tickets);
        server.max_fragment_size = Some(RECORD + 5);
        server.send_tls13_tickets = 40_000;
        let echo = Services::new().on(ECHO, |call: &Incoming| Ok(call.payload.clone()));
        let answers = Answers {
            services: echo,
            channels: 3,
            ..Answers::default()
        };
        let a = start_with(with_tls("a", 1, kind, authority.tls(&authority)), answers);
        let c = tcp::start(with_tls("c", 3, kind, authority.tls(&authority)));
        tcp::dial(&c, &a, "a", PathWish::Tcp);
        assert!(c.control.call("a", ECHO, b"x", PATIENCE).is_ok());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound").to_string();
        std::thread::scope(|scope| {
            let (begun, begins) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().expect("dialled");
                stream.read_exact(&mut [0; 8]).expect("an opening");
                stream.write_all(b"rendezW\x01").expect("sent");
                let mut server =
                    rustls::ServerConnection::new(Arc::new(server)).expect("a connection");
                let mut took = Duration::ZERO;
                while server.is_handshaking() {
                    while server.wants_write() {
                        server.write_tls(&mut stream).expect("written");
                    }
                    server.read_tls(&mut stream).expect("read");
                    let began = Instant::now();
                    server.process_new_packets().expect("a client's");
                    took = began.elapsed();
                }
                begun.send(took).expect("awaited");
                while server.wants_write() && server.write_tls(&mut stream).is_ok() {}
            });
            let at = at.parse().expect("an address");
            a.control.dial("b", at, PATIENCE).expect("taken");
            // To make so many takes about as long as to read them.
            let long = begins.recv().expect("a flood");
            std::thread::sleep(long / 16);
            let began = Instant::now();
            let answer = c.control.call("a", ECHO, b"x", PATIENCE);
            assert_eq!(answer.expect("answered"), b"x", "{kind:?}");
            let waited = began.elapsed();
            assert!(waited < long / 4, "{kind:?}: {waited:?} of {long:?}");
        });
    }
}

/// Answers that come later than their requests are bounded as those that come at once.
#[test]
fn calls_whose_answers_are_not_read_end_the_connection() {
    let a = serve("a", RuntimeKind::Poll);
    let mut raw = connected_to(a.control.address(), 2);
    for request in 1..=400 {
        let call = proto::Call {
            version: 1,
            method: ECHO,
            request,
            deadline_ms: 10_000,
            trace: 0,
            payload: vec![0; 60 << 10],
        };
        if raw
            .stream
            .write_all(&bytes(2 + request, Body::Call(call)))
            .is_err()
        {
            break;
        }
        // Time for it to be carried out: more at once are refused for their number.
        std::thread::sleep(Duration::from_millis(2));
    }
    let Event::Up(_) = a.next() else {
        panic!("no peer")
    };
    let Ok(Event::Gone(_, PeerGone::ConnectionLost(status))) = a.events.recv_timeout(PATIENCE)
    else {
        panic!("it stays")
    };
    assert_eq!(status.reason(), "PEER_PROTOCOL");
}

/// No more answers are acknowledged at once than there can be.
#[test]
fn an_acknowledgement_has_its_bound() {
    let a = serve("a", RuntimeKind::Poll);
    let mut raw = connected_to(a.control.address(), 2);
    let done = |count| {
        Body::CallDone(proto::CallDone {
            requests: vec![7; count],
        })
    };
    raw.say(3, false, done(64));
    raw.say(4, false, Body::Ping(proto::Ping {}));
    let began = Instant::now();
    assert!(raw.hear().is_some() && began.elapsed() < PATIENCE);
    raw.say(5, false, done(65));
    assert!(raw.is_closed());
}

/// A peer that does not run, or does not answer: calls to it are given up, and no more than a window of them waits.
#[test]
fn calls_that_were_given_up_are_bounded() {
    for kind in BOTH {
        for size in [1, 60 << 10] {
            let a = serve("a", kind);
            let takes_calls = proto::Hello {
                abilities: u64::MAX,
                ..hello("b", "a", 2)
            };
            let mut raw = connected_as(a.control.address(), takes_calls);
            let Event::Up(_) = a.next() else {
                panic!("no peer")
            };
            let late = Duration::from_millis(1);
            for _ in 0..200 {
                let status = a.control.call("b", ECHO, &vec![0; size], late);
                assert_eq!(status.expect_err("late").reason(), "CALL_DEADLINE");
            }
            let last = a
                .control
                .begin_call("b", ECHO, b"last", 0, Duration::from_secs(10))
                .expect("taken");
            let mut calls = 0;
            loop {
                let envelope = raw.hear().expect("the connection stays");
                let Some(Body::Call(call)) = envelope.body else {
                    continue;
                };
                calls += 1;
                let is_last = call.payload == b"last";
                let reply = proto::CallReply {
                    payload: call.payload,
                    ..proto::CallReply::default()
                };
                raw.say(envelope.id, true, Body::CallReply(reply));
                if is_last {
                    break;
                }
            }
            assert_eq!(last.wait().expect("answered"), b"last");
            // A few may be given up only after the first answers have made room.
            assert!(calls < 100, "{calls} of {size} bytes on {kind:?}");
        }
    }
}
