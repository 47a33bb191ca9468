//! Merge: two things that end a partial run, in either order: its executors, and its last part.
//!
//! Knows steps and statuses. An executor's failure counts more than one of the part that asked, and both more than
//! success. Steps have 64 bits here, as everywhere; the original's have 32 in this place, so that two could meet.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rendez::ground::{Status, StepId};

#[cfg(test)]
mod tests;

/// Takes how a partial run ended.
pub(super) type Ended = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// Partial runs that have not ended.
#[derive(Default)]
pub(super) struct Merge(Mutex<BTreeMap<StepId, Entry>>);

#[derive(Default)]
struct Entry {
    executors: Option<Result<(), Status>>,
    part: Option<(Result<(), Status>, Ended)>,
}

impl Merge {
    /// Makes a step known. True if it was not.
    pub(super) fn find_or_create(&self, step: StepId) -> bool {
        let mut entries = self.entries();
        let before = entries.len();
        entries.entry(step).or_default();
        entries.len() > before
    }

    /// The executors have ended.
    pub(super) fn executors_done(&self, step: StepId, outcome: Result<(), Status>) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&step) else {
            return;
        };
        entry.executors.get_or_insert(outcome);
        finish(entries, step);
    }

    /// The last part has ended; `ended` hears of both. Of a step that is not known it hears this outcome.
    pub(super) fn part_done(&self, step: StepId, ended: Ended, outcome: Result<(), Status>) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&step) else {
            drop(entries);
            return ended(outcome);
        };
        let former = entry.part.replace((outcome, ended));
        finish(entries, step);
        // Two that both thought they were the last: the earlier one's outcome is its own.
        if let Some((outcome, ended)) = former {
            ended(outcome);
        }
    }

    /// Forgets all; waiters hear nothing more of them from here.
    pub(super) fn clear(&self) -> Vec<(StepId, Ended)> {
        let all = std::mem::take(&mut *self.entries());
        let waiting = all
            .into_iter()
            .filter_map(|(step, entry)| Some((step, entry.part?.1)));
        waiting.collect()
    }

    /// How many have not ended.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, BTreeMap<StepId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the end, if both have come.
fn finish(mut entries: std::sync::MutexGuard<'_, BTreeMap<StepId, Entry>>, step: StepId) {
    let is_whole = |entry: &Entry| entry.executors.is_some() && entry.part.is_some();
    if !entries.get(&step).is_some_and(is_whole) {
        return;
    }
    let entry = entries.remove(&step);
    drop(entries);
    if let Some(Entry {
        executors: Some(executors),
        part: Some((part, ended)),
    }) = entry
    {
        ended(executors.and(part));
    }
}
