//! Partial runs, as programs see them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Inner;
use rendez::ground::Status;
use rendez::memory::Tensor;

/// A step that is fed and fetched from piece by piece. Dropped before it has ended, it is given up.
#[derive(Debug)]
pub struct PartialRun {
    session: Arc<Inner>,
    of: Arc<str>,
    handle: String,
}

impl PartialRun {
    pub(super) const fn new(session: Arc<Inner>, of: Arc<str>, handle: String) -> Self {
        Self {
            session,
            of,
            handle,
        }
    }

    /// Feeds some of what was named in the setup, and gives some of what can be computed from what was fed so far. When
    /// all of it was fed and fetched the step ends.
    ///
    /// # Errors
    /// `PARTIAL_RUN` for what was not named, was had before, or cannot be computed yet, and the step goes on;
    /// `PARTIAL_RUN_NONE` after its end; why the step failed.
    pub fn run(&self, feeds: &[(&str, Tensor)], fetches: &[&str]) -> Result<Vec<Tensor>, Status> {
        self.run_until(feeds, fetches, self.session.deadline())
    }

    /// The same, and gives up after `patience`: the whole step then ends.
    ///
    /// # Errors
    /// As [`PartialRun::run`]; `DeadlineExceeded`.
    pub fn run_within(
        &self,
        patience: Duration,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>, Status> {
        self.run_until(feeds, fetches, Instant::now().checked_add(patience))
    }

    fn run_until(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        self.session.handle()?;
        let feeds = feeds
            .iter()
            .map(|(name, tensor)| ((*name).to_owned(), tensor.clone()));
        let fetches = fetches.iter().map(|&name| name.to_owned()).collect();
        let way = &self.session.way;
        way.run_partial(&self.of, &self.handle, feeds.collect(), fetches, deadline)
    }
}

impl Drop for PartialRun {
    fn drop(&mut self) {
        if self.session.handle().is_ok() {
            self.session.way.abandon(&self.of, &self.handle);
        }
    }
}
