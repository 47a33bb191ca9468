//! Table: the parts together, and how a rendezvous point is found or made.
//!
//! Does not know what values and waiters are. What can be done at a point stands in `local`, `pushed` and
//! `requested`; how everything there ends, in `ending`.

use super::index::{Index, fold};
use super::names::{KeyId, Limits, Slot};
use super::queues::{GRACE, Node, Record, Waiter};
use super::refusal::Refusal;
use super::steps::{NONE, Steps};
use super::timers::Timers;
use crate::ground::{Nanos, StepId};

/// The matching table of one shard, over values `V` and waiters' tags `W`.
///
/// Every method is exact: a value or a waiter that was taken comes out once, here or in a call that ends it.
#[derive(Debug)]
pub struct Table<V, W> {
    pub(super) limits: Limits,
    pub(super) index: Index,
    pub(super) records: Vec<Record<V>>,
    pub(super) free_record: u32,
    pub(super) record_count: u32,
    /// Records that ever were.
    pub(super) births: u64,
    /// By key.
    of_keys: Vec<OfKey>,
    pub(super) nodes: Vec<Node<V>>,
    pub(super) free_node: u32,
    pub(super) waiters: Vec<Waiter<W>>,
    pub(super) free_waiter: u32,
    pub(super) waiter_count: u32,
    /// Values and offers that stand for no waiter.
    pub(super) value_count: u32,
    /// All of them.
    pub(super) item_count: u32,
    pub(super) parked_bytes: u64,
    /// Bytes that left the table and are still kept for receivers.
    pub(super) held_bytes: u64,
    pub(super) steps: Steps,
    pub(super) timers: Timers,
}

/// What the table knows of a key, whatever the step.
#[derive(Clone, Copy, Debug)]
struct OfKey {
    /// How many records are of it.
    records: u32,
    /// The one of them that was made or found last, or none. Looked at before the index: the steps of a key mostly come
    /// one after the other, and each uses its record several times.
    last: u32,
}

impl OfKey {
    const UNUSED: Self = Self {
        records: 0,
        last: NONE,
    };
}

impl<V, W: Copy> Table<V, W> {
    /// An empty table. Its slabs are reserved up to the limits at once, so that they never move: address space
    /// only, until it is used.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            index: Index::new(),
            records: Vec::with_capacity(limits.records as usize),
            free_record: NONE,
            record_count: 0,
            births: 0,
            of_keys: Vec::new(),
            nodes: Vec::new(),
            free_node: NONE,
            waiters: Vec::with_capacity(limits.waiters as usize),
            free_waiter: NONE,
            waiter_count: 0,
            value_count: 0,
            item_count: 0,
            parked_bytes: 0,
            held_bytes: 0,
            steps: Steps::new(&limits),
            timers: Timers::new(),
            limits,
        }
    }

    /// The bounds it keeps.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A local use makes a step live, also one that only peers have spoken of. Every local use of a slot does the
    /// same by itself; this is for those who want a step before its first key.
    ///
    /// # Errors
    /// The step ended, or too many are alive.
    pub fn open_step(&mut self, now: Nanos, step: StepId) -> Result<(), Refusal> {
        self.open(now, step).map(|_| ())
    }

    /// The record of a slot for a local use.
    #[inline]
    pub(super) fn local(&mut self, now: Nanos, slot: &Slot) -> Result<u32, Refusal> {
        match self.seek(slot) {
            Some(at) if self.records[at as usize].scope & GRACE == 0 => Ok(at),
            found => self.local_slowly(now, slot, found),
        }
    }

    /// The record of a slot for what a peer says: it makes no step live.
    #[inline]
    pub(super) fn foreign(&mut self, now: Nanos, slot: &Slot) -> Result<u32, Refusal> {
        match self.seek(slot) {
            Some(at) => Ok(at),
            None => self.foreign_slowly(now, slot),
        }
    }

    /// The record of a slot that was used and whose step is alive.
    #[inline]
    pub(super) fn existing(&self, slot: &Slot) -> Option<u32> {
        self.last_of(slot).or_else(|| self.probe(slot))
    }

    /// As [`Table::existing`], and the next look at the key finds it at once.
    #[inline]
    pub(super) fn seek(&mut self, slot: &Slot) -> Option<u32> {
        self.last_of(slot).or_else(|| self.seek_slowly(slot))
    }

    /// The record that its key used last, if that is the slot's. A record that was released is nobody's last.
    #[inline]
    fn last_of(&self, slot: &Slot) -> Option<u32> {
        let last = self.last_record(slot.key);
        let record = self.records.get(last as usize)?;
        record.is(slot).then_some(last)
    }

    /// The record that a key used last, or none.
    #[inline]
    pub(super) fn last_record(&self, key: KeyId) -> u32 {
        self.of_keys
            .get(key.0 as usize)
            .map_or(NONE, |of_key| of_key.last)
    }

    #[inline(never)]
    fn seek_slowly(&mut self, slot: &Slot) -> Option<u32> {
        let at = self.probe(slot)?;
        self.of_keys[slot.key.0 as usize].last = at;
        Some(at)
    }

    #[inline]
    pub(super) fn tag(&self, slot: &Slot) -> u32 {
        // Two folds that do not wait for each other; the constants keep zeros, the usual frame and iteration, from
        // wiping a factor out.
        let scope = fold(
            slot.step.0 ^ self.limits.hash_seed ^ 0x9e37_79b9_7f4a_7c15,
            u64::from(slot.key.0) ^ 0xd6e8_feb8_6659_fd93,
        );
        let place = fold(
            slot.at.frame ^ 0xa076_1d64_78bd_642f,
            slot.at.iter ^ 0xe703_7ed1_a0b4_28db,
        );
        let mixed = scope ^ place;
        (mixed ^ mixed >> 32) as u32
    }

    fn probe(&self, slot: &Slot) -> Option<u32> {
        self.index
            .find(self.tag(slot), |at| self.records[at as usize].is(slot))
    }

    #[cold]
    fn local_slowly(
        &mut self,
        now: Nanos,
        slot: &Slot,
        found: Option<u32>,
    ) -> Result<u32, Refusal> {
        let scope = self.open(now, slot.step)?;
        found.map_or_else(|| self.insert(slot, scope), Ok)
    }

    #[cold]
    fn foreign_slowly(&mut self, now: Nanos, slot: &Slot) -> Result<u32, Refusal> {
        // Asked first: a frame that finds the table full must not leave a step behind.
        if self.record_count >= self.limits.records {
            let known = self.steps.find(slot.step);
            let ended = known.and_then(|step| self.steps.step(step).state.refusal());
            return Err(ended.unwrap_or(Refusal::Records));
        }
        let step = self.steps.hear_of(now, slot.step, &self.limits)?;
        let grace = if self.steps.is_grace(step) { GRACE } else { 0 };
        self.insert(slot, step | grace)
    }

    /// Makes a step live and tells its records, which then need not ask.
    fn open(&mut self, now: Nanos, step: StepId) -> Result<u32, Refusal> {
        let (number, was_grace) = self.steps.open(now, step, &self.limits)?;
        if was_grace {
            let mut at = self.steps.step(number).records;
            while at != NONE {
                let record = &mut self.records[at as usize];
                record.scope = number;
                at = record.sibling;
            }
        }
        Ok(number)
    }

    fn insert(&mut self, slot: &Slot, scope: u32) -> Result<u32, Refusal> {
        if self.record_count >= self.limits.records {
            return Err(Refusal::Records);
        }
        let head = &mut self.steps.step_mut(scope & !GRACE).records;
        let at = if self.free_record == NONE {
            self.records.len() as u32
        } else {
            self.free_record
        };
        self.births += 1;
        let record = Record::new(slot, scope, std::mem::replace(head, at), self.births);
        if self.free_record == NONE {
            self.records.push(record);
        } else {
            self.free_record = self.records[at as usize].sibling;
            self.records[at as usize] = record;
        }
        self.record_count += 1;
        self.index.insert(self.tag(slot), at);
        let key = slot.key.0 as usize;
        if key >= self.of_keys.len() {
            self.of_keys.resize(key + 1, OfKey::UNUSED);
        }
        let of_key = &mut self.of_keys[key];
        of_key.records += 1;
        of_key.last = at;
        Ok(at)
    }

    /// True if a step that has not ended has a rendezvous point of this key. The ordinals of such a key are counted
    /// here, so its number may not go to another one.
    #[must_use]
    pub fn is_used(&self, key: KeyId) -> bool {
        self.of_keys
            .get(key.0 as usize)
            .is_some_and(|of_key| of_key.records > 0)
    }

    /// Forgets a record whose queues are empty and which its step has unlinked.
    pub(super) fn release_record(&mut self, at: u32) {
        let slot = self.records[at as usize].slot();
        self.index.remove(self.tag(&slot), at);
        let of_key = &mut self.of_keys[slot.key.0 as usize];
        of_key.records -= 1;
        if of_key.last == at {
            of_key.last = NONE;
        }
        let record = &mut self.records[at as usize];
        record.scope = NONE;
        record.sibling = self.free_record;
        self.free_record = at;
        self.record_count -= 1;
    }
}

#[cfg(test)]
mod tests;
