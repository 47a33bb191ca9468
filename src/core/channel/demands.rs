//! Demands: those that are not gone, by ticket, and by the place that their value is for.
//!
//! It knows nothing of what becomes of a demand (`demand.rs`). Demands whose places fall together stand in one list;
//! there are at least as many lists as there have been demands at once, so a list is about one long, and what is asked
//! for at a place is found without a look at all the others.

use std::ops::Deref;

use super::Demand;
use super::keyed::Keyed;
use crate::rendezvous::KeyId;
use crate::wire::{Point, Ticket};

/// No demand: the end of a list.
const NONE: u32 = u32::MAX;
/// Lists there are from the start; a power of two.
const LISTS: usize = 64;

/// A demand's neighbours in its list, by the index of their tickets.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    after: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Demands {
    all: Keyed<Demand>,
    /// The first of each list.
    first: Vec<u32>,
    /// By a ticket's index.
    neighbours: Vec<Neighbours>,
}

impl Demands {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            all: Keyed::new(limit),
            first: vec![NONE; LISTS],
            neighbours: Vec::with_capacity(limit.min(LISTS)),
        }
    }

    /// True if something of this key is asked for.
    pub(super) fn has(&self, key: KeyId) -> bool {
        self.all.has(key)
    }

    // Handed back by value: a box would allocate.
    #[allow(clippy::result_large_err)]
    pub(super) fn insert(&mut self, demand: Demand) -> Result<Ticket, Demand> {
        let ticket = self.all.insert(demand)?;
        if ticket.index as usize >= self.first.len() {
            self.grow();
        }
        let none = Neighbours {
            before: NONE,
            after: NONE,
        };
        let room = self.neighbours.len().max(ticket.index as usize + 1);
        self.neighbours.resize(room, none);
        self.link(ticket.index, demand.key, &demand.point);
        Ok(ticket)
    }

    /// What a demand is for stays what it is.
    pub(super) fn at_mut(&mut self, ticket: Ticket) -> Option<&mut Demand> {
        self.all.at_mut(ticket)
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Demand> {
        let demand = self.all.remove(ticket)?;
        let Neighbours { before, after } = self.neighbours[ticket.index as usize];
        if let Some(next) = self.neighbours.get_mut(after as usize) {
            next.before = before;
        }
        match self.neighbours.get_mut(before as usize) {
            Some(last) => last.after = after,
            None => {
                let list = self.list_of(demand.key, &demand.point);
                self.first[list] = after;
            }
        }
        Some(demand)
    }

    /// Takes everything out.
    pub(super) fn drain(&mut self) {
        self.all.drain();
        self.first.fill(NONE);
    }

    /// Those for a place.
    pub(super) fn of_place(
        &self,
        key: KeyId,
        point: Point,
    ) -> impl Iterator<Item = (Ticket, &Demand)> {
        self.list(self.list_of(key, &point))
            .filter(move |(_, demand)| demand.key == key && demand.point == point)
    }

    fn list(&self, list: usize) -> impl Iterator<Item = (Ticket, &Demand)> {
        let next = |&index: &u32| Some(self.neighbours.get(index as usize)?.after);
        std::iter::successors(Some(self.first[list]), next)
            .filter_map(|index| self.all.at_index(index))
    }

    fn link(&mut self, index: u32, key: KeyId, point: &Point) {
        let list = self.list_of(key, point);
        let after = std::mem::replace(&mut self.first[list], index);
        if let Some(next) = self.neighbours.get_mut(after as usize) {
            next.before = index;
        }
        self.neighbours[index as usize] = Neighbours {
            before: NONE,
            after,
        };
    }

    /// As many lists again. The demand that was inserted last stands in none yet.
    #[cold]
    fn grow(&mut self) {
        let lists = 2 * self.first.len();
        self.first.clear();
        self.first.resize(lists, NONE);
        for index in 0..self.neighbours.len() as u32 {
            if let Some((_, &demand)) = self.all.at_index(index) {
                self.link(index, demand.key, &demand.point);
            }
        }
    }

    fn list_of(&self, key: KeyId, point: &Point) -> usize {
        let words = [point.step.0, point.at.frame, point.at.iter];
        let mix = |hash: u64, word: u64| {
            // The golden ratio's bits, as Fibonacci hashing has them; the upper half is the well mixed one.
            let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            product ^ product >> 32
        };
        let hash = words.into_iter().fold(mix(0, key.0.into()), mix);
        hash as usize & (self.first.len() - 1)
    }
}

/// Whatever changes nothing is the slab's.
impl Deref for Demands {
    type Target = Keyed<Demand>;

    fn deref(&self) -> &Keyed<Demand> {
        &self.all
    }
}

#[cfg(test)]
mod tests;
