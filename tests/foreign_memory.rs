//! Memory that is not the engine's to show: one copy into the shard's arena, and then read in place by the peer.
//!
//! Engines of one process, connected by loopback, as two tasks of one user are by shared memory.

use std::time::{Duration, Instant};

use rendez::engine::{Config, Engine};
use rendez::ground::{DType, Key, Shape, StepId, TensorMeta};
use rendez::memory::Tensor;
use rendez::shard::{Path, PendingWhat, ShardStats};

const PATIENCE: Duration = Duration::from_secs(20);
const STEP: StepId = StepId(1);
const LEN: usize = 1 << 20;

fn engine(task: &str, change: impl FnOnce(&mut Config)) -> Engine {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    config.shards = 1;
    config.share_cores = true;
    config.control = false;
    config.arena.segment_bytes = 4 << 20;
    change(&mut config);
    Engine::start(config).unwrap()
}

fn content(seed: usize) -> Vec<u8> {
    (0..LEN)
        .map(|at| (at * 31 + at / 4096 + seed) as u8)
        .collect()
}

fn copied(engine: &Engine) -> u64 {
    let of = |stats: &ShardStats| stats.copied_foreign + stats.copied_leased;
    engine.stats().iter().map(of).sum()
}

fn in_use(engine: &Engine) -> u64 {
    engine.stats().iter().map(|stats| stats.arena_in_use).sum()
}

/// Waits for what other threads bring about.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn foreign_memory_is_copied_once_and_read_in_place() {
    let (a, b) = (engine("a", |_| {}), engine("b", |_| {}));
    a.connect_local(&b).unwrap();
    for round in 0..8 {
        let key = Key::between("a", "b", &format!("foreign{round}")).unwrap();
        let bytes = content(round);
        let shape = Shape::new(&[LEN as u64]).unwrap();
        let tensor = if round % 2 == 0 {
            Tensor::from_vec(bytes.clone(), shape).unwrap()
        } else {
            Tensor::from_bytes(
                TensorMeta::new(DType::U8, shape).unwrap(),
                bytes.clone().into(),
            )
            .unwrap()
        };
        assert!(tensor.region().is_none(), "it is not the engine's");
        let (from, to) = (a.step(STEP), b.step(STEP));
        // Every other time the receiver is there first.
        let received = if round < 4 {
            from.send(&key, tensor).unwrap();
            to.recv(&key).deadline(PATIENCE).wait().unwrap()
        } else {
            let waiting = std::thread::spawn({
                let key = key.clone();
                move || to.recv(&key).deadline(PATIENCE).wait().unwrap()
            });
            until("a receive that waits", || {
                b.pending()
                    .iter()
                    .any(|item| item.what == PendingWhat::Receive)
            });
            from.send(&key, tensor).unwrap();
            waiting.join().unwrap()
        };
        assert_eq!(received.path, Path::Lease, "round {round}");
        assert!(received.tensor.host().unwrap() == bytes, "round {round}");
        assert_eq!(copied(&a), round as u64 + 1);
    }
    until("the copies are home", || in_use(&a) == 0);
    assert_eq!(copied(&b), 0);
}

#[test]
fn a_lease_that_is_sent_on_lets_its_first_sender_go() {
    let (a, b, c) = (
        engine("a", |_| {}),
        engine("b", |_| {}),
        engine("c", |_| {}),
    );
    a.connect_local(&b).unwrap();
    b.connect_local(&c).unwrap();
    let (first, second) = (
        Key::between("a", "b", "first").unwrap(),
        Key::between("b", "c", "second").unwrap(),
    );
    let bytes = content(3);
    let tensor = Tensor::from_vec(bytes.clone(), Shape::new(&[LEN as u64]).unwrap()).unwrap();
    a.step(STEP).send(&first, tensor).unwrap();
    let leased = b.step(STEP).recv(&first).deadline(PATIENCE).wait().unwrap();
    assert!(leased.tensor.is_leased() && in_use(&a) >= LEN as u64);
    // The middle one keeps none of it: what it sends on is a copy of its own.
    b.step(STEP).send(&second, leased.tensor).unwrap();
    let received = c
        .step(STEP)
        .recv(&second)
        .deadline(PATIENCE)
        .wait()
        .unwrap();
    assert_eq!(received.path, Path::Lease);
    assert!(received.tensor.host().unwrap() == bytes);
    until("the first sender has its memory back", || in_use(&a) == 0);
    assert!(
        received.tensor.host().unwrap() == bytes,
        "the copy is the middle one's"
    );
    assert_eq!((copied(&a), copied(&b)), (1, 1));
    drop(received);
    until("the middle one has its memory back", || in_use(&b) == 0);
}

/// What a peer was lent and sends back is the very tensor, and nobody copies it; its memory is free when its receivers
/// have let go.
#[test]
fn a_lease_that_is_sent_back_is_not_copied() {
    let (a, b) = (engine("a", |_| {}), engine("b", |_| {}));
    a.connect_local(&b).unwrap();
    let bytes = content(4);
    let tensor = Tensor::from_vec(bytes.clone(), Shape::new(&[LEN as u64]).unwrap()).unwrap();
    let (out, back) = (
        Key::between("a", "b", "out").unwrap(),
        Key::between("b", "a", "back").unwrap(),
    );
    a.step(STEP).send(&out, tensor).unwrap();
    for hop in 0..6 {
        let step = StepId(hop + 1);
        let leased = b.step(step).recv(&out).deadline(PATIENCE).wait().unwrap();
        assert_eq!(leased.path, Path::Lease);
        b.step(step).send(&back, leased.tensor).unwrap();
        let returned = a.step(step).recv(&back).deadline(PATIENCE).wait().unwrap();
        assert!(!returned.tensor.is_leased() && returned.tensor.region().is_some());
        assert!(returned.tensor.host().unwrap() == bytes);
        // Once into the arena, when it was first sent.
        assert_eq!((copied(&a), copied(&b), in_use(&b)), (1, 0, 0), "hop {hop}");
        if hop < 5 {
            a.step(StepId(hop + 2)).send(&out, returned.tensor).unwrap();
        }
    }
    let sent_back = |engine: &Engine| {
        engine
            .stats()
            .iter()
            .map(|stats| stats.sent_back)
            .sum::<u64>()
    };
    assert_eq!((sent_back(&a), sent_back(&b)), (0, 6));
    until("the owner has its memory back", || in_use(&a) == 0);
}

#[test]
fn a_full_arena_sends_the_bytes_the_long_way() {
    let (a, b) = (
        engine("a", |config| config.arena.bytes_max = 4 << 20),
        engine("b", |_| {}),
    );
    a.connect_local(&b).unwrap();
    // More than the sender's arena ever holds: no copy of it can be made.
    let bytes = content(5).repeat(5);
    let tensor =
        Tensor::from_vec(bytes.clone(), Shape::new(&[bytes.len() as u64]).unwrap()).unwrap();
    let key = Key::between("a", "b", "long").unwrap();
    a.step(STEP).send(&key, tensor).unwrap();
    let received = b.step(STEP).recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!((received.path, copied(&a)), (Path::Copy, 0));
    assert!(received.tensor.host().unwrap() == bytes);
}

#[test]
fn where_nothing_is_read_in_place_nothing_is_copied_first() {
    let (a, b) = (
        engine("a", |config| config.lease = false),
        engine("b", |config| config.lease = false),
    );
    a.connect_local(&b).unwrap();
    let bytes = content(7);
    let tensor = Tensor::from_vec(bytes.clone(), Shape::new(&[LEN as u64]).unwrap()).unwrap();
    let key = Key::between("a", "b", "own").unwrap();
    a.step(STEP).send(&key, tensor).unwrap();
    let received = b.step(STEP).recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!((received.path, copied(&a)), (Path::Copy, 0));
    assert!(received.tensor.host().unwrap() == bytes);
}
