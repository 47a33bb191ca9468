//! A signal: a thing that happens once, for any number of tasks of one thread to wait for.
//!
//! Knows nothing of what it stands for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Happens once and stays.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_set: Cell<bool>,
    wakers: RefCell<BTreeMap<u64, Waker>>,
    next: Cell<u64>,
}

/// A place among those who wait, given back when dropped.
struct Place<'a> {
    signal: &'a Signal,
    number: u64,
}

impl Signal {
    /// Lets it happen.
    pub(crate) fn set(&self) {
        self.is_set.set(true);
        for waker in self.wakers.take().into_values() {
            waker.wake();
        }
    }

    /// True once it has happened.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.get()
    }

    /// Waits until it has happened.
    pub(crate) async fn wait(&self) {
        let number = self.next.get();
        self.next.set(number + 1);
        let place = Place {
            signal: self,
            number,
        };
        poll_fn(|context| {
            if self.is_set.get() {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            wakers
                .entry(place.number)
                .and_modify(|waker| waker.clone_from(context.waker()))
                .or_insert_with(|| context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Let go of after the borrow: the last waker of a task may take the task with it, and its other places.
        let waker = self.signal.wakers.borrow_mut().remove(&self.number);
        drop(waker);
    }
}

#[cfg(test)]
mod tests;
