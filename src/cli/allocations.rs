//! A global allocator that counts: what `allocations_per_op` is read from.
//!
//! Knows nothing of what is measured. The system's allocator does the work; the count is one relaxed add, which costs
//! nothing where it matters, because the hot path is there to show that it never comes by.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted. A program names it once:
///
/// ```ignore
/// #[global_allocator]
/// static ALLOCATOR: rendez_cli::allocations::Counted = rendez_cli::allocations::Counted;
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct Counted;

/// Allocations and reallocations of this process so far, on all threads; always zero where [`Counted`] is not the
/// global allocator (see [`is_counting`]).
#[must_use]
pub fn count() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// True where [`Counted`] is the global allocator. No process gets as far as asking without one allocation.
#[must_use]
pub fn is_counting() -> bool {
    count() > 0
}

// SAFETY: every method hands its arguments to `System` unchanged and returns what it returns, so that each contract of
// `GlobalAlloc` is kept as `System` keeps it. The counter is a static atomic: it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller promises a layout of non-zero size, which is all that `System.alloc` asks.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that `block` came from this allocator, which is to say from `System`, with this
        // `layout`, and is not used again.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller promises that `block` came from this allocator, which is to say from `System`, with this
        // `layout`, and that `new_size` is not zero and does not overflow when rounded up to the alignment.
        unsafe { System.realloc(block, layout, new_size) }
    }
}
