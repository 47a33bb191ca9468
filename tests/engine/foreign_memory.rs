//! Memory that is not the engine's to show: one copy into the shard's arena, and then read in place by the peer; and
//! released, once, when it is not read any more. And memory of a receiver's, that a value is copied to.
//!
//! Engines of one process, connected by loopback, as two tasks of one user are by shared memory; by sockets; and with
//! another process, which is killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rendez::control::Address;
use rendez::engine::{CancelToken, Engine, Require};
use rendez::ground::{Code, DType, Key, Shape, Status, StepId, TensorMeta, catalogue};
use rendez::mail::{PendingWhat, ShardStats};
use rendez::memory::Tensor;
use rendez::trace::Path;

use crate::support::{PATIENCE, engine, on_the_network, until};
const STEP: StepId = StepId(1);
const LEN: usize = 1 << 20;

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

/// A tensor that one engine made and another of the same process sends lies in an arena that the receiver knows by
/// another number, if at all: it is copied once, and never read under that number.
#[test]
fn what_another_engine_made_is_sent_as_what_it_is() {
    let maker = engine("m", |_| {});
    let (a, b) = (engine("a", |_| {}), engine("b", |_| {}));
    a.connect_local(&b).unwrap();
    // What lies in the sender's arena under the very same number, at the same place.
    let dims = [LEN as u64];
    let make = |engine: &Engine, seed: usize| {
        let mut tensor = engine.tensor(DType::U8, &dims).unwrap();
        tensor.bytes_mut().copy_from_slice(&content(seed));
        tensor.finish()
    };
    let (theirs, own) = (make(&maker, 1), make(&a, 2));
    assert_eq!(theirs.region(), own.region(), "else it shows nothing");
    assert_ne!(theirs.house(), own.house());
    let check = |round: usize, tensor: &Tensor, seed: usize| {
        let key = Key::between("a", "b", &format!("alien{round}")).unwrap();
        let (from, to) = (a.step(STEP), b.step(STEP));
        let received = if round.is_multiple_of(2) {
            from.send(&key, tensor.clone()).unwrap();
            to.recv(&key).deadline(PATIENCE).wait().unwrap()
        } else {
            let waiting = to.recv(&key).deadline(PATIENCE).start().unwrap();
            from.send(&key, tensor.clone()).unwrap();
            waiting.wait().unwrap()
        };
        assert_eq!(received.path, Path::Lease);
        assert!(
            received.tensor.host().unwrap() == content(seed),
            "round {round}: other bytes than were sent"
        );
    };
    for round in 0..4 {
        check(round, &theirs, 1);
        assert_eq!(copied(&a), round as u64 + 1, "once each");
    }
    for round in 4..8 {
        check(round, &own, 2);
    }
    assert_eq!(copied(&a), 4, "the sender's own is read in place");
    // It goes home to its maker, also when that has ended.
    maker.shutdown(PATIENCE);
    check(8, &theirs, 1);
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

/// What a peer was lent and sends back is the very tensor, and is not copied; its memory is free when its receivers
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

/// Counts the releases of a tensor's memory.
#[derive(Clone, Default)]
struct Releases(Arc<AtomicUsize>);

impl Releases {
    /// A tensor over memory of its own, which is released with the content it was made with.
    fn tensor(&self, bytes: Vec<u8>) -> Tensor {
        let (count, len) = (Arc::clone(&self.0), bytes.len());
        let shape = Shape::new(&[len as u64]).unwrap();
        let meta = TensorMeta::new(DType::U8, shape).unwrap();
        let release = move |back: Vec<u8>| {
            assert_eq!(back.len(), len);
            count.fetch_add(1, Ordering::SeqCst);
        };
        Tensor::from_foreign(meta, bytes, release).unwrap()
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn memory_is_released_once_when_its_last_reader_here_is_gone() {
    let a = engine("a", |_| {});
    let (step, key) = (a.step(STEP), Key::between("a", "a", "here").unwrap());
    let releases = Releases::default();
    step.send(&key, releases.tensor(content(1))).unwrap();
    let received = step.recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!((received.path, copied(&a)), (Path::Local, 0));
    let clone = received.tensor.clone();
    drop(received);
    assert_eq!(releases.count(), 0);
    assert!(clone.host().unwrap() == content(1));
    drop(clone);
    assert_eq!(releases.count(), 1);
    // What is not received goes with its step.
    let releases = Releases::default();
    step.send(&key, releases.tensor(content(2))).unwrap();
    step.abort(Status::new(Code::Aborted, "STEP_ABORTED", "over"));
    until("the step lets it go", || releases.count() == 1);
    // What is so short that it lies in the handle is released when it is copied there, and what is no tensor at once.
    let releases = Releases::default();
    drop(releases.tensor(vec![1; 16]));
    assert_eq!(releases.count(), 1);
    let (meta, count) = (
        TensorMeta::new(DType::F32, Shape::from([3])).unwrap(),
        releases.clone(),
    );
    let release = move |_| {
        count.0.fetch_add(1, Ordering::SeqCst);
    };
    Tensor::from_foreign(meta, vec![0_u8; 11], release).unwrap_err();
    assert_eq!(releases.count(), 2);
}

#[test]
fn a_peer_that_reads_in_place_has_a_copy_and_the_memory_is_released() {
    let (a, b) = (engine("a", |_| {}), engine("b", |_| {}));
    a.connect_local(&b).unwrap();
    let key = Key::between("a", "b", "lent").unwrap();
    let releases = Releases::default();
    a.step(STEP)
        .send(&key, releases.tensor(content(3)))
        .unwrap();
    let received = b.step(STEP).recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!((received.path, copied(&a)), (Path::Lease, 1));
    until("the original is released", || releases.count() == 1);
    assert!(received.tensor.host().unwrap() == content(3));
    drop(received);
    until("the copy is home", || in_use(&a) == 0);
    assert_eq!(releases.count(), 1);
}

fn address_of(engine: &Engine) -> Address {
    let address = engine.tcp_address().or_else(|| engine.address());
    address.unwrap().clone()
}

#[test]
fn a_socket_sends_it_from_where_it_lies() {
    let (a, b) = (
        on_the_network("a", Require::Tcp),
        on_the_network("b", Require::Tcp),
    );
    b.add_peer(a.task().clone(), address_of(&a));
    b.reach(a.task(), PATIENCE).unwrap();
    for round in 0..4 {
        let key = Key::between("a", "b", &format!("socket{round}")).unwrap();
        let releases = Releases::default();
        a.step(STEP)
            .send(&key, releases.tensor(content(round)))
            .unwrap();
        // On offer it is kept.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(releases.count(), 0);
        let received = b.step(STEP).recv(&key).deadline(PATIENCE).wait().unwrap();
        assert_eq!((received.path, copied(&a)), (Path::Copy, 0));
        assert!(received.tensor.host().unwrap() == content(round));
        // The receiver has bytes of its own: these are not read any more.
        until("it is released", || releases.count() == 1);
    }
    assert_eq!(in_use(&a), 0, "no byte went through the arena");
}

#[test]
fn a_receive_fills_memory_of_its_caller_whatever_way_the_value_comes() {
    let (a, b) = (
        on_the_network("a", Require::Tcp),
        on_the_network("b", Require::Tcp),
    );
    b.add_peer(a.task().clone(), address_of(&a));
    let (near, far) = (engine("a", |_| {}), engine("b", |_| {}));
    near.connect_local(&far).unwrap();
    let ways = [
        (&a, &a, "a", Path::Local),
        (&a, &b, "b", Path::Copy),
        (&near, &far, "b", Path::Lease),
    ];
    let mut room = vec![0xee_u8; LEN + 100];
    for (from, to, name, path) in ways {
        let key = Key::between("a", name, "filled").unwrap();
        let shape = Shape::new(&[LEN as u64]).unwrap();
        let tensor = Tensor::from_vec(content(8), shape).unwrap();
        let meta = tensor.meta();
        from.step(STEP).send(&key, tensor).unwrap();
        let receive = || to.step(STEP).recv(&key).deadline(PATIENCE);
        // Too short: nothing is written, and the value stays where it was.
        let status = receive().wait_into(&mut room[..LEN - 1]).unwrap_err();
        assert_eq!(status.reason(), catalogue::RECV_ROOM, "{status}");
        assert!(room.iter().all(|&byte| byte == 0xee));
        let filled = receive().wait_into(&mut room).unwrap();
        assert_eq!(
            (filled.meta, filled.len, filled.is_dead, filled.path),
            (meta, LEN, false, path)
        );
        assert!(room[..LEN] == content(8));
        assert!(room[LEN..].iter().all(|&byte| byte == 0xee));
        until("the value's memory is home", || {
            in_use(from) == 0 && in_use(to) == 0
        });
        room.fill(0xee);
    }
}

#[test]
fn what_a_receive_gave_up_is_never_written_to() {
    let a = engine("a", |_| {});
    let (step, key) = (a.step(STEP), Key::between("a", "a", "late").unwrap());
    let mut room = [0xee_u8; 64];
    let early = step.recv(&key).deadline(Duration::from_millis(1));
    let status = early.wait_into(&mut room).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let token = CancelToken::new();
    let waiting = std::thread::spawn({
        let (step, key, token) = (step.clone(), key.clone(), token.clone());
        move || {
            let outcome = step.recv(&key).cancel_on(&token).wait_into(&mut room);
            (outcome, room)
        }
    });
    until("a receive that waits", || !a.pending().is_empty());
    token.cancel();
    let (outcome, mut room) = waiting.join().unwrap();
    assert_eq!(outcome.unwrap_err().code(), Code::Cancelled);
    step.send_dead(&key, Tensor::scalar(7_u8)).unwrap();
    assert_eq!(room, [0xee; 64], "it is the next receive's");
    let filled = step.recv(&key).deadline(PATIENCE).wait_into(&mut room);
    let filled = filled.unwrap();
    assert!(filled.is_dead && filled.len == 1 && room[..2] == [7, 0xee]);
}

/// What the child is told: its way, and where its parent listens.
const ROLE: &str = "FOREIGN_MEMORY_CHILD";
const VALUES: usize = 6;

fn value(number: usize) -> Key {
    Key::between("a", "b", &format!("value{number}")).unwrap()
}

#[test]
fn a_peer_that_dies_releases_everything_once() {
    for way in [Require::Tcp, Require::Shm] {
        let a = on_the_network("a", way);
        let releases: Vec<_> = (0..VALUES).map(|_| Releases::default()).collect();
        for (number, releases) in releases.iter().enumerate() {
            let tensor = releases.tensor(content(number).repeat(4));
            a.step(STEP).send(&value(number), tensor).unwrap();
        }
        assert!(releases.iter().all(|releases| releases.count() == 0));
        let name = if way == Require::Tcp { "tcp" } else { "shm" };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "foreign_memory::child",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, format!("{name} {}", address_of(&a)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It holds the first value, and has been offered the others.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap().ends_with("has it")),
            "{way:?}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        for (number, releases) in releases.iter().enumerate() {
            until(&format!("value {number} over {way:?}"), || {
                releases.count() > 0
            });
        }
        until("copies of the dead one's are home", || in_use(&a) == 0);
        a.shutdown(PATIENCE);
        for releases in releases {
            assert_eq!(releases.count(), 1, "{way:?}");
        }
    }
}

/// Not a test of its own: the peer that dies.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (way, address) = role.split_once(' ').unwrap();
    let way = if way == "tcp" {
        Require::Tcp
    } else {
        Require::Shm
    };
    let b = on_the_network("b", way);
    b.add_peer("/job:a/task:0".parse().unwrap(), address.parse().unwrap());
    let received = b.step(STEP).recv(&value(0)).deadline(PATIENCE).wait();
    let received = received.unwrap();
    assert!(received.tensor.host().unwrap() == content(0).repeat(4));
    writeln!(std::io::stdout(), "has it").unwrap();
    loop {
        std::thread::sleep(PATIENCE);
    }
}
