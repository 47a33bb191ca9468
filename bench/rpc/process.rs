//! Other processes of the benchmark: the same program in another role, spoken to by lines.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Failure, cores};

const ROLE: &str = "RENDEZ_BENCH_RPC_ROLE";

/// What this process is to be; `None` for the one that measures.
pub(crate) fn role() -> Option<Vec<&'static str>> {
    let role: &'static str = std::env::var(ROLE).ok()?.leak();
    Some(role.split(' ').collect())
}

/// Says a line to the process that measures.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// Another process. It is killed when this is dropped.
pub(crate) struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start(role: &[&str]) -> Result<Self, Failure> {
        let mut program = Command::new(std::env::current_exe()?);
        program
            .env(ROLE, role.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = cores::unpinned(move || program.spawn())??;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("it has no output")?);
        Ok(Self {
            child,
            input,
            output,
        })
    }

    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err("the other process ended".into()),
            _ => Ok(line.trim().to_owned()),
        }
    }

    pub(crate) fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let input = self.input.as_mut().ok_or("its input is closed")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill()?)
    }

    /// Its input ends, and then it does.
    pub(crate) fn end(mut self) -> Result<(), Failure> {
        drop(self.input.take());
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
