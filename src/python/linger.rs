//! Whether a task that awaits waits a moment itself, before its loop sleeps: where the last values came within that.
//!
//! A loop that sleeps is woken by the kernel, which takes some tens of microseconds at either side; a peer that answers
//! at once takes two. So an await whose last ones came soon waits for a moment in its own thread, without the
//! interpreter's lock, and others go first. After four in a row that came late none waits, but one in many, to try.

use std::sync::atomic::{AtomicU32, Ordering};

/// The longest that a loop is held up, in nanoseconds: a peer that has to be woken for its answer gets by with it.
const MOST: u64 = 300_000;
/// Awaits that linger in vain, each after half of what is left.
const LUCK: u32 = 8;
/// One await in so many tries, where none lingers.
const EACH: u32 = 64;

/// What one loop has learnt.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    luck: AtomicU32,
    awaits: AtomicU32,
}

impl Linger {
    /// For how many nanoseconds the next await may linger; zero for not at all.
    pub(crate) fn patience(&self) -> u64 {
        let is_lucky = self.luck.load(Ordering::Relaxed) > 0;
        match is_lucky || self.awaits.fetch_add(1, Ordering::Relaxed) % EACH == EACH - 1 {
            true => MOST,
            false => 0,
        }
    }

    /// One has lingered; whether its value came.
    pub(crate) fn has_ended(&self, came: bool) {
        let next = match came {
            true => LUCK,
            false => self.luck.load(Ordering::Relaxed) / 2,
        };
        self.luck.store(next, Ordering::Relaxed);
    }
}
