//! Sending at once: the usual value goes a way of its own. For a peer, that is one which is short and which nothing
//! goes before; for this shard, one whose receiver waits.
//!
//! It changes nothing unless the value leaves. What does not leave so goes by `local.rs`, which knows every case: here
//! stands what most values need of that, in one look at each part.
//!
//! When it was made it saved 194 of the 1699 instructions of a hop of 4 bytes, and 116 of the 2315 of one of 64
//! (`of_a_ping_pong` of `bench/hop_cost.rs`, beside a build in which no way is clear); of a send and a receive within a
//! shard, with an event that is moved once less, 197 of 791 (`within_a_shard`). `channel/tests/pair.rs` sends by both
//! ways, `oracle_table` asks both, and every simulated world goes by both: what a port refuses goes by the other.

use super::Shard;
use super::core::{Core, put};
use super::keys::{KeyLook, Route};
use super::posting::Outlet;
use super::value::{Arriving, Ours, Value, Waiter};
use crate::channel::{Channel, subject_of};
use crate::fabric::QpId;
use crate::ground::Status;
use crate::ground::limits::BODY_MAX;
use crate::mail::Handed;
use crate::memory::Tensor;
use crate::rendezvous::{NextOrdinal, Slot};
use crate::wire::INLINE_BODY_MAX;
use crate::wire::message::Push;

/// A way to a peer that nothing is before.
struct ClearWay<'a> {
    channel: &'a mut Channel<Value>,
    qp: (usize, QpId),
    next: NextOrdinal<'a>,
}

impl Shard {
    /// As [`Shard::send`], by [`Core::send_short`].
    #[inline(always)]
    pub(super) fn send_short(
        &mut self,
        way: KeyLook,
        slot: &Slot,
        tensor: &Tensor,
        is_dead: bool,
    ) -> bool {
        if !self.may_send_now() {
            return false;
        }
        let mut outlet = Outlet::new(&mut self.ports);
        let has_left = (self.core).send_short(way, slot, tensor, is_dead, &mut outlet);
        if has_left {
            self.has_posted |= outlet.must_flush();
            self.core.stages.count();
        }
        has_left
    }

    /// As [`Shard::send`], by [`Core::send_row`].
    #[inline]
    pub(super) fn send_row(
        &mut self,
        way: KeyLook,
        slot: &Slot,
        sending: &mut Option<Value>,
    ) -> bool {
        if !self.may_send_now() {
            return false;
        }
        let mut outlet = Outlet::new(&mut self.ports);
        let has_left = self.core.send_row(way, slot, sending, &mut outlet);
        if has_left {
            self.has_posted |= outlet.must_flush();
            self.core.stages.count();
        }
        has_left
    }

    /// As [`Shard::send`], by [`Core::send_here_at_once`] if it can.
    #[inline(never)]
    pub(super) fn send_here(
        &mut self,
        way: KeyLook,
        slot: &Slot,
        tensor: Tensor,
        is_dead: bool,
    ) -> Result<(), Status> {
        let left = if self.may_send_now() {
            (self.core).send_here_at_once(way, slot, tensor, is_dead)
        } else {
            Some(Value::local(tensor, is_dead))
        };
        match left {
            None => {
                self.core.stages.count();
                Ok(())
            }
            Some(value) => self.send(way, *slot, &mut Some(value)),
        }
    }

    /// False if leases are to be returned before the running task sends, or what it sends next is timed.
    #[inline(always)]
    fn may_send_now(&self) -> bool {
        self.core.leases.latest() == self.let_go && !self.core.stages.is_next()
    }
}

impl Core {
    /// Sends a value whose bytes lie in its handle and in its frame, so that it is kept nowhere. False, and nothing
    /// happens, for any other.
    #[inline(always)]
    pub(super) fn send_short(
        &mut self,
        way: KeyLook,
        slot: &Slot,
        tensor: &Tensor,
        is_dead: bool,
        outlet: &mut Outlet<'_>,
    ) -> bool {
        if !tensor.is_inline() || tensor.size() > INLINE_BODY_MAX / 2 {
            return false;
        }
        let (Ok(data), Some(clear)) = (tensor.host(), self.clear_way(way, slot)) else {
            return false;
        };
        let subject = subject_of(slot.key, Self::point_of(*slot), clear.next.get());
        let push = Push::usual(subject, tensor.meta(), is_dead, data);
        let Some(frame) = clear.channel.frame_now(slot.key, &push) else {
            return false;
        };
        let is_posted = outlet.post_short(clear.qp, &frame);
        if is_posted {
            clear.channel.keep_posted(slot.key, &frame);
            if !mutant!("short_values_share_an_ordinal") {
                clear.next.give();
            }
        }
        is_posted
    }

    /// Sends a row whose bytes go beside its frame, and takes it, to keep it until the peer has acknowledged it. False,
    /// and nothing happens, for any other.
    #[inline(never)]
    pub(super) fn send_row(
        &mut self,
        way: KeyLook,
        slot: &Slot,
        sending: &mut Option<Value>,
        outlet: &mut Outlet<'_>,
    ) -> bool {
        let posted = (sending.as_ref())
            .filter(|value| value.tensor.size() <= BODY_MAX)
            .and_then(|value| self.post_row(way, slot, &value.tensor, value.is_dead, outlet));
        let Some(channel) = posted else {
            return false;
        };
        if let Some(value) = sending.take() {
            channel.keep_value(value);
        }
        true
    }

    /// Brings a value to a receiver of this shard that waits for it: it was never in the table. Any other comes back:
    /// then nothing happened.
    #[inline(always)]
    pub(super) fn send_here_at_once(
        &mut self,
        KeyLook { route, owner, .. }: KeyLook,
        slot: &Slot,
        tensor: Tensor,
        is_dead: bool,
    ) -> Option<Value> {
        if matches!(route, Route::Local)
            && owner == self.index
            && self.send_queue.is_empty()
            && !self.stages.is_sending()
            && let Some((waiter, from)) = self.table.claim_next(slot)
        {
            self.stats.delivered += 1;
            // Not by `bring_value`: the tensor would be moved once more before it is known where it goes.
            match waiter {
                Waiter::Task { task, token } => {
                    put(self.place_for(task, from), token, Ours(tensor, is_dead));
                }
                waiter => {
                    let received = Ours(tensor, is_dead).received();
                    self.bring_elsewhere(waiter, Handed { received, from });
                }
            }
            return None;
        }
        Some(Value::local(tensor, is_dead))
    }

    #[inline(always)]
    fn post_row(
        &mut self,
        way: KeyLook,
        slot: &Slot,
        tensor: &Tensor,
        is_dead: bool,
        outlet: &mut Outlet<'_>,
    ) -> Option<&mut Channel<Value>> {
        let meta = tensor.meta();
        let (dim, data) = (meta.shape.dim(0)?, tensor.host().ok()?);
        let clear = self.clear_way(way, slot)?;
        let subject = subject_of(slot.key, Self::point_of(*slot), clear.next.get());
        let push = Push::usual(subject, meta, is_dead, data);
        let frame = clear.channel.frame_now(slot.key, &push)?;
        if frame.body_is_inline() || !outlet.post(clear.qp, &frame, [&dim.to_le_bytes(), data]) {
            return None;
        }
        clear.channel.keep_posted(slot.key, &frame);
        clear.next.give();
        Some(clear.channel)
    }

    /// The way of a value, if nothing is before it, and it is not timed.
    #[inline(always)]
    fn clear_way(
        &mut self,
        KeyLook { route, owner, link }: KeyLook,
        slot: &Slot,
    ) -> Option<ClearWay<'_>> {
        if !matches!(route, Route::Out { .. }) {
            return None;
        }
        let entry = self.links.at_mut(link)?;
        let qp = entry.qp?;
        if owner != self.index
            || !self.send_queue.is_empty()
            || entry.is_awaited()
            || !entry.parked.is_empty()
            || self.stages.is_timing(qp.0)
        {
            return None;
        }
        Some(ClearWay {
            channel: &mut entry.channel,
            qp,
            next: self.table.clear_way(slot)?,
        })
    }
}
