//! A measurement between two hosts: the far side waits for one near side after another and is told its errand by key.
//!
//! Knows keys, addresses and which peers may come in; what is measured is the same as between two processes. The far
//! side has one engine for all peers. Each errand has a step of its own, named by the near side's incarnation, so
//! nothing of one measurement can meet the next.

use std::cell::Cell;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use futures_lite::future::{block_on, poll_once};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGUSR1;

use super::super::args::{BenchArgs, From};
use super::super::bench::{Measured, check};
use super::super::error::CliError;
use super::super::machine;
use super::super::serve::signals;
use super::super::settings::SettingArgs;
use super::super::terminal::Terminal;
use super::super::units::show_bytes;
use super::super::weights::printable_lines;
use super::{ARRIVAL, Job, Keys, PATIENCE, STEP, failed, far};
use rendez::control::Address;
use rendez::engine::{Config, Engine};
use rendez::ground::{Code, Key, Shape, Status, StepId, catalogue};
use rendez::memory::Tensor;

/// The longest measurement that the far side takes part in.
const ERRAND_MAX: Duration = Duration::from_secs(3600);

/// When the user hears that it is not there yet.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How often the far side looks whether it was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the far side is told.
#[derive(Serialize, Deserialize, Debug)]
struct Errand {
    /// The step everything happens in.
    step: u64,
    /// Which start of a kernel this is: only within one do two processes read the same clock.
    boot: String,
    job: Job,
}

/// The keys around a measurement.
struct Lobby {
    /// Near to far, in the step of all: an [`Errand`].
    errand: Key,
    /// Far to near: it is ready, and whether both run on one kernel; dead, with the reason, if it refuses.
    ready: Key,
    /// Near to far: it is over.
    over: Key,
}

impl Lobby {
    fn new() -> Result<Self, CliError> {
        let key =
            |from, to, edge| Key::between(from, to, edge).map_err(|error| failed(&error.into()));
        Ok(Self {
            errand: key("near", "far", "errand")?,
            ready: key("far", "near", "ready")?,
            over: key("near", "far", "over")?,
        })
    }
}

/// Where the far side is, and what it wants to know of us.
#[derive(Clone, Debug)]
pub(super) struct FarHost {
    address: Address,
    security: Config,
}

impl FarHost {
    pub(super) fn of(args: &BenchArgs, at: &Address) -> Result<Self, CliError> {
        check_is_tcp("--connect", at)?;
        Ok(Self {
            address: at.clone(),
            security: security(args)?,
        })
    }

    /// Makes a near side of `config`: it dials, and does not listen.
    pub(super) fn settle(&self, config: &mut Config) {
        config.listen = None;
        secure(config, &self.security);
    }

    /// Sends the far side on its errand, and returns when it is ready.
    pub(super) fn visit(&self, near: &Engine, job: Job) -> Result<Visit, CliError> {
        let lobby = Lobby::new()?;
        let step = StepId(near.incarnation().0);
        let keys = Keys::new(step)?;
        let far = keys.there.destination_task();
        near.add_peer(far.clone(), self.address.clone());
        // Else a wait for what it sends would end in no more than that time is over.
        let reached = near.reach(far, AT_ONCE).or_else(|status| {
            // It is there, and refuses us.
            if status.code() != Code::Unavailable {
                return Err(status);
            }
            let (why, at) = (status.message(), &self.address);
            tracing::warn!(
                "the far side does not answer yet ({why}); start `rendez bench --listen` at {at}"
            );
            near.reach(far, ARRIVAL)
        });
        reached.map_err(|status| {
            if status.code() != Code::Unavailable {
                return failed(&status);
            }
            let message = format!(
                "{}; the far side is to be started with `rendez bench --listen {}`",
                status.message(),
                self.address
            );
            CliError::failure(status.reason(), message)
        })?;
        let errand = Errand {
            step: step.0,
            boot: boot(),
            job,
        };
        let errand = serde_json::to_vec(&errand).unwrap_or_default();
        let sent = text(errand).and_then(|errand| near.step(STEP).send(&lobby.errand, errand));
        sent.map_err(|status| failed(&status))?;
        let ready = near.step(step).recv(&lobby.ready).deadline(PATIENCE).wait();
        let ready = ready.map_err(|status| failed(&status))?;
        if ready.is_dead {
            let why = String::from_utf8_lossy(ready.tensor.host().unwrap_or_default()).into_owned();
            return Err(CliError::failure(
                "BENCH_FAR_REFUSED",
                printable_lines(&why),
            ));
        }
        Ok(Visit {
            near: near.clone(),
            is_one_clock: ready.tensor.host() == Ok(&[1]),
            keys,
            over: lobby.over,
        })
    }
}

/// An errand under way; it is over when this ends.
pub(super) struct Visit {
    near: Engine,
    is_one_clock: bool,
    keys: Keys,
    over: Key,
}

impl Visit {
    pub(super) const fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Takes out of the figures what two hosts cannot know.
    pub(super) fn correct(&self, measured: &mut Measured) {
        if !self.is_one_clock && measured.one_way.take().is_some() {
            measured.overdue = 0;
            let note = "two hosts have two clocks: no one-way latency";
            measured.notes.push(note.to_owned());
        }
    }

    pub(super) fn end(&mut self) {
        // A far side that is gone needs not be told.
        let _ = self
            .near
            .step(self.keys.step)
            .send(&self.over, Tensor::scalar(1u8));
    }
}

/// The far side: serves one near side after another until it is interrupted.
///
/// # Errors
/// What is wrong with the address, or keeps the engine from listening there.
pub fn listen(args: &BenchArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    check(args)?;
    let Some(address) = &args.listen else {
        return Err(CliError::usage("USAGE", "--listen wants an address"));
    };
    check_is_tcp("--listen", address)?;
    let interrupts = signals()?;
    let pair = machine::pair()?;
    let lobby = Lobby::new()?;
    let mut config = Config::new("/job:far/replica:0/task:0");
    config.shards = 1;
    config.cores = vec![pair.far];
    config.share_cores = pair.is_shared();
    config.poll = args.poll().into();
    config.listen = Some(address.clone());
    secure(&mut config, &security(args)?);
    let engine = Engine::start(config).map_err(|status| failed(&status))?;
    let at = engine.tcp_address().map(ToString::to_string);
    terminal.line(format!(
        "waits at {}; measure with rendez bench --connect there",
        at.unwrap_or_default()
    ))?;
    let is_over = heard_end(&interrupts);
    while !is_over() {
        match engine
            .step(STEP)
            .recv(&lobby.errand)
            .deadline(LOOK_EVERY)
            .wait()
        {
            Ok(received) => {
                let errand = serde_json::from_slice(received.tensor.host().unwrap_or_default());
                drop(received);
                let Ok(errand) = errand else { continue };
                let line = run_errand(&engine, &lobby, &errand, pair.far, &is_over);
                terminal.line(line)?;
            }
            // No peer came, or the last one is gone.
            Err(status) if status.code() == Code::DeadlineExceeded => {}
            Err(_) => std::thread::sleep(LOOK_EVERY / 10),
        }
    }
    engine.shutdown(LOOK_EVERY);
    Ok(())
}

/// Whether a signal to end came. It comes once, and both the measurement that it breaks off and the wait for the next
/// one ask.
fn heard_end(signals: &Receiver<i32>) -> impl Fn() -> bool {
    let has_come = Cell::new(false);
    move || {
        if signals.try_iter().any(|signal| signal != SIGUSR1) {
            has_come.set(true);
        }
        has_come.get()
    }
}

/// One measurement, from the far side. Returns what to say of it.
fn run_errand(
    engine: &Engine,
    lobby: &Lobby,
    errand: &Errand,
    core: usize,
    is_over: &impl Fn() -> bool,
) -> String {
    let Errand { job, .. } = *errand;
    let what = format!("{} at {}", job.pattern.name(), show_bytes(job.bytes));
    let step = engine.step(StepId(errand.step));
    let length = job.warmup.saturating_add(job.duration);
    let is_one_clock = errand.boot == boot();
    let begun = if length > ERRAND_MAX || errand.step == STEP.0 {
        let message = format!("the far side takes part in measurements of up to {ERRAND_MAX:?}");
        Err(CliError::usage("DURATION_OUT_OF_RANGE", message))
    } else {
        let job = Job {
            receives: job.receives.clamp(1, 64),
            ..job
        };
        Keys::new(StepId(errand.step))
            .and_then(|keys| far::begin(engine, job, keys, From::Shard, core))
    };
    if let Err(error) = begun {
        let told = text(error.to_string().into_bytes());
        let _ = told.and_then(|why| step.send_dead(&lobby.ready, why));
        return format!("{what}: refused: {error}");
    }
    let until = length + 2 * PATIENCE;
    // Begun before anything is said: it is the last that the near side sends before it goes.
    let over = step.recv(&lobby.over).deadline(until).start();
    let ready = step.send(&lobby.ready, Tensor::scalar(u8::from(is_one_clock)));
    let ended = ready.and(over).and_then(|mut over| {
        loop {
            if let Some(ended) = block_on(poll_once(&mut over)) {
                return ended.map(drop);
            }
            if is_over() {
                return Err(Status::of(catalogue::SHUTDOWN, "interrupted"));
            }
            std::thread::sleep(LOOK_EVERY / 4);
        }
    });
    let said = match &ended {
        Ok(()) => format!("{what}: done"),
        Err(status) => format!("{what}: broken off: {}", status.message()),
    };
    // Whatever task is left of it ends with its step.
    let why = Status::new(
        Code::Aborted,
        catalogue::SHUTDOWN,
        "the measurement is over",
    );
    step.abort(why);
    said
}

/// What files, variables and these options say of which peers may come in.
fn security(args: &BenchArgs) -> Result<Config, CliError> {
    let mut flags = Vec::new();
    if let Some(file) = &args.cluster_secret_file {
        flags.push(("cluster_secret_file", file.display().to_string()));
    }
    if args.insecure {
        flags.push(("insecure", "true".to_owned()));
    }
    let settings = SettingArgs { file: None, flags };
    Ok(settings.load()?.config)
}

/// Takes the settings of which peers may come in, and nothing else, from `security`.
fn secure(config: &mut Config, security: &Config) {
    config
        .cluster_secret_file
        .clone_from(&security.cluster_secret_file);
    config.cluster_secret_fd = security.cluster_secret_fd;
    config.tls_cert.clone_from(&security.tls_cert);
    config.tls_key.clone_from(&security.tls_key);
    config.tls_ca.clone_from(&security.tls_ca);
    config.tls_kernel = security.tls_kernel;
    config.insecure = security.insecure;
    config.verbs.clone_from(&security.verbs);
}

fn check_is_tcp(option: &str, address: &Address) -> Result<(), CliError> {
    if address.is_tcp() {
        return Ok(());
    }
    let message = format!("{option} {address}: two hosts meet by TCP; use host:port");
    Err(CliError::usage("CONTROL_ADDRESS", message))
}

fn text(bytes: Vec<u8>) -> Result<Tensor, Status> {
    let malformed = |why: &dyn std::fmt::Display| {
        let message = format!("a text of {} bytes: {why}", bytes.len());
        Status::new(Code::InvalidArgument, catalogue::TENSOR_SHAPE, message)
    };
    let shape = Shape::new(&[bytes.len() as u64]).map_err(|error| malformed(&error))?;
    Ok(Tensor::from_vec(bytes, shape)?)
}

/// Names this start of this kernel.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGTERM, SIGUSR1};

    #[test]
    fn an_end_that_a_measurement_heard_of_also_ends_the_wait_for_the_next() {
        let (told, heard) = std::sync::mpsc::channel();
        let is_over = super::heard_end(&heard);
        told.send(SIGUSR1).expect("it is heard");
        assert!(!is_over(), "this asks for a recording");
        told.send(SIGTERM).expect("it is heard");
        assert!(is_over() && is_over());
    }
}
