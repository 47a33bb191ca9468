//! `rendez doctor`: what this machine, and what this process may have of it, means for rendez. For each thing: what was
//! found, what is wanted, how to fix it, and the cost of leaving it.
//!
//! Knows what the engine needs, and starts none. Everything is read through a `Host`, so that a test can be one.

mod cores;
mod devices;
mod host;
mod kernel;
mod limits;
mod memory;

#[cfg(test)]
mod tests;

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::report::wrapped;
use super::terminal::Terminal;
use host::Host;

/// Options of `doctor`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct DoctorArgs {
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How well a thing stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As wanted.
    Good,
    /// There is none, and nothing is wrong with that.
    None,
    /// It works, and could be better.
    Poor,
    /// rendez cannot run.
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// How well it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What is wanted.
    pub wanted: &'static str,
    /// How to mend it, unless it is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
    /// What it costs to leave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<&'static str>,
}

impl Finding {
    fn new(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        wanted: &'static str,
    ) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            wanted,
            mend: None,
            cost: None,
        }
    }

    /// With its remedy and price, which are not needed if it is good.
    fn mend(mut self, mend: impl Into<String>, cost: &'static str) -> Self {
        if self.state != State::Good {
            self.mend = Some(mend.into());
            self.cost = Some(cost);
        }
        self
    }
}

/// A look at one thing.
type Check = fn(&Host) -> Finding;

const CHECKS: &[Check] = &[
    memory::memlock,
    memory::huge_pages,
    memory::shared_memory,
    memory::bytes,
    cores::affinity,
    cores::isolation,
    cores::siblings,
    cores::governor,
    limits::cpu_time,
    limits::cpu_set,
    limits::descriptors,
    limits::processes,
    limits::namespaces,
    kernel::io_uring,
    kernel::clock,
    kernel::tls,
    devices::rdma,
    devices::gpu,
    devices::device_memory,
    devices::mtu,
];

/// Looks at everything, and says so.
///
/// # Errors
/// `DOCTOR_UNABLE` if something makes rendez unable to run here.
pub fn run(args: &DoctorArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    report(&look(&Host::read()), args.json, terminal)
}

fn look(host: &Host) -> Vec<Finding> {
    CHECKS.iter().map(|check| check(host)).collect()
}

fn report(findings: &[Finding], json: bool, terminal: &mut Terminal) -> Result<(), CliError> {
    let broken: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.state == State::Broken)
        .map(|finding| finding.name)
        .collect();
    if json {
        let report = serde_json::json!({ "able": broken.is_empty(), "findings": findings });
        terminal.line(report)?;
    } else {
        for finding in findings {
            terminal.line(lines(finding, terminal.width()))?;
        }
        let count = |state| {
            findings
                .iter()
                .filter(|finding| finding.state == state)
                .count()
        };
        terminal.line(format!(
            "{} good, {} could be better, {} not there, {} broken",
            count(State::Good),
            count(State::Poor),
            count(State::None),
            broken.len()
        ))?;
    }
    if broken.is_empty() {
        return Ok(());
    }
    let message = format!("rendez cannot run here: see {} above", broken.join(", "));
    Err(CliError::failure("DOCTOR_UNABLE", message))
}

fn lines(finding: &Finding, width: Option<usize>) -> String {
    let mark = match finding.state {
        State::Good => "ok",
        State::None => "none",
        State::Poor => "poor",
        State::Broken => "BROKEN",
    };
    let Finding {
        name,
        found,
        wanted,
        ..
    } = finding;
    let mut text = wrapped(&format!("{mark:<6} {name:<16} "), found, width);
    if finding.state == State::Good {
        return text;
    }
    let details = [
        ("wanted", Some(*wanted)),
        ("mend", finding.mend.as_deref()),
        ("cost", finding.cost),
    ];
    for (what, detail) in details {
        if let Some(detail) = detail {
            text.push('\n');
            text.push_str(&wrapped(&format!("{what:>23}: "), detail, width));
        }
    }
    text
}
