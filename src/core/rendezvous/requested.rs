//! Requested: the sender's side of a key whose destination is elsewhere. Values park, and peers' requests wait.
//!
//! Does not know how a value travels, or whether it may: credit is the channel's business.
//!
//! A value goes in two moves, so that pushing costs one probe. [`Table::pass`] gives it the next ordinal and says
//! whether a request waits for it, whether the way is clear, or whether values are parked ahead. If it is not pushed,
//! [`Table::park`] takes it with the ticket of the first move. An ordinal is given once; one whose value was refused
//! is taken back while it is the last.

use super::names::{Pass, Requested, Slot, Ticket};
use super::queues::{Item, Kind};
use super::refusal::Refusal;
use super::table::Table;
use crate::ground::Nanos;

impl<V, W: Copy> Table<V, W> {
    /// Gives the slot's next value its ordinal, and says where it goes.
    ///
    /// # Errors
    /// The step ended or a limit is reached: no ordinal was given.
    #[inline]
    pub fn pass(&mut self, now: Nanos, slot: Slot) -> Result<Pass<W>, Refusal> {
        let at = self.local(now, &slot)?;
        let record = &mut self.records[at as usize];
        let ordinal = record.next_ordinal;
        if ordinal == u32::MAX {
            return Err(Refusal::Ordinals);
        }
        record.next_ordinal += 1;
        let ticket = Ticket {
            slot,
            record: at,
            ordinal,
        };
        if record.items > 0 {
            return Ok(Pass::Behind(ticket));
        }
        if record.waiters == 0 {
            return Ok(Pass::Clear(ticket));
        }
        let oldest = record.waiters_head;
        let waiter = self.remove_waiter(oldest).1;
        Ok(Pass::Waiter { waiter, ordinal })
    }

    /// Parks the value of a ticket at the end of the queue, and gives its ordinal.
    ///
    /// # Errors
    /// A limit is reached, or the step ended since: the value comes back. Its ordinal is taken back if it was the
    /// slot's last, and is a gap otherwise, which receivers step over.
    pub fn park(
        &mut self,
        now: Nanos,
        ticket: Ticket,
        value: V,
        bytes: u64,
    ) -> Result<u32, (Refusal, V)> {
        let at = ticket.record;
        let ordinal = ticket.ordinal;
        let valid = self.records.get(at as usize).is_some_and(|record| {
            record.is(&ticket.slot)
                && record.scope != super::steps::NONE
                && ordinal < record.next_ordinal
        });
        if !valid {
            return Err((Refusal::Stale, value));
        }
        if let Err(refusal) = self.may_park(at, bytes) {
            let record = &mut self.records[at as usize];
            if ordinal + 1 == record.next_ordinal {
                record.next_ordinal = ordinal;
            }
            return Err((refusal, value));
        }
        self.push_value(at, value, bytes, now, ordinal);
        Ok(ordinal)
    }

    /// A peer's demand for a value of a key that is produced here. In a step that was not used here yet it is kept,
    /// within the bounds of grace steps; it ends with the step, however that ends.
    ///
    /// # Errors
    /// The step ended or a limit is reached: nothing waits.
    pub fn request(
        &mut self,
        now: Nanos,
        slot: Slot,
        ordinal: u32,
        waiter: W,
        deadline: Nanos,
    ) -> Result<Requested<V>, Refusal> {
        let at = self.foreign(now, &slot)?;
        match self.front(at) {
            Some(front) if front.kind != Kind::Value => Err(Refusal::Direction),
            Some(front) if ordinal < front.ordinal => Ok(Requested::AlreadySent),
            Some(_) => {
                let front = self
                    .pop_value(at)
                    .map(|(value, ordinal, _)| Requested::Ready { value, ordinal });
                front.ok_or(Refusal::Direction)
            }
            None if ordinal < self.records[at as usize].next_ordinal => Ok(Requested::AlreadySent),
            None => {
                let id = self.push_waiter(now, at, waiter, deadline, ordinal)?;
                Ok(Requested::Waiting { id })
            }
        }
    }

    /// Takes the oldest parked value, with its ordinal and bytes, to push it now that there is credit.
    pub fn take_parked(&mut self, slot: Slot) -> Option<(V, u32, u64)> {
        let at = self.existing(&slot)?;
        self.pop_value(at)
    }

    /// Puts the value back that [`Table::take_parked`] just gave, because it could not go after all. Never refused
    /// for its size: it was here before.
    ///
    /// # Errors
    /// The value, back: its step ended since, or its ordinal is not from here.
    pub fn put_back(
        &mut self,
        now: Nanos,
        slot: Slot,
        value: V,
        ordinal: u32,
        bytes: u64,
    ) -> Result<(), V> {
        let at = self.existing(&slot).filter(|&at| {
            let before_all = self.front(at).is_none_or(|front| ordinal < front.ordinal);
            before_all && ordinal < self.records[at as usize].next_ordinal
        });
        let Some(at) = at else {
            return Err(value);
        };
        self.unpop_item(at, Item::value(value, bytes, now, ordinal));
        Ok(())
    }
}
