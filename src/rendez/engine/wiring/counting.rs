//! Counting what befell connections: those that were lost and made again, dials that were given up, and peers that were
//! refused.
//!
//! Knows peers and reasons; it decides nothing. Observers do not count: each has another name.

use std::collections::BTreeMap;

use super::Wiring;
use crate::engine::OBSERVER_JOB;
use crate::ground::device::TaskName;
use crate::ground::limits;

/// What befell connections since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Of each peer: bounded by the peers there may be.
    pub(crate) peers: BTreeMap<TaskName, Connections>,
    /// Dials that were given up, by the reason of their last attempt. Reasons are the catalogue's.
    pub(crate) dials_failed: BTreeMap<&'static str, u64>,
    /// Peers that dialled this task and were refused, by reason.
    pub(crate) refused: BTreeMap<&'static str, u64>,
}

/// What befell the connections to one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Connections {
    /// Those that ended without a goodbye.
    pub(crate) lost: u64,
    /// Those to a life of it that had been connected before.
    pub(crate) remade: u64,
}

impl Counts {
    /// Where to count what befell the connections to `task`, if it is to be counted.
    pub(super) fn of(&mut self, task: &TaskName) -> Option<&mut Connections> {
        let has_room = self.peers.len() < limits::PEERS_MAX || self.peers.contains_key(task);
        let is_counted = has_room && task.job() != OBSERVER_JOB;
        is_counted.then(|| self.peers.entry(task.clone()).or_default())
    }
}

impl Wiring {
    /// What befell connections until now.
    pub(crate) fn counts(&self) -> Counts {
        self.book().counts.clone()
    }
}

#[cfg(test)]
mod tests;
