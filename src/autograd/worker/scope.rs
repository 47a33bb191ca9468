//! A context for the part of a program that a scope is there.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Worker;
use super::current::{Entered, enter_nested};
use crate::autograd::{ContextId, LocalEngine, Options};
use rendez::ground::Status;

/// A context that is current in this thread until this is dropped; then it is released everywhere.
pub struct Scope<E: LocalEngine> {
    worker: Worker<E>,
    context: ContextId,
    _entered: Entered,
}

impl<E: LocalEngine> Scope<E> {
    pub(super) fn enter(worker: Worker<E>, context: ContextId) -> Self {
        Self {
            worker,
            context,
            _entered: enter_nested(context),
        }
    }

    /// The context.
    #[must_use]
    pub const fn id(&self) -> ContextId {
        self.context
    }

    /// Runs a backward pass with the usual options, however long it takes.
    ///
    /// # Errors
    /// As [`Worker::backward`].
    pub fn backward(&self, roots: &[E::Value]) -> Result<(), Status> {
        self.worker
            .backward(self.context, roots, Options::default())
    }

    /// The same, for at most `patience`; zero is no limit.
    ///
    /// # Errors
    /// As [`Worker::backward_within`].
    pub fn backward_within(&self, roots: &[E::Value], patience: Duration) -> Result<(), Status> {
        self.worker
            .backward_within(self.context, roots, Options::default(), patience)
    }

    /// The gradients of the leaves here.
    ///
    /// # Errors
    /// As [`Worker::gradients`].
    pub fn gradients(&self) -> Result<BTreeMap<u64, E::Gradient>, Status> {
        self.worker.gradients(self.context)
    }
}

impl<E: LocalEngine> Drop for Scope<E> {
    fn drop(&mut self) {
        // It may have been released before its time.
        let _ = self.worker.release_context(self.context);
    }
}

shown! { <E: LocalEngine> Scope<E> { context } }
