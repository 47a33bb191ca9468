//! Waiters: how many there are, their names, and those that stand in lists: all but the first of a point, and all that
//! have a deadline.
//!
//! Knows points as numbers only. The first waiter of a point lies in the record, and is counted and named here.

use std::collections::TryReserveError;

use super::names::{Limits, WaiterId, is_timed};
use super::refusal::Refusal;
use super::slab::{List, NONE, RecordSlab};
use super::timers::Timers;
use crate::ground::Nanos;

/// The waiters of all points.
#[derive(Debug)]
pub(super) struct Waiters<W> {
    slab: RecordSlab<Listed<W>>,
    timers: Timers,
    /// All of them, also those in records.
    count: u32,
    /// Given to each in turn, so that a name is recognised as stale.
    generation: u32,
    limits: Limits,
}

/// A receive, or a peer's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WaiterRecord<W> {
    pub(super) tag: W,
    pub(super) since: Nanos,
    pub(super) generation: u32,
}

#[derive(Debug)]
struct Listed<W> {
    waiter: WaiterRecord<W>,
    /// Its point; none when it has left.
    record: u32,
    /// Its deadline; none if it has none.
    timer: u32,
}

impl<W: Copy> Waiters<W> {
    /// # Errors
    /// There is no room for as many as there may be.
    pub(super) fn new(limits: Limits) -> Result<Self, TryReserveError> {
        Ok(Self {
            slab: RecordSlab::with_capacity(limits.waiters)?,
            timers: Timers::new(),
            count: 0,
            generation: 0,
            limits,
        })
    }

    /// How many wait.
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Counts one more, of a point where `others` wait, and gives it its generation.
    #[inline]
    pub(super) fn admit(
        &mut self,
        others: u32,
        tag: W,
        since: Nanos,
    ) -> Result<WaiterRecord<W>, Refusal> {
        if others >= self.limits.waiters_per_key {
            return Err(Refusal::WaitersOfKey);
        }
        if self.count >= self.limits.waiters {
            return Err(Refusal::Waiters);
        }
        self.count += 1;
        self.generation = self.generation.wrapping_add(1);
        Ok(WaiterRecord {
            tag,
            since,
            generation: self.generation,
        })
    }

    /// Counts one less: it has left its record.
    pub(super) fn dismiss(&mut self) {
        self.count -= 1;
    }

    /// Adds one that was admitted to the list of its point, and gives its name.
    pub(super) fn push(
        &mut self,
        list: &mut List,
        record: u32,
        waiter: WaiterRecord<W>,
        deadline: Nanos,
    ) -> WaiterId {
        let index = self.slab.put(Listed {
            waiter,
            record,
            timer: NONE,
        });
        self.slab.insert(list, None, index);
        if is_timed(deadline) {
            self.slab[index].timer = self.timers.set(index, deadline);
        }
        WaiterId::new(index, waiter.generation)
    }

    /// Takes one out of its list, and counts one less.
    pub(super) fn remove(&mut self, list: &mut List, index: u32) -> W {
        self.count -= 1;
        self.slab.remove(list, index);
        let entry = &mut self.slab[index];
        entry.record = NONE;
        if entry.timer != NONE {
            self.timers.clear(entry.timer);
        }
        entry.waiter.tag
    }

    /// The place in its list and the point of a waiter of this name, if it stands in a list.
    pub(super) fn find(&self, id: WaiterId) -> Option<(u32, u32)> {
        let index = id.place();
        let entry = self.slab.get(index)?;
        let is_here = entry.record != NONE && id == WaiterId::new(index, entry.waiter.generation);
        is_here.then_some((index, entry.record))
    }

    /// What a waiter of this name that stands in a list is for its owner from now on.
    pub(super) fn rename(&mut self, id: WaiterId, tag: W) {
        if let Some((index, _)) = self.find(id) {
            self.slab[index].waiter.tag = tag;
        }
    }

    /// One whose deadline is not after `now`, and its point. Its deadline is gone.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<(u32, u32)> {
        let index = self.timers.pop(now)?;
        self.slab[index].timer = NONE;
        Some((index, self.slab[index].record))
    }

    /// When to ask again: never later than the earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.timers.next()
    }

    /// True if it waits and is given up at a time of its own.
    pub(super) fn has_deadline(&self, id: WaiterId) -> bool {
        let place = self.find(id);
        place.is_some_and(|(index, _)| self.slab[index].timer != NONE)
    }

    /// Those of a list, oldest first, with their names.
    pub(super) fn each(&self, list: List) -> impl Iterator<Item = (WaiterId, WaiterRecord<W>)> {
        let id = |(index, entry): (_, &Listed<W>)| WaiterId::new(index, entry.waiter.generation);
        self.slab
            .each(list)
            .map(move |place| (id(place), place.1.waiter))
    }
}

#[cfg(test)]
mod tests;
