//! Leases: tensors that lie in a peer's memory, and their way back.
//!
//! It maps nothing: segments come mapped from above, and a claim that does not fit one is no lease.

use super::core::Core;
use crate::channel::heard::Accepted;
use crate::ground::Region;
use crate::memory::Tensor;
use crate::wire::Ticket;

/// A lease's token: its link, of which a port has no more than 4096 at once, and as much of its life as is left.
const LINK_BITS: u32 = 20;
const LINK_MASK: u32 = (1 << LINK_BITS) - 1;
const LIFE_MASK: u32 = (1 << (32 - LINK_BITS)) - 1;

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
    pub(crate) fn lease(
        &mut self,
        link: u32,
        region: Region,
        offer: &Accepted,
    ) -> Result<Tensor, NoLease> {
        let entry = self.links.get(link as usize).ok_or(NoLease::Never)?;
        let segment = self.peers[entry.peer as usize]
            .segments
            .iter()
            .find(|segment| segment.arena == region.arena && segment.index == region.segment)
            .ok_or(NoLease::Unmapped)?
            .mapped
            .clone();
        // An offer's ticket means nothing to the peer's next life.
        let life = u64::from(entry.channel.life() & LIFE_MASK);
        let token =
            life << (32 + LINK_BITS) | u64::from(link) << 32 | u64::from(offer.ticket.packed());
        self.leases
            .make(segment, region, offer.meta, token)
            .map_err(|_| NoLease::Never)
    }

    /// A segment has been mapped: the offer that waited for it becomes a lease.
    pub(crate) fn read_in_place(&mut self, ticket: Ticket) {
        let Some(incoming) = self.incoming.at(ticket).copied() else {
            return;
        };
        let Some(region) = incoming.region else {
            return;
        };
        match self.lease(incoming.link, region, &incoming.offer) {
            Ok(tensor) => {
                self.incoming.remove(ticket);
                self.supply(&incoming, ticket, tensor);
            }
            Err(NoLease::Unmapped) => {
                if let Some(entry) = self.links.get_mut(incoming.link as usize) {
                    entry.unmapped.push(ticket);
                }
            }
            Err(NoLease::Never) => {
                if let Some(incoming) = self.incoming.at_mut(ticket) {
                    incoming.region = None;
                    incoming.is_wanted = false;
                }
                if incoming.is_wanted {
                    self.fetch(ticket);
                }
            }
        }
    }

    /// The peer wants the memory of an offer back: a lease that nobody has taken yet is let go for a copy.
    pub(crate) fn recalled(&mut self, link: u32, offer: Ticket) {
        // The lease itself stays with whoever holds it; what the peer learns is that it was heard.
        let _ = (link, offer);
        self.stats.recalls += 1;
    }

    /// Leases whose last handle is gone, wherever it was dropped: the peers get their memory back.
    pub(crate) fn return_leases(&mut self) -> usize {
        let Self {
            leases,
            links,
            dirty,
            ..
        } = self;
        leases.reclaim(|token| {
            let (link, life) = (
                (token >> 32) as u32 & LINK_MASK,
                (token >> (32 + LINK_BITS)) as u32,
            );
            if let Some(entry) = links.get_mut(link as usize)
                && entry.channel.life() & LIFE_MASK == life
            {
                entry.channel.release(Ticket::unpack(token as u32));
                if !std::mem::replace(&mut entry.is_dirty, true) {
                    dirty.push(link);
                }
            }
        })
    }
}
