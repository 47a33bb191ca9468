//! What a worker says of its calls when it is asked: which there are, how far they are, and since when.

use rendez::ground::Nanos;

use super::calling::Out;
use super::{Node, Peer};
use crate::id::WorkerId;
use crate::message::Target;
use crate::references::References;

/// How far a call of this worker is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It waits for the window, or for its worker.
    Waiting,
    /// It is sent, and not answered.
    Sent,
    /// It is answered: the references in its result are not all confirmed.
    Confirming,
}

/// A call of this worker that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a, T> {
    /// The worker that is called.
    pub to: WorkerId,
    /// How the driver knows it.
    pub token: &'a T,
    /// How far it is.
    pub progress: Progress,
}

impl<P, T> Node<P, T> {
    /// Calls of this worker that have not ended.
    pub fn outgoing(&self) -> impl Iterator<Item = Outgoing<'_, T>> {
        self.peers.iter().flat_map(|(&to, peer)| {
            let out = peer.out.values().filter_map(|out| match out {
                Out::Call { token, .. } => Some((token, Progress::Sent)),
                Out::Confirming {
                    answer: Some((token, _)),
                    ..
                } => Some((token, Progress::Confirming)),
                Out::Confirming { answer: None, .. } | Out::GivenUp(_) | Out::Control { .. } => {
                    None
                }
            });
            let waiting = peer
                .waiting
                .iter()
                .map(|one| (&one.token, Progress::Waiting));
            out.chain(waiting).map(move |(token, progress)| Outgoing {
                to,
                token,
                progress,
            })
        })
    }

    /// Calls of others that the driver has not been given: their caller, since when, and what is called. They wait for
    /// references among their arguments, or for the value they ask for.
    pub fn held_calls(&self) -> impl Iterator<Item = (WorkerId, Nanos, &Target)> {
        self.peers.iter().flat_map(|(&from, peer)| {
            let held = peer.serving.values().filter_map(super::Serving::held);
            held.map(move |(since, target)| (from, since, target))
        })
    }

    /// How many control messages were repeated.
    #[must_use]
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// How many messages were dropped that no worker sends that keeps the protocol.
    #[must_use]
    pub const fn implausible(&self) -> u64 {
        self.implausible
    }

    /// The references of this worker.
    #[must_use]
    pub const fn references(&self) -> &References {
        &self.references
    }

    /// Control messages that are not acknowledged, in words.
    #[must_use]
    pub fn outstanding_controls(&self) -> Vec<String> {
        let peers = self.peers.iter();
        peers
            .filter_map(|(&id, peer)| unacknowledged(id, peer))
            .collect()
    }
}

/// What of control messages to a worker is not acknowledged, in words.
pub(super) fn unacknowledged<P, T>(id: WorkerId, peer: &Peer<P, T>) -> Option<String> {
    let is_control = |out: &&Out<P, T>| matches!(out, Out::Control { .. });
    let count = peer.out.values().filter(is_control).count();
    (count > 0).then(|| format!("{count} messages to worker {id} are not acknowledged"))
}
