//! Parked sends: where the values lie that wait for credit or for their peer, in the order in which they will leave.
//!
//! Knows slots and their order; the values lie in the table. A link has such a queue, and a peer has one for the time
//! before its links are there.

use std::collections::VecDeque;

use crate::ground::StepId;
use crate::rendezvous::Slot;

/// Slots of parked values, oldest first; a slot stands here once for each value.
#[derive(Debug, Default)]
pub(crate) struct ParkedQueue(VecDeque<Slot>);

impl ParkedQueue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A value was parked at the slot.
    pub(super) fn push(&mut self, slot: Slot) {
        self.0.push_back(slot);
    }

    /// What stands in another queue stands behind these.
    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// The slot whose value leaves next.
    pub(crate) fn pop(&mut self) -> Option<Slot> {
        self.0.pop_front()
    }

    /// What was popped could not leave after all: it stays the next.
    pub(crate) fn put_back(&mut self, slot: Slot) {
        self.0.push_front(slot);
    }

    /// The step has ended, and its values are gone.
    pub(crate) fn forget(&mut self, step: StepId) {
        self.0.retain(|slot| slot.step != step);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
