//! The other side of a hand-over: what a peer does on orders that come as values, in this process or in another.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rendez::engine::{Config, DeviceUse, Engine, Require};
use rendez::ground::{Key, Shape, Status, StepId, TaskName};
use rendez::memory::{Stream, Tensor, TensorBytes};
use rendez_played_cuda::{Played, path};
use rendez_rpc::{Agent, Functions, Options, Worker};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The step of orders and answers.
const ORDERS: StepId = StepId(1);
const PARENT: &str = "RENDEZ_TEST_DEVICE_PARENT";
const DEVICES: &str = "PLAYED_CUDA_DEVICES";
const WITHOUT: &str = "PLAYED_CUDA_WITHOUT";

/// What a peer is told to do; each has a step, a number and a length, which is also the seed of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(super) enum Order {
    /// Receives a value and says what its bytes are.
    Take,
    /// Receives one and keeps it.
    Keep,
    /// Sends back what it keeps.
    GiveBack,
    /// Receives one on a stream that does nothing yet, and lets go of it there.
    TakeLater,
    /// Lets that stream go on.
    GoOn,
    /// Sends one of its own.
    Give,
    /// Sends one whose bytes a copy that is held up writes, and lets that go on a moment after.
    GiveEarly,
    /// Says how many blocks of its devices are out, what it keeps for streams, and what it keeps for ever.
    Count,
    /// A call of its driver fails: the so many'th.
    Fail,
    /// None does; says whether one has.
    Heal,
    /// Is a worker whose functions are called, until both leave.
    Work,
    /// Is over.
    End,
}

const EVERY_ORDER: [Order; 12] = [
    Order::Take,
    Order::Keep,
    Order::GiveBack,
    Order::TakeLater,
    Order::GoOn,
    Order::Give,
    Order::GiveEarly,
    Order::Count,
    Order::Fail,
    Order::Heal,
    Order::Work,
    Order::End,
];

/// Where a value lay when it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lay {
    Host,
    Leased,
    /// It is the very tensor.
    Here,
}

pub(super) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let one = |at: usize| (at * 3 + at / 255 + seed as usize * 41) as u8;
    (0..len).map(one).collect()
}

pub(super) fn host(len: usize, seed: u64) -> Tensor {
    Tensor::from_vec(bytes(len, seed), Shape::from([len as u64])).expect("a shape")
}

pub(super) fn key(from: &str, to: &str, edge: &str) -> Key {
    Key::between(from, to, edge).expect("a key")
}

/// A tensor on a device whose bytes a copy brings that is held up: the copy, and its stream.
pub(super) fn early(engine: &Engine, sent: &Tensor) -> Result<(Tensor, usize), Status> {
    let devices = engine.devices()?;
    let there = devices.to_device(sent, 0)?;
    let lane = devices.lane(0)?;
    let stream = lane.stream().handle() as usize;
    assert!(Played::load().hold(stream, true));
    Ok((devices.copy(&there, lane)?, stream))
}

/// Lets a stream go on in a moment, while others do what they do.
pub(super) fn go_on_soon(stream: usize) -> JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(15));
        assert!(Played::load().hold(stream, false));
    })
}

/// What is used of an engine's devices: blocks, what is kept for streams, and what for ever.
pub(super) fn counts(engine: &Engine) -> [u64; 3] {
    let Ok(devices) = engine.devices() else {
        return [0; 3];
    };
    let blocks = devices.stats().iter().map(|one| one.arena.blocks).sum();
    let (kept, quarantined) = devices.kept();
    [blocks, kept as u64, quarantined]
}

pub(super) fn config(task: &str, require: Require) -> Config {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    (config.shards, config.share_cores) = (2, true);
    config.arena.segment_bytes = 4 << 20;
    config.devices.usage = DeviceUse::Require;
    config.devices.library = Some(path());
    config.devices.segment_bytes = 4 << 20;
    config.devices.bytes_max = 32 << 20;
    config.devices.pinned_bytes = 3 << 16;
    config.require = require;
    if require == Require::Tcp {
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    }
    config
}

/// Every device has its arena before peers are told of them.
pub(super) fn warm(engine: &Engine) {
    let devices = engine.devices().expect("devices");
    for info in devices.list() {
        drop(devices.to_device(&host(64, 0), info.number).expect("room"));
    }
}

/// Says that a peer is there, by keys of all shards: each has a link of its own.
pub(super) fn greet(engine: &Engine, [me, other]: [&str; 2]) {
    for edge in 0..8 {
        let up = key(me, other, &format!("up{edge}"));
        let sent = engine.step(ORDERS).send(&up, Tensor::scalar(1_u8));
        sent.expect("a first value");
    }
}

/// Waits until it is.
pub(super) fn await_greeting(engine: &Engine, [me, other]: [&str; 2]) {
    for edge in 0..8 {
        let up = key(other, me, &format!("up{edge}"));
        let came = engine.step(ORDERS).recv(&up).deadline(PATIENCE).wait();
        came.expect("a first value");
    }
}

/// One that is given orders.
struct Served {
    engine: Engine,
    /// Its own name, and that of who orders.
    names: [String; 2],
    kept: BTreeMap<u64, Tensor>,
    later: Option<Stream>,
}

/// Does what it is told until it is told to end, or no order comes for long.
pub(super) fn serve(engine: Engine, me: &str, other: &str) {
    let names = [me.to_owned(), other.to_owned()];
    let mut served = Served {
        engine,
        names,
        kept: BTreeMap::new(),
        later: None,
    };
    loop {
        let [me, other] = &served.names;
        let (order, answer) = (key(other, me, "order"), key(me, other, "answer"));
        let step = served.engine.step(ORDERS);
        let Ok(words) = step.recv(&order).deadline(2 * PATIENCE).wait() else {
            return;
        };
        let bytes = words.tensor.host().expect("an order lies in the host's");
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight")))
            .collect();
        let order = EVERY_ORDER[words[0] as usize];
        let done = match order {
            Order::End => Ok(Vec::new()),
            order => served.act(order, StepId(words[1]), words[2], words[3]),
        };
        let (code, mut bytes) = match done {
            Ok(bytes) => (0, bytes),
            Err(status) => (1, status.reason().as_bytes().to_vec()),
        };
        bytes.push(code);
        let shape = Shape::from([bytes.len() as u64]);
        let bytes = Tensor::from_vec(bytes, shape).expect("a shape");
        if step.send(&answer, bytes).is_err() || order == Order::End {
            return;
        }
    }
}

impl Served {
    fn take(&self, step: StepId, number: u64) -> Result<Tensor, Status> {
        let key = key(&self.names[1], &self.names[0], &format!("v{number}"));
        let received = self.engine.step(step).recv(&key).deadline(PATIENCE).wait();
        received.map(|received| received.tensor)
    }

    fn give(&self, step: StepId, number: u64, tensor: Tensor) -> Result<(), Status> {
        let key = key(&self.names[0], &self.names[1], &format!("v{number}"));
        self.engine.step(step).send(&key, tensor)
    }

    fn act(
        &mut self,
        order: Order,
        step: StepId,
        number: u64,
        len: u64,
    ) -> Result<Vec<u8>, Status> {
        let played = Played::load();
        match order {
            Order::Take => return seen(&self.engine, &self.take(step, number)?),
            Order::Keep => {
                let tensor = self.take(step, number)?;
                self.kept.insert(number, tensor);
            }
            Order::GiveBack => {
                let tensor = self.kept.remove(&number).expect("it is kept");
                self.give(step, number, tensor)?;
            }
            Order::TakeLater => {
                let tensor = self.take(step, number)?;
                let devices = self.engine.devices()?;
                let device = match tensor.bytes() {
                    TensorBytes::Device(place) => place.device,
                    TensorBytes::Host(_) => return Ok(vec![0]),
                };
                let stream = devices.stream(device)?;
                assert!(played.hold(stream.handle() as usize, true));
                devices.order(&tensor, &stream)?;
                devices.release_after(tensor, &stream)?;
                self.later = Some(stream);
                return Ok(vec![1]);
            }
            Order::GoOn => {
                if let Some(stream) = self.later.take() {
                    assert!(played.hold(stream.handle() as usize, false));
                }
            }
            Order::Give => {
                let tensor = self
                    .engine
                    .devices()?
                    .to_device(&host(len as usize, number), 0)?;
                self.give(step, number, tensor)?;
            }
            Order::GiveEarly => {
                let (tensor, stream) = early(&self.engine, &host(len as usize, number))?;
                let goes_on = go_on_soon(stream);
                let given = self.give(step, number, tensor);
                goes_on.join().expect("the stream is there");
                given?;
            }
            Order::Count => {
                let counts = counts(&self.engine);
                let violations = [played.violations()];
                let words = counts.iter().chain(&violations);
                return Ok(words.flat_map(|word| word.to_ne_bytes()).collect());
            }
            Order::Fail => played.fail(None, number, len as u32),
            Order::Heal => {
                let has_failed = played.has_failed();
                played.heal();
                return Ok(vec![u8::from(has_failed)]);
            }
            Order::Work => {
                let worker = Agent::init(&self.engine, &self.names[0], group());
                let left = worker.and_then(|worker| worker.shutdown(PATIENCE));
                left.map_err(|error| error.status().clone())?;
            }
            Order::End => {}
        }
        Ok(Vec::new())
    }
}

/// Both sides as workers, whose function says what the bytes of a tensor of the host's come to.
pub(super) fn group() -> Options {
    let sum = |tensor: Tensor| {
        let bytes = tensor.host().expect("a tensor of the host's");
        bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>()
    };
    let workers = ["a", "b"].map(|name| Worker::new(name, format!("/job:{name}/task:0")));
    Options::of_workers(workers).functions(Functions::new().add("sum", sum))
}

/// Where a value lies, in the first byte, and its bytes.
pub(super) fn seen(engine: &Engine, tensor: &Tensor) -> Result<Vec<u8>, Status> {
    let lay = match (tensor.is_device(), tensor.is_leased()) {
        (false, _) => Lay::Host,
        (true, true) => Lay::Leased,
        (true, false) => Lay::Here,
    };
    let read = match lay {
        Lay::Host => tensor.clone(),
        _ => engine.devices()?.to_host(tensor)?,
    };
    let mut all = vec![lay as u8];
    all.extend_from_slice(read.host()?);
    Ok(all)
}

/// A peer, as the test that orders it has it.
pub(super) enum Peer {
    Thread(Option<JoinHandle<()>>),
    Process(Child),
}

impl Peer {
    /// In this process.
    pub(super) fn here(engine: Engine, me: &'static str, other: &'static str) -> Self {
        Self::Thread(Some(std::thread::spawn(move || serve(engine, me, other))))
    }

    /// In another, which sees those devices, and lacks that ability.
    pub(super) fn elsewhere(address: &str, sees: &str, without: &str) -> Self {
        let exe = std::env::current_exe().expect("a test has a path");
        let child = Command::new(exe)
            .args(["devices::peer::child", "--exact", "--nocapture"])
            .env(PARENT, address)
            .env(DEVICES, sees)
            .env(WITHOUT, without)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("this program can be run");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let is_ready = |line: std::io::Result<String>| line.is_ok_and(|line| line == "ready");
        assert!(lines.into_iter().any(is_ready), "the peer fails");
        Self::Process(child)
    }

    /// Ends it where it stands, if it is a process.
    pub(super) fn kill(&mut self) -> bool {
        match self {
            Self::Thread(_) => false,
            Self::Process(child) => {
                child.kill().expect("it is ours");
                child.wait().expect("it was ours");
                true
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        match self {
            Self::Thread(thread) if !std::thread::panicking() => {
                let served = thread.take().map(JoinHandle::join);
                assert!(served.is_none_or(|served| served.is_ok()), "the peer fails");
            }
            Self::Thread(_) => {}
            Self::Process(_) => {
                self.kill();
            }
        }
    }
}

/// Tells a peer what to do, and what it answers.
pub(super) fn tell(
    engine: &Engine,
    names: [&str; 2],
    order: Order,
    [step, number, len]: [u64; 3],
) -> Result<Vec<u8>, String> {
    let [me, other] = names;
    let words = [order as u64, step, number, len];
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let words = Tensor::from_vec(words, Shape::from([32])).expect("a shape");
    let step = engine.step(ORDERS);
    step.send(&key(me, other, "order"), words)
        .expect("the peer is there");
    let answer = step
        .recv(&key(other, me, "answer"))
        .deadline(2 * PATIENCE)
        .wait();
    let answer = answer.expect("the peer answers").tensor;
    let mut bytes = answer
        .host()
        .expect("an answer lies in the host's")
        .to_vec();
    match bytes.pop() {
        Some(0) => Ok(bytes),
        _ => Err(String::from_utf8(bytes).expect("a reason")),
    }
}

/// Not a test of its own: another process, which serves.
#[test]
fn child() {
    let Ok(address) = std::env::var(PARENT) else {
        return;
    };
    let require = if address.starts_with("unix:") {
        Require::None
    } else {
        Require::Tcp
    };
    let engine = Engine::start(config("b", require)).expect("an engine");
    warm(&engine);
    let parent = TaskName::parse("/job:a/task:0").expect("a name");
    engine.add_peer(parent, address.parse().expect("an address"));
    greet(&engine, ["b", "a"]);
    std::io::Write::write_all(&mut std::io::stdout(), b"\nready\n").expect("a pipe");
    serve(engine, "b", "a");
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
