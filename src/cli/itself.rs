//! This program, started again as another process: a task, or the far side of a measurement. What is said of such a
//! process holds of any program that a command starts.
//!
//! Knows processes and their pipes, not what they do.
#![allow(unsafe_code)]

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What runs here, by the link to it: its file may have been replaced or removed since it was started.
pub(crate) const ITSELF: &str = "/proc/self/exe";

/// How often an end is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long one that was killed is waited for where nothing depends on its end: the system collects it after us.
const KILLED: Duration = Duration::from_secs(2);

/// What lists of processes show it as.
const NAME: &str = "rendez";

/// A command that starts it again.
pub(crate) fn again() -> Command {
    start(Path::new(ITSELF))
}

/// A command that starts this program from another file.
pub(crate) fn start(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg0(NAME);
    command
}

/// Names the process, which is called by the last part of the path that it was started by; without the name nothing
/// fails. And has the system keep how its children ended, also where the process that started it wanted it not kept.
pub(crate) fn begin() {
    let _ = rustix::thread::set_name(c"rendez");
    // SAFETY: it is called before there is another thread, and no code of ours runs by it.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Why such a process cannot be started, and what the system's word for it may mean.
pub(crate) fn refused(error: &io::Error) -> String {
    format!("{error}; is the limit of processes reached, or /proc not mounted?")
}

/// A process that this one started; killed and waited for when dropped.
#[derive(Debug)]
pub(crate) struct Other(pub(crate) Child);

impl Other {
    /// Starts it.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Tells it to end.
    pub(crate) fn ask_to_end(&mut self) {
        // One that has not been waited for keeps its number.
        if self.ended().is_none()
            && let Some(pid) = Pid::from_raw(self.0.id() as i32)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Closes its standard input, and waits for its end for at most so long.
    pub(crate) fn farewell(&mut self, within: Duration) -> Option<ExitStatus> {
        drop(self.0.stdin.take());
        let until = Instant::now() + within;
        loop {
            match self.ended() {
                None if Instant::now() < until => thread::sleep(LOOK_EVERY),
                ended => return ended,
            }
        }
    }

    /// Ends it, so that it can do nothing about it, and waits until all that it held is free, as its port.
    pub(crate) fn kill(&mut self) {
        // Both fail only if it has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.farewell(KILLED);
    }
}

/// Has the process that is started told to end when the thread that starts it is gone, as when this process is killed.
/// A program with file capabilities or another user's rights loses this when it begins.
pub(crate) fn end_with_this(command: &mut Command) {
    let this = rustix::process::getpid();
    let tie = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        // It may have gone before that.
        match rustix::process::getppid() == Some(this) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: what runs between fork and exec makes two system calls, takes no lock and allocates nothing.
    unsafe { command.pre_exec(tie) };
}

/// Gives `heard` the lines of a process, until it closes the pipe or `heard` says that no more are wanted, by a thread
/// of its own: a process must not wait for a reader. A line longer than `most` bytes comes in pieces.
pub(crate) fn listen(
    pipe: Option<impl Read + Send + 'static>,
    most: u64,
    mut heard: impl FnMut(String) -> bool + Send + 'static,
) -> io::Result<()> {
    let Some(pipe) = pipe else { return Ok(()) };
    let body = move || {
        let mut pipe = BufReader::new(pipe);
        loop {
            let mut line = Vec::new();
            match pipe.by_ref().take(most).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if heard(String::from_utf8_lossy(&line).trim_end().to_owned()) => {}
                Ok(_) => return,
            }
        }
    };
    thread::Builder::new().spawn(body).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn what_is_not_wanted_any_more_is_ended() {
        let start = || Other::spawn(Command::new("sleep").arg("600")).expect("it starts");
        let mut told = start();
        assert_eq!(told.farewell(Duration::from_millis(1)), None);
        told.ask_to_end();
        assert!(told.farewell(Duration::from_secs(60)).is_some());
        let dropped = start();
        let place = format!("/proc/{}", dropped.0.id());
        assert!(Path::new(&place).exists());
        drop(dropped);
        assert!(!Path::new(&place).exists());
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it() {
        let started = thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("600").stdin(Stdio::null());
            end_with_this(&mut command);
            Other::spawn(&mut command).expect("it starts")
        });
        let mut other = started.join().expect("it was started");
        assert!(other.farewell(Duration::from_secs(60)).is_some());
    }
}
