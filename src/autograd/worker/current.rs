//! The context of a thread: calls that it makes belong to that.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::autograd::ContextId;
use rendez::ground::{Status, catalogue};

thread_local! {
    static CONTEXTS: RefCell<Vec<Option<ContextId>>> = const { RefCell::new(vec![]) };
}

/// A context is that of this thread until this is dropped.
#[derive(Debug)]
#[must_use = "the context is left when this is dropped"]
pub struct Entered {
    /// Not for another thread.
    _here: PhantomData<*const ()>,
}

/// The context of this thread, the innermost.
#[must_use]
pub fn current_context() -> Option<ContextId> {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().flatten())
}

/// Refuses if this thread is in a context.
pub(super) fn check() -> Result<(), Status> {
    match current_context() {
        None => Ok(()),
        Some(context) => {
            let message =
                format!("Already have an autograd context id for this thread. It is {context}");
            Err(Status::of(catalogue::AUTOGRAD_CONTEXT_NESTED, message))
        }
    }
}

/// Enters a context, or none, whatever the thread is in.
pub(crate) fn enter_nested(context: impl Into<Option<ContextId>>) -> Entered {
    let context = context.into();
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
    Entered { _here: PhantomData }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CONTEXTS.with_borrow_mut(|contexts| contexts.pop());
    }
}
