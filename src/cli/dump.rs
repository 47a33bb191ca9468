//! `rendez dump`: what shards have recorded, fetched from running tasks or read from files, as a list or a timeline.
//!
//! Knows recordings, and not what a shard does with them. Files are untrusted, and are checked.

mod timeline;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::bounded::read_bounded;
use super::error::CliError;
use super::observer::{AskArgs, Observer, Target, Unanswered};
use super::report::lay_out;
use super::terminal::Terminal;
use super::units::show_nanos;
use super::weights::printable;
use rendez::control::Address;
use rendez::engine::services;
use rendez::files::Output;
use rendez::ground::limits::SHARDS_MAX;
use rendez::ground::{Status, TaskName, catalogue};
use rendez::trace::recorder::{Event, NotRecorded, Recording, What};
use rendez_proto::methods::engine_service::GetDump;
use rendez_proto::services::DumpRequest;

/// Bytes of a recording at most: the largest ring, the histograms and the names.
const RECORDING_MAX: u64 = 32 << 20;

/// Examples of its use.
pub(super) const EXAMPLES: &str = "\
Examples:
  rendez dump --config cluster.toml --trace out.json    of all running tasks, as a timeline for ui.perfetto.dev
  rendez dump 10.0.0.1:29700                            of the task that listens there
  rendez dump --pid 4711 --step 7                       of one process of this machine, one step
  rendez dump /run/rendez/*.rdz --trace out.json        of tasks with `recorder_dir`, also after a crash";

/// Options of `dump`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct DumpArgs {
    /// Recordings to read, or tasks and addresses (host:port, unix:@name) to ask for theirs; without any, every task
    /// is asked.
    #[arg(value_name = "FILE|TASK|ADDRESS")]
    pub files: Vec<PathBuf>,
    /// Read the memory of this local process, even if it is stopped.
    #[arg(long, conflicts_with = "files")]
    pub pid: Option<u32>,
    /// Keep the recordings that were fetched in this folder, for their owner alone (mode 0600).
    #[arg(long, value_name = "FOLDER", conflicts_with = "pid")]
    pub out: Option<PathBuf>,
    /// Write a timeline for Chrome's or Perfetto's viewer (ui.perfetto.dev); a new file is for its owner alone.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Only events of this step.
    #[arg(long)]
    pub step: Option<u64>,
    /// List at most this many events: the last ones.
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
    let mut unanswered = Unanswered::default();
    let is_asked = |text: &PathBuf| !text.exists() && is_target(text);
    let (whom, files): (Vec<PathBuf>, Vec<PathBuf>) =
        args.files.iter().cloned().partition(is_asked);
    if args.out.is_some() && !files.is_empty() {
        let message = "--out keeps what is fetched from tasks; files are kept already";
        return Err(CliError::usage("USAGE", message));
    }
    // Before any task is asked: it tells as much as a recording does.
    let trace = args
        .trace
        .as_deref()
        .map(|path| Output::confidential(path).map_err(|error| CliError::unwritable(path, &error)));
    let trace = trace.transpose()?;
    if let Some(folder) = &args.out {
        let probe = folder.join(".rendez-probe");
        let probed = Output::private(&probe).map(drop);
        probed.map_err(|error| CliError::unwritable(folder, &error))?;
    }
    let mut recordings = Vec::new();
    let files = args.pid.map_or(Ok(files), recorders_of)?;
    if files.is_empty() || !whom.is_empty() {
        let whom: Vec<String> = whom.iter().map(|whom| whom.display().to_string()).collect();
        let observer = Observer::new(&args.ask, &whom)?;
        let (fetched, silent) = of_tasks(&observer, args.out.as_deref())?;
        let json = args.ask.json.then_some("task");
        for (target, status) in silent {
            unanswered.tell(target, &status, json, terminal)?;
        }
        recordings = fetched;
    }
    // One that a crash left half made, or that another version wrote, hides none beside it.
    let is_one = files.len() == 1 && whom.is_empty();
    for file in &files {
        match read(file) {
            Ok(recording) => recordings.push(recording),
            Err(error) if is_one => return Err(error),
            Err(error) => unanswered.tell_unread(file, error, args.ask.json, terminal)?,
        }
    }
    if args.pid.is_some() {
        recordings.sort_by_key(|recording| recording.head.shard);
    }
    if recordings.is_empty() && unanswered.count() > 0 {
        return unanswered.end();
    }
    let mut all: Vec<(usize, Event)> = Vec::new();
    // A task that was asked leaves a copy beside its recorder: what is in both is one event.
    let mut seen: BTreeSet<(&str, u64, u16, u64)> = BTreeSet::new();
    let clocks = timeline::Aligned::of(&recordings);
    for ((at, recording), clock) in recordings.iter().enumerate().zip(&clocks) {
        let head = &recording.head;
        let wanted = recording.numbered_events().into_iter();
        let wanted = wanted.filter(|(number, event)| {
            args.step.is_none_or(|step| event.step == step)
                && seen.insert((&head.task, head.incarnation, head.shard, *number))
        });
        all.extend(wanted.map(|(_, event)| {
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
    if let (Some(path), Some(mut output)) = (&args.trace, trace) {
        let text = timeline::render(&recordings, &clocks, &all);
        let written = output.write_all(text.as_bytes());
        written
            .and_then(|()| output.finish())
            .map_err(|error| CliError::unwritable(path, &error))?;
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
        let mut told: Vec<String> = Vec::new();
        for (at, clock) in clocks.iter().enumerate() {
            let life = timeline::life_of(&recordings, at);
            if let Some(error) = clock.error().filter(|_| !told.contains(&life)) {
                terminal.line(format_args!(
                    "{}: times {error}, beside those of {}",
                    printable(&life),
                    printable(&timeline::life_of(&recordings, 0))
                ))?;
                told.push(life);
            }
        }
    }
    let skipped = all.len().saturating_sub(args.last);
    // With --last 0 none is wanted.
    if skipped < all.len() || all.is_empty() {
        list(&recordings, &all[skipped..], args, terminal)?;
    }
    unanswered.end()
}

/// True for a text that names a task or an address, and not a file's.
fn is_target(path: &Path) -> bool {
    path.to_str().is_some_and(|text| {
        TaskName::parse(text).is_ok()
            || (!text.contains('/') || text.starts_with("unix:")) && text.parse::<Address>().is_ok()
    })
}

fn list(
    recordings: &[Recording],
    events: &[(usize, Event)],
    args: &DumpArgs,
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
        if args.ask.json {
            let object = serde_json::json!({
                "task": recording.head.task, "incarnation": format!("{:016x}", recording.head.incarnation),
                "shard": recording.head.shard, "at_ns": event.at,
                "what": event.what.name(), "step": event.step, "key": key, "ordinal": event.ordinal,
                "way": event.way.name(), "a": event.a, "b": event.b, "c": event.c,
                "traceparent": event.traceparent().map(|trace| trace.to_string()),
            });
            terminal.line(object)?;
            continue;
        }
        lines.push(vec![
            format!("-{}", show_nanos(last.saturating_sub(event.at) as f64)),
            printable(&timeline::life_of(recordings, *at)),
            recording.head.shard.to_string(),
            event.what.name().into(),
            event.step.to_string(),
            printable(edge),
            if matches!(event.what, What::Sent | What::Took) {
                event.way.name().into()
            } else {
                String::new()
            },
            took(event),
        ]);
    }
    if !args.ask.json {
        let text = match (events, args.step) {
            ([], None) => "nothing is recorded".into(),
            ([], Some(step)) => format!("nothing is recorded of step {step}"),
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
    let name = path.display().to_string();
    let bytes = read_bounded(path, RECORDING_MAX)?.ok_or_else(|| {
        let message = format!("'{name}' is no recording: it is longer than {RECORDING_MAX} bytes");
        CliError::failure("RECORDING_MALFORMED", message)
    })?;
    recording(&bytes, &name)
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

/// The recorders that a process has open.
fn recorders_of(pid: u32) -> Result<Vec<PathBuf>, CliError> {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    let entries = std::fs::read_dir(&folder).map_err(|error| {
        let message = format!("cannot look into process {pid}: {error}");
        CliError::failure("FILE_UNREADABLE", message)
    })?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| {
        std::fs::read_link(path).is_ok_and(|target| is_recorder(&target.to_string_lossy()))
            && path.is_file()
    });
    if found.is_empty() {
        let message =
            format!("process {pid} records nothing: is it a task, and `stage_sampling` not 0?");
        return Err(CliError::failure("FILE_UNREADABLE", message));
    }
    Ok(found)
}

/// True of what the kernel calls an open recorder: memory with that name, or a file, also one that was removed since.
fn is_recorder(target: &str) -> bool {
    let file = target.strip_suffix(" (deleted)").unwrap_or(target);
    target.contains("memfd:rendez-recorder") || file.ends_with(".rdz")
}

/// What tasks have recorded, and which of them could not be asked.
pub(super) type Fetched<'a> = (Vec<Recording>, Vec<(&'a Target, Status)>);

/// Asks for the recordings of all shards, and keeps them in `folder` if there is one.
pub(super) fn of_tasks<'a>(
    observer: &'a Observer,
    folder: Option<&Path>,
) -> Result<Fetched<'a>, CliError> {
    let (mut found, mut unanswered) = (Vec::new(), Vec::new());
    for (target, shards) in
        observer.of_all(|target| all_shards(|shard| fetch(observer, target, shard)))
    {
        let shards = match shards {
            Ok(shards) => shards,
            Err(status) => {
                unanswered.push((target, status));
                continue;
            }
        };
        for (shard, bytes) in &shards {
            if let Some(folder) = folder {
                keep(folder, &name_of(&target.name(), *shard), bytes)?;
            }
        }
        let (readable, others) = sorted(&target.name(), &shards);
        found.extend(readable);
        unanswered.extend(others.into_iter().map(|status| (target, status)));
    }
    Ok((found, unanswered))
}

fn name_of(task: &str, shard: u32) -> String {
    format!("{task} shard {shard}")
}

/// The recordings that can be read, and why the others cannot: a task that is replaced while others are not yet has
/// them of another version, and those of the others are shown.
fn sorted(task: &str, shards: &[(u32, Vec<u8>)]) -> (Vec<Recording>, Vec<Status>) {
    let (mut readable, mut others) = (Vec::new(), Vec::new());
    for (shard, bytes) in shards {
        match recording(bytes, &name_of(task, *shard)) {
            Ok(recording) => readable.push(recording),
            Err(error) => others.push(Status::of(error.reason(), error.message())),
        }
    }
    (readable, others)
}

/// The recordings of a task that records, by their shards. `fetch` gives one, and how many shards the task says it has.
fn all_shards(
    mut fetch: impl FnMut(u32) -> Result<(Vec<u8>, u32), Status>,
) -> Result<Vec<(u32, Vec<u8>)>, Status> {
    let mut found = Vec::new();
    let mut shard = 0;
    loop {
        let (bytes, shards) = fetch(shard)?;
        if !bytes.is_empty() {
            found.push((shard, bytes));
        }
        shard += 1;
        if shard >= shards.min(SHARDS_MAX.into()) {
            return Ok(found);
        }
    }
}

fn fetch(observer: &Observer, target: &Target, shard: u32) -> Result<(Vec<u8>, u32), Status> {
    let mut packed = Vec::new();
    let (shards, total) = loop {
        let from = packed.len() as u64;
        let reply = observer.ask::<GetDump>(target, &DumpRequest { shard, from })?;
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
        let message = format!("{} answered what is no packed recording", target.name());
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
    let write = || {
        let mut output = Output::private(&path)?;
        output.write_all(bytes)?;
        output.finish()
    };
    write().map_err(|error| CliError::unwritable(&path, &error))
}

#[cfg(test)]
mod tests;
