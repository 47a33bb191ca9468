//! Pinned memory: a segment of the host's that a device reads and writes too.
//!
//! Knows no use of it: words that streams write (`times.rs`), chunks on their way (`staging.rs`) and whole segments of
//! the host's arenas, which copies read and write in place (`lanes.rs`), all lie in some.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Accelerator, ArenaSegment as _, HostMemory, HugePages, MemoryError, Segment};

/// A segment whose first bytes a device reaches. It is taken back from the device when it is dropped; its owner sees to
/// it that no work is still to touch it.
#[derive(Debug)]
pub struct Pinned {
    segment: Arc<Segment>,
    accelerator: Arc<dyn Accelerator>,
    device: u32,
    /// Where it starts, for the device.
    at: u64,
    len: usize,
}

impl Pinned {
    /// Segment `index` of `len` bytes, of which the device reaches the first `pinned`.
    ///
    /// # Errors
    /// [`MemoryError::System`]; [`MemoryError::Driver`], also where the user may not pin so much (`ulimit -l`).
    pub fn new(
        accelerator: &Arc<dyn Accelerator>,
        device: u32,
        index: u16,
        len: usize,
        pinned: usize,
    ) -> Result<Self, MemoryError> {
        let segment = Segment::create(index, len, len as u64, HugePages::Off)?;
        Self::of(accelerator, device, Arc::new(segment), pinned)
    }

    /// The first `pinned` bytes of a segment that is there. All of them are taken from the system at once.
    ///
    /// # Errors
    /// [`MemoryError::Driver`], also where the user may not pin so much, or they are pinned already.
    pub fn of(
        accelerator: &Arc<dyn Accelerator>,
        device: u32,
        segment: Arc<Segment>,
        pinned: usize,
    ) -> Result<Self, MemoryError> {
        let pinned = pinned.min(segment.len());
        // SAFETY: these bytes are the segment's, and mapped until it is dropped, which is after `unregister` has said
        // that the devices have let go of them.
        let registered = unsafe { accelerator.register(device, segment.base(), pinned) };
        let at = registered.map_err(|(error, memory)| {
            keep_if_held(&segment, memory);
            error
        })?;
        Ok(Self {
            segment,
            accelerator: Arc::clone(accelerator),
            device,
            at,
            len: pinned,
        })
    }

    /// The segment, to be shown to peers.
    #[must_use]
    pub const fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Where it starts, for the device.
    pub(super) const fn at(&self) -> u64 {
        self.at
    }

    /// How many bytes the device reaches.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the device reaches none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if these bytes lie where the device reaches them.
    #[must_use]
    pub fn covers(&self, bytes: &[u8]) -> bool {
        let offset = bytes.as_ptr().addr().checked_sub(self.base().addr());
        let end = offset.and_then(|offset| offset.checked_add(bytes.len()));
        end.is_some_and(|end| end <= self.len)
    }

    /// Where it starts, for the host.
    pub(super) fn base(&self) -> *mut u8 {
        self.segment.base()
    }

    /// A word of the segment, by its number.
    pub(super) fn word(&self, number: usize) -> Option<&AtomicU64> {
        if number >= self.segment.len() / 8 {
            return None;
        }
        let base = self.segment.base().cast::<AtomicU64>();
        // SAFETY: the word lies in the segment's mapping, as was just seen.
        let word = unsafe { base.add(number) };
        // SAFETY: the word lies in the mapping, which lives as long as `self`; pages are aligned for it, and the bytes
        // are initialised. Memory whose words are used (`times.rs`) is touched as whole words by everything.
        Some(unsafe { &*word })
    }

    /// Copies bytes out of it, which a device has written.
    ///
    /// # Safety
    /// No work touches these bytes now.
    pub(super) unsafe fn read(&self, from: usize, out: &mut [u8]) {
        assert!(
            from + out.len() <= self.len,
            "the bytes lie in the pinned part"
        );
        // SAFETY: the first of these bytes lies in the segment's mapping, as was just seen.
        let source = unsafe { self.base().add(from) };
        // SAFETY: both sides are valid for so many bytes, as was just seen, and lie apart; no device writes there now,
        // as the caller vouches.
        unsafe { ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) };
    }

    /// Copies bytes into it, for a device to read.
    ///
    /// # Safety
    /// No work touches these bytes now.
    pub(super) unsafe fn write(&self, to: usize, bytes: &[u8]) {
        assert!(
            to + bytes.len() <= self.len,
            "the bytes lie in the pinned part"
        );
        // SAFETY: the first of these bytes lies in the segment's mapping, as was just seen.
        let target = unsafe { self.base().add(to) };
        // SAFETY: both sides are valid for so many bytes and lie apart; no device reads there now, as the caller
        // vouches.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Stores a word for devices and peers to see.
    pub(super) fn put_word(&self, number: usize, value: u64) {
        if let Some(word) = self.word(number) {
            // Release: what the word tells of is there before it.
            word.store(value, Ordering::Release);
        }
    }
}

/// Memory that a driver would not let go stays mapped: the kernel would give its addresses to other memory, which the
/// devices would then reach.
fn keep_if_held(segment: &Arc<Segment>, memory: HostMemory) {
    if memory == HostMemory::Held {
        std::mem::forget(Arc::clone(segment));
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: registered in `of` and taken back once; its owner has seen to the work that touches it.
        let memory = unsafe {
            self.accelerator
                .unregister(self.device, self.segment.base())
        };
        keep_if_held(&self.segment, memory);
    }
}
