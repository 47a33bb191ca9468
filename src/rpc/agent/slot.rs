//! Slots: where a thread, or a future, waits for one outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

type Callback = Box<dyn FnOnce() + Send>;

/// One outcome, on its way to who waits for it.
pub(crate) struct Slot<T> {
    is_filled: AtomicBool,
    state: Mutex<State<T>>,
    filled: Condvar,
}

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    callbacks: Vec<Callback>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            is_filled: AtomicBool::new(false),
            state: Mutex::new(State {
                value: None,
                waker: None,
                callbacks: Vec::new(),
            }),
            filled: Condvar::new(),
        }
    }
}

impl<T> Slot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the outcome. A second one is dropped.
    pub(crate) fn fill(&self, value: T) {
        let mut state = self.state();
        if self.is_filled.load(Ordering::Relaxed) {
            return;
        }
        state.value = Some(value);
        // Pairs with the Acquire in `is_filled`; the value itself is under the lock.
        self.is_filled.store(true, Ordering::Release);
        let (waker, callbacks) = (state.waker.take(), std::mem::take(&mut state.callbacks));
        drop(state);
        self.filled.notify_all();
        waker.into_iter().for_each(Waker::wake);
        callbacks.into_iter().for_each(|callback| callback());
    }

    /// True once it is there, also after it was taken.
    pub(crate) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }

    /// The outcome, if it is there and was not taken.
    pub(crate) fn take(&self) -> Option<T> {
        match self.is_filled() {
            true => self.state().value.take(),
            false => None,
        }
    }

    /// What `look` says of the outcome; false if it is not there.
    pub(crate) fn peek(&self, look: impl FnOnce(&T) -> bool) -> bool {
        self.state().value.as_ref().is_some_and(look)
    }

    /// The outcome, or `waker` is woken when it is there.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<T> {
        let mut state = self.state();
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// Blocks until it is there, or for `patience`. True if it is.
    pub(crate) fn wait(&self, patience: Option<Duration>) -> bool {
        // An answer of a worker that is awake takes a few microseconds: less than to sleep and be woken.
        for _ in 0..2000 {
            if self.is_filled() {
                return true;
            }
            std::hint::spin_loop();
        }
        let until = patience.map(|patience| Instant::now() + patience);
        let mut state = self.state();
        while !self.is_filled() {
            state = match until {
                None => self
                    .filled
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.filled.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    /// Calls `callback` when it is there: at once if it is.
    pub(crate) fn then(&self, callback: Callback) {
        let mut state = self.state();
        if self.is_filled.load(Ordering::Relaxed) {
            drop(state);
            callback();
        } else {
            state.callbacks.push(callback);
        }
    }
}
