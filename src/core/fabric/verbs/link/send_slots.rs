//! A set of the slots that a link sends from. Pure.

use crate::fabric::verbs::RECEIVE_SLOTS;
use crate::ground::limits::VERBS_SEND_SLOTS;

/// Some of the slots: a bit for each. In their slab they lie behind those that are received into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SendSlots(u32);

const _: () = assert!(VERBS_SEND_SLOTS == 32, "a set of slots is one word");

impl SendSlots {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self(u32::MAX);

    /// True if there are so many.
    #[inline]
    pub(super) const fn has(self, count: usize) -> bool {
        // Most want one, and there is no instruction for the count.
        self.0 != 0 && (count == 1 || self.0.count_ones() as usize >= count)
    }

    /// Takes one out.
    #[inline]
    pub(super) const fn take(&mut self) -> Option<u16> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as u16;
        self.0 &= self.0 - 1;
        Some(RECEIVE_SLOTS as u16 + bit)
    }

    /// Puts one in that was taken out.
    #[inline]
    pub(super) const fn add(&mut self, slot: u16) {
        self.0 |= 1 << (slot - RECEIVE_SLOTS as u16);
    }

    /// Moves those of another set in.
    #[inline]
    pub(super) const fn add_all(&mut self, from: &mut Self) {
        self.0 |= from.0;
        from.0 = 0;
    }
}
