//! Local: send and recv by the shard's own users, and cancel.
//!
//! Does not know where a value comes from or goes to: for a key whose other end is elsewhere, see `pushed` and
//! `requested`.

use super::names::{Received, Sent, Slot, WaiterId};
use super::refusal::Refusal;
use super::table::Table;
use crate::ground::Nanos;

impl<V, W: Copy> Table<V, W> {
    /// A value of a local producer, for a local consumer. `bytes` is what it keeps occupied while it is parked.
    ///
    /// # Errors
    /// The step ended or a limit is reached: the value comes back, and took no ordinal.
    #[inline]
    pub fn send(
        &mut self,
        now: Nanos,
        slot: Slot,
        value: V,
        bytes: u64,
    ) -> Result<Sent<V, W>, (Refusal, V)> {
        let at = match self.local(now, &slot) {
            Ok(at) => at,
            Err(refusal) => return Err((refusal, value)),
        };
        let record = &mut self.records[at as usize];
        let ordinal = record.next_ordinal;
        if ordinal == u32::MAX {
            return Err((Refusal::Ordinals, value));
        }
        if record.waiters > 0 && record.items == 0 {
            record.next_ordinal += 1;
            let oldest = record.waiters_head;
            let waiter = self.remove_waiter(oldest).1;
            return Ok(Sent::Matched {
                waiter,
                value,
                from: self.origin(at, ordinal),
            });
        }
        if let Err(refusal) = self.may_park(at, bytes) {
            return Err((refusal, value));
        }
        self.records[at as usize].next_ordinal += 1;
        self.push_value(at, value, bytes, now, ordinal);
        Ok(Sent::Parked { ordinal })
    }

    /// A receive of a local consumer, whoever produces: takes the oldest value, or waits until `deadline`.
    ///
    /// # Errors
    /// The step ended or a limit is reached: nothing waits.
    #[inline]
    pub fn recv(
        &mut self,
        now: Nanos,
        slot: Slot,
        waiter: W,
        deadline: Nanos,
    ) -> Result<Received<V>, Refusal> {
        let at = self.local(now, &slot)?;
        let record = &self.records[at as usize];
        let position = record.waiters;
        if record.items > 0 {
            if position == 0
                && let Some((value, ordinal, _)) = self.pop_value(at)
            {
                let from = self.origin(at, ordinal);
                return Ok(Received::Ready { value, from });
            }
            return self.wait_for_offer(now, at, position, waiter, deadline);
        }
        let ordinal = record.next_ordinal.saturating_add(position);
        let id = self.push_waiter(now, at, waiter, deadline, ordinal)?;
        Ok(Received::Waiting { id, ordinal })
    }

    /// Unlinks a waiter. A value that comes later goes to the next waiter, or parks. `None` if it has ended already,
    /// by whatever came first: each waiter ends once.
    pub fn cancel(&mut self, id: WaiterId) -> Option<(Slot, W)> {
        let index = self.live_waiter(id)?;
        let (at, tag) = self.remove_waiter(index);
        Some((self.records[at as usize].slot(), tag))
    }

    /// Joins the waiters of a queue that begins with an offer on its way.
    #[cold]
    fn wait_for_offer(
        &mut self,
        now: Nanos,
        at: u32,
        position: u32,
        waiter: W,
        deadline: Nanos,
    ) -> Result<Received<V>, Refusal> {
        let record = &self.records[at as usize];
        let ordinal = match self.item_at(at, position) {
            Some(item) => item.ordinal,
            None => record.next_ordinal.saturating_add(position - record.items),
        };
        let id = self.push_waiter(now, at, waiter, deadline, ordinal)?;
        let Some(item) = self.item_at_mut(at, position) else {
            return Ok(Received::Waiting { id, ordinal });
        };
        Ok(item
            .want()
            .map_or(Received::Behind { id }, |token| Received::Fetch {
                id,
                token,
            }))
    }
}
