//! Sweep: what concerns many rendezvous points at once: steps, lost peers, deadlines, bounds and looks. And offers: one
//! whose bytes come, or which is withdrawn, serves all waiters behind it.
//!
//! Does not know why a step ends or a peer is lost; it keeps the first status and hands everything back, once.

use super::super::names::{
    Ended, Expired, KeyId, Origin, Pending, PendingKind, Slot, Stats, WaiterId, Withdrawn,
};
use super::super::records::{Record, TOUCHED_AT_ONCE};
use super::super::refusal::Refusal;
use super::super::slab::NONE;
use super::super::steps::StepPhase;
use super::super::waiters::WaiterRecord;
use super::Table;
use crate::ground::{Nanos, Status, StepId};

impl<V, W: Copy> Table<V, W> {
    /// A local use makes a step live, also one that only peers have spoken of. Every local use of a slot does the
    /// same by itself; this is for a caller that wants a step before its first key.
    ///
    /// # Errors
    /// The step ended, or too many are alive.
    pub fn open_step(&mut self, now: Nanos, step: StepId) -> Result<(), Refusal> {
        self.open(now, step).map(|_| ())
    }

    /// Ends a step with `status`: the first one wins, here and for all later receives. Everything that waits or is
    /// parked comes through `out`. An unknown step becomes a tombstone. False if the step had ended before.
    pub fn abort(
        &mut self,
        now: Nanos,
        step: StepId,
        status: &Status,
        out: &mut impl FnMut(Ended<V, W>),
    ) -> bool {
        self.end(now, step, StepPhase::Aborted(status.clone()), out)
    }

    /// Cleans a step up: as [`Table::abort`], with `STEP_FINISHED`. Of a step that was aborted the status stays.
    pub fn finish(&mut self, now: Nanos, step: StepId, out: &mut impl FnMut(Ended<V, W>)) -> bool {
        self.end(now, step, StepPhase::Finished, out)
    }

    /// True for a step that ended, as long as its tombstone stands.
    #[must_use]
    pub fn has_ended(&self, step: StepId) -> bool {
        let state = self.steps.state(step);
        state.is_some_and(|state| state.refusal().is_some())
    }

    /// The status of a step that ended, as long as its tombstone stands. Makes text: for the edge.
    #[must_use]
    pub fn status_of(&self, step: StepId) -> Option<Status> {
        match self.steps.state(step)? {
            StepPhase::Aborted(status) => Some(status.clone()),
            state => Some(state.refusal()?.status(step, self.limits())),
        }
    }

    /// The status of a refusal, with the step's own if it was aborted. Makes text: for the edge.
    #[must_use]
    pub fn refusal_status(&self, refusal: Refusal, slot: Slot) -> Status {
        let ended = match refusal {
            Refusal::Aborted | Refusal::Finished | Refusal::Unclaimed | Refusal::Stale => {
                self.status_of(slot.step)
            }
            _ => None,
        };
        ended.unwrap_or_else(|| refusal.status(slot.step, self.limits()))
    }

    /// When to call [`Table::expire`] again, if nothing else happens. Never later than the earliest deadline.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let waiter = self.waiters.next_deadline();
        let grace = self.steps.oldest_grace().map(|(_, time)| time);
        waiter.into_iter().chain(grace).min()
    }

    /// Ends the waiters whose deadline is not after `now`, and the grace steps whose time is over: those leave a
    /// tombstone, so that a user who comes too late is told, and does not wait for values that were dropped.
    pub fn expire(&mut self, now: Nanos, out: &mut impl FnMut(Expired<V, W>)) {
        while let Some((index, at)) = self.waiters.pop_due(now) {
            if mutant!("deadline_ignored") {
                continue;
            }
            if let Some(tag) = self.leave(at, Some(index)) {
                out(Expired::Waiter(self.records.at(at).slot(), tag));
            }
        }
        while let Some((step, time)) = self.steps.oldest_grace()
            && time <= now
        {
            self.end(now, step, StepPhase::Unclaimed, &mut |ended| {
                out(Expired::Unclaimed(ended))
            });
        }
    }

    /// A peer is lost: everything of the keys for which `lost` says yes ends, in all steps, and their ordinals start
    /// again. Values of keys that the peer would have produced go as well: the caller decides by the key.
    pub fn fail_keys(
        &mut self,
        mut lost: impl FnMut(KeyId) -> bool,
        out: &mut impl FnMut(Ended<V, W>),
    ) {
        for number in self.steps.numbers() {
            self.end_records(number, &mut lost, out);
        }
    }

    /// The bound that a value of `bytes` of that step would meet if it were parked now; its step's, where it meets
    /// both: what waits for that is in the way of its own step alone.
    ///
    /// # Errors
    /// The bound.
    pub fn room(&self, step: StepId, bytes: u64) -> Result<(), Refusal> {
        let number = self.steps.find(step);
        let of_step = number.map_or(0, |number| self.steps.occupied(number));
        if bytes > self.limits().parked_bytes_per_step.saturating_sub(of_step) {
            return Err(Refusal::ParkedBytesOfStep);
        }
        self.room.may_stand(false, of_step, bytes)
    }

    /// A value waits for room in a step: [`Table::next_eased`] names the step once when something has left it.
    pub(crate) fn watch_room(&mut self, step: StepId) {
        self.steps.watch(step);
    }

    /// The next of the watched steps in which something has left room. It is not watched any more.
    pub(crate) fn next_eased(&mut self) -> Option<StepId> {
        self.steps.next_eased()
    }

    /// The bound that a value of `bytes` would meet if it were offered to a peer now. A value that is longer than a
    /// bound has it for itself.
    ///
    /// # Errors
    /// The bound.
    pub fn room_to_offer(&self, step: StepId, bytes: u64) -> Result<(), Refusal> {
        let limits = self.limits();
        let longest = limits.parked_bytes.min(limits.parked_bytes_per_step);
        self.room(step, bytes.min(longest))
    }

    /// Bytes that are kept for receivers outside the table have changed by so many; those of a step count against its
    /// bound as well.
    #[inline]
    pub fn hold(&mut self, step: Option<StepId>, change: i64) {
        self.room.hold(change);
        if let Some(step) = step {
            self.hold_in(step, change);
        }
    }

    #[inline(never)]
    fn hold_in(&mut self, step: StepId, change: i64) {
        if let Some(number) = self.steps.find(step) {
            self.steps.hold(number, change);
        }
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
        let Some((at, place, _)) = self.offer(&slot, token) else {
            return Err(value);
        };
        self.values.supply(place, value, bytes, now);
        self.occupy(at, bytes);
        self.drain(at, out);
        Ok(())
    }

    /// The peer takes an offer back, or fetching it failed. What that means for waiters comes through `out`. False if
    /// no such offer stands here.
    pub fn withdraw(
        &mut self,
        slot: Slot,
        token: u64,
        out: &mut impl FnMut(Withdrawn<V, W>),
    ) -> bool {
        let Some((at, place, position)) = self.offer(&slot, token) else {
            return false;
        };
        self.unlink(at, place, 0);
        let was_awaited = position < self.records.at(at).waiters() as usize;
        self.drain(at, &mut |waiter, value, from| {
            out(Withdrawn::Matched(waiter, value, from))
        });
        let record = self.records.at(at);
        if !was_awaited || !record.is_awaited() {
            return true;
        }
        // The waiters behind have all moved up by one: the last of them stands at a new place.
        let (place, ordinal) = self.expects(at, record.waiters() - 1);
        if place == NONE {
            out(Withdrawn::Ask(ordinal));
        } else if let Some(token) = self.values.want(place) {
            out(Withdrawn::Wanted(token));
        }
        true
    }

    /// How full the table is.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (steps, grace_steps, tombstones) = self.steps.counts();
        let (values, parked_bytes, held_bytes) = self.room.counts();
        Stats {
            records: self.records.count(),
            values,
            waiters: self.waiters.count(),
            parked_bytes,
            held_bytes,
            steps,
            grace_steps,
            tombstones,
            index_capacity: u32::try_from(self.records.index_capacity()).unwrap_or(u32::MAX),
        }
    }

    /// Everything pending, in no order. A walk over the whole table: for a control call, not for each turn.
    pub fn pending(&self, mut see: impl FnMut(Pending)) {
        for (at, record) in self.records.each() {
            let (slot, queue) = (record.slot(), record.items());
            if let Some((_, oldest)) = self.waiters_of(at).next() {
                see(Pending {
                    slot,
                    kind: PendingKind::Waiting,
                    count: record.waiters(),
                    since: oldest.since,
                    bytes: 0,
                });
            }
            let Some(front) = self.values.get(queue.head()) else {
                continue;
            };
            let kind = match front.token() {
                None => PendingKind::Parked,
                Some(_) if front.is_wanted() => PendingKind::Fetching,
                Some(_) => PendingKind::Offered,
            };
            see(Pending {
                slot,
                kind,
                count: queue.len(),
                since: self.values.since(queue.head()),
                bytes: self.values.each(queue).map(|(_, item)| item.bytes()).sum(),
            });
        }
    }

    /// Every step that has not ended.
    pub fn each_step(&self, see: impl FnMut(StepId)) {
        self.steps.alive().for_each(see);
    }

    /// Every waiter, with its name, its tag and the ordinal of what it will get now. Oldest first at each slot.
    pub fn waiting(&self, mut see: impl FnMut(Slot, WaiterId, W, u32)) {
        for (at, record) in self.records.each() {
            for (id, waiter, ordinal) in self.expecting(at) {
                see(record.slot(), id, waiter, ordinal);
            }
        }
    }

    /// As [`Table::waiting`], in one step.
    pub fn waiting_in(&self, step: StepId, mut see: impl FnMut(Slot, WaiterId, W, u32)) {
        let Some(number) = self.steps.find(step) else {
            return;
        };
        let mut at = self.records.first_of(number);
        while let Some(record) = self.records.get(at) {
            for (id, waiter, ordinal) in self.expecting(at) {
                see(record.slot(), id, waiter, ordinal);
            }
            at = self.records.next(at);
        }
    }

    /// As [`Table::waiting`], at one slot.
    pub fn waiting_at(&self, slot: Slot, mut see: impl FnMut(WaiterId, W, u32)) {
        if let Some(at) = self.records.find(&slot) {
            for (id, waiter, ordinal) in self.expecting(at) {
                see(id, waiter, ordinal);
            }
        }
    }

    /// True if a waiter is given up at a time of its own.
    #[must_use]
    pub fn has_deadline(&self, id: WaiterId) -> bool {
        self.waiters.has_deadline(id)
    }

    /// How many wait at a slot.
    #[must_use]
    pub fn waiters_at(&self, slot: Slot) -> usize {
        let record = self.record(&slot);
        record.map_or(0, |record| record.waiters() as usize)
    }

    /// How many values and offers stand at a slot, wanted or not.
    #[must_use]
    pub fn values_at(&self, slot: &Slot) -> usize {
        self.record(slot)
            .map_or(0, |record| record.items().len() as usize)
    }

    /// True if no value or offer stands at a slot, wanted or not.
    #[must_use]
    pub fn is_clear(&self, slot: &Slot) -> bool {
        !self.record(slot).is_some_and(Record::has_items)
    }

    /// True if the slot's next value would go to a waiter at once.
    #[must_use]
    pub fn is_awaited(&self, slot: &Slot) -> bool {
        let record = self.record(slot);
        record.is_some_and(|record| record.is_awaited() && !record.has_items())
    }

    /// The ordinal of the slot's next value.
    #[must_use]
    pub fn next_ordinal(&self, slot: Slot) -> u32 {
        let record = self.record(&slot);
        record.map_or_else(|| self.limits().first_ordinal, Record::next_ordinal)
    }

    /// Where a value lay that was handed over, as long as nothing there has ended.
    #[must_use]
    pub fn slot_of(&self, from: Origin) -> Option<Slot> {
        let at = self.records.record_of(from)?;
        Some(self.records.at(at).slot())
    }

    /// True if a step that has not ended has a rendezvous point of this key. The ordinals of such a key are counted
    /// here, so its number may not go to another one.
    #[must_use]
    pub fn is_used(&self, key: KeyId) -> bool {
        self.records.is_used(key)
    }

    /// Loads what matching at these slots will read: a burst over a large table then waits for memory about three
    /// times, and not so often for each slot. The number means nothing: the loads are not left out.
    pub fn touch(&self, slots: &[Slot]) -> u32 {
        let mut sum = 0;
        let mut found = [NONE; TOUCHED_AT_ONCE];
        for burst in slots.chunks(TOUCHED_AT_ONCE) {
            sum ^= self.records.warm(burst, &mut found);
            for at in &found[..burst.len()] {
                let record = self.records.get(*at);
                sum ^= record.map_or(0, |record| self.values.warm(record.items()));
            }
        }
        sum
    }

    fn record(&self, slot: &Slot) -> Option<&Record<W>> {
        self.records.get(self.records.find(slot)?)
    }

    /// The waiters at a point, oldest first, with their names.
    fn waiters_of(&self, at: u32) -> impl Iterator<Item = (WaiterId, WaiterRecord<W>)> {
        let record = self.records.at(at);
        let listed = self.waiters.each(record.listed());
        record.seated(at).into_iter().chain(listed)
    }

    /// The waiters at a point, oldest first, each with the ordinal of what it will get: the first gets the front of the
    /// queue, and those beyond it what comes next. It changes when an older one leaves.
    fn expecting(&self, at: u32) -> impl Iterator<Item = (WaiterId, W, u32)> {
        let record = self.records.at(at);
        let here = self.values.each(record.items());
        let to_come = (0..).map(|after| record.next_ordinal().wrapping_add(after));
        let ordinals = here.map(|(_, item)| item.ordinal()).chain(to_come);
        let waiters = self.waiters_of(at).zip(ordinals);
        waiters.map(|((id, waiter), ordinal)| (id, waiter.tag, ordinal))
    }

    /// The record of an offer, and its place and position in the queue.
    fn offer(&self, slot: &Slot, token: u64) -> Option<(u32, u32, usize)> {
        let at = self.records.find(slot)?;
        let queue = self.values.each(self.records.at(at).items());
        let mut found = queue.enumerate();
        let (position, (place, _)) = found.find(|(_, (_, item))| item.token() == Some(token))?;
        Some((at, place, position))
    }

    /// Gives the values at the front of a queue to waiters.
    fn drain(&mut self, at: u32, out: &mut impl FnMut(W, V, Origin)) {
        while self.records.at(at).is_awaited() {
            let Some((value, ordinal, _)) = self.pop_value(at) else {
                return;
            };
            if let Some(waiter) = self.leave(at, None) {
                out(waiter, value, self.records.origin(at, ordinal));
            }
        }
    }

    fn end(
        &mut self,
        now: Nanos,
        step: StepId,
        epitaph: StepPhase,
        out: &mut impl FnMut(Ended<V, W>),
    ) -> bool {
        if let Some(number) = self.steps.find(step) {
            self.end_records(number, &mut |_| true, out);
        }
        self.steps.bury(now, step, epitaph)
    }

    /// Ends the records of a step that are of such keys.
    fn end_records(
        &mut self,
        step: u32,
        is: &mut impl FnMut(KeyId) -> bool,
        out: &mut impl FnMut(Ended<V, W>),
    ) {
        let mut next = self.records.first_of(step);
        while next != NONE {
            let at = next;
            next = self.records.next(at);
            let slot = self.records.at(at).slot();
            if !is(slot.key) {
                continue;
            }
            while let Some(waiter) = self.leave(at, None) {
                if !mutant!("deferred_receives_not_aborted") {
                    out(Ended::Waiter(slot, waiter));
                }
            }
            while let front = self.records.at(at).items().head()
                && let Some(item) = self.values.get(front)
            {
                let (offer, fetching) = (item.token(), item.is_wanted());
                self.unlink(at, front, item.bytes());
                if let Some(token) = offer {
                    out(Ended::Offer {
                        slot,
                        token,
                        fetching,
                    });
                } else if let Some(value) = self.values.take(front) {
                    out(Ended::Value(slot, value));
                }
            }
            self.records.remove(at);
        }
    }
}
