//! Reporters: libraries above the engine that tell what they hold where the engine is asked, on the metrics page, in
//! `rendez stat` and in `rendez pending`.
//!
//! The engine knows what they tell by its shape alone. They are asked on the threads that answer such questions, never
//! on a shard's.

use std::sync::{Arc, Mutex, Weak};

use super::Engine;
use crate::ground::Locked;
use crate::ground::device::TaskName;
use crate::mail::forks;
use rendez_proto::services::StageStat;

/// What a family of metrics is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows; its name ends in `_total` on the page.
    Counter,
    /// It goes up and down.
    Gauge,
    /// A distribution of times.
    Histogram,
}

impl Kind {
    /// As the formats spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A family of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// Its name, without the ending of counters.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels, for the reference.
    pub labels: &'static str,
    /// What it means.
    pub help: &'static str,
}

/// What a metric has counted.
#[derive(Clone, PartialEq, Debug)]
pub enum Number {
    /// Of a counter or a gauge.
    One(f64),
    /// Of a histogram: the sum, in nanoseconds, and times in order, each with how often it was recorded.
    Times(u64, Vec<(u64, u64)>),
}

/// One metric of a family.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The family.
    pub family: &'static Family,
    /// Labels and their values.
    pub labels: Vec<(&'static str, String)>,
    /// Its number.
    pub number: Number,
}

/// Something that waits, or is held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// What it is, in a word or two: for people and for programs.
    pub what: String,
    /// What it is called.
    pub name: String,
    /// The task that it waits for.
    pub on: TaskName,
    /// Since when, in nanoseconds.
    pub age_ns: u64,
    /// How many of the same kind.
    pub count: u32,
}

/// A library above the engine. All of its methods may block for a moment.
pub trait Reporter: Send + Sync {
    /// What it has counted and holds.
    fn samples(&self) -> Vec<Sample>;

    /// What waits there.
    fn outstanding(&self) -> Vec<Outstanding>;

    /// Stages of its own, as `rendez stat` shows them.
    fn stages(&self) -> Vec<StageStat>;
}

/// Those of an engine.
#[derive(Default)]
pub(crate) struct Reporters(Mutex<Vec<Weak<dyn Reporter>>>);

shown! { Reporters {} }

impl Reporters {
    /// Those that are still there; none in a child of `fork`.
    fn living(&self) -> Vec<Arc<dyn Reporter>> {
        if forks::is_child() {
            return Vec::new();
        }
        let mut all = self.0.locked();
        all.retain(|one| one.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> impl Sized + '_ {
        self.0.lock().unwrap()
    }
}

impl Engine {
    /// True if times are to be taken: `stage_sampling` is not zero.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.inner.config.stage_sampling > 0
    }

    /// From now on `reporter` is asked where the engine is, for as long as someone else holds it.
    pub fn add_reporter(&self, reporter: Weak<dyn Reporter>) {
        if forks::is_child() {
            return;
        }
        let reporters = &self.inner.reporters;
        let mut all = reporters.0.locked();
        all.retain(|one| one.strong_count() > 0);
        all.push(reporter);
    }

    /// What reporters have counted and hold: samples of one family stand together.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let all = self.inner.reporters.living().into_iter();
        let mut samples: Vec<Sample> = all.flat_map(|one| one.samples()).collect();
        samples.sort_by_key(|sample| sample.family.name);
        samples
    }

    /// What waits in libraries above the engine, the oldest first.
    #[must_use]
    pub fn outstanding(&self) -> Vec<Outstanding> {
        let all = self.inner.reporters.living().into_iter();
        let mut found: Vec<Outstanding> = all.flat_map(|one| one.outstanding()).collect();
        found.sort_by_key(|one| std::cmp::Reverse(one.age_ns));
        found
    }

    /// Stages of libraries above the engine.
    #[must_use]
    pub fn reported_stages(&self) -> Vec<StageStat> {
        let all = self.inner.reporters.living().into_iter();
        all.flat_map(|one| one.stages()).collect()
    }
}
