//! `rendez demo`: every tensor of a file handed from one task to another, as a table and a summary.
//!
//! Knows nothing of engines: the hand-over itself comes in as a [`Handover`].

use std::time::Duration;

use serde::Serialize;

use super::args::DemoArgs;
use super::error::CliError;
use super::histogram::{Recorder, Summary};
use super::machine::{self, Machine};
use super::report::lay_out;
use super::terminal::Terminal;
use super::units::{show_bandwidth, show_bytes, show_nanos};
use super::weights::{Entry, Weights};

/// One tensor that arrived whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handed {
    /// Its place in [`Weights::entries`].
    pub index: usize,
    /// The path it took, as `inline` or `lease`.
    pub path: &'static str,
    /// From the send to the receiver having it, in nanoseconds.
    pub latency_ns: u64,
}

/// Two tasks in two processes, one of which sends and the other of which receives.
pub trait Handover {
    /// Hands over every tensor of `weights`, checks every byte at the receiver, and tells `each` as they arrive.
    /// Returns how long the hand-overs took together, without starting the processes and without reading the file.
    ///
    /// # Errors
    /// The first thing that went wrong; a tensor whose bytes differ is `BYTES_DIFFER`.
    fn hand_over(
        &mut self,
        weights: &Weights,
        each: &mut dyn FnMut(Handed),
    ) -> Result<Duration, CliError>;
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
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// What `--json` writes of the whole.
#[derive(Serialize)]
struct Total<'a> {
    file: &'a str,
    tensors: usize,
    bytes: u64,
    elapsed_ns: u64,
    bytes_per_s: f64,
    latency_ns: Option<Summary>,
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
    let elapsed = handover.hand_over(&weights, &mut |arrived| {
        if let Some(place) = handed.get_mut(arrived.index) {
            *place = Some(arrived);
        }
        progress.step();
    })?;
    drop(progress);
    let mut rows = Vec::with_capacity(count);
    for (entry, arrived) in weights.entries().iter().zip(handed) {
        let lost = || {
            let message = format!(
                "tensor '{}' of '{}' did not arrive; please report this",
                entry.name,
                weights.name()
            );
            CliError::failure("TENSOR_LOST", message)
        };
        rows.push((entry, arrived.ok_or_else(lost)?));
    }
    if args.json {
        write_json(&weights, &rows, elapsed, terminal)
    } else {
        write_table(&weights, &rows, elapsed, terminal)
    }
}

fn write_json(
    weights: &Weights,
    rows: &[(&Entry, Handed)],
    elapsed: Duration,
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
            note: entry.note,
        };
        terminal.line(serde_json::to_string(&line).unwrap_or_default())?;
    }
    let total = Total {
        file: weights.name(),
        tensors: rows.len(),
        bytes: weights.total_bytes(),
        elapsed_ns: elapsed.as_nanos() as u64,
        bytes_per_s: bandwidth(weights, elapsed),
        latency_ns: latencies(rows),
        checked: true,
        machine: Machine::read(),
    };
    terminal.line(serde_json::to_string(&total).unwrap_or_default())?;
    Ok(())
}

fn write_table(
    weights: &Weights,
    rows: &[(&Entry, Handed)],
    elapsed: Duration,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    let mut lines = vec![
        ["tensor", "dtype", "shape", "bytes", "path", "latency", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (entry, handed) in rows {
        lines.push(vec![
            shortened(&entry.name, terminal.width().unwrap_or(usize::MAX) / 2),
            entry.meta.dtype.name().to_owned(),
            entry.meta.shape.to_string(),
            show_bytes(entry.len),
            handed.path.to_owned(),
            show_nanos(handed.latency_ns as f64),
            entry.note.unwrap_or_default().to_owned(),
        ]);
    }
    terminal.line("")?;
    terminal.line(lay_out(
        &lines,
        &[0, 1, 2, 4, 6],
        &[6, 2, 1],
        terminal.width(),
    ))?;
    terminal.line("")?;
    let bytes = show_bytes(weights.total_bytes());
    let (took, speed) = (
        show_nanos(elapsed.as_nanos() as f64),
        show_bandwidth(bandwidth(weights, elapsed)),
    );
    terminal.line(format_args!(
        "{} tensors, {bytes} in {took}: {speed}, every byte checked",
        rows.len()
    ))?;
    if let Some(Summary {
        p50,
        p99,
        p99_9,
        max,
        ..
    }) = latencies(rows)
    {
        let [p50, p99, p99_9, max] = [p50, p99, p99_9, max].map(show_nanos);
        terminal.line(format_args!(
            "latency, one way: p50 {p50}, p99 {p99}, p99.9 {p99_9}, max {max}"
        ))?;
    }
    Ok(())
}

fn bandwidth(weights: &Weights, elapsed: Duration) -> f64 {
    weights.total_bytes() as f64 / elapsed.as_secs_f64().max(1e-9)
}

fn latencies(rows: &[(&Entry, Handed)]) -> Option<Summary> {
    let mut recorder = Recorder::nanos();
    rows.iter()
        .for_each(|(_, handed)| recorder.record(handed.latency_ns));
    recorder.summary()
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
