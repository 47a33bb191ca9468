//! Partings: which peers' shards are done with which steps, while the steps go on here.
//!
//! It knows steps and the numbers of links, and what neither means. As many are remembered as ended steps are; the
//! oldest is forgotten first. A step that ends here takes its own along, and leaves their room to others: its tombstone
//! says more.

use std::collections::{BTreeSet, VecDeque};

use super::ids::{LinkId, NO_LINK};
use crate::ground::StepId;

/// A step, and the link whose other end is done with it.
type Parting = (StepId, LinkId);

/// See the module.
#[derive(Debug)]
pub(crate) struct Partings {
    known: BTreeSet<Parting>,
    /// In the order in which they came. Those that went with their step stand here until they are the oldest, or more
    /// than those that are known.
    order: VecDeque<Parting>,
    most: usize,
    /// No step that is known has a higher number.
    youngest: StepId,
}

impl Partings {
    pub(crate) const fn new(most: usize) -> Self {
        Self {
            known: BTreeSet::new(),
            order: VecDeque::new(),
            most,
            youngest: StepId(0),
        }
    }

    /// The other end of `link` is done with `step`.
    pub(crate) fn mark(&mut self, step: StepId, link: LinkId) {
        if !self.known.insert((step, link)) {
            return;
        }
        while self.known.len() > self.most.max(1)
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.youngest = self.youngest.max(step);
        self.order.push_back((step, link));
    }

    /// True if the other end of `link` is done with `step`.
    #[inline]
    pub(crate) fn has(&self, step: StepId, link: LinkId) -> bool {
        // Most steps are younger than all that are known: one look says so.
        step <= self.youngest && self.known.contains(&(step, link))
    }

    /// The step ends here.
    pub(crate) fn forget(&mut self, step: StepId) {
        if step > self.youngest {
            return;
        }
        while let Some(&parting) = self
            .known
            .range((step, LinkId::from_number(0))..=(step, NO_LINK))
            .next()
        {
            self.known.remove(&parting);
        }
        self.grow_old();
    }

    /// The link begins anew, with another life of its other end or another epoch.
    pub(crate) fn forget_link(&mut self, link: LinkId) {
        self.known.retain(|&(_, of)| of != link);
        self.grow_old();
    }

    fn grow_old(&mut self) {
        if self.order.len() > 2 * self.known.len() {
            self.order.retain(|parting| self.known.contains(parting));
        }
        self.youngest = self.known.last().map_or(StepId(0), |&(step, _)| step);
    }
}

#[cfg(test)]
mod tests;
