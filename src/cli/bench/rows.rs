//! What a measurement found, as a row.
//!
//! Knows a case and what came back; not how it was measured, nor where a row goes.

use super::super::args::Transport;
use super::super::histogram::Recorder;
use super::super::report::{Baseline, Options, Row, StageRow};
use super::super::units::{show_bytes, show_rate};
use super::{Case, Measured};
use rendez::engine::counters;
use rendez::engine::recording::StageTimes;
use rendez::ground::limits::STAGE_SAMPLING;
use rendez::trace::recorder::Stage;
use rendez_proto::services::StageStat;

/// The row of one measurement.
pub(super) fn row(case: &Case, measured: Measured, baseline: Option<Baseline>) -> Row {
    let rtt = measured.round_trips.as_ref().and_then(Recorder::summary);
    let per_operation = measured.per_operation.as_ref();
    let mean = measured.round_trips.as_ref().and_then(Recorder::mean);
    let mean = mean.map(|round_trip| round_trip / 2.0);
    let least = least_followed(case, measured.count);
    let followed = Followed::of(&measured.both_sides, least);
    let mut notes = measured.notes;
    notes.extend(missed_rate(case, measured.count));
    notes.extend(overdue(case, measured.count, measured.overdue));
    Row {
        pattern: case.pattern.name(),
        transport: case.transport.name(),
        bytes: case.bytes,
        count: measured.count,
        half_rtt_ns: rtt.map(|rtt| rtt.times(0.5)),
        rtt_ns: rtt,
        one_way_ns: measured.one_way.as_ref().and_then(Recorder::summary),
        time_ns: None,
        rate_per_s: per_operation.and_then(|recorder| recorder.rates(1.0)),
        bytes_per_s: per_operation.and_then(|recorder| recorder.rates(case.bytes as f64)),
        allocations_per_op: measured
            .allocations
            .map(|count| count as f64 / measured.count.max(1) as f64),
        stages: stage_rows(&measured.stages),
        stage_sum_over_mean: followed.map(|followed| followed.sum_ns / followed.whole_ns),
        timed_over_all: mean
            .zip(followed)
            .map(|(mean, followed)| followed.whole_ns / mean),
        clock_error_ns: measured.clock_error.map(|error| error.as_nanos() as u64),
        notes,
        options: Options::default(),
        machine: None,
        repeated: None,
        baseline: baseline.map(Box::new),
    }
}

/// Less than this share of the operations that were due is a rate that was not reached.
const REACHED: f64 = 0.95;

/// What to say of an open loop that fell behind; one operation may have been due at the very end.
fn missed_rate(case: &Case, count: u64) -> Option<String> {
    let rate = case.rate?;
    let seconds = case.duration.as_secs_f64();
    let is_missed = count as f64 + 1.0 < REACHED * rate * seconds;
    is_missed.then(|| {
        format!(
            "the rate was not reached at {}: {} of {} that were asked for",
            show_bytes(case.bytes),
            show_rate(count as f64 / seconds),
            show_rate(rate)
        )
    })
}

/// What to say of more than one in a thousand that were due and not done.
fn overdue(case: &Case, count: u64, overdue: u64) -> Option<String> {
    let due = count.saturating_add(overdue);
    (overdue > due / 1000).then(|| {
        let size = show_bytes(case.bytes);
        format!(
            "{overdue} of {due} sends that were due at {size} were not done when the time was over: what they had \
             waited until then is among the times"
        )
    })
}

/// The stages of a measurement, for programs.
fn stage_rows(stages: &[StageTimes]) -> Vec<StageRow> {
    let row = |times: &StageTimes| StageRow {
        stage: times.stage.name(),
        way: times.way.name(),
        count: times.count(),
        mean_ns: times.sum_ns as f64 / times.count().max(1) as f64,
        p50_ns: counters::at(times, 0.5),
        p99_ns: counters::at(times, 0.99),
    };
    stages.iter().map(row).collect()
}

/// How many hand-overs one way were followed, at least, where they stand for all of `count` round trips: half of those
/// that are timed. A few that came with acknowledgements or by another way say nothing of the rest.
fn least_followed(case: &Case, count: u64) -> u64 {
    let one_in = match case.transport {
        // Over sockets all are timed.
        Transport::Tcp => 1,
        _ => u64::from(STAGE_SAMPLING),
    };
    (count / one_in / 2).max(1)
}

/// What the stages say of the hand-overs that were followed from end to end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Followed {
    /// The sum of the means of the stages.
    pub(super) sum_ns: f64,
    /// The mean of the whole, which is measured at both ends and not the sum of the stages.
    pub(super) whole_ns: f64,
}

impl Followed {
    /// Of the way that most values took, if at least so many were followed on it.
    pub(super) fn of(stats: &[StageStat], least: u64) -> Option<Self> {
        let wholes = stats
            .iter()
            .filter(|stat| stat.stage == Stage::Whole.name());
        // Acknowledgements and reports go other ways.
        let most = wholes.max_by_key(|stat| stat.count)?;
        if most.count < least {
            return None;
        }
        let mean = |stage: Stage| {
            let of_stage = stats.iter().filter(|stat| {
                (&*stat.stage, &stat.way, &stat.size_class)
                    == (stage.name(), &most.way, &most.size_class)
            });
            let (count, sum_ns) = of_stage.fold((0, 0), |(count, sum_ns), stat| {
                (count + stat.count, sum_ns + stat.sum_ns)
            });
            (count > 0).then(|| sum_ns as f64 / count as f64)
        };
        let stages = Stage::ALL.iter().copied();
        let stages = stages.filter(|stage| *stage != Stage::Whole);
        Some(Self {
            sum_ns: stages.filter_map(mean).sum(),
            whole_ns: mean(Stage::Whole).filter(|mean| *mean > 0.0)?,
        })
    }
}

#[cfg(test)]
mod tests;
