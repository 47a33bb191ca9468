//! Forgetting: keys that nothing refers to any more, and peers that are gone and that no key names.
//!
//! A shard that knows more keys than [`Settings::idle_keys`](super::Settings::idle_keys) looks at a few for each one
//! that it meets anew, and forgets those that were not used since the hand last came by. So what is kept is bounded by
//! that and by what is in use, and no caller waits for a sweep.
//!
//! What keeps a key: a rendezvous point of a step that has not ended, since its ordinals are counted there; a frame,
//! a demand, an offer or a write of its link that is not over; a send that waits for room; a value that came before its
//! turn; a prepared handle; a neighbour that knows its number. What a peer calls by a number stays as well, until the
//! peer forgets it too: each side takes its own number back as soon as the key rests there, and the last to do so frees
//! it on both.

use super::core::Core;
use super::ids::{Id, LinkId, NO_LINK, PeerId};
use super::leases::link_of;
use super::peers::{Peer, PeerState};
use crate::mail::call::ShardMessage;
use crate::rendezvous::KeyId;

/// Keys looked at for each one that is met anew beyond the bound: with eight the hand has been round, and round again,
/// before a quarter more have come.
const LOOKS: usize = 8;
/// Of them, keys forgotten at most.
const FORGOTTEN: usize = 2;
/// Keys looked at when there is no room for one more.
const LOOKS_WHEN_FULL: usize = 1 << 12;

impl Core {
    /// Makes room before a key is met: a few that rest go.
    pub(super) fn forget_some(&mut self) {
        if self.keys.len() < self.settings.idle_keys.min(self.settings.keys) {
            return;
        }
        let mut forgotten = 0;
        // No key is looked at twice: what a caller has just looked up stays until it is used.
        for _ in 0..LOOKS.min(self.keys.len()) {
            forgotten += usize::from(self.forget_next());
            if forgotten == FORGOTTEN {
                return;
            }
        }
        if !self.keys.is_full() {
            return;
        }
        for _ in 0..LOOKS_WHEN_FULL {
            if self.forget_next() {
                return;
            }
        }
    }

    fn forget_next(&mut self) -> bool {
        self.keys.step_hand().is_some_and(|id| self.forget_key(id))
    }

    /// Forgets a key if nothing refers to it. Its peer hears that we call it by no number any more.
    pub(super) fn forget_key(&mut self, id: KeyId) -> bool {
        if self.is_busy(id) && !mutant!("busy_keys_forgotten") {
            if let Some(entry) = self.keys.at_mut(id) {
                // It rests from the end of what it is busy with.
                entry.is_used = true;
            }
            return false;
        }
        let Some(entry) = self.keys.at(id) else {
            return false;
        };
        let (link, owner, owner_id, told) =
            (entry.way.link, entry.way.owner, entry.owner_id, entry.told);
        if let Some(entry) = self.links.at_mut(link) {
            let has_told = entry.channel.forget_key(id);
            entry.seen.remove(&id);
            let is_called = entry.channel.is_called(id);
            if has_told {
                self.links.touch(link);
            }
            if is_called {
                return false;
            }
        }
        if let Some(key) = owner_id {
            self.neighbour_queues
                .push(owner, ShardMessage::Forget { key, told });
        }
        if let Some(entry) = self.keys.remove(id)
            && let Some(peer) = entry.peer()
        {
            self.peers[peer].keys -= 1;
        }
        true
    }

    /// True while something refers to the key, apart from the numbers that both sides of its link call it by.
    fn is_busy(&self, id: KeyId) -> bool {
        let Some(entry) = self.keys.at(id) else {
            return false;
        };
        let link = self.links.at(entry.way.link);
        entry.prepared > 0
            || entry.pins > 0
            || entry.asked > 0
            || self.table.is_used(id)
            || link.is_some_and(|link| link.channel.is_busy_with(id))
            || self.early.has(|slot| slot.key == id)
            || self.send_queue.has_key(id)
    }

    /// Peers are gone: keys that name one of them and rest are forgotten at once. A visitor leaves nothing behind.
    pub(super) fn forget_keys_of_the_gone(&mut self) {
        let is_gone = |peer: &Peer| peer.state() == PeerState::Gone && peer.keys > 0;
        if !self.peers.iter().any(is_gone) {
            return;
        }
        for id in self.keys.numbers() {
            let peer = self.keys.at(id).and_then(|entry| entry.peer());
            if peer.is_some_and(|peer| is_gone(&self.peers[peer])) {
                self.forget_key(id);
            }
        }
    }

    /// The place of a peer that is gone, that no key names and of which nothing is left: another peer may have it. What
    /// its links have of memory goes to links to come.
    pub(super) fn vacant_peer(&mut self) -> Option<PeerId> {
        let Self { links, leases, .. } = &*self;
        // A lease that outlives its peer names its link.
        let is_leased = |link| leases.out() > 0 && leases.has(|token| link_of(token) == link);
        let is_empty =
            |&link: &LinkId| link == NO_LINK || (links[link].is_empty() && !is_leased(link));
        let is_vacant = |peer: &Peer| {
            peer.state() == PeerState::Gone
                && peer.keys == 0
                && peer.parked.is_empty()
                && peer.links.iter().all(is_empty)
        };
        let at = self.peers.position(is_vacant)?;
        let links = std::mem::take(&mut self.peers[at].links);
        self.links.spare(links);
        self.stages.compare(at.row(), None);
        Some(at)
    }
}
