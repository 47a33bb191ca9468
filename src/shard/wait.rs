//! A wait cell: where an application thread, or a future, waits for what a shard will bring it.
//!
//! It knows neither tables nor keys. The shard completes it once; the waiter takes the outcome once, or gives it
//! up. Whichever comes second finds out, so that nothing is completed twice and no waker is lost.

use std::task::{Poll, Waker};

use crate::ground::Status;
use crate::sync::{ArrayQueue, AtomicBool, AtomicWaker, Ordering};

/// One outcome on its way from a shard to whoever waits.
#[derive(Debug)]
pub struct WaitCell<T> {
    outcome: ArrayQueue<Result<T, Status>>,
    is_abandoned: AtomicBool,
    waker: AtomicWaker,
}

impl<T> Default for WaitCell<T> {
    fn default() -> Self {
        Self {
            outcome: ArrayQueue::new(1),
            is_abandoned: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        }
    }
}

impl<T> WaitCell<T> {
    /// Brings the outcome and wakes the waiter. A second outcome is dropped.
    pub(crate) fn complete(&self, outcome: Result<T, Status>) {
        let _ = self.outcome.push(outcome);
        self.waker.wake();
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
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// True once the waiter is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Empties the cell for another use; the caller owns it alone.
    pub(crate) fn reset(&self) {
        while self.outcome.pop().is_some() {}
        self.waker.take();
        self.is_abandoned.store(false, Ordering::Relaxed);
    }
}
