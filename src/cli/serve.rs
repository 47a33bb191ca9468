//! `rendez serve`: one task of a cluster, until it is told to stop.
//!
//! Knows servers and signals; what it serves beside its engine's services is nothing: other programs are tasks by
//! using the library.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

use super::error::CliError;
use super::exchange::{self, Manifest, Sink, Taken};
use super::meeting::Board;
use super::push_files::PushFiles;
use super::settings::{SettingArgs, resolved};
use super::terminal::Terminal;
use super::units;
use rendez::cluster::Resolved;
use rendez::control::Services;
use rendez::engine::{Engine, Loaded};
use rendez::ground::{TaskName, catalogue};
use rendez::trace::Path;
use rendez_dataflow::server::Server;

/// How soon a signal is heard while the server starts or checks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Options of `serve`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct ServeArgs {
    /// First hand a small real file to every other task and take it from each, and check every byte.
    #[arg(long)]
    pub check: bool,
    /// End when that is done.
    #[arg(long, requires = "check")]
    pub once: bool,
    /// How long the other tasks may take to appear, instead of connect_timeout; and what they send for a check, up to 3
    /// seconds more for each piece. After a failed check this task goes on for `drain_timeout`, for tasks that
    /// are still taking from it.
    #[arg(long, value_parser = units::positive_duration, default_value = "60s", value_name = "TIME")]
    pub patience: Duration,
    /// End when the process that started this one ends.
    #[arg(long, hide = true)]
    pub with_parent: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Runs it.
///
/// # Errors
/// What is wrong with the settings or the cluster; what a check found.
pub fn run(args: &ServeArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let signals = signals()?;
    if args.with_parent {
        // Refused by no kernel that rendez runs on; the parent also stops its children in good order.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    }
    let (server, resolved) = start_unless_stopped(args, &signals)?;
    let engine = server.engine()?;
    let target = server.target();
    terminal.line(format!(
        "{} of {} tasks ({}: {}), {}",
        server.task(),
        server.cluster().len(),
        resolved.source,
        resolved.origin,
        target.map_or_else(
            || "for this machine only".into(),
            |target| format!("at {target}")
        )
    ))?;
    let checked = if args.check {
        thread::scope(|scope| {
            let (tell, told) = mpsc::sync_channel(1);
            let (server, engine, terminal) = (&server, &engine, &mut *terminal);
            let thread = thread::Builder::new().spawn_scoped(scope, move || {
                let _ = tell.send(check(server, engine, args.patience, terminal));
            });
            thread.map_err(|error| no_thread("check", &error))?;
            told_before_end(&told, &signals, || tracing::info!("{}", dumped(engine)))
                .unwrap_or_else(|| {
                    // All that the check waits for ends with the engine, and what it has under way is void.
                    server.stop(Some(Duration::ZERO));
                    Err(stopped("it had checked all files"))
                })
        })
    } else {
        Ok(())
    };
    let mut said = Ok(());
    if checked.is_ok() && !args.once {
        // An idle server does nothing here: the shards, the control plane and this thread sleep. It goes on without a
        // reader of its output, and drains before it says that it lost one.
        while signals.recv() == Ok(SIGUSR1) {
            let dumped = dumped(&engine);
            if let Err(error) = terminal.line(&dumped) {
                tracing::warn!("{dumped} (standard output: {error})");
            }
        }
        said = terminal.line(format!("{} stops", server.task()));
    }
    // Also after a check that failed: others may still take from this task.
    server.stop(None);
    checked?;
    Ok(said?)
}

/// As [`start_with`], unless this process is asked to end first: the other tasks may be long in coming.
fn start_unless_stopped(
    args: &ServeArgs,
    signals: &Receiver<i32>,
) -> Result<(Server, Resolved), CliError> {
    // Pushes beside this task say here where they listen.
    let services = Board::default().services();
    let (tell, told) = mpsc::sync_channel(1);
    let (settings, patience) = (args.settings.clone(), args.patience);
    let thread = thread::Builder::new().name("rendez-start".into());
    let started = thread.spawn(move || {
        // It is not heard if this process ends first.
        let loaded = settings.load();
        let _ = tell.send(loaded.and_then(|loaded| start_with(loaded, patience, services)));
    });
    started.map_err(|error| no_thread("start the server", &error))?;
    // If it ends here the thread goes with the process: a server that has not met its peers owes them nothing.
    told_before_end(&told, signals, || {}).unwrap_or_else(|| Err(stopped("it had started")))
}

/// What is told, unless this process is asked to end before. `record` is called for each SIGUSR1.
fn told_before_end<T>(
    told: &Receiver<Result<T, CliError>>,
    signals: &Receiver<i32>,
    record: impl Fn(),
) -> Option<Result<T, CliError>> {
    loop {
        match told.recv_timeout(LOOK_EVERY) {
            Ok(outcome) => return Some(outcome),
            Err(RecvTimeoutError::Disconnected) => {
                return Some(Err(CliError::failure(
                    catalogue::TASK_PANICKED,
                    "the thread that started or checked the server panicked",
                )));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        for signal in signals.try_iter() {
            if signal != SIGUSR1 {
                return None;
            }
            record();
        }
    }
}

fn no_thread(what: &str, error: &std::io::Error) -> CliError {
    let message = format!("there is no thread to {what}: {error}");
    CliError::failure(catalogue::CONTROL_SYSTEM, message)
}

fn stopped(before: &str) -> CliError {
    let message = format!("the server was asked to end before {before}");
    CliError::failure(catalogue::INTERRUPTED, message)
}

/// Writes the recordings of the shards where they are kept, or else where temporary files are, for `rendez dump`.
fn dumped(engine: &Engine) -> String {
    let folder = engine.recorder_dir().unwrap_or_else(std::env::temp_dir);
    match engine.dump(&folder, "asked") {
        Ok(paths) if paths.is_empty() => "not recorded: `stage_sampling` is 0".to_owned(),
        Ok(paths) => {
            let paths: Vec<String> = paths
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            format!("recorded: {}", paths.join(" "))
        }
        Err(status) => format!("not recorded: {status}"),
    }
}

/// Starts the task that settings and surroundings describe. `patience` replaces the usual wait for peers: a wait for an
/// absent one is then ended by the dial, which knows why.
///
/// # Errors
/// What is wrong with the settings or the surroundings; what the server says.
pub fn start(settings: &SettingArgs, patience: Duration) -> Result<(Server, Resolved), CliError> {
    start_with(settings.load()?, patience, Services::new())
}

/// As [`start`] of settings that were read, with more services than every server has.
pub(super) fn start_with(
    loaded: Loaded,
    patience: Duration,
    services: Services,
) -> Result<(Server, Resolved), CliError> {
    let resolved = resolved(&loaded)?;
    let mut config = loaded.config;
    config.connect_timeout = patience;
    let builder = Server::builder().config(config).resolved(&resolved);
    let server = builder.services(services).build()?;
    server.start()?;
    Ok((server, resolved))
}

/// Interrupts, requests to end and SIGUSR1, one message each.
///
/// # Errors
/// `CONTROL_SYSTEM` if the system gives no handler or no thread.
pub fn signals() -> Result<std::sync::mpsc::Receiver<i32>, CliError> {
    let failed = |error: std::io::Error| {
        CliError::failure(
            "CONTROL_SYSTEM",
            format!("signals cannot be handled: {error}"),
        )
    };
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(failed)?;
    let (told, heard) = std::sync::mpsc::channel();
    let body = move || {
        for signal in &mut signals {
            if told.send(signal).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("rendez-signals".into());
    thread.spawn(body).map_err(failed)?;
    Ok(heard)
}

/// Hands the built-in file to every other task and takes it from each.
fn check(
    server: &Server,
    engine: &Engine,
    patience: Duration,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    let push_files = PushFiles::of(&[])?;
    push_files.keep(engine)?;
    let others: Vec<TaskName> = server
        .cluster()
        .tasks()
        .map(|(task, _)| task)
        .filter(|task| task != server.task())
        .collect();
    let mut deliveries = Vec::new();
    for other in &others {
        let heard = exchange::hear_taken(engine, other)?;
        deliveries.push(push_files.send(engine, other, heard, patience)?);
    }
    let mut knowing = Vec::new();
    for other in &others {
        let mut counted = Counted::default();
        let began = Instant::now();
        let heard = exchange::hear_data(engine, other)?;
        knowing.push(exchange::hear_known(engine, other)?);
        exchange::take(engine, other, heard, patience, &mut counted)
            .map_err(|error| unchecked(error, other))?;
        let took = began.elapsed();
        let connected = engine.connected();
        let way = connected
            .iter()
            .find(|peer| peer.task == *other)
            .map_or("?", |peer| peer.path.name());
        terminal.line(format!(
            "{other} → {}: {} tensors, {}, every byte right, over {way} ({} read in place), {:.1} ms",
            server.task(),
            counted.tensors,
            units::show_bytes(counted.bytes),
            counted.leased,
            took.as_secs_f64() * 1e3
        ))?;
    }
    for delivery in deliveries {
        delivery.wait(&mut |_| ())?;
    }
    for (other, known) in others.iter().zip(knowing) {
        exchange::settle(engine, other, known);
    }
    Ok(())
}

/// A task that is there and sends nothing is mostly one that checks nothing.
fn unchecked(error: CliError, other: &TaskName) -> CliError {
    if error.reason() != catalogue::DEADLINE {
        return error;
    }
    let message = format!(
        "{other} is connected, and did not send all it should in time; is it started with `--check` too, and has it \
         not checked before? If so, raise `--patience`"
    );
    CliError::failure(error.reason(), message)
}

/// What a check takes, and keeps none of.
#[derive(Default)]
struct Counted {
    tensors: u64,
    bytes: u64,
    leased: u64,
}

impl Sink for Counted {
    fn begin(&mut self, _: &Manifest) -> Result<(), CliError> {
        Ok(())
    }

    fn write(&mut self, _: usize, _: &[u8]) -> Result<(), CliError> {
        Ok(())
    }

    fn took(&mut self, taken: &Taken<'_>) -> Result<(), CliError> {
        self.tensors += 1;
        self.bytes += taken.received.tensor.size() as u64;
        self.leased += u64::from(taken.received.path == Path::Lease);
        Ok(())
    }

    fn finish(&mut self) -> Result<bool, CliError> {
        Ok(false)
    }
}
