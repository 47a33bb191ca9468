//! Leases: tensors that lie in a peer's memory, and their way back.
//!
//! It maps nothing: segments come mapped from above, and a claim that does not fit one is no lease.
//!
//! # A lease that is sent back
//!
//! A leased tensor that is sent to the peer whose memory it is, by the link it came by and in the same epoch, goes back
//! without a copy: its offer names the peer's own.
//!
//! ```text
//!   owner                                              reader
//!   on offer as o   ── Offer o, region ──────────────▶ leased
//!                                                      sent back: on offer as p, and that value keeps the lease
//!   incoming        ◀────────────── Offer p, lent o ──
//!   taken: a handle of the owner's own to the bytes
//!                   ── Release p ────────────────────▶ p ends; with the last handle here the lease ends
//!   o ends          ◀───────────────── Release o ─────
//! ```
//!
//! * The owner takes no byte and no place from the reader: it looks its own offer up, by ticket and generation, and
//!   finds the tensor that lies there. What is not on offer to this life of this peer is no lease of it, and a
//!   violation; an offer that is gone is stale, and the value is fetched as any other.
//! * *Release o* stands behind *Offer p* in one stream, since p keeps the lease, and streams are repeated in order. So
//!   o is there for as long as p may be taken, over any number of connections.
//! * p ends once: by the owner's release, when it is taken, or when its step has ended and it is no longer wanted. The
//!   end of the reader's own step leaves it, as it leaves what is read in place.
//! * An epoch's end forgets p on both sides, and what was not taken is lost as any value on its way. o is kept and
//!   recalled, like every lease. A lease of an epoch that is over is copied, unless a recall has renewed it; so is one
//!   of another link, another peer, or another shard's table.
//! * A lease goes back only if it leaves at once. One that waited for credit or a place on offer would keep its owner's
//!   place, and two tasks that send on what they hold would wait for each other's.

use std::sync::Arc;

use super::core::Core;
use super::ids::{LinkId, PeerId};
use super::peers::PeerState;
use super::transfers::{Incoming, TransferId};
use crate::channel::Accepted;
use crate::channel::ReturnedLease;
#[cfg(test)]
use crate::ground::TensorMeta;
use crate::ground::{MemoryKind, Region};
use crate::memory::{LeaseToken, Tensor, TensorBytes, Times};
use crate::wire::Ticket;

/// A lease's token: the whole life of its link, the link, and the offer's ticket. A part of the life would come again,
/// and a lease that is kept for long would then name another offer.
const fn token(link: LinkId, life: u32, offer: Ticket) -> LeaseToken {
    (life as LeaseToken) << 64 | (link.number() as LeaseToken) << 32 | offer.packed() as LeaseToken
}

const fn parts(token: LeaseToken) -> (LinkId, u32, Ticket) {
    (
        LinkId::from_number((token >> 32) as u32),
        (token >> 64) as u32,
        Ticket::unpack(token as u32),
    )
}

/// Of a token: its value has left the table, for someone who reads it.
const TAKEN: LeaseToken = 1 << 96;

/// The link that a lease came by.
pub(super) const fn link_of(token: LeaseToken) -> LinkId {
    parts(token).0
}

/// Why an offer cannot be read in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoLease {
    /// Its segment is not mapped yet: the news of it is on its way.
    Unmapped,
    /// There are too many leases, or the claim does not fit its segment: the bytes must be copied. To wait for a lease
    /// would be wrong: those that are out may be of values that wait behind this one.
    Never,
}

impl Core {
    /// A tensor that lies in the peer's memory.
    ///
    /// # Errors
    /// [`NoLease`] says whether a lease may be had later.
    #[inline]
    pub(crate) fn lease(
        &mut self,
        link: LinkId,
        region: Region,
        offer: &Accepted,
    ) -> Result<Tensor, NoLease> {
        let entry = self.links.at_mut(link).ok_or(NoLease::Never)?;
        let peer = &self.peers[entry.peer];
        let find = |arena| {
            let found = peer.segment(arena, region.segment);
            found.map(Arc::clone).ok_or(NoLease::Unmapped)
        };
        let segment = find(region.arena)?;
        // An offer's ticket means nothing to the peer's next life.
        let token = token(link, entry.channel.life(), offer.ticket);
        let tensor = if region.kind == MemoryKind::Host {
            self.leases.make(segment, region, offer.meta, token)
        } else {
            let times = find(Times::arena_of(region.arena))?;
            let leases = &mut self.leases;
            leases.make_on_device(segment, times, region, offer.meta, token)
        };
        let tensor = tensor.map_err(|_| NoLease::Never)?;
        entry.leased += 1;
        Ok(tensor)
    }

    /// True if a peer can read a device's tensor where it lies: it sees the device and has its memory offered, or the
    /// memory is its own. The peer must be there: another way to it might not be of this machine.
    pub(super) fn may_lend(&self, peer: PeerId, link: LinkId, tensor: &Tensor) -> bool {
        if self.lent_by(link, tensor).is_some() {
            return true;
        }
        let TensorBytes::Device(place) = tensor.bytes() else {
            return false;
        };
        if tensor.house() != Some(self.pool.house()) {
            return false;
        }
        let peer = &self.peers[peer];
        let is_up = matches!(peer.state(), PeerState::Up { .. });
        let sees = place.device < u64::BITS && peer.devices >> place.device & 1 != 0;
        is_up && sees && peer.read_domain && self.settings.lease
    }

    /// The peer's own offer that a tensor is a lease of, if it can have its bytes back by that name.
    pub(crate) fn lent_by(&self, link: LinkId, tensor: &Tensor) -> Option<Ticket> {
        let token = self.leases.token_of(tensor)?;
        let (of, life, offer) = parts(token);
        let channel = &self.links.at(link)?.channel;
        if !channel.takes_push() {
            // It would wait here with its lease, and what it waits for may wait for the place that the lease holds.
            return None;
        }
        let is_of_now = life == channel.life() || mutant!("leases_of_ended_epochs_sent_back");
        (of == link && is_of_now).then_some(offer)
    }

    /// A receiver wants bytes of ours that a peer has sent back: they become a value where they lie. If they are on
    /// offer no more, the peer is asked for them.
    pub(super) fn take_back(&mut self, id: TransferId, lent: ReturnedLease) {
        let Some(incoming) = self.transfers.at(id).copied() else {
            return;
        };
        let entry = self.links.at_mut(incoming.link);
        let ours = entry.and_then(|entry| {
            let tensor = &entry.channel.lent(lent)?.tensor;
            let tensor = tensor.recast(incoming.offer.meta).ok()?;
            entry.channel.release(incoming.offer.ticket);
            Some(tensor)
        });
        let Some(tensor) = ours else {
            let next = self.transfers.forgo_lent(id);
            return self.go_on(id, next);
        };
        self.links.touch(incoming.link);
        self.transfers.end(id);
        self.supply(&incoming, id, tensor);
    }

    /// An offer becomes a lease, if its segment is mapped.
    pub(crate) fn read_in_place(&mut self, id: TransferId) {
        let Some(incoming) = self.transfers.at(id).copied() else {
            return;
        };
        let Some(region) = incoming.region else {
            return;
        };
        match self.lease(incoming.link, region, &incoming.offer) {
            Ok(tensor) => {
                self.transfers.end(id);
                self.supply(&incoming, id, tensor);
                // It may have been taken at once, and be kept.
                self.ask_when_pressed(incoming.link);
            }
            Err(NoLease::Unmapped) => {}
            Err(NoLease::Never) => {
                let next = self.transfers.forgo_lease(id);
                self.go_on(id, next);
            }
        }
    }

    /// The peer asks whether we still read what it offered in an epoch that is over: a lease of it is released when
    /// its last handle goes, as if it were of this epoch; without one the offer is released now.
    pub(crate) fn recalled(&mut self, link: LinkId, offer: Ticket) {
        self.stats.recalls += 1;
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        let is_of_now = |of: &Incoming| of.link == link && of.offer.ticket == offer;
        if !self.transfers.pick(is_of_now).is_empty() {
            return;
        }
        let life = entry.channel.life();
        let lives = entry.channel.lives_of_peer();
        let is_it = |token: LeaseToken| {
            let (of, then, ticket) = parts(token);
            of == link && ticket == offer && life.wrapping_sub(then) <= lives
        };
        if self.leases.retag(is_it, token(link, life, offer)) {
            entry.leased += 1;
        } else {
            entry.channel.release(offer);
        }
        self.links.touch(link);
    }

    /// A value has left the table for a waiter: the peer hears so, if it is about to leave. What lies here unread would
    /// go with the peer.
    #[inline(never)]
    pub(super) fn hold(&mut self, tensor: &Tensor) {
        let Some(token) = self.leases.token_of(tensor) else {
            return;
        };
        self.leases.put_token(tensor, token | TAKEN);
        let (link, life, offer) = parts(token);
        if let Some(entry) = self.links.at_mut(link)
            && entry.channel.life() == life
            && entry.channel.hold(offer)
        {
            self.links.touch(link);
        }
    }

    /// A value lies in the table again, unread. What a peer has heard already stays said.
    pub(super) fn unhold(&self, tensor: &Tensor) {
        if let Some(token) = self.leases.token_of(tensor) {
            self.leases.put_token(tensor, token & !TAKEN);
        }
    }

    /// The peer is about to leave: it hears what it need not wait for. A lease outlives it.
    pub(super) fn tell_held(&mut self, link: LinkId) {
        let Self { leases, links, .. } = self;
        let Some(entry) = links.at_mut(link) else {
            return;
        };
        let life = entry.channel.life();
        leases.each(|token| {
            let (of, then, offer) = parts(token);
            let is_taken = token & TAKEN != 0 || mutant!("parked_leases_told_held");
            if of == link && then == life && is_taken {
                entry.channel.hold(offer);
            }
        });
        links.touch(link);
    }

    /// Leases whose last handle is gone, wherever it was dropped: the peers get their memory back.
    pub(crate) fn return_leases(&mut self) -> usize {
        let Self { leases, links, .. } = self;
        leases.reclaim(|token| {
            let (link, life, offer) = parts(token);
            let is_of = |now: u32| {
                now == life
                    || (mutant!("leases_of_former_lives_released") && (now ^ life) & 0xfff == 0)
            };
            if let Some(entry) = links.at_mut(link)
                && is_of(entry.channel.life())
            {
                entry.channel.release(offer);
                entry.leased = entry.leased.saturating_sub(1);
                links.touch(link);
            }
        })
    }
}

#[cfg(test)]
impl Core {
    /// A lease of what is on offer under the first ticket.
    pub(crate) fn lease_first(&mut self, link: LinkId, region: Region, meta: TensorMeta) -> Tensor {
        let offer = Accepted {
            ticket: Ticket::unpack(0),
            meta,
            size: region.len,
            is_dead: false,
            lines: 0,
        };
        self.lease(link, region, &offer)
            .expect("it fits its segment")
    }
}
