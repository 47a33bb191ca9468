//! Parked sends: where the values lie that wait for credit or for their peer, in the order in which they will leave.
//!
//! Knows slots and their order; the values lie in the table. A link has such a queue, and a peer has one for the time
//! before its links are there.

use std::collections::VecDeque;

use super::core::Core;
use super::ids::{LinkId, NO_LINK, PeerId};
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
    fn push(&mut self, slot: Slot) {
        self.0.push_back(slot);
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

impl Core {
    /// A value for that peer is parked at the slot: it leaves by the link, or by one that comes later.
    pub(crate) fn enqueue_parked(&mut self, peer: PeerId, link: LinkId, slot: Slot) {
        match self.links.at_mut(link) {
            Some(entry) => entry.parked.push(slot),
            None => self.peers[peer].parked.push(slot),
        }
    }

    /// The peer has come up: what was parked for it leaves by the links of its keys, where they are there.
    pub(crate) fn requeue_parked(&mut self, peer: PeerId) {
        let mut waiting = std::mem::take(&mut self.peers[peer].parked);
        while let Some(slot) = waiting.pop() {
            let entry = self.keys.at(slot.key);
            let link = entry.map_or(NO_LINK, |entry| entry.way.link);
            self.enqueue_parked(peer, link, slot);
        }
    }
}
