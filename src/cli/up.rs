//! `rendez up`: a whole cluster on this machine, a process for each task, from one file.
//!
//! Where nothing else keeps strangers out, the tasks share a secret that is made for them and that they inherit.
//!
//! Knows processes, pipes and names. Each line that a task writes comes out with the task's name before it; what ends
//! one of them badly, or an interrupt, ends all.

mod output;

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use clap::Args;
use signal_hook::consts::SIGUSR1;

use super::error::CliError;
use super::itself::{self, Other};
use super::secret::Inherited;
use super::serve;
use super::settings::SettingArgs;
use super::terminal::Terminal;
use super::units;
use output::{Line, Output};
use rendez::cluster::HostPort;
use rendez::engine::{SETTINGS, Setting};
use rendez::ground::{Status, TaskName, catalogue};

/// What a task runs if no program is named for it.
const OWN: &str = "rendez serve";

/// How much longer than its own drain a task may take to end once it was told to.
const FAREWELL: Duration = Duration::from_secs(2);

/// How often ended children are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Examples of its use.
pub(super) const EXAMPLES: &str = "\
Examples:
  rendez up cluster.toml                         a process for each task; Ctrl-C stops all
  rendez up cluster.toml --check --once          every task hands a small file to every other
  rendez up cluster.toml --require tcp --check   the same by TCP
  rendez up cluster.toml -- ./program            your program, once for each task, with RENDEZ_TASK set";

/// Refuses what a task is told, and all of them cannot be.
fn refused<T>(_: &str) -> Result<T, &'static str> {
    Err(
        "`up` takes the cluster from FILE and starts every task; leave out --config, --job and --task",
    )
}

/// Options of `up`.
#[derive(Args, Clone, PartialEq, Debug)]
#[command(
    mut_arg("config", |arg| arg.hide(true).value_parser(refused::<PathBuf>)),
    mut_arg("job", |arg| arg.hide(true).value_parser(refused::<String>)),
    mut_arg("task", |arg| arg.hide(true).value_parser(refused::<String>)),
)]
pub struct UpArgs {
    /// The file with the cluster: a configuration with a `[cluster]`.
    pub file: PathBuf,
    /// Each task first hands a small real file to every other and takes it from each, and checks every byte.
    #[arg(long, conflicts_with = "command")]
    pub check: bool,
    /// End when that is done.
    #[arg(long, requires = "check")]
    pub once: bool,
    /// How long tasks may take to appear.
    #[arg(long, value_parser = units::positive_duration, default_value = "60s", value_name = "TIME")]
    pub patience: Duration,
    /// The program of each task, which finds its place in RENDEZ_TASK and RENDEZ_CONFIG_FILE; without one `rendez
    /// serve`. A script should end with `exec`: otherwise its last command outlives a killed `up`.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

struct Task {
    name: String,
    process: Other,
}

/// Runs it.
///
/// # Errors
/// What is wrong with the file; that a program cannot be started; the first task that failed.
pub fn run(args: &UpArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let mut settings = args.settings.clone();
    settings.file = Some(args.file.clone());
    // Its tasks say what is odd in them.
    let loaded = settings.read()?;
    let named = loaded.config.cluster.clone();
    let spec = named.filter(|spec| !spec.is_empty()).ok_or_else(|| {
        let file = args.file.display();
        let message =
            format!("{file} names no task in a [cluster]: list jobs and their addresses there");
        Status::of(catalogue::CLUSTER_UNRESOLVED, message)
    })?;
    let secret = Inherited::for_tasks_of(&loaded.config)?;
    let drain = loaded.config.drain_timeout + FAREWELL;
    let signals = serve::signals()?;
    let names: Vec<String> = spec.tasks().map(|(task, _)| name_of(&task)).collect();
    let (lines, mut output) = Output::begin(names, terminal.take()).map_err(no_thread)?;
    let mut tasks = Vec::new();
    for (index, (task, _)) in spec.tasks().enumerate() {
        let metrics = metrics_of(loaded.config.metrics.as_ref(), index);
        let started = metrics
            .and_then(|metrics| spawn(args, &task, metrics.as_ref(), secret.as_ref()))
            .and_then(|mut process| {
                let heard = listen(index, process.0.stdout.take(), &lines)
                    .and_then(|()| listen(index, process.0.stderr.take(), &lines));
                heard.map(|()| process).map_err(no_thread)
            });
        match started {
            Ok(process) => tasks.push(Task {
                name: name_of(&task),
                process,
            }),
            Err(error) => {
                end(&mut tasks, drain, &mut output);
                return Err(error);
            }
        }
    }
    drop(lines);
    let outcome = watch(&mut tasks, &signals, &mut output);
    end(&mut tasks, drain, &mut output);
    // What they said last is still in the pipes.
    let mut is_interrupted = matches!(outcome, Ok(Ending::Interrupted));
    let written = output.finish(|| {
        is_interrupted |= stop_comes(&signals);
        is_interrupted
    });
    outcome.and(written)
}

/// A task's name before its lines.
fn name_of(task: &TaskName) -> String {
    format!("{}:{}", task.job(), task.task())
}

fn no_thread(error: io::Error) -> CliError {
    let message = format!("there is no thread for the output of tasks: {error}");
    CliError::failure(catalogue::CONTROL_SYSTEM, message)
}

/// Where the task of that index answers for metrics: all are on one machine, so each has a port of its own, one after
/// another from the one that is set. A port that the system chooses is each task's own anyway.
pub(super) fn metrics_of(
    set: Option<&HostPort>,
    index: usize,
) -> Result<Option<HostPort>, CliError> {
    let Some(set) = set else { return Ok(None) };
    if set.port() == 0 {
        return Ok(Some(set.clone()));
    }
    let port = u16::try_from(index)
        .ok()
        .and_then(|index| set.port().checked_add(index))
        .ok_or_else(|| {
            let message =
                format!("metrics is {set}: there is no port for the task after {index} others");
            CliError::from(Status::of(catalogue::CONFIG, message))
        })?;
    Ok(Some(HostPort::new(set.host(), port)?))
}

/// Starts one task. Our own program is found again by the link to it, whatever became of its file.
fn spawn(
    args: &UpArgs,
    task: &TaskName,
    metrics: Option<&HostPort>,
    secret: Option<&Inherited>,
) -> Result<Other, CliError> {
    let flags = || {
        let flags = args.settings.flags.iter();
        flags.filter(|(key, _)| *key != "metrics")
    };
    let mut command = match args.command.split_first() {
        Some((program, rest)) => {
            let mut command = Command::new(program);
            command.args(rest);
            for (key, value) in flags() {
                if let Some(setting) = Setting::find(key) {
                    command.env(setting.variable(), value);
                }
            }
            command
        }
        None => {
            let mut command = itself::again();
            command.arg("serve").arg(format!("--task={task}"));
            // Once more by itself: file capabilities take from it what it was told before it began.
            command.arg("--with-parent");
            command.arg(format!(
                "--patience={}",
                units::exact_duration(args.patience)
            ));
            if args.check {
                command.arg("--check");
            }
            if args.once {
                command.arg("--once");
            }
            for (key, value) in flags() {
                if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == *key) {
                    command.arg(format!("--{}={value}", setting.flag()));
                }
            }
            command
        }
    };
    if let Some(metrics) = metrics {
        command.env("RENDEZ_METRICS", metrics.to_string());
    }
    command.envs(secret.map(Inherited::variable));
    command
        .env("RENDEZ_CONFIG_FILE", &args.file)
        .env("RENDEZ_TASK", task.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    itself::end_with_this(&mut command);
    Other::spawn(&mut command).map_err(|error| {
        let message = match args.command.first() {
            Some(program) => format!("{task}: cannot start {program}: {error}"),
            None => format!("{task}: cannot start {OWN}: {}", itself::refused(&error)),
        };
        CliError::failure("CONTROL_SYSTEM", message)
    })
}

/// Reads a task's lines. A line longer than any reader needs is cut.
fn listen(
    index: usize,
    pipe: Option<impl Read + Send + 'static>,
    lines: &SyncSender<Line>,
) -> io::Result<()> {
    const LINE_MAX: u64 = 64 << 10;
    let lines = lines.clone();
    itself::listen(pipe, LINE_MAX, move |line| {
        lines.send((index, line)).is_ok()
    })
}

/// How a cluster ends that did not fail.
enum Ending {
    AllEnded,
    Interrupted,
}

/// Waits a moment for an interrupt.
fn stop_comes(signals: &Receiver<i32>) -> bool {
    // A recording is asked of a task, not here.
    signals
        .recv_timeout(LOOK_EVERY)
        .is_ok_and(|signal| signal != SIGUSR1)
}

/// Waits until all have ended, one has failed, the output cannot be written, or an interrupt comes.
fn watch(
    tasks: &mut [Task],
    signals: &Receiver<i32>,
    output: &mut Output,
) -> Result<Ending, CliError> {
    loop {
        if stop_comes(signals) {
            return Ok(Ending::Interrupted);
        }
        if let Some(written) = output.ended() {
            written?;
        }
        let mut goes_on = false;
        for task in &mut *tasks {
            match task.process.ended() {
                None => goes_on = true,
                Some(status) if status.success() => {}
                Some(status) => {
                    let message = format!("{} ended: {status}; the others were stopped", task.name);
                    return Err(CliError::failure("TASK_FAILED", message));
                }
            }
        }
        if !goes_on {
            return Ok(Ending::AllEnded);
        }
    }
}

/// Tells all that still run to end, and ends those that do not.
fn end(tasks: &mut Vec<Task>, patience: Duration, output: &mut Output) {
    let until = Instant::now() + patience;
    let mut go_on = |task: &mut Task| task.process.ended().is_none();
    tasks.iter_mut().for_each(|task| task.process.ask_to_end());
    while Instant::now() < until && tasks.iter_mut().any(&mut go_on) {
        output.relieve(LOOK_EVERY);
    }
    tasks.clear();
}
