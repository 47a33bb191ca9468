//! Several outcomes made into one: what a master tells its client when many workers failed at once.
//!
//! Knows nothing of which tasks reported them. One root failure often comes with a crowd of *derived* ones, its
//! consequences on other tasks. A group keeps the two apart, forgets repetitions, and speaks of the roots.

use std::fmt::Write;

use super::{Code, Status};
use crate::ground::limits::STATUS_GROUP_MAX;

/// The outcomes of several operations, to be told as one.
///
/// ```
/// # extern crate rendez_core as rendez;
/// use rendez::ground::{Status, StatusGroup, catalogue};
///
/// let lost = Status::of(catalogue::PEER_LOST, "/job:a/replica:0/task:1 is gone");
/// let mut group = StatusGroup::default();
/// group.add(Ok(()));
/// group.add(Err(lost.clone()));
/// group.add(Err(Status::of(catalogue::STEP_ABORTED, "step 7 was aborted").derived()));
/// assert_eq!(group.summary(), Err(lost));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StatusGroup {
    roots: Vec<Status>,
    derived: Vec<Status>,
    roots_unlisted: usize,
    derived_unlisted: usize,
    successes: usize,
}

impl StatusGroup {
    /// Adds one outcome. A status that is there already counts once.
    ///
    /// Beyond [`STATUS_GROUP_MAX`] different ones of a kind, further ones are counted and not kept.
    pub fn add(&mut self, outcome: Result<(), Status>) {
        let Err(status) = outcome else {
            self.successes += 1;
            return;
        };
        let (kept, unlisted) = if status.is_derived() {
            (&mut self.derived, &mut self.derived_unlisted)
        } else {
            (&mut self.roots, &mut self.roots_unlisted)
        };
        if kept.contains(&status) {
            return;
        }
        if kept.len() < STATUS_GROUP_MAX {
            kept.push(status);
        } else {
            *unlisted += 1;
        }
    }

    /// True if nothing failed.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.roots.is_empty() && self.derived.is_empty()
    }

    /// One status for all: the only root as it is, or a numbered list of the roots under the first of their codes
    /// that is not `Cancelled`; without any root the first derived one, still derived.
    ///
    /// # Errors
    /// That status, if anything failed.
    pub fn summary(&self) -> Result<(), Status> {
        let first = match (self.roots.as_slice(), self.derived.first()) {
            ([], None) => return Ok(()),
            ([], Some(derived)) => return Err(derived.clone()),
            ([only], _) => return Err(only.clone()),
            ([first, ..], _) => first,
        };
        let named = self
            .roots
            .iter()
            .find(|root| root.code != Code::Cancelled)
            .unwrap_or(first);
        let mut message = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            message,
            "{} root error(s) found.",
            self.roots.len() + self.roots_unlisted
        );
        for (index, root) in self.roots.iter().enumerate() {
            let _ = write!(message, "\n  ({index}) {}: {}", root.code, root.message);
        }
        let _ = write!(message, "\n{} successful operations.", self.successes);
        let _ = write!(
            message,
            "\n{} derived errors ignored.",
            self.derived.len() + self.derived_unlisted
        );
        Err(Status::new(named.code, named.reason, message))
    }
}
