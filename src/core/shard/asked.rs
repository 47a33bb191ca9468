//! Asked: peers' requests that wait in the table, and how many of them each peer has.
//!
//! It knows neither what they wait for nor how they end; only that no peer takes all the places there are.

use super::ids::{Id, LinkId, PeerId};
use crate::channel::slab::Slab;
use crate::ground::{Region, TensorMeta, limits};
use crate::rendezvous::WaiterId;
use crate::wire::Ticket;

/// A peer's request that waits in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) peer: PeerId,
    pub(crate) link: LinkId,
    pub(crate) request: Ticket,
    pub(crate) id: Option<WaiterId>,
    /// The ordinal it names: only that value may be written to its landing, which says no other.
    pub(crate) ordinal: u32,
    pub(crate) landing: Option<(Region, TensorMeta)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Requests {
    all: Slab<Asked>,
    /// How many each peer has, by its number.
    of_peer: Vec<usize>,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            all: Slab::new(limits::ASKED),
            of_peer: Vec::new(),
        }
    }

    /// A request waits.
    ///
    /// # Errors
    /// How many there may be, if there are as many: of its peer, or of all.
    pub(super) fn insert(&mut self, asked: Asked) -> Result<Ticket, usize> {
        let row = asked.peer.row();
        if self.of_peer.len() <= row {
            self.of_peer.resize(row + 1, 0);
        }
        let count = &mut self.of_peer[row];
        if *count >= limits::ASKED_OF_PEER {
            return Err(limits::ASKED_OF_PEER);
        }
        let ticket = self.all.insert(asked).map_err(|_| limits::ASKED)?;
        *count += 1;
        Ok(ticket)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn at_mut(&mut self, ticket: Ticket) -> Option<&mut Asked> {
        self.all.at_mut(ticket)
    }

    /// It waits no more.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Asked> {
        let asked = self.all.remove(ticket)?;
        if let Some(count) = self.of_peer.get_mut(asked.peer.row()) {
            *count -= 1;
        }
        Some(asked)
    }

    /// Those of a link.
    pub(super) fn of_link(&self, link: LinkId) -> Vec<Ticket> {
        self.all.picked(|asked| asked.link == link)
    }

    /// As if a link of the peer had as many as the peer may have.
    #[cfg(test)]
    pub(crate) fn fill(&mut self, peer: PeerId, link: LinkId) {
        let asked = Asked {
            peer,
            link,
            request: Ticket::default(),
            id: None,
            ordinal: 0,
            landing: None,
        };
        while self.insert(asked).is_ok() {}
    }
}
