//! Connecting: what follows when a peer is named, comes up, goes away or ends, and a link with it.
//!
//! A *peer* is a task; a *link* is the channel between this shard and one shard of it. Links open when control has
//! greeted the peer; until then values park and receives wait. They end with the peer's incarnation.

use super::core::{Core, PortOp};
use super::ids::{LinkId, NO_LINK, PeerId};
use super::keys::Route;
use super::links::NextConnection;
use super::peers::{Peer, PeerState};
use super::transfers::Incoming;
use crate::channel::{self, Channel, Rule};
use crate::fabric::{AnyPort, DownReason};
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, Nanos, Status, faults, limits};
use crate::mail::call::{PeerSegment, PeerUp};

impl Core {
    /// The peer of that name, made known if it is new.
    pub(crate) fn peer_of(&mut self, task: &TaskName) -> Result<PeerId, Status> {
        if let Some(at) = self.peers.find(task) {
            return Ok(at);
        }
        let at = self.new_peer(task)?;
        self.await_peer(at);
        Ok(at)
    }

    /// A place for a peer that is not known: that of one of which nothing is left, or a new one. What was in use of a
    /// peer as it went, for its keys were prepared or a neighbour had their numbers, rests by now as a rule.
    fn new_peer(&mut self, task: &TaskName) -> Result<PeerId, Status> {
        let mut vacant = self.vacant_peer();
        if vacant.is_none() {
            self.forget_keys_of_the_gone();
            vacant = self.vacant_peer();
        }
        self.peers.add(task, self.last_ends.count(), vacant)
    }

    /// Something waits for the peer: if it is not there, control is asked to dial, and the wait has an end.
    pub(crate) fn await_peer(&mut self, at: PeerId) {
        let until = self.now + self.settings.connect_timeout_ns;
        if self
            .peers
            .at(at)
            .is_some_and(|peer| peer.state() == PeerState::Gone)
        {
            self.peers.set_state(at, PeerState::Awaited { until });
            self.next_timer = self.next_timer.min(until);
            self.observer.peer_wanted(&self.peers[at].task);
        }
    }

    /// The connection is lost, which says nothing about the peer: it may come back, in the same life, until then.
    pub(crate) fn peer_away(&mut self, task: &TaskName, status: Status, until: Nanos) {
        if let Some(at) = self.peers.find(task)
            && matches!(self.peers[at].state(), PeerState::Up { .. })
        {
            self.peers.set_state(at, PeerState::Away { until });
            self.peers[at].away = Some(status);
            self.peers[at].ends_before = self.last_ends.count();
            self.next_timer = self.next_timer.min(until);
        }
    }

    /// The link a key of that hash travels by.
    pub(crate) fn link_for(&self, peer: PeerId, hash: u64) -> LinkId {
        let peer = self.peers.at(peer);
        peer.map_or(NO_LINK, |peer| peer.link_for(hash))
    }

    /// Control has greeted the peer.
    pub(crate) fn peer_up(&mut self, up: PeerUp, ports: &mut [AnyPort]) {
        let known = self.peers.find(&up.task);
        // A peer that is connected need not be dialled.
        let Ok(at) = known.map_or_else(|| self.new_peer(&up.task), Ok) else {
            return;
        };
        let former = self.peers[at].life();
        let missed_from = self.missed_from(at, up.incarnation);
        if let Some(former) = former
            && former != up.incarnation
        {
            self.peer_restarted(at, former, up.incarnation);
        }
        self.fail_strangers(at, up.incarnation);
        self.lives_over.forget(up.incarnation);
        let incarnation = up.incarnation;
        self.peers.set_state(at, PeerState::Up { incarnation });
        let peer = &mut self.peers[at];
        peer.away = None;
        peer.has_told_dropped = false;
        peer.connection = up.connection;
        peer.bound = Some(up.incarnation);
        if former != peer.bound {
            peer.ends_at_meeting = missed_from;
        }
        peer.read_domain = up.read_domain;
        peer.devices = up.devices;
        peer.set_segments(up.segments);
        if peer.links.len() != usize::from(up.shards) {
            let none = vec![NO_LINK; usize::from(up.shards)];
            let former = std::mem::replace(&mut peer.links, none);
            self.leave_links(at, former);
        }
        for (theirs, attach) in up.links {
            let link = self.link_with(at, theirs, up.read_domain);
            let reads_in_place = up.read_domain && self.settings.lease;
            let entry = &mut self.links[link];
            entry.channel.set_read_domain(reads_in_place);
            let former = entry.next.replace(NextConnection::new(attach));
            self.port_ops.extend(former.map(PortOp::Discard));
            if let Some((port, qp)) = entry.qp {
                // What the former connection holds comes home first.
                self.port_ops.push(PortOp::Close { port, qp });
            } else {
                self.attach_next(link, ports);
            }
        }
        self.forgo_leases(at);
        self.resolve_links(at);
        self.requeue_parked(at);
        self.tell_ends(at, missed_from);
    }

    /// Values that were to be read in place are copied, if the way that the peer is reached by now has no such reading:
    /// no news of a segment comes by it.
    fn forgo_leases(&mut self, at: PeerId) {
        let peer = &self.peers[at];
        if peer.read_domain && self.settings.lease {
            return;
        }
        let is_of = |of: &Incoming| of.region.is_some() && peer.links.contains(&of.link);
        for id in self.transfers.pick(is_of) {
            let next = self.transfers.forgo_lease(id);
            self.go_on(id, next);
        }
    }

    /// The peer has another number of shards than it had: what waits at its former links goes by its new ones.
    fn leave_links(&mut self, at: PeerId, former: Vec<LinkId>) {
        for &link in &former {
            // Sends that wait for its credit are tried again.
            self.stir(link);
            let Some(entry) = self.links.at_mut(link) else {
                continue;
            };
            if mutant!("parked_stay_at_left_links") {
                continue;
            }
            let parked = std::mem::take(&mut entry.parked);
            entry.seen.clear();
            self.peers[at].parked.append(parked);
            // No honest peer has another number of shards in the same life: what it still says there is not heard.
            if !mutant!("left_links_stay_up") {
                self.end_link(link);
            }
        }
        self.links.spare(former);
    }

    fn link_with(&mut self, peer: PeerId, theirs: u16, read_domain: bool) -> LinkId {
        if let Some(&link) = self.peers[peer].links.get(usize::from(theirs))
            && link != NO_LINK
        {
            return link;
        }
        let settings = channel::ChannelSettings {
            incarnation: self.incarnation,
            frame_window: self.settings.frame_window,
            line_window: self.settings.line_window,
            inline_max: self.settings.inline_max,
            read_domain: read_domain && self.settings.lease,
            requests: limits::REQUESTS,
            offers: self.settings.offers,
            interned: self.settings.interned,
            ack_delay_ns: self.settings.ack_delay_ns,
            rules: self.settings.rules,
        };
        let link = self.links.assign(peer, || Channel::new(settings));
        self.peers[peer].links[usize::from(theirs)] = link;
        link
    }

    /// The next connection of a link begins.
    pub(crate) fn attach_next(&mut self, link: LinkId, ports: &mut [AnyPort]) {
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        if entry.qp.is_some() {
            return;
        }
        let Some(qp) = entry.next.take().and_then(|next| next.begin(ports)) else {
            return;
        };
        self.links.connect(link, qp);
    }

    /// The peer has come up: what was parked for it leaves by the links of its keys, where they are there.
    pub(crate) fn requeue_parked(&mut self, peer: PeerId) {
        let mut waiting = std::mem::take(&mut self.peers[peer].parked);
        while let Some(slot) = waiting.pop() {
            let entry = self.keys.at(slot.key);
            let link = entry.map_or(NO_LINK, |entry| entry.way.link);
            self.enqueue_parked(peer, link, slot);
        }
    }

    /// Tells every key of the peer its link.
    fn resolve_links(&mut self, at: PeerId) {
        let peer = &self.peers[at];
        if peer.links.is_empty() {
            return;
        }
        for entry in self.keys.iter_mut() {
            if matches!(entry.way.route, Route::Out { peer } | Route::In { peer } if peer == at) {
                entry.way.link = peer.link_for(entry.key.hash());
            }
        }
    }

    /// A queue pair went down; everything it held has come back.
    pub(crate) fn link_down(&mut self, link: LinkId, reason: DownReason) {
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        entry.qp = None;
        entry.channel.disconnected();
        let is_orphaned = entry.next.is_none();
        if !is_orphaned {
            self.port_ops.push(PortOp::Attach { link });
        }
        let peer = &self.peers[entry.peer];
        let (task, connection) = (peer.task.clone(), peer.connection);
        if self.settings.rules.on(Rule::WriteSpendsGrant) {
            for ticket in self.asked.of_link(link) {
                // Landings are a connection's.
                if let Some(asked) = self.asked.at_mut(ticket) {
                    asked.landing = None;
                }
            }
        }
        if reason == DownReason::Corrupt {
            self.stats.violations += 1;
        }
        if is_orphaned {
            self.observer.link_down(&task, connection, reason);
        }
    }

    /// The peer broke the protocol: its connection ends, nothing else does.
    pub(crate) fn violated(&mut self, link: LinkId, violation: channel::Violation) {
        self.stats.violations += 1;
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        let peer = &self.peers[entry.peer];
        let (task, connection) = (peer.task.clone(), peer.connection);
        if let Some((port, qp)) = entry.qp {
            self.port_ops.push(PortOp::Close { port, qp });
        }
        let status = faults::frame_malformed(&task, &violation);
        self.observer.violated(&task, connection, &status);
        let peer = entry.peer;
        self.peer_lost(peer, &status);
    }

    /// The peer is given up: what waits for it or of it fails with `status`.
    pub(crate) fn peer_lost(&mut self, at: PeerId, status: &Status) {
        let Some(life) = self.peers.at(at).map(Peer::life) else {
            return;
        };
        self.tell_dropped(at, status);
        let was_up = matches!(self.peers[at].state(), PeerState::Up { .. });
        self.peers.set_state(at, PeerState::Gone);
        let peer = &mut self.peers[at];
        peer.away = None;
        if was_up {
            peer.ends_before = self.last_ends.count();
        }
        // A receive from now on waits for whatever life comes next, unless its key names this one.
        peer.bound = None;
        peer.parked.clear();
        peer.expecting.clear();
        // The mappings stay with the leases that need them; nothing new is leased.
        peer.set_segments(Vec::new());
        let links = peer.links.clone();
        let holds_values = self.hold_values(&links);
        let dropped = self.stats.dropped;
        for &link in &links {
            self.end_link(link);
        }
        self.fail_peer(at, status);
        if self.peers[at].keys > 0 {
            self.forget_keys_of_the_gone();
        }
        if let Some(life) = life {
            let met = self.peers[at].ends_at_meeting;
            self.lives_over.note(life, status, met);
            if holds_values || self.stats.dropped > dropped {
                self.mark_dropped(&links, life);
            }
        }
    }

    /// A life of the peer is proved over: what it may have been reading comes home.
    pub(crate) fn peer_exited(&mut self, task: &TaskName, incarnation: Incarnation) {
        let Some(at) = self.peers.find(task) else {
            return;
        };
        // It could come back from being away, but not in that life.
        if self.peers[at].is_of_life(incarnation) {
            if matches!(self.peers[at].state(), PeerState::Away { .. }) {
                reached!("exited_while_away");
            }
            // Nothing more may be offered to it: no `Release` would ever arrive.
            let status = faults::peer_exited(task);
            self.peer_lost(at, &status);
        }
        for link in self.links.iter_mut().filter(|link| link.peer == at) {
            link.channel.exited(incarnation);
        }
        for link in self.links.ids() {
            self.weigh(link);
        }
    }

    /// The connection of a link is closed, and its epoch is over.
    pub(super) fn end_link(&mut self, link: LinkId) {
        self.forget_epoch(link);
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        if let Some((port, qp)) = entry.qp.take() {
            self.port_ops.push(PortOp::Close { port, qp });
        }
        entry.channel.lose();
        self.port_ops.extend(entry.next.take().map(PortOp::Discard));
        self.weigh(link);
    }

    /// What is bound to a link's epoch, which is over, goes.
    pub(super) fn forget_epoch(&mut self, link: LinkId) {
        self.drop_early(|of, _| of == link);
        self.partings.forget_link(link);
        self.transfers.end_epoch(link);
        for ticket in self.asked.of_link(link) {
            if let Some(id) = self.asked.remove(ticket).and_then(|asked| asked.id) {
                self.table.cancel(id);
            }
        }
        if let Some(entry) = self.links.at_mut(link) {
            entry.parked.clear();
            // The peer counts apart what it has lent in epochs that are over.
            entry.leased = 0;
            entry.has_asked = false;
        }
    }

    /// A peer's arena grew: offers that waited for the segment can be read. Another life numbers its segments anew:
    /// news that overtakes its greeting, or comes after the next one's, is ignored, for a greeting brings all there
    /// are.
    pub(crate) fn peer_segment(
        &mut self,
        task: &TaskName,
        incarnation: Incarnation,
        segment: PeerSegment,
    ) {
        let Some(at) = self.peers.find(task) else {
            return;
        };
        let peer = &mut self.peers[at];
        if !peer.is_of_life(incarnation) && !mutant!("segments_of_any_life") {
            return;
        }
        peer.add_segment(segment);
        for link in peer.links.clone() {
            let unmapped = |of: &Incoming| of.link == link && of.region.is_some();
            for id in self.transfers.pick(unmapped) {
                self.read_in_place(id);
            }
        }
    }
}
