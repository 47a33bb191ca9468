//! Connections that cannot be used, and addresses that come while they are wanted.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::engine::Engine;
use crate::engine::tests::{PATIENCE, Way, config, pair};
use crate::memory::{ArenaId, ArenaSegment as _, House, Pool, Tensor};

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The number of an engine's only connection.
fn connection(engine: &Engine) -> Option<PeerId> {
    engine.inner.wiring.book().connected.keys().next().copied()
}

/// Sends values under key after key until one comes: those that one side had when it was given up do not.
fn hands_over(from: &Engine, to: &Engine) {
    let mut round = 0;
    until("no value comes", || {
        round += 1;
        let [ours, theirs] = [from, to].map(|engine| engine.task().to_string());
        let key = Key::between(&ours, &theirs, &round.to_string()).unwrap();
        let sent = from.step(StepId(1)).send(&key, Tensor::scalar(1u8));
        let recv = to.step(StepId(1)).recv(&key).deadline(PATIENCE / 20);
        sent.is_ok() && recv.wait().is_ok()
    });
}

/// A segment that cannot be mapped.
fn nothing() -> SegmentOffer {
    SegmentOffer {
        arena: 0,
        segment: 99,
        len: 4096,
        fd: Arc::new(OwnedFd::from(File::open("/dev/null").unwrap())),
        kind: crate::ground::MemoryKind::Host,
        uuid: [0; 16],
    }
}

/// A peer whose memory cannot be mapped is given up: both sides hear of it, and the next connection carries values.
#[test]
fn peers_meet_again_after_a_segment_that_cannot_be_mapped() {
    for is_dialler in [true, false] {
        let (a, b) = pair(Way::Shm);
        hands_over(&a, &b);
        let before = [connection(&a), connection(&b)];
        let liar = if is_dialler { &a } else { &b };
        let control = liar.inner.control.get().unwrap();
        control.announce(nothing()).unwrap();
        for (engine, before) in [&a, &b].into_iter().zip(before) {
            let is_new = || connection(engine).is_some_and(|now| Some(now) != before);
            until("no other connection", is_new);
        }
        hands_over(&a, &b);
        hands_over(&b, &a);
    }
}

/// Between engines of one process no connection tells of memory that cannot be mapped: both are told, and what waits
/// for either ends.
#[test]
fn a_segment_that_cannot_be_mapped_by_loopback_loses_the_peer() {
    let (a, b) = pair(Way::Loopback);
    hands_over(&a, &b);
    let waiting = [("a", "b", &b), ("b", "a", &a)].map(|(from, to, engine)| {
        let key = Key::between(from, to, "never").unwrap();
        let recv = engine.step(StepId(2)).recv(&key);
        recv.deadline(PATIENCE).start().unwrap()
    });
    for engine in [&a, &b] {
        let waits = || engine.stats().iter().any(|shard| shard.waiting > 0);
        until("a receive does not wait", waits);
    }
    a.inner.tell_locals(&[nothing()]);
    for recv in waiting {
        let status = recv.wait().unwrap_err();
        assert_eq!(status.reason(), catalogue::PEER_LOST, "{status}");
        let what = format!("segment 99 of arena 0 of {} could not be mapped", a.task());
        assert!(status.message().contains(&what), "{status}");
    }
    a.connect_local(&b).unwrap();
    hands_over(&a, &b);
    hands_over(&b, &a);
}

/// A peer that breaks the protocol may not end the connection as a correct one does: we do, and meet it again.
#[test]
fn the_connection_of_a_peer_that_breaks_the_protocol_ends() {
    let (a, b) = pair(Way::Shm);
    hands_over(&a, &b);
    let before = connection(&a).unwrap();
    let status = Status::of(catalogue::FRAME_MALFORMED, "a frame came before the hello");
    ShardObserver::new(&a.inner.wiring, 0).violated(b.task(), before.0, &status);
    until("no other connection", || {
        connection(&a).is_some_and(|now| now != before)
    });
    hands_over(&a, &b);
}

/// A task is wanted and its address told at one moment, again and again: it is dialled, whichever comes first.
#[test]
fn no_dial_is_lost_between_a_want_and_an_address() {
    let mut config = config("/job:a/task:0");
    config.connect_timeout = Duration::from_millis(50);
    let engine = Engine::start(config).unwrap();
    let wiring = &engine.inner.wiring;
    let nowhere: Address = "unix:@rendez-nobody-listens-here".parse().unwrap();
    let tasks: Vec<_> = (0..10_000)
        .map(|index| TaskName::new("wanted", 0, index).unwrap())
        .collect();
    let [told, wanted] = [AtomicU32::new(0), AtomicU32::new(0)];
    let meet = |mine: &AtomicU32, other: &AtomicU32, at: u32| {
        mine.store(at, Ordering::SeqCst);
        let mut spins = 0;
        while other.load(Ordering::SeqCst) < at {
            spins += 1;
            match spins < 1_000 {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (at, task) in (1..).zip(&tasks) {
                meet(&wanted, &told, at);
                wiring.want(task);
            }
        });
        for (at, task) in (1..).zip(&tasks) {
            meet(&told, &wanted, at);
            // At every moment of the other thread's way.
            (0..at % 256).for_each(|_| std::hint::spin_loop());
            wiring.add_peer(task.clone(), nowhere.clone());
        }
    });
    assert_eq!(wiring.book().wanted, BTreeSet::new());
}

/// Who waits without a bound says so by the greatest duration there is, which no clock can add.
#[test]
fn a_peer_is_reached_with_boundless_patience() {
    let (a, b) = pair(Way::Shm);
    let reached = a.reach(b.task(), Duration::MAX).unwrap();
    assert_eq!(reached.task, *b.task());
    let address = b.address().unwrap();
    assert_eq!(a.who_listens(address, Duration::MAX).unwrap(), *b.task());
}

/// Meetings that fail leave nothing behind that grows with them.
#[test]
fn failed_meetings_leave_little() {
    let engine = Engine::start(config("/job:a/task:0")).unwrap();
    let wiring = &engine.inner.wiring;
    let status = Status::of(catalogue::PEER_LOST, "it cannot be wired");
    for index in 0..3_000 {
        wiring.not_reached(&TaskName::new("visitor", 0, index).unwrap(), &status);
    }
    let known = TaskName::new("known", 0, 0).unwrap();
    wiring.add_peer(
        known.clone(),
        "unix:@rendez-no-task-listens-here".parse().unwrap(),
    );
    wiring.not_reached(&known, &status);
    let book = wiring.book();
    assert!(book.unreached.len() <= crate::ground::limits::PEERS_MAX + 1);
    assert!(book.unreached.contains_key(&known));
    drop(book);
    let hello = PeerHello {
        task: known.to_string(),
        incarnation: crate::ground::Incarnation(2),
        shards: 1,
        poll_policy: crate::control::PollPolicy::Park,
        limits: crate::control::PeerLimits::default(),
        features: Vec::new(),
        abilities: 0,
        lacks: Vec::new(),
        no_shm: String::new(),
        user: None,
        process: None,
    };
    wiring.make_link(&hello).unwrap();
    assert_eq!(wiring.book().links.len(), 1);
    wiring.dial_failed(&hello.task, status.clone(), status);
    assert!(wiring.book().links.is_empty());
}

/// An arena may grow after the control plane has greeted its first peer and before the engine has hold of the control
/// plane: nothing can be announced then.
#[test]
fn memory_that_was_new_before_the_control_plane_was_at_hand_is_told() {
    let (a, b) = pair(Way::Shm);
    hands_over(&a, &b);
    let wiring = &a.inner.wiring;
    let pool = Pool::of(House::new(), ArenaId(99), a.inner.config.arena).unwrap();
    let segment = Arc::clone(&pool.segments()[0]);
    let file = rustix::fs::fstat(&segment.export().fd)
        .unwrap()
        .st_ino
        .to_string();
    let times_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_it = |line: &&str| line.split_ascii_whitespace().nth(4) == Some(&*file);
        maps.lines().filter(is_it).count()
    };
    let before = times_mapped();
    wiring.book().segments.push((99, segment));
    wiring.control_is_up();
    until("the peer was not told", || times_mapped() > before);
    hands_over(&a, &b);
}

/// A peer may be greeted before the engine has hold of the control plane, and be of no use: it is hung up on later.
#[test]
fn a_connection_of_no_use_before_the_control_plane_was_at_hand_is_ended() {
    let (a, b) = pair(Way::Shm);
    hands_over(&a, &b);
    let before = connection(&a);
    let useless = (before.unwrap(), "a test has no use for it".to_owned());
    let wiring = &a.inner.wiring;
    wiring.book().useless.push(useless);
    wiring.control_is_up();
    let is_new = || connection(&a).is_some_and(|now| Some(now) != before);
    until("no other connection", is_new);
    hands_over(&a, &b);
}

/// A path may be lost before the engine has hold of the control plane: its peers are not forgotten.
#[test]
fn peers_of_a_path_that_is_left_before_the_control_plane_was_at_hand_are_noted() {
    let (a, b) = pair(Way::Shm);
    hands_over(&a, &b);
    let peer = connection(&a).unwrap();
    let by_shm = a.inner.wiring.book().connected[&peer].clone();
    let (early, _other) = pair(Way::Loopback);
    let wiring = &early.inner.wiring;
    wiring.book().connected.insert(peer, by_shm);
    wiring.leave_path(Path::Verbs, "a test leaves another path");
    assert_eq!(wiring.book().useless, []);
    wiring.leave_path(Path::Shm, "a test leaves it");
    let noted = (peer, "a test leaves it".to_owned());
    assert_eq!(wiring.book().useless, [noted]);
    wiring.book().connected.clear();
}

/// An address that turns out wrong while a key waits for its task is corrected, and the receive hears nothing of it.
#[test]
fn a_corrected_address_is_dialled_at_once() {
    let [a, b] = ["a", "b"].map(|job| {
        let mut config = config(&format!("/job:{job}/task:0"));
        config.connect_timeout = 2 * PATIENCE;
        Engine::start(config).unwrap()
    });
    let nowhere = "unix:@rendez-no-task-listens-here-either".parse().unwrap();
    a.add_peer(b.task().clone(), nowhere);
    let key = Key::between("b", "a", "edge").unwrap();
    let sent = b.step(StepId(1)).send(&key, Tensor::scalar(7u8));
    sent.unwrap();
    let step = a.step(StepId(1));
    let waits = step.recv(&key).deadline(PATIENCE / 2).start().unwrap();
    until("it is not dialled", || {
        a.inner.wiring.book().awaited.contains_key(b.task())
    });
    std::thread::sleep(Duration::from_millis(100));
    a.add_peer(b.task().clone(), b.address().unwrap().clone());
    waits.wait().unwrap();
}

/// A peer that was lost and is said to be elsewhere is dialled there.
#[test]
fn a_lost_peer_is_dialled_where_it_is_said_to_be_now() {
    let (a, b) = pair(Way::Shm);
    hands_over(&a, &b);
    let before = connection(&a);
    let nowhere = "unix:@rendez-no-task-listens-here-any-more";
    a.add_peer(b.task().clone(), nowhere.parse().unwrap());
    a.inner.wiring.break_connections();
    until("the connection stays", || connection(&a).is_none());
    a.add_peer(b.task().clone(), b.address().unwrap().clone());
    let is_new = || connection(&a).is_some_and(|now| Some(now) != before);
    until("no other connection", is_new);
    hands_over(&a, &b);
}

/// Set for the child of the test that needs one.
const CHILD: &str = "RENDEZ_TEST_NO_ROOM_TO_MAP";

/// Engines of which one cannot map the other's memory are as if they had never been connected.
#[test]
fn a_connection_within_the_process_that_fails_leaves_nothing() {
    if std::env::var_os(CHILD).is_none() {
        let name = "a_connection_within_the_process_that_fails_leaves_nothing";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("engine::wiring::tests::{name}")])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        return;
    }
    let [a, b] = ["a", "b"].map(|job| {
        let mut config = config(&format!("/job:{job}/task:0"));
        config.control = false;
        config.arena.segment_bytes = 2 << 30;
        Engine::start(config).unwrap()
    });
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let limit = getrlimit(Resource::As);
    let no_room = Rlimit {
        current: Some(pages * rustix::param::page_size() as u64 + (1 << 30)),
        ..limit
    };
    setrlimit(Resource::As, no_room).unwrap();
    let refused = a.connect_local(&b);
    setrlimit(Resource::As, limit).unwrap();
    refused.unwrap_err();
    for engine in [&a, &b] {
        let locals = engine.inner.locals.lock().unwrap();
        assert_eq!(locals.len(), 0);
    }
    a.connect_local(&b).unwrap();
    hands_over(&a, &b);
}

/// No task listens at the address of one, and that of the other is not known.
#[test]
fn who_waits_in_vain_hears_why_the_peer_is_not_there() {
    let mut settings = config("/job:b/task:0");
    settings.connect_timeout = Duration::from_millis(50);
    let engine = Engine::start(settings).unwrap();
    let named: TaskName = TaskName::parse("/job:c/task:0").unwrap();
    engine.add_peer(
        named.clone(),
        "unix:@rendez-nobody-listens-here".parse().unwrap(),
    );
    // Its dial was given up.
    let refused = engine.reach(&named, Duration::ZERO).unwrap_err();
    let where_it_is = "unix:@rendez-nobody-listens-here: Connection refused";
    assert!(refused.message().contains(where_it_is), "{refused}");
    let from = |job: &str| {
        let key = Key::between(job, "b", "never").unwrap();
        engine.step(StepId(1)).recv(&key)
    };
    for (job, why) in [
        ("a", "this task does not know where it listens"),
        ("c", "[CONNECTION_REFUSED]"),
    ] {
        let late = from(job).deadline(Duration::from_millis(1)).wait();
        let late = late.unwrap_err();
        assert_eq!(late.reason(), catalogue::DEADLINE);
        let absent = format!("/job:{job}/replica:0/task:0 is not connected: ");
        let said = late.message();
        assert!(said.contains(&absent) && said.contains(why), "{late}");
    }
    let given_up = from("a").wait().unwrap_err();
    assert_eq!(given_up.reason(), catalogue::CONNECT_DEADLINE);
    let why = "this task does not know where it listens";
    assert!(given_up.message().contains(why), "{given_up}");
}

/// Long before it is given up.
#[test]
fn a_dial_that_goes_on_says_what_its_last_attempt_came_to() {
    let mut settings = config("/job:b/task:0");
    settings.connect_timeout = 100 * PATIENCE;
    let engine = Engine::start(settings).unwrap();
    let named: TaskName = TaskName::parse("/job:c/task:0").unwrap();
    engine.add_peer(
        named.clone(),
        "unix:@rendez-nobody-listens-here".parse().unwrap(),
    );
    engine.connect(&named);
    until("no attempt is told", || {
        let why = engine.inner.wiring.why_absent(&named);
        why.is_some_and(|why| why.contains("[CONNECTION_REFUSED]"))
    });
}

/// Another attempt was greeted, and its wiring has failed.
#[test]
fn the_newest_reason_why_a_peer_is_absent_is_told() {
    let engine = Engine::start(config("/job:b/task:0")).unwrap();
    let wiring = &engine.inner.wiring;
    let named: TaskName = TaskName::parse("/job:c/task:0").unwrap();
    let address = "unix:@rendez-nobody-listens-here".parse().unwrap();
    engine.add_peer(named.clone(), address);
    let of = |reason| Status::of(reason, "why");
    wiring.tried(&named.to_string(), &of(catalogue::CONNECTION_REFUSED));
    wiring.not_reached(&named, &of(catalogue::PEER_LOST));
    assert_eq!(wiring.why_absent(&named).unwrap(), "why [PEER_LOST]");
}

/// That cannot change by waiting.
#[test]
fn who_demands_tcp_waits_for_no_task_that_is_known_by_a_unix_address() {
    let mut settings = config("/job:a/task:0");
    settings.require = crate::engine::Require::Tcp;
    let engine = Engine::start(settings).unwrap();
    let named: TaskName = TaskName::parse("/job:b/task:0").unwrap();
    engine.add_peer(
        named.clone(),
        "unix:@rendez-nobody-listens-here".parse().unwrap(),
    );
    let key = Key::between("b", "a", "never").unwrap();
    let recv = engine.step(StepId(1)).recv(&key).deadline(PATIENCE);
    let status = recv.wait().unwrap_err();
    assert_eq!(status.reason(), catalogue::PATH_REFUSED, "{status}");
}

/// A dial of the peer that had begun before it ends as the receive begins: that is no end of the receive's own time.
#[test]
fn a_receive_that_begins_as_a_dial_ends_has_its_whole_time() {
    let mut settings = config("/job:a/task:0");
    settings.connect_timeout = 100 * PATIENCE;
    let a = Engine::start(settings).unwrap();
    let b = Engine::start(config("/job:b/task:0")).unwrap();
    let key = Key::between("b", "a", "late").unwrap();
    let waiting = a.step(StepId(1)).recv(&key).start().unwrap();
    until("no receive waits", || {
        a.stats().iter().any(|stats| stats.waiting > 0)
    });
    let late = Status::of(catalogue::CONNECT_DEADLINE, "not in time");
    let wiring = &a.inner.wiring;
    wiring.given_up(&b.task().to_string(), &late, &late);
    a.connect_local(&b).unwrap();
    let sent = b.step(StepId(1)).send(&key, Tensor::scalar(7u8));
    sent.unwrap();
    let received = waiting.wait().unwrap();
    assert_eq!(received.tensor.host().unwrap(), [7]);
}
