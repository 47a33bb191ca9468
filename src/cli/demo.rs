//! `rendez demo`: every tensor of a file handed from one task to another, as a table and a summary.
//!
//! Knows nothing of engines: the hand-over itself comes in as a [`Handover`].

pub mod pair;
pub mod peer;
mod plan;
mod tasks;
mod wait;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::args::DemoArgs;
use super::error::CliError;
use super::histogram::Summary;
use super::machine::{self, Machine};
use super::report::lay_out;
use super::terminal::Terminal;
use super::units::{show_bandwidth, show_bytes, show_nanos};
use super::weights::{Entry, Weights};
use rendez::trace::Path;

/// One tensor that arrived whole, in every round.
#[derive(Clone, PartialEq, Debug)]
pub struct Handed {
    /// Its place in [`Weights::entries`].
    pub index: usize,
    /// The path it took after the first round, as `inline` or `lease`; the most common, if there were several.
    pub path: &'static str,
    /// How often it took which, if there were several.
    pub paths: Option<String>,
    /// Latency in the first round, when its key was new and nothing of it cached, in nanoseconds.
    pub first_ns: u64,
    /// The median latency of the rounds after it, in nanoseconds: from the send to the receiver having it.
    pub latency_ns: u64,
}

/// Something a reader of the figures must know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// What it is about, in a word or two.
    pub name: &'static str,
    /// What there is to know.
    pub text: String,
}

/// All hand-overs together.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Rounds over each tensor, without the first.
    pub rounds: u64,
    /// Bytes handed over in them.
    pub bytes: u64,
    /// How long they took, with the comparing of every byte; starting processes and reading the file are left out.
    pub elapsed: Duration,
    /// Latencies of the first round.
    pub first: Option<Summary>,
    /// Latencies of the others.
    pub latencies: Option<Summary>,
    /// What the figures were measured on.
    pub facts: Vec<Fact>,
}

/// Two tasks in two processes, one of which sends and the other of which receives.
pub trait Handover {
    /// Hands over every tensor of `weights` in several rounds, checks every byte at the receiver, and tells `each` of
    /// every tensor that has arrived.
    ///
    /// # Errors
    /// The first thing that went wrong; a tensor whose bytes differ is `BYTES_DIFFER`.
    fn hand_over(
        &mut self,
        weights: &Weights,
        each: &mut dyn FnMut(Handed),
    ) -> Result<Outcome, CliError>;
}

impl Handed {
    /// A tensor whose rounds after the first took these times and paths.
    fn summed_up(index: usize, first_ns: u64, mut rounds: Vec<(u64, Path)>) -> Self {
        let kinds = [Path::Inline, Path::Lease, Path::Copy, Path::Local];
        let count = |kind: Path| rounds.iter().filter(|(_, path)| *path == kind).count();
        let mut counted: Vec<(usize, &'static str)> = kinds
            .iter()
            .map(|kind| (count(*kind), kind.name()))
            .filter(|(count, _)| *count > 0)
            .collect();
        counted.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
        let several = counted
            .iter()
            .map(|(count, name)| format!("{name} {count}"))
            .collect::<Vec<_>>()
            .join(", ");
        let middle = rounds.len() / 2;
        let latency_ns = if rounds.is_empty() {
            0
        } else {
            rounds.select_nth_unstable_by_key(middle, |r| r.0).1.0
        };
        Self {
            index,
            path: counted.first().map_or("none", |(_, name)| name),
            paths: (counted.len() > 1).then_some(several),
            first_ns,
            latency_ns,
        }
    }
}

/// What `--json` writes of one tensor.
#[derive(Serialize)]
struct Line<'a> {
    tensor: &'a str,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
    path: &'static str,
    latency_ns: u64,
    first_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<Cow<'a, str>>,
}

/// What `--json` writes of the whole.
#[derive(Serialize)]
struct Total<'a> {
    file: &'a str,
    tensors: usize,
    bytes: u64,
    rounds: u64,
    elapsed_ns: u64,
    bytes_per_s: f64,
    latency_ns: Option<Summary>,
    first_ns: Option<Summary>,
    latency: &'static str,
    facts: BTreeMap<&'static str, &'a str>,
    checked: bool,
    machine: Machine,
}

/// Runs the demonstration.
///
/// # Errors
/// What opening the file or handing it over says; `TENSOR_LOST` if a tensor did not arrive.
pub fn run(
    args: &DemoArgs,
    handover: &mut dyn Handover,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    let weights = args
        .file
        .as_ref()
        .map_or_else(Weights::built_in, |path| Weights::open(path))?;
    let count = weights.entries().len();
    if !args.json {
        let (name, bytes) = (weights.name(), show_bytes(weights.total_bytes()));
        terminal.line(format_args!("{name}: {count} tensors, {bytes}"))?;
        if let Some(note) = machine::pair()?.note {
            terminal.line(format_args!("note: {note}"))?;
        }
    }
    let progress = terminal.progress(count as u64);
    let mut handed: Vec<Option<Handed>> = vec![None; count];
    let outcome = handover.hand_over(&weights, &mut |arrived| {
        if let Some(place) = handed.get_mut(arrived.index) {
            *place = Some(arrived);
        }
        progress.step();
    })?;
    drop(progress);
    let mut rows = Vec::with_capacity(count);
    for (entry, arrived) in weights.entries().iter().zip(handed) {
        let lost = || {
            let (tensor, file) = (&entry.name, weights.name());
            let message =
                format!("tensor '{tensor}' of '{file}' did not arrive; please report this");
            CliError::failure("TENSOR_LOST", message)
        };
        rows.push((entry, arrived.ok_or_else(lost)?));
    }
    if args.json {
        write_json(&weights, &rows, &outcome, terminal)
    } else {
        write_facts(&outcome, terminal)?;
        write_table(&rows, terminal)?;
        write_legend(&rows, &outcome, terminal)?;
        write_summary(&rows, &outcome, terminal)
    }
}

/// What latencies are, wherever they are shown.
const LATENCY: &str = "one way: from before the send in one process to the other having the tensor, by the clock \
                       both share; the receiver waits already";

fn write_json(
    weights: &Weights,
    rows: &[(&Entry, Handed)],
    outcome: &Outcome,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    for (entry, handed) in rows {
        let line = Line {
            tensor: &entry.name,
            dtype: entry.meta.dtype.name(),
            shape: entry.meta.shape.dims().collect(),
            bytes: entry.len,
            path: handed.path,
            latency_ns: handed.latency_ns,
            first_ns: handed.first_ns,
            note: note(entry, handed),
        };
        terminal.line(serde_json::to_string(&line).unwrap_or_default())?;
    }
    let total = Total {
        file: weights.name(),
        tensors: rows.len(),
        bytes: weights.total_bytes(),
        rounds: outcome.rounds,
        elapsed_ns: outcome.elapsed.as_nanos() as u64,
        bytes_per_s: bandwidth(outcome),
        latency_ns: outcome.latencies,
        first_ns: outcome.first,
        latency: LATENCY,
        facts: outcome
            .facts
            .iter()
            .map(|fact| (fact.name, &*fact.text))
            .collect(),
        checked: true,
        machine: Machine::read(),
    };
    terminal.line(serde_json::to_string(&total).unwrap_or_default())?;
    Ok(())
}

fn write_facts(outcome: &Outcome, terminal: &mut Terminal) -> Result<(), CliError> {
    let widest = outcome
        .facts
        .iter()
        .map(|fact| fact.name.len())
        .max()
        .unwrap_or(0);
    for Fact { name, text } in &outcome.facts {
        terminal.line(format_args!("{name:widest$}  {text}"))?;
    }
    Ok(())
}

fn write_table(rows: &[(&Entry, Handed)], terminal: &mut Terminal) -> Result<(), CliError> {
    let heading = [
        "tensor", "dtype", "shape", "bytes", "path", "latency", "first", "",
    ];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    for (entry, handed) in rows {
        lines.push(vec![
            shortened(&entry.name, terminal.width().unwrap_or(usize::MAX) / 2),
            entry.meta.dtype.name().to_owned(),
            entry.meta.shape.to_string(),
            show_bytes(entry.len),
            handed.path.to_owned(),
            show_nanos(handed.latency_ns as f64),
            show_nanos(handed.first_ns as f64),
            note(entry, handed).unwrap_or_default().into_owned(),
        ]);
    }
    terminal.line("")?;
    terminal.line(lay_out(
        &lines,
        &[0, 1, 2, 4, 7],
        &[7, 6, 2, 1],
        terminal.width(),
    ))?;
    terminal.line("")?;
    Ok(())
}

fn write_summary(
    rows: &[(&Entry, Handed)],
    outcome: &Outcome,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    let (count, rounds) = (rows.len(), outcome.rounds);
    terminal.line(format_args!(
        "{count} tensors, {rounds} rounds: every byte of each compared with the file"
    ))?;
    let (bytes, took) = (
        show_bytes(outcome.bytes),
        show_nanos(outcome.elapsed.as_nanos() as f64),
    );
    terminal.line(format_args!(
        "{} handed over, read and compared ({bytes} in {took})",
        show_bandwidth(bandwidth(outcome))
    ))?;
    if let Some(Summary {
        p50,
        p99,
        p99_9,
        max,
        ..
    }) = outcome.latencies
    {
        let [p50, p99, p99_9, max] = [p50, p99, p99_9, max].map(show_nanos);
        terminal.line(format_args!(
            "latency  p50 {p50}, p99 {p99}, p99.9 {p99_9}, max {max}"
        ))?;
    }
    // A dozen first rounds have no percentiles worth the name.
    if let Some(Summary { p50, max, .. }) = outcome.first {
        terminal.line(format_args!(
            "first    p50 {}, max {}",
            show_nanos(p50),
            show_nanos(max)
        ))?;
    }
    Ok(())
}

/// The words of the table that a newcomer has not met.
fn write_legend(
    rows: &[(&Entry, Handed)],
    outcome: &Outcome,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    let took = |path: Path| rows.iter().any(|(_, handed)| handed.path == path.name());
    let paths = [
        (
            Path::Inline,
            "small: the bytes travel in the shared ring itself",
        ),
        (
            Path::Lease,
            "read in place, in the producer's memory: nothing is copied",
        ),
        (Path::Copy, "copied into the consumer's memory"),
    ];
    for (path, words) in paths.into_iter().filter(|(path, _)| took(*path)) {
        terminal.line(format_args!("{:<7}  {words}", path.name()))?;
    }
    if outcome.latencies.is_some() {
        terminal.line(format_args!(
            "latency  one way, send to received, receiver waiting; median of {} rounds",
            outcome.rounds
        ))?;
        terminal.line("first    the same in the round before them: new keys, cold caches")?;
    }
    terminal.line("")?;
    Ok(())
}

/// What a reader must know of a row.
fn note<'a>(entry: &Entry, handed: &'a Handed) -> Option<Cow<'a, str>> {
    match (entry.note, &handed.paths) {
        (Some(note), Some(paths)) => Some(Cow::Owned(format!("{note}; {paths}"))),
        (Some(note), None) => Some(Cow::Borrowed(note)),
        (None, paths) => paths.as_deref().map(Cow::Borrowed),
    }
}

fn bandwidth(outcome: &Outcome) -> f64 {
    outcome.bytes as f64 / outcome.elapsed.as_secs_f64().max(1e-9)
}

/// A name cut in the middle: its ends tell names apart, as in `model.layers.…17.weight`.
fn shortened(name: &str, columns: usize) -> String {
    let count = name.chars().count();
    if count <= columns || columns < 3 {
        return name.to_owned();
    }
    let (front, back) = ((columns - 1) / 2, columns / 2);
    name.chars()
        .take(front)
        .chain(['…'])
        .chain(name.chars().skip(count - back))
        .collect()
}

#[cfg(test)]
mod tests;
