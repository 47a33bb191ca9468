//! Look: what is in the table, and since when. For metrics, for the list of what is pending, and for reconnects.
//!
//! Changes nothing but what the processor has in its caches.

use super::names::{Slot, WaiterId};
use super::queues::{Item, Kind};
use super::steps::NONE;
use super::table::Table;
use crate::ground::{Nanos, StepId};

/// How full a table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Rendezvous points remembered.
    pub records: u32,
    /// Values and offers parked: those that nobody waits for.
    pub values: u32,
    /// Receives and requests waiting.
    pub waiters: u32,
    /// Bytes of the parked values.
    pub parked_bytes: u64,
    /// Bytes that left the table and are still kept for receivers, by [`Table::hold`].
    pub held_bytes: u64,
    /// Steps alive through local use.
    pub steps: u32,
    /// Steps that only peers have spoken of.
    pub grace_steps: u32,
    /// Ended steps remembered.
    pub tombstones: u32,
    /// Rendezvous points the index can take before it doubles.
    pub index_capacity: u32,
}

/// What is pending at a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PendingKind {
    /// Receives or requests, for a value.
    Waiting,
    /// Values, for a receive.
    Parked,
    /// A peer's offers that nobody wants yet.
    Offered,
    /// A peer's offers, of which the first is being fetched.
    Fetching,
}

/// One slot at which something is pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending {
    /// Where.
    pub slot: Slot,
    /// What, by the front of the queue.
    pub kind: PendingKind,
    /// How many of them.
    pub count: u32,
    /// Since when the oldest.
    pub since: Nanos,
    /// Bytes of the parked values.
    pub bytes: u64,
}

/// Slots whose lines are asked for together: a core keeps fewer misses than this under way.
const TOUCHED_AT_ONCE: usize = 32;

impl<V, W: Copy> Table<V, W> {
    /// How full the table is.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (steps, grace_steps, tombstones) = self.steps.counts();
        Stats {
            records: self.record_count,
            values: self.value_count,
            waiters: self.waiter_count,
            parked_bytes: self.parked_bytes,
            held_bytes: self.held_bytes,
            steps,
            grace_steps,
            tombstones,
            index_capacity: u32::try_from(self.index.capacity()).unwrap_or(u32::MAX),
        }
    }

    /// Everything pending, in no order. A walk over the whole table: for a control call, not for each turn.
    pub fn pending(&self, mut see: impl FnMut(Pending)) {
        self.each_record(|at| {
            let record = &self.records[at as usize];
            let slot = record.slot();
            if record.waiters > 0 {
                let since = self.waiters[record.waiters_head as usize].since;
                see(Pending {
                    slot,
                    kind: PendingKind::Waiting,
                    count: record.waiters,
                    since,
                    bytes: 0,
                });
            }
            let Some(front) = self.front(at) else {
                return;
            };
            let kind = match front.kind {
                Kind::Value | Kind::Empty => PendingKind::Parked,
                Kind::Offer => PendingKind::Offered,
                Kind::Fetching => PendingKind::Fetching,
            };
            let bytes = self.items(at).map(Item::bytes).sum();
            see(Pending {
                slot,
                kind,
                count: record.items,
                since: front.since,
                bytes,
            });
        });
    }

    /// Every step that has not ended.
    pub fn each_step(&self, mut see: impl FnMut(StepId)) {
        for number in self.steps.numbers() {
            let step = self.steps.step(number);
            if step.state.refusal().is_none() {
                see(step.id);
            }
        }
    }

    /// Every waiter, with its name, its tag and the ordinal it asked for or will get. Oldest first at each slot.
    pub fn waiting(&self, mut see: impl FnMut(Slot, WaiterId, W, u32)) {
        self.each_record(|at| {
            let record = &self.records[at as usize];
            let mut index = record.waiters_head;
            while index != NONE {
                let waiter = &self.waiters[index as usize];
                see(
                    record.slot(),
                    self.waiter_id(index),
                    waiter.tag,
                    waiter.ordinal,
                );
                index = waiter.next;
            }
        });
    }

    /// True if a waiter is given up at a time of its own.
    #[must_use]
    pub fn has_deadline(&self, id: WaiterId) -> bool {
        self.timers.is_set(id.index)
    }

    /// How many wait at a slot.
    #[must_use]
    pub fn waiters_at(&self, slot: Slot) -> usize {
        let at = self.existing(&slot);
        at.map_or(0, |at| self.records[at as usize].waiters as usize)
    }

    /// True if values or offers stand at a slot, wanted or not.
    #[must_use]
    pub fn has_items(&self, slot: Slot) -> bool {
        let at = self.existing(&slot);
        at.is_some_and(|at| self.records[at as usize].items > 0)
    }

    /// The ordinal of the slot's next value.
    #[must_use]
    pub fn next_ordinal(&self, slot: Slot) -> u32 {
        self.existing(&slot)
            .map_or(0, |at| self.records[at as usize].next_ordinal)
    }

    /// Loads what matching at these slots will read, all at once: a burst over a large table then waits for memory
    /// about twice, and not twice for each slot. First what is known of the keys, with no branch that depends on it;
    /// then the records that they used last. Gives a number that means nothing, so that the loads are not left out.
    pub fn touch(&self, slots: &[Slot]) -> u32 {
        let mut sum = 0;
        for burst in slots.chunks(TOUCHED_AT_ONCE) {
            let mut records = [NONE; TOUCHED_AT_ONCE];
            for (at, slot) in records.iter_mut().zip(burst) {
                *at = self.last_record(slot.key);
            }
            for &at in &records[..burst.len()] {
                if let Some(record) = self.records.get(at as usize) {
                    sum ^= record.warm();
                }
            }
        }
        sum
    }

    fn each_record(&self, mut see: impl FnMut(u32)) {
        for number in self.steps.numbers() {
            let mut at = self.steps.step(number).records;
            while at != NONE {
                see(at);
                at = self.records[at as usize].sibling;
            }
        }
    }
}
