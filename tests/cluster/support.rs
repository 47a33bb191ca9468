//! A directory of its own, free ports, and processes of the command whose every line is kept.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

#[path = "../ports/mod.rs"]
mod ports;

pub(crate) use ports::free_ports;

/// How long anything may take that has no promised bound, before a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How often something that cannot be waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A directory in which commands run, in no environment but what a test gives them.
pub(crate) struct Place {
    directory: TempDir,
    /// Every process of this place carries it, with all that they start.
    mark: String,
}

/// A process of the command.
pub(crate) struct Process {
    child: Child,
    said: Arc<Mutex<String>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

/// One that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = format!("RENDEZ_TEST_MARK={}", directory.path().display());
        Self { directory, mark }
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    /// A secret's file that only its owner may read.
    pub(crate) fn secret(&self, name: &str) -> PathBuf {
        let path = self.file(name, &format!("{name}: not to be guessed by anybody"));
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("made private");
        path
    }

    /// The command, one shard on whatever core there is.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let (name, value) = self.mark.split_once('=').expect("a variable");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
        command
            .args(arguments)
            .env_clear()
            .env(name, value)
            .env("RENDEZ_SHARDS", "1")
            .env("RENDEZ_SHARE_CORES", "true")
            .env("RENDEZ_ARENA_SEGMENT_BYTES", "4MiB")
            .current_dir(self.directory.path());
        command
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Process {
        Process::start(self.command(arguments))
    }

    /// Runs to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).finish()
    }

    /// Waits until no process of this place is left.
    pub(crate) fn await_nobody(&self) {
        until("no process is left behind", || self.processes().is_empty());
    }

    /// All processes of this place.
    fn processes(&self) -> Vec<u32> {
        let carries = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == self.mark.as_bytes())
        };
        let all = std::fs::read_dir("/proc").expect("processes");
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(carries).collect()
    }

    /// The process of this place that has this variable.
    pub(crate) fn process_with(&self, variable: &str) -> u32 {
        let has = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|of| of == variable.as_bytes())
        };
        let all = self.processes();
        all.into_iter().find(has).expect("it runs")
    }
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = Arc::new(Mutex::new(String::new()));
        let output = child.stdout.take().map(|pipe| listen(pipe, &said));
        let errors = child.stderr.take().map(|pipe| listen(pipe, &said));
        Self {
            child,
            said,
            readers: output.into_iter().chain(errors).collect(),
        }
    }

    /// What it has said so far, on both outputs.
    pub(crate) fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }

    /// Waits until it has said `text`.
    pub(crate) fn await_said(&self, text: &str) {
        until_or(
            || self.said().contains(text),
            || format!("it never said {text:?}: {}", self.said()),
        );
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Ended {
        let (mut status, said) = (None, Arc::clone(&self.said));
        until_or(
            || {
                status = self.child.try_wait().expect("waited for");
                status.is_some()
            },
            || format!("it did not end: {said:?}"),
        );
        for reader in std::mem::take(&mut self.readers) {
            reader.join().expect("it read");
        }
        Ended {
            code: status.and_then(|status| status.code()),
            said: self.said(),
        }
    }

    /// Asks it to end, and waits for that.
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.finish()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Only a failing test leaves one alive. One that was waited for already is left alone by both.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// It went well.
    pub(crate) fn well(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.said);
        self
    }

    /// It ended with this code, for this reason, in these words.
    pub(crate) fn refused(&self, code: i32, reason: &str, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.said);
        let error = self.said.find(&format!("error[{reason}]: "));
        let error = error.unwrap_or_else(|| panic!("{reason} in {}", self.said));
        for text in texts {
            assert!(
                self.said[error..].contains(text),
                "{text:?} in {}",
                self.said
            );
        }
    }

    /// The lines that are objects of JSON.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let lines = self.said.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| serde_json::from_str(line).expect("an object"))
            .collect()
    }

    /// What a check says of hand-overs: from, to, the path, and what was handed over.
    pub(crate) fn handed_over(&self) -> Vec<(String, String, String, String)> {
        let parse = |line: &str| {
            let (pair, rest) = line.split_once(": ")?;
            let (from, to) = pair.split_once(" → ")?;
            let (what, rest) = rest.split_once(", every byte right, over ")?;
            let from = from.rsplit(' ').next()?;
            let path = rest.split(' ').next()?;
            Some((from.into(), to.into(), path.into(), what.into()))
        };
        let mut found: Vec<_> = self.said.lines().filter_map(parse).collect();
        found.sort();
        found
    }
}

/// Looks again and again until it is so.
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_or(is_so, || format!("not in time: {what}"));
}

fn until_or(mut is_so: impl FnMut() -> bool, complaint: impl FnOnce() -> String) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{}", complaint());
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path of a temporary directory")
}

fn listen(
    pipe: impl Read + Send + 'static,
    said: &Arc<Mutex<String>>,
) -> std::thread::JoinHandle<()> {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { return };
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            said.push_str(&line);
            said.push('\n');
        }
    })
}
