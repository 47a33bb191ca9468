//! Registered memory in equal slots, for messages and for copies of what is not registered.
//!
//! Knows where each slot lies; not what holds it. A slot is the device's from the post that names it to the completion
//! that gives it back, and ours otherwise; the callers keep account of which.
#![allow(unsafe_code)]

use std::slice;
use std::sync::Arc;

use super::domain::{Access, Domain, Registration};
use super::error::VerbsError;
use crate::memory::{Arena as _, ArenaSegment as _, HugePages, Memfd, Segment};

/// Equal slots in a segment of their own.
#[derive(Debug)]
pub(super) struct Slots {
    segment: Arc<Segment>,
    memory: Arc<Registration>,
    slot_bytes: usize,
    count: usize,
}

impl Slots {
    /// `count` slots of `slot_bytes` each, which is a multiple of a cache line.
    pub(super) fn new(
        domain: &Arc<Domain>,
        slot_bytes: usize,
        count: usize,
    ) -> Result<Self, VerbsError> {
        let len = (slot_bytes * count).next_multiple_of(4096);
        let mut arena = Memfd {
            huge_pages: HugePages::Off,
            ..Memfd::default()
        };
        let segment = Arc::new(arena.allocate(0, len, len as u64)?);
        let memory = domain.register(&segment, Access::Local)?;
        Ok(Self {
            segment,
            memory: Arc::new(memory),
            slot_bytes,
            count,
        })
    }

    /// They are never given back.
    pub(super) fn leave(&self) {
        std::mem::forget(Arc::clone(&self.memory));
    }

    /// Where the device finds a slot.
    #[inline]
    pub(super) fn address(&self, slot: usize) -> u64 {
        self.memory.address() + (slot * self.slot_bytes) as u64
    }

    /// The key of the registration.
    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        self.memory.lkey()
    }

    /// The first `len` bytes of a slot.
    ///
    /// # Safety
    /// The slot is ours, not the device's, as long as the bytes are looked at.
    #[inline]
    pub(super) unsafe fn bytes(&self, slot: usize, len: usize) -> &[u8] {
        assert!(slot < self.count && len <= self.slot_bytes);
        let start = self.start(slot);
        // SAFETY: the slot lies in the segment by the assertion, is mapped as long as `self`, and was zeroed by the
        // kernel. No other unique slice of it exists in this process, as `bytes_mut` borrows `self`; no peer was
        // granted its memory; and that the device leaves it alone is the caller's promise.
        unsafe { slice::from_raw_parts(start, len) }
    }

    /// The whole of a slot, to be written.
    ///
    /// # Safety
    /// The slot is ours, not the device's, as long as the bytes are written.
    #[inline]
    pub(super) unsafe fn bytes_mut(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < self.count);
        let start = self.start(slot);
        // SAFETY: as in `bytes`, and `self` is borrowed uniquely, so there is no other slice of any slot.
        unsafe { slice::from_raw_parts_mut(start, self.slot_bytes) }
    }

    /// Where a slot begins.
    #[inline]
    fn start(&self, slot: usize) -> *mut u8 {
        let base = self.segment.base();
        base.wrapping_add(slot * self.slot_bytes)
    }
}
