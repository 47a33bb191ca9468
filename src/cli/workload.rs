//! The engine as `rendez bench` measures it: each case in fresh engines, the far side in a process of its own.
//!
//! Knows the engine's public face only: what is measured here is what a user of the library can have. The near side
//! runs in this process, in its shard 0 or in an application thread; the far side is this program again under a
//! hidden subcommand, or, over loopback, a second engine of this process, or this program on another machine.

mod far;
mod hosts;
mod local;
mod near;
mod stamps;
mod thread;

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use far::serve;
pub use hosts::listen;

use self::hosts::FarHost;
use super::args::{BenchArgs, BenchPeerArgs, From, Pattern, Transport};
use super::baseline::socket::STREAM_BUFFERS;
use super::bench::{Case, Measured, Workload};
use super::error::CliError;
use super::interrupt::Interrupts;
use super::itself::{self, Other};
use super::machine::{self, Pair};
use super::secret::Inherited;
use super::stopwatch::{Stamp, Stopwatch};
use rendez::control::Address;
use rendez::engine::{Config, Engine, Require};
use rendez::ground::limits::INLINE_MAX;
use rendez::ground::{DType, Key, Shape, Status, StepId, TaskName, TensorMeta};
use rendez::memory::Tensor;

/// The hidden subcommand of the far side.
pub const PEER_COMMAND: &str = "bench-peer";

/// The step everything happens in, where engines serve one measurement only.
pub(crate) const STEP: StepId = StepId(1);

/// How long the far side may take to come, and to say anything, beyond the time it measures. Long: beside other work,
/// or in an emulated machine, shards that spin leave little time to what connects.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the other host's side is dialled: its user has just started it, or mistyped its address.
const ARRIVAL: Duration = Duration::from_secs(20);

/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Larger values are large: they go by landings or leases, and few of them are on their way at once.
pub(crate) const SMALL_MAX: u64 = 65_536;

/// The engine, as a workload.
#[derive(Debug)]
pub struct Engines {
    /// Where the far side is, if not on this machine.
    far_host: Option<FarHost>,
    /// What the two sides of a measurement over this machine's TCP know each other by, once it was needed.
    secret: Option<Inherited>,
}

/// What both sides of a measurement are told.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) pattern: Pattern,
    pub(crate) bytes: u64,
    pub(crate) warmup: Duration,
    pub(crate) duration: Duration,
    pub(crate) rate: Option<f64>,
    pub(crate) check: bool,
    pub(crate) touch: bool,
    /// Receives that the far side of a stream has open at once.
    pub(crate) receives: u64,
}

impl Job {
    pub(crate) const fn of(case: &Case) -> Self {
        // By TCP the next landing must be open before the one before is full; a lease has nothing to wait for.
        let receives = match case.transport {
            Transport::Tcp | Transport::Verbs if case.bytes > SMALL_MAX => STREAM_BUFFERS,
            Transport::Tcp | Transport::Verbs if case.bytes > INLINE_MAX as u64 => 16,
            _ => 1,
        };
        Self {
            pattern: case.pattern,
            bytes: case.bytes,
            warmup: case.warmup,
            duration: case.duration,
            rate: case.rate,
            check: case.check,
            touch: case.touch,
            receives,
        }
    }

    /// Bytes at the front of each value of a stream that carry its stamp.
    pub(crate) fn stamp_bytes(&self) -> usize {
        match self.pattern {
            Pattern::Oneway if self.bytes >= 4 => self.bytes.min(8) as usize,
            _ => 0,
        }
    }

    /// What the bytes of value `index` of a stream are written with: another for each, where each is written.
    pub(crate) const fn round(&self, index: u64) -> u64 {
        if self.touch { index } else { 1 }
    }
}

/// The step and the keys of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// Where all of it happens.
    pub(crate) step: StepId,
    /// What is measured, near to far.
    pub(crate) there: Key,
    /// What comes back.
    pub(crate) back: Key,
    /// The far side's findings.
    pub(crate) report: Key,
}

impl Keys {
    pub(crate) fn new(step: StepId) -> Result<Self, CliError> {
        let key =
            |from, to, edge| Key::between(from, to, edge).map_err(|error| failed(&error.into()));
        Ok(Self {
            step,
            there: key("near", "far", "there")?,
            back: key("far", "near", "back")?,
            report: key("far", "near", "report")?,
        })
    }
}

impl Engines {
    /// For these options.
    ///
    /// # Errors
    /// What is wrong with the secret and other settings of two hosts.
    pub fn of(args: &BenchArgs) -> Result<Self, CliError> {
        let far_host = args.connect.as_ref().map(|at| FarHost::of(args, at));
        Ok(Self {
            far_host: far_host.transpose()?,
            secret: None,
        })
    }

    /// The secret of the two sides, if the near one is to listen where any process of this machine may dial.
    fn secret(&mut self, case: &Case) -> Result<Option<&Inherited>, CliError> {
        let listens = matches!(case.transport, Transport::Tcp | Transport::Verbs);
        if !listens || self.far_host.is_some() {
            return Ok(None);
        }
        if self.secret.is_none() {
            self.secret = Some(Inherited::new()?);
        }
        Ok(self.secret.as_ref())
    }
}

impl Workload for Engines {
    fn measure(&mut self, case: &Case) -> Result<Measured, CliError> {
        if case.transport == Transport::Local {
            return local::measure(case);
        }
        let job = Job::of(case);
        let pair = machine::pair()?;
        let mut config = config("near", pair.near, &pair, case);
        let secret = self.secret(case)?;
        let variable = secret.map(Inherited::variable);
        config.cluster_secret_fd = secret.map(Inherited::number);
        if let Some(far_host) = &self.far_host {
            far_host.settle(&mut config);
        }
        let near = Engine::start(config).map_err(|status| failed(&status))?;
        let mut keys = Keys::new(STEP)?;
        let far = match (&self.far_host, case.transport) {
            (Some(far_host), _) => {
                let (far_host, near) = (far_host.clone(), near.clone());
                let visit = Interrupts::of_process().leave(move || far_host.visit(&near, job))?;
                keys = visit.keys().clone();
                Far::Elsewhere(visit)
            }
            (None, Transport::Loopback) => Far::Here(far::start(&near, &pair, case, job)?),
            (None, _) => {
                // What does not fit here does not fit there, and is told once.
                drop(
                    near.tensor(DType::U8, &[job.bytes])
                        .map_err(|status| failed(&status))?,
                );
                let mut peer = start_peer(&near, &pair, case, variable)?;
                await_peer(&near, keys.there.destination_task(), &mut peer)?;
                Far::There(peer)
            }
        };
        let measured = match case.from {
            From::Shard => near::measure(&near, job, keys),
            // In a thread of its own: it pins itself, and this one must stay free to place the next case.
            From::Thread => std::thread::scope(|scope| {
                let caller = scope.spawn(|| thread::measure(&near, job, &keys, pair.near));
                caller
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        };
        let measured = measured.map(|mut measured| {
            if let Far::Elsewhere(visit) = &far {
                visit.correct(&mut measured);
            }
            measured
        });
        drop(far);
        near.shutdown(Duration::from_millis(200));
        let mut measured = measured?;
        if near.placement().is_shared {
            measured
                .notes
                .push("shard and caller, or both sides, take turns on one core".to_owned());
        }
        Ok(measured)
    }
}

/// The other side, which ends with this.
enum Far {
    Here(Engine),
    There(Other),
    Elsewhere(hosts::Visit),
}

impl Drop for Far {
    fn drop(&mut self) {
        match self {
            Self::Here(engine) => engine.shutdown(Duration::from_millis(200)),
            // Its standard input ends, and so does it; if it does not, it is ended.
            Self::There(peer) => drop(peer.farewell(Duration::from_secs(1))),
            Self::Elsewhere(visit) => visit.end(),
        }
    }
}

/// One engine with one shard on `core`.
pub(crate) fn engine(
    name: &str,
    core: usize,
    pair: &Pair,
    case: &Case,
) -> Result<Engine, CliError> {
    Engine::start(config(name, core, pair, case)).map_err(|status| failed(&status))
}

fn config(name: &str, core: usize, pair: &Pair, case: &Case) -> Config {
    let mut config = Config::new(format!("/job:{name}/replica:0/task:0"));
    config.shards = 1;
    config.cores = vec![core];
    config.poll = case.poll;
    config.connect_timeout = PATIENCE;
    // A far side that ends is seen to end. One that is silent only has to wait for a core.
    config.failure_detection = PATIENCE / 12;
    config.control = matches!(
        case.transport,
        Transport::Shm | Transport::Tcp | Transport::Verbs
    );
    if let Transport::Tcp | Transport::Verbs = case.transport {
        config.require = match case.transport {
            Transport::Verbs => Require::Verbs,
            _ => Require::Tcp,
        };
        config.listen = Some(Address::Tcp {
            host: Ipv4Addr::LOCALHOST.to_string(),
            port: 0,
        });
    }
    if case.transport == Transport::Verbs {
        // What is measured is one device of each side: the first named is the near side's, the last the far side's.
        let named = std::env::var("RENDEZ_VERBS_DEVICE").unwrap_or_default();
        let mut devices = named.split(',').map(str::trim);
        let device = match name {
            "near" => devices.next(),
            _ => devices.next_back(),
        };
        config.verbs.device = device
            .filter(|device| !device.is_empty())
            .map(str::to_owned);
    }
    // An application thread shares its shard's core where the machine has only these two.
    config.share_cores =
        pair.is_shared() || (case.from == From::Thread && machine::affinity().len() < 4);
    config.arena.segment_bytes =
        usize::try_from(case.bytes.saturating_mul(4).clamp(64 << 20, 1 << 30)).unwrap_or(1 << 30);
    config
}

/// The metadata of a tensor of `bytes` bytes.
pub(crate) fn meta(bytes: u64) -> Result<TensorMeta, CliError> {
    let shape = Shape::new(&[bytes]).map_err(|error| CliError::usage("SIZE", error.to_string()))?;
    TensorMeta::new(DType::U8, shape).map_err(|error| CliError::usage("SIZE", error.to_string()))
}

/// A tensor for values that are sent again and again without being touched.
pub(crate) fn ready_tensor(engine: &Engine, bytes: u64) -> Result<Tensor, CliError> {
    let mut builder = engine
        .tensor(DType::U8, &[bytes])
        .map_err(|status| failed(&status))?;
    super::baseline::touch::write(builder.bytes_mut(), 1);
    Ok(builder.finish())
}

/// Waits for what a task sends when it is done.
pub(crate) fn await_outcome(
    outcome: &mpsc::Receiver<Result<Measured, Status>>,
    job: Job,
) -> Result<Measured, CliError> {
    match outcome.recv_timeout(job.warmup + job.duration + PATIENCE) {
        Ok(Ok(measured)) => Ok(measured),
        Ok(Err(status)) => Err(failed(&status)),
        Err(_) => Err(CliError::failure(
            "BENCH_STALLED",
            "the measurement did not end: the other side has stopped, or the machine is overloaded; try again",
        )),
    }
}

pub(crate) fn failed(status: &Status) -> CliError {
    CliError::failure(status.reason(), status.message())
}

/// Starts the far side in its own process.
fn start_peer(
    near: &Engine,
    pair: &Pair,
    case: &Case,
    secret: Option<(&str, String)>,
) -> Result<Other, CliError> {
    let address = match case.transport {
        Transport::Tcp | Transport::Verbs => near.tcp_address(),
        _ => near.address(),
    };
    let address = address.map(ToString::to_string).unwrap_or_default();
    let args = BenchPeerArgs::of(case, address, pair.far, pair.is_shared());
    let mut command = itself::again();
    command.arg(PEER_COMMAND).args(args.to_arguments());
    command.envs(secret);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    Other::spawn(&mut command).map_err(|error| {
        CliError::failure(
            "BENCH_PEER_DIED",
            format!(
                "cannot start the other process: {}",
                itself::refused(&error)
            ),
        )
    })
}

/// Waits until the other process is connected. It dials: if that fails it says why, and ends.
fn await_peer(near: &Engine, far: &TaskName, peer: &mut Other) -> Result<(), CliError> {
    let interrupts = Interrupts::of_process();
    let until = Instant::now() + 2 * PATIENCE;
    let is_there = || near.connected().iter().any(|other| other.task == *far);
    // After that the measurement says what it waits for.
    while Instant::now() < until && !is_there() {
        interrupts.check()?;
        if peer.ended().is_some() {
            let message =
                "the other process ended before it was connected; its own words stand above";
            return Err(CliError::failure("BENCH_PEER_DIED", message));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// What a side of a measurement needs of time.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    pub(crate) stopwatch: Stopwatch,
    pub(crate) warmup: u64,
    pub(crate) duration: u64,
    pub(crate) interrupts: Interrupts,
}

impl Timing {
    pub(crate) fn new(job: Job) -> Self {
        let stopwatch = Stopwatch::calibrated();
        Self {
            warmup: stopwatch.ticks(job.warmup),
            duration: stopwatch.ticks(job.duration),
            stopwatch,
            interrupts: Interrupts::of_process(),
        }
    }

    /// Whether what has `began` is over `now`: after so many ticks, or by an interrupt.
    #[inline]
    pub(crate) fn is_over(&self, began: Stamp, now: Stamp, ticks: u64) -> bool {
        now.0 - began.0 >= ticks || self.interrupts.came()
    }
}

#[cfg(test)]
mod tests;
