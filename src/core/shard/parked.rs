//! Parked sends: where the values lie that wait for credit or for their peer, in the order in which they will leave.
//!
//! Knows slots and their order; the values lie in the table. A link has such a queue, and a peer has one for the time
//! before its links are there.

use std::collections::{BTreeMap, VecDeque};

use crate::ground::StepId;
use crate::rendezvous::Slot;

/// Slots of parked values, oldest first; a slot stands here once for each value, and for each that a request has taken
/// meanwhile, until those are as many as the values.
#[derive(Debug, Default)]
pub(crate) struct ParkedQueue {
    slots: VecDeque<Slot>,
    /// How many stand here for values that are gone, at most.
    gone: usize,
}

impl ParkedQueue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// A value was parked at the slot.
    pub(super) fn push(&mut self, slot: Slot) {
        self.slots.push_back(slot);
    }

    /// What stands in another queue stands behind these.
    pub(super) fn append(&mut self, mut other: Self) {
        self.slots.append(&mut other.slots);
        self.gone += other.gone;
    }

    /// The slot whose value leaves next.
    pub(crate) fn pop(&mut self) -> Option<Slot> {
        self.slots.pop_front()
    }

    /// What was popped could not leave after all: it stays the next.
    pub(crate) fn put_back(&mut self, slot: Slot) {
        self.slots.push_front(slot);
    }

    /// A value whose slot stands here has left by a request. `values` says how many are parked at a slot.
    pub(super) fn taken(&mut self, values: impl Fn(Slot) -> usize) {
        self.gone += 1;
        if 2 * self.gone < self.slots.len() {
            return;
        }
        // Each is looked at once for each value that has left.
        let mut left = BTreeMap::new();
        self.slots.retain(|slot| {
            let left = left.entry(*slot).or_insert_with(|| values(*slot));
            let is_value = *left > 0;
            *left -= usize::from(is_value);
            is_value
        });
        self.gone = 0;
    }

    /// The step has ended, and its values are gone.
    pub(crate) fn forget(&mut self, step: StepId) {
        self.slots.retain(|slot| slot.step != step);
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.gone = 0;
    }
}
