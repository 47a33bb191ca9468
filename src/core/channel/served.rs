//! Served: what the peer has asked us for. Requests that wait here, and the one-sided writes that serve them.
//!
//! It knows tickets and the shard's tags; not values, nor where they are written.

use super::keyed::{Keyed, OfKey};
use crate::ground::limits::PARKED_REQUESTS;
use crate::rendezvous::KeyId;
use crate::wire::{Point, Ticket};

/// A one-sided write on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writing {
    pub(super) request: Ticket,
    pub(super) key: KeyId,
    pub(super) point: Point,
    pub(super) ordinal: u32,
    pub(super) is_dead: bool,
}

impl OfKey for Writing {
    fn key(&self) -> KeyId {
        self.key
    }
}

#[derive(Debug)]
pub(super) struct Served {
    writes: Keyed<Writing>,
    /// By the peer's ticket index: the generation and the shard's tag.
    parked: Vec<Option<(u32, u64)>>,
    /// By the peer's ticket index: the generation that a write on its way serves.
    written: Vec<Option<u32>>,
}

impl Served {
    pub(super) fn new() -> Self {
        Self {
            // Each serves a request of the peer: there is always room, so that an accepted offer never has to wait.
            writes: Keyed::new(PARKED_REQUESTS),
            parked: Vec::new(),
            written: Vec::new(),
        }
    }

    /// A request waits under `tag`.
    pub(super) fn park(&mut self, request: Ticket, tag: u64) {
        let at = request.index as usize;
        if self.parked.len() <= at {
            self.parked.resize(at + 1, None);
        }
        self.parked[at] = Some((request.generation, tag));
    }

    /// The tag that a request waits under.
    pub(super) fn tag(&self, request: Ticket) -> Option<u64> {
        let (generation, tag) = (*self.parked.get(request.index as usize)?)?;
        (generation == request.generation).then_some(tag)
    }

    /// True if another request of the same number waits: a number is given anew only when that one has had its end.
    pub(super) fn is_taken(&self, request: Ticket) -> bool {
        let parked = self.parked.get(request.index as usize).copied().flatten();
        parked.is_some_and(|(generation, _)| generation != request.generation)
    }

    /// It waits no more.
    pub(super) fn unpark(&mut self, request: Ticket) -> Option<u64> {
        let tag = self.tag(request)?;
        self.parked[request.index as usize] = None;
        Some(tag)
    }

    /// A write is about to be posted. `None` if too many are on their way.
    pub(super) fn begin(&mut self, writing: Writing) -> Option<Ticket> {
        let request = writing.request;
        let ticket = self.writes.insert(writing).ok()?;
        let at = request.index as usize;
        if self.written.len() <= at {
            self.written.resize(at + 1, None);
        }
        self.written[at] = Some(request.generation);
        Some(ticket)
    }

    pub(super) fn write(&self, ticket: Ticket) -> Option<&Writing> {
        self.writes.at(ticket)
    }

    /// A write ended.
    pub(super) fn end(&mut self, ticket: Ticket) -> Option<Writing> {
        let writing = self.writes.remove(ticket)?;
        if self.is_written(writing.request) {
            self.written[writing.request.index as usize] = None;
        }
        Some(writing)
    }

    /// True if a write is on its way that serves it.
    pub(super) fn is_written(&self, request: Ticket) -> bool {
        let generation = self.written.get(request.index as usize).copied().flatten();
        generation == Some(request.generation)
    }

    /// Writes on their way.
    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(super) fn has(&self, key: KeyId) -> bool {
        self.writes.has(key)
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.writes.drain();
        self.parked.clear();
        self.written.clear();
    }
}
