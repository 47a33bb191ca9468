//! Endings and looks: stopping, dropping what a port refused, and what is pending or counted.

use std::collections::BTreeMap;

use super::core::Core;
use super::ids::{LinkId, NO_LINK, PeerId, TaskId};
use super::keys::{KeyEntry, Keys, Route};
use super::peers::{Peer, PeerState};
use super::posting::Outlet;
use super::send_queue::{BlockedSend, place};
use super::settings::Unsent;
use super::value::{Value, Waiter};
use crate::channel::WriteEnd;
use crate::fabric::Write;
use crate::ground::{Key, Status, StepId, faults};
use crate::mail::call::ShardMessage;
use crate::mail::{PendingItem, PendingWhat, ShardStats};
use crate::memory::Tensor;
use crate::rendezvous::{PendingKind, Slot};
use crate::wire::Ticket;

impl Core {
    /// A value of an application thread.
    pub(crate) fn send_from_outside(
        &mut self,
        key: &Key,
        step: StepId,
        tensor: Tensor,
        is_dead: bool,
        outlet: &mut Outlet<'_>,
    ) -> Result<LinkId, Status> {
        let wanted = key.source_incarnation();
        if !wanted.is_current() && wanted != self.incarnation {
            return Err(faults::own_incarnation(wanted, self.incarnation));
        }
        let id = self.intern(key)?;
        let slot = Slot {
            step,
            key: id,
            at: key.frame_iter(),
        };
        let way = self.way(id)?;
        let mut sending = if !matches!(way.route, Route::Out { .. }) {
            self.send_here_at_once(way, &slot, tensor, is_dead)
        } else if self.send_short(way, &slot, &tensor, is_dead, outlet) {
            None
        } else {
            let mut sending = Some(Value::local(tensor, is_dead));
            self.send_row(way, &slot, &mut sending, outlet);
            sending
        };
        if sending.is_none() {
            return Ok(NO_LINK);
        }
        self.send(way, slot, &mut sending, outlet)
    }

    /// True if the table holds so much that the next send could be refused, or a send waits for room.
    #[inline]
    pub(crate) fn is_pressed(&self) -> bool {
        let stats = self.table.stats();
        let limits = self.table.limits();
        let kept = stats.parked_bytes + stats.held_bytes;
        !self.send_queue.is_empty()
            || kept * 2 > limits.parked_bytes
            || kept * 2 > limits.parked_bytes_per_step
            || stats.values.saturating_mul(2) > limits.values
            || stats.records.saturating_mul(2) > limits.records
    }

    /// A write could not be posted: its queue pair is down.
    pub(crate) fn write_refused(&mut self, link: LinkId, write: Write) {
        self.wrote(
            link,
            Ticket::unpack(write.token.0 as u32),
            WriteEnd::Failed,
            write.source,
        );
    }

    /// A write ended.
    pub(crate) fn wrote(&mut self, link: LinkId, ticket: Ticket, end: WriteEnd, source: Tensor) {
        if let Some(entry) = self.links.at_mut(link) {
            let value = Value::local(source, entry.channel.writes_dead(ticket));
            let lost = entry.channel.wrote(ticket, end, value);
            self.weigh(link);
            self.links.touch(link);
            if let Some(step) = lost {
                self.stats.dropped += 1;
                self.fail_step(step, &faults::offers_exhausted());
            }
        }
    }

    /// A task is gone: its receives are removed.
    pub(crate) fn forget_task(&mut self, task: TaskId) {
        let mut gone = Vec::new();
        self.table.waiting(|_, id, waiter, _| {
            if matches!(waiter, Waiter::Task { task: of, .. } if of == task) {
                gone.push(id);
            }
        });
        for id in gone {
            self.unlink(id);
        }
        self.give_back_events(task);
        for (shard, ticket) in self.waits.remove_away(task) {
            let wait = ticket.packed();
            self.neighbour_queues
                .push(shard, ShardMessage::Cancel { wait });
        }
    }

    /// The shard is asked to stop: receives end now, values for peers may still leave.
    pub(crate) fn drain_for_stop(&mut self) {
        let status = faults::shutdown();
        let mut waiting = Vec::new();
        self.table.waiting(|_, id, waiter, _| {
            if !matches!(waiter, Waiter::Asked(_)) {
                waiting.push(id);
            }
        });
        for id in waiting {
            if let Some((slot, waiter)) = self.table.cancel(id) {
                self.complete(waiter, Err(status.clone()));
                // What a peer was asked for is owed no more.
                if !mutant!("stopped_receives_owe_on") {
                    self.settle_demands(slot);
                }
            }
        }
        // Who was told that a value is taken is told no more: it waits on, for its peer.
        let keys = &self.keys;
        self.send_queue.fail(&status, |blocked| {
            blocked.is_heard() || peer_of(keys, blocked).is_none()
        });
        self.links.drain();
        self.drop_unreceived();
    }

    /// Values that lie here for this task go: they are received no more. Two tasks that end at once would wait for each
    /// other's, and own ones would hold the room that values for peers wait for.
    pub(crate) fn drop_unreceived(&mut self) {
        if mutant!("unreceived_values_hold_peers_up") {
            return;
        }
        let ends_here =
            |entry: &KeyEntry| matches!(entry.way.route, Route::In { .. } | Route::Local);
        self.fail_keys(&faults::shutdown(), ends_here);
    }

    /// True when every peer that is there, or may soon be, has acknowledged all that it is owed and was given all that
    /// it was offered.
    pub(crate) fn is_drained(&self) -> bool {
        let may_hear = |peer: &Peer| match peer.state() {
            PeerState::Awaited { .. } => !mutant!("stops_await_no_peer"),
            // Also one whose link is down: its connection is made again, or it is given up.
            PeerState::Up { .. } | PeerState::Away { .. } => true,
            PeerState::Gone => false,
        };
        let are_links_at_rest = self.links.iter().all(|link| {
            let is_of_one = self.peers.at(link.peer).is_some_and(may_hear);
            !is_of_one || (link.channel.is_at_rest() && link.parked.is_empty())
        });
        let mut blocked_sends = self.send_queue.blocked_sends();
        let mut waits_to_leave = |(_, blocked): (_, &BlockedSend)| {
            let peer = peer_of(&self.keys, blocked).and_then(|peer| self.peers.at(peer));
            !blocked.is_heard() && peer.is_some_and(may_hear)
        };
        let mut peers = self.peers.iter();
        are_links_at_rest
            && !blocked_sends.any(&mut waits_to_leave)
            && peers.all(|peer| !may_hear(peer) || peer.parked.is_empty())
            && self.neighbour_queues.is_empty()
    }

    /// The time is up for values that were taken and found no room: their steps cannot be complete any more.
    pub(crate) fn lose_taken_sends(&mut self, status: &Status) {
        let taken = self.send_queue.blocked_sends();
        let taken = taken
            .filter(|(_, blocked)| !blocked.is_heard() && peer_of(&self.keys, blocked).is_some());
        let steps: Vec<_> = taken.map(|(_, blocked)| blocked.slot.step).collect();
        for step in steps {
            self.lost(step, status);
        }
    }

    /// What programs sent to peers, or to one, and has not begun to leave for them.
    #[cold]
    pub(crate) fn unsent(&self, of: Option<PeerId>) -> BTreeMap<PeerId, Unsent> {
        let mut unsent = BTreeMap::<PeerId, Unsent>::new();
        let mut count = |slot: Slot, values: u64, bytes: u64| {
            let route = self.keys.at(slot.key).map(|entry| entry.way.route);
            if let Some(Route::Out { peer }) = route
                && of.is_none_or(|of| of == peer)
                && !slot.step.is_of_layer()
            {
                let known = unsent.entry(peer).or_default();
                known.values += values;
                known.bytes += bytes;
            }
        };
        self.table.pending(|pending| {
            if pending.kind == PendingKind::Parked {
                count(pending.slot, u64::from(pending.count), pending.bytes);
            }
        });
        for (_, blocked) in self.send_queue.blocked_sends() {
            if !blocked.is_heard() {
                count(blocked.slot, 1, blocked.bytes);
            }
        }
        unsent
    }

    /// Everything that still waits hears `status`.
    pub(crate) fn end_everything(&mut self, status: &Status) {
        let mut ended = Vec::new();
        self.table.fail_keys(|_| true, &mut |end| ended.push(end));
        self.end_all(ended, status);
        self.send_queue.fail(status, |_| true);
        for ticket in self.waits.outside() {
            if let Some(cell) = self.waits.remove_outside(ticket) {
                cell.complete(Err(status.clone()));
            }
        }
    }

    /// Every parked value, waiting receive and waiting send, oldest first.
    pub(crate) fn pending(&self) -> Vec<PendingItem> {
        let mut items = Vec::new();
        self.table.pending(|pending| {
            let Some(key) = self.key_of(pending.slot) else {
                return;
            };
            items.push(PendingItem {
                step: pending.slot.step,
                key,
                what: match pending.kind {
                    PendingKind::Waiting => PendingWhat::Receive,
                    PendingKind::Parked | PendingKind::Offered | PendingKind::Fetching => {
                        PendingWhat::Value
                    }
                },
                age_ns: self.now - pending.since,
                bytes: pending.bytes,
                count: pending.count,
            });
        });
        let mut sends = BTreeMap::<_, PendingItem>::new();
        for (_, blocked) in self.send_queue.blocked_sends() {
            let Some(key) = self.key_of(blocked.slot) else {
                continue;
            };
            // The first of a slot has waited longest.
            let item = sends.entry(place(&blocked.slot)).or_insert(PendingItem {
                step: blocked.slot.step,
                key,
                what: PendingWhat::Send,
                age_ns: self.now - blocked.since,
                bytes: 0,
                count: 0,
            });
            item.bytes += blocked.bytes;
            item.count += 1;
        }
        items.extend(sends.into_values());
        items.sort_by_key(|item| std::cmp::Reverse(item.age_ns));
        items
    }

    /// What was counted, and what is held now.
    pub(crate) fn stats(&self) -> ShardStats {
        let table = self.table.stats();
        let pool = self.pool.stats();
        let peers_up = self
            .peers
            .iter()
            .filter(|peer| matches!(peer.state(), PeerState::Up { .. }))
            .count();
        ShardStats {
            parked: u64::from(table.values),
            parked_bytes: table.parked_bytes,
            offered_bytes: table.held_bytes,
            waiting_sends: self.send_queue.len() as u64,
            waiting: u64::from(table.waiters),
            leases: self.leases.out() as u64,
            landing_bytes: self.transfers.landing_bytes(),
            arena_in_use: pool.in_use_bytes,
            arena_mapped: pool.mapped_bytes,
            peers_up: peers_up as u64,
            owed: self
                .links
                .iter()
                .map(|link| link.channel.load().iter().sum::<usize>() as u64)
                .sum(),
            sent_back: self.of_links(|link| link.channel.counters().sent_back),
            stale: self.of_links(|link| link.channel.counters().stale),
            frames_sent: self.of_links(|link| link.channel.counters().frames_sent),
            frames_received: self.of_links(|link| link.channel.counters().frames_received),
            no_credit: self.of_links(|link| link.channel.counters().no_credit),
            credit_lines: self.of_links(|link| u64::from(link.channel.lines_open())),
            ..self.stats
        }
    }

    fn of_links(&self, each: impl Fn(&super::links::Link) -> u64) -> u64 {
        self.links.iter().map(each).sum()
    }
}

/// The peer that a waiting send is for; none if it stays here.
fn peer_of(keys: &Keys, blocked: &BlockedSend) -> Option<PeerId> {
    match keys.at(blocked.slot.key)?.way.route {
        Route::Out { peer } => Some(peer),
        _ => None,
    }
}
