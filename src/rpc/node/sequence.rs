//! The numbers of a peer that were seen: all below a mark, and some above it.

use std::collections::BTreeMap;

use crate::id::CallId;

/// Runs of numbers that are kept at most. A correct peer leaves a gap for what it has under way, and no others.
const RUNS_MAX: usize = 1 << 18;

/// Which calls and control messages of a peer have come. Those below the peer's mark are over for the peer, and never
/// asked for again. One call that runs long holds the mark, however many come and end behind it: so what is above is
/// kept as runs, as many as there are gaps between them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    below: u64,
    /// The first and the last number of each run.
    runs: BTreeMap<u64, u64>,
}

impl Seen {
    /// The run that begins at `id` or below it.
    fn run(&self, id: u64) -> Option<(u64, u64)> {
        let run = self.runs.range(..=id).next_back();
        run.map(|(&first, &last)| (first, last))
    }

    /// Notes `id`; false if it has come before, or is over.
    pub(super) fn insert(&mut self, id: CallId) -> bool {
        // Most often it is the next number.
        if let Some(mut newest) = self.runs.last_entry()
            && newest.get().checked_add(1) == Some(id.0)
        {
            newest.insert(id.0);
            return true;
        }
        if self.has(id) {
            return false;
        }
        // The last number of all has none after it.
        let after = id.0.checked_add(1);
        let last = after.and_then(|after| self.runs.remove(&after));
        let first = self.run(id.0).filter(|(_, last)| last + 1 == id.0);
        let first = first.map_or(id.0, |(first, _)| first);
        self.runs.insert(first, last.unwrap_or(id.0));
        true
    }

    /// True if it has come, or is over.
    pub(super) fn has(&self, id: CallId) -> bool {
        id.0 < self.below || self.run(id.0).is_some_and(|(_, last)| id.0 <= last)
    }

    /// Whether `id` may be noted: it has a place, or it begins no run, or there are not too many.
    pub(super) fn has_room(&self, id: CallId) -> bool {
        let is_within = |(_, last): (u64, u64)| id.0 <= last.saturating_add(1);
        self.runs.len() < RUNS_MAX
            || id.0 < self.below
            || self.run(id.0).is_some_and(is_within)
            || self.runs.contains_key(&id.0.saturating_add(1))
    }

    /// All numbers below `mark` are over. A mark that comes late, and is lower, says nothing new.
    pub(super) fn settle(&mut self, mark: CallId) {
        if mark.0 > self.below {
            self.below = mark.0;
            // Most often it is one run that goes.
            while let Some(run) = self.runs.first_entry()
                && *run.get() < mark.0
            {
                run.remove();
            }
        }
    }

    /// How many runs of numbers are kept.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn kept(&self) -> usize {
        self.runs.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_is_new_once_and_never_below_the_mark() {
        let mut seen = Seen::default();
        assert!(seen.insert(CallId(3)) && !seen.insert(CallId(3)));
        seen.settle(CallId(5));
        assert!(!seen.insert(CallId(4)) && seen.has(CallId(4)));
        assert!(seen.insert(CallId(5)));
        seen.settle(CallId(2));
        assert!(seen.has(CallId(5)) && !seen.has(CallId(6)));
        seen.settle(CallId(6));
        assert_eq!(seen.kept(), 0);
    }

    proptest! {
        #[test]
        fn it_is_a_set_of_all_that_came_or_is_over(
            acts in prop::collection::vec((prop_oneof![9 => 0..60_u64, 1 => u64::MAX - 2..=u64::MAX], 0..8_u8), 0..200),
        ) {
            let (mut seen, mut model, mut below) = (Seen::default(), BTreeSet::new(), 0);
            for (id, act) in acts {
                let is_over = |id: u64, model: &BTreeSet<u64>| id < below || model.contains(&id);
                if act == 0 {
                    seen.settle(CallId(id));
                    below = below.max(id);
                    continue;
                }
                prop_assert_eq!(seen.has(CallId(id)), is_over(id, &model));
                prop_assert_eq!(seen.insert(CallId(id)), !is_over(id, &model));
                model.insert(id);
                let begins = |&&id: &&u64| id == 0 || !model.contains(&(id - 1));
                prop_assert!(seen.kept() <= model.iter().filter(begins).count());
            }
        }
    }

    #[test]
    fn as_many_runs_are_kept_as_there_are_gaps() {
        let mut seen = Seen::default();
        seen.insert(CallId(0));
        (2..300_000).for_each(|id| assert!(seen.insert(CallId(id))));
        assert_eq!(seen.kept(), 2);
        assert!(seen.insert(CallId(1)) && !seen.insert(CallId(77)));
        assert_eq!(seen.kept(), 1);
    }

    #[test]
    fn what_closes_a_gap_has_room_though_a_new_one_has_not() {
        let mut seen = Seen::default();
        let most = RUNS_MAX as u64;
        (0..most).for_each(|run| assert!(seen.insert(CallId(10 * run + 5))));
        assert!(!seen.has_room(CallId(10 * most + 5)) && !seen.has_room(CallId(7)));
        let beside = [4, 5, 6, 10 * most - 6];
        assert!(beside.into_iter().all(|id| seen.has_room(CallId(id))));
        seen.settle(CallId(6));
        assert!(seen.has_room(CallId(7)) && seen.has_room(CallId(3)));
    }
}
