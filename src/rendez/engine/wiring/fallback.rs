//! Fallbacks: to which peers the way is not the best one of this machine, why, and how often it came to that.
//!
//! Knows what the control plane found; it decides on no path.

use std::sync::Arc;

use super::{Connected, Wiring};
use crate::control::{Offers, Path};
use crate::ground::device::TaskName;
use crate::ground::limits;

/// A path that was taken because a better one was unavailable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// The peer.
    pub task: TaskName,
    /// What was tried.
    pub from: Path,
    /// What was taken.
    pub to: Path,
    /// Why, the last time: for people.
    pub why: String,
    /// Why, the last time, as a label has it: that of [`Path::reason`].
    pub reason: &'static str,
    /// How many of its connections came about so.
    pub count: u64,
}

impl Wiring {
    /// Counts a fallback, and tells the first with each peer.
    pub(super) fn fell_back(&self, connected: &Connected, from: Path) {
        let (task, why) = (connected.task.clone(), connected.why.clone());
        if task.job() == crate::engine::OBSERVER_JOB {
            // A visitor hands nothing over, and has another name every time.
            return;
        }
        let lacks = |offers: &Arc<dyn Offers>| offers.path() == from && offers.lack().is_some();
        let reason = from.reason(self.transports.offers().iter().any(lacks));
        let mut book = self.book();
        if !book.fallbacks.contains_key(&task) && book.fallbacks.len() >= limits::PEERS_MAX {
            return;
        }
        let fallbacks = book.fallbacks.entry(task).or_default();
        if fallbacks.is_empty() {
            let (task, to, from) = (&connected.task, connected.path.name(), from.name());
            tracing::warn!(%task, from, to, %why, "the best way to a peer is unavailable; this is logged once");
        }
        let same = |known: &Fallback| {
            (known.from, known.to, known.reason) == (from, connected.path, reason)
        };
        let known = fallbacks.iter().position(same);
        let count = known.map_or(0, |at| fallbacks.remove(at).count);
        fallbacks.push(Fallback {
            task: connected.task.clone(),
            from,
            to: connected.path,
            why,
            reason,
            count: count + 1,
        });
    }

    /// The paths that were taken for want of a better one: of each peer the last, and how many there were of all.
    pub(crate) fn fallbacks(&self) -> Vec<Fallback> {
        let book = self.book();
        let last = book.fallbacks.values().filter_map(|all| {
            let count = all.iter().map(|one| one.count).sum();
            let last = all.last()?.clone();
            Some(Fallback { count, ..last })
        });
        last.collect()
    }

    /// The same, each with its own count: what was counted under other ways or another reason stays there.
    pub(crate) fn each_fallback(&self) -> Vec<Fallback> {
        self.book().fallbacks.values().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests;
