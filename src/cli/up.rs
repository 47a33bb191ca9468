//! `rendez up`: a whole cluster on this machine, a process for each task, from one file.
//!
//! Where nothing else keeps strangers out, the tasks share a secret that is made for them and that they inherit.
//!
//! Knows processes, pipes and names. Each line that a task writes comes out with the task's name before it; what ends
//! one of them badly, or an interrupt, ends all.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use signal_hook::consts::SIGUSR1;

use super::error::CliError;
use super::secret::Inherited;
use super::serve;
use super::settings::SettingArgs;
use super::terminal::Terminal;
use super::units;
use rendez::cluster::{ClusterSpec, HostPort};
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

/// Options of `up`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct UpArgs {
    /// The file with the cluster: a configuration with a `[cluster]`.
    pub file: PathBuf,
    /// Each task first hands a small real file to every other and takes it from each, and checks every byte.
    #[arg(long)]
    pub check: bool,
    /// End when that is done.
    #[arg(long, requires = "check")]
    pub once: bool,
    /// How long tasks may take to come.
    #[arg(long, value_parser = units::positive_duration, default_value = "60s", value_name = "TIME")]
    pub patience: Duration,
    /// The program of each task, which finds its place in RENDEZ_TASK and RENDEZ_CONFIG_FILE; without one `rendez
    /// serve`.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// What the reader threads and the signal thread tell.
enum News {
    Line(usize, String),
    Stop,
}

struct Task {
    name: String,
    child: Child,
    ended: Option<bool>,
}

/// Runs it.
///
/// # Errors
/// What is wrong with the file; that a program cannot be started; the first task that failed.
pub fn run(args: &UpArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let mut settings = args.settings.clone();
    settings.file = Some(args.file.clone());
    let loaded = settings.load()?;
    let spec = spec(&loaded)?;
    let secret = Inherited::for_tasks_of(&loaded.config)?;
    let drain = loaded.config.drain_timeout + FAREWELL;
    let (news, heard) = mpsc::channel();
    let signals = serve::signals()?;
    std::thread::spawn({
        let news = news.clone();
        move || {
            // A recording is asked of a task, not here.
            while let Ok(signal) = signals.recv() {
                if signal == SIGUSR1 {
                    continue;
                }
                if news.send(News::Stop).is_err() {
                    return;
                }
            }
        }
    });
    let mut tasks = Vec::new();
    for (index, (task, _)) in spec.tasks().enumerate() {
        let metrics = metrics_of(loaded.config.metrics.as_ref(), index)?;
        match spawn(args, &task, metrics.as_ref(), secret.as_ref()) {
            Ok(mut child) => {
                listen(index, child.stdout.take(), &news);
                listen(index, child.stderr.take(), &news);
                let name = format!("{}:{}", task.job(), task.task());
                tasks.push(Task {
                    name,
                    child,
                    ended: None,
                });
            }
            Err(error) => {
                end(&mut tasks, drain);
                return Err(error);
            }
        }
    }
    drop(news);
    let outcome = watch(&mut tasks, &heard, terminal);
    end(&mut tasks, drain);
    // What they said last is still in the pipes.
    while let Ok(said) = heard.recv_timeout(LOOK_EVERY) {
        if let News::Line(index, line) = said {
            show(&tasks, index, &line, terminal)?;
        }
    }
    outcome
}

fn spec(loaded: &rendez::engine::Loaded) -> Result<ClusterSpec, CliError> {
    let missing = || {
        let message = "the file has no [cluster]: list jobs and their addresses there";
        CliError::from(Status::of(catalogue::CLUSTER_UNRESOLVED, message))
    };
    if let Some(spec) = &loaded.config.cluster {
        return Ok(spec.clone());
    }
    let file = loaded.file.as_ref().ok_or_else(missing)?;
    let table: toml::Table = file.text.parse().map_err(|error| {
        CliError::failure("CLUSTER_FILE_MALFORMED", format!("{}: {error}", file.path))
    })?;
    let cluster = table.get("cluster").and_then(toml::Value::as_table);
    Ok(ClusterSpec::from_toml(cluster.ok_or_else(missing)?)?)
}

/// Where the task of that index answers for metrics: all are on one machine, so each has a port of its own, one after
/// another from the one that is set. A port that the system chooses is each task's own anyway.
fn metrics_of(set: Option<&HostPort>, index: usize) -> Result<Option<HostPort>, CliError> {
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
) -> Result<Child, CliError> {
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
            let mut command = Command::new("/proc/self/exe");
            command.arg("serve").arg("--with-parent");
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
    command.spawn().map_err(|error| {
        let program = args.command.first().map_or(OWN, String::as_str);
        let message = format!("{task}: cannot start {program}: {error}");
        CliError::failure("CONTROL_SYSTEM", message)
    })
}

/// Reads a task's lines until it closes the pipe. A line longer than any reader needs is cut.
fn listen(index: usize, pipe: Option<impl Read + Send + 'static>, news: &mpsc::Sender<News>) {
    const LINE_MAX: u64 = 64 << 10;
    let Some(pipe) = pipe else { return };
    let news = news.clone();
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        loop {
            let mut line = Vec::new();
            match pipe.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if news.send(News::Line(index, line)).is_err() {
                        return;
                    }
                }
            }
        }
    });
}

/// Passes lines on until all have ended, one has failed, or an interrupt comes.
fn watch(
    tasks: &mut [Task],
    heard: &mpsc::Receiver<News>,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    loop {
        match heard.recv_timeout(LOOK_EVERY) {
            Ok(News::Line(index, line)) => show(tasks, index, &line, terminal)?,
            Ok(News::Stop) => return Ok(()),
            Err(_) => {}
        }
        for task in tasks.iter_mut().filter(|task| task.ended.is_none()) {
            if let Ok(Some(status)) = task.child.try_wait() {
                task.ended = Some(status.success());
                if !status.success() {
                    let message = format!("{} ended: {status}; the others were stopped", task.name);
                    return Err(CliError::failure("TASK_FAILED", message));
                }
            }
        }
        if tasks.iter().all(|task| task.ended.is_some()) {
            return Ok(());
        }
    }
}

/// One line with its task's name before it, in a colour of the task's own on a terminal.
fn show(tasks: &[Task], index: usize, line: &str, terminal: &mut Terminal) -> Result<(), CliError> {
    const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];
    let widest = tasks.iter().map(|task| task.name.len()).max().unwrap_or(0);
    let name = tasks.get(index).map_or("", |task| task.name.as_str());
    let name = format!("{name:<widest$}");
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let name = if terminal.width().is_some() && !is_plain {
        let colour = COLOURS[index % COLOURS.len()];
        format!("\x1b[{colour}m{name}\x1b[0m")
    } else {
        name
    };
    terminal.line(format!("{name} │ {line}"))?;
    Ok(())
}

/// Tells all that still run to end, and ends those that do not.
fn end(tasks: &mut [Task], patience: Duration) {
    let until = Instant::now() + patience;
    for task in tasks.iter_mut().filter(|task| task.ended.is_none()) {
        // Not waited for yet, so its number is still its own.
        if let Some(pid) = Pid::from_raw(task.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    while Instant::now() < until {
        for task in tasks.iter_mut().filter(|task| task.ended.is_none()) {
            if let Ok(Some(status)) = task.child.try_wait() {
                task.ended = Some(status.success());
            }
        }
        if tasks.iter().all(|task| task.ended.is_some()) {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    for task in tasks.iter_mut().filter(|task| task.ended.is_none()) {
        let _ = task.child.kill();
        let _ = task.child.wait();
    }
    let _ = std::io::stdout().flush();
}
