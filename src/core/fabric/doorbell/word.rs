//! The word of a doorbell: how a sleeper says that it sleeps, and how a poster sees it.
//!
//! Knows one atomic; not where it lies, nor what wakes. The proof is at the head of `doorbell.rs`, and loom goes
//! through every interleaving of it (`tests/loom_shard.rs`).

use crate::sync::{AtomicU64, Ordering, fence};

/// The owner is about to sleep. After it, it looks once more for what came.
pub(super) fn arm(sleeping: &AtomicU64) {
    sleeping.store(1, Ordering::Relaxed);
    // Pairs with the fence in `must_ring`.
    fence(Ordering::SeqCst);
}

/// The owner is awake.
pub(super) fn disarm(sleeping: &AtomicU64) {
    sleeping.store(0, Ordering::Relaxed);
}

/// True if the owner must be woken. Before it, the poster has published what there is to see.
#[inline]
pub(super) fn must_ring(sleeping: &AtomicU64) -> bool {
    // Pairs with the fence in `arm`.
    fence(Ordering::SeqCst);
    sleeping.load(Ordering::Relaxed) != 0
}
