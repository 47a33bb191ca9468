//! Slab: numbered places that are used again, and lists through them.
//!
//! Does not know what stands at a place. The links stand aside, eight bytes a place, so that an entry has its lines for
//! itself.

use std::collections::TryReserveError;
use std::ops::{Index, IndexMut, Range};

/// No place.
pub(super) const NONE: u32 = u32::MAX;

/// Places by number. The one that was freed last is used first: its lines are still in the cache.
#[derive(Debug)]
pub(super) struct RecordSlab<T> {
    all: Vec<T>,
    links: Vec<Link>,
    free: u32,
}

/// The neighbours of a place in its list; of a free one, the next free one.
#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// A list through a slab, oldest first; an entry may join and leave anywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };

    /// The oldest entry, or none.
    pub(super) const fn head(&self) -> u32 {
        self.head
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }
}

impl<T> RecordSlab<T> {
    /// Reserves no places.
    pub(super) const fn new() -> Self {
        Self {
            all: Vec::new(),
            links: Vec::new(),
            free: NONE,
        }
    }

    /// Reserves so many places, so that they never move: address space only, until they are used.
    ///
    /// # Errors
    /// The process may have no more address space.
    pub(super) fn with_capacity(places: u32) -> Result<Self, TryReserveError> {
        let mut slab = Self::new();
        slab.all.try_reserve_exact(places as usize)?;
        slab.links.try_reserve_exact(places as usize)?;
        Ok(slab)
    }

    /// Gives an entry a place.
    #[inline]
    pub(super) fn put(&mut self, entry: T) -> u32 {
        let at = self.free;
        if at == NONE {
            self.all.push(entry);
            self.links.push(Link {
                prev: NONE,
                next: NONE,
            });
            return self.all.len() as u32 - 1;
        }
        self.free = self.links[at as usize].next;
        self[at] = entry;
        at
    }

    /// Frees a place that is in no list. What stands there stays until the place is used again.
    pub(super) fn free(&mut self, at: u32) {
        self.links[at as usize].next = std::mem::replace(&mut self.free, at);
    }

    /// What stands at a place, if there is such a place.
    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.all.get(at as usize)
    }

    /// As [`RecordSlab::get`].
    pub(super) fn at_mut(&mut self, at: u32) -> Option<&mut T> {
        self.all.get_mut(at as usize)
    }

    /// Every place, used or free.
    pub(super) fn numbers(&self) -> Range<u32> {
        0..self.all.len() as u32
    }

    /// Adds an entry to a list, before another one or at the end.
    #[inline]
    pub(super) fn insert(&mut self, list: &mut List, before: Option<u32>, at: u32) {
        let next = before.unwrap_or(NONE);
        let prev = match before {
            Some(before) => std::mem::replace(&mut self.links[before as usize].prev, at),
            None => std::mem::replace(&mut list.tail, at),
        };
        match prev {
            NONE => list.head = at,
            prev => self.links[prev as usize].next = at,
        }
        self.links[at as usize] = Link { prev, next };
        list.len += 1;
    }

    /// Takes an entry out of its list and frees its place.
    #[inline]
    pub(super) fn remove(&mut self, list: &mut List, at: u32) {
        self.unlink(list, at);
        self.free(at);
    }

    /// Takes an entry out of its list.
    #[inline]
    pub(super) fn unlink(&mut self, list: &mut List, at: u32) {
        let Link { prev, next } = self.links[at as usize];
        match prev {
            NONE => list.head = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self.links[next as usize].prev = prev,
        }
        list.len -= 1;
    }

    /// The entry behind another one in its list, or none.
    pub(super) fn next(&self, at: u32) -> u32 {
        self.links[at as usize].next
    }

    /// Every entry of a list, with its place.
    pub(super) fn each(&self, list: List) -> impl Iterator<Item = (u32, &T)> {
        let mut at = list.head;
        std::iter::from_fn(move || {
            let place = at;
            let entry = self.get(place)?;
            at = self.next(place);
            Some((place, entry))
        })
    }
}

impl<T> Index<u32> for RecordSlab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        &self.all[at as usize]
    }
}

impl<T> IndexMut<u32> for RecordSlab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.all[at as usize]
    }
}

#[cfg(test)]
mod tests;
