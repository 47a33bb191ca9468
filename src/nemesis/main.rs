//! Nemesis: tasks that exchange tensors while their world is broken, and the judge of what they saw.
//!
//! `scripts/nemesis.sh` starts the tasks and breaks things; neither is known here. Each task writes a history, and so
//! does the script; the judge reads all of them and knows nothing of a running engine.
//!
//! | file | |
//! |---|---|
//! | `scope.rs` | which step two lives of two tasks use at a time, and what they exchange in it |
//! | `value.rs` | what a tensor carries, so that a wrong one is known |
//! | `history.rs` | events as lines of text, and how they are kept |
//! | `peer.rs` | a task |
//! | `devices.rs` | its values that lie on devices, of a played driver |
//! | `graphs.rs` | its session, which runs a graph over all tasks |
//! | `calls.rs` | its worker, which calls functions of all tasks; `calls/*.rs`: references, and a training |
//! | `lesson.rs` | what that training learns |
//! | `story.rs` | all histories put together |
//! | `judge.rs` | what must hold, and what does not: values and failures; `judge/*.rs` the rest |

mod calls;
mod devices;
mod graphs;
mod history;
mod judge;
mod lesson;
mod peer;
mod scope;
mod story;
mod value;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};
use rendez_cli::args::LogFormat;
use rendez_cli::error::CliError;
use rendez_cli::logs::{self, LevelFilter};
use rendez_cli::report::lay_out;
use rendez_cli::settings::SettingArgs;
use rendez_cli::terminal::Terminal;
use rendez_cli::units;

/// Tasks under injected faults, and the judge of what they saw: for `scripts/nemesis.sh`.
#[derive(Parser, Debug)]
#[command(name = "rendez-nemesis", version)]
enum Command {
    /// A task of a cluster whose world is broken.
    Peer(PeerArgs),
    /// The judge of what such tasks saw.
    Check(CheckArgs),
}

/// Options of a task.
#[derive(Args, Clone, PartialEq, Debug)]
struct PeerArgs {
    /// Which life of the task this is.
    #[arg(long)]
    life: u32,
    /// The file with the lives of all tasks, in their order.
    #[arg(long)]
    lives: PathBuf,
    /// The file for the history of this life.
    #[arg(long)]
    history: PathBuf,
    /// The settings.
    #[command(flatten)]
    settings: SettingArgs,
}

/// Options of the judge.
#[derive(Args, Clone, PartialEq, Debug)]
struct CheckArgs {
    /// Histories: one of each life of each task, and that of the faults.
    #[arg(required = true)]
    histories: Vec<PathBuf>,
    /// The setting that the tasks ran with.
    #[arg(long, value_parser = units::positive_duration)]
    failure_detection: Duration,
    /// The logs of the tasks, named `task-<index>-<life>.log`.
    #[arg(long, num_args = 1..)]
    logs: Vec<PathBuf>,
    /// How late a receive may end after its own deadline.
    #[arg(long, value_parser = units::positive_duration, default_value = "500ms")]
    slack: Duration,
    /// How long after a fault everything works again.
    #[arg(long, value_parser = units::positive_duration, default_value = "3s")]
    settle: Duration,
    /// The most memory a task may hold, in KiB.
    #[arg(long)]
    resident_max_kib: u64,
    /// The most descriptors a task may hold.
    #[arg(long)]
    descriptors_max: u64,
}

fn main() -> ExitCode {
    let command = Command::parse();
    logs::begin(LevelFilter::WARN, LogFormat::Text);
    let outcome = match &command {
        Command::Peer(args) => peer::run(args),
        Command::Check(args) => check(args, &mut Terminal::standard()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            error.exit().into()
        }
    }
}

/// Reads the histories and says what they show.
///
/// # Errors
/// `NEMESIS_FOUND` if anything is not as promised; `FILE_UNREADABLE`, or a history that is none.
fn check(args: &CheckArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let mut story = story::Story::default();
    for path in &args.histories {
        story.read(&path.display().to_string(), &read(path)?)?;
    }
    for path in &args.logs {
        let name = path.file_stem().and_then(|name| name.to_str());
        let mut parts = name.unwrap_or_default().split('-').skip(1).map(str::parse);
        if let (Some(Ok(task)), Some(Ok(life)), None) = (parts.next(), parts.next(), parts.next()) {
            story.read_log((task, life), &read(path)?);
        }
    }
    let bounds = judge::Bounds {
        failure_detection_ns: nanos(args.failure_detection),
        slack_ns: nanos(args.slack),
        settle_ns: nanos(args.settle),
        resident_max_kib: args.resident_max_kib,
        descriptors_max: args.descriptors_max,
    };
    let verdict = judge::judge(&story, &bounds);
    for line in &verdict.summary {
        terminal.line(line)?;
    }
    let mut rows = vec![["what", "worst", "bound"].map(str::to_owned).to_vec()];
    rows.extend(verdict.rows.iter().map(|row| row.to_vec()));
    terminal.line(lay_out(&rows, &[0], &[], terminal.width()))?;
    if verdict.findings.is_empty() {
        return Ok(());
    }
    for finding in verdict.findings.iter().take(60) {
        terminal.line(format!("FOUND {finding}"))?;
    }
    let message = format!("{} promises were not kept", verdict.findings.len());
    Err(CliError::failure("NEMESIS_FOUND", message))
}

fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| {
        let message = format!("cannot read {}: {error}", path.display());
        CliError::failure("FILE_UNREADABLE", message)
    })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
