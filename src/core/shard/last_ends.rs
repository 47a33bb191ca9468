//! Last ends: which steps ended here last, for peers that were not there to be told.
//!
//! A waiter there in one of them may have no other way to hear of it.

use std::collections::VecDeque;

use crate::ground::{StepId, limits};

/// The steps that ended last, oldest first, and whether by an abort.
#[derive(Debug)]
pub(crate) struct LastEnds {
    kept: VecDeque<(StepId, bool)>,
    /// How many have ended.
    count: u64,
}

impl Default for LastEnds {
    fn default() -> Self {
        Self {
            kept: VecDeque::with_capacity(limits::UNTOLD_ENDS),
            count: 0,
        }
    }
}

impl LastEnds {
    pub(super) fn note(&mut self, step: StepId, is_abort: bool) {
        if self.kept.len() >= limits::UNTOLD_ENDS {
            self.kept.pop_front();
        }
        self.kept.push_back((step, is_abort));
        self.count += 1;
    }

    /// How many steps have ended.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Those that are kept, without the first `told` that ended.
    pub(super) fn since(&self, told: u64) -> impl Iterator<Item = &(StepId, bool)> {
        let gone = self.count - self.kept.len() as u64;
        self.kept.iter().skip(told.saturating_sub(gone) as usize)
    }
}
