//! Reorder: values and offers that overtook others of their key, by a different lane, held until those are here.
//!
//! Pure: it knows links, slots and ordinals, and nothing of what it keeps. Its items are few, and held briefly: what
//! was overtaken is on its way. Only a peer that breaks the protocol leaves many, and none of the others pays for it.

use std::collections::BTreeMap;

use super::ids::LinkId;
use crate::rendezvous::Slot;

#[cfg(test)]
mod tests;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reorder<T> {
    of_links: BTreeMap<LinkId, BTreeMap<(Slot, u32), T>>,
    /// Items of one link that may wait.
    limit: usize,
}

/// More waits for others than can be on their way: those will never come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gaps<T>(pub(crate) T);

impl<T> Reorder<T> {
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            of_links: BTreeMap::new(),
            limit,
        }
    }

    /// True if something of the link waits.
    #[inline]
    pub(crate) fn holds(&self, link: LinkId) -> bool {
        !self.of_links.is_empty() && self.of_links.contains_key(&link)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.of_links.values().map(BTreeMap::len).sum()
    }

    /// True if something of a slot that `is_it` is here.
    pub(crate) fn has(&self, is_it: impl Fn(Slot) -> bool) -> bool {
        let mut places = self.of_links.values().flat_map(BTreeMap::keys);
        places.any(|&(slot, _)| is_it(slot))
    }

    /// Something came before its turn. Returns what had come for the very same place before.
    ///
    /// # Errors
    /// [`Gaps`] gives it back if as many of its link wait as may.
    pub(crate) fn keep(
        &mut self,
        link: LinkId,
        slot: Slot,
        ordinal: u32,
        item: T,
    ) -> Result<Option<T>, Gaps<T>> {
        let early = self.of_links.entry(link).or_default();
        if early.len() >= self.limit && !mutant!("early_unbounded") {
            return Err(Gaps(item));
        }
        Ok(early.insert((slot, ordinal), item))
    }

    /// What has its turn at a slot whose next ordinal is `next`, or had it already.
    pub(crate) fn next(&mut self, link: LinkId, slot: Slot, next: u32) -> Option<(u32, T)> {
        let early = self.of_links.get_mut(&link)?;
        let first = next.wrapping_sub(i32::MAX as u32);
        // Where the numbers begin anew between the two, they lie in two stretches.
        let (of_before, from) = if first <= next {
            (None, first)
        } else {
            (Some(early.range((slot, first)..=(slot, u32::MAX))), 0)
        };
        let due = early.range((slot, from)..=(slot, next));
        let mut due = of_before.into_iter().flatten().chain(due);
        let &(_, ordinal) = due.next()?.0;
        let item = early.remove(&(slot, ordinal))?;
        if early.is_empty() {
            self.of_links.remove(&link);
        }
        Some((ordinal, item))
    }

    /// All that `goes`: it waits for nothing any more.
    pub(crate) fn take_all(&mut self, goes: impl Fn(LinkId, Slot) -> bool) -> Vec<(LinkId, T)> {
        let mut gone = Vec::new();
        for (&link, early) in &mut self.of_links {
            let going = early.extract_if(.., |&(slot, _), _| goes(link, slot));
            gone.extend(going.map(|(_, item)| (link, item)));
        }
        self.of_links.retain(|_, early| !early.is_empty());
        gone
    }
}
