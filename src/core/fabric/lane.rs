//! Memory of a frame ring: where its words and bytes lie in a heap block or a mapping, and how they are touched.
//!
//! Knows offsets; nothing of frames' meaning, peers or ports.
//!
//! ```text
//!  0        64              128                    128 + 128 N                128 + 128 N + P, rounded up to a page
//!  │ (free) │ consumer's    │ N slots: a frame and │ P bytes of payload ring  │
//!           │ line: slots,  │ the side of its body │
//!           │ payload       │ each                 │
//! ```
//!
//! **Memory that a stranger may write.** Words are only touched as atomics, so a hostile writer yields any value, but
//! never undefined behaviour; each is loaded once into private memory and judged there. Payload bytes are only ever
//! copied, by `ptr::copy_nonoverlapping` between the mapping and private memory, through raw pointers: no reference
//! to them exists, so nothing is assumed of them. While both ends keep the ring's rules no copy races with another.
//! A peer that breaks them races from *another address space*, as a device would: the copied bytes are then any
//! bytes, and any bytes are a `u8`. Nothing is read twice, so there is no time between check and use.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ring::{RingMemory, RingProgress, SIDE};
use crate::ground::limits::FRAME_BYTES;
use crate::wire::frame::{FRAME_WORDS, Frame};

const CONSUMER_LINE: usize = 64;
const SLOTS: usize = 128;
const PAGE: usize = 4096;
/// A frame and the side of its body: two lines, of which a processor fetches the second with the first.
const SLOT_BYTES: usize = FRAME_BYTES + SIDE;

/// The measures of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Frames in flight: a power of two, 8 to 65536.
    pub slots: u32,
    /// Bytes of bodies in flight: a power of two, 4 KiB to 64 MiB.
    pub payload_bytes: u32,
}

impl Geometry {
    /// True if the measures are within their bounds.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.slots.is_power_of_two()
            && self.slots >= 8
            && self.slots <= 1 << 16
            && self.payload_bytes.is_power_of_two()
            && self.payload_bytes >= 4096
            && self.payload_bytes <= 64 << 20
    }

    /// Bytes one direction takes: whole pages, so that unused directions are never touched.
    #[must_use]
    pub const fn lane_bytes(&self) -> usize {
        (SLOTS + self.slots as usize * SLOT_BYTES + self.payload_bytes as usize)
            .next_multiple_of(PAGE)
    }
}

/// Zeroed, page-aligned memory of this process, or a shared mapping. Freed or unmapped with its last user.
#[derive(Debug)]
pub(super) struct Backing {
    base: NonNull<u8>,
    len: usize,
    is_mapping: bool,
}

impl Backing {
    /// Fresh zeroed heap memory.
    pub(super) fn heap(len: usize) -> Arc<Self> {
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero: `layout` rounds up to at least one page.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            std::alloc::handle_alloc_error(layout)
        };
        Arc::new(Self {
            base,
            len: layout.size(),
            is_mapping: false,
        })
    }

    /// A mapping of `len` bytes made by `mmap`, which this value now owns.
    ///
    /// # Safety
    /// `base` was returned by `mmap` for `len` bytes, readable and writable, shared, and nothing else unmaps it; the
    /// file beneath cannot shrink.
    pub(super) unsafe fn mapping(base: NonNull<u8>, len: usize) -> Arc<Self> {
        Arc::new(Self {
            base,
            len,
            is_mapping: true,
        })
    }

    /// The word at byte `offset`.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "words lie within the memory"
        );
        // SAFETY: the assert keeps the word within the memory, which lives as long as `self`.
        let word = unsafe { self.base.add(offset) };
        // SAFETY: the base is page-aligned and the offset a multiple of eight, so the word is aligned. It is
        // initialised (zeroed by the allocator or the kernel), lives as long as `self`, and this crate touches the
        // words of such memory only as atomics.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.next_multiple_of(PAGE).max(PAGE), PAGE)
            .expect("lanes are far below isize::MAX")
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if self.is_mapping {
            // SAFETY: by the contract of `mapping` base and length are one mapping which only this value unmaps, and
            // this is its last user: lanes hold an `Arc` of it.
            let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok());
        } else {
            // SAFETY: allocated in `heap` with the layout that the same length gives again (rounding is idempotent).
            unsafe { std::alloc::dealloc(self.base.as_ptr(), Self::layout(self.len)) };
        }
    }
}

// SAFETY: `NonNull` stopped it. The memory is touched only as atomic words (`word`) and by `MemoryLane`'s copies,
// whose callers vouch for exclusive use; freeing needs no particular thread.
unsafe impl Send for Backing {}
// SAFETY: as for `Send`: shared use is through atomics, or by `unsafe` calls that vouch for exclusive use.
unsafe impl Sync for Backing {}

/// Writes a line with one store.
///
/// # Safety
/// The processor has AVX-512F; `target` is valid for a write of 64 bytes and aligned to 64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn store_line(target: *mut u8, line: &Frame) {
    // SAFETY: `line` is 64 bytes, aligned to 64, by its type.
    let words = unsafe { core::arch::x86_64::_mm512_load_si512(line.words.as_ptr().cast()) };
    // SAFETY: the contract of this function.
    unsafe { core::arch::x86_64::_mm512_store_si512(target.cast(), words) };
}

/// One direction of one channel, as the ring sees it. Either end holds its own.
#[derive(Debug)]
pub(super) struct MemoryLane {
    base: NonNull<u8>,
    geometry: Geometry,
    /// The processor writes a whole line with one store.
    #[cfg(target_arch = "x86_64")]
    is_wide: bool,
    /// Keeps `base` valid.
    _backing: Arc<Backing>,
}

impl MemoryLane {
    /// The lane that starts `offset` bytes into `backing`.
    pub(super) fn new(backing: &Arc<Backing>, offset: usize, geometry: Geometry) -> Self {
        assert!(
            geometry.is_valid() && offset.is_multiple_of(PAGE),
            "lanes have checked measures and start on pages"
        );
        assert!(
            offset + geometry.lane_bytes() <= backing.len,
            "lanes lie within their memory"
        );
        // SAFETY: the assert above keeps the offset within the memory.
        let base = unsafe { backing.base.add(offset) };
        Self {
            base,
            geometry,
            #[cfg(target_arch = "x86_64")]
            is_wide: std::is_x86_feature_detected!("avx512f"),
            _backing: Arc::clone(backing),
        }
    }

    /// The word at byte `offset` of the lane.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.geometry.lane_bytes());
        // SAFETY: callers pass offsets of the consumer's line or of a slot masked below the slot count, all within
        // `lane_bytes`, which `new` checked against the memory's length.
        let word = unsafe { self.base.add(offset) };
        // SAFETY: aligned, since lanes start on pages and offsets are multiples of eight; initialised (zeroed);
        // kept alive by `_backing`; and every process that maps it touches it only as an atomic.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    #[inline]
    fn slot_word(&self, slot: u64, word: usize) -> &AtomicU64 {
        let slot = slot as usize & (self.geometry.slots as usize - 1);
        self.word(SLOTS + slot * SLOT_BYTES + word * 8)
    }

    #[inline]
    const fn side_offset(&self, slot: u64) -> usize {
        let slot = slot as usize & (self.geometry.slots as usize - 1);
        SLOTS + slot * SLOT_BYTES + FRAME_BYTES
    }

    /// Asks for a line, to write to it.
    #[inline]
    fn ask_for(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which reads, writes and faults on nothing, wherever the address leads; a processor that does
        // not know it takes it for no operation.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) self.base.as_ptr().wrapping_add(offset),
                options(nostack, preserves_flags)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    #[inline]
    fn payload_offset(&self) -> usize {
        SLOTS + self.geometry.slots as usize * SLOT_BYTES
    }

    /// Overwrites one word of the lane as a hostile peer could. For tests.
    #[cfg(test)]
    pub(super) fn scribble(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }
}

impl RingMemory for MemoryLane {
    #[inline]
    fn slot_count(&self) -> u64 {
        u64::from(self.geometry.slots)
    }

    #[inline]
    fn payload_len(&self) -> u64 {
        u64::from(self.geometry.payload_bytes)
    }

    #[inline]
    fn peek(&self, slot: u64) -> u64 {
        // Pairs with the Release in `publish`: a new stamp brings the frame's other words and its body.
        self.slot_word(slot, 0).load(Ordering::Acquire)
    }

    #[inline]
    fn load(&self, slot: u64, frame: &mut Frame) {
        for word in 1..FRAME_WORDS {
            frame.words[word] = self.slot_word(slot, word).load(Ordering::Relaxed);
        }
    }

    #[inline]
    fn fill(&self, slot: u64, frame: &Frame) {
        for word in 1..FRAME_WORDS {
            self.slot_word(slot, word)
                .store(frame.words[word], Ordering::Relaxed);
        }
    }

    #[inline]
    fn publish(&self, slot: u64, word: u64) {
        // Pairs with the Acquire in `peek`.
        self.slot_word(slot, 0).store(word, Ordering::Release);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn put(&self, slot: u64, frame: &Frame, stale: u64, word: u64) {
        if !self.is_wide {
            self.fill(slot, frame);
            return self.publish(slot, word);
        }
        let mut line = *frame;
        line.words[0] = stale;
        let target = std::ptr::from_ref(self.slot_word(slot, 0)).cast_mut();
        // SAFETY: `is_wide` says that the processor has AVX-512F. `target` is the first word of a slot: 64 bytes within
        // the lane, aligned to 64 because lanes start on pages and slots are lines. This end is the slot's only writer
        // (`&mut Producer`), and the far end reads it by atomic loads and takes nothing of it before the stamp, which
        // stays the one it has until the Release below. That those loads race with this store is outside the model of
        // the language, as all memory shared with another process is; the processor keeps stores in order.
        unsafe { store_line(target.cast(), &line) };
        self.publish(slot, word);
    }

    fn progress(&self) -> RingProgress {
        // Pairs with the Releases in `set_progress`: what is told as done is no longer read. The two words may be of
        // different tellings; each only ever grows, so both are true.
        RingProgress {
            slots: self.word(CONSUMER_LINE).load(Ordering::Acquire),
            payload: self.word(CONSUMER_LINE + 8).load(Ordering::Acquire),
        }
    }

    fn set_progress(&self, progress: RingProgress) {
        // Pairs with the Acquires in `progress`.
        self.word(CONSUMER_LINE)
            .store(progress.slots, Ordering::Release);
        self.word(CONSUMER_LINE + 8)
            .store(progress.payload, Ordering::Release);
    }

    #[inline]
    fn own(&self, slot: u64, at: u64, len: u64) {
        self.ask_for(self.side_offset(slot));
        for line in (0..len).step_by(FRAME_BYTES) {
            self.ask_for(self.payload_offset() + (at + line) as usize);
        }
    }

    #[inline]
    unsafe fn write_side(&self, slot: u64, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= SIDE);
        // SAFETY: by the contract the slot and the bytes of its second line lie within the slots, and those within the
        // lane.
        let target = unsafe { self.base.add(self.side_offset(slot) + at) };
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
    }

    #[inline]
    unsafe fn read_side(&self, slot: u64, bytes: &mut [u8]) {
        debug_assert!(bytes.len() <= SIDE);
        // SAFETY: as in `write_side`.
        let source = unsafe { self.base.add(self.side_offset(slot)) };
        // SAFETY: as in `write`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }

    #[inline]
    unsafe fn write(&self, at: u64, bytes: &[u8]) {
        debug_assert!(at as usize + bytes.len() <= self.geometry.payload_bytes as usize);
        // SAFETY: by the contract `at` lies within the payload ring, which lies within the lane.
        let target = unsafe { self.base.add(self.payload_offset() + at as usize) };
        // SAFETY: source and target are `bytes.len()` bytes each, by the slice and by the contract; they cannot
        // overlap, since no slice of lane memory is ever made. Exclusive use is the contract's; a stranger's: see the
        // head.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
    }

    #[inline]
    unsafe fn read(&self, at: u64, bytes: &mut [u8]) {
        debug_assert!(at as usize + bytes.len() <= self.geometry.payload_bytes as usize);
        // SAFETY: by the contract `at` lies within the payload ring, which lies within the lane.
        let source = unsafe { self.base.add(self.payload_offset() + at as usize) };
        // SAFETY: as in `write`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }
}

// SAFETY: `NonNull` stopped it. The pointer leads into `_backing`, which is `Send` and `Sync`; a lane is held by one
// ring end, and moving that end to another thread moves its exclusive uses with it.
unsafe impl Send for MemoryLane {}

#[cfg(test)]
mod tests;
