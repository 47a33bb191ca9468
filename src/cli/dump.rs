//! `rendez dump`: what shards have recorded, fetched from running tasks or read from files, as a list or a timeline.
//!
//! Knows recordings, and not what a shard does with them. Files may come from anybody, and are checked.

mod timeline;

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use super::ask::{AskArgs, Observer};
use super::error::CliError;
use super::report::lay_out;
use super::terminal::Terminal;
use super::units::show_nanos;
use crate::engine::services;
use crate::ground::{Status, TaskName, catalogue};
use crate::proto::services::{DumpReply, DumpRequest};
use crate::shard::recorder::{Event, NotRecorded, Recording, What};

/// Bytes of a recording at most: the largest ring, the histograms and the names.
const RECORDING_MAX: u64 = 32 << 20;

/// Examples of its use.
pub(super) const EXAMPLES: &str = "\
Examples:
  rendez dump --config cluster.toml --trace out.json    of all running tasks, as a timeline for ui.perfetto.dev
  rendez dump --pid 4711 --step 7                       of one process of this machine, one step
  rendez dump /run/rendez/*.rdz --trace out.json        of tasks with `recorder_dir`, also after a crash";

/// Options of `dump`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct DumpArgs {
    /// Recordings to read; without any, every task of the cluster is asked for its own.
    pub files: Vec<PathBuf>,
    /// Read what is in the memory of this process of this machine, also if it is stopped.
    #[arg(long, conflicts_with = "files")]
    pub pid: Option<u32>,
    /// Keep the recordings that were fetched in this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "files")]
    pub out: Option<PathBuf>,
    /// Write a timeline for Chrome's or Perfetto's viewer (ui.perfetto.dev).
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Only what is of this step.
    #[arg(long)]
    pub step: Option<u64>,
    /// At most so many events are listed: the last ones.
    #[arg(long, default_value_t = 40, value_name = "COUNT")]
    pub last: usize,
    /// The rest.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Runs it.
///
/// # Errors
/// What is wrong with a file or the cluster.
pub fn run(args: &DumpArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let recordings = match args.pid {
        Some(pid) => of_process(pid)?,
        None if args.files.is_empty() => of_cluster(&args.ask, args.out.as_deref())?,
        None => args
            .files
            .iter()
            .map(|path| read(path))
            .collect::<Result<_, _>>()?,
    };
    let mut all: Vec<(usize, Event)> = Vec::new();
    for (at, recording) in recordings.iter().enumerate() {
        let is_wanted = |event: &Event| args.step.is_none_or(|step| event.step == step);
        let clock = timeline::Aligned::of(&recordings, at);
        let wanted = recording.events().into_iter().filter(is_wanted);
        all.extend(wanted.map(|event| {
            (
                at,
                Event {
                    at: clock.nanos(event.at),
                    ..event
                },
            )
        }));
    }
    all.sort_by_key(|(_, event)| event.at);
    if let Some(path) = &args.trace {
        let text = timeline::render(&recordings, &all);
        std::fs::write(path, text).map_err(|error| {
            let message = format!("cannot write '{}': {error}", path.display());
            CliError::failure("FILE_UNWRITABLE", message)
        })?;
        if !args.ask.json {
            let from = if recordings.len() == 1 {
                "recording"
            } else {
                "recordings"
            };
            terminal.line(format_args!(
                "{}: {} events of {} {from}; open it in ui.perfetto.dev",
                path.display(),
                all.len(),
                recordings.len()
            ))?;
        }
    }
    if !args.ask.json {
        let mut told: Vec<&str> = Vec::new();
        for (at, recording) in recordings.iter().enumerate() {
            let task = &*recording.head.task;
            if let Some(error) =
                timeline::error_of(&recordings, at).filter(|_| !told.contains(&task))
            {
                told.push(task);
                terminal.line(format_args!(
                    "{task}: times {error}, beside those of {}",
                    recordings[0].head.task
                ))?;
            }
        }
    }
    let skipped = all.len().saturating_sub(args.last);
    list(&recordings, &all[skipped..], args.ask.json, terminal)
}

fn list(
    recordings: &[Recording],
    events: &[(usize, Event)],
    is_json: bool,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    let heading = [
        "time", "task", "shard", "what", "step", "key", "way", "took",
    ];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    let last = events.last().map_or(0, |(_, event)| event.at);
    for (at, event) in events {
        let Some(recording) = recordings.get(*at) else {
            continue;
        };
        let key = recording.name_of(event.key).unwrap_or_default();
        let edge = key
            .rsplit(';')
            .find(|part| !part.contains(':') || part.contains('/'));
        let edge = key.split(';').nth(3).or(edge).unwrap_or_default();
        if is_json {
            let object = serde_json::json!({
                "task": recording.head.task, "shard": recording.head.shard, "at_ns": event.at,
                "what": event.what.name(), "step": event.step, "key": key, "ordinal": event.ordinal,
                "way": event.way.name(), "a": event.a, "b": event.b, "c": event.c,
                "traceparent": event.traceparent().map(|trace| trace.to_string()),
            });
            terminal.line(object)?;
            continue;
        }
        lines.push(vec![
            format!("-{}", show_nanos(last.saturating_sub(event.at) as f64)),
            recording.head.task.clone(),
            recording.head.shard.to_string(),
            event.what.name().into(),
            event.step.to_string(),
            edge.into(),
            if matches!(event.what, What::Sent | What::Took) {
                event.way.name().into()
            } else {
                String::new()
            },
            took(event),
        ]);
    }
    if !is_json {
        let text = match events {
            [] => "nothing is recorded".into(),
            _ => lay_out(&lines, &[1, 3, 5, 6, 7], &[2, 6, 1], terminal.width()),
        };
        terminal.line(text)?;
    }
    Ok(())
}

/// The figures of an event, for people.
fn took(event: &Event) -> String {
    let show = |nanos: u32| show_nanos(f64::from(nanos));
    match event.what {
        What::Sent => {
            let queued = if event.a > 0 {
                format!("queued {}, ", show(event.a))
            } else {
                String::new()
            };
            format!(
                "{queued}matched {}, posted {}",
                show(event.b),
                show(event.c)
            )
        }
        What::Took => {
            let wire = if event.c == u32::MAX {
                String::new()
            } else {
                format!("wire {}, ", show(event.c))
            };
            format!("{wire}landed {}, woken {}", show(event.a), show(event.b))
        }
        What::Waits if event.b > 0 => {
            format!("for at most {}", show_nanos(f64::from(event.b) * 1e3))
        }
        What::Traced => event
            .traceparent()
            .map_or_else(String::new, |trace| trace.to_string()),
        What::Parked | What::Offered | What::Fetched => format!("{} bytes", event.a),
        _ => String::new(),
    }
}

fn read(path: &Path) -> Result<Recording, CliError> {
    let unreadable = |error: std::io::Error| {
        let message = format!("cannot read '{}': {error}", path.display());
        CliError::failure("FILE_UNREADABLE", message)
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(RECORDING_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    recording(&bytes, &path.display().to_string())
}

fn recording(bytes: &[u8], whose: &str) -> Result<Recording, CliError> {
    Recording::of(bytes).map_err(|error| {
        let reason = match error {
            NotRecorded::Version(_) => "RECORDING_VERSION",
            _ => "RECORDING_MALFORMED",
        };
        CliError::failure(reason, format!("'{whose}' is no recording: {error}"))
    })
}

/// The recorders that a process has open: descriptors of memory with their name.
fn of_process(pid: u32) -> Result<Vec<Recording>, CliError> {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    let entries = std::fs::read_dir(&folder).map_err(|error| {
        let message = format!("cannot look into process {pid}: {error}");
        CliError::failure("FILE_UNREADABLE", message)
    })?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let is_ours = std::fs::read_link(entry.path()).is_ok_and(|target| {
            let target = target.to_string_lossy();
            target.contains("memfd:rendez-recorder") || target.ends_with(".rdz")
        });
        if is_ours {
            found.push(read(&entry.path())?);
        }
    }
    if found.is_empty() {
        let message =
            format!("process {pid} records nothing: is it a task, and `stage_sampling` not 0?");
        return Err(CliError::failure("FILE_UNREADABLE", message));
    }
    found.sort_by_key(|recording| recording.head.shard);
    Ok(found)
}

/// Asks every task for the recordings of its shards, and keeps them in `folder` if there is one.
pub(super) fn of_cluster(ask: &AskArgs, folder: Option<&Path>) -> Result<Vec<Recording>, CliError> {
    let observer = Observer::new(ask, None)?;
    let mut found = Vec::new();
    for task in observer.tasks() {
        let mut shard = 0;
        loop {
            let (bytes, shards) = fetch(&observer, task, shard)?;
            let name = format!("{task} shard {shard}");
            if !bytes.is_empty() {
                if let Some(folder) = folder {
                    keep(folder, &name, &bytes)?;
                }
                found.push(recording(&bytes, &name)?);
            }
            shard += 1;
            if shard >= shards {
                break;
            }
        }
    }
    Ok(found)
}

fn fetch(observer: &Observer, task: &TaskName, shard: u32) -> Result<(Vec<u8>, u32), CliError> {
    let mut packed = Vec::new();
    let (shards, total) = loop {
        let from = packed.len() as u64;
        let reply: DumpReply = observer.ask(task, services::DUMP, &DumpRequest { shard, from })?;
        packed.extend_from_slice(&reply.piece);
        let is_whole = packed.len() as u64 >= reply.total;
        if is_whole || reply.piece.is_empty() || packed.len() as u64 > RECORDING_MAX {
            break (reply.shards, reply.total);
        }
    };
    if total == 0 {
        return Ok((Vec::new(), shards));
    }
    let words = services::unpack(&packed, RECORDING_MAX as usize / 8).ok_or_else(|| {
        let message = format!("{task} answered what is no packed recording");
        Status::of(catalogue::CALL_MALFORMED, message)
    })?;
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok((bytes, shards))
}

fn keep(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), CliError> {
    let name: String = name
        .trim_start_matches('/')
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let path = folder.join(format!("rendez-{name}.rdz"));
    std::fs::write(&path, bytes).map_err(|error| {
        let message = format!("cannot write '{}': {error}", path.display());
        CliError::failure("FILE_UNWRITABLE", message)
    })
}

#[cfg(test)]
mod tests;
