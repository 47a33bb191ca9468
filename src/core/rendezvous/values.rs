//! Values: the queues of values and offers, first in, first out.
//!
//! Which queue is of which point, and what may join it, is decided by the table.

use std::collections::TryReserveError;

use super::names::Arrived;
use super::slab::{List, RecordSlab};
use crate::ground::Nanos;

/// The values and offers of all queues.
#[derive(Debug)]
pub(super) struct Values<V> {
    slab: RecordSlab<Item<V>>,
    /// Since when each stands there. Aside, since only a look reads it: so an item is two lines.
    since: Vec<Nanos>,
}

/// A value or an offer.
///
/// Not an enum with the value inside: moving one of those copies its tag and padding along, in pieces that the
/// processor cannot forward from the stores just made. The value lies between the other fields so that reading those
/// loads both lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Item<V> {
    /// Bytes of a value, or the token of an offer.
    measure: u64,
    /// None for an offer, whose bytes are with the peer.
    value: Option<V>,
    ordinal: u32,
    /// Of an offer: its bytes are on their way.
    wanted: bool,
}

// As large as a tensor's handle with what travels with it.
const _: () = assert!(size_of::<Item<(bool, [u64; 13])>>() == 128);

impl<V> Item<V> {
    /// A value, and the bytes it keeps occupied.
    #[inline]
    pub(super) const fn value(value: V, bytes: u64, ordinal: u32) -> Self {
        Self {
            measure: bytes,
            value: Some(value),
            ordinal,
            wanted: false,
        }
    }

    /// An offer, `wanted` already or not.
    pub(super) const fn offer(token: u64, wanted: bool, ordinal: u32) -> Self {
        Self {
            measure: token,
            value: None,
            ordinal,
            wanted,
        }
    }

    /// The token, if it is an offer.
    pub(super) fn token(&self) -> Option<u64> {
        self.value.is_none().then_some(self.measure)
    }

    /// True for an offer whose bytes are on their way.
    pub(super) const fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Bytes that it keeps occupied here.
    pub(super) const fn bytes(&self) -> u64 {
        if self.value.is_some() {
            self.measure
        } else {
            0
        }
    }

    pub(super) const fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// As it arrived.
    pub(super) fn into_arrived(self) -> Arrived<V> {
        let offer = Arrived::Offer(self.measure);
        self.value.map_or(offer, Arrived::Value)
    }
}

impl<V> Values<V> {
    /// Places for so many are reserved.
    ///
    /// # Errors
    /// There is no room for them.
    pub(super) fn new(most: u32) -> Result<Self, TryReserveError> {
        let mut since = Vec::new();
        since.try_reserve_exact(most as usize)?;
        let slab = RecordSlab::with_capacity(most)?;
        Ok(Self { slab, since })
    }

    /// Adds to a queue, before another item or at the end.
    #[inline]
    pub(super) fn insert(
        &mut self,
        queue: &mut List,
        before: Option<u32>,
        item: Item<V>,
        now: Nanos,
    ) {
        let at = self.slab.put(item);
        self.slab.insert(queue, before, at);
        match self.since.get_mut(at as usize) {
            Some(since) => *since = now,
            None => self.since.push(now),
        }
    }

    /// Takes an item out of its queue. Its value is left behind for [`Values::take`], which moves it once.
    pub(super) fn unlink(&mut self, queue: &mut List, at: u32) {
        self.slab.remove(queue, at);
    }

    /// Takes the value of an item that was just taken out of its queue.
    pub(super) fn take(&mut self, at: u32) -> Option<V> {
        self.slab[at].value.take()
    }

    /// A queue, from the front, with the places.
    pub(super) fn each(&self, queue: List) -> impl Iterator<Item = (u32, &Item<V>)> {
        self.slab.each(queue)
    }

    /// What is at a place, if there is such a place.
    pub(super) fn get(&self, at: u32) -> Option<&Item<V>> {
        self.slab.get(at)
    }

    /// Since when the item at a place stands there.
    pub(super) fn since(&self, at: u32) -> Nanos {
        self.since[at as usize]
    }

    /// Wants what is at a place: the token, if it is an offer that nothing wanted before.
    pub(super) fn want(&mut self, at: u32) -> Option<u64> {
        let item = self.slab.at_mut(at)?;
        let is_news = item.value.is_none() && !std::mem::replace(&mut item.wanted, true);
        is_news.then_some(item.measure)
    }

    /// The bytes of an offer have come.
    pub(super) fn supply(&mut self, at: u32, value: V, bytes: u64, now: Nanos) {
        self.slab[at] = Item::value(value, bytes, self.slab[at].ordinal);
        self.since[at as usize] = now;
    }

    /// Reads a word of each line of the front, except the middle ones of a long value, and of what stands aside.
    pub(super) fn warm(&self, queue: List) -> u32 {
        let at = queue.head();
        let aside = |at: u32| self.slab.next(at) ^ self.since[at as usize].0 as u32;
        let warm = |item: &Item<V>| item.measure as u32 ^ item.ordinal ^ aside(at);
        self.get(at).map_or(0, warm)
    }
}

#[cfg(test)]
mod tests;
