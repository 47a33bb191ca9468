//! Callables: a kind of step that was prepared once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Inner;
use crate::ground::Status;
use crate::memory::Tensor;

/// A kind of step, prepared. The last one dropped is released.
#[derive(Debug)]
pub struct Callable {
    session: Arc<Inner>,
    of: Arc<str>,
    handle: i64,
}

impl Callable {
    pub(super) const fn new(session: Arc<Inner>, of: Arc<str>, handle: i64) -> Self {
        Self {
            session,
            of,
            handle,
        }
    }

    /// Runs a step with these feeds, in the order in which they were named. Gives what is fetched, in order. Several
    /// threads may call at once.
    ///
    /// # Errors
    /// As [`Session::run`](super::Session::run).
    pub fn run(&self, feeds: &[Tensor]) -> Result<Vec<Tensor>, Status> {
        self.run_until(feeds, self.session.deadline())
    }

    /// The same, and gives up after `patience` with `STEP_DEADLINE`.
    ///
    /// # Errors
    /// As [`Callable::run`]; `STEP_DEADLINE`.
    pub fn run_within(&self, patience: Duration, feeds: &[Tensor]) -> Result<Vec<Tensor>, Status> {
        self.run_until(feeds, Instant::now().checked_add(patience))
    }

    fn run_until(
        &self,
        feeds: &[Tensor],
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        // Of a session that was closed, it says so without asking.
        self.session.handle()?;
        self.session
            .way
            .run_callable(&self.of, self.handle, feeds.to_vec(), deadline)
    }
}

impl Drop for Callable {
    fn drop(&mut self) {
        if self.session.handle().is_ok() {
            self.session.way.release_callable(&self.of, self.handle);
        }
    }
}
