//! `rendez bench`: each size in turn, with the raw reference beside it, into rows, JSON, table and log.
//!
//! Knows nothing of engines: what is measured comes in as a [`Workload`]. This file decides what is measured when, and
//! makes rows of what comes back.

mod compare;
mod rows;

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::args::{BenchArgs, From, Pattern, Transport};
use super::baseline::{self, Reference, References, TcpReferences};
use super::error::CliError;
use super::histogram::{HdrLog, Interval, Recorder};
use super::interrupt::Interrupts;
use super::machine::{self, Machine};
use super::page::Html;
use super::report::{Growing, Options, Repeated, Row, TIMES};
use super::terminal::Terminal;
use super::units::{show_bytes, show_nanos};
use rendez::drive::PollPolicy;
use rendez::engine::recording::StageTimes;
use rendez::ground::catalogue;
use rendez::memory::files;
use rendez_proto::services::StageStat;
use rows::row;

/// A raw reference is measured for at most this long: it settles sooner than anything above it.
const REFERENCE_MAX: Duration = Duration::from_secs(1);

/// One measurement to make.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// What is measured.
    pub pattern: Pattern,
    /// What carries it.
    pub transport: Transport,
    /// What calls the engine.
    pub from: From,
    /// Bytes of each tensor.
    pub bytes: u64,
    /// How long to run unrecorded first.
    pub warmup: Duration,
    /// How long to measure.
    pub duration: Duration,
    /// Sends a second, in an open loop; `None` for a closed one.
    pub rate: Option<f64>,
    /// Whether every byte is checked at the receiver.
    pub check: bool,
    /// Whether every byte is written before each send and read at the receiver.
    pub touch: bool,
    /// How the shards wait.
    pub poll: PollPolicy,
    /// Values kept parked (`local` only).
    pub parked: Option<u64>,
}

/// What a measurement found. Fields that do not apply to its pattern stay `None`.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Operations completed at the receiver.
    pub count: u64,
    /// Operations of an open loop that were due and not completed when the time was over: what they had waited until
    /// then is among the times.
    pub overdue: u64,
    /// Whole round trips, each timed once (`pingpong`).
    pub round_trips: Option<Recorder>,
    /// From due (open loop) or sent (closed loop) to received (`oneway`).
    pub one_way: Option<Recorder>,
    /// Time per operation, one record per interval of many (`oneway`, `rate`): rates and bandwidth come from it.
    pub per_operation: Option<Recorder>,
    /// The same round trips as they came: one recorder for each stretch of equal length.
    pub slices: Vec<Recorder>,
    /// Where the time went, as far as it was followed; of this side.
    pub stages: Vec<StageTimes>,
    /// The same of both sides, as sums: what one side sends the other receives, so the stages of a hand-over lie on
    /// both. Empty where the other side does not tell.
    pub both_sides: Vec<StageStat>,
    /// By how much times between two machines may be wrong; `None` where one clock was read at both ends.
    pub clock_error: Option<Duration>,
    /// Heap allocations of the measured stretch; `None` if they were not counted.
    pub allocations: Option<u64>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// What is measured.
pub trait Workload {
    /// Makes one measurement: warms up, measures, and leaves nothing running that would disturb the next.
    ///
    /// # Errors
    /// Whatever went wrong; it ends the run.
    fn measure(&mut self, case: &Case) -> Result<Measured, CliError>;
}

/// Runs what `args` ask for, writes rows as they come, and returns them.
///
/// # Errors
/// The first that occurs; rows written before it stay written. `INTERRUPTED` if an interrupt came first.
pub fn run(
    args: &BenchArgs,
    workload: &mut dyn Workload,
    terminal: &mut Terminal,
) -> Result<Vec<Row>, CliError> {
    check(args)?;
    let comment = "values: whole round trips, one-way times or times per operation, in ns (tags with @ps: in ps)";
    let former = args.compare.as_deref().map(compare::rows_of).transpose()?;
    if let Some(former) = &former {
        compare::check(former, args)?;
    }
    let machine = Machine::read();
    let html = args.html.as_deref().map(Html::open).transpose()?;
    // Last: it empties the log of a run before.
    let log = args.hdr_log.as_ref();
    let mut log = log.map(|path| HdrLog::create(path, comment)).transpose()?;
    // A report is made from a log; if none was asked for, it is kept in an anonymous file.
    let mut hidden = None;
    if html.is_some() && log.is_none() {
        let file = files::create(c"rendez-bench", rustix::fs::MemfdFlags::empty());
        let file = file.map_err(|(_, errno)| {
            let message = format!("no memory for the log of the report: {errno}");
            CliError::failure("FILE_UNWRITABLE", message)
        })?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        log = Some(HdrLog::create(&path, comment)?);
        hidden = Some((file, path));
    }
    if let Some(log) = &mut log {
        log.describe("machine", &machine.line());
        log.describe("settings", &compare::settings_of(args));
    }
    let has_ratio = args.baseline && !args.baseline_only;
    let mut output = Output {
        json: args.json,
        log,
        machine,
        options: compare::options_of(args),
        rows: Vec::new(),
        table: Growing::new(
            has_ratio,
            args.repeat > 1,
            args.baseline_only,
            terminal.width(),
        ),
    };
    if !args.json {
        terminal.line(output.machine.line())?;
        terminal.line(TIMES)?;
        terminal.line("")?;
    }
    let measured = measure_all(args, workload, &mut output, terminal);
    let is_interrupted = measured
        .as_ref()
        .is_err_and(|error| error.reason() == catalogue::INTERRUPTED);
    if !is_interrupted {
        measured.clone()?;
    }
    let rows = output.finish(terminal)?;
    // Of nothing there is no page; the one that is there stays.
    let html = html.filter(|_| !(is_interrupted && rows.is_empty()));
    if let (Some(path), Some(html)) = (&args.html, html) {
        match (&hidden, &args.hdr_log) {
            (Some((_, log)), _) => html.write_one(log, Some("rendez bench"))?,
            (None, Some(log)) => html.write_one(log, None)?,
            (None, None) => {}
        }
        if !args.json {
            terminal.line(format_args!("report: {}", path.display()))?;
        }
    }
    measured?;
    if let Some(former) = former {
        compare::judge(&former, &rows, args.max_regress, args.json, terminal)?;
    }
    Ok(rows)
}

/// Measures each size in turn.
fn measure_all(
    args: &BenchArgs,
    workload: &mut dyn Workload,
    output: &mut Output,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    let interrupts = Interrupts::listen()?;
    let progress = terminal.progress(args.size.0.len() as u64);
    let mut has_line = false;
    for &bytes in &args.size.0 {
        let reference_time = args.duration.min(REFERENCE_MAX);
        let of_tcp = args.baseline_only || args.transport() == Transport::Tcp;
        let of_rdma = args.transport() == Transport::Verbs;
        let of_memory = args.baseline_only || !(of_tcp || of_rdma);
        let (mut memory, mut tcp) = (None, None);
        if args.baseline || args.baseline_only {
            progress.begin(
                format_args!("raw reference at {}", show_bytes(bytes)),
                reference_time * (3 * u32::from(of_memory) + 2 * u32::from(of_tcp)),
            );
            if of_memory {
                memory = Some(interrupts.or(|| baseline::measure(bytes, reference_time))?);
            }
            if of_tcp {
                tcp = Some(interrupts.or(|| baseline::measure_tcp(bytes, reference_time))?);
            }
        }
        match (memory, tcp) {
            (Some(memory), Some(tcp)) => {
                let References {
                    pingpong,
                    write_signal_read,
                    memcpy,
                } = memory;
                // The line is the same at every size: once is enough for a reader.
                let line = (!has_line).then_some(pingpong);
                has_line = true;
                let bytes_alone = [write_signal_read, memcpy, tcp.pingpong, tcp.stream];
                for Reference { row, interval } in line.into_iter().chain(bytes_alone) {
                    output.log([&interval])?;
                    progress.suspend(|| output.take(terminal, row))?;
                }
            }
            (memory, tcp) => {
                let case = case(args, bytes);
                let what = format!(
                    "{} over {} at {}",
                    case.pattern.name(),
                    case.transport.name(),
                    show_bytes(bytes)
                );
                let of_memory = memory.as_ref().map(References::baseline);
                let baseline = of_memory.or_else(|| tcp.as_ref().map(TcpReferences::baseline));
                let raw = memory
                    .iter()
                    .flat_map(|raw| [&raw.pingpong, &raw.write_signal_read, &raw.memcpy])
                    .chain(tcp.iter().flat_map(|raw| [&raw.pingpong, &raw.stream]));
                let raw: Vec<&Interval> = raw.map(|reference| &reference.interval).collect();
                let mut rows = Vec::new();
                let mut stopped = Ok(());
                for _ in 0..args.repeat {
                    progress.begin(&what, case.warmup + case.duration);
                    let start = SystemTime::now();
                    match interrupts.or(|| workload.measure(&case)) {
                        // One that was cut short is no match for those that were done.
                        Ok(_) if interrupts.came() && !rows.is_empty() => break,
                        Ok(mut measured) => {
                            let case = match interrupts.came() {
                                true => cut_short(&case, start, &mut measured),
                                false => case,
                            };
                            // At once: what was measured is in the log whatever becomes of the next run.
                            let raw = if rows.is_empty() { &raw[..] } else { &[] };
                            output.keep(&case, &measured, start, raw)?;
                            rows.push(row(&case, measured, baseline.clone()));
                        }
                        Err(error) => {
                            stopped = Err(error);
                            break;
                        }
                    }
                }
                // Of runs that were interrupted those count that were done.
                let shown = match args.repeat {
                    1 => rows.pop(),
                    _ => Repeated::median_of(rows),
                };
                let Some(row) = shown else { return stopped };
                progress.suspend(|| output.take(terminal, row))?;
                stopped?;
            }
        }
        progress.step();
    }
    interrupts.check()
}

/// What options say together that they may not say together.
pub(super) fn check(args: &BenchArgs) -> Result<(), CliError> {
    if args.rate.is_some() && args.pattern == Pattern::Rate {
        let message = "--rate is the rate of an open loop, and the pattern 'rate' sends as fast as it can; \
                       use 'oneway' or 'pingpong' with --rate, or drop it";
        return Err(CliError::usage("OPTION_CONFLICT", message));
    }
    if args.from == From::Thread && (args.pattern != Pattern::Pingpong || args.rate.is_some()) {
        let message = "--from thread measures the closed pattern 'pingpong' only";
        return Err(CliError::usage("OPTION_CONFLICT", message));
    }
    check_ways(args)?;
    if args.connect.is_some() && args.from == From::Thread {
        let message = "--connect measures between in-shard tasks, without --from thread";
        return Err(CliError::usage("OPTION_CONFLICT", message));
    }
    if args.connect.is_some() && !matches!(args.transport(), Transport::Tcp | Transport::Verbs) {
        let message = "--connect measures by TCP, or by RDMA with --transport verbs";
        return Err(CliError::usage("OPTION_CONFLICT", message));
    }
    let has_far_host = args.connect.is_some() || args.listen.is_some();
    if !has_far_host && (args.insecure || args.cluster_secret_file.is_some()) {
        let message =
            "--insecure and --cluster-secret-file are for two hosts: with --listen and --connect";
        return Err(CliError::usage("OPTION_CONFLICT", message));
    }
    if args.parked.is_some() && args.transport() != Transport::Local {
        let message =
            "--parked keeps values in the table of one shard; use it with --transport local";
        return Err(CliError::usage("OPTION_CONFLICT", message));
    }
    Ok(())
}

/// What a way to measure would pass over, and is refused.
fn check_ways(args: &BenchArgs) -> Result<(), CliError> {
    if args.from == From::Thread && args.touch {
        let message = "--from thread sends one tensor again and again; --touch writes another each time, \
                       from in-shard tasks only";
        return Err(CliError::usage("OPTION_CONFLICT", message));
    }
    let is_open = args.rate.is_some() || args.pattern == Pattern::Oneway;
    let is_more = is_open || args.touch || args.check || args.from == From::Thread;
    if args.transport() == Transport::Local && is_more {
        let message = "--transport local times the table of one shard alone, \
                       without 'oneway', --rate, --touch, --check and --from thread";
        return Err(CliError::usage("OPTION_CONFLICT", message));
    }
    Ok(())
}

fn case(args: &BenchArgs, bytes: u64) -> Case {
    Case {
        pattern: args.pattern,
        transport: args.transport(),
        from: args.from,
        bytes,
        warmup: args.warmup,
        duration: args.duration,
        rate: args.rate,
        check: args.check,
        touch: args.touch,
        poll: args.poll().into(),
        parked: args.parked,
    }
}

/// What became of a measurement that an interrupt has ended.
fn cut_short(case: &Case, start: SystemTime, measured: &mut Measured) -> Case {
    let elapsed = start.elapsed().unwrap_or_default();
    let duration = elapsed.saturating_sub(case.warmup).min(case.duration);
    let size = show_bytes(case.bytes);
    let note = format!(
        "interrupted at {size} after {:.1} s",
        duration.as_secs_f64()
    );
    measured.notes.push(note);
    Case {
        duration,
        // It had no time to be reached.
        rate: None,
        ..*case
    }
}

/// The distributions of a measurement for the log: of the finest thing that was timed, as it went on, and its stages.
fn intervals_of(case: &Case, measured: &Measured, start: SystemTime) -> Vec<Interval> {
    let found = [
        &measured.round_trips,
        &measured.one_way,
        &measured.per_operation,
    ];
    let Some(whole) = found.into_iter().flatten().next() else {
        return Vec::new();
    };
    let tag = format!(
        "{}-{}-{}",
        case.pattern.name(),
        case.transport.name(),
        case.bytes
    );
    let slices = if measured.slices.is_empty() {
        std::slice::from_ref(whole)
    } else {
        &measured.slices
    };
    let duration = case.duration / slices.len().max(1) as u32;
    let slice = |(at, recorder): (usize, &Recorder)| Interval {
        tag: tag.clone(),
        start: start + case.warmup + duration * at as u32,
        duration,
        recorder: recorder.clone(),
    };
    let mut intervals: Vec<Interval> = slices.iter().enumerate().map(slice).collect();
    for times in &measured.stages {
        let mut recorder = Recorder::nanos();
        for (time, count) in &times.times {
            recorder.record_many(*time, *count);
        }
        intervals.push(Interval {
            tag: format!("{tag}/{}/{}", times.way.name(), times.stage.name()),
            start: start + case.warmup,
            duration: case.duration,
            recorder,
        });
    }
    intervals
}

struct Output {
    json: bool,
    log: Option<HdrLog>,
    machine: Machine,
    options: Options,
    rows: Vec<Row>,
    table: Growing,
}

impl Output {
    /// Writes a measurement to the log, if there is one, and before it the raw references beside it.
    fn keep(
        &mut self,
        case: &Case,
        measured: &Measured,
        start: SystemTime,
        raw: &[&Interval],
    ) -> Result<(), CliError> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        if let Some(error) = measured.clock_error {
            let error = show_nanos(error.as_nanos() as f64);
            log.describe(
                "clocks",
                &format!("what is between two machines may be wrong by {error}"),
            );
        }
        let intervals = intervals_of(case, measured, start);
        self.log(raw.iter().copied().chain(&intervals))
    }

    fn log<'a>(
        &mut self,
        intervals: impl IntoIterator<Item = &'a Interval>,
    ) -> Result<(), CliError> {
        let mut intervals = intervals.into_iter();
        match &mut self.log {
            Some(log) => intervals.try_for_each(|interval| log.write(interval)),
            None => Ok(()),
        }
    }

    fn take(&mut self, terminal: &mut Terminal, row: Row) -> Result<(), CliError> {
        let row = Row {
            options: self.options,
            machine: Some(self.machine.clone()),
            ..row
        };
        let line = match self.json {
            true => row.json(),
            false => self.table.line(&row),
        };
        terminal.line(line)?;
        self.rows.push(row);
        Ok(())
    }

    fn finish(self, terminal: &mut Terminal) -> Result<Vec<Row>, CliError> {
        if !self.json {
            let mut notes: Vec<&String> = self.rows.iter().flat_map(|row| &row.notes).collect();
            notes.sort_unstable();
            notes.dedup();
            if let Ok(machine::Pair {
                note: Some(note), ..
            }) = machine::pair()
                && !notes.iter().any(|known| *known == note)
            {
                terminal.line(format_args!("note: {note}"))?;
            }
            for note in notes {
                terminal.line(format_args!("note: {note}"))?;
            }
        }
        Ok(self.rows)
    }
}

#[cfg(test)]
mod tests;
