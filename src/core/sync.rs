//! The atomics, cells and queues of every concurrent structure, named once so that a model checker can swap them.
//!
//! Knows nothing of its users. A file that imports its atomics from `crate::sync` and nowhere else can be included
//! (`#[path]`) by a test whose root holds a `mod sync` that re-exports loom's types under the same names: the model
//! checker then explores the very source that runs in production.

pub use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) use atomic_waker::AtomicWaker;
pub use crossbeam::queue::{ArrayQueue, SegQueue};

/// A cell of unsynchronised memory with loom's access by closure, so that loom can watch every access.
///
/// The closures get raw pointers: what may be done with them is the caller's proof, at the caller's `unsafe`.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell holding `value`.
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Runs `read` on the address of the value, for reading.
    #[allow(dead_code, reason = "half of the pair that loom's cell has")]
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Runs `write` on the address of the value, for writing.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
