//! `rendez push` and `rendez pull`: files of tensors from one task of a cluster to another, in either order.
//!
//! Each of the two is a task while it runs, or a visitor beside that task if it runs already. Knows files and tables.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::error::CliError;
use super::exchange;
use super::meeting::{self, Offering};
use super::push_files::PushFiles;
use super::report::{lay_out, wrapped};
use super::settings::SettingArgs;
use super::shelf::{Shelf, Told};
use super::terminal::Terminal;
use super::units::{self, show_bytes, show_nanos};
use super::weights::printable;
use rendez::ground::{Code, Status, TaskName};

/// Examples of their use.
pub(super) const EXAMPLES: &str = "\
Examples:
  rendez push model.safetensors --to /job:b/task:0 --config cluster.toml --job a --task 0
  rendez push model.safetensors.index.json --to /job:b/task:0 …     all files of one model
  rendez push folder --to /job:b/task:0 …                           all files of weights in a folder, and their index
  rendez pull --from /job:a/task:0 --out model.safetensors --config cluster.toml --job b --task 0
  rendez pull --from /job:a/task:0 --out folder …

If the task already runs (`rendez serve`), push and pull are visitors beside it and use its place in the cluster.
Files come out as they went in, byte for byte. They appear when all of them are whole, checked and synced; only then
does the push succeed.";

/// Options of `push`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct PushArgs {
    /// Files of weights (safetensors), indices of models in several files, or folders of such; without any, a small
    /// real model built into the program.
    pub files: Vec<PathBuf>,
    /// The receiving task: `rendez pull` runs under its name, now or later.
    #[arg(long, value_name = "TASK")]
    pub to: String,
    /// How long the other task may take to appear, and to take a piece (one second more for each 10 MiB); instead
    /// of connect_timeout.
    #[arg(long, value_parser = units::positive_duration, default_value = "60s", value_name = "TIME")]
    pub patience: Duration,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Options of `pull`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct PullArgs {
    /// The sending task: `rendez push` runs under its name, now or later.
    #[arg(long, value_name = "TASK")]
    pub from: String,
    /// Where to write it: the path of one file, or a folder for several. A device, a FIFO or /dev/stdout is written
    /// to directly.
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// How long the other task may take to appear, and to send a piece (one second more for each 10 MiB); instead
    /// of connect_timeout.
    #[arg(long, value_parser = units::positive_duration, default_value = "60s", value_name = "TIME")]
    pub patience: Duration,
    /// One JSON object a line for each tensor, and one for all.
    #[arg(long)]
    pub json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Runs `push`.
///
/// # Errors
/// What is wrong with files, settings or cluster; `Unavailable` or `DeadlineExceeded` if no task takes it; why it could
/// not be written there.
pub fn push(args: &PushArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let to = TaskName::parse(&args.to).map_err(Status::from)?;
    let push_files = PushFiles::of(&args.files)?;
    let offering = Offering::open(&args.settings, &to, args.patience)?;
    let engine = offering.presence.engine().clone();
    let progress = terminal.transfer(push_files.bytes());
    let run = || {
        let (taker, heard) = offering.taker()?;
        let began = Instant::now();
        let delivery = push_files.send(&engine, &taker, heard, args.patience)?;
        let outcome = delivery.wait(&mut |bytes| progress.at_byte(bytes))?;
        let took = began.elapsed();
        Ok((outcome, took, way_to(&engine.connected(), &taker)))
    };
    let done: Result<_, CliError> = run();
    drop(progress);
    offering.leave(done.as_ref().is_err_and(is_lost));
    let (outcome, took, way) = done?;
    if args.json {
        let files = push_files.push_files.iter().zip(&outcome.sums);
        let files: Vec<_> = files
            .map(|(push_file, sum)| {
                json!({
                    "file": push_file.name, "bytes": push_file.bytes(), "tensors": push_file.tensors(), "sha256": sum,
                    "sha256_there": sum,
                })
            })
            .collect();
        terminal.line(json!({
            "name": push_files.name(), "to": to.to_string(), "path": way, "tensors": push_files.tensors(),
            "bytes": push_files.bytes(), "time_ns": nanos(took), "is_written": outcome.is_written, "files": files,
        }))?;
        return Ok(());
    }
    let kept = if outcome.is_written {
        "written and synced there"
    } else {
        "kept in no file there"
    };
    let text = format!(
        "{}: {} tensors, {}, taken by {to} over {way} in {:.1} ms, {kept}",
        push_files.name(),
        push_files.tensors(),
        show_bytes(push_files.bytes()),
        took.as_secs_f64() * 1e3
    );
    terminal.line(wrapped("", &text, terminal.width()))?;
    for (push_file, sum) in push_files.push_files.iter().zip(&outcome.sums) {
        terminal.line(digest_of(&push_file.name, sum, terminal.width()))?;
    }
    Ok(())
}

/// Runs `pull`.
///
/// # Errors
/// As [`push`]; `DATA_MISMATCH` if a file is not what was sent.
pub fn pull(args: &PullArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let from = TaskName::parse(&args.from).map_err(Status::from)?;
    let progress = terminal.transfer(0);
    let mut at = |bytes, total| {
        progress.of_bytes(total);
        progress.at_byte(bytes);
    };
    let mut shelf = Shelf::open(args.out.as_deref(), &mut at)?;
    let mut errors = shelf
        .is_standard_output()
        .then(|| Terminal::into_writer(Box::new(io::stderr()), None));
    let terminal = errors.as_mut().unwrap_or(terminal);
    let (presence, pusher, heard) = meeting::seek(&args.settings, &from, args.patience)?;
    let engine = presence.engine().clone();
    let known = exchange::hear_known(&engine, &pusher)?;
    let taken = exchange::take(&engine, &pusher, heard, args.patience, &mut shelf);
    let way = way_to(&engine.connected(), &pusher);
    let (name, files, tensors) = (shelf.name, shelf.files, shelf.tensors);
    drop(progress);
    let is_lost = taken.as_ref().is_err_and(is_lost);
    if !is_lost {
        exchange::settle(&engine, &pusher, known);
    }
    presence.leave(is_lost);
    let outcome = taken?;
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    show(&tensors, args.json, terminal)?;
    if args.json {
        let all = files.iter().zip(&outcome.sums);
        let all: Vec<_> = all
            .map(|((file, bytes), sum)| json!({ "file": file, "bytes": bytes, "sha256": sum }))
            .collect();
        terminal.line(json!({
            "name": name, "from": from.to_string(), "path": way, "tensors": tensors.len(), "bytes": bytes,
            "is_written": outcome.is_written, "files": all,
        }))?;
        return Ok(());
    }
    let text = pulled(&name, &from, way, tensors.len(), bytes);
    terminal.line("")?;
    terminal.line(wrapped("", &text, terminal.width()))?;
    for ((file, _), sum) in files.iter().zip(&outcome.sums) {
        terminal.line(digest_of(file, sum, terminal.width()))?;
    }
    Ok(())
}

/// Nothing that is said to the other end arrives any more.
fn is_lost(error: &CliError) -> bool {
    error.code() == Code::Unavailable
}

/// What came, under the name that its source gave it, which may hold anything.
fn pulled(name: &str, from: &TaskName, way: &str, tensors: usize, bytes: u64) -> String {
    format!(
        "{} from {from} over {way}: {tensors} tensors, {}, every byte right",
        printable(name),
        show_bytes(bytes)
    )
}

/// A file's digest, on one line where there is room.
fn digest_of(file: &str, sum: &str, width: Option<usize>) -> String {
    wrapped("sha256 ", &format!("{sum}  {file} (the same there)"), width)
}

fn way_to(connected: &[rendez::engine::Connected], task: &TaskName) -> &'static str {
    let peer = connected.iter().find(|peer| peer.task == *task);
    peer.map_or("no path", |peer| peer.path.name())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn show(all: &[Told], json: bool, terminal: &mut Terminal) -> Result<(), CliError> {
    let mut lines = vec![
        ["tensor", "dtype", "shape", "bytes", "path", "time"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for told in all {
        if json {
            terminal.line(json!({
                "tensor": told.tensor, "dtype": told.dtype, "shape": told.shape, "bytes": told.bytes,
                "path": told.path, "time_ns": told.time_ns,
            }))?;
            continue;
        }
        let dims: Vec<String> = told.shape.iter().map(u64::to_string).collect();
        lines.push(vec![
            told.tensor.clone(),
            told.dtype.into(),
            format!("[{}]", dims.join(",")),
            show_bytes(told.bytes),
            told.path.into(),
            show_nanos(told.time_ns as f64),
        ]);
    }
    if !json {
        terminal.line(lay_out(&lines, &[0, 1, 2, 4], &[2, 1], terminal.width()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_calls_it_reaches_no_terminal_as_commands() {
        let from = TaskName::parse("/job:a/task:0").expect("a name");
        let text = pulled("a\x1b[2J\rb", &from, "tcp", 1, 4);
        assert!(text.starts_with("a\\u{1b}[2J\\rb from /job:a/"), "{text}");
    }

    #[test]
    fn a_digest_fits_a_terminal() {
        let sum = "0123456789abcdef".repeat(4);
        let text = digest_of("model-00001-of-00030.safetensors", &sum, Some(80));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("sha256 {sum}"));
        assert_eq!(
            lines[1],
            "       model-00001-of-00030.safetensors (the same there)"
        );
        let wide = digest_of("a", &sum, None);
        assert_eq!(wide, format!("sha256 {sum}  a (the same there)"));
    }
}
