//! Tests of device memory between engines, over a played driver: in place, through the host, in time, over deaths.

mod asking;
mod bad_input;
mod bounds;
mod copies;
mod loans;
mod pinning;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rendez_played_cuda::{Played, path};

use super::super::Require;
use super::*;
use crate::ground::{DType, Key, Locked, Nanos, Shape, StepId};
use crate::mail::Received;
use crate::memory::Readiness;

const PATIENCE: Duration = Duration::from_secs(20);
const STEP: StepId = StepId(3);
const ROLE: &str = "RENDEZ_TEST_DEVICE_ROLE";
const ADDRESS: &str = "RENDEZ_TEST_DEVICE_ADDRESS";

/// The played library, alone in this process.
struct Alone {
    played: Played,
    violations: u64,
    _turn: MutexGuard<'static, ()>,
}

fn alone() -> Alone {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.locked();
    let played = Played::load();
    played.heal();
    Alone {
        violations: played.violations(),
        played,
        _turn: turn,
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.played.heal();
        if !std::thread::panicking() {
            assert_eq!(
                self.played.violations(),
                self.violations,
                "work met memory that is gone"
            );
        }
    }
}

fn config(task: &str) -> Config {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    (config.shards, config.share_cores) = (2, true);
    config.arena.segment_bytes = 4 << 20;
    config.devices.usage = DeviceUse::Require;
    config.devices.library = Some(path());
    config.devices.segment_bytes = 4 << 20;
    config.devices.bytes_max = 32 << 20;
    config.devices.pinned_bytes = 3 << 16;
    config
}

fn alone_engine() -> Engine {
    let mut config = config("a");
    config.control = false;
    Engine::start(config).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Loopback,
    Shm,
    Tcp,
}

/// Two engines, connected.
fn pair(way: Way) -> (Engine, Engine) {
    pair_of(way, |_| ())
}

/// The same, with other settings.
fn pair_of(way: Way, set: impl Fn(&mut Config)) -> (Engine, Engine) {
    let (mut one, mut other) = (config("a"), config("b"));
    for config in [&mut one, &mut other] {
        set(config);
        config.control = way != Way::Loopback;
        if way == Way::Tcp {
            config.listen = Some("127.0.0.1:0".parse().unwrap());
            config.require = Require::Tcp;
        }
    }
    let (a, b) = (Engine::start(one).unwrap(), Engine::start(other).unwrap());
    match way {
        Way::Loopback => a.connect_local(&b).unwrap(),
        Way::Shm => a.add_peer(b.task().clone(), b.address().unwrap().clone()),
        Way::Tcp => a.add_peer(b.task().clone(), b.tcp_address().unwrap().clone()),
    }
    // Keys of all shards: each has a link of its own.
    for edge in 0..8 {
        for (from, to, of) in [(&a, &b, ("a", "b")), (&b, &a, ("b", "a"))] {
            let of = key(of.0, of.1, &format!("up{edge}"));
            from.step(STEP).send(&of, Tensor::scalar(1_u8)).unwrap();
            received(to, &of);
        }
    }
    (a, b)
}

fn key(from: &str, to: &str, edge: &str) -> Key {
    Key::between(from, to, edge).unwrap()
}

fn received(engine: &Engine, key: &Key) -> Received {
    let received = engine.step(STEP).recv(key).deadline(PATIENCE).wait();
    received.unwrap()
}

fn host(len: usize, seed: usize) -> Tensor {
    let bytes: Vec<u8> = (0..len)
        .map(|at| (at * 3 + at / 255 + seed) as u8)
        .collect();
    Tensor::from_vec(bytes, Shape::from([len as u64])).unwrap()
}

fn meta(len: usize) -> TensorMeta {
    TensorMeta::new(DType::U8, Shape::from([len as u64])).unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn blocks(engine: &Engine) -> u64 {
    let stats = engine.devices().unwrap().stats();
    stats.iter().map(|one| one.arena.blocks).sum()
}

#[test]
fn a_tensor_of_a_device_is_read_where_it_lies() {
    let alone = alone();
    for way in [Way::Loopback, Way::Shm] {
        let (a, b) = pair(way);
        let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
        // The first use makes an arena, and tells the peer of it: each imports the other's before calls are counted.
        drop(ours.to_device(&host(64, 0), 0).unwrap());
        let warm = theirs.to_device(&host(64, 0), 0).unwrap();
        until("the arena is imported", || {
            let of = key("b", "a", "warm");
            b.step(STEP).send(&of, warm.clone()).unwrap();
            received(&a, &of).tensor.is_leased()
        });
        drop(warm);
        until("it comes home", || blocks(&b) == 0);
        for (round, len) in [1_usize, 4, 17, 4096, 70_000, 3 << 20]
            .into_iter()
            .enumerate()
        {
            let sent = host(len, round);
            let tensor = ours.to_device(&sent, 0).unwrap();
            let of = key("a", "b", &format!("{way:?}{round}"));
            let calls = alone.played.count(None);
            a.step(STEP).send(&of, tensor).unwrap();
            let got = received(&b, &of).tensor;
            assert!(got.is_device() && got.is_leased(), "{way:?}: {got:?}");
            if round > 0 {
                let calls = alone.played.count(None) - calls;
                assert_eq!(
                    calls, 0,
                    "to hand {len} bytes over takes no call of the driver"
                );
            }
            let back = theirs.to_host(&got).unwrap();
            assert_eq!(back.host().unwrap(), sent.host().unwrap());
            drop(got);
            until("the memory comes home", || blocks(&a) == 0);
        }
        assert_eq!((ours.kept(), theirs.kept()), ((0, 0), (0, 0)));
    }
}

#[test]
fn where_it_cannot_be_read_in_place_it_goes_by_way_of_the_host() {
    let _alone = alone();
    let (a, b) = pair(Way::Tcp);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    for len in [5_usize, 4096, 1 << 20] {
        let sent = host(len, len);
        let tensor = ours.to_device(&sent, 0).unwrap();
        let (of, before) = (key("a", "b", &format!("{len}")), ours.staged_bytes());
        a.step(STEP).send(&of, tensor).unwrap();
        assert_eq!(ours.staged_bytes() - before, len as u64);
        let got = received(&b, &of).tensor;
        assert_eq!(got.host().unwrap(), sent.host().unwrap());
        let there = theirs.to_device(&got, 1).unwrap();
        assert_eq!(
            theirs.to_host(&there).unwrap().host().unwrap(),
            sent.host().unwrap()
        );
    }
    until("the memory comes home", || blocks(&a) == 0);
    // So does a send that is waited for from its start. One that was started before copies nothing: it hands the
    // tensor back.
    let sent = host(64, 1);
    let tensor = ours.to_device(&sent, 0).unwrap();
    let (step, of) = (a.step(STEP), key("a", "b", "waits"));
    let send = step.send_async(&of, tensor.clone());
    send.deadline(PATIENCE).wait().unwrap();
    let got = received(&b, &of).tensor;
    assert_eq!(got.host().unwrap(), sent.host().unwrap());
    let unsent = step.send_async(&of, tensor).start().wait().unwrap_err();
    assert_eq!(unsent.status().reason(), catalogue::TENSOR_DEVICE);
    assert!(unsent.into_tensor().unwrap().is_device());
}

#[test]
fn it_is_sent_before_it_is_there_and_freed_when_both_streams_are_past_it() {
    let alone = alone();
    let (a, b) = pair(Way::Shm);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    drop(ours.to_device(&host(64, 0), 0).unwrap());
    let (writer, reader) = (ours.stream(0).unwrap(), theirs.stream(0).unwrap());
    for stream in [&writer, &reader] {
        assert!(alone.played.hold(stream.handle() as usize, true));
    }
    let tensor = ours.buffer(0, meta(4096)).unwrap();
    let tensor = tensor.into_tensor_after(meta(4096), &writer).unwrap();
    let of = key("a", "b", "early");
    a.step(STEP).send(&of, tensor).unwrap();
    let got = received(&b, &of).tensor;
    assert!(got.is_leased() && !got.readiness().is_ready());
    theirs.order(&got, &reader).unwrap();
    theirs.release_after(got, &reader).unwrap();
    assert_eq!(theirs.kept().0, 2);
    // The writer is past it, the reader is not.
    assert!(alone.played.hold(writer.handle() as usize, false));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(blocks(&a), 1, "the reader's stream may read it still");
    assert!(alone.played.hold(reader.handle() as usize, false));
    until("the memory comes home", || blocks(&a) == 0);
    until("nothing is kept", || theirs.kept() == (0, 0));
}

#[test]
fn what_a_peer_lent_goes_back_to_it_as_it_is() {
    let _alone = alone();
    let (a, b) = pair(Way::Shm);
    let ours = a.devices().unwrap();
    drop(ours.to_device(&host(64, 0), 0).unwrap());
    // Also so short a one that it would go in a frame if it were the host's.
    for (there, back, len) in [("there", "back", 100_000), ("v0", "v0", 1)] {
        let (there, back) = (key("a", "b", there), key("b", "a", back));
        let tensor = ours.to_device(&host(len, 1), 0).unwrap();
        let place = tensor.bytes();
        a.step(STEP).send(&there, tensor.clone()).unwrap();
        let lent = received(&b, &there).tensor;
        b.step(STEP).send(&back, lent).unwrap();
        let back = received(&a, &back).tensor;
        assert_eq!(back.bytes(), place, "it is the very memory");
        drop((tensor, back));
        until("the memory comes home", || blocks(&a) == 0);
    }
}

/// Every call of the driver fails once while engines hand a value over: it comes right, or its error is one by name,
/// and the next one goes well.
#[test]
fn every_call_fails_once_while_values_are_handed_over() {
    let alone = alone();
    let (a, b) = pair(Way::Shm);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    let hand_over = |round: u64| -> Result<(), Status> {
        let sent = host(100_000, round as usize);
        let tensor = ours.to_device(&sent, 0)?;
        let of = key("a", "b", &format!("fault{round}"));
        a.step(STEP).send(&of, tensor)?;
        let got = b.step(STEP).recv(&of).deadline(PATIENCE).wait()?.tensor;
        let stream = theirs.stream(0)?;
        theirs.order(&got, &stream)?;
        let back = theirs.to_host(&got)?;
        assert_eq!(back.host().unwrap(), sent.host().unwrap());
        theirs.release_after(got, &stream)
    };
    hand_over(0).unwrap();
    let mut nth = 1;
    loop {
        alone.played.fail(None, nth, 999);
        let done = hand_over(2 * nth - 1);
        let has_failed = alone.played.has_failed();
        alone.played.heal();
        if !has_failed {
            done.unwrap();
            break;
        }
        if let Err(status) = done {
            let is_named =
                status.reason().starts_with("DEVICE_") || status.reason() == "TENSOR_DEVICE";
            assert!(is_named, "call {nth}: {status}");
        }
        hand_over(2 * nth).unwrap();
        nth += 1;
    }
    assert!(nth > 20, "{nth} calls");
    let quarantined = ours.kept().1 + theirs.kept().1;
    until("the memory comes home", || blocks(&a) <= quarantined);
    assert_eq!((ours.kept().0, theirs.kept().0), (0, 0));
}

#[test]
fn without_devices_each_way_of_asking_says_why() {
    let mut off = config("a");
    (off.devices.usage, off.control) = (DeviceUse::Off, false);
    let engine = Engine::start(off).unwrap();
    let status = engine.devices().unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_MISSING);
    let mut none = config("a");
    none.control = false;
    none.devices.library = Some("/nowhere/libcuda.so.1".into());
    let status = Engine::start(none.clone()).unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_MISSING);
    assert!(
        status.message().contains("/nowhere/libcuda.so.1"),
        "{status}"
    );
    none.devices.usage = DeviceUse::Auto;
    let engine = Engine::start(none).unwrap();
    assert_eq!(
        engine.devices().unwrap_err().reason(),
        catalogue::DEVICE_MISSING
    );
}

/// Not a test of its own: another process, whose driver numbers the devices the other way round.
#[test]
fn child() {
    let (Ok(role), Ok(address)) = (std::env::var(ROLE), std::env::var(ADDRESS)) else {
        return;
    };
    let engine = Engine::start(config("b")).unwrap();
    engine.add_peer(
        crate::ground::TaskName::parse("/job:a/task:0").unwrap(),
        address.parse().unwrap(),
    );
    let devices = engine.devices().unwrap();
    if role != "stranger" {
        let uuid = devices.list()[1].uuid.0[0];
        assert_eq!(uuid, 1, "the parent's device 0 is ours of another number");
    }
    for edge in 0..8 {
        let up = key("b", "a", &format!("up{edge}"));
        engine.step(STEP).send(&up, Tensor::scalar(1_u8)).unwrap();
    }
    let mut kept = Vec::new();
    let mut streams = Vec::new();
    if role == "reader" || role == "stranger" {
        let got = received(&engine, &key("a", "b", "value")).tensor;
        assert!(got.is_leased());
        let TensorBytes::Device(place) = got.bytes() else {
            panic!("it lies on the device");
        };
        assert_eq!(place.device, u32::from(role == "reader"));
        let back = devices.to_host(&got).unwrap();
        assert_eq!(back.host().unwrap(), host(50_000, 4).host().unwrap());
        kept.push(got);
    } else {
        drop(devices.to_device(&host(64, 0), 1).unwrap());
        let stream = devices.stream(1).unwrap();
        assert!(Played::load().hold(stream.handle() as usize, true));
        let buffer = devices.buffer(1, meta(4096)).unwrap();
        let tensor = buffer.into_tensor_after(meta(4096), &stream).unwrap();
        received(&engine, &key("a", "b", "go"));
        engine
            .step(STEP)
            .send(&key("b", "a", "value"), tensor)
            .unwrap();
        // Its end would do what is queued.
        streams.push(stream);
    }
    std::io::Write::write_all(&mut std::io::stdout(), b"\nready\n").expect("a pipe");
    // Until it is killed, or its parent is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

/// A child that has said that it is ready.
struct Other(Child);

impl Other {
    fn new(role: &str, engine: &Engine) -> Self {
        // All the parent's, the other way round; or its second one alone.
        let sees = if role == "stranger" { "02" } else { "02,01" };
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["engine::devices::tests::child", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(ADDRESS, engine.address().unwrap().to_string())
            .env("PLAYED_CUDA_DEVICES", sees)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    fn await_ready(&mut self) {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let is_ready = |line: std::io::Result<String>| line.is_ok_and(|line| line == "ready");
        assert!(lines.into_iter().any(is_ready), "the child fails");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn memory_comes_home_from_a_process_that_dies_with_a_lease() {
    let _alone = alone();
    let a = Engine::start(config("a")).unwrap();
    let ours = a.devices().unwrap();
    let tensor = ours.to_device(&host(50_000, 4), 0).unwrap();
    let mut other = Other::new("reader", &a);
    for edge in 0..8 {
        received(&a, &key("b", "a", &format!("up{edge}")));
    }
    a.step(STEP).send(&key("a", "b", "value"), tensor).unwrap();
    other.await_ready();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(blocks(&a), 1, "the child reads it");
    drop(other);
    until("the memory comes home", || blocks(&a) == 0);
}

#[test]
fn no_stream_waits_for_a_process_that_died() {
    let alone = alone();
    let a = Engine::start(config("a")).unwrap();
    let ours = a.devices().unwrap();
    let mut other = Other::new("writer", &a);
    for edge in 0..8 {
        received(&a, &key("b", "a", &format!("up{edge}")));
    }
    a.step(STEP)
        .send(&key("a", "b", "go"), Tensor::scalar(1_u8))
        .unwrap();
    let got = received(&a, &key("b", "a", "value")).tensor;
    other.await_ready();
    assert!(got.is_leased() && !got.readiness().is_ready());
    let stream = ours.stream(0).unwrap();
    ours.order(&got, &stream).unwrap();
    assert_eq!(alone.played.pending(stream.handle() as usize), 2);
    drop(other);
    until("the stream goes on", || {
        alone.played.pending(stream.handle() as usize) == 0
    });
    let status = ours.order(&got, &stream).unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_LOST);
    assert_eq!(
        ours.to_host(&got).unwrap_err().reason(),
        catalogue::DEVICE_LOST
    );
    // The memory is there as long as it is held, and goes when it is dropped.
    drop(got);
    until("nothing is kept", || ours.kept() == (0, 0));
}

/// A peer's tensor is sent on before its bytes are there, as a copy, for the third process cannot read it in place. Its
/// producer dies: the copy of what it never wrote had come to the third as a value.
#[test]
fn what_a_dead_process_never_wrote_is_not_sent_on() {
    let _alone = alone();
    let a = Engine::start(config("a")).unwrap();
    let c = Engine::start(config("c")).unwrap();
    a.add_peer(c.task().clone(), c.address().unwrap().clone());
    let ours = a.devices().unwrap();
    let mut other = Other::new("writer", &a);
    for edge in 0..8 {
        received(&a, &key("b", "a", &format!("up{edge}")));
        for (from, to, of) in [(&a, &c, ("a", "c")), (&c, &a, ("c", "a"))] {
            let of = key(of.0, of.1, &format!("up{edge}"));
            from.step(STEP).send(&of, Tensor::scalar(1_u8)).unwrap();
            received(to, &of);
        }
    }
    a.step(STEP)
        .send(&key("a", "b", "go"), Tensor::scalar(1_u8))
        .unwrap();
    let got = received(&a, &key("b", "a", "value")).tensor;
    other.await_ready();
    assert!(got.is_leased() && !got.readiness().is_ready());
    let (on, step) = (key("a", "c", "on"), a.step(STEP));
    let sending = std::thread::spawn(move || step.send(&on, got));
    until("it waits at a gate", || ours.kept().0 > 0);
    drop(other);
    let status = sending.join().unwrap().unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_LOST);
    until("nothing is kept", || ours.kept() == (0, 0));
    assert_eq!(blocks(&a), 0);
}

/// Two engines of one process have no handle of the other's: nothing proves its end.
#[test]
fn no_stream_waits_for_a_peer_whose_end_nothing_proves() {
    let alone = alone();
    let (a, b) = pair(Way::Shm);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    let (writer, reader) = (ours.stream(0).unwrap(), theirs.stream(0).unwrap());
    assert!(alone.played.hold(writer.handle() as usize, true));
    let buffer = ours.buffer(0, meta(4096)).unwrap();
    let tensor = buffer.into_tensor_after(meta(4096), &writer).unwrap();
    let of = key("a", "b", "unwritten");
    a.step(STEP).send(&of, tensor).unwrap();
    let got = received(&b, &of).tensor;
    assert!(got.is_leased() && !got.readiness().is_ready());
    theirs.order(&got, &reader).unwrap();
    assert_eq!(alone.played.pending(reader.handle() as usize), 2);
    a.shutdown(Duration::ZERO);
    until("the stream goes on", || {
        alone.played.pending(reader.handle() as usize) == 0
    });
    let status = theirs.order(&got, &reader).unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_LOST);
    assert!(alone.played.hold(writer.handle() as usize, false));
}

/// The owner's device fails, and its process lives on: it tells its peers, whose calls would else never end.
#[test]
fn no_reader_waits_for_a_device_that_has_failed_in_a_process_that_lives() {
    let alone = alone();
    let (a, b) = pair(Way::Shm);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    let writer = ours.stream(0).unwrap();
    assert!(alone.played.hold(writer.handle() as usize, true));
    let buffer = ours.buffer(0, meta(4096)).unwrap();
    let tensor = buffer.into_tensor_after(meta(4096), &writer).unwrap();
    let of = key("a", "b", "unwritten");
    a.step(STEP).send(&of, tensor.clone()).unwrap();
    let got = received(&b, &of).tensor;
    assert!(got.is_leased() && !got.readiness().is_ready());
    let (told, hears) = std::sync::mpsc::channel();
    let reader = theirs.clone();
    let of = got.clone();
    std::thread::spawn(move || told.send(reader.to_host(&of).map(drop)));
    until("the reader waits at a gate", || theirs.kept().0 > 0);
    alone.played.break_devices(710);
    let is_lost = |tensor: &Tensor| match tensor.readiness() {
        Readiness::Ready => false,
        Readiness::After(event) => event.is_lost(),
    };
    until("the owner knows", || is_lost(&tensor));
    assert!(is_lost(&got));
    // The reader's own device works.
    alone.played.heal();
    let status = hears.recv_timeout(PATIENCE).expect("it ends").unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_LOST);
    let status = ours.order(&tensor, &ours.stream(0).unwrap()).unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_LOST);
    assert!(alone.played.hold(writer.handle() as usize, false));
}
