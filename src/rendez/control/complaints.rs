//! Complaints: rate-limited log lines about strangers, so that a flood of them does not fill the log.
//!
//! Knows reasons and a clock. Each reason is logged at once, and then at most once per interval, with a count; who
//! counts all of them hears of each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a reason that was told is only counted.
const QUIET: Duration = Duration::from_secs(1);

pub(crate) struct Complaints {
    /// By reason, of which there are a few: when it was told last, and how often it came since.
    told: RefCell<BTreeMap<&'static str, (Instant, u64)>>,
    hear: Box<dyn Fn(&'static str)>,
}

impl Complaints {
    /// None so far. Each that comes is told to `hear`.
    pub(crate) fn new(hear: impl Fn(&'static str) + 'static) -> Self {
        Self {
            told: RefCell::default(),
            hear: Box::new(hear),
        }
    }

    /// One came. If it is to be told: how many came before it untold.
    pub(crate) fn add(&self, reason: &'static str, now: Instant) -> Option<u64> {
        (self.hear)(reason);
        let mut told = self.told.borrow_mut();
        match told.get_mut(reason) {
            Some((last, untold)) if now.saturating_duration_since(*last) < QUIET => {
                *untold += 1;
                None
            }
            Some((last, untold)) => {
                *last = now;
                Some(std::mem::take(untold))
            }
            None => {
                told.insert(reason, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_reason_is_told_at_once_and_then_counted() {
        let heard = Rc::new(Cell::new(0));
        let count = Rc::clone(&heard);
        let complaints = Complaints::new(move |_| count.set(count.get() + 1));
        let start = Instant::now();
        assert_eq!(complaints.add("a", start), Some(0));
        assert_eq!(complaints.add("a", start), None);
        assert_eq!(complaints.add("b", start), Some(0));
        assert_eq!(complaints.add("a", start + QUIET / 2), None);
        assert_eq!(complaints.add("a", start + QUIET), Some(2));
        assert_eq!(complaints.add("a", start + 2 * QUIET), Some(0));
        assert_eq!(heard.get(), 6);
    }
}
