//! Reorder: values and offers that overtook others of their key, by a different lane, held until those are here.
//!
//! Pure: it knows links, slots and ordinals, and nothing of what it keeps. Its items are few, and held briefly: what
//! was overtaken is on its way.

use super::ids::LinkId;
use crate::rendezvous::Slot;

#[cfg(test)]
mod tests;

#[derive(Debug)]
struct Early<T> {
    link: LinkId,
    slot: Slot,
    ordinal: u32,
    item: T,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reorder<T>(Vec<Early<T>>);

impl<T> Reorder<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// True if something of a slot that `is_it` is here.
    pub(crate) fn has(&self, is_it: impl Fn(Slot) -> bool) -> bool {
        self.0.iter().any(|early| is_it(early.slot))
    }

    /// Something came before its turn.
    pub(crate) fn keep(&mut self, link: LinkId, slot: Slot, ordinal: u32, item: T) {
        self.0.push(Early {
            link,
            slot,
            ordinal,
            item,
        });
    }

    /// What has its turn at a slot whose next ordinal is `next`, or had it already.
    pub(crate) fn next(&mut self, link: LinkId, slot: Slot, next: u32) -> Option<(u32, T)> {
        let is_next =
            |early: &Early<T>| early.link == link && early.slot == slot && early.ordinal <= next;
        let at = self.0.iter().position(is_next)?;
        let early = self.0.swap_remove(at);
        Some((early.ordinal, early.item))
    }

    /// One that `goes`: it waits for nothing any more.
    pub(crate) fn take(&mut self, goes: impl Fn(LinkId, Slot) -> bool) -> Option<(LinkId, T)> {
        let at = (self.0.iter()).position(|early| goes(early.link, early.slot))?;
        let early = self.0.swap_remove(at);
        Some((early.link, early.item))
    }
}
