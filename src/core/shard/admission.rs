//! Admission: in what order sends that wait for room are admitted, and which sends may not overtake them.
//!
//! FIFO, with two exceptions: a send blocked by a bound of its step holds up that step only; and a value that a
//! receiver already waits for, or that leaves for its peer at once, needs no room, so it goes when it is the first of
//! its slot. Nothing here is polled: a look is due when there is room for the oldest of a step, when a receiver began
//! to wait at a slot, or when a peer gave credit back.

use std::sync::Arc;

use super::Shard;
use super::core::Core;
use super::ids::{LinkId, NO_LINK};
use super::keys::Route;
use super::links::Link;
use super::owed::Owed;
use super::posting::Outlet;
use super::send_queue::BlockedSend;
use super::value::Value;
use crate::ground::{Key, Status, StepId, catalogue, faults, limits};
use crate::mail::mailbox::{Cancel, bytes_of};
use crate::mail::pending_send::{PendingSend, SendCell};
use crate::memory::Tensor;
use crate::rendezvous::{Refusal, Slot};

/// Pending sends taken out of the overflow queue in one turn.
const OVERFLOW_PER_TURN: usize = 32;

/// What became of a send that may wait.
enum Tried {
    /// It went, by a link that has something to post now.
    Sent(LinkId),
    /// It must wait for this bound, until there is room for so many bytes.
    Waits(Slot, u64, Refusal),
}

/// True for the statuses of the bounds that one waits for.
fn is_for_room(status: &Status) -> bool {
    [
        catalogue::PARKED_BYTES,
        catalogue::PARKED_BYTES_OF_STEP,
        catalogue::PARKED_VALUES,
    ]
    .contains(&status.reason())
}

impl Core {
    /// Counts what a link has put on offer, or need not keep any more.
    #[inline]
    pub(crate) fn weigh(&mut self, link: LinkId) {
        if let Some(entry) = self.links.at_mut(link)
            && entry.channel.has_weighed()
        {
            let table = &mut self.table;
            entry
                .channel
                .take_weighed(|step, change| table.hold(step, change));
        }
    }

    /// True if the value would be kept here, on offer, and there is no room for that. Of a lease that its peer cannot
    /// read, a copy would be.
    #[inline]
    pub(crate) fn may_not_offer(&self, link: LinkId, slot: Slot, value: &Value) -> bool {
        let is_copied = || {
            let entry = self.links.at(link);
            entry.is_some_and(|entry| entry.channel.must_copy(value))
                && self.lent_by(link, &value.tensor).is_none()
        };
        let bytes = match value.tensor.is_leased() && is_copied() {
            true => bytes_of(&value.tensor),
            false => value.parked_bytes(),
        };
        self.table.room_to_offer(slot.step, bytes).is_err()
    }

    /// Whether a value that does not wait may go while others do: not before those of its slot, and not into room that
    /// others wait for.
    #[cold]
    pub(crate) fn may_pass(&self, slot: Slot, len: u64) -> Result<(), Status> {
        if self
            .keys
            .at(slot.key)
            .is_some_and(|entry| entry.way.owner != self.index)
        {
            // It is its owner's to judge.
            return Ok(());
        }
        if self.send_queue.has_slot(&slot) {
            return Err(faults::send_behind(self.key_of(slot).as_ref(), slot.step));
        }
        if self.needs_no_room(&slot, len) {
            return Ok(());
        }
        self.room_behind(slot.step)
            .map_err(|refusal| self.refused(refusal, slot))
    }

    /// The bound that other sends wait for already, behind which a value of this step would have to stand.
    fn room_behind(&self, step: StepId) -> Result<(), Refusal> {
        match self.send_queue.bound_of(step) {
            Some(refusal) => Err(refusal),
            None if self.send_queue.is_shut() => Err(Refusal::ParkedBytes),
            None => Ok(()),
        }
    }

    /// True if the slot's next value would be handed over, or leave for its peer, at once.
    fn needs_no_room(&self, slot: &Slot, len: u64) -> bool {
        if self.table.is_awaited(slot) {
            return true;
        }
        let Some(entry) = self.keys.at(slot.key) else {
            return false;
        };
        let link = self.links.at(entry.way.link);
        matches!(entry.way.route, Route::Out { .. })
            && self.is_short(len)
            && self.table.is_clear(slot)
            && link.is_some_and(Link::is_open)
    }

    /// True if the slot's next value is a lease of its peer's own bytes, which would have them back at once.
    fn goes_home(&self, slot: &Slot, tensor: &Tensor) -> bool {
        let link = self.keys.at(slot.key).map(|entry| entry.way.link);
        self.table.is_clear(slot) && link.is_some_and(|link| self.lent_by(link, tensor).is_some())
    }

    /// True for a value that goes whole, in a frame.
    const fn is_short(&self, len: u64) -> bool {
        len + limits::LEAD_MAX as u64 <= self.settings.inline_max as u64
    }

    /// A value that leaves for its peer at once when there is credit need not wait for room: its link is watched.
    fn watch_credit(&mut self, slot: &Slot, len: u64) {
        let Some(entry) = self.keys.at(slot.key) else {
            return;
        };
        if matches!(entry.way.route, Route::Out { .. })
            && self.is_short(len)
            && self.table.is_clear(slot)
            && let Some(link) = self.links.at_mut(entry.way.link)
        {
            link.set_awaited(true);
        }
    }

    /// A value of an application thread that waits for room: goes, or stays here.
    pub(crate) fn take_pending_send(&mut self, pending_send: PendingSend) -> LinkId {
        let outcome = &pending_send.cell.outcome;
        if outcome.is_abandoned() {
            return NO_LINK;
        }
        let failed = if pending_send.cell.is_cancelled() {
            Some(faults::send_cancelled())
        } else if pending_send.deadline <= self.now {
            Some(faults::send_deadline(&pending_send.key, pending_send.step))
        } else {
            None
        };
        let status = match failed {
            Some(status) => status,
            None => match self.try_pending_send(&pending_send) {
                Ok(Tried::Sent(link)) => {
                    outcome.complete(Ok(()));
                    return link;
                }
                Ok(Tried::Waits(slot, bytes, refusal)) => {
                    let PendingSend { cell, permit, .. } = pending_send;
                    let is_dead = pending_send.is_dead;
                    let blocked = BlockedSend::new(slot, is_dead, bytes, cell, refusal, self.now);
                    self.block(blocked.until(pending_send.deadline, permit));
                    return NO_LINK;
                }
                Err(status) => status,
            },
        };
        outcome.complete(Err(status));
        NO_LINK
    }

    /// Hands a send over if it may go: the link that has something to post. Otherwise the bound it has to wait for.
    fn try_pending_send(&mut self, pending_send: &PendingSend) -> Result<Tried, Status> {
        let wanted = pending_send.key.source_incarnation();
        if !wanted.is_current() && wanted != self.incarnation {
            return Err(faults::own_incarnation(wanted, self.incarnation));
        }
        let key = self.intern(&pending_send.key)?;
        let slot = Slot {
            step: pending_send.step,
            key,
            at: pending_send.key.frame_iter(),
        };
        self.try_cell(slot, pending_send.is_dead, &pending_send.cell)
    }

    /// True for what is longer than a bound itself.
    const fn never_fits(&self, bytes: u64) -> bool {
        let limits = self.table.limits();
        bytes > limits.parked_bytes || bytes > limits.parked_bytes_per_step
    }

    /// What a value occupies if it is kept here: of a lease that is to go to a peer, a copy is.
    fn keeps(&self, slot: &Slot, tensor: &Tensor) -> u64 {
        let way = self.keys.at(slot.key).map(|entry| entry.way);
        match way.map(|way| way.route) {
            Some(Route::Out { .. }) => bytes_of(tensor),
            _ if tensor.is_leased() => 0,
            _ => bytes_of(tensor),
        }
    }

    fn try_cell(&mut self, slot: Slot, is_dead: bool, cell: &SendCell) -> Result<Tried, Status> {
        // A step that ended takes nothing, and one with a waiter is alive.
        self.table
            .open_step(self.now, slot.step)
            .map_err(|refusal| self.refused(refusal, slot))?;
        let Some(tensor) = cell.take_tensor() else {
            // Its sender took it back this moment, and hears nothing any more.
            return Ok(Tried::Sent(NO_LINK));
        };
        let bytes = self.keeps(&slot, &tensor);
        let never_fits = self.never_fits(bytes);
        let refusal = if self.send_queue.has_slot(&slot) {
            self.send_queue.bound_of(slot.step)
        } else if self.needs_no_room(&slot, bytes) || self.goes_home(&slot, &tensor) || never_fits {
            // What is longer than the bound goes at once or is refused: there would be no end to its wait.
            None
        } else {
            let free = self.room_behind(slot.step);
            free.and_then(|()| self.table.room(slot.step, bytes)).err()
        };
        if let Some(refusal) = refusal {
            cell.put_back(tensor);
            return Ok(Tried::Waits(slot, bytes, refusal));
        }
        let way = self.way(slot.key);
        let mut value = Some(Value::local(tensor.clone(), is_dead));
        match way.and_then(|way| self.send_admitted(way, slot, &mut value, &mut Outlet::default()))
        {
            Ok(link) => Ok(Tried::Sent(link)),
            Err(status) => {
                cell.put_back(tensor);
                if is_for_room(&status) && !never_fits {
                    let refusal = self.table.room(slot.step, bytes).err();
                    let refusal = refusal.unwrap_or(Refusal::ParkedBytes);
                    return Ok(Tried::Waits(slot, bytes, refusal));
                }
                Err(status)
            }
        }
    }

    /// A value whose sender was told that it was taken, when there may be no room for it: it waits if there is none.
    #[cold]
    pub(crate) fn send_unheard(&mut self, slot: Slot, tensor: Tensor, is_dead: bool) -> LinkId {
        let cell = Arc::new(SendCell::new(tensor, None));
        let status = match self.try_cell(slot, is_dead, &cell) {
            Ok(Tried::Sent(link)) => return link,
            Ok(Tried::Waits(slot, bytes, refusal)) => {
                if self.send_queue.len() < limits::WAITING_SENDS as usize {
                    self.block(BlockedSend::new(
                        slot, is_dead, bytes, cell, refusal, self.now,
                    ));
                    return NO_LINK;
                }
                self.refused(refusal, slot)
            }
            Err(status) => status,
        };
        self.lost(slot.step, &status);
        NO_LINK
    }

    /// A send waits here for room, and for its destination too.
    fn block(&mut self, blocked: BlockedSend) {
        let slot = blocked.slot;
        self.watch_credit(&slot, blocked.bytes);
        if let Some(Route::Out { peer }) = self.keys.at(slot.key).map(|entry| entry.way.route) {
            self.await_peer(peer);
        }
        self.next_timer = self.next_timer.min(blocked.deadline);
        if self.send_queue.enter(blocked) {
            self.table.watch_room(slot.step);
        }
    }

    /// True if a look at waiting sends is due. It costs what changed: steps in which values left room, and the one send
    /// that waits first for the shard's.
    #[cold]
    fn is_ripe(&mut self) -> bool {
        let Self {
            table, send_queue, ..
        } = self;
        while let Some(step) = table.next_eased() {
            if let Some(head) = send_queue.head_of(step) {
                send_queue.make_due(head);
            }
        }
        if let Some((turn, blocked)) = send_queue.first_shut()
            && matches!(
                table.room(blocked.slot.step, blocked.bytes),
                Ok(()) | Err(Refusal::ParkedBytesOfStep)
            )
        {
            send_queue.make_due(turn);
        }
        send_queue.is_stirred || send_queue.has_due() || !send_queue.wanted.is_empty()
    }

    /// A receiver began to wait at a slot.
    #[cold]
    pub(crate) fn wanted(&mut self, slot: Slot) {
        if self.send_queue.has_slot(&slot) {
            self.send_queue.wanted.push(slot);
        }
    }

    /// A link takes more than it did, and a send waits for that.
    #[cold]
    pub(crate) fn stir(&mut self, link: LinkId) {
        if let Some(entry) = self.links.at_mut(link)
            && entry.is_open()
        {
            entry.set_awaited(false);
            self.send_queue.is_stirred = !self.send_queue.is_empty();
        }
    }

    /// Ends the wait of all in a step.
    pub(crate) fn end_blocked_sends(&mut self, step: StepId, status: &Status) {
        if !self.send_queue.is_empty() {
            self.send_queue.fail_step(step, status);
        }
    }

    /// An application thread waits no more, or wants to hear that it does not.
    pub(crate) fn cancel(&mut self, cancel: Cancel) {
        match cancel {
            Cancel::Recv(cell) => self.cancel_cell(&cell),
            Cancel::Unread(unread) => self.unread(unread),
            Cancel::Send(cell) => {
                // The seat is of this cell for as long as it stands there.
                let turn = cell.outcome.seat().filter(|&turn| {
                    let blocked = self.send_queue.at(turn);
                    blocked.is_some_and(|blocked| Arc::ptr_eq(&blocked.cell, &cell))
                });
                if let Some(blocked) = turn.and_then(|turn| self.send_queue.leave(turn))
                    && blocked.cell.outcome.is_stopped()
                {
                    blocked.fail(&faults::send_cancelled());
                }
            }
        }
    }

    /// A value was refused, and no sender waits for the outcome: its sender was told that it was taken. So its step
    /// cannot be complete any more; if the step has ended here, the layers above are told, as of one that was not
    /// claimed in time.
    #[cold]
    pub(crate) fn lost(&mut self, step: StepId, status: &Status) {
        self.stats.dropped += 1;
        match self.table.status_of(step) {
            None => self.fail_step(step, status),
            Some(ended) => {
                self.observer.step_ended(step, &ended);
                if ended.reason() == catalogue::STEP_UNCLAIMED {
                    self.tell_neighbours(step, &ended);
                }
            }
        }
    }
}

impl Shard {
    /// A value of an application thread that does not wait to hear whether it was taken.
    #[cold]
    pub(super) fn take_unheard(&mut self, key: &Key, step: StepId, tensor: Tensor, is_dead: bool) {
        let link = match self.core.intern(key) {
            Ok(id) => {
                let at = key.frame_iter();
                let slot = Slot { step, key: id, at };
                self.core.send_unheard(slot, tensor, is_dead)
            }
            Err(status) => {
                self.core.lost(step, &status);
                NO_LINK
            }
        };
        self.sent_along(link);
    }

    /// Takes what stands in the overflow, once all commands are done that were there before it.
    #[cold]
    pub(super) fn take_lane(&mut self, done: usize) -> usize {
        let before = match self.before_lane {
            Some(before) => before.saturating_sub(done),
            // Sends in the overflow came after whatever is among the commands now.
            None => self.mailbox.commands(),
        };
        self.before_lane = Some(before);
        let mut taken = 0;
        while before == 0 && taken < OVERFLOW_PER_TURN {
            let Some(pending_send) = self.mailbox.next_in_overflow() else {
                break;
            };
            self.take_pending_send(pending_send);
            self.mailbox.taken(0, self.core.is_pressed());
            self.mailbox.left_overflow();
            taken += 1;
        }
        if self.mailbox.pressure().has_overflow() {
            self.mailbox.more_commands();
        } else {
            self.before_lane = None;
        }
        taken
    }

    pub(super) fn take_pending_send(&mut self, pending_send: PendingSend) {
        // It came as the mailbox closed; the shard turns a while longer, to tell its peers.
        if let Some(status) = &self.failed {
            pending_send.cell.outcome.complete(Err(status.clone()));
            return;
        }
        let _in_hand = Owed::new(Arc::clone(&pending_send.cell));
        let link = self.core.take_pending_send(pending_send);
        self.sent_along(link);
    }

    fn sent_along(&mut self, link: LinkId) {
        self.has_posted = true;
        if link != NO_LINK {
            self.transmit_link(link);
        }
    }

    /// Admits sends that wait for room, as far as there is some.
    #[cold]
    pub(super) fn admit(&mut self) -> usize {
        if !self.core.is_ripe() {
            return 0;
        }
        let mut done = 0;
        for slot in std::mem::take(&mut self.core.send_queue.wanted) {
            if let Some(turn) = self.core.send_queue.first_at(&slot)
                && self.core.table.is_awaited(&slot)
            {
                done += usize::from(self.let_go_on(turn).is_ok());
            }
        }
        if std::mem::take(&mut self.core.send_queue.is_stirred) {
            self.core.send_queue.make_all_due();
        }
        // Oldest first: what one leaves due came after it.
        while let Some((turn, blocked)) = self.core.send_queue.next_due() {
            let (slot, bytes) = (blocked.slot, blocked.bytes);
            let queue = &self.core.send_queue;
            let is_first = queue.first_at(&slot) == Some(turn);
            let is_head = queue.head_of(slot.step) == Some(turn);
            let goes = if is_first
                && (self.core.needs_no_room(&slot, bytes) || self.core.never_fits(bytes))
            {
                // What never fits is refused: there would be no end to its wait.
                Ok(())
            } else if !is_head || queue.is_shut_before(turn) {
                if is_first {
                    self.core.watch_credit(&slot, bytes);
                }
                if is_head {
                    self.core.send_queue.stand_behind(turn);
                }
                continue;
            } else {
                self.core.table.room(slot.step, bytes)
            };
            match goes.and_then(|()| self.let_go_on(turn)) {
                Ok(()) => done += 1,
                Err(refusal) => {
                    self.core.watch_credit(&slot, bytes);
                    if self.core.send_queue.refuse(turn, refusal) {
                        self.core.table.watch_room(slot.step);
                    }
                }
            }
        }
        // Room that was given may not press any more, and room that was taken may.
        self.mailbox.taken(0, self.core.is_pressed());
        done
    }

    /// Admits one waiting send. If it meets a bound after all it stays.
    fn let_go_on(&mut self, turn: u64) -> Result<(), Refusal> {
        let Some(blocked) = self.core.send_queue.at(turn) else {
            return Ok(());
        };
        let (slot, is_dead, bytes) = (blocked.slot, blocked.is_dead, blocked.bytes);
        let cell = Arc::clone(&blocked.cell);
        if cell.is_cancelled() {
            // Its cancellation is still on its way, or its future is not polled.
            if let Some(blocked) = self.core.send_queue.leave(turn) {
                blocked.fail(&faults::send_cancelled());
            }
            return Ok(());
        }
        let Some(tensor) = cell.take_tensor() else {
            // Its sender has taken it back.
            self.core.send_queue.leave(turn);
            return Ok(());
        };
        let way = self.core.way(slot.key);
        let mut value = Some(Value::local(tensor.clone(), is_dead));
        let sent = way.and_then(|way| {
            self.core
                .send_admitted(way, slot, &mut value, &mut Outlet::default())
        });
        match sent {
            Ok(link) => {
                self.sent_along(link);
                cell.outcome.complete(Ok(()));
                self.core.send_queue.leave(turn);
                Ok(())
            }
            Err(status) => {
                cell.put_back(tensor);
                if is_for_room(&status) && !self.core.never_fits(bytes) {
                    let refusal = self.core.table.room(slot.step, bytes).err();
                    return Err(refusal.unwrap_or(Refusal::ParkedBytes));
                }
                if let Some(blocked) = self.core.send_queue.leave(turn) {
                    let is_heard = blocked.is_heard();
                    blocked.fail(&status);
                    if !is_heard {
                        self.core.lost(slot.step, &status);
                    }
                }
                Ok(())
            }
        }
    }
}
