//! The context of a thread: calls that it makes belong to that.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use crate::autograd::ContextId;
use rendez::ground::{Status, catalogue};

thread_local! {
    /// What it is in, the innermost last, each with the number of what entered it.
    static CONTEXTS: RefCell<Vec<(u64, Option<ContextId>)>> = const { RefCell::new(vec![]) };
    static ENTERED: Cell<u64> = const { Cell::new(0) };
}

/// A context is that of this thread until this is dropped.
#[derive(Debug)]
#[must_use = "the context is left when this is dropped"]
pub struct Entered {
    number: u64,
    /// Not for another thread.
    _here: PhantomData<*const ()>,
}

/// The context of this thread, the innermost.
#[must_use]
pub fn current_context() -> Option<ContextId> {
    CONTEXTS.with_borrow(|contexts| contexts.last().and_then(|(_, context)| *context))
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
    let (number, context) = (ENTERED.get(), context.into());
    ENTERED.set(number + 1);
    CONTEXTS.with_borrow_mut(|contexts| contexts.push((number, context)));
    Entered {
        number,
        _here: PhantomData,
    }
}

impl Drop for Entered {
    /// Others that were entered after it may still be there.
    fn drop(&mut self) {
        let own = |(number, _): &(u64, _)| *number == self.number;
        CONTEXTS.with_borrow_mut(|contexts| {
            let at = contexts.iter().rposition(own);
            at.map(|at| contexts.remove(at))
        });
    }
}
