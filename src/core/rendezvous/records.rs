//! Records: the rendezvous points that were used, and how a slot finds its own.
//!
//! Knows steps by their numbers; does not know values, and of waiters only the one that lies in a record.

use std::collections::TryReserveError;

use super::index::{Index, fold};
use super::names::{KeyId, Limits, Origin, Slot, WaiterId};
use super::slab::{List, NONE, RecordSlab};
use super::waiters::WaiterRecord;
use crate::ground::StepId;
use crate::ground::key::FrameIter;

/// Set in a record's scope while its step is in grace: a local use must open the step first.
const GRACE: u32 = 1 << 31;
/// Set while values or offers are queued.
const ITEMS: u32 = 1 << 30;
/// Set while waiters stand in the list.
const LISTED: u32 = 1 << 29;
/// The rest: the number of the step.
const STEP: u32 = LISTED - 1;
/// The scope of a record that is free.
const FREE: u32 = u32::MAX;

/// Slots whose lines are asked for together: a core keeps fewer misses than this under way.
pub(super) const TOUCHED_AT_ONCE: usize = 32;

/// A rendezvous point that was used. A value that meets a waiter, and a receive that waits alone, read and write the
/// first line; the second is of queues.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Record<W> {
    step: StepId,
    at: FrameIter,
    /// The ordinal that the next value gets, or that a peer is expected to give it.
    next_ordinal: u32,
    /// The number of its step, and what is in the second line.
    scope: u32,
    /// The first waiter, if it came when nothing was queued to a live step and has no deadline.
    first: Option<WaiterRecord<W>>,
    // The second line.
    key: KeyId,
    /// Which of all records that ever were it is, counted from 1.
    born: u64,
    items: List,
    listed: List,
}

// With a tag of two words that has a niche, as the shard's has.
const _: () = assert!(std::mem::offset_of!(Record<(bool, u64)>, key) == 64);
const _: () = assert!(size_of::<Record<(bool, u64)>>() == 128);

impl<W: Copy> Record<W> {
    fn is(&self, slot: &Slot) -> bool {
        self.step == slot.step && self.at == slot.at
    }

    pub(super) const fn slot(&self) -> Slot {
        Slot {
            step: self.step,
            key: self.key,
            at: self.at,
        }
    }

    pub(super) const fn step(&self) -> u32 {
        self.scope & STEP
    }

    /// True if only peers have spoken of its step.
    pub(super) const fn is_grace(&self) -> bool {
        self.scope & GRACE != 0
    }

    pub(super) const fn next_ordinal(&self) -> u32 {
        self.next_ordinal
    }

    pub(super) const fn set_next_ordinal(&mut self, ordinal: u32) {
        self.next_ordinal = ordinal;
    }

    /// The ordinal is given: the next one is next.
    pub(super) const fn give(&mut self, ordinal: u32) {
        self.next_ordinal = ordinal.wrapping_add(1);
    }

    pub(super) const fn next_ordinal_mut(&mut self) -> &mut u32 {
        &mut self.next_ordinal
    }

    /// Gives the next value its ordinal.
    #[inline]
    pub(super) const fn take_ordinal(&mut self) -> u32 {
        let ordinal = self.next_ordinal;
        self.give(ordinal);
        ordinal
    }

    /// True if values or offers are queued.
    pub(super) const fn has_items(&self) -> bool {
        self.scope & ITEMS != 0
    }

    /// True if nothing is queued and nothing waits, in a step that is used here.
    pub(super) const fn is_idle(&self) -> bool {
        self.scope <= STEP && self.first.is_none()
    }

    /// True if a receiver waits.
    pub(super) const fn is_awaited(&self) -> bool {
        self.scope & LISTED != 0 || self.first.is_some()
    }

    pub(super) const fn waiters(&self) -> u32 {
        self.listed.len() + self.first.is_some() as u32
    }

    /// How many values and offers stand for no waiter.
    pub(super) const fn surplus(&self) -> u32 {
        self.items.len().saturating_sub(self.waiters())
    }

    pub(super) const fn items(&self) -> List {
        self.items
    }

    /// The waiters behind the first.
    pub(super) const fn listed(&self) -> List {
        self.listed
    }

    /// Changes the queue of values or the list of waiters.
    #[inline]
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut List, &mut List) -> T) -> T {
        let changed = change(&mut self.items, &mut self.listed);
        let items = if self.items.len() > 0 { ITEMS } else { 0 };
        let listed = if self.listed.len() > 0 { LISTED } else { 0 };
        self.scope = self.scope & !(ITEMS | LISTED) | items | listed;
        changed
    }

    /// The first waiter, with its name: the record is that of this number.
    pub(super) fn seated(&self, at: u32) -> Option<(WaiterId, WaiterRecord<W>)> {
        let waiter = self.first?;
        Some((
            WaiterId::new(at | WaiterId::SEAT, waiter.generation),
            waiter,
        ))
    }

    /// The first waiter comes.
    pub(super) const fn seat(&mut self, at: u32, waiter: WaiterRecord<W>) -> WaiterId {
        self.first = Some(waiter);
        WaiterId::new(at | WaiterId::SEAT, waiter.generation)
    }

    /// The first waiter leaves.
    pub(super) fn unseat(&mut self) -> Option<W> {
        self.first.take().map(|waiter| waiter.tag)
    }

    /// What the first waiter is for its owner from now on.
    pub(super) const fn rename(&mut self, tag: W) {
        if let Some(waiter) = &mut self.first {
            waiter.tag = tag;
        }
    }

    /// The first waiter leaves with the value of that ordinal, if that goes to it at once.
    #[inline]
    pub(super) fn meet(&mut self, ordinal: u32) -> Option<W> {
        if self.has_items() || self.first.is_none() {
            return None;
        }
        self.give(ordinal);
        self.unseat()
    }
}

/// Every record, by number, by slot and by step.
#[derive(Debug)]
pub(super) struct Records<W> {
    slab: RecordSlab<Record<W>>,
    count: u32,
    /// Records that ever were.
    births: u64,
    index: Index,
    seed: u64,
    first_ordinal: u32,
    /// By key.
    of_keys: Vec<OfKey>,
    /// By the number of the step.
    of_steps: Vec<List>,
}

/// What is known of a key, whatever the step.
#[derive(Clone, Copy, Debug)]
struct OfKey {
    /// How many records are of it.
    records: u32,
    /// The one of them that was made or found last, or none. Looked at before the index: the steps of a key mostly come
    /// one after the other, and each uses its record several times.
    last: u32,
}

impl<W: Copy> Records<W> {
    /// # Errors
    /// There is no room for as many as there may be.
    pub(super) fn new(limits: &Limits) -> Result<Self, TryReserveError> {
        Ok(Self {
            slab: RecordSlab::with_capacity(limits.records)?,
            count: 0,
            births: 0,
            index: Index::new(),
            seed: limits.hash_seed,
            first_ordinal: limits.first_ordinal,
            of_keys: Vec::new(),
            of_steps: Vec::new(),
        })
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// How many fit before the index grows.
    pub(super) fn index_capacity(&self) -> usize {
        self.index.capacity()
    }

    pub(super) fn get(&self, at: u32) -> Option<&Record<W>> {
        self.slab.get(at)
    }

    pub(super) fn at(&self, at: u32) -> &Record<W> {
        &self.slab[at]
    }

    pub(super) fn at_mut(&mut self, at: u32) -> &mut Record<W> {
        &mut self.slab[at]
    }

    /// The record of a slot that was used and whose step is alive.
    pub(super) fn find(&self, slot: &Slot) -> Option<u32> {
        self.last_of(slot).or_else(|| self.probe(slot))
    }

    /// The record that its key used last, if that is the slot's.
    #[inline(always)]
    pub(super) fn last(&mut self, slot: &Slot) -> Option<(u32, &mut Record<W>)> {
        let last = self.of_keys.get(slot.key.0 as usize)?.last;
        let record = self.slab.at_mut(last)?;
        record.is(slot).then_some((last, record))
    }

    /// As [`Records::find`], and the next look at the key finds it at once.
    #[inline]
    pub(super) fn seek(&mut self, slot: &Slot) -> Option<u32> {
        self.last_of(slot).or_else(|| self.seek_slowly(slot))
    }

    /// The place of a value that is handed over now.
    pub(super) const fn origin(&self, record: u32, ordinal: u32) -> Origin {
        Origin {
            record,
            ordinal,
            births: self.births,
        }
    }

    /// The record that a value came from, if it is alive: one that was made since in the same memory is younger.
    pub(super) fn record_of(&self, from: Origin) -> Option<u32> {
        let record = self.slab.get(from.record)?;
        (record.scope != FREE && record.born <= from.births).then_some(from.record)
    }

    /// The record in which the waiter of this name lies, if it still waits there.
    pub(super) fn seat_of(&self, id: WaiterId) -> Option<u32> {
        let at = id.place() ^ WaiterId::SEAT;
        let (name, _) = self.slab.get(at)?.seated(at)?;
        (id == name).then_some(at)
    }

    /// True if a point of this key is here.
    pub(super) fn is_used(&self, key: KeyId) -> bool {
        matches!(self.of_keys.get(key.0 as usize), Some(of_key) if of_key.records > 0)
    }

    /// Every record, with its number, in no order.
    pub(super) fn each(&self) -> impl Iterator<Item = (u32, &Record<W>)> {
        self.of_steps.iter().flat_map(|list| self.slab.each(*list))
    }

    /// The first record of a step, or none.
    pub(super) fn first_of(&self, step: u32) -> u32 {
        let list = self.of_steps.get(step as usize);
        list.map_or(NONE, List::head)
    }

    /// The next record of the same step, or none.
    pub(super) fn next(&self, at: u32) -> u32 {
        self.slab.next(at)
    }

    /// A step is used here now: its records need not ask any more.
    pub(super) fn open(&mut self, step: u32) {
        let mut at = self.first_of(step);
        while at != NONE {
            self.slab[at].scope &= !GRACE;
            at = self.slab.next(at);
        }
    }

    /// Makes the record of a slot, which must have none.
    pub(super) fn insert(&mut self, slot: &Slot, step: u32, is_grace: bool) -> u32 {
        debug_assert!(step < STEP, "fewer steps than that are remembered");
        let (key, row) = (slot.key.0 as usize, step as usize);
        if key >= self.of_keys.len() {
            let unused = OfKey {
                records: 0,
                last: NONE,
            };
            self.of_keys.resize(key + 1, unused);
        }
        if row >= self.of_steps.len() {
            self.of_steps.resize(row + 1, List::EMPTY);
        }
        self.births += 1;
        self.count += 1;
        let at = self.slab.put(Record {
            step: slot.step,
            at: slot.at,
            next_ordinal: self.first_ordinal,
            scope: step | if is_grace { GRACE } else { 0 },
            first: None,
            key: slot.key,
            born: self.births,
            items: List::EMPTY,
            listed: List::EMPTY,
        });
        self.slab.insert(&mut self.of_steps[row], None, at);
        self.index.insert(self.tag(slot), at);
        let of_key = &mut self.of_keys[key];
        of_key.records += 1;
        of_key.last = at;
        at
    }

    /// Forgets a record, which must be empty.
    pub(super) fn remove(&mut self, at: u32) {
        let slot = self.slab[at].slot();
        self.index.remove(self.tag(&slot), at);
        let of_key = &mut self.of_keys[slot.key.0 as usize];
        of_key.records -= 1;
        if of_key.last == at {
            of_key.last = NONE;
        }
        let list = &mut self.of_steps[self.slab[at].step() as usize];
        self.slab.remove(list, at);
        self.slab[at].scope = FREE;
        self.count -= 1;
    }

    /// Loads what finding these slots will read, and gives their records: first what is known of the keys, with the
    /// index for keys with several records; then the records. The number means nothing: the loads are not left out.
    pub(super) fn warm(&self, burst: &[Slot], found: &mut [u32; TOUCHED_AT_ONCE]) -> u32 {
        let mut sum = 0;
        let mut tags = [0; TOUCHED_AT_ONCE];
        for ((at, tag), slot) in found.iter_mut().zip(&mut tags).zip(burst) {
            *at = NONE;
            match self.of_keys.get(slot.key.0 as usize) {
                Some(OfKey { records: 1, last }) => *at = *last,
                _ => {
                    *tag = self.tag(slot);
                    sum ^= self.index.warm(*tag);
                }
            }
        }
        for (at, tag) in found.iter_mut().zip(&tags).take(burst.len()) {
            if *at == NONE {
                *at = self.index.find(*tag, |_| true).unwrap_or(NONE);
            }
        }
        for at in &found[..burst.len()] {
            let warm = |record: &Record<W>| record.next_ordinal ^ record.born as u32;
            sum ^= self.slab.get(*at).map_or(0, warm);
        }
        sum
    }

    /// The record that its key used last, if that is the slot's. A record that was released is no key's last.
    fn last_of(&self, slot: &Slot) -> Option<u32> {
        let last = self.of_keys.get(slot.key.0 as usize)?.last;
        self.slab.get(last)?.is(slot).then_some(last)
    }

    #[inline(never)]
    fn seek_slowly(&mut self, slot: &Slot) -> Option<u32> {
        let at = self.probe(slot)?;
        self.of_keys[slot.key.0 as usize].last = at;
        Some(at)
    }

    fn probe(&self, slot: &Slot) -> Option<u32> {
        let is = |record: &Record<W>| record.is(slot) && record.key == slot.key;
        self.index.find(self.tag(slot), |at| is(&self.slab[at]))
    }

    #[inline]
    pub(super) fn tag(&self, slot: &Slot) -> u32 {
        // Two folds that do not wait for each other; the constants keep zeros, the usual frame and iteration, from
        // wiping a factor out.
        let scope = fold(
            slot.step.0 ^ self.seed ^ 0x9e37_79b9_7f4a_7c15,
            u64::from(slot.key.0) ^ 0xd6e8_feb8_6659_fd93,
        );
        let place = fold(
            slot.at.frame ^ 0xa076_1d64_78bd_642f,
            slot.at.iter ^ 0xe703_7ed1_a0b4_28db,
        );
        let mixed = scope ^ place;
        (mixed ^ mixed >> 32) as u32
    }
}

#[cfg(test)]
mod tests;
