//! Deadlines of steps: when each is to end, for those that have one.
//!
//! Knows steps and times; not what ends with a step.

use std::collections::{BTreeMap, BTreeSet};

use crate::ground::{Nanos, StepId};

/// When steps are to end, for those with a deadline.
#[derive(Debug, Default)]
pub(crate) struct StepDeadlines {
    of: BTreeMap<StepId, Nanos>,
    order: BTreeSet<(Nanos, StepId)>,
}

impl StepDeadlines {
    /// The earliest of several counts.
    pub(super) fn set(&mut self, step: StepId, deadline: Nanos) {
        if self.of.get(&step).is_none_or(|&set| deadline < set) {
            self.forget(step);
            self.of.insert(step, deadline);
            self.order.insert((deadline, step));
        }
    }

    /// The step has ended.
    pub(super) fn forget(&mut self, step: StepId) {
        if let Some(deadline) = self.of.remove(&step) {
            self.order.remove(&(deadline, step));
        }
    }

    pub(super) fn due(&self, now: Nanos) -> Vec<StepId> {
        let due = self.order.iter().take_while(|(at, _)| *at <= now);
        due.map(|&(_, step)| step).collect()
    }

    pub(super) fn next(&self) -> Nanos {
        self.order.first().map_or(Nanos::NEVER, |&(at, _)| at)
    }
}

#[cfg(test)]
mod tests;
