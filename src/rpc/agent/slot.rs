//! Slots: where a thread, or a future, waits for one outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use rendez::mail::wait::Awaited;

type Callback = Box<dyn FnOnce() + Send>;

/// One outcome, on its way to who waits for it.
pub(crate) struct Slot<T> {
    is_filled: AtomicBool,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Option<T>,
    /// Most often one.
    wakers: Vec<Waker>,
    callbacks: Vec<Callback>,
}

impl<T> State<T> {
    fn add(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|other| other.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }
}

/// For threads: what is there is left in its place.
impl<T> Awaited for Slot<T> {
    type Outcome = ();

    fn look(&self) -> Option<()> {
        self.is_filled().then_some(())
    }

    fn watch(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.state();
        if self.is_filled() {
            return Poll::Ready(());
        }
        state.add(waker);
        Poll::Pending
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            is_filled: AtomicBool::new(false),
            state: Mutex::new(State {
                value: None,
                wakers: Vec::new(),
                callbacks: Vec::new(),
            }),
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
        let wakers = std::mem::take(&mut state.wakers);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
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
                state.add(waker);
                Poll::Pending
            }
        }
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
