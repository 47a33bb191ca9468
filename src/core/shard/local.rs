//! What this process asks of the shard: sends, receives, cancels, and step ends.
//!
//! It posts only a value that nothing goes before, by the outlet that it is given; whatever else must go to a peer is
//! left in the link's channel.

use std::sync::Arc;

use super::core::Core;
use super::ids::{LinkId, NO_LINK, PeerId};
use super::keys::{KeyLook, Route};
use super::owed::Owed;
use super::posting::Outlet;
use super::transfers::TransferId;
use super::value::{NOT_LENT, NOT_OURS, Value, Waiter};
use crate::channel::{NoPush, Rule};
use crate::ground::{Key, Nanos, Status, StepId, faults};
use crate::mail::Handed;
use crate::mail::call::ShardMessage;
use crate::mail::stops::Stops;
use crate::mail::wait::WaitCell;
use crate::memory::Tensor;
use crate::rendezvous::{self, KeyId, Pass, Refusal, Sent, Slot, WaiterId};
use crate::trace::recorder::What;

impl Core {
    /// A value of this process. What must keep it takes it out; one whose bytes all lie in a frame, or that is refused,
    /// stays, and is moved nowhere. It is posted at once if nothing goes before it and `outlet` has its port. Returns
    /// the link that has something to post, or `NO_LINK`.
    #[inline]
    pub(crate) fn send(
        &mut self,
        way: KeyLook,
        slot: Slot,
        value: &mut Option<Value>,
        outlet: &mut Outlet<'_>,
    ) -> Result<LinkId, Status> {
        if !self.send_queue.is_empty() {
            let bytes = value.as_ref().map_or(0, |value| value.tensor.size());
            self.may_pass(slot, bytes as u64)?;
        }
        self.send_admitted(way, slot, value, outlet)
    }

    /// The way of a key of ours.
    #[inline]
    pub(crate) fn way(&self, id: KeyId) -> Result<KeyLook, Status> {
        let entry = self.keys.at(id).ok_or_else(faults::stale_key)?;
        Ok(entry.way)
    }

    /// As [`Core::send`], for a value that goes before none that waits.
    #[inline]
    pub(crate) fn send_admitted(
        &mut self,
        KeyLook { route, owner, link }: KeyLook,
        slot: Slot,
        sending: &mut Option<Value>,
        outlet: &mut Outlet<'_>,
    ) -> Result<LinkId, Status> {
        let trace = self.stages.take_sending();
        if owner != self.index {
            return self.send_to_owner(owner, slot, sending);
        }
        let Some(value) = sending else {
            return Ok(NO_LINK);
        };
        value.trace = trace;
        match route {
            Route::Local => self.send_here(slot, sending).map(|()| NO_LINK),
            Route::Out { peer }
                if value.tensor.is_device() && !self.may_lend(peer, link, &value.tensor) =>
            {
                Err(faults::device_value(
                    self.key_of(slot).as_ref(),
                    &value.tensor,
                ))
            }
            Route::Out { peer } => self.send_out(peer, link, slot, sending, outlet),
            Route::In { .. } | Route::Foreign => Err(self.foreign(slot, true)),
        }
    }

    /// Whether [`Core::send`] would take a device's tensor, wherever its memory can be read. What goes to another shard
    /// is refused there, and costs its step: so none is sent unasked.
    #[cold]
    pub(super) fn may_go(
        &self,
        KeyLook { route, owner, link }: KeyLook,
        slot: Slot,
        tensor: &Tensor,
    ) -> Result<(), Status> {
        match route {
            Route::Out { peer } if owner != self.index || !self.may_lend(peer, link, tensor) => {
                Err(faults::device_value(self.key_of(slot).as_ref(), tensor))
            }
            _ => Ok(()),
        }
    }

    /// Both ends are here: the table alone.
    #[inline]
    fn send_here(&mut self, slot: Slot, sending: &mut Option<Value>) -> Result<(), Status> {
        let Some(value) = sending.take() else {
            return Ok(());
        };
        if value.trace != 0 {
            let subject = self.subject(slot, 0, value.tensor.size() as u64);
            self.stages.is_here(value.trace, &subject);
        }
        let bytes = value.parked_bytes();
        match self.table.send(self.now, slot, value, bytes) {
            Ok(Sent::Matched {
                waiter,
                value,
                from,
            }) => {
                self.hand_over(waiter, value, from);
                Ok(())
            }
            Ok(Sent::Parked { .. }) => Ok(()),
            Err((refusal, _)) => Err(self.refused(refusal, slot)),
        }
    }

    /// The destination is a peer.
    #[inline]
    fn send_out(
        &mut self,
        peer: PeerId,
        link: LinkId,
        slot: Slot,
        sending: &mut Option<Value>,
        outlet: &mut Outlet<'_>,
    ) -> Result<LinkId, Status> {
        match self.table.pass(self.now, slot) {
            Ok(Pass::Clear(place)) => {
                let (Some(entry), Some(value)) = (self.links.at_mut(link), &mut *sending) else {
                    return self.park(peer, link, slot, place, sending);
                };
                if let Some((port, _)) = entry.qp {
                    value.trace = self.stages.or_begin(value.trace, port);
                }
                if value.trace != 0 {
                    self.stages.matched(value.trace);
                }
                let trace = (value.trace, value.tensor.size() as u64);
                let (point, ordinal) = (Self::point_of(slot), place.ordinal());
                let pushed = entry.channel.push_whole(
                    slot.key,
                    point,
                    ordinal,
                    sending,
                    None,
                    &mut outlet.by(entry.qp, trace.0),
                );
                match pushed {
                    Ok(true) if !entry.is_awaited() && entry.parked.is_empty() => {
                        return Ok(NO_LINK);
                    }
                    Ok(_) => {}
                    Err(NoPush::Long) => {
                        return self.send_offer(peer, link, slot, place, sending, outlet);
                    }
                    Err(_) => return self.park(peer, link, slot, place, sending),
                }
                if trace.0 != 0 {
                    self.pushed(trace, link, slot, ordinal);
                }
                Ok(link)
            }
            Ok(Pass::Behind(place)) => self.park(peer, link, slot, place, sending),
            Ok(Pass::Waiter { waiter, ordinal }) => {
                if let Some(value) = sending.take() {
                    self.answer(waiter, slot, ordinal, value);
                }
                Ok(link)
            }
            Err(refusal) => Err(self.refused(refusal, slot)),
        }
    }

    /// A value that is too long for a frame goes as an offer.
    fn send_offer(
        &mut self,
        peer: PeerId,
        link: LinkId,
        slot: Slot,
        place: rendezvous::QueuePosition,
        sending: &mut Option<Value>,
        outlet: &mut Outlet<'_>,
    ) -> Result<LinkId, Status> {
        let Some(value) = sending.as_mut() else {
            return Ok(NO_LINK);
        };
        if self.may_not_offer(link, slot, value) && !mutant!("offers_unbounded") {
            // Parking it meets the same bound, and gives its ordinal back.
            return self.park(peer, link, slot, place, sending);
        }
        self.make_readable(link, value);
        let trace = (value.trace, value.tensor.size() as u64);
        let Some(entry) = self.links.at_mut(link) else {
            return Ok(NO_LINK);
        };
        let (point, ordinal) = (Self::point_of(slot), place.ordinal());
        let offered = entry.channel.push_offer(
            slot.key,
            point,
            ordinal,
            sending,
            None,
            &mut outlet.by(entry.qp, trace.0),
        );
        let Ok(is_posted) = offered else {
            return self.park(peer, link, slot, place, sending);
        };
        let is_done = is_posted && !entry.is_awaited() && entry.parked.is_empty();
        if trace.0 != 0 {
            self.pushed(trace, link, slot, ordinal);
        }
        self.weigh(link);
        Ok(if is_done { NO_LINK } else { link })
    }

    /// No connection, no credit, or others wait before it: the value parks here. A lease is copied: its owner's place
    /// on offer may be what the peer's own value waits for, behind which this one waits.
    #[inline(never)]
    fn park(
        &mut self,
        peer: PeerId,
        link: LinkId,
        slot: Slot,
        place: rendezvous::QueuePosition,
        sending: &mut Option<Value>,
    ) -> Result<LinkId, Status> {
        let Some(mut value) = sending.take() else {
            return Ok(NO_LINK);
        };
        if link == NO_LINK && !self.settings.rules.on(Rule::ParksUntilConnected) {
            return Ok(NO_LINK);
        }
        if value.tensor.is_leased() {
            self.copy_out(&mut value);
        }
        let bytes = value.parked_bytes();
        if value.trace != 0 {
            self.remember(What::Parked, slot, value.tensor.size() as u64, bytes);
        }
        if let Err((refusal, _)) = self.table.park(self.now, place, value, bytes) {
            return Err(self.refused(refusal, slot));
        }
        self.enqueue_parked(peer, link, slot);
        self.await_peer(peer);
        Ok(link)
    }

    /// A value for that peer is parked at the slot: it leaves by the link, or by one that comes later.
    pub(crate) fn enqueue_parked(&mut self, peer: PeerId, link: LinkId, slot: Slot) {
        match self.links.at_mut(link) {
            Some(entry) => entry.parked.push(slot),
            None => self.peers[peer].parked.push(slot),
        }
    }

    /// Credit came back, or the link came up: parked values go on their way, oldest first.
    pub(crate) fn pump(&mut self, link: LinkId) {
        while let Some(entry) = self.links.at_mut(link) {
            if !entry.channel.takes_push() {
                return;
            }
            let Some(slot) = entry.parked.pop() else {
                return;
            };
            // A value that a request has taken meanwhile leaves its slot here behind.
            let Some((mut value, ordinal, _)) = self.table.take_parked(slot) else {
                continue;
            };
            let point = Self::point_of(slot);
            self.make_readable(link, &mut value);
            let trace = (value.trace, value.tensor.size() as u64);
            if trace.0 != 0 {
                self.stages.matched(trace.0);
            }
            let Some(entry) = self.links.at_mut(link) else {
                return;
            };
            let mut sending = Some(value);
            if let Err(no) = entry
                .channel
                .push(slot.key, point, ordinal, &mut sending, None)
            {
                debug_assert!(no != NoPush::NotUp, "takes_push said there was room");
                self.park_again(link, slot, ordinal, sending);
                return;
            }
            if trace.0 != 0 {
                self.pushed(trace, link, slot, ordinal);
            }
            self.weigh(link);
            self.links.touch(link);
        }
    }

    /// Makes a value one that the link's peer can read in place: memory that is not ours to show (another peer's, or
    /// from outside the engine) is copied into the arena, once. With no room there it stays what it is, and goes by a
    /// landing. What the peer itself has lent us goes back as it is (`leases.rs`).
    #[inline]
    pub(super) fn make_readable(&mut self, link: LinkId, value: &mut Value) {
        // It may have been parked since it was last to go, and its lease may be of an epoch that has ended.
        value.lent = match value.tensor.house() {
            Some(house) if house != self.pool.house() && !mutant!("arenas_of_any_engine") => {
                NOT_OURS
            }
            _ => NOT_LENT,
        };
        if let Some(entry) = self.links.at(link)
            && entry.channel.must_copy(value)
        {
            match self.lent_by(link, &value.tensor) {
                Some(offer) => value.lent = offer.packed(),
                None => self.copy_out(value),
            }
        }
    }

    /// Copies a value's bytes into our arena, if there is room.
    #[cold]
    fn copy_out(&mut self, value: &mut Value) {
        let meta = value.tensor.meta();
        if let Ok(bytes) = value.tensor.host()
            && let Ok(tensor) = self.pool.tensor_from(meta, bytes)
        {
            let why = if value.tensor.is_leased() {
                &mut self.stats.copied_leased
            } else {
                &mut self.stats.copied_foreign
            };
            *why += 1;
            // A leased original lets its sender's memory go here.
            value.tensor = tensor;
            value.lent = NOT_LENT;
        }
    }

    /// Puts back what could not be pushed after all, before all others.
    pub(super) fn park_again(
        &mut self,
        link: LinkId,
        slot: Slot,
        ordinal: u32,
        value: Option<Value>,
    ) {
        let Some(value) = value else { return };
        let bytes = value.parked_bytes();
        if self
            .table
            .put_back(self.now, slot, value, ordinal, bytes)
            .is_ok()
            && let Some(entry) = self.links.at_mut(link)
        {
            entry.parked.put_back(slot);
        }
    }

    /// The key belongs to another shard of this process.
    fn send_to_owner(
        &mut self,
        owner: u16,
        slot: Slot,
        sending: &mut Option<Value>,
    ) -> Result<LinkId, Status> {
        if self.table.has_ended(slot.step) {
            return Err(self.refused(Refusal::Stale, slot));
        }
        let limit = self.settings.shard_messages;
        if self.neighbour_queues.is_full(owner, limit) {
            return Err(faults::neighbour_behind(owner, limit));
        }
        let key = self.message_key(slot.key).ok_or_else(faults::stale_key)?;
        let Some(Value {
            tensor, is_dead, ..
        }) = sending.take()
        else {
            return Ok(NO_LINK);
        };
        self.neighbour_queues.push(
            owner,
            ShardMessage::Send {
                key,
                step: slot.step,
                at: slot.at,
                tensor,
                is_dead,
            },
        );
        Ok(NO_LINK)
    }

    /// A receive of this process. The waiter hears exactly once.
    #[inline(always)]
    pub(crate) fn recv(
        &mut self,
        key: Option<&Key>,
        way: KeyLook,
        slot: Slot,
        waiter: Waiter,
        deadline: Nanos,
    ) -> Option<WaiterId> {
        if let Route::In { peer } = way.route {
            let wanted = key.map(Key::source_incarnation);
            if let Some(status) = wanted.and_then(|life| self.incarnation_fault(life, peer)) {
                self.complete(waiter, Err(status));
                return None;
            }
        } else if way.route != Route::Local {
            let status = self.foreign(slot, false);
            self.complete(waiter, Err(status));
            return None;
        }
        match self.table.wait(self.now, &slot, waiter, deadline) {
            Some((id, ordinal)) => {
                self.nothing_is_here(way, slot, ordinal, deadline);
                Some(id)
            }
            None => self.recv_slowly(way, slot, waiter, deadline),
        }
    }

    /// As [`Core::recv`], for a receive that finds something, or has a deadline.
    #[inline(never)]
    fn recv_slowly(
        &mut self,
        way: KeyLook,
        slot: Slot,
        waiter: Waiter,
        deadline: Nanos,
    ) -> Option<WaiterId> {
        match self.table.recv(self.now, slot, waiter, deadline) {
            Ok(rendezvous::ReceiveOutcome::Ready { value, from }) => {
                self.hand_over(waiter, value, from);
                None
            }
            Ok(rendezvous::ReceiveOutcome::Waiting { id, ordinal }) => {
                // It can be missed, and then its beginning is asked for.
                if matches!(waiter, Waiter::Wait(_) | Waiter::Leader) && deadline != Nanos::NEVER {
                    let patience = deadline.0.saturating_sub(self.now.0);
                    self.remember(What::Waits, slot, 0, patience);
                }
                self.next_timer = self.next_timer.min(deadline);
                self.nothing_is_here(way, slot, ordinal, deadline);
                Some(id)
            }
            Ok(rendezvous::ReceiveOutcome::Fetch { id, token }) => {
                self.next_timer = self.next_timer.min(deadline);
                self.fetch(TransferId::from_token(token));
                Some(id)
            }
            Ok(rendezvous::ReceiveOutcome::Behind { id }) => {
                self.next_timer = self.next_timer.min(deadline);
                self.ask_last(way.link, slot);
                Some(id)
            }
            Err(refusal) => {
                let status = self.refused(refusal, slot);
                self.complete(waiter, Err(status));
                None
            }
        }
    }

    /// A receive waits for a value that is not here: who may have it is told.
    #[inline(always)]
    fn nothing_is_here(&mut self, way: KeyLook, slot: Slot, ordinal: u32, deadline: Nanos) {
        if !self.send_queue.is_empty() {
            self.wanted(slot);
        }
        if let Route::In { peer } = way.route {
            self.want(peer, way.link, slot, ordinal, deadline);
        }
    }

    /// An application thread waits; it hears of the outcome in `cell`.
    pub(crate) fn recv_outside(
        &mut self,
        key: &Key,
        step: StepId,
        deadline: Nanos,
        cell: Owed<WaitCell<Handed>>,
        stops: Option<Stops>,
    ) {
        let (way, slot) = match self.look_up(key, step) {
            Ok(found) => found,
            Err(status) => return drop(cell.complete(Err(status))),
        };
        let expected = key.source_incarnation();
        let ticket = match self.waits.add_outside(cell, stops, expected) {
            Ok(ticket) => ticket,
            Err(cell) => {
                let status = faults::waiters_exhausted(self.settings.waiters);
                return drop(cell.complete(Err(status)));
            }
        };
        let placed = self.recv(Some(key), way, slot, Waiter::Wait(ticket), deadline);
        if let Some(placed) = placed {
            self.waits.set_place(ticket, placed);
        }
    }

    /// The thread that turns the shard waits, and [`Waits::take_led`](super::waits::Waits::take_led) gives it the
    /// outcome. Where the table has it, unless the outcome is there.
    #[inline]
    pub(crate) fn recv_of_leader(
        &mut self,
        key: &Key,
        step: StepId,
        deadline: Nanos,
    ) -> Option<WaiterId> {
        match self.look_up(key, step) {
            Ok((way, slot)) => {
                self.waits.lead(key.source_incarnation());
                self.recv(Some(key), way, slot, Waiter::Leader, deadline)
            }
            Err(status) => {
                self.waits.tell_leader(0, Err(status));
                None
            }
        }
    }

    /// That thread leaves before it has its outcome: it hears of it in `cell`.
    #[cold]
    pub(crate) fn leader_leaves(&mut self, at: WaiterId, cell: Arc<WaitCell<Handed>>) {
        let expected = self.waits.led_expects();
        match self.waits.add_outside(Owed::new(cell), None, expected) {
            Ok(ticket) => {
                self.table.rename(at, Waiter::Wait(ticket));
                self.waits.set_place(ticket, at);
            }
            Err(cell) => {
                self.unlink(at);
                cell.complete(Err(faults::waiters_exhausted(self.settings.waiters)));
            }
        }
    }

    /// A key of ours, given a number if it has none, and the slot in that step.
    #[inline]
    fn look_up(&mut self, key: &Key, step: StepId) -> Result<(KeyLook, Slot), Status> {
        let id = self.intern(key)?;
        let slot = Slot {
            step,
            key: id,
            at: key.frame_iter(),
        };
        Ok((self.way(id)?, slot))
    }

    /// An application thread has given its receive up.
    pub(crate) fn cancel_cell(&mut self, gone: &Arc<WaitCell<Handed>>) {
        if let Some(id) = self.waits.remove_cell(gone) {
            self.unlink(id);
            // A waiter that is gone is not told; one that was only told to stop is.
            gone.complete(Err(faults::cancelled()));
        }
    }

    /// A waiter is taken out of the table, and what was asked of a peer for it is taken back.
    pub(crate) fn unlink(&mut self, id: WaiterId) {
        if let Some((slot, _)) = self.table.cancel(id) {
            self.settle_demands(slot);
        }
    }

    #[cold]
    pub(crate) fn refused(&self, refusal: Refusal, slot: Slot) -> Status {
        self.table.refusal_status(refusal, slot)
    }

    #[cold]
    fn foreign(&self, slot: Slot, is_source: bool) -> Status {
        self.key_of(slot).map_or_else(faults::stale_key, |key| {
            if is_source {
                faults::foreign_source(&key, &self.task)
            } else {
                faults::foreign_destination(&key, &self.task)
            }
        })
    }
}
