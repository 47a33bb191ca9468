//! Two engines of one process over RDMA: the real greeting and the real wiring, over the library that is played in
//! memory.

use std::time::{Duration, Instant};

use rendez::control::Path;
use rendez::engine::{Config, Engine, Require};
use rendez::fabric::verbs::sys;
use rendez::ground::{DType, Key, Shape, StepId, catalogue};
use rendez::memory::Tensor;

use crate::shim;

const PATIENCE: Duration = Duration::from_secs(10);

fn config(task: &str, device: &str) -> Config {
    let mut config = Config::new(task);
    config.shards = 2;
    config.share_cores = true;
    config.arena.segment_bytes = 4 << 20;
    config.listen = Some("127.0.0.1:0".parse().unwrap());
    config.require = Require::Verbs;
    config.verbs.device = Some(device.into());
    config.verbs.table = Some(shim::table());
    config
}

/// Two engines on two devices, of which the first knows where the second listens.
fn pair() -> (Engine, Engine) {
    started(
        config("/job:a/task:0", "shim0"),
        config("/job:b/task:0", "shim1"),
    )
}

fn started(one: Config, other: Config) -> (Engine, Engine) {
    let (a, b) = (Engine::start(one).unwrap(), Engine::start(other).unwrap());
    a.add_peer(b.task().clone(), b.tcp_address().unwrap().clone());
    (a, b)
}

/// Waits until it is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the way to the only peer is TCP.
fn await_tcp(engine: &Engine) {
    let until = Instant::now() + PATIENCE;
    while engine
        .connected()
        .first()
        .is_none_or(|way| way.path != Path::Tcp)
    {
        assert!(Instant::now() < until, "{:?}", engine.connected());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Hands `len` bytes over from `a` to `b`, and looks at them.
fn hand_over(a: &Engine, b: &Engine, edge: &str, len: usize) {
    let [from, to] = [a, b].map(|engine| engine.task().to_string());
    let key = Key::between(&from, &to, edge).unwrap();
    let mut builder = a.tensor(DType::U8, &[len as u64]).unwrap();
    for (at, byte) in builder.bytes_mut().iter_mut().enumerate() {
        *byte = (at * 31 + len) as u8;
    }
    let tensor = builder.finish();
    let want = tensor.host().unwrap().to_vec();
    a.step(StepId(7)).send(&key, tensor).unwrap();
    let got = b.step(StepId(7)).recv(&key).deadline(PATIENCE).wait();
    assert_eq!(got.unwrap().tensor.host().unwrap(), want, "{edge}");
}

/// The same from `b` to `a`.
fn hand_back(a: &Engine, b: &Engine, edge: &str, len: usize) {
    let key = Key::between("b", "a", edge).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
    let shape = Shape::new(&[len as u64]).unwrap();
    let tensor = Tensor::from_vec(bytes.clone(), shape).unwrap();
    b.step(StepId(7)).send(&key, tensor).unwrap();
    let got = a.step(StepId(7)).recv(&key).deadline(PATIENCE).wait();
    assert_eq!(got.unwrap().tensor.host().unwrap(), bytes, "{edge}");
}

#[test]
fn small_and_large_tensors_are_handed_over() {
    shim::reset();
    let (a, b) = pair();
    for (round, len) in [1usize, 100, 1000, 1100, 70_000, 3_000_000]
        .into_iter()
        .enumerate()
    {
        hand_over(&a, &b, &format!("edge{round}"), len);
    }
    for engine in [&a, &b] {
        let connected = engine.connected();
        assert_eq!(connected.len(), 1);
        assert_eq!(connected[0].path, Path::Verbs);
        assert!(
            connected[0].why.starts_with("RDMA from shim"),
            "{}",
            connected[0].why
        );
        assert!(!connected[0].fell_back);
    }
    assert!(shim::seen("WRITE_WITH_IMM") > 0, "large ones are written");
    stop((a, b));
}

#[test]
fn settings_reach_the_device() {
    shim::reset();
    let with = |mut config: Config| {
        config.verbs.mtu = Some(512);
        config.verbs.pkey_index = 1;
        config.verbs.service_level = 5;
        config.verbs.traffic_class = 106;
        config.verbs.gid_index = Some(0);
        config.verbs.port = Some(1);
        config.verbs.timeout = 16;
        config.verbs.retry_count = 7;
        config.verbs.inline_bytes = 128;
        config
    };
    // The other side has a smaller MTU yet: the smaller one counts.
    let mut other = with(config("/job:b/task:0", "shim1"));
    other.verbs.mtu = Some(256);
    let (a, b) = started(with(config("/job:a/task:0", "shim0")), other);
    hand_over(&a, &b, "edge", 100_000);
    for (what, value) in [
        ("mtu", 1),
        ("pkey", 1),
        ("sl", 5),
        ("class", 106),
        ("gid", 0),
        ("port", 1),
        ("timeout", 16),
        ("retry", 7),
        ("inline", 128),
    ] {
        assert_eq!(shim::told(what), Some(value), "{what}");
    }
    a.shutdown(PATIENCE);
    b.shutdown(PATIENCE);
}

/// The depth that both sides use is the smaller one, and the longest frames still pass it.
#[test]
fn the_smallest_depth_carries_everything() {
    shim::reset();
    let mut shallow = config("/job:b/task:0", "shim1");
    shallow.verbs.depth = 32;
    let mut one = config("/job:a/task:0", "shim0");
    one.inline_max = 4096;
    shallow.inline_max = 4096;
    let (a, b) = started(one, shallow);
    for round in 0..50 {
        hand_over(&a, &b, &format!("edge{round}"), 4000);
        hand_back(&a, &b, &format!("back{round}"), 4000);
    }
    a.shutdown(PATIENCE);
    b.shutdown(PATIENCE);
}

/// Where every queue pair is taken, the next peer goes by TCP and hears which setting is in the way.
#[test]
fn queue_pairs_are_limited_by_their_setting() {
    shim::reset();
    let alone = |task: &str, device: &str| {
        let mut config = elsewhere(config(task, device));
        config.shards = 1;
        config.verbs.queue_pairs = 1;
        config
    };
    let (a, b) = started(
        alone("/job:a/task:0", "shim0"),
        alone("/job:b/task:0", "shim1"),
    );
    hand_over(&a, &b, "edge", 100);
    assert_eq!(a.connected()[0].path, Path::Verbs);
    let c = Engine::start(alone("/job:c/task:0", "shim1")).unwrap();
    a.add_peer(c.task().clone(), c.tcp_address().unwrap().clone());
    hand_over(&a, &c, "beyond", 100);
    let ways = a.connected();
    let way = ways.iter().find(|way| way.task == *c.task()).unwrap();
    assert_eq!(way.path, Path::Tcp, "{}", way.why);
    assert!(way.why.contains("queue pairs"), "{}", way.why);
    c.shutdown(PATIENCE);
    drop(c);
    stop((a, b));
}

/// Of several devices each shard uses one, and one that is not named is left alone.
#[test]
fn devices_are_those_that_are_named() {
    for (named, opened) in [("shim0,shim1", 2), ("shim1", 1)] {
        shim::reset();
        let a = Engine::start(config("/job:a/task:0", named)).unwrap();
        assert_eq!(shim::seen("ibv_alloc_pd"), opened, "{named}");
        a.shutdown(PATIENCE);
    }
}

/// The same task on a machine of its own, which demands nothing.
fn elsewhere(mut config: Config) -> Config {
    config.require = Require::None;
    config.boot = Some(config.task.clone());
    config
}

/// Two engines that demand nothing and are on two machines.
fn apart(change: impl Fn(&mut Config, &mut Config)) -> (Engine, Engine) {
    let mut one = elsewhere(config("/job:a/task:0", "shim0"));
    let mut other = elsewhere(config("/job:b/task:0", "shim1"));
    change(&mut one, &mut other);
    started(one, other)
}

fn stop((a, b): (Engine, Engine)) {
    a.shutdown(PATIENCE);
    b.shutdown(PATIENCE);
    drop((a, b));
    // A thread that was just told something may be the last that has an engine.
    let until = Instant::now() + PATIENCE;
    while shim::live() != 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(shim::live(), 0, "nothing is left behind");
}

#[test]
fn two_machines_with_rdma_use_it_unasked() {
    shim::reset();
    let (a, b) = apart(|_, _| {});
    hand_over(&a, &b, "edge", 100);
    assert_eq!(a.connected()[0].path, Path::Verbs);
    assert!(a.fallbacks().is_empty() && b.fallbacks().is_empty());
    stop((a, b));
}

#[test]
fn switched_off_on_one_side_leaves_the_other_idle() {
    shim::reset();
    let (a, b) = apart(|_, other| other.verbs.enabled = false);
    hand_over(&a, &b, "edge", 100);
    for engine in [&a, &b] {
        let way = &engine.connected()[0];
        assert_eq!(way.path, Path::Tcp);
        assert!(way.why.contains("switched off"), "{}", way.why);
    }
    // A task that has it is told that it stands idle; a task that switched it off is not.
    let fallback = &a.fallbacks()[0];
    assert_eq!(
        (fallback.from, fallback.to, fallback.count),
        (Path::Verbs, Path::Tcp, 1)
    );
    assert!(b.fallbacks().is_empty());
    stop((a, b));
}

/// Each failure of the bootstrap means TCP, with the reason on both sides.
#[test]
fn a_bootstrap_that_fails_falls_back_to_tcp_and_says_why() {
    let calls = [
        ("ibv_create_qp", "ibv_create_qp on shim"),
        ("modify INIT", "ibv_modify_qp(INIT) on shim"),
        ("modify RTR", "ibv_modify_qp(RTR) on shim"),
        ("modify RTS", "ibv_modify_qp(RTS) on shim"),
        ("ibv_post_send", "does not come through"),
        ("cut", "does not come through"),
    ];
    for (call, why) in calls {
        // The first to fail is the dialler's or the acceptor's: two channels on each side.
        for after in [0, 2] {
            shim::reset();
            let (a, b) = apart(|_, _| {});
            match call {
                "cut" => shim::cut(),
                // Asked again for less when it fails.
                "ibv_create_qp" => shim::fail_calls(call, libc::ENOMEM),
                call => shim::fail_call(call, libc::ENOMEM, after),
            }
            hand_over(&a, &b, "edge", 100_000);
            let ways = [&a.connected()[0], &b.connected()[0]].map(Clone::clone);
            for way in &ways {
                assert_eq!(way.path, Path::Tcp, "{call} after {after}: {}", way.why);
                assert!(way.why.contains(why), "{call} after {after}: {}", way.why);
                assert!(way.fell_back, "{call} after {after}");
            }
            assert_eq!(a.fallbacks()[0].from, Path::Verbs);
            stop((a, b));
        }
    }
}

/// Where RDMA is demanded, nothing else is taken, and the status says what is in the way.
#[test]
fn where_it_is_demanded_there_is_an_error_instead() {
    shim::reset();
    // No such device: the engine does not start.
    let status = Engine::start(config("/job:a/task:0", "shim7")).unwrap_err();
    assert_eq!(status.reason(), catalogue::VERBS_NO_DEVICE);
    // The peer has none: no connection.
    let mut other = elsewhere(config("/job:b/task:0", "shim1"));
    other.verbs.enabled = false;
    let (a, b) = started(config("/job:a/task:0", "shim0"), other);
    let key = Key::between("b", "a", "edge").unwrap();
    let status = a.step(StepId(7)).recv(&key).wait().unwrap_err();
    assert_eq!(status.reason(), catalogue::PATH_REFUSED, "{status}");
    assert!(status.message().contains("switched off"), "{status}");
    assert!(a.connected().is_empty() && b.connected().is_empty());
    stop((a, b));
    // The wire is dead: tried until the deadline.
    shim::reset();
    let mut one = config("/job:a/task:0", "shim0");
    one.connect_timeout = Duration::from_secs(2);
    let (a, b) = started(one, config("/job:b/task:0", "shim1"));
    shim::cut();
    let status = a.step(StepId(7)).recv(&key).wait().unwrap_err();
    assert_eq!(status.reason(), catalogue::CONNECT_DEADLINE, "{status}");
    assert!(status.message().contains("RDMA is demanded"), "{status}");
    stop((a, b));
}

/// Locked memory may be limited: at the start, or when an arena grows.
#[test]
fn memory_that_cannot_be_registered_means_tcp() {
    shim::reset();
    // Each shard's port registers memory for copies first; then come three segments.
    shim::fail_call("ibv_reg_mr_iova2", libc::ENOMEM, 3);
    let (a, b) = apart(|_, _| {});
    hand_over(&a, &b, "edge", 100_000);
    let way = &b.connected()[0];
    assert_eq!(way.path, Path::Tcp);
    assert!(
        way.why.contains("ibv_reg_mr") && way.why.contains("ulimit"),
        "{}",
        way.why
    );
    stop((a, b));

    shim::reset();
    let (a, b) = apart(|_, _| {});
    hand_over(&a, &b, "edge", 100);
    assert_eq!(b.connected()[0].path, Path::Verbs);
    shim::fail_call("ibv_reg_mr_iova2", libc::ENOMEM, 0);
    // More than a segment holds: an arena grows.
    let held: Vec<_> = (0..4)
        .map(|_| a.tensor(DType::U8, &[3 << 20]).unwrap())
        .collect();
    await_tcp(&a);
    drop(held);
    hand_over(&a, &b, "later", 100_000);
    assert!(
        a.connected()[0].why.contains("ibv_reg_mr"),
        "{}",
        a.connected()[0].why
    );
    stop((a, b));
}

/// Memory that cannot be registered while a peer is being greeted, and is not connected yet.
#[test]
fn a_greeting_under_way_when_rdma_is_given_up_does_not_stay_on_it() {
    shim::reset();
    let (a, b) = apart(|_, _| {});
    // Nothing proves the way until it is let through.
    shim::delay(Some(0));
    a.connect(b.task());
    until("queue pairs have their peers", || {
        shim::seen("modify RTS") > 0
    });
    shim::fail_call("ibv_reg_mr_iova2", libc::ENOMEM, 0);
    let held: Vec<_> = (0..4)
        .map(|_| a.tensor(DType::U8, &[3 << 20]).unwrap())
        .collect();
    until("it is given up", || !shim::is_fault_pending());
    // Those that are connected are hung up on.
    std::thread::sleep(Duration::from_millis(50));
    shim::delay(None);
    await_tcp(&a);
    hand_over(&a, &b, "after", 100_000);
    drop(held);
    stop((a, b));
}

/// An arena that grows is registered while tensors go on, and what lies there is written without a copy.
#[test]
fn a_growing_arena_is_registered() {
    shim::reset();
    let (a, b) = pair();
    hand_over(&a, &b, "first", 100);
    let before = shim::seen("ibv_reg_mr_iova2");
    let held: Vec<_> = (0..4)
        .map(|_| a.tensor(DType::U8, &[3 << 20]).unwrap())
        .collect();
    for round in 0..8 {
        hand_over(&a, &b, &format!("edge{round}"), 2 << 20);
    }
    assert!(
        shim::seen("ibv_reg_mr_iova2") > before,
        "the arena has grown"
    );
    drop(held);
    stop((a, b));
}

/// A completion in error ends the queue pair; the connection is made again with fresh ones, and nothing is lost.
#[test]
fn a_lost_queue_pair_is_replaced_and_nothing_is_lost() {
    for status in [
        sys::IBV_WC_RETRY_EXC_ERR,
        sys::IBV_WC_RNR_RETRY_EXC_ERR,
        sys::IBV_WC_REM_ACCESS_ERR,
        sys::IBV_WC_LOC_PROT_ERR,
        sys::IBV_WC_WR_FLUSH_ERR,
    ] {
        shim::reset();
        let (a, b) = pair();
        hand_over(&a, &b, "before", 100_000);
        let made = shim::seen("ibv_create_qp");
        shim::fail_completion(status, 5);
        for round in 0..40 {
            hand_over(&a, &b, &format!("edge{round}"), 50_000);
        }
        assert!(!shim::is_fault_pending(), "status {status} came");
        assert!(shim::seen("ibv_create_qp") > made, "fresh queue pairs");
        assert_eq!(a.connected()[0].path, Path::Verbs);
        stop((a, b));
    }
}

/// A wire that is cut for good ends in `PEER_LOST` where nothing else may be used.
#[test]
fn a_peer_that_is_not_reached_again_is_lost() {
    shim::reset();
    let (a, b) = pair();
    hand_over(&a, &b, "before", 100);
    let key = Key::between("b", "a", "never").unwrap();
    let waiting = a.step(StepId(7)).recv(&key);
    shim::cut();
    // Something that shows it.
    let other = Key::between("a", "b", "lost").unwrap();
    a.step(StepId(7)).send(&other, Tensor::scalar(1u8)).unwrap();
    let status = waiting.deadline(PATIENCE).wait().unwrap_err();
    assert_eq!(status.reason(), catalogue::PEER_LOST, "{status}");
    a.shutdown(Duration::from_millis(100));
    b.shutdown(Duration::from_millis(100));
}

/// A device tells of itself: a queue pair that it broke is replaced; a dead device means TCP.
#[test]
fn what_a_device_tells_is_heeded() {
    shim::reset();
    let (a, b) = pair();
    hand_over(&a, &b, "before", 100);
    let made = shim::seen("ibv_create_qp");
    shim::event(0, sys::IBV_EVENT_PORT_ERR);
    shim::event_of_pairs(0, sys::IBV_EVENT_QP_FATAL);
    let until = Instant::now() + PATIENCE;
    while shim::seen("ibv_create_qp") == made {
        assert!(Instant::now() < until, "the broken ones are replaced");
        std::thread::sleep(Duration::from_millis(5));
    }
    hand_over(&a, &b, "after", 100_000);
    stop((a, b));

    shim::reset();
    let (a, b) = apart(|_, _| {});
    hand_over(&a, &b, "before", 100);
    shim::event(0, sys::IBV_EVENT_DEVICE_FATAL);
    await_tcp(&a);
    hand_over(&a, &b, "after", 100_000);
    assert!(
        a.connected()[0].why.contains("fatal"),
        "{}",
        a.connected()[0].why
    );
    stop((a, b));
}

/// Also while a shard waits for a queue pair's last entry, of which the device tells the same way.
#[test]
fn a_dead_device_is_heard_of_while_queue_pairs_end() {
    shim::reset();
    let (a, b) = apart(|_, _| {});
    hand_over(&a, &b, "before", 100);
    let made = shim::seen("ibv_create_qp");
    let c = Engine::start(elsewhere(config("/job:c/task:0", "shim1"))).unwrap();
    a.add_peer(c.task().clone(), c.tcp_address().unwrap().clone());
    hand_over(&a, &c, "before", 100);
    // Of both sides.
    let of_c = (shim::seen("ibv_create_qp") - made) / 2;
    // No last entry is told of: each waits its whole time.
    shim::silence();
    shim::event_of_latest(0, of_c as usize, sys::IBV_EVENT_QP_FATAL);
    until("those to one peer are down", || {
        shim::seen("modify ERR") >= of_c
    });
    shim::event(0, sys::IBV_EVENT_DEVICE_FATAL);
    let to_b = || a.connected().into_iter().find(|way| way.task == *b.task());
    until("the other peer is connected by TCP", || {
        to_b().is_some_and(|way| way.path == Path::Tcp)
    });
    let why = to_b().unwrap().why;
    assert!(why.contains("reports a fatal error"), "{why}");
    hand_over(&a, &b, "after", 100_000);
    c.shutdown(PATIENCE);
    drop(c);
    stop((a, b));
}

/// Trouble with one peer is none of another's.
#[test]
fn other_peers_are_unharmed() {
    shim::reset();
    let (a, b) = pair();
    let mut third = config("/job:c/task:0", "shim1");
    third.verbs.table = Some(shim::table());
    let c = Engine::start(third).unwrap();
    a.add_peer(c.task().clone(), c.tcp_address().unwrap().clone());
    let key = |edge: &str| Key::between("a", "c", edge).unwrap();
    let to_c = |edge: &str| {
        a.step(StepId(7))
            .send(&key(edge), Tensor::scalar(1u8))
            .unwrap();
        c.step(StepId(7))
            .recv(&key(edge))
            .deadline(PATIENCE)
            .wait()
            .unwrap();
    };
    hand_over(&a, &b, "before", 100);
    to_c("before");
    let life = |engine: &Engine| {
        let connected = a.connected();
        let of = connected
            .into_iter()
            .find(|peer| peer.task == *engine.task());
        of.map(|peer| peer.incarnation)
    };
    let (_, before) = (life(&b), life(&c));
    drop((b.clone(), b.shutdown(Duration::ZERO)));
    for round in 0..20 {
        to_c(&format!("edge{round}"));
    }
    assert_eq!(life(&c), before);
    a.shutdown(PATIENCE);
    c.shutdown(PATIENCE);
}
