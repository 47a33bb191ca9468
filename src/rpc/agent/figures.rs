//! What an agent counts and times: calls by how they ended, and how long they took.
//!
//! Counters are written by the desk alone, and so are its times: relaxed loads and stores. Threads of the pool have
//! times of their own, and lock what they add to.

use std::sync::atomic::{AtomicU64, Ordering};

use rendez::ground::Nanos;
use rendez::trace::Histogram;

use crate::message::{Body, FaultKind, Message, Outcome};
use crate::node::Ending;
use crate::payload::Payload;

/// How a call ended, as labels spell it: first those without a failure's kind.
pub(crate) const OUTCOMES: [&str; 2 + FaultKind::ALL.len()] = [
    "value",
    "lost",
    "error",
    "timeout",
    "cancelled",
    "panic",
    "function",
    "arguments",
    "busy",
    "shutdown",
    "reference",
];
const VALUE: usize = 0;
const LOST: usize = 1;

/// Stages of a call, as labels spell them.
pub(crate) const STAGES: [&str; 2] = ["queued", "run"];
/// From when a function's call has come until it begins.
pub(crate) const QUEUED: usize = 0;
/// From when it begins until it has ended.
pub(crate) const RUN: usize = 1;

/// The sum of times, in nanoseconds, and times in order, each with how often it was recorded.
pub(crate) type Recorded = (u64, Vec<(u64, u64)>);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Calls of this worker, by outcome.
    ended: [AtomicU64; OUTCOMES.len()],
    /// Answers of this worker, by outcome.
    answered: [AtomicU64; OUTCOMES.len()],
    /// Calls of this worker that its desk never saw, since too many waited for it.
    refused: AtomicU64,
    /// What workers sent that is no message.
    malformed: AtomicU64,
    /// Reports of spans that nothing waits for.
    spans_dropped: AtomicU64,
    /// `None` if nothing is to be timed.
    times: Option<Box<Times>>,
}

#[derive(Debug, Default)]
struct Times {
    whole: Histogram,
    /// Of functions that the desk carries out.
    of_desk: [Histogram; STAGES.len()],
    /// Of those of the pool.
    of_pool: [Histogram; STAGES.len()],
}

const fn of_kind(kind: FaultKind) -> usize {
    2 + kind as usize
}

fn of_outcome(outcome: &Outcome<Payload>) -> usize {
    match outcome {
        Outcome::Value { .. } => VALUE,
        Outcome::Fault(fault) => of_kind(fault.kind),
    }
}

impl Figures {
    pub(crate) fn new(is_timed: bool) -> Self {
        Self {
            times: is_timed.then(Box::default),
            ..Self::default()
        }
    }

    /// A call of this worker that began at `began` has ended; `now` is asked for only if that is to be known.
    pub(crate) fn ended(&self, ending: &Ending<Payload>, began: Nanos, now: impl Fn() -> Nanos) {
        let outcome = match ending {
            Ending::Answered(outcome) => of_outcome(outcome),
            Ending::Timeout => of_kind(FaultKind::Timeout),
            Ending::Cancelled => of_kind(FaultKind::Cancelled),
            Ending::Lost(_) => LOST,
            Ending::Unsent(_) => of_kind(FaultKind::Arguments),
            Ending::Busy => of_kind(FaultKind::Busy),
            Ending::Shutdown => of_kind(FaultKind::Shutdown),
        };
        count_one(&self.ended[outcome]);
        if let Some(times) = &self.times {
            times.whole.record_alone(now().0.saturating_sub(began.0));
        }
    }

    /// A call of this worker is refused before its desk sees it.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A message of this worker goes out: counted if it is an answer.
    pub(crate) fn answered(&self, message: &Message<Payload>) {
        if let Body::Reply { outcome, .. } = &message.body {
            count_one(&self.answered[of_outcome(outcome)]);
        }
    }

    pub(crate) fn malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn spans_dropped(&self) {
        self.spans_dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dropped_spans(&self) -> u64 {
        self.spans_dropped.load(Ordering::Relaxed)
    }

    /// True if stages are to be timed.
    pub(crate) const fn is_timed(&self) -> bool {
        self.times.is_some()
    }

    /// A stage of a call that a thread of the pool serves took from `from` until `to`.
    pub(crate) fn stage(&self, stage: usize, from: Nanos, to: Nanos) {
        let histogram = self
            .times
            .as_ref()
            .and_then(|times| times.of_pool.get(stage));
        if let Some(histogram) = histogram {
            histogram.record(to.0.saturating_sub(from.0));
        }
    }

    /// The same of a call that the desk serves.
    pub(crate) fn stage_at_desk(&self, stage: usize, from: Nanos, to: Nanos) {
        let histogram = self
            .times
            .as_ref()
            .and_then(|times| times.of_desk.get(stage));
        if let Some(histogram) = histogram {
            histogram.record_alone(to.0.saturating_sub(from.0));
        }
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let refused = self.refused.load(Ordering::Relaxed);
        let counts = counts(&self.ended).enumerate();
        counts.map(
            move |(at, (name, count))| match at == of_kind(FaultKind::Busy) {
                true => (name, count + refused),
                false => (name, count),
            },
        )
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        counts(&self.answered)
    }

    pub(crate) fn malformed_messages(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// The times of whole calls: their sum, and each with how often it was recorded.
    pub(crate) fn whole(&self) -> Option<Recorded> {
        self.times.as_ref().map(|times| times.whole.times())
    }

    /// The same of each stage.
    pub(crate) fn stages(&self) -> impl Iterator<Item = (&'static str, Recorded)> + '_ {
        let both = |times: &'_ Times| {
            let pairs = times.of_desk.iter().zip(&times.of_pool);
            pairs
                .map(|(desk, pool)| merged(desk.times(), pool.times()))
                .collect::<Vec<_>>()
        };
        let all = self.times.iter().flat_map(move |times| both(times));
        STAGES.into_iter().zip(all)
    }
}

/// Both, in order.
fn merged(one: Recorded, other: Recorded) -> Recorded {
    let mut counts = std::collections::BTreeMap::new();
    for (time, count) in one.1.into_iter().chain(other.1) {
        *counts.entry(time).or_insert(0) += count;
    }
    (one.0.wrapping_add(other.0), counts.into_iter().collect())
}

/// One more, where the desk alone counts.
fn count_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn counts(all: &[AtomicU64; OUTCOMES.len()]) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    let counts = all.iter().map(|count| count.load(Ordering::Relaxed));
    OUTCOMES.into_iter().zip(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Fault;

    #[test]
    fn each_ending_counts_under_its_own_outcome() {
        let figures = Figures::default();
        let now = || Nanos::ZERO;
        let empty = || Outcome::Value {
            payload: Payload::default(),
            references: Vec::new(),
        };
        figures.ended(&Ending::Answered(empty()), Nanos::ZERO, now);
        for &kind in FaultKind::ALL {
            let fault = Outcome::Fault(Fault::new(kind, ""));
            figures.ended(&Ending::Answered(fault), Nanos::ZERO, now);
        }
        figures.ended(&Ending::Lost(crate::error::shut_down()), Nanos::ZERO, now);
        for (outcome, count) in figures.calls() {
            assert_eq!(count, 1, "{outcome}");
        }
        for ending in [
            Ending::Timeout,
            Ending::Cancelled,
            Ending::Busy,
            Ending::Shutdown,
            Ending::Unsent(crate::error::shut_down()),
        ] {
            figures.ended(&ending, Nanos::ZERO, now);
        }
        let twice: Vec<&str> = figures
            .calls()
            .filter(|one| one.1 == 2)
            .map(|one| one.0)
            .collect();
        assert_eq!(
            twice,
            ["timeout", "cancelled", "arguments", "busy", "shutdown"]
        );
        figures.refused();
        assert!(figures.calls().any(|one| one == ("busy", 3)));
        assert!(figures.whole().is_none() && figures.stages().count() == 0);
    }

    #[test]
    fn stages_of_desk_and_pool_are_told_together() {
        let figures = Figures::new(true);
        for (from, to) in [(0, 40), (0, 1000)] {
            figures.stage_at_desk(RUN, Nanos(from), Nanos(to));
        }
        figures.stage(RUN, Nanos(0), Nanos(40));
        let stages: Vec<_> = figures.stages().collect();
        assert_eq!(stages[QUEUED], ("queued", (0, Vec::new())));
        let (sum_ns, times) = &stages[RUN].1;
        let counts: Vec<u64> = times.iter().map(|(_, count)| *count).collect();
        assert_eq!((*sum_ns, counts), (1080, vec![2, 1]));
    }

    #[test]
    fn names_of_outcomes_are_in_the_order_of_the_kinds() {
        let name = |kind: &FaultKind| format!("{kind:?}").to_lowercase();
        let names: Vec<String> = FaultKind::ALL.iter().map(name).collect();
        assert_eq!(OUTCOMES[2..], names);
    }
}
