//! Admission: which peers an engine meets, once the control plane has identified them.
//!
//! Knows names and epochs. A peer's identity is proved before, by user, secret or certificate.

use std::collections::BTreeSet;

use super::config::Config;
use crate::control::PeerHello;
use crate::ground::device::TaskName;
use crate::ground::limits::FEATURE_NAME_MAX;
use crate::ground::{Code, Status, catalogue};

/// The job of observers, which hand nothing over. It belongs to every cluster.
pub const OBSERVER_JOB: &str = crate::control::OBSERVER_JOB;

/// How a hello names its epoch.
const EPOCH: &str = "epoch=";

/// Of the digest of a long epoch: two that are alike come about by intent alone.
const DIGEST_BYTES: usize = 8;

/// Which peers are met.
#[derive(Debug)]
pub(super) struct Admission {
    /// The tasks that are; `None` for all.
    members: Option<BTreeSet<TaskName>>,
    epoch: Option<String>,
}

impl Admission {
    pub(super) fn new(config: &Config) -> Result<Self, Status> {
        let names = config.peers.keys().chain(&config.known);
        let members = names
            .map(|name| TaskName::parse(name))
            .collect::<Result<_, _>>()?;
        let epoch = config.epoch.as_deref().map(short);
        Ok(Self {
            members: config.closed.then_some(members),
            epoch,
        })
    }

    /// What this task says of itself.
    pub(super) fn features(&self) -> Vec<String> {
        let epoch = self.epoch.as_ref();
        epoch
            .map(|epoch| format!("{EPOCH}{epoch}"))
            .into_iter()
            .collect()
    }

    /// # Errors
    /// Refuses a peer that is not of the cluster, or of another life of its job.
    pub(super) fn judge(&self, peer: &PeerHello) -> Result<(), Status> {
        let task = TaskName::parse(&peer.task)?;
        if task.job() == OBSERVER_JOB {
            return Ok(());
        }
        if self
            .members
            .as_ref()
            .is_some_and(|members| !members.contains(&task))
        {
            let message = format!("{task} is not a task of this cluster");
            return Err(Status::new(
                Code::PermissionDenied,
                catalogue::PEER_NOT_OF_CLUSTER,
                message,
            ));
        }
        let theirs = peer
            .features
            .iter()
            .find_map(|feature| feature.strip_prefix(EPOCH));
        if let (Some(ours), Some(theirs)) = (self.epoch.as_deref(), theirs)
            && ours != theirs
        {
            let message =
                format!("{task} belongs to epoch {theirs}, but this task to epoch {ours}");
            return Err(Status::new(
                Code::FailedPrecondition,
                catalogue::PEER_OTHER_EPOCH,
                message,
            ));
        }
        Ok(())
    }
}

/// An epoch as a hello has room for it. Of a long one a digest tells it from all others, and its end, which counts the
/// restarts, tells people which it is.
fn short(epoch: &str) -> String {
    let room = FEATURE_NAME_MAX - EPOCH.len();
    if epoch.len() <= room {
        return epoch.to_owned();
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, epoch.as_bytes());
    let mut short: String = (digest.as_ref().iter().take(DIGEST_BYTES))
        .map(|byte| format!("{byte:02x}"))
        .collect();
    short.push('~');
    let mut tail = epoch;
    while short.len() + tail.len() > room {
        let mut chars = tail.chars();
        chars.next();
        tail = chars.as_str();
    }
    short + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_epochs_that_end_alike_are_told_apart() {
        let long = |run: &str| short(&format!("{run}-{}/0", "2026-11-29".repeat(6)));
        let (alpha, beta) = (long("alpha"), long("beta"));
        assert_ne!(alpha, beta);
        for epoch in [&alpha, &long(&"\u{e9}".repeat(99))] {
            let name = format!("{EPOCH}{epoch}");
            assert!(name.len() <= FEATURE_NAME_MAX, "{name}");
            assert!(epoch.ends_with("-29/0"), "{epoch}");
        }
        assert_eq!(short("b2c7a1de/0"), "b2c7a1de/0");
    }
}
