//! What a hop costs its two shards, in nanoseconds of one core: both turn in one thread, so no cache line travels and
//! nothing waits. What is left is rendez's own work. Ignored: it measures, and holds nothing.
//!
//! `cargo test --release -p rendez-core --test hop_cost -- --ignored --nocapture`

extern crate rendez_core as rendez;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rendez::channel::Rules;
use rendez::drive::{Drive, Driver, PollPolicy, Running};
use rendez::fabric::{AnyPort, DownReason, Geometry, LoopbackPort};
use rendez::ground::device::TaskName;
use rendez::ground::{DType, Incarnation, Key, Nanos, Shape, Status, StepId, TensorMeta, limits};
use rendez::memory::{ArenaConfig, MappedSegment, Segment, Tensor};
use rendez::shard::{Observer, PreparedKey, Settings, Task, TaskContext, TaskEvent};
use rendez::testing::solo::{End, Greeting, Queues, Solo, Team};
use rendez::trace::Clock;

const STEP: StepId = StepId(7);
const TASKS: [&str; 2] = ["/job:a/task:0", "/job:b/task:0"];

struct Deaf;

impl Observer for Deaf {
    fn peer_wanted(&self, _: &TaskName) {}
    fn step_ended(&self, _: StepId, _: &Status) {}
    fn link_down(&self, _: &TaskName, _: u32, _: DownReason) {}
    fn violated(&self, task: &TaskName, _: u32, status: &Status) {
        panic!("{task}: {status}");
    }
    fn segment_added(&self, _: Arc<Segment>) {}
}

/// Two connected shards of two tasks.
fn pair() -> [Solo; 2] {
    pair_by(&Clock::system())
}

fn pair_by(clock: &Clock) -> [Solo; 2] {
    let settings = Settings {
        shards: 1,
        rules: Rules::ALL,
        ..Settings::default()
    };
    let teams = TASKS.map(|task| Team {
        task: TaskName::parse(task).unwrap(),
        incarnation: Incarnation(1 + u64::from(task == TASKS[1])),
        settings,
        clock: clock.clone(),
        arena: ArenaConfig::default(),
        queues: Queues::default(),
    });
    let mut solos = teams.each_ref().map(|team| {
        let ports = |_| vec![AnyPort::Loopback(LoopbackPort::new())];
        let mut solos = team.muster(ports, |_| Arc::new(Deaf) as _).unwrap();
        solos.pop().unwrap()
    });
    let geometry = Geometry {
        slots: limits::LINK_SLOTS,
        payload_bytes: limits::LINK_PAYLOAD_BYTES,
    };
    let (one, other) = LoopbackPort::endpoints(geometry).unwrap();
    for (at, end) in [one, other].into_iter().enumerate() {
        let them = 1 - at;
        let segments = solos[them].segments().iter().map(|segment| {
            let fd = segment.fd().try_clone_to_owned().unwrap();
            let mapped = MappedSegment::open(fd, segment.len() as u64).unwrap();
            (0, segment.index(), Arc::new(mapped))
        });
        let greeting = Greeting {
            task: teams[them].task.clone(),
            incarnation: teams[them].incarnation,
            shards: 1,
            read_domain: true,
            segments: segments.collect(),
            links: vec![(0, End::Loopback(end))],
        };
        solos[at].peer_up(greeting);
    }
    solos
}

fn keys() -> [Key; 2] {
    [
        Key::between("a", "b", "there").unwrap(),
        Key::between("b", "a", "back").unwrap(),
    ]
}

/// Sends back what it hears.
struct Player {
    meta: TensorMeta,
    is_first: bool,
    keys: [Key; 2],
    prepared: Option<[PreparedKey; 2]>,
    tensor: Option<Tensor>,
    count: Arc<AtomicU64>,
}

impl Task for Player {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => {
                let [out, back] = self
                    .keys
                    .each_ref()
                    .map(|key| context.prepare(key).unwrap());
                self.prepared = Some([out, back]);
                self.tensor = Some(context.builder(self.meta).unwrap().finish());
                context.recv(STEP, back, 0);
                if self.is_first {
                    context
                        .send(STEP, out, self.tensor.clone().unwrap())
                        .unwrap();
                }
            }
            TaskEvent::Received { outcome, .. } => {
                let received = outcome.unwrap();
                let [out, back] = self.prepared.unwrap();
                context
                    .send(STEP, out, self.tensor.clone().unwrap())
                    .unwrap();
                context.recv(STEP, back, 0);
                drop(received);
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// Sends to itself what it waits for, a burst in a turn.
struct Alone {
    meta: TensorMeta,
    prepared: Option<PreparedKey>,
    tensor: Option<Tensor>,
    count: Arc<AtomicU64>,
}

impl Task for Alone {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => {
                let key = Key::between("a", "a", "here").unwrap();
                self.prepared = Some(context.prepare(&key).unwrap());
                self.tensor = Some(context.builder(self.meta).unwrap().finish());
                context.again();
            }
            TaskEvent::Again => {
                for _ in 0..BURST {
                    let (key, tensor) = (self.prepared.unwrap(), self.tensor.clone().unwrap());
                    context.recv(STEP, key, 0);
                    context.send(STEP, key, tensor).unwrap();
                }
                context.again();
            }
            TaskEvent::Received { outcome, .. } => {
                drop(outcome.unwrap());
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// Keeps a burst on its way, or takes it.
struct Streamer {
    meta: TensorMeta,
    key: Key,
    is_source: bool,
    /// Receives that it keeps open.
    receives: u64,
    sent: u64,
    prepared: Option<PreparedKey>,
    tensor: Option<Tensor>,
    count: Arc<AtomicU64>,
}

const BURST: u64 = 64;

impl Task for Streamer {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => {
                let key = context.prepare(&self.key).unwrap();
                self.prepared = Some(key);
                self.tensor = Some(context.builder(self.meta).unwrap().finish());
                if self.is_source {
                    context.again();
                } else {
                    for _ in 0..self.receives {
                        context.recv(STEP, key, 0);
                    }
                }
            }
            TaskEvent::Again => {
                while self.sent - self.count.load(Ordering::Relaxed) < BURST {
                    self.sent += 1;
                    let tensor = self.tensor.clone().unwrap();
                    context.send(STEP, self.prepared.unwrap(), tensor).unwrap();
                }
                context.again();
            }
            TaskEvent::Received { outcome, .. } => {
                drop(outcome.unwrap());
                context.recv(STEP, self.prepared.unwrap(), 0);
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// Turns both until `count` has grown by `hops`; nanoseconds for one, the least of several batches.
fn nanos(solos: &mut [Solo; 2], count: &AtomicU64, hops: u64) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..30 {
        let (start, first) = (Instant::now(), count.load(Ordering::Relaxed));
        while count.load(Ordering::Relaxed) - first < hops {
            solos[0].spin();
            solos[1].spin();
        }
        let done = count.load(Ordering::Relaxed) - first;
        least = least.min(start.elapsed().as_nanos() as f64 / done as f64);
    }
    least
}

/// `BYTES=4` measures that size alone, for a profiler.
fn sizes(usual: &[u64]) -> Vec<u64> {
    let one = std::env::var("BYTES")
        .ok()
        .and_then(|bytes| bytes.parse().ok());
    one.map_or_else(|| usual.to_vec(), |bytes| vec![bytes])
}

fn meta(bytes: u64) -> TensorMeta {
    TensorMeta::new(DType::U8, Shape::new(&[bytes]).unwrap()).unwrap()
}

/// Two shards whose tasks play, and how often a value has come.
fn players(bytes: u64) -> ([Solo; 2], Arc<AtomicU64>) {
    let mut solos = pair();
    let count = Arc::new(AtomicU64::new(0));
    for (at, solo) in solos.iter_mut().enumerate() {
        let mut keys = keys();
        if at == 1 {
            keys.reverse();
        }
        solo.spawn(Box::new(Player {
            meta: meta(bytes),
            is_first: at == 0,
            keys,
            prepared: None,
            tensor: None,
            count: Arc::clone(&count),
        }));
    }
    (solos, count)
}

#[test]
#[ignore = "measures"]
fn of_a_ping_pong() {
    for bytes in sizes(&[4, 64, 1024, 65_536]) {
        let (mut solos, count) = players(bytes);
        eprintln!(
            "{bytes:>6} B: {:6.1} ns a hop",
            nanos(&mut solos, &count, 20_000)
        );
    }
}

/// A receive and a send that meet in the table of one shard.
#[test]
#[ignore = "measures"]
fn within_a_shard() {
    for bytes in sizes(&[4, 64, 1024]) {
        let mut solos = pair();
        let count = Arc::new(AtomicU64::new(0));
        solos[0].spawn(Box::new(Alone {
            meta: meta(bytes),
            prepared: None,
            tensor: None,
            count: Arc::clone(&count),
        }));
        eprintln!(
            "{bytes:>6} B: {:6.1} ns a pair within a shard",
            nanos(&mut solos, &count, 20_000)
        );
    }
}

/// Turns each in a thread of its own, on the first two cores of the mask, until `count` has grown by `hops`, 60 times;
/// nanoseconds for one, the median and the least. The calling thread keeps its mask.
fn between_threads(solos: [Solo; 2], count: &AtomicU64, hops: u64) -> (f64, f64) {
    let cores = core_affinity::get_core_ids().unwrap();
    let [mut one, mut other] = solos;
    let is_over = AtomicBool::new(false);
    let mut nanos = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            core_affinity::set_for_current(cores[1 % cores.len()]);
            while !is_over.load(Ordering::Relaxed) {
                other.spin();
            }
        });
        scope.spawn(|| {
            core_affinity::set_for_current(cores[0]);
            let mut seen = count.load(Ordering::Relaxed);
            for _ in 0..60 {
                let (start, first) = (Instant::now(), seen);
                while seen - first < hops {
                    one.spin();
                    seen = count.load(Ordering::Relaxed);
                }
                nanos.push(start.elapsed().as_nanos() as f64 / (seen - first) as f64);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
    nanos.sort_by(f64::total_cmp);
    (nanos[nanos.len() / 2], nanos[0])
}

/// The same with each shard in a thread of its own: now the lines travel.
#[test]
#[ignore = "measures"]
fn of_a_pair_of_threads() {
    for bytes in sizes(&[4, 64, 1024, 65_536]) {
        let (solos, count) = players(bytes);
        let (median, least) = between_threads(solos, &count, 10_000);
        eprintln!("{bytes:>6} B: {median:6.1} ns a hop between two cores, least {least:6.1}");
    }
}

/// The same from a thread of the application, which turns either shard in turn: a send to the one, and a receive from
/// the other, whose value is there by then. Under a profiler, which is told `BYTES`, time is played: 200 ns a hop. A
/// send hears its peers only when some time has passed, and a profiled one takes longer than that.
#[test]
#[ignore = "measures"]
fn of_a_driven_ping() {
    let now = Arc::new(AtomicU64::new(1));
    let clock = match std::env::var_os("BYTES") {
        Some(_) => Clock::simulated(Arc::clone(&now)),
        None => Clock::system(),
    };
    for bytes in sizes(&[4, 64, 1024]) {
        let running = Running {
            driver: Driver::Caller,
            policy: PollPolicy::Adaptive,
            spin: Duration::ZERO,
            is_shared: true,
        };
        let mut solos = pair_by(&clock);
        let settle = |solos: &mut [Solo; 2]| {
            for _ in 0..1000 {
                for solo in &mut *solos {
                    solo.turn();
                }
            }
        };
        settle(&mut solos);
        let drives = solos.map(|solo| {
            let (shard, mailbox) = solo.into_shard();
            let drive = Drive::new(running, mailbox).unwrap();
            drive.adopt(shard).unwrap();
            drive
        });
        let tensor = Tensor::from_slice(&vec![7_u8; bytes as usize], Shape::from([bytes])).unwrap();
        let [there, back] = keys();
        let hop = |from: &Drive, to: &Drive, key: &Key| {
            now.store(now.load(Ordering::Relaxed) + 200, Ordering::Relaxed);
            let mut turn = from.enter().unwrap();
            turn.send(key, STEP, tensor.clone(), false).unwrap();
            drop(turn);
            let turn = to.enter_soon().unwrap();
            let led = turn.receive(key, STEP, Nanos::NEVER, Arc::default);
            assert_eq!(led.outcome.unwrap().received.tensor.size(), bytes as usize);
        };
        let mut least = f64::MAX;
        for _ in 0..30 {
            let start = Instant::now();
            for _ in 0..10_000 {
                hop(&drives[0], &drives[1], &there);
                hop(&drives[1], &drives[0], &back);
            }
            least = least.min(start.elapsed().as_nanos() as f64 / 20_000.0);
        }
        eprintln!("{bytes:>6} B: {least:6.1} ns a hop, driven");
    }
}

/// Two shards of which one streams to the other, and how often a value has come.
fn streamers(bytes: u64, receives: u64) -> ([Solo; 2], Arc<AtomicU64>) {
    let mut solos = pair();
    let count = Arc::new(AtomicU64::new(0));
    for (at, solo) in solos.iter_mut().enumerate() {
        let [key, _] = keys();
        solo.spawn(Box::new(Streamer {
            meta: meta(bytes),
            key,
            is_source: at == 0,
            receives,
            sent: 0,
            prepared: None,
            tensor: None,
            count: Arc::clone(&count),
        }));
    }
    (solos, count)
}

#[test]
#[ignore = "measures"]
fn of_a_stream() {
    for bytes in sizes(&[4, 64, 1024]) {
        for receives in [1, BURST] {
            let (mut solos, count) = streamers(bytes, receives);
            eprintln!(
                "{bytes:>6} B, {receives} open: {:6.1} ns a value, both sides together",
                nanos(&mut solos, &count, 100_000)
            );
        }
    }
}

/// The same with each shard in a thread of its own.
#[test]
#[ignore = "measures"]
fn of_a_stream_of_threads() {
    for bytes in sizes(&[4, 64, 1024]) {
        for receives in [1, BURST] {
            let (solos, count) = streamers(bytes, receives);
            let (median, least) = between_threads(solos, &count, 100_000);
            eprintln!(
                "{bytes:>6} B, {receives} open: {median:6.1} ns a value between two cores, least {least:6.1}"
            );
        }
    }
}
