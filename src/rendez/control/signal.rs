//! A signal: a thing that happens once, for any number of tasks of one thread to wait for.
//!
//! Knows nothing of what it stands for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Happens once and stays.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_set: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Lets it happen.
    pub(crate) fn set(&self) {
        self.is_set.set(true);
        for waker in self.wakers.take() {
            waker.wake();
        }
    }

    /// True once it has happened.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.get()
    }

    /// Waits until it has happened.
    pub(crate) async fn wait(&self) {
        poll_fn(|context| {
            if self.is_set.get() {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            // A task that is polled for other reasons would add itself again and again.
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
