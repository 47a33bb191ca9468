//! References as the program of this worker holds them, and what follows for others.

use rendez::ground::Nanos;

use super::{Node, Peer, PeerState, Rule, Timer};
use crate::id::{ForkId, RRefId, WorkerId};
use crate::message::{Control, Reference, Standing};
use crate::references::{Counts, Listed, ReferenceEvent};

impl<P, T> Node<P, T> {
    /// What follows from changes of references.
    pub(super) fn drain_references(&mut self) {
        while let Some(event) = self.references.poll() {
            match event {
                ReferenceEvent::Tell(to, control) => self.tell(to, control),
                ReferenceEvent::Warn(to, control) => self.warn(to, control),
                ReferenceEvent::Release(rref) => {
                    self.outputs.push_back(super::Output::Release(rref))
                }
                ReferenceEvent::Ask(from, call) => self.try_serve(from, call),
                ReferenceEvent::Confirmed(carrier) if carrier.is_reply => {
                    self.reply_confirmed(carrier.peer, carrier.id);
                }
                ReferenceEvent::Confirmed(carrier) => {
                    self.argument_confirmed(carrier.peer, carrier.id)
                }
            }
        }
    }

    /// Tells a worker something of a reference, as soon as it is there.
    fn tell(&mut self, to: WorkerId, control: Control) {
        let may_come = self.may_come(to);
        match self.peers.get_mut(&to) {
            Some(peer) if peer.state.life().is_some() => self.control(to, control),
            Some(peer) if may_come => peer.early.push(control),
            _ => self.references.peer_lost(to),
        }
    }

    /// Whether a worker that another has named is there, or has not been met yet.
    pub(super) fn may_come(&mut self, worker: WorkerId) -> bool {
        let awaits = self.rules.on(Rule::UnmetAwaited);
        if awaits && self.group.is_dynamic && !self.peers.contains_key(&worker) {
            // Another worker knows it already; or it is gone for good. The group does not wait for it.
            let mut stranger = Peer::new(PeerState::Unmet);
            stranger.is_member = false;
            self.peers.insert(worker, stranger);
            let patience = self.now.after(self.limits.retry_max);
            self.timers.insert((patience, Timer::Unmet(worker)));
        }
        match self.peers.get(&worker).map(|peer| &peer.state) {
            Some(PeerState::Up { .. }) => true,
            Some(PeerState::Unmet) => awaits,
            Some(PeerState::Lost(_)) | None => false,
        }
    }

    /// As [`Self::tell`], and of one that is gone when it comes again.
    fn warn(&mut self, to: WorkerId, control: Control) {
        match self.peers.get_mut(&to) {
            Some(peer) if peer.state.life().is_none() => peer.early.push(control),
            _ => self.tell(to, control),
        }
    }

    /// References to values of ours have come, whose creation may not have. It will not if their maker is gone.
    pub(super) fn look_for_creators(&mut self, references: &[Reference]) {
        let is_early = |one: &Reference| matches!(one.standing, Standing::Early(_));
        for one in references {
            if is_early(one) && one.owner == self.me && !self.may_come(one.rref.on) {
                self.references.creator_lost(one.rref);
            }
        }
    }

    /// A worker is there: it is told what waited for it.
    pub(super) fn tell_early(&mut self, to: WorkerId) {
        let early = self
            .peers
            .get_mut(&to)
            .map(|peer| std::mem::take(&mut peer.early));
        for control in early.into_iter().flatten() {
            self.control(to, control);
        }
    }

    /// The program makes a value of its own, and holds a handle; `is_made` if it is there already.
    pub fn create_owned(&mut self, rref: RRefId, is_made: bool) {
        self.references.at(self.now);
        self.references.create_owned(rref, is_made);
    }

    /// The program has dropped its last handle of a share of a value elsewhere.
    pub fn drop_user(&mut self, now: Nanos, fork: ForkId) {
        self.now = now;
        self.references.drop_user(fork);
    }

    /// The program has dropped a handle of a value of its own.
    pub fn drop_owned(&mut self, now: Nanos, rref: RRefId) {
        self.now = now;
        self.references.drop_owned(rref);
    }

    /// True if that share names no value any more: its owner is gone, or has never made it.
    #[must_use]
    pub fn is_gone(&self, fork: ForkId) -> bool {
        self.references.is_gone(fork)
    }

    /// How many references there are.
    #[must_use]
    pub fn reference_counts(&self) -> Counts {
        self.references.counts()
    }

    /// All references that are known here.
    #[must_use]
    pub fn listed_references(&self) -> Vec<Listed> {
        self.references.listed()
    }
}

impl<P, T> Node<P, T> {
    /// Calls of ours that have not ended, and calls of others that are not finished here.
    #[must_use]
    pub fn call_counts(&self) -> (usize, usize) {
        let client = self
            .peers
            .values()
            .map(|peer| peer.calls + peer.waiting.len())
            .sum();
        let server = self.peers.values().map(|peer| peer.serving.len()).sum();
        (client, server)
    }
}
