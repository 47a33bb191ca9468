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
        let fallback = book
            .fallbacks
            .entry(task)
            .or_insert_with_key(|task| Fallback {
                task: task.clone(),
                from,
                to: connected.path,
                why: String::new(),
                reason,
                count: 0,
            });
        fallback.count += 1;
        (fallback.why, fallback.reason) = (why, reason);
        (fallback.from, fallback.to) = (from, connected.path);
        if fallback.count == 1 {
            let Fallback {
                task,
                from,
                to,
                why,
                ..
            } = fallback;
            let (from, to) = (from.name(), to.name());
            tracing::warn!(%task, from, to, %why, "the best way to a peer is unavailable; this is logged once");
        }
    }
}
