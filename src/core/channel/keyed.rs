//! A slab of things that each belong to a key, and how many of each key there are.
//!
//! It knows nothing of what it holds but the key, which stays the same while a thing is here.

use std::ops::Deref;

use super::slab::Slab;
use crate::rendezvous::KeyId;
use crate::wire::Ticket;

/// What belongs to a key.
pub(super) trait OfKey {
    fn key(&self) -> KeyId;
}

/// How often each key is counted. Key ids are small dense numbers.
#[derive(Debug, Default)]
pub(super) struct Counts(Vec<u32>);

impl Counts {
    #[inline]
    pub(super) fn add(&mut self, key: KeyId) {
        match self.0.get_mut(key.0 as usize) {
            Some(count) => *count += 1,
            None => self.first(key),
        }
    }

    #[cold]
    fn first(&mut self, key: KeyId) {
        let at = key.0 as usize;
        self.0.resize(at + 1, 0);
        self.0[at] = 1;
    }

    #[inline]
    pub(super) fn take(&mut self, key: KeyId) {
        if let Some(count) = self.0.get_mut(key.0 as usize) {
            *count -= 1;
        }
    }

    #[inline]
    pub(super) fn has(&self, key: KeyId) -> bool {
        self.0.get(key.0 as usize).is_some_and(|&count| count > 0)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Keyed<T> {
    slab: Slab<T>,
    counts: Counts,
}

impl<T: OfKey> Keyed<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            slab: Slab::new(limit),
            counts: Counts::default(),
        }
    }

    /// True if something of this key is here.
    pub(super) fn has(&self, key: KeyId) -> bool {
        self.counts.has(key)
    }

    /// Takes `value` in, or hands it back when the slab is full.
    pub(super) fn insert(&mut self, value: T) -> Result<Ticket, T> {
        let key = value.key();
        let ticket = self.slab.insert(value)?;
        self.counts.add(key);
        Ok(ticket)
    }

    /// Takes in what `make` gives, which is of that key. When the slab is full it is not asked.
    #[inline]
    pub(super) fn insert_with(
        &mut self,
        key: KeyId,
        make: impl FnOnce() -> Option<T>,
    ) -> Option<Ticket> {
        let ticket = self.slab.insert_with(make)?;
        self.counts.add(key);
        Some(ticket)
    }

    pub(super) fn at_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.slab.at_mut(ticket)
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let value = self.slab.remove(ticket)?;
        self.counts.take(value.key());
        Some(value)
    }

    /// Drops a value where it lies. False if it is not there.
    pub(super) fn discard(&mut self, ticket: Ticket) -> bool {
        let Some(key) = self.slab.at(ticket).map(OfKey::key) else {
            return false;
        };
        self.counts.take(key);
        self.slab.discard(ticket)
    }

    /// Takes everything out.
    pub(super) fn drain(&mut self) {
        self.slab.drain();
        self.counts.clear();
    }
}

/// Whatever changes nothing is the slab's.
impl<T> Deref for Keyed<T> {
    type Target = Slab<T>;

    fn deref(&self) -> &Slab<T> {
        &self.slab
    }
}
