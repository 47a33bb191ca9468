//! A wait cell: where an application thread, or a future, waits for what a shard will bring it.
//!
//! It knows neither tables nor keys. The shard completes it once; the waiter takes the outcome once, or gives it
//! up. Whichever comes second finds out, so that nothing is completed twice and no waker is lost.

use std::task::{Poll, Waker};

use crate::ground::Status;
use crate::sync::{ArrayQueue, AtomicU8, AtomicU64, AtomicWaker, Ordering};

/// One outcome on its way from a shard to whoever waits.
#[derive(Debug)]
pub struct WaitCell<T> {
    outcome: ArrayQueue<Result<T, Status>>,
    /// What the waiter wants: see the constants.
    wish: AtomicU8,
    /// Where the shard keeps it: the shard's own note, which nobody else reads.
    seat: AtomicU64,
    waker: AtomicWaker,
    /// What the stages of the shard have to say of the outcome; zero for nothing.
    waking: AtomicU64,
}

/// It waits.
const WAITS: u8 = 0;
/// It is gone, and wants no outcome.
const GONE: u8 = 1;
/// It is to end with the status of a cancel, unless it has ended.
const STOPPED: u8 = 2;
/// In no seat.
const NOWHERE: u64 = u64::MAX;

impl<T> Default for WaitCell<T> {
    fn default() -> Self {
        Self {
            outcome: ArrayQueue::new(1),
            wish: AtomicU8::new(WAITS),
            seat: AtomicU64::new(NOWHERE),
            waker: AtomicWaker::new(),
            waking: AtomicU64::new(0),
        }
    }
}

impl<T> WaitCell<T> {
    /// Brings the outcome and wakes the waiter. A second outcome is dropped.
    pub(crate) fn complete(&self, outcome: Result<T, Status>) {
        let _ = self.outcome.push(outcome);
        self.waker.wake();
    }

    /// Says of the outcome that comes next when it set out. Its completion publishes this too.
    pub(crate) fn wakes(&self, waking: u64) {
        self.waking.store(waking, Ordering::Relaxed);
    }

    /// When the outcome that was taken had set out, if somebody says so. Said once.
    pub(crate) fn woke(&self) -> Option<u64> {
        match self.waking.load(Ordering::Relaxed) {
            0 => None,
            waking => {
                self.waking.store(0, Ordering::Relaxed);
                Some(waking)
            }
        }
    }

    /// The outcome, if it is there. Takes it.
    pub(crate) fn take(&self) -> Option<Result<T, Status>> {
        self.outcome.pop()
    }

    /// The outcome, or `waker` is woken when it is there.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Result<T, Status>> {
        if let Some(outcome) = self.take() {
            return Poll::Ready(outcome);
        }
        self.waker.register(waker);
        // The outcome may have come between the look and the registration, and its wake found no waker.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// The waiter is gone. Pairs with the Acquire in `is_abandoned`.
    pub(crate) fn abandon(&self) {
        self.wish.store(GONE, Ordering::Release);
    }

    /// The waiter is to hear that it was cancelled. Pairs with the Acquire in `is_stopped`.
    pub(crate) fn stop(&self) {
        self.wish.store(STOPPED, Ordering::Release);
    }

    /// True once the waiter is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.wish.load(Ordering::Acquire) == GONE
    }

    /// True once the waiter is to hear that it was cancelled.
    pub(crate) fn is_stopped(&self) -> bool {
        self.wish.load(Ordering::Acquire) == STOPPED
    }

    /// Where the shard keeps it, for the shard alone.
    pub(crate) fn seat(&self) -> Option<u64> {
        Some(self.seat.load(Ordering::Relaxed)).filter(|&seat| seat != NOWHERE)
    }

    /// The shard keeps it there.
    pub(crate) fn sit(&self, seat: u64) {
        self.seat.store(seat, Ordering::Relaxed);
    }

    /// Empties the cell for another use; the caller owns it alone.
    pub(crate) fn reset(&self) {
        while self.outcome.pop().is_some() {}
        self.waker.take();
        self.wish.store(WAITS, Ordering::Relaxed);
        self.seat.store(NOWHERE, Ordering::Relaxed);
        self.waking.store(0, Ordering::Relaxed);
    }
}
