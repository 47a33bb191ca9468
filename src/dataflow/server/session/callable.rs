//! Callables: a kind of step that was prepared once.

use std::sync::Arc;
use std::time::Duration;

use super::fetches::spread;
use super::{Inner, StepOptions};
use rendez::ground::Status;
use rendez::memory::Tensor;

/// A kind of step, prepared. The last one dropped is released.
#[derive(Debug)]
pub struct Callable {
    session: Arc<Inner>,
    of: Arc<str>,
    handle: i64,
    /// Where each fetch stands among the distinct ones; empty if none comes twice.
    places: Vec<usize>,
}

impl Callable {
    pub(super) const fn new(
        session: Arc<Inner>,
        of: Arc<str>,
        handle: i64,
        places: Vec<usize>,
    ) -> Self {
        Self {
            session,
            of,
            handle,
            places,
        }
    }

    /// Runs a step with these feeds, in the order in which they were named. Gives what is fetched, in order. Several
    /// threads may call at once.
    ///
    /// # Errors
    /// As [`Session::run`](super::Session::run).
    pub fn run(&self, feeds: &[Tensor]) -> Result<Vec<Tensor>, Status> {
        self.run_with(&StepOptions::default(), feeds)
    }

    /// The same, and gives up after `patience` with `STEP_DEADLINE`.
    ///
    /// # Errors
    /// As [`Callable::run`]; `STEP_DEADLINE`.
    pub fn run_within(&self, patience: Duration, feeds: &[Tensor]) -> Result<Vec<Tensor>, Status> {
        let options = StepOptions {
            patience: Some(patience),
            ..StepOptions::default()
        };
        self.run_with(&options, feeds)
    }

    /// The same, in the manner that `options` say.
    ///
    /// # Errors
    /// As [`Callable::run_within`].
    pub fn run_with(&self, options: &StepOptions, feeds: &[Tensor]) -> Result<Vec<Tensor>, Status> {
        let manner = self.session.manner(options);
        // Of a session that was closed, it says so without asking.
        self.session.handle()?;
        let fetched =
            self.session
                .way
                .run_callable(&self.of, self.handle, feeds.to_vec(), manner)?;
        Ok(spread(&self.places, fetched))
    }
}

impl Drop for Callable {
    fn drop(&mut self) {
        if self.session.handle().is_ok() {
            self.session.way.release_callable(&self.of, self.handle);
        }
    }
}
