//! A wait cell: where an application thread, or a future, waits for what a shard will bring it.
//!
//! It knows neither tables nor keys. One word of it says who comes first: the shard that brings the outcome, or the
//! waiter that gives it up. The second of them finds out, and owns the outcome: the waiter takes it, or the shard
//! brings it to another waiter. So nothing is completed twice, nothing is lost between them, and no waker is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, Waker};

use crate::ground::Status;
use crate::sync::{ArrayQueue, AtomicU8, AtomicU64, AtomicWaker, Ordering};

/// One outcome on its way from a shard to its waiter.
#[derive(Debug)]
pub struct WaitCell<T> {
    outcome: ArrayQueue<Result<T, Status>>,
    /// Which side came first: see the constants.
    state: AtomicU8,
    /// Where the shard keeps it: the shard's own note, which no other thread reads.
    seat: AtomicU64,
    waker: AtomicWaker,
    /// What the stages of the shard have to say of the outcome; zero for nothing.
    waking: AtomicU64,
}

/// The waiter waits.
const WAITS: u8 = 0;
/// It is gone, and takes no outcome.
const GONE: u8 = 1;
/// It is to end with the status of a cancel, unless it has ended.
const STOPPED: u8 = 2;
/// The outcome is here, and the waiter's.
const FULL: u8 = 3;
/// The bits of the state without [`WATCHED`].
const KIND: u8 = 3;
/// A waker is there, to be woken by the outcome.
const WATCHED: u8 = 4;
/// In no seat.
const NOWHERE: u64 = u64::MAX;

impl<T> Default for WaitCell<T> {
    fn default() -> Self {
        Self {
            outcome: ArrayQueue::new(1),
            state: AtomicU8::new(WAITS),
            seat: AtomicU64::new(NOWHERE),
            waker: AtomicWaker::new(),
            waking: AtomicU64::new(0),
        }
    }
}

/// What a thread can wait for while it turns a shard.
pub trait Awaited {
    /// What it brings.
    type Outcome;
    /// The outcome, if it is there. Takes it.
    fn look(&self) -> Option<Self::Outcome>;
    /// The outcome, or `waker` is woken when it is there.
    fn watch(&self, waker: &Waker) -> Poll<Self::Outcome>;
}

impl<T> Awaited for WaitCell<T> {
    type Outcome = Result<T, Status>;

    #[inline]
    fn look(&self) -> Option<Self::Outcome> {
        self.take()
    }

    fn watch(&self, waker: &Waker) -> Poll<Self::Outcome> {
        self.poll(waker)
    }
}

impl<T> WaitCell<T> {
    /// Brings the outcome and wakes the waiter. The outcome comes back if the waiter is gone, or has had one.
    pub(crate) fn complete(&self, outcome: Result<T, Status>) -> Option<Result<T, Status>> {
        if let Err(outcome) = self.outcome.push(outcome) {
            return Some(outcome);
        }
        // The Release publishes the outcome to the Acquire in `take`.
        let before = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                matches!(state & KIND, WAITS | STOPPED).then_some(FULL)
            });
        match before {
            // No other thread takes from a cell that was not filled.
            Err(_) => return self.outcome.pop(),
            Ok(state) if state & WATCHED != 0 => self.wake(),
            Ok(_) => {}
        }
        None
    }

    /// Wakers are foreign: the panic of one is its future's, and not the shard's whose turn brings the outcome. What it
    /// says, the process's panic hook has told.
    fn wake(&self) {
        let woken = catch_unwind(AssertUnwindSafe(|| self.waker.wake()));
        if let Err(panic) = woken {
            // What it carries may be anything, and panic itself.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
        }
    }

    /// Says of the outcome that comes next when it set out. Its completion publishes this too.
    pub(crate) fn wakes(&self, waking: u64) {
        self.waking.store(waking, Ordering::Relaxed);
    }

    /// When the outcome that was taken had set out, if the shard recorded it. Returned once.
    pub fn woke(&self) -> Option<u64> {
        match self.waking.load(Ordering::Relaxed) {
            0 => None,
            waking => {
                self.waking.store(0, Ordering::Relaxed);
                Some(waking)
            }
        }
    }

    /// True if the outcome is still to come, and the waiter there.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire) & KIND, WAITS | STOPPED)
    }

    /// The outcome, if it is there. Takes it.
    pub fn take(&self) -> Option<Result<T, Status>> {
        if self.state.load(Ordering::Acquire) == FULL {
            self.outcome.pop()
        } else {
            None
        }
    }

    /// True if the outcome is there.
    pub fn is_filled(&self) -> bool {
        self.state.load(Ordering::Acquire) == FULL && !self.outcome.is_empty()
    }

    /// The outcome, or `waker` is woken when it is there.
    pub fn poll(&self, waker: &Waker) -> Poll<Result<T, Status>> {
        if let Some(outcome) = self.take() {
            return Poll::Ready(outcome);
        }
        self.waker.register(waker);
        // Of this and the completion one comes first: it sees that there is a waker, or this that the outcome is here.
        let watched = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                (state != FULL).then_some(state | WATCHED)
            });
        match watched {
            Ok(_) => Poll::Pending,
            Err(_) => self.take().map_or(Poll::Pending, Poll::Ready),
        }
    }

    /// The waiter waits no more. False if the outcome came first: then it is here, and the waiter's.
    pub fn give_up(&self) -> bool {
        self.leave(GONE)
    }

    /// The waiter is to hear that it was cancelled. Pairs with the Acquire in `is_stopped`.
    pub fn stop(&self) {
        let _ = self.leave(STOPPED);
    }

    fn leave(&self, state: u8) -> bool {
        // The Release pairs with the Acquire of the side that sees it so; the Acquire, with the Release of an outcome.
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                (now != FULL).then_some(state | now & WATCHED)
            })
            .is_ok()
    }

    /// True once the waiter is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.state.load(Ordering::Acquire) & KIND == GONE
    }

    /// True once the waiter is to hear that it was cancelled.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.load(Ordering::Acquire) & KIND == STOPPED
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
    pub fn reset(&self) {
        if !self.outcome.is_empty() {
            self.outcome.pop();
        }
        self.waker.take();
        self.state.store(WAITS, Ordering::Relaxed);
        self.seat.store(NOWHERE, Ordering::Relaxed);
        self.waking.store(0, Ordering::Relaxed);
    }
}
