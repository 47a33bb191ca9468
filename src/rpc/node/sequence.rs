//! The numbers of a peer that were seen: all below a mark, and some above it.

use std::collections::BTreeSet;

use crate::id::CallId;

/// Which calls and control messages of a peer have come. It holds as many numbers as the peer has under way: those
/// below the peer's mark are over for the peer, and never asked for again.
#[derive(Debug, Default)]
pub(super) struct Seen {
    below: u64,
    above: BTreeSet<u64>,
}

impl Seen {
    /// Notes `id`; false if it has come before, or is over.
    pub(super) fn insert(&mut self, id: CallId) -> bool {
        id.0 >= self.below && self.above.insert(id.0)
    }

    /// True if it has come, or is over.
    pub(super) fn has(&self, id: CallId) -> bool {
        id.0 < self.below || self.above.contains(&id.0)
    }

    /// All numbers below `mark` are over. A mark that comes late, and is lower, says nothing new.
    pub(super) fn settle(&mut self, mark: CallId) {
        if mark.0 > self.below {
            self.below = mark.0;
            // Most often it is one number that goes.
            while self.above.first().is_some_and(|&first| first < mark.0) {
                self.above.pop_first();
            }
        }
    }

    /// How many numbers are kept.
    pub(super) fn kept(&self) -> usize {
        self.above.len()
    }
}

#[cfg(test)]
mod tests {
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
}
