//! Table: the parts together, and what can be done at one rendezvous point.
//!
//! Does not know what values and waiters are. What concerns offers, or many points at once, stands in `sweep`.
//!
//! What a peer says is an allegation: no order or number of it may break a queue, or make more than a grace step.

use std::collections::TryReserveError;

use super::names::{
    Arrived, Limits, NextOrdinal, Origin, Pass, PushOutcome, QueuePosition, ReceiveOutcome,
    Requested, Sent, Slot, WaiterId, is_timed,
};
use super::ordinal::is_before;
use super::records::Records;
use super::refusal::Refusal;
use super::room::Room;
use super::slab::NONE;
use super::steps::{StepPhase, Steps};
use super::values::{Item, Values};
use super::waiters::Waiters;
use crate::ground::{Nanos, StepId};

mod sweep;
mod waiting;

/// The matching table of one shard, over values `V` and waiters' tags `W`.
///
/// Every method is exact: a value or a waiter that was taken comes out once, here or in a call that ends it.
#[derive(Debug)]
pub struct Table<V, W> {
    records: Records<W>,
    values: Values<V>,
    waiters: Waiters<W>,
    steps: Steps,
    room: Room,
}

impl<V, W: Copy> Table<V, W> {
    /// An empty table. Its slabs are reserved up to the limits at once, so that they never move: address space
    /// only, until it is used.
    ///
    /// # Errors
    /// The process may have no more address space.
    pub fn new(limits: Limits) -> Result<Self, TryReserveError> {
        Ok(Self {
            records: Records::new(&limits)?,
            values: Values::new(limits.values)?,
            waiters: Waiters::new(limits)?,
            steps: Steps::new(limits),
            room: Room::new(limits),
        })
    }

    /// The bounds it keeps.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        self.room.limits()
    }

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
        let ordinal = self.records.at(at).next_ordinal();
        if let Some(waiter) = self.meet(at, ordinal) {
            let from = self.records.origin(at, ordinal);
            return Ok(Sent::Matched {
                waiter,
                value,
                from,
            });
        }
        if let Err(refusal) = self.may_stand(at, false, bytes) {
            return Err((refusal, value));
        }
        self.records.at_mut(at).give(ordinal);
        self.insert(at, None, Item::value(value, bytes, ordinal), now);
        Ok(Sent::Parked { ordinal })
    }

    /// A receive of a local consumer, from any producer: takes the oldest value, or waits until `deadline`.
    ///
    /// # Errors
    /// The step ended or a limit is reached: nothing waits.
    #[inline(never)]
    pub fn recv(
        &mut self,
        now: Nanos,
        slot: Slot,
        waiter: W,
        deadline: Nanos,
    ) -> Result<ReceiveOutcome<V>, Refusal> {
        let at = self.local(now, &slot)?;
        if !self.records.at(at).is_awaited()
            && let Some((place, ordinal, _)) = self.pop(at)
            && let Some(value) = self.values.take(place)
        {
            let from = self.records.origin(at, ordinal);
            return Ok(ReceiveOutcome::Ready { value, from });
        }
        let (place, ordinal) = self.expects(at, self.records.at(at).waiters());
        let id = self.join(now, at, waiter, deadline)?;
        Ok(match self.values.want(place) {
            Some(token) => ReceiveOutcome::Fetch { id, token },
            None if place == NONE => ReceiveOutcome::Waiting { id, ordinal },
            None => ReceiveOutcome::Behind { id },
        })
    }

    /// As [`Table::recv`], for a receive at whose point nothing lies, and which has no deadline: the usual case. The
    /// ordinal of its value is given too. `None` changes nothing.
    #[inline(always)]
    pub fn wait(
        &mut self,
        now: Nanos,
        slot: &Slot,
        waiter: W,
        deadline: Nanos,
    ) -> Option<(WaiterId, u32)> {
        let (at, record) = self.records.last(slot)?;
        if is_timed(deadline) && !mutant!("receives_alone_have_no_deadline") {
            return None;
        }
        if !record.is_idle() {
            return self.wait_behind(now, at, waiter);
        }
        let ordinal = record.next_ordinal();
        let first = self.waiters.admit(0, waiter, now).ok()?;
        Some((record.seat(at, first), ordinal))
    }

    /// Unlinks a waiter. A value that comes later goes to the next waiter, or parks. `None` if it has ended already,
    /// by whatever came first: each waiter ends once.
    pub fn cancel(&mut self, id: WaiterId) -> Option<(Slot, W)> {
        let (at, tag) = match self.records.seat_of(id) {
            Some(at) => (at, self.leave(at, None)?),
            None => {
                let (index, at) = self.waiters.find(id)?;
                (at, self.leave(at, Some(index))?)
            }
        };
        Some((self.records.at(at).slot(), tag))
    }

    /// What a waiter is for its owner from now on.
    pub fn rename(&mut self, id: WaiterId, tag: W) {
        match self.records.seat_of(id) {
            Some(at) => self.records.at_mut(at).rename(tag),
            None => self.waiters.rename(id, tag),
        }
    }

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
    ) -> Result<PushOutcome<V, W>, (Refusal, Arrived<V>)> {
        let at = match self.foreign(now, &slot) {
            Ok(at) => at,
            Err(refusal) => return Err((refusal, item)),
        };
        let record = self.records.at(at);
        if is_before(ordinal, record.next_ordinal()) {
            return Ok(PushOutcome::Duplicate(item));
        }
        let wanted = record.waiters() > record.items().len();
        let item = match item {
            Arrived::Offer(token) => Item::offer(token, wanted, ordinal),
            Arrived::Value(value) => match self.meet(at, ordinal) {
                None => Item::value(value, bytes, ordinal),
                Some(waiter) => {
                    let from = self.records.origin(at, ordinal);
                    return Ok(PushOutcome::Matched {
                        waiter,
                        value,
                        from,
                    });
                }
            },
        };
        // What a waiter wants is not parked: it stands there until what is before it, or its bytes, have come.
        if let Err(refusal) = self.may_stand(at, wanted, item.bytes()) {
            return Err((refusal, item.into_arrived()));
        }
        self.records.at_mut(at).give(ordinal);
        let arrival = match item.token() {
            Some(token) if wanted => PushOutcome::Wanted { token },
            _ => PushOutcome::Parked,
        };
        self.insert(at, None, item, now);
        Ok(arrival)
    }

    /// The oldest waiter of a slot, if a value with that ordinal would go to it at once: the usual case, without moving
    /// the value through here. `None` changes nothing: [`Table::arrive`] says what to do with the value then.
    #[inline(always)]
    pub fn claim(&mut self, slot: &Slot, ordinal: u32) -> Option<(W, Origin)> {
        let Some((at, record)) = self.records.last(slot) else {
            return self.claim_slowly(*slot, ordinal);
        };
        if record.next_ordinal() != ordinal {
            return None;
        }
        let Some(waiter) = record.meet(ordinal) else {
            return self.claim_listed(at, ordinal);
        };
        self.waiters.dismiss();
        Some((waiter, self.records.origin(at, ordinal)))
    }

    /// The oldest waiter of a slot, if the next value of this process goes to it at once: the usual case, without
    /// moving the value through here. Its ordinal is given. `None` changes nothing: [`Table::send`] says what to do
    /// then.
    #[inline(always)]
    pub fn claim_next(&mut self, slot: &Slot) -> Option<(W, Origin)> {
        let (at, record) = self.records.last(slot)?;
        let ordinal = record.next_ordinal();
        let Some(waiter) = record.meet(ordinal) else {
            let is_live = !record.is_grace();
            return is_live.then(|| self.claim_listed(at, ordinal))?;
        };
        self.waiters.dismiss();
        Some((waiter, self.records.origin(at, ordinal)))
    }

    /// Gives the next value of a slot whose destination is elsewhere its ordinal, and says where it goes. So a value
    /// goes in two moves, and pushing it costs one look: if it is not pushed, [`Table::park`] takes it with the ticket.
    /// An ordinal is given once; one whose value was refused is taken back while it is the last. How a value travels,
    /// and whether it may, is the channel's business.
    ///
    /// # Errors
    /// The step ended or a limit is reached: no ordinal was given.
    #[inline]
    pub fn pass(&mut self, now: Nanos, slot: Slot) -> Result<Pass<W>, Refusal> {
        if let Some((at, record)) = self.records.last(&slot)
            && record.is_idle()
        {
            let ordinal = record.take_ordinal();
            return Ok(Pass::Clear(QueuePosition(self.records.origin(at, ordinal))));
        }
        self.pass_slowly(now, slot)
    }

    /// As [`Table::pass`], for a value that may leave at once: the usual case. The ordinal is given when the value has
    /// left: [`NextOrdinal::give`]. `None` if its way is not clear.
    #[inline(always)]
    pub fn clear_way(&mut self, slot: &Slot) -> Option<NextOrdinal<'_>> {
        let (_, record) = self.records.last(slot)?;
        if !record.is_idle() {
            return None;
        }
        Some(NextOrdinal(record.next_ordinal_mut()))
    }

    /// Parks the value of a ticket at the end of the queue, and gives its ordinal.
    ///
    /// # Errors
    /// A limit is reached, or the step ended since: the value comes back. Its ordinal is taken back if it was the
    /// slot's last, and is a gap otherwise, which receivers step over.
    pub fn park(
        &mut self,
        now: Nanos,
        ticket: QueuePosition,
        value: V,
        bytes: u64,
    ) -> Result<u32, (Refusal, V)> {
        let ordinal = ticket.ordinal();
        let at = self.records.record_of(ticket.0);
        let Some(at) = at.filter(|&at| is_before(ordinal, self.records.at(at).next_ordinal()))
        else {
            return Err((Refusal::Stale, value));
        };
        if let Err(refusal) = self.may_stand(at, false, bytes) {
            let record = self.records.at_mut(at);
            if ordinal.wrapping_add(1) == record.next_ordinal() {
                record.set_next_ordinal(ordinal);
            }
            return Err((refusal, value));
        }
        self.insert(at, None, Item::value(value, bytes, ordinal), now);
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
        let front = self.values.get(self.records.at(at).items().head());
        if front.is_some_and(|front| front.token().is_some()) {
            return Err(Refusal::Direction);
        }
        if is_before(ordinal, self.first_ordinal(at)) {
            return Ok(Requested::AlreadySent);
        }
        if let Some((value, ordinal, _)) = self.pop_value(at) {
            return Ok(Requested::Ready { value, ordinal });
        }
        let id = self.join(now, at, waiter, deadline)?;
        Ok(Requested::Waiting { id })
    }

    /// Takes the oldest parked value, with its ordinal and bytes, to push it now that there is credit.
    pub fn take_parked(&mut self, slot: Slot) -> Option<(V, u32, u64)> {
        let at = self.records.find(&slot)?;
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
        let is_first = |at: &u32| {
            is_before(ordinal, self.first_ordinal(*at))
                && is_before(ordinal, self.records.at(*at).next_ordinal())
        };
        let at = self.records.find(&slot).filter(is_first);
        let Some(at) = at else {
            return Err(value);
        };
        self.restore(at, Item::value(value, bytes, ordinal), now);
        Ok(())
    }

    /// A value that was handed over and that its receiver did not read goes back: to the oldest waiter there, or to its
    /// place in the queue, before all that was sent after it. It was here before, so no bound refuses it.
    ///
    /// # Errors
    /// The value, back: its step has ended since, or its peer was given up.
    pub fn give_back(
        &mut self,
        now: Nanos,
        from: Origin,
        value: V,
        bytes: u64,
    ) -> Result<PushOutcome<V, W>, V> {
        let Some(at) = self.records.record_of(from) else {
            return Err(value);
        };
        if !is_before(self.first_ordinal(at), from.ordinal)
            && let Some(waiter) = self.leave(at, None)
        {
            let from = self.records.origin(at, from.ordinal);
            return Ok(PushOutcome::Matched {
                waiter,
                value,
                from,
            });
        }
        let item = Item::value(value, bytes, from.ordinal);
        if mutant!("unread_values_go_last") {
            self.insert(at, None, item, now);
        } else {
            self.restore(at, item, now);
        }
        Ok(PushOutcome::Parked)
    }

    /// The record of a slot for a local use.
    #[inline]
    fn local(&mut self, now: Nanos, slot: &Slot) -> Result<u32, Refusal> {
        let found = self.records.seek(slot);
        if let Some(at) = found
            && !self.records.at(at).is_grace()
        {
            return Ok(at);
        }
        let step = self.open(now, slot.step)?;
        match found {
            Some(at) => Ok(at),
            None if self.records.count() >= self.limits().records => Err(Refusal::Records),
            None => Ok(self.records.insert(slot, step, false)),
        }
    }

    /// The record of a slot for what a peer says: it makes no step live.
    fn foreign(&mut self, now: Nanos, slot: &Slot) -> Result<u32, Refusal> {
        if let Some(at) = self.records.seek(slot) {
            return Ok(at);
        }
        // Asked first: a frame that finds the table full must not leave a step behind.
        if self.records.count() >= self.limits().records {
            let ended = self.steps.state(slot.step).and_then(StepPhase::refusal);
            return Err(ended.unwrap_or(Refusal::Records));
        }
        let (step, is_grace) = self.steps.hear_of(now, slot.step)?;
        Ok(self.records.insert(slot, step, is_grace))
    }

    /// Makes a step live and tells its records, which then need not ask.
    fn open(&mut self, now: Nanos, step: StepId) -> Result<u32, Refusal> {
        let (number, was_grace) = self.steps.open(now, step)?;
        if was_grace {
            self.records.open(number);
        }
        Ok(number)
    }

    #[inline(never)]
    fn claim_slowly(&mut self, slot: Slot, ordinal: u32) -> Option<(W, Origin)> {
        let at = self.records.seek(&slot)?;
        let is_next = self.records.at(at).next_ordinal() == ordinal;
        is_next.then(|| self.claim_listed(at, ordinal))?
    }

    #[inline(never)]
    fn pass_slowly(&mut self, now: Nanos, slot: Slot) -> Result<Pass<W>, Refusal> {
        let at = self.local(now, &slot)?;
        let ordinal = self.records.at(at).next_ordinal();
        if let Some(waiter) = self.meet(at, ordinal) {
            return Ok(Pass::Waiter { waiter, ordinal });
        }
        let record = self.records.at_mut(at);
        let ordinal = record.take_ordinal();
        let is_behind = record.has_items();
        let pass = if is_behind { Pass::Behind } else { Pass::Clear };
        Ok(pass(QueuePosition(self.records.origin(at, ordinal))))
    }

    /// The ordinal of the front of the queue, or that of the next value.
    fn first_ordinal(&self, at: u32) -> u32 {
        let record = self.records.at(at);
        let front = self.values.get(record.items().head());
        front.map_or_else(|| record.next_ordinal(), Item::ordinal)
    }

    /// The place and the ordinal of what the waiter at a position will get; none if it is not here yet. A walk, bounded
    /// by the waiters of a point.
    fn expects(&self, at: u32, position: u32) -> (u32, u32) {
        let record = self.records.at(at);
        let queue = record.items();
        if position < queue.len() {
            let item = self.values.each(queue).nth(position as usize);
            return item.map_or((NONE, 0), |(place, item)| (place, item.ordinal()));
        }
        let behind = position - queue.len();
        (NONE, record.next_ordinal().wrapping_add(behind))
    }

    /// Checks that an item may be parked, or stand in its queue because a waiter wants it.
    fn may_stand(&self, at: u32, wanted: bool, bytes: u64) -> Result<(), Refusal> {
        let of_step = self.steps.occupied(self.records.at(at).step());
        self.room.may_stand(wanted, of_step, bytes)
    }

    /// Adds what was here before to the queue, at its place by its ordinal.
    fn restore(&mut self, at: u32, item: Item<V>, now: Nanos) {
        let before = self
            .values
            .each(self.records.at(at).items())
            .find(|(_, other)| !is_before(other.ordinal(), item.ordinal()))
            .map(|(place, _)| place);
        self.insert(at, before, item, now);
    }

    /// Adds to the queue of values, before another item or at the end.
    #[inline]
    fn insert(&mut self, at: u32, before: Option<u32>, item: Item<V>, now: Nanos) {
        self.occupy(at, item.bytes());
        let record = self.records.at_mut(at);
        let surplus = record.surplus();
        record.change(|queue, _| self.values.insert(queue, before, item, now));
        self.room.count(1, surplus, record.surplus());
    }

    /// Takes the front of the queue if it is a value: with its ordinal and bytes.
    fn pop_value(&mut self, at: u32) -> Option<(V, u32, u64)> {
        let (place, ordinal, bytes) = self.pop(at)?;
        Some((self.values.take(place)?, ordinal, bytes))
    }

    /// As [`Table::pop_value`], with the place where the value still lies: so it is moved once.
    #[inline]
    fn pop(&mut self, at: u32) -> Option<(u32, u32, u64)> {
        let place = self.records.at(at).items().head();
        let front = self.values.get(place)?;
        if front.token().is_some() {
            return None;
        }
        let (ordinal, bytes) = (front.ordinal(), front.bytes());
        self.unlink(at, place, bytes);
        Some((place, ordinal, bytes))
    }

    /// Takes the item at a place out of the queue, which keeps so many bytes occupied.
    #[inline]
    fn unlink(&mut self, at: u32, place: u32, bytes: u64) {
        let record = self.records.at_mut(at);
        let surplus = record.surplus();
        record.change(|queue, _| self.values.unlink(queue, place));
        self.room.count(-1, surplus, record.surplus());
        if bytes != 0 {
            self.room.park((bytes as i64).wrapping_neg());
            self.steps.unpark(self.records.at(at).step(), bytes);
        }
    }

    /// Counts the bytes of a value that is parked, on the shard and on the record's step.
    #[inline]
    fn occupy(&mut self, at: u32, bytes: u64) {
        if bytes != 0 {
            self.room.park(bytes as i64);
            self.steps.park(self.records.at(at).step(), bytes);
        }
    }
}

#[cfg(test)]
mod tests;
