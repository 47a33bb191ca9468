//! Peer failure: what ends when a peer is gone, or comes back as another life.
//!
//! It closes nothing: connections and epochs are `peers.rs`'s. Here end the waits for the peer, also those it did not
//! come in time for, and the peer's own waits.

use std::collections::BTreeSet;

use super::core::Core;
use super::ids::{LinkId, PeerId};
use super::keys::{KeyEntry, Route};
use super::peers::PeerState;
use super::transfers::TransferId;
use super::value::{Value, Waiter};
use crate::channel::Rule;
use crate::ground::{Incarnation, Status, faults};
use crate::rendezvous::{Ended, KeyId, Slot, WaiterId};

impl Core {
    /// The peer came back as another: what was bound to the former incarnation fails.
    pub(crate) fn peer_restarted(&mut self, at: PeerId, former: Incarnation, found: Incarnation) {
        if !self.settings.rules.on(Rule::Restarts) {
            return;
        }
        let Some(peer) = self.peers.at(at) else {
            return;
        };
        let status = faults::peer_restarted(&peer.task, former, found);
        for link in peer.links.clone() {
            self.end_link(link);
        }
        if let Some(peer) = self.peers.at_mut(at) {
            peer.parked.clear();
            self.lives_over.note(former, &status, peer.ends_at_meeting);
        }
        self.fail_peer(at, &status);
    }

    /// A peer was not there in time. Receives with a deadline of their own wait until that one, and for them control
    /// goes on dialling; all else that waits for it fails.
    pub(super) fn give_up(&mut self, at: PeerId, status: &Status) {
        let mut impatient = Vec::new();
        let mut is_awaited = false;
        let Self { table, keys, .. } = &*self;
        table.waiting(|slot, id, _, _| {
            let route = keys.at(slot.key).map(|entry| entry.way.route);
            if matches!(route, Some(Route::In { peer }) if peer == at) {
                if table.has_deadline(id) {
                    is_awaited = true;
                } else {
                    impatient.push(id);
                }
            }
        });
        if !is_awaited {
            return self.peer_lost(at, status);
        }
        self.tell_dropped(at, status);
        for id in impatient {
            if let Some((_, waiter)) = self.table.cancel(id) {
                self.complete(waiter, Err(status.clone()));
            }
        }
        self.peers[at].parked.clear();
        for &link in &self.peers[at].links {
            if let Some(entry) = self.links.at_mut(link)
                && !mutant!("given_up_slots_kept")
            {
                entry.parked.clear();
            }
        }
        self.fail_keys(
            status,
            |entry| matches!(entry.way.route, Route::Out { peer } if peer == at),
        );
        self.peers.set_state(at, PeerState::Gone);
        self.await_peer(at);
    }

    /// A peer that never came takes with it what was sent to it: its senders were told that it was taken, and a
    /// receiver that comes later takes the next value for it. They hear of it here.
    pub(super) fn tell_dropped(&mut self, at: PeerId, why: &Status) {
        let is_awaited = matches!(self.peers[at].state(), PeerState::Awaited { .. });
        if !is_awaited || self.peers[at].has_told_dropped {
            return;
        }
        if let Some(dropped) = self.unsent(Some(at)).remove(&at) {
            let peer = &mut self.peers[at];
            peer.has_told_dropped = true;
            self.observer.dropped(&peer.task, dropped, why);
        }
    }

    /// Every waiter and value of the peer's keys goes.
    pub(crate) fn fail_peer(&mut self, at: PeerId, status: &Status) {
        self.fail_keys(status, |entry| {
            matches!(entry.way.route, Route::Out { peer } | Route::In { peer }
                    if peer == at || mutant!("peers_lost_together"))
        });
        let Some(peer) = self.peers.at(at) else {
            return;
        };
        for &link in &peer.links {
            if let Some(entry) = self.links.at_mut(link) {
                entry.channel.forget_lines();
            }
        }
    }

    /// Every waiter and value of the keys that `fails` picks goes.
    pub(crate) fn fail_keys(&mut self, status: &Status, fails: impl Fn(&KeyEntry) -> bool) {
        let mut ended = Vec::new();
        let Self { table, keys, .. } = self;
        table.fail_keys(|id: KeyId| keys.at(id).is_some_and(&fails), &mut |end| {
            ended.push(end)
        });
        self.end_all(ended, status);
        let Self {
            send_queue, keys, ..
        } = self;
        send_queue.fail(status, |blocked| {
            keys.at(blocked.slot.key).is_some_and(&fails)
        });
    }

    /// True if values are on their way on one of these links.
    pub(super) fn hold_values(&self, links: &[LinkId]) -> bool {
        let mut channels = links.iter().filter_map(|&link| self.links.at(link));
        channels.any(|entry| entry.channel.holds_values())
    }

    /// That life of a peer is told that values for it were dropped, as soon as it is connected again.
    pub(super) fn mark_dropped(&mut self, links: &[LinkId], life: Incarnation) {
        for &link in links {
            if let Some(entry) = self.links.at_mut(link) {
                entry.channel.mark_dropped(life);
            }
        }
    }

    /// A peer that we gave up, and that did not know, is there again: what it sent in between is gone. Receives that
    /// began in between end, for they may wait for it.
    #[cold]
    pub(super) fn fail_receives_of(&mut self, link: LinkId) {
        let Some(at) = self.links.at(link).map(|entry| entry.peer) else {
            return;
        };
        let status = faults::peer_dropped(&self.peers[at].task);
        let mut waiting = Vec::new();
        let Self { table, keys, .. } = &*self;
        table.waiting(|slot, id, _, _| {
            let way = keys.at(slot.key).map(|entry| entry.way);
            if way.is_some_and(|way| way.link == link && matches!(way.route, Route::In { .. })) {
                waiting.push((slot, id));
            }
        });
        for (slot, id) in waiting {
            if let Some((_, waiter)) = self.table.cancel(id) {
                reached!("received_what_was_dropped");
                self.complete(waiter, Err(status.clone()));
                self.settle_demands(slot);
            }
        }
    }

    /// Waiters and values that a step or a peer took with it.
    pub(crate) fn end_all(&mut self, ended: Vec<Ended<Value, Waiter>>, status: &Status) {
        for end in ended {
            match end {
                Ended::Waiter(slot, waiter) => {
                    self.complete(waiter, Err(status.clone()));
                    self.settle_demands(slot);
                }
                Ended::Value(_, value) => {
                    self.stats.dropped += 1;
                    drop(self.taken(value));
                }
                Ended::Offer { token, .. } => self.drop_incoming(TransferId::from_token(token)),
            }
        }
    }

    /// Receives that began before the peer was there, and whose keys name a life of it that this is not.
    pub(super) fn fail_strangers(&mut self, at: PeerId, found: Incarnation) {
        if !self.settings.rules.on(Rule::Restarts) {
            return;
        }
        let mut strangers = Vec::new();
        let Self {
            table, keys, waits, ..
        } = &*self;
        table.waiting(|slot, id, waiter, _| {
            let expected = match waiter {
                Waiter::Wait(ticket) => waits.expected(ticket),
                Waiter::Leader => Some(waits.led_expects()),
                Waiter::Task { .. } | Waiter::Asked(_) => None,
            };
            let route = keys.at(slot.key).map(|entry| entry.way.route);
            if route == Some(Route::In { peer: at })
                && let Some(expected) = expected
                && !expected.is_current()
                && expected != found
            {
                strangers.push((id, expected));
            }
        });
        let expecting = std::mem::take(&mut self.peers[at].expecting);
        let of_tasks = expecting
            .into_iter()
            .filter(|&(_, expected)| expected != found);
        for (id, expected) in strangers.into_iter().chain(of_tasks) {
            if let Some((slot, waiter)) = self.table.cancel(id) {
                let task = &self.peers[at].task;
                let status = faults::wrong_incarnation(task, expected, found);
                self.complete(waiter, Err(status));
                self.settle_demands(slot);
            }
        }
    }

    /// A receive of an in-shard task waits for a life of its source. If the peer is not there now and comes in another
    /// life, the receive ends.
    #[inline]
    pub(crate) fn expect_life(&mut self, route: Route, id: WaiterId, expected: Incarnation) {
        if let Route::In { peer } = route
            && !matches!(self.peers[peer].state(), PeerState::Up { .. })
        {
            self.keep_expecting(peer, id, expected);
        }
    }

    #[cold]
    fn keep_expecting(&mut self, at: PeerId, id: WaiterId, expected: Incarnation) {
        let Self { peers, table, .. } = self;
        let expecting = &mut peers[at].expecting;
        if expecting.len() == expecting.capacity() {
            // Instead of growing for ever: receives that have ended meanwhile go.
            let mut waiting = BTreeSet::new();
            table.waiting(|_, id, _, _| {
                waiting.insert(id);
            });
            expecting.retain(|(id, _)| waiting.contains(id));
        }
        expecting.push((id, expected));
    }

    /// The status of a receive that names an incarnation its source does not have, or that is over.
    #[inline]
    pub(crate) fn incarnation_fault(&self, wanted: Incarnation, peer: PeerId) -> Option<Status> {
        if wanted.is_current() || !self.settings.rules.on(Rule::Restarts) {
            return None;
        }
        match self.peers.at(peer)?.state() {
            PeerState::Up { incarnation } if incarnation != wanted => Some(
                faults::wrong_incarnation(&self.peers[peer].task, wanted, incarnation),
            ),
            PeerState::Awaited { .. } | PeerState::Gone => {
                let told = self.lives_over.status(wanted).cloned();
                if told.is_some() {
                    reached!("a_receive_names_a_life_that_is_over");
                }
                told
            }
            PeerState::Up { .. } | PeerState::Away { .. } => None,
        }
    }

    /// Why nothing will come under a key of ours that names this life of its source: it is over, or the peer lives
    /// another.
    #[inline]
    pub(crate) fn stranger_fault(&self, id: KeyId, wanted: Incarnation) -> Option<Status> {
        match self.keys.at(id)?.way.route {
            Route::In { peer } => self.incarnation_fault(wanted, peer),
            _ => None,
        }
    }

    /// A demand failed: the waiters at its key are told why.
    pub(super) fn fail_waiters(&mut self, slot: Slot, status: &Status) {
        self.fail_waiters_of(slot, status, |_| true);
    }

    /// As [`Core::fail_waiters`], for waiters for the values of the ordinals that are `theirs`.
    pub(super) fn fail_waiters_of(
        &mut self,
        slot: Slot,
        status: &Status,
        theirs: impl Fn(u32) -> bool,
    ) {
        let mut waiting = Vec::new();
        self.table.waiting_at(slot, |id, _, ordinal| {
            if theirs(ordinal) {
                waiting.push(id);
            }
        });
        for id in waiting {
            if let Some((_, waiter)) = self.table.cancel(id) {
                self.complete(waiter, Err(status.clone()));
            }
        }
        self.settle_demands(slot);
    }
}
