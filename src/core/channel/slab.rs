//! A bounded slab whose slots carry generations: what a [`Ticket`] points into.
//!
//! It knows nothing of what it holds. Slots are given out last in, first out, so that a warm one is used again. After
//! 2¹² uses of a slot its generations come round: it is used again behind all others, of which there is a fresh one up
//! to a bound. So a ticket comes again after 2¹² uses of each slot, and one that old has long been answered: a stream
//! has fewer frames under way ([`LINE_WINDOW`](crate::ground::limits::LINE_WINDOW)).

use crate::wire::Ticket;

#[cfg(test)]
mod tests;

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Entry<T> {
    #[inline]
    fn is_of(&self, ticket: Ticket) -> bool {
        self.generation == ticket.generation || mutant!("generation_unchecked")
    }

    /// Its ticket is stale from here on. True if it has been through all of its generations.
    #[inline]
    const fn wear(&mut self) -> bool {
        self.generation = (self.generation + 1) & ((1 << Ticket::GENERATION_BITS) - 1);
        self.generation == 0
    }
}

/// A slab of at most `limit` values.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    limit: usize,
}

/// Places there are from the start: several times what is out when releases come home only every 64th turn, so that
/// a peer that is late once costs the hot path no heap. Unused pages are never touched.
const WARM: usize = 512;

impl<T> Slab<T> {
    /// An empty slab with room for a usual load; memory grows with use up to the limit, which fits a ticket's index.
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.min(1 << Ticket::INDEX_BITS);
        Self {
            entries: Vec::with_capacity(limit.min(WARM)),
            free: Vec::with_capacity(limit.min(WARM)),
            limit,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    #[inline]
    const fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= self.limit
    }

    /// Takes `value` in, or hands it back when the slab is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<Ticket, T> {
        if self.is_full() {
            return Err(value);
        }
        Ok(self.put(value))
    }

    /// Takes in what `make` gives, if it gives something. When the slab is full it is not asked.
    #[inline]
    pub(crate) fn insert_with(&mut self, make: impl FnOnce() -> Option<T>) -> Option<Ticket> {
        if self.is_full() {
            return None;
        }
        Some(self.put(make()?))
    }

    /// There is room.
    #[inline(always)]
    fn put(&mut self, value: T) -> Ticket {
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            // It is empty: there is nothing to drop.
            std::mem::forget(entry.value.replace(value));
            return Ticket {
                index,
                generation: entry.generation,
            };
        }
        let index = self.entries.len() as u32;
        self.entries.push(Entry {
            generation: 0,
            value: Some(value),
        });
        Ticket {
            index,
            generation: 0,
        }
    }

    pub(crate) fn at(&self, ticket: Ticket) -> Option<&T> {
        let entry = self.entries.get(ticket.index as usize)?;
        if entry.is_of(ticket) {
            entry.value.as_ref()
        } else {
            None
        }
    }

    /// What lies at an index, and its ticket.
    pub(crate) fn at_index(&self, index: u32) -> Option<(Ticket, &T)> {
        let entry = self.entries.get(index as usize)?;
        let generation = entry.generation;
        let value = entry.value.as_ref()?;
        Some((Ticket { index, generation }, value))
    }

    pub(crate) fn at_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        let entry = self.entries.get_mut(ticket.index as usize)?;
        if entry.is_of(ticket) {
            entry.value.as_mut()
        } else {
            None
        }
    }

    /// Takes a value out; its ticket is stale from here on.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let entry = self.entries.get_mut(ticket.index as usize)?;
        if !entry.is_of(ticket) {
            return None;
        }
        let value = entry.value.take()?;
        let is_worn = entry.wear();
        self.give_back(ticket.index, is_worn);
        Some(value)
    }

    /// Drops a value where it lies; its ticket is stale from here on. False if it is so already.
    pub(crate) fn discard(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.entries.get_mut(ticket.index as usize) else {
            return false;
        };
        if !entry.is_of(ticket) || entry.value.is_none() {
            return false;
        }
        entry.value = None;
        let is_worn = entry.wear();
        self.give_back(ticket.index, is_worn);
        true
    }

    #[inline]
    fn give_back(&mut self, index: u32, is_worn: bool) {
        self.free.push(index);
        if is_worn {
            self.lay_aside();
        }
    }

    /// The slot that became free last has been through all of its generations.
    #[cold]
    fn lay_aside(&mut self) {
        self.free.rotate_right(1);
        if self.entries.len() < self.limit.min(WARM) {
            self.free.push(self.entries.len() as u32);
            self.entries.push(Entry {
                generation: 0,
                value: None,
            });
        }
    }

    /// Every live ticket.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.value.is_some())
            .map(|(index, entry)| Ticket {
                index: index as u32,
                generation: entry.generation,
            })
    }

    /// The tickets of all that `pred` picks.
    pub(crate) fn picked(&self, mut pred: impl FnMut(&T) -> bool) -> Vec<Ticket> {
        // As a rule; the places are as many as there ever were values.
        if self.len() == 0 {
            return Vec::new();
        }
        let picks = |ticket: &Ticket| self.at(*ticket).is_some_and(&mut pred);
        self.tickets().filter(picks).collect()
    }

    /// Takes everything out.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let tickets: Vec<_> = self.tickets().collect();
        tickets
            .into_iter()
            .filter_map(|ticket| self.remove(ticket))
            .collect()
    }
}
