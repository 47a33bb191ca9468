//! Promises: what the desk has in its hands for who waits, and owes an end.
//!
//! A desk that panics drops what it was about. An end that is not brought by then is that of a worker that has left.

use std::ops::Deref;
use std::sync::Arc;

use super::shared::{CallAnswer, Ticket};
use super::slot::Slot;
use crate::error::{Error, shut_down};
use crate::id::WorkerId;

/// The end of a call, as it is promised to who waits for it. There is one for a call, which goes from hand to hand.
pub(crate) struct Promise(Arc<Ticket>);

impl Promise {
    pub(crate) const fn new(ticket: Arc<Ticket>) -> Self {
        Self(ticket)
    }

    /// By which it is known among others.
    pub(crate) fn place(&self) -> *const Ticket {
        Arc::as_ptr(&self.0)
    }
}

impl Deref for Promise {
    type Target = Ticket;

    fn deref(&self) -> &Ticket {
        &self.0
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // Most often it is kept, and to look is less than to bring what is dropped.
        if !self.0.slot.is_filled() {
            self.0.slot.fill(CallAnswer::shutdown(self.0.to));
        }
    }
}

/// The same for a guest who wants to come.
pub(crate) struct Admission(pub(crate) Arc<Slot<Result<WorkerId, Error>>>);

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.fill(Err(Error::local(shut_down())));
    }
}
