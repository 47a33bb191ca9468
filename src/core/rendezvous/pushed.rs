//! Pushed: values and offers that a peer sends here, with the ordinals it gave them.
//!
//! Does not know channels or frames. What a peer says is an allegation: no order or number of it may break a queue,
//! and it makes no step but a grace step.

use super::names::{Arrival, Arrived, Origin, Slot, Withdrawn};
use super::queues::Item;
use super::refusal::Refusal;
use super::table::Table;
use crate::ground::Nanos;

impl<V, W: Copy> Table<V, W> {
    /// A value or an offer of a peer. `bytes` is what a value keeps occupied while it is parked; nothing for an
    /// offer.
    ///
    /// # Errors
    /// The step ended or a limit is reached: the item comes back, and its ordinal stays open.
    pub fn arrive(
        &mut self,
        now: Nanos,
        slot: Slot,
        ordinal: u32,
        item: Arrived<V>,
        bytes: u64,
    ) -> Result<Arrival<V, W>, (Refusal, Arrived<V>)> {
        let at = match self.foreign(now, &slot) {
            Ok(at) => at,
            Err(refusal) => return Err((refusal, item)),
        };
        let record = &mut self.records[at as usize];
        if ordinal < record.next_ordinal {
            return Ok(Arrival::Duplicate(item));
        }
        if ordinal == u32::MAX {
            return Err((Refusal::Ordinals, item));
        }
        let wanted = record.waiters > record.items;
        let bytes = match item {
            Arrived::Value(value) if wanted && record.items == 0 => {
                record.next_ordinal = ordinal + 1;
                let oldest = record.waiters_head;
                let waiter = self.remove_waiter(oldest).1;
                let from = self.origin(at, ordinal);
                return Ok(Arrival::Matched {
                    waiter,
                    value,
                    from,
                });
            }
            Arrived::Value(_) => bytes,
            Arrived::Offer(_) => 0,
        };
        // What somebody waits for is not parked: it stands there until what is before it, or its bytes, have come.
        let free = if wanted {
            self.may_stand(at, bytes)
        } else {
            self.may_park(at, bytes)
        };
        if let Err(refusal) = free {
            return Err((refusal, item));
        }
        self.records[at as usize].next_ordinal = ordinal + 1;
        let (item, arrival) = match item {
            Arrived::Value(value) => (Item::value(value, bytes, now, ordinal), Arrival::Parked),
            Arrived::Offer(token) => {
                let arrival = if wanted {
                    Arrival::Wanted { token }
                } else {
                    Arrival::Parked
                };
                (Item::offer(token, wanted, now, ordinal), arrival)
            }
        };
        self.push_item(at, item);
        Ok(arrival)
    }

    /// The oldest waiter of a slot, if a value with that ordinal would go to it at once: the usual case, without moving
    /// the value through here. `None` changes nothing: [`Table::arrive`] says what to do with the value then.
    #[inline]
    pub fn claim(&mut self, slot: &Slot, ordinal: u32) -> Option<(W, Origin)> {
        let at = self.seek(slot)?;
        let record = &mut self.records[at as usize];
        if record.items != 0
            || record.waiters == 0
            || ordinal != record.next_ordinal
            || ordinal == u32::MAX
        {
            return None;
        }
        record.next_ordinal = ordinal + 1;
        let oldest = record.waiters_head;
        let waiter = self.remove_waiter(oldest).1;
        Some((waiter, self.origin(at, ordinal)))
    }

    /// The fetched bytes of an offer take its place in the queue. Every waiter that can be served then is, in order,
    /// through `out`. Never refused for its size: it was fetched because it was wanted, into a budgeted landing.
    ///
    /// # Errors
    /// The value, back, if no such offer stands here: its step ended, or it was withdrawn or supplied before.
    pub fn supply(
        &mut self,
        now: Nanos,
        slot: Slot,
        token: u64,
        value: V,
        bytes: u64,
        out: &mut impl FnMut(W, V, Origin),
    ) -> Result<(), V> {
        let Some(at) = self.existing(&slot) else {
            return Err(value);
        };
        let Some(position) = self.position_of(at, token) else {
            return Err(value);
        };
        let Some(item) = self.item_at_mut(at, position) else {
            return Err(value);
        };
        item.supply(value, bytes, now);
        self.charge(at, bytes);
        self.drain(at, out);
        Ok(())
    }

    /// The peer takes an offer back, or fetching it failed. What that means for those who wait comes through `out`.
    /// False if no such offer stands here.
    pub fn withdraw(
        &mut self,
        slot: Slot,
        token: u64,
        out: &mut impl FnMut(Withdrawn<V, W>),
    ) -> bool {
        let Some(at) = self.existing(&slot) else {
            return false;
        };
        let Some(position) = self.position_of(at, token) else {
            return false;
        };
        self.remove_item(at, position);
        let was_awaited = position < self.records[at as usize].waiters;
        self.drain(at, &mut |waiter, value, from| {
            out(Withdrawn::Matched(waiter, value, from))
        });
        let record = &self.records[at as usize];
        if !was_awaited || record.waiters == 0 {
            return true;
        }
        // Those who stood behind have all moved up by one: the last of them stands at a new place.
        let last = record.waiters - 1;
        if last >= record.items {
            out(Withdrawn::Ask(
                record.next_ordinal.saturating_add(last - record.items),
            ));
        } else if let Some(token) = self.item_at_mut(at, last).and_then(Item::want) {
            out(Withdrawn::Wanted(token));
        }
        true
    }

    /// Gives the values at the front of a queue to those who wait.
    fn drain(&mut self, at: u32, out: &mut impl FnMut(W, V, Origin)) {
        while self.records[at as usize].waiters > 0 {
            let Some((value, ordinal, _)) = self.pop_value(at) else {
                return;
            };
            if let Some(waiter) = self.pop_waiter(at) {
                out(waiter, value, self.origin(at, ordinal));
            }
        }
    }
}
