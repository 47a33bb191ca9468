//! Deadlines of steps: when each is to end, for those that have one.
//!
//! Knows steps and times; not what ends with a step.

use std::collections::BTreeMap;

use crate::ground::{Nanos, StepId};

/// When steps are to end, for those with a deadline.
#[derive(Debug, Default)]
pub(crate) struct StepDeadlines(BTreeMap<StepId, Nanos>);

impl StepDeadlines {
    /// The earliest of several counts.
    pub(super) fn set(&mut self, step: StepId, deadline: Nanos) {
        let set = self.0.entry(step).or_insert(deadline);
        *set = deadline.min(*set);
    }

    /// The step has ended.
    pub(super) fn forget(&mut self, step: StepId) {
        self.0.remove(&step);
    }

    pub(super) fn due(&self, now: Nanos) -> Vec<StepId> {
        let due = self.0.iter().filter(|(_, at)| **at <= now);
        due.map(|(&step, _)| step).collect()
    }

    pub(super) fn next(&self) -> Nanos {
        self.0.values().min().copied().unwrap_or(Nanos::NEVER)
    }
}

#[cfg(test)]
mod tests;
