//! The processes of a training: this program again, once for each parameter server and worker, on this machine.
//!
//! Knows processes and names of tasks, not what they do.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{ChildStderr, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::CliError;
use crate::itself::{self, Other};
use crate::secret::Inherited;
use crate::settings::SettingArgs;
use crate::up::metrics_of;
use rendez::cluster::HostPort;
use rendez::engine::{Config, Origin, Setting};
use rendez::ground::{Locked, TaskName};

/// How long a process may take to end once it was told to.
const FAREWELL: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How many lines of what a process said are kept, and how long one may be.
const KEPT_LINES: usize = 20;
const LINE_MAX: u64 = 4 << 10;

/// What the processes of a training run with unless set otherwise.
const USUAL: [(&str, &str); 4] = [
    ("shards", "1"),
    ("share_cores", "true"),
    ("arena_segment_bytes", "4MiB"),
    // Every hand-over is timed, for the report of the edges.
    ("stage_sampling", "1"),
];

/// A process that is a task.
#[derive(Debug)]
pub(super) struct Process {
    task: TaskName,
    arguments: Vec<String>,
    metrics: Option<HostPort>,
    process: Other,
    said: Arc<Mutex<Vec<String>>>,
}

/// All of them; dropping this ends them.
#[derive(Debug)]
pub(super) struct Processes {
    cluster: String,
    environment: Vec<(&'static str, OsString)>,
    /// Where the chief answers for metrics.
    metrics: Option<HostPort>,
    secret: Option<Inherited>,
    all: Vec<Process>,
}

/// Jobs and addresses of a cluster on this machine, as `--cluster` takes them. The ports were free a moment ago, and
/// stay so while a task is away: no connection that goes out is given a port of this address.
///
/// # Errors
/// `CONTROL_SYSTEM` if there are none.
pub(super) fn cluster(jobs: &[(&str, u32)]) -> Result<String, CliError> {
    let ip = own_loopback(std::process::id());
    let failed = |error: std::io::Error| {
        CliError::failure("CONTROL_SYSTEM", format!("no free port on {ip}: {error}"))
    };
    // All are held until each is known, so that no port comes twice.
    let mut held = Vec::new();
    let mut parts = Vec::new();
    for (job, tasks) in jobs {
        let mut addresses = Vec::new();
        for _ in 0..*tasks {
            let listener = TcpListener::bind((ip, 0)).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?.to_string());
            held.push(listener);
        }
        parts.push(format!("{job}={}", addresses.join(",")));
    }
    Ok(parts.join(";"))
}

/// A loopback address that no other process takes for its own. The kernel sends from 127.0.0.1 whatever loopback
/// address it sends to, so a port of this one is never the source of a connection: on 127.0.0.1 a port that waits for
/// its task may be.
const fn own_loopback(process: u32) -> Ipv4Addr {
    let [_, high, middle, low] = process.to_be_bytes();
    // 127.64.0.0 to 127.127.255.255: far from the addresses that people and resolvers use. Process ids have 22 bits.
    Ipv4Addr::new(127, 64 | (high & 63), middle, low)
}

impl Processes {
    /// None yet, of this cluster and these settings, which were loaded as `config`; they inherit the secret.
    pub(super) fn new(
        cluster: &str,
        settings: &SettingArgs,
        config: &Config,
        secret: Option<Inherited>,
    ) -> Self {
        let is_unset = |setting: &Setting| config.origin(setting) == Origin::Default;
        let usual = USUAL
            .iter()
            .filter_map(|(key, value)| Some((Setting::find(key)?, value)))
            .filter(|(setting, _)| is_unset(setting))
            .map(|(setting, value)| (setting.variable(), value.into()));
        let file = settings.file.iter();
        let flags = settings.flags.iter();
        let flags =
            flags.filter_map(|(key, value)| Some((Setting::find(key)?.variable(), value.into())));
        let environment = usual
            .chain(file.map(|file| ("RENDEZ_CONFIG_FILE", file.into())))
            .chain(flags);
        Self {
            cluster: cluster.to_owned(),
            environment: environment.collect(),
            metrics: config.metrics.clone(),
            secret,
            all: Vec::new(),
        }
    }

    /// Starts `task` with these arguments.
    ///
    /// # Errors
    /// `CONTROL_SYSTEM` if no process can be started; `CONFIG` if there is no port for its metrics.
    pub(super) fn start(&mut self, task: TaskName, arguments: Vec<String>) -> Result<(), CliError> {
        // The chief comes first.
        let metrics = metrics_of(self.metrics.as_ref(), self.all.len() + 1)?;
        let process = self.spawn(task, arguments, metrics)?;
        self.all.push(process);
        Ok(())
    }

    /// Kills `task` so that it can do nothing more about it.
    pub(super) fn kill(&mut self, task: &TaskName) {
        if let Some(process) = self.all.iter_mut().find(|process| process.task == *task) {
            process.process.kill();
        }
    }

    /// Starts `task` again, which has ended.
    ///
    /// # Errors
    /// As [`Processes::start`].
    pub(super) fn restart(&mut self, task: &TaskName) -> Result<(), CliError> {
        let at = self.all.iter().position(|process| process.task == *task);
        if let Some(at) = at {
            let Process {
                arguments, metrics, ..
            } = &self.all[at];
            self.all[at] = self.spawn(task.clone(), arguments.clone(), metrics.clone())?;
        }
        Ok(())
    }

    /// Checks that no process ended by itself.
    ///
    /// # Errors
    /// `TASK_FAILED` names one that did, and what it said last.
    pub(super) fn check(&mut self) -> Result<(), CliError> {
        for process in &mut self.all {
            if let Some(status) = process.process.ended() {
                return Err(process.failed(status));
            }
        }
        Ok(())
    }

    /// Tells all to end, and ends those that do not: workers first, which would miss their servers.
    pub(super) fn end(&mut self) {
        let (servers, workers): (Vec<_>, Vec<_>) = self
            .all
            .drain(..)
            .partition(|process| process.task.job() == "ps");
        for processes in [workers, servers] {
            end(processes);
        }
    }

    fn spawn(
        &self,
        task: TaskName,
        arguments: Vec<String>,
        metrics: Option<HostPort>,
    ) -> Result<Process, CliError> {
        let mut command = itself::again();
        command.args(&arguments).arg(format!("--task={task}"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(metrics) = &metrics {
            command.env("RENDEZ_METRICS", metrics.to_string());
        }
        command.envs(self.secret.as_ref().map(Inherited::variable));
        command
            .env("RENDEZ_CLUSTER", &self.cluster)
            .env("RENDEZ_TASK", task.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let said = Arc::default();
        let started = Other::spawn(&mut command).and_then(|mut process| {
            listen(process.0.stderr.take(), &said)?;
            Ok(process)
        });
        let process = started.map_err(|error| {
            let message = format!("{task} cannot be started: {}", itself::refused(&error));
            CliError::failure("CONTROL_SYSTEM", message)
        })?;
        Ok(Process {
            task,
            arguments,
            metrics,
            process,
            said,
        })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end();
    }
}

impl Process {
    fn failed(&self, status: ExitStatus) -> CliError {
        // What it said last may still be on its way through the pipe.
        std::thread::sleep(LOOK_EVERY);
        let said = self.said.locked();
        let said = said.join("\n");
        let message = format!("{} ended: {status}; it said:\n{said}", self.task);
        CliError::failure("TASK_FAILED", message)
    }
}

fn end(mut processes: Vec<Process>) {
    let all = processes.iter_mut();
    all.for_each(|process| process.process.ask_to_end());
    let until = Instant::now() + FAREWELL;
    for process in &mut processes {
        let left = until.saturating_duration_since(Instant::now());
        process.process.farewell(left);
    }
}

/// Keeps the last lines of a process.
fn listen(pipe: Option<ChildStderr>, said: &Arc<Mutex<Vec<String>>>) -> io::Result<()> {
    let said = Arc::clone(said);
    itself::listen(pipe, LINE_MAX, move |line| {
        let mut said = said.locked();
        if said.len() == KEPT_LINES {
            said.remove(0);
        }
        said.push(line);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn what_a_file_sets_is_not_overridden_by_what_is_usual() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("train.toml");
        std::fs::write(&file, "shards = 2\n").expect("written");
        let settings = SettingArgs {
            file: Some(file.clone()),
            flags: vec![("require", "tcp".to_owned())],
        };
        let config = settings.load().expect("settings").config;
        let processes = Processes::new("ps=127.0.0.1:1", &settings, &config, None);
        let of = |name: &str| {
            let mut all = processes.environment.iter();
            all.find(|(of, _)| *of == name)
                .map(|(_, value)| value.as_os_str())
        };
        assert_eq!(of("RENDEZ_SHARDS"), None);
        assert_eq!(of("RENDEZ_STAGE_SAMPLING"), Some("1".as_ref()));
        assert_eq!(of("RENDEZ_REQUIRE"), Some("tcp".as_ref()));
        assert_eq!(of("RENDEZ_CONFIG_FILE"), Some(file.as_os_str()));
    }

    #[test]
    fn no_connection_that_goes_out_takes_a_tasks_port() {
        let ip = own_loopback(std::process::id());
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("loopback");
        assert_ne!(stream.local_addr().expect("an address").ip(), ip);
        assert_ne!(own_loopback(4_194_303), own_loopback(4_194_302));
        assert!(own_loopback(u32::MAX).is_loopback());
    }
}
