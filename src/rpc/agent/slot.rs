//! Slots: where a thread, or a future, waits for one outcome.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use rendez::ground::Locked;
use rendez::mail::wait::Awaited;

use super::panics::contained;

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
        let mut state = self.state.locked();
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
    /// Brings the outcome. A second one is dropped.
    pub(crate) fn fill(&self, value: T) {
        let mut state = self.state.locked();
        if self.is_filled.load(Ordering::Relaxed) {
            return;
        }
        state.value = Some(value);
        // Pairs with the Acquire in `is_filled`; the value itself is under the lock.
        self.is_filled.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut state.wakers);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        // Each by itself: the others are told although one panics.
        wakers
            .into_iter()
            .for_each(|waker| contained("a wait", || waker.wake()));
        callbacks
            .into_iter()
            .for_each(|callback| contained("a call", callback));
    }

    /// True once it is there, also after it was taken.
    pub(crate) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }

    /// The outcome, if it is there and was not taken.
    pub(crate) fn take(&self) -> Option<T> {
        match self.is_filled() {
            true => self.state.locked().value.take(),
            false => None,
        }
    }

    /// The outcome, if it is there, and was not taken: it stays, for others too.
    pub(crate) fn copy(&self) -> Option<T>
    where
        T: Clone,
    {
        self.state.locked().value.clone()
    }

    /// What `look` says of the outcome; false if it is not there.
    pub(crate) fn peek(&self, look: impl FnOnce(&T) -> bool) -> bool {
        self.state.locked().value.as_ref().is_some_and(look)
    }

    /// The outcome, or `waker` is woken when it is there.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<T> {
        let mut state = self.state.locked();
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.add(waker);
                Poll::Pending
            }
        }
    }

    /// Calls `callback` when it is there: at once if it is. A panic of it ends nothing else.
    pub(crate) fn then(&self, callback: Callback) {
        let mut state = self.state.locked();
        if self.is_filled.load(Ordering::Relaxed) {
            drop(state);
            contained("a call", callback);
        } else {
            state.callbacks.push(callback);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    /// Counts how often it is woken, and panics.
    struct Bomb(AtomicUsize);

    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("a waker that panics");
        }
    }

    #[test]
    fn what_panics_at_the_end_of_a_wait_keeps_nothing_from_the_others() {
        let slot = Slot::default();
        let bombs = [(); 2].map(|()| Arc::new(Bomb(AtomicUsize::new(0))));
        for bomb in &bombs {
            let waker = Waker::from(Arc::clone(bomb));
            assert!(slot.poll(&waker).is_pending());
        }
        let called = Arc::new(AtomicUsize::new(0));
        let callback = || {
            let called = Arc::clone(&called);
            Box::new(move || {
                called.fetch_add(1, Ordering::SeqCst);
                panic!("a callback that panics");
            })
        };
        slot.then(callback());
        slot.then(callback());
        slot.fill(7);
        assert!(bombs.iter().all(|bomb| bomb.0.load(Ordering::SeqCst) == 1));
        assert_eq!(called.load(Ordering::SeqCst), 2);
        slot.then(callback());
        assert_eq!((called.load(Ordering::SeqCst), slot.take()), (3, Some(7)));
    }
}
