//! Returned: values that left the table and come back, because nobody took them after all.
//!
//! Does not know who was to have them, or why he has not. What comes back was here before: it is refused for no bound,
//! and stands before all that was sent after it.

use super::names::{Arrival, Origin, Slot};
use super::queues::{Item, Kind};
use super::steps::NONE;
use super::table::Table;
use crate::ground::Nanos;

impl<V, W: Copy> Table<V, W> {
    /// A value that was handed over goes back: to the oldest who waits there, or to its place in the queue.
    ///
    /// # Errors
    /// The value, back: its step has ended since, or its peer was given up.
    pub fn give_back(
        &mut self,
        now: Nanos,
        from: Origin,
        value: V,
        bytes: u64,
    ) -> Result<Arrival<V, W>, V> {
        let Some(at) = self.whence(from) else {
            return Err(value);
        };
        // Others may have come back before it.
        let before = self
            .items(at)
            .take_while(|item| item.ordinal < from.ordinal)
            .count() as u32;
        let record = &self.records[at as usize];
        if before == 0 && record.waiters > 0 {
            let waiter = self.remove_waiter(record.waiters_head).1;
            let from = self.origin(at, from.ordinal);
            return Ok(Arrival::Matched {
                waiter,
                value,
                from,
            });
        }
        let item = Item::value(value, bytes, now, from.ordinal);
        if mutant!("unread_values_go_last") {
            self.push_item(at, item);
        } else {
            self.insert_item(at, before, item);
        }
        Ok(Arrival::Parked)
    }

    /// Where a value lay that was handed over, as long as nothing there has ended.
    #[must_use]
    pub fn slot_of(&self, from: Origin) -> Option<Slot> {
        self.whence(from).map(|at| self.records[at as usize].slot())
    }

    /// The place of a value that is handed over now.
    #[inline]
    pub(super) const fn origin(&self, record: u32, ordinal: u32) -> Origin {
        Origin {
            record,
            ordinal,
            births: self.births,
        }
    }

    /// The record that a value came from, if it is alive: one that was made since in the same memory is younger.
    fn whence(&self, from: Origin) -> Option<u32> {
        let record = self.records.get(from.record as usize)?;
        (record.scope != NONE && record.born <= from.births).then_some(from.record)
    }

    /// Adds before the item at a position.
    fn insert_item(&mut self, at: u32, position: u32, item: Item<V>) {
        let Some((before, is_first)) = position
            .checked_sub(1)
            .and_then(|before| self.place_of(at, before))
        else {
            return self.unpop_item(at, item);
        };
        self.charge(at, item.bytes());
        self.lengthen(at);
        let next = if is_first {
            self.records[at as usize].more_head
        } else {
            self.nodes[before as usize].next
        };
        let node = self.new_node(item, next);
        let record = &mut self.records[at as usize];
        if is_first {
            record.more_head = node;
        } else {
            self.nodes[before as usize].next = node;
        }
        if next == NONE {
            record.more_tail = node;
        }
    }

    /// Adds before the front of the queue of values.
    pub(super) fn unpop_item(&mut self, at: u32, item: Item<V>) {
        self.charge(at, item.bytes());
        self.lengthen(at);
        let record = &mut self.records[at as usize];
        let displaced = std::mem::replace(&mut record.first, item);
        if displaced.kind == Kind::Empty {
            return;
        }
        let head = record.more_head;
        let node = self.new_node(displaced, head);
        let record = &mut self.records[at as usize];
        record.more_head = node;
        if head == NONE {
            record.more_tail = node;
        }
    }
}

#[cfg(test)]
mod tests;
