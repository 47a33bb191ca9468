//! A worker of an asynchronous training, a process of its own: it has its own session and its own copy of the graph,
//! and shares nothing with other workers but the variables on the parameter servers.
//!
//! Knows sessions, digits and the network; `tasks.rs` starts and ends it.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::Signal;
use signal_hook::consts::SIGUSR1;

use super::digits::{Digits, Order};
use super::network::{self, Jobs};
use crate::error::CliError;
use crate::serve;
use crate::settings::SettingArgs;
use rendez::ground::{Code, Status, catalogue};
use rendez_dataflow::server::{Server, Session};
use rendez_proto::tensorflow::ConfigProto;

/// The hidden subcommand of a worker.
pub const WORKER_COMMAND: &str = "train-worker";

/// How long a worker goes on trying where nothing succeeds.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits before it tries again.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Options of a worker.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct WorkerArgs {
    /// Parameter servers.
    #[arg(long)]
    pub ps: u32,
    /// Workers.
    #[arg(long)]
    pub workers: u32,
    /// Digits in a batch.
    #[arg(long)]
    pub batch: usize,
    /// What the order of the digits depends on.
    #[arg(long)]
    pub seed: u64,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Runs it, until it is told to end.
///
/// # Errors
/// What is wrong with settings or cluster; what ended training and will not pass.
pub fn run(args: &WorkerArgs) -> Result<(), CliError> {
    let signals = serve::signals()?;
    // Refused by no kernel that rendez runs on; the parent also stops its children in good order.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    let (learnt, _) = Digits::load()?;
    let (server, _) = serve::start(&args.settings, PATIENCE)?;
    let task = server.task().task();
    let mut order = Order::new(learnt.len(), args.seed.wrapping_add(u64::from(task)));
    let jobs = Jobs {
        servers: args.ps,
        workers: args.workers,
    };
    let mut since = Instant::now();
    let ended = loop {
        let mut next = || learnt.some(order.next(args.batch));
        match train(&server, jobs, task, &signals, &mut since, &mut next) {
            Ok(()) => break Ok(()),
            // Told to end while it waited for others.
            Err(_) if is_told_to_end(&signals) => break Ok(()),
            Err(status) if is_passing(&status) && since.elapsed() < PATIENCE => {
                tracing::info!("{status}; trying again");
                std::thread::sleep(PAUSE);
            }
            Err(status) => break Err(status),
        }
    };
    server.stop(None);
    Ok(ended?)
}

/// Trains until it is told to end. `since` is when a step succeeded last.
fn train(
    server: &Server,
    jobs: Jobs,
    task: u32,
    signals: &Receiver<i32>,
    since: &mut Instant,
    next: &mut dyn FnMut() -> Result<(rendez::memory::Tensor, rendez::memory::Tensor), Status>,
) -> Result<(), Status> {
    // Of the cluster it uses itself and the parameter servers: no other worker can keep it from training.
    let config = ConfigProto {
        device_filters: vec!["/job:ps".to_owned(), network::worker(task)],
        ..ConfigProto::default()
    };
    let session = Session::on(server)?.configured(config)?;
    session.create(network::replica(jobs, task)?.to_def())?;
    let [x, y] = network::feeds(network::REPLICA);
    let step = session.callable(&[&x, &y], &[], &[network::TRAIN])?;
    loop {
        if is_told_to_end(signals) {
            return session.close();
        }
        let (pixels, labels) = next()?;
        step.run(&[pixels, labels])?;
        *since = Instant::now();
    }
}

/// A recording is asked of a task that serves, not here.
fn is_told_to_end(signals: &Receiver<i32>) -> bool {
    loop {
        match signals.try_recv() {
            Ok(SIGUSR1) => {}
            Err(TryRecvError::Empty) => return false,
            _ => return true,
        }
    }
}

/// True for what may be over when it is tried again: a task that is away or has restarted, or variables that have no
/// values yet.
pub(super) fn is_passing(status: &Status) -> bool {
    let is_of_a_task = matches!(
        status.code(),
        Code::Unavailable | Code::Aborted | Code::DeadlineExceeded | Code::Cancelled
    );
    is_of_a_task || status.reason() == catalogue::VARIABLE_EMPTY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_trains_on_when_a_recording_is_asked_for() {
        let (tell, told) = std::sync::mpsc::channel();
        for signal in [SIGUSR1, SIGUSR1] {
            tell.send(signal).expect("it hears");
        }
        assert!(!is_told_to_end(&told));
        for signal in [SIGUSR1, signal_hook::consts::SIGTERM] {
            tell.send(signal).expect("it hears");
        }
        assert!(is_told_to_end(&told));
        drop(tell);
        assert!(is_told_to_end(&told), "nothing tells it any more");
    }
}
