//! Values that are never made, and workers that are gone: who waits for either hears so.

use super::{Carrier, ReferenceEvent, References, Share};
use crate::id::{ForkId, RRefId, WorkerId};
use crate::message::Control;
use crate::node::Rule;

impl References {
    /// The owner was not asked and will not be. It is told so: others may wait there for the value.
    pub fn creation_dropped(&mut self, rref: RRefId, fork: ForkId) {
        match self.users.get(&fork) {
            Some(user) => {
                let told = ReferenceEvent::Warn(user.owner, Control::Delete { rref, fork });
                self.events.push_back(told);
                self.set_share(fork, Share::Gone);
            }
            // A value of our own.
            None => self.never_made(rref),
        }
    }

    /// The owner was not asked, and no other has a share: there is nothing to tell it.
    pub fn creation_refused(&mut self, rref: RRefId, fork: ForkId) {
        match self.users.contains_key(&fork) {
            true => self.set_share(fork, Share::Gone),
            false => self.never_made(rref),
        }
    }

    /// The owner has said whether it has seen the call.
    pub fn creation_resolved(&mut self, fork: ForkId, was_seen: bool) {
        let user = self.users.get(&fork).map(|user| (user.share, user.rref));
        match user {
            Some((Share::Doubtful, _)) if was_seen => self.set_share(fork, Share::Confirmed),
            Some((Share::Doubtful, rref)) => self.creation_dropped(rref, fork),
            _ => {}
        }
    }

    /// The worker that was to ask for a value of ours is not there.
    pub fn creator_lost(&mut self, rref: RRefId) {
        if self.owned.get(&rref).is_some_and(|owned| !owned.is_asked) {
            self.never_made(rref);
        }
    }

    /// A value of ours is not asked for, and will not be: who waits for it hears so.
    pub(super) fn never_made(&mut self, rref: RRefId) {
        if !self.rules.on(Rule::UnmadeTold) {
            return;
        }
        self.bury((self.me, rref));
        let waiting = self.owned.get_mut(&rref).map(|owned| &mut owned.wanted);
        let waiting = waiting.map(std::mem::take).unwrap_or_default();
        let early = self.early.remove(&rref).unwrap_or_default();
        for (from, call) in waiting.into_iter().chain(early) {
            self.events.push_back(ReferenceEvent::Ask(from, call));
        }
    }

    /// A worker is gone: so are its shares of our values, and our shares of its values name nothing.
    pub fn peer_lost(&mut self, peer: WorkerId) {
        let carriers: Vec<Carrier> = self
            .carried
            .keys()
            .copied()
            .filter(|carrier| carrier.peer == peer)
            .collect();
        carriers
            .into_iter()
            .for_each(|carrier| self.settle(carrier, false));
        let rrefs: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in rrefs {
            if let Some(owned) = self.owned.get_mut(&rref) {
                owned.forks.retain(|_, holder| *holder != peer);
                owned.wanted.retain(|(from, _)| *from != peer);
                if rref.on == peer && !owned.is_asked {
                    // It was to ask for the value.
                    self.never_made(rref);
                }
            }
            self.sweep_owned(rref);
        }
        self.early.retain(|_, calls| {
            calls.retain(|(from, _)| *from != peer);
            !calls.is_empty()
        });
        let forks: Vec<ForkId> = self
            .users
            .iter()
            .filter(|(_, user)| user.owner == peer)
            .map(|(&fork, _)| fork)
            .collect();
        for fork in forks {
            match self.users.get(&fork).map(|user| user.share) {
                Some(Share::Deleting) => {
                    self.users.remove(&fork);
                }
                // Who was given a share may wait for the value, and the owner may live on.
                Some(Share::Doubtful) => self.creation_dropped(self.users[&fork].rref, fork),
                _ => self.set_share(fork, Share::Gone),
            }
        }
    }
}
