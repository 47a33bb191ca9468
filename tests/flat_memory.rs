//! Memory stays flat: with a producer that outruns its consumer, with keys that are met once, with visitors that come
//! and go, whatever the way between them.
//!
//! It counts and never measures time: bytes kept, refusals by name, values by number, bytes of the heap.
//!
//! `RENDEZ_FLAT_KEYS=1000000 RENDEZ_FLAT_VISITS=10000 cargo test --test flat_memory -- --nocapture` goes on for long,
//! and tells what was kept.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rendez::engine::{Config, Engine, Require, Step};
use rendez::ground::{Key, Shape, StepId, limits};
use rendez::memory::Tensor;
use rendez_rpc::{Agent, Functions, Options, Worker};

/// The system's allocator, with the bytes that are out.
struct Weighing;

static OUT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Weighing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        OUT.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        OUT.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Weighing = Weighing;

/// One test at a time: the heap is weighed as a whole.
static ALONE: Mutex<()> = Mutex::new(());

const PATIENCE: Duration = Duration::from_secs(30);
const STEP: StepId = StepId(1);
/// Bytes that a shard may park.
const BOUND: u64 = 4 << 20;
/// What the heap may hold beside the values: queues, tables and rings that grow to their working size.
const MARGIN: usize = 4 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Local,
    Loopback,
    Tcp,
}

fn config(task: &str) -> Config {
    let mut config = Config::new(task);
    config.shards = 1;
    config.share_cores = true;
    config.control = false;
    config.parked_bytes = BOUND;
    config.parked_bytes_per_step = BOUND;
    config.mailbox = 256;
    config.arena.segment_bytes = 4 << 20;
    config.arena.bytes_max = 64 << 20;
    config
}

/// The producer's engine, the consumer's, and a key from one to the other.
fn ends(way: Way) -> (Engine, Engine, Key) {
    let (mut one, mut other) = (config("/job:a/task:0"), config("/job:b/task:0"));
    if way == Way::Tcp {
        for config in [&mut one, &mut other] {
            config.control = true;
            config.listen = Some("127.0.0.1:0".parse().unwrap());
            config.require = Require::Tcp;
        }
    }
    let a = Engine::start(one).unwrap();
    if way == Way::Local {
        return (a.clone(), a, Key::between("a", "a", "stream").unwrap());
    }
    let b = Engine::start(other).unwrap();
    match way {
        Way::Tcp => a.add_peer(b.task().clone(), b.tcp_address().unwrap().clone()),
        _ => a.connect_local(&b).unwrap(),
    }
    let key = Key::between("a", "b", "stream").unwrap();
    a.step(STEP).send(&key, value(8, u64::MAX)).unwrap();
    b.step(STEP).recv(&key).deadline(PATIENCE).wait().unwrap();
    (a, b, key)
}

fn value(len: usize, serial: u64) -> Tensor {
    let mut bytes = vec![0u8; len];
    bytes[..8].copy_from_slice(&serial.to_le_bytes());
    Tensor::from_vec(bytes, Shape::row(len as u64).unwrap()).unwrap()
}

fn serial(tensor: &Tensor) -> u64 {
    u64::from_le_bytes(tensor.host().unwrap()[..8].try_into().unwrap())
}

/// The next value. A receive, too, is refused by a mailbox that a producer has filled, and may be tried again.
fn received(sink: &Step, key: &Key) -> Tensor {
    loop {
        match sink.recv(key).deadline(PATIENCE).wait() {
            Ok(received) => return received.tensor,
            Err(status) if status.reason() == "MAILBOX_FULL" => std::thread::yield_now(),
            Err(status) => panic!("{status}"),
        }
    }
}

/// Bytes kept for receivers, over both engines; each keeps its bound.
fn kept(ends: [&Engine; 2]) -> u64 {
    let kept = ends.map(|engine| {
        let stats = engine.stats();
        let kept: u64 = stats
            .iter()
            .map(|shard| shard.parked_bytes + shard.offered_bytes)
            .sum();
        // Beside the bound: what a frame brings was admitted where it came from.
        assert!(
            kept <= BOUND + limits::BODY_MAX as u64,
            "{kept} bytes are kept: {stats:?}"
        );
        kept
    });
    kept.into_iter().sum()
}

/// Sends at full speed, with no receiver: what is taken stays within the bounds, what is not is refused by
/// name, and what was taken comes in order afterwards.
fn outruns(way: Way, len: usize, count: u64) {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (a, b, key) = ends(way);
    let step = a.step(STEP);
    let mut taken = Vec::new();
    let mut most = 0;
    let mut warm = 0;
    for serial in 0..count {
        match step.send(&key, value(len, serial)) {
            Ok(()) => taken.push(serial),
            Err(status) => assert!(
                ["PARKED_BYTES", "PARKED_BYTES_OF_STEP", "MAILBOX_FULL"].contains(&status.reason()),
                "{status}"
            ),
        }
        if serial % (count / 16) == 0 {
            most = most.max(kept([&a, &b]));
        }
        if serial == count / 2 {
            warm = OUT.load(Ordering::Relaxed);
        }
    }
    let out = OUT.load(Ordering::Relaxed);
    assert!(
        out <= warm + MARGIN,
        "the heap grew from {warm} to {out} bytes"
    );
    assert!(taken.len() < count as usize, "nothing was refused");
    assert!(most > BOUND / 2, "the bound was never near: {most}");
    let sink = b.step(STEP);
    for &expected in &taken {
        let got = sink.recv(&key).deadline(PATIENCE).wait().unwrap();
        assert_eq!(serial(&got.tensor), expected);
    }
    let late = sink.recv(&key).deadline(Duration::from_millis(50)).wait();
    assert_eq!(
        late.unwrap_err().reason(),
        "DEADLINE",
        "nothing that was refused came"
    );
    // Who was refused may go on.
    step.send(&key, value(len, 7)).unwrap();
    let got = sink.recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!(serial(&got.tensor), 7);
    for engine in [&a, &b] {
        engine.shutdown(PATIENCE);
    }
}

/// The same with sends that wait: nothing is refused, and all comes in order, at the consumer's speed.
fn keeps_pace(way: Way, len: usize, count: u64) {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (a, b, key) = ends(way);
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let step = a.step(STEP);
            for serial in 0..count {
                let sent = step.send_async(&key, value(len, serial));
                sent.deadline(PATIENCE).wait().unwrap();
            }
        });
        let sink = b.step(STEP);
        let mut warm = 0;
        for expected in 0..count {
            let got = received(&sink, &key);
            assert_eq!(serial(&got), expected);
            if expected % (count / 16) == 0 {
                kept([&a, &b]);
                let out = OUT.load(Ordering::Relaxed);
                if expected < count / 2 {
                    warm = warm.max(out);
                } else {
                    assert!(out <= warm + MARGIN + BOUND as usize, "{warm} became {out}");
                }
            }
        }
        producer.join().unwrap();
    });
    // What was lent comes home when the shards get round to it.
    let until = std::time::Instant::now() + PATIENCE;
    while kept([&a, &b]) > 0 {
        assert!(
            std::time::Instant::now() < until,
            "something is kept without a receiver"
        );
        std::thread::yield_now();
    }
    for engine in [&a, &b] {
        engine.shutdown(PATIENCE);
    }
}

#[test]
fn within_a_process() {
    outruns(Way::Local, 1000, 40_000);
    outruns(Way::Local, 300_000, 400);
}

#[test]
fn to_another_engine_of_the_process() {
    outruns(Way::Loopback, 1000, 40_000);
    outruns(Way::Loopback, 300_000, 400);
}

#[test]
fn over_tcp() {
    outruns(Way::Tcp, 1000, 40_000);
    outruns(Way::Tcp, 300_000, 400);
}

#[test]
fn sends_that_wait_keep_pace_with_their_consumer() {
    for way in [Way::Local, Way::Loopback, Way::Tcp] {
        keeps_pace(way, 1000, 20_000);
        keeps_pace(way, 300_000, 200);
    }
}

/// How many, unless this variable says otherwise.
fn scaled(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |count| count.parse().expect("a number"))
}

/// Bytes of the heap, once the shards have let go of what they would.
fn settled(engines: [&Engine; 2]) -> usize {
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        kept(engines);
    }
    OUT.load(Ordering::Relaxed)
}

/// Keys that are each used once, in steps that end.
fn meets_many_keys(way: Way) {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    // What is kept has been met, and as much again.
    let warm_up = 3 * limits::IDLE_KEYS / 2;
    let usual = 2 * limits::IDLE_KEYS;
    let count = scaled("RENDEZ_FLAT_KEYS", usual).max(warm_up + 1);
    // As many steps whatever the count: how each of the last ones ended is remembered, and this is about keys.
    let keys_per_step = 200 * count.div_ceil(usual);
    let (a, b, first) = ends(way);
    let to = if way == Way::Local { "a" } else { "b" };
    let mut warm = None;
    for step in 0..count.div_ceil(keys_per_step) {
        let id = StepId(10 + step as u64);
        let (source, sink) = (a.step(id), b.step(id));
        let key = |at| Key::between("a", to, &format!("edge_{step}_{at}")).unwrap();
        // Each side has names of its own, as in two processes: else what is weighed depends on who met a key first.
        let [ours, theirs]: [Vec<_>; 2] = [0, 1].map(|_| (0..keys_per_step).map(key).collect());
        for (at, key) in ours.iter().enumerate() {
            loop {
                match source.send(key, value(8, at as u64)) {
                    Ok(()) => break,
                    Err(status) => assert_eq!(status.reason(), "MAILBOX_FULL", "{status}"),
                }
                std::thread::yield_now();
            }
        }
        // All ask before one is waited for: a wait costs a wake.
        let mut asked: Vec<_> = theirs
            .iter()
            .map(|key| sink.recv(key).deadline(PATIENCE))
            .collect();
        let context = &mut Context::from_waker(Waker::noop());
        let mut got = vec![None; asked.len()];
        while got.iter().any(Option::is_none) {
            for (at, recv) in asked.iter_mut().enumerate() {
                if got[at].is_some() {
                    continue;
                }
                match Pin::new(&mut *recv).poll(context) {
                    Poll::Ready(Ok(received)) => got[at] = Some(serial(&received.tensor)),
                    Poll::Ready(Err(status)) if status.reason() == "MAILBOX_FULL" => {
                        *recv = sink.recv(&theirs[at]).deadline(PATIENCE);
                    }
                    Poll::Ready(Err(status)) => panic!("{status}"),
                    Poll::Pending => {}
                }
            }
            std::thread::yield_now();
        }
        assert!(got.into_iter().eq((0..keys_per_step as u64).map(Some)));
        source.finish();
        sink.finish();
        if warm.is_none() && (step + 1) * keys_per_step >= warm_up {
            warm = Some(settled([&a, &b]));
        }
    }
    let (warm, out) = (warm.expect("it is warm"), settled([&a, &b]));
    eprintln!("{way:?}: {count} keys, {warm} bytes after {warm_up}, {out} at the end");
    assert!(
        out <= warm + MARGIN,
        "the heap grew from {warm} to {out} bytes"
    );
    // A key that was forgotten is met again, and so is the first one, whose step lives.
    let step = StepId(9);
    let key = Key::between("a", to, "edge_0_0").unwrap();
    for (key, step) in [(&key, step), (&first, STEP)] {
        a.step(step).send(key, value(8, 77)).unwrap();
        assert_eq!(serial(&received(&b.step(step), key)), 77);
    }
    for engine in [&a, &b] {
        engine.shutdown(PATIENCE);
    }
}

#[test]
fn keys_that_rest_leave_within_a_process() {
    meets_many_keys(Way::Local);
}

#[test]
fn keys_that_rest_leave_on_both_sides_of_a_link() {
    meets_many_keys(Way::Loopback);
}

#[test]
fn keys_that_rest_leave_over_tcp() {
    meets_many_keys(Way::Tcp);
}

/// A task that visitors know by its address.
fn visited() -> Engine {
    let mut config = config("/job:b/task:0");
    config.control = true;
    config.listen = Some("127.0.0.1:0".parse().unwrap());
    Engine::start(config).unwrap()
}

/// Commands with these arguments come one after the other, and leave nothing in the task.
fn come_and_go(engine: &Engine, arguments: &[&str]) {
    /// What a visit may leave: a page of the allocator's own, on the average. A link alone was seven times as much.
    const LEFT: usize = 4 << 10;
    let visits = scaled("RENDEZ_FLAT_VISITS", 40);
    let visit = |_| {
        let visitor = std::process::Command::new(env!("CARGO_BIN_EXE_rendez"))
            .args(arguments)
            .output()
            .expect("it runs");
        assert!(visitor.status.success(), "{visitor:?}");
    };
    let gone = || {
        let until = std::time::Instant::now() + PATIENCE;
        while !engine.connected().is_empty() || engine.stats()[0].peers_up > 0 {
            assert!(std::time::Instant::now() < until, "a visitor has not left");
            std::thread::sleep(Duration::from_millis(5));
        }
        settled([engine, engine])
    };
    let warm_up = visits.div_ceil(4).min(100);
    (0..warm_up).for_each(visit);
    let warm = gone();
    (0..visits).for_each(visit);
    let out = gone();
    eprintln!("{visits} visits after {warm_up}: {warm} bytes became {out}");
    assert!(
        out <= warm + visits.min(1000) * LEFT,
        "{visits} visits left {} bytes",
        out - warm
    );
    assert!(engine.fallbacks().is_empty());
}

#[test]
fn visitors_leave_nothing() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let engine = visited();
    let cluster = format!("b={}", engine.tcp_address().unwrap());
    let arguments = ["ping", "--json", "--count", "1", "--cluster", &cluster];
    come_and_go(&engine, &arguments);
    engine.shutdown(PATIENCE);
}

/// A worker holds keys to each that calls it, until it hears that the caller is gone.
#[test]
fn callers_leave_nothing() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let engine = visited();
    let worker = Worker::new("b", engine.task().to_string());
    let options = Options::of_workers(vec![worker])
        .functions(Functions::new().add("add", |one: u32, other: u32| one + other));
    let agent = Agent::init(&engine, "b", options).unwrap();
    let address = engine.tcp_address().unwrap().to_string();
    come_and_go(&engine, &["call", &address, "add", "1", "2"]);
    agent.shutdown(PATIENCE).unwrap();
    engine.shutdown(PATIENCE);
}
