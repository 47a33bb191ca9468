//! Tasks that are dialled by a name, and name servers that are late, silent, or out of date.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rendez::control::{Address, ControlConfig, PathWish, PeerGone};
use rendez::ground::Incarnation;
use rendez::ground::limits::ERRANDS_MAX;

use super::relay::Relay;
use super::support::{BOTH, PATIENCE, Task};
use super::tcp::{address, assert_joined, open, secret, start};

/// As `address`, by the name `host`.
fn by_name(host: &str, address: &Address) -> Address {
    let Address::Tcp { port, .. } = address else {
        panic!("{address} is no TCP address")
    };
    let (host, port) = (host.to_owned(), *port);
    Address::Tcp { host, port }
}

fn dial(from: &Task, name: &str, at: &Address, patience: Duration) {
    let dialled = from
        .control
        .dial_by(name, at.clone(), PathWish::Tcp, patience);
    dialled.expect("taken");
}

fn loopback(last: u8) -> io::Result<Vec<SocketAddr>> {
    Ok(vec![SocketAddr::from(([127, 0, 0, last], 0))])
}

/// One whose steps have little time each, so that a name takes much longer.
fn hurried(task: &str, incarnation: u64, kind: rendez::control::RuntimeKind) -> ControlConfig {
    let mut config = open(task, incarnation, kind);
    config.reach_min = Duration::from_millis(5);
    config.backoff_max = Duration::from_millis(5);
    config
}

/// A look-up that takes longer than any attempt: its answer counts all the same, and it is asked for once.
#[test]
fn a_name_that_is_found_late_is_dialled_then() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    for kind in BOTH {
        ASKED.store(0, Ordering::SeqCst);
        let mut late = hurried("a", 1, kind);
        late.greet_deadline = Duration::from_millis(800);
        late.resolve = |host| {
            assert_eq!(host, "late.test");
            ASKED.fetch_add(1, Ordering::SeqCst);
            // Longer than a try to reach an address, and than a greeting.
            std::thread::sleep(Duration::from_millis(900));
            loopback(1)
        };
        let (a, b) = (start(late), start(open("b", 2, kind)));
        dial(&a, "b", &by_name("late.test", &address(&b)), PATIENCE);
        assert_joined(a.up(), b.up());
        assert_eq!(ASKED.load(Ordering::SeqCst), 1);
    }
}

/// A name server that never answers is named; one look-up of a host is under way at a time; and a task that is known by
/// an address is reached beside any number of them.
#[test]
fn a_silent_name_server_holds_up_no_other_dial() {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    for kind in BOTH {
        IS_OVER.store(false, Ordering::SeqCst);
        ASKED.store(0, Ordering::SeqCst);
        let mut config = hurried("a", 1, kind);
        config.greet_deadline = Duration::from_millis(10);
        config.resolve = |_| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            while !IS_OVER.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(io::Error::other("no such name"))
        };
        let a = start(config);
        let silent = |host: &str| by_name(host, a.control.tcp_address().expect("it listens"));
        for name in ["c", "d"] {
            dial(&a, name, &silent("one.test"), Duration::from_millis(500));
        }
        for _ in ["c", "d"] {
            let status = a.dial_failed();
            assert_eq!(status.reason(), "CONNECT_DEADLINE");
            let words = "one.test is still being looked up";
            assert!(status.message().contains(words), "{status}");
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 1, "{kind:?}");
        let others = 2 * ERRANDS_MAX;
        for number in 0..others {
            let (name, host) = (format!("c{number}"), format!("{number}.test"));
            dial(&a, &name, &silent(&host), PATIENCE);
        }
        let began = Instant::now();
        while ASKED.load(Ordering::SeqCst) < ERRANDS_MAX {
            assert!(began.elapsed() < PATIENCE, "{kind:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let b = start(open("b", 2, kind));
        dial(&a, "b", &address(&b), PATIENCE / 2);
        assert_joined(a.up(), b.up());
        assert_eq!(ASKED.load(Ordering::SeqCst), ERRANDS_MAX, "{kind:?}");
        // First, or its dials would ask again, also while the next kind counts.
        drop(a);
        IS_OVER.store(true, Ordering::SeqCst);
    }
}

/// The way to a peer breaks, and with it the way to the name server, which stays broken: the peer is met again where it
/// was.
#[test]
fn a_lost_peer_is_met_again_without_its_name() {
    static IS_LOST: AtomicBool = AtomicBool::new(false);
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    for kind in BOTH {
        IS_LOST.store(false, Ordering::SeqCst);
        IS_OVER.store(false, Ordering::SeqCst);
        let quick = |task, incarnation| {
            let mut config = hurried(task, incarnation, kind);
            config.ping_every = Duration::from_millis(30);
            config.doubtful_after = Duration::from_millis(100);
            config.lost_after = Duration::from_millis(400);
            config.greet_deadline = Duration::from_millis(500);
            config.resolve = |_| {
                let is_lost = IS_LOST.load(Ordering::SeqCst);
                while is_lost && !IS_OVER.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                loopback(1)
            };
            start(config)
        };
        let (a, b) = (quick("a", 1), quick("b", 2));
        let relay = Relay::to(&address(&b));
        let at = by_name("b.test", &relay.address);
        dial(&a, "b", &at, PATIENCE);
        let first = (a.up(), b.up());
        IS_LOST.store(true, Ordering::SeqCst);
        relay.cut(true);
        for task in [&a, &b] {
            assert!(matches!(task.gone(), (_, PeerGone::ConnectionLost(_))));
        }
        dial(&a, "b", &at, PATIENCE);
        relay.cut(false);
        let again = (a.up(), b.up());
        IS_OVER.store(true, Ordering::SeqCst);
        assert_ne!((first.0.peer, first.1.peer), (again.0.peer, again.1.peer));
        assert_joined(again.0, again.1);
    }
}

/// Where a task was, another cluster's listens now, or another job's of the same name. Neither its no nor its yes is
/// the task's: once the name is known, the dial follows.
#[test]
fn a_task_that_has_moved_is_found_by_its_name() {
    static HAS_MOVED: AtomicBool = AtomicBool::new(false);
    static IS_KNOWN: AtomicBool = AtomicBool::new(false);
    let others = || [Some(secret("one")), None];
    for (kind, secret) in BOTH
        .into_iter()
        .flat_map(|kind| others().map(|secret| (kind, secret)))
    {
        HAS_MOVED.store(false, Ordering::SeqCst);
        IS_KNOWN.store(false, Ordering::SeqCst);
        let mut config = hurried("a", 1, kind);
        config.resolve = |_| {
            let has_moved = HAS_MOVED.load(Ordering::SeqCst);
            while has_moved && !IS_KNOWN.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            loopback(1 + u8::from(has_moved))
        };
        let a = start(config);
        let b = start(open("b", 2, kind));
        let place = address(&b);
        let at = by_name("b.test", &place);
        dial(&a, "b", &at, PATIENCE);
        let first = a.up();
        b.stop();
        assert_eq!(a.gone().0, first.peer);
        drop(b);
        let listens_at = |task: &str, incarnation, place: &Address| {
            let mut config = open(task, incarnation, kind);
            config.tcp_listen = Some(place.clone());
            config
        };
        let mut other = listens_at("b", 3, &place);
        other.secret = secret;
        let other = start(other);
        let b = start(listens_at("b", 4, &by_name("127.0.0.2", &place)));
        HAS_MOVED.store(true, Ordering::SeqCst);
        dial(&a, "b", &at, PATIENCE);
        // It has been refused there before its name is known.
        std::thread::sleep(Duration::from_millis(50));
        let nothing = a.events.recv_timeout(Duration::ZERO);
        assert_eq!(nothing.err(), Some(RecvTimeoutError::Timeout));
        IS_KNOWN.store(true, Ordering::SeqCst);
        assert_eq!(a.up().incarnation, Incarnation(4));
        assert_eq!(b.up().task, "a");
        assert!(other.events.try_recv().is_err());
    }
}
