//! Calls of one process to another, and what a value there and back costs without them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rendez::control::Address;
use rendez::engine::{Config, Engine};
use rendez::ground::{DType, Shape};
use rendez::memory::Tensor;
use rendez_autograd::autograd::{Mode, Options as PassOptions};
use rendez_autograd::remote::Joining;
use rendez_autograd::tape::{Tape, Var};
use rendez_autograd::worker::Worker as Autograd;
use rendez_rpc::{Agent, Error, Functions, Options, Worker, wait_all};

use super::Failure;
use super::cores::{self, Side};
use super::figures::{Figure, Figures};
use super::process::{Other, say};

const CALLS: usize = 2_000;
const IN_FLIGHT: usize = 200;
const BATCHES: usize = 20;
const LARGE: u64 = 16 << 20;
const LARGE_CALLS: usize = 200;
const READS: usize = 10;
const PASSES: usize = 300;
const PINGS: u64 = 20_000;
const LONG: Duration = Duration::from_secs(60);

fn engine(task: &str) -> Result<Engine, Failure> {
    let mut config = Config::new(task);
    (config.shards, config.share_cores) = (1, true);
    // Longer than it takes to read what is passed: as one would set it who passes such values.
    config.spin = Duration::from_millis(2);
    config.arena.segment_bytes = 64 << 20;
    Ok(Engine::start(config)?)
}

/// 16 MiB of the engine's own memory.
fn large(engine: &Engine) -> Result<Tensor, Failure> {
    let mut tensor = engine.tensor(DType::U64, &[LARGE / 8])?;
    tensor.as_mut_slice::<u64>()?.fill(3);
    Ok(tensor.finish())
}

/// One pass over a tensor's bytes.
fn read(tensor: &Tensor) -> u64 {
    let sum = |words: &[u64]| {
        words
            .iter()
            .fold(0, |sum: u64, word| sum.wrapping_add(*word))
    };
    tensor.as_slice::<u64>().map_or(0, sum)
}

fn functions(kept: Tensor) -> Functions {
    let double = |x: Var| -> Result<Var, Error> { x.scale(2.0).map_err(Error::local) };
    Functions::new()
        .add_in_shard("shard", |value: u32| value)
        .add("pool", |value: u32| value)
        .add_in_shard("size", |tensor: Tensor| tensor.size() as u64)
        .add_in_shard("large", move || kept.clone())
        .add("read", |tensor: Tensor| read(&tensor))
        .add_in_shard("double", double)
}

fn start(
    engine: &Engine,
    at: u16,
    [first, second]: [&str; 2],
    address: Option<Address>,
) -> Result<(Agent, Autograd<Tape>), Failure> {
    let joining = Joining::new(engine);
    let mut other = Worker::new("second", second);
    other.address = address;
    let options = Options::of_workers([Worker::new("first", first), other])
        .functions(functions(large(engine)?));
    let name = ["first", "second"][usize::from(at)];
    let agent = Agent::init(engine, name, joining.options(options))?;
    let autograd = joining.attach(&agent)?;
    Ok((agent, autograd))
}

/// The process that is called.
pub(crate) fn callee(first: &str, second: &str) -> Result<(), Failure> {
    cores::pin(Side::Callee)?;
    let engine = engine(second)?;
    let address = engine.address().ok_or("it does not listen")?;
    say(&address.to_string())?;
    let (agent, _autograd) = start(&engine, 1, [first, second], None)?;
    agent.shutdown(Duration::ZERO)?;
    Ok(())
}

/// The one that calls.
pub(crate) struct Caller {
    agent: Agent,
    autograd: Autograd<Tape>,
    large: Tensor,
    callee: Other,
}

impl Caller {
    pub(crate) fn start() -> Result<Self, Failure> {
        let id = std::process::id();
        let (first, second) = (
            format!("/job:first_{id}/task:0"),
            format!("/job:second_{id}/task:0"),
        );
        let mut callee = Other::start(&["callee", &first, &second])?;
        let address: Address = callee.line()?.parse()?;
        cores::pin(Side::Caller)?;
        let engine = engine(&first)?;
        let (agent, autograd) = start(&engine, 0, [&first, &second], Some(address))?;
        Ok(Self {
            agent,
            autograd,
            large: large(&engine)?,
            callee,
        })
    }

    pub(crate) fn end(self) -> Result<(), Failure> {
        self.agent.shutdown(LONG)?;
        self.callee.end()
    }

    fn sync(&self, function: &str) -> Result<Figure, Failure> {
        Figure::timed(CALLS, || {
            self.agent.rpc_sync::<u32>("second", function, (7_u32,))?;
            Ok(())
        })
    }

    fn in_flight(&self, function: &str) -> Result<Figure, Failure> {
        let began = Instant::now();
        for _ in 0..BATCHES {
            let call = |_| self.agent.rpc_async::<u32>("second", function, (7_u32,));
            wait_all((0..IN_FLIGHT).map(call).collect::<Result<Vec<_>, _>>()?)?;
        }
        let calls = (BATCHES * IN_FLIGHT) as f64;
        Ok(Figure::Rate(calls / began.elapsed().as_secs_f64()))
    }

    fn argument(&self, function: &str, times: usize) -> Result<Figure, Failure> {
        Figure::timed(times, || {
            let args = (self.large.clone(),);
            self.agent.rpc_sync::<u64>("second", function, args)?;
            Ok(())
        })
    }

    fn result(&self, times: usize, mut with: impl FnMut(&Tensor)) -> Result<Figure, Failure> {
        Figure::timed(times, || {
            let tensor: Tensor = self.agent.rpc_sync("second", "large", ())?;
            with(&tensor);
            Ok(())
        })
    }

    fn forward_backward(&self, mode: Mode) -> Result<Figure, Failure> {
        let options = PassOptions {
            mode,
            ..PassOptions::default()
        };
        let tape = self.autograd.engine();
        let weights = Tensor::from_vec(vec![1.0_f32; 64], Shape::from([8, 8]))?;
        Figure::timed(PASSES, || {
            let w = tape.leaf(weights.clone());
            let scope = self.autograd.scope()?;
            let y: Var = self.agent.rpc_sync("second", "double", (w.clone(),))?;
            let roots = [y.total()?];
            self.autograd.backward(scope.id(), &roots, options)?;
            let count = scope.gradients()?.len();
            if count == 1 {
                Ok(())
            } else {
                Err("no gradient".into())
            }
        })
    }

    pub(crate) fn round(&self) -> Result<Figures, Failure> {
        let pass = Figure::timed(READS, || {
            std::hint::black_box(read(&self.large));
            Ok(())
        })?;
        let read_argument = self.argument("read", READS)?;
        let read_result = self.result(READS, |tensor| {
            std::hint::black_box(read(tensor));
        })?;
        let over = |figure: Figure| Figure::Ratio(figure.first() / pass.first());
        let mut figures = self.passes()?;
        figures.extend([
            ("raw ping-pong of cache lines, there and back", ping_pong()),
            ("sync 4 B, shard", self.sync("shard")?),
            ("sync 4 B, pool", self.sync("pool")?),
            ("200 in flight, 4 B, shard", self.in_flight("shard")?),
            ("200 in flight, 4 B, pool", self.in_flight("pool")?),
            (
                "16 MiB argument, untouched",
                self.argument("size", LARGE_CALLS)?,
            ),
            (
                "16 MiB result, untouched",
                self.result(LARGE_CALLS, |_| ())?,
            ),
            ("16 MiB argument, read", read_argument),
            ("16 MiB argument, read, over one pass", over(read_argument)),
            ("16 MiB result, read", read_result),
            ("16 MiB result, read, over one pass", over(read_result)),
            ("16 MiB, one pass", pass),
        ]);
        Ok(figures)
    }

    /// Forward and backward passes alone.
    pub(crate) fn passes(&self) -> Result<Figures, Failure> {
        Ok(Figures::from([
            (
                "forward and backward, 8 × 8",
                self.forward_backward(Mode::Smart)?,
            ),
            (
                "forward and backward, 8 × 8, fast mode",
                self.forward_backward(Mode::Fast)?,
            ),
        ]))
    }
}

/// Two threads that write a line each, and read the other's.
fn ping_pong() -> Figure {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let await_turn = |line: &Line, turn| {
        let mut looks = 0_u32;
        while line.0.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
            looks += 1;
            // Both may be on one core, where no other thread takes it from them.
            if looks.is_multiple_of(10_000) {
                std::thread::yield_now();
            }
        }
    };
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            cores::pin(Side::Callee).expect("a core of those it was given");
            for turn in 1..=PINGS {
                await_turn(&there, turn);
                back.0.store(turn, Ordering::Release);
            }
        });
        let began = Instant::now();
        for turn in 1..=PINGS {
            there.0.store(turn, Ordering::Release);
            await_turn(&back, turn);
        }
        began.elapsed()
    });
    Figure::of(vec![took.div_f64(PINGS as f64)])
}
