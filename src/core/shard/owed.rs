//! Owed: outcomes that a shard owes for what it has in its hands.
//!
//! It knows waiters; not what they wait for. A panic unwinds what is in hand, which stands in no list that the end of
//! the shard goes through. So what goes in this way is noted on its thread, and that end tells it too.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::panicking::quietly;
use crate::ground::Status;
use crate::mail::pending_send::SendCell;
use crate::mail::wait::WaitCell;

std::thread_local! {
    /// What this thread has dropped without an outcome, as it unwound.
    static DROPPED: RefCell<Vec<Arc<dyn Owing>>> = const { RefCell::new(Vec::new()) };
}

/// What a waiter hears by.
pub(crate) trait Owing: fmt::Debug {
    /// True if its outcome is still to come.
    fn is_open(&self) -> bool;
    /// The outcome is this.
    fn fail(&self, status: &Status);
}

impl<T: fmt::Debug> Owing for WaitCell<T> {
    fn is_open(&self) -> bool {
        Self::is_open(self)
    }

    fn fail(&self, status: &Status) {
        self.complete(Err(status.clone()));
    }
}

impl Owing for SendCell {
    fn is_open(&self) -> bool {
        self.outcome.is_open()
    }

    fn fail(&self, status: &Status) {
        self.outcome.fail(status);
    }
}

/// Where the outcome is to be brought.
#[derive(Debug)]
pub(crate) struct Owed<C: Owing + 'static>(Arc<C>);

impl<C: Owing + 'static> Owed<C> {
    #[inline]
    pub(crate) const fn new(to: Arc<C>) -> Self {
        Self(to)
    }

    /// True if it is owed to that one.
    pub(crate) fn is_to(&self, other: &Arc<C>) -> bool {
        Arc::ptr_eq(&self.0, other)
    }

    #[cold]
    fn note(&self) {
        if self.0.is_open() {
            let to: Arc<dyn Owing> = Arc::<C>::clone(&self.0);
            // A thread that ends has no list any more, and no shard.
            let _ = DROPPED.try_with(|dropped| dropped.borrow_mut().push(to));
        }
    }
}

impl<C: Owing + 'static> Deref for Owed<C> {
    type Target = C;

    #[inline]
    fn deref(&self) -> &C {
        &self.0
    }
}

impl<C: Owing + 'static> Drop for Owed<C> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.note();
        }
    }
}

/// Tells all that this thread has dropped so.
pub(super) fn fail_dropped(status: &Status) {
    for owing in DROPPED.take() {
        // What it holds goes with it, and may panic.
        let _ = quietly(move || owing.fail(status));
    }
}
