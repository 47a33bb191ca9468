//! Peers and links: which peers are connected, by which queue pairs, and what happens when that changes.
//!
//! A *peer* is a task; a *link* is the channel between this shard and one shard of it. Links open when control has
//! greeted the peer; until then values park and receives wait. They end with the peer's incarnation.

use std::collections::{BTreeMap, VecDeque};

use super::core::{Core, PortOp};
use super::ids::{LinkId, NO_LINK, PeerId, Rows};
use super::keys::Route;
use super::parked::ParkedQueue;
use super::transfers::Incoming;
use super::value::Value;
use crate::channel::{self, Channel, Rule};
use crate::fabric::{AnyPort, DownReason, Port, QpId};
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, Nanos, Status, StepId, TensorMeta, faults, limits};
use crate::mail::call::{Attach, PeerSegment, PeerUp};
use crate::rendezvous::{KeyId, WaiterId};

/// The channel to one shard of a peer, and the queue pair under it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: PeerId,
    pub(crate) channel: Channel<Value>,
    /// The port and queue pair; `None` without a connection.
    pub(crate) qp: Option<(usize, QpId)>,
    pub(crate) is_dirty: bool,
    /// Values for this peer that wait for credit, or for the connection.
    pub(crate) parked: ParkedQueue,
    /// Type and shape last seen of a key's values: for landings before the value is there.
    pub(crate) seen: BTreeMap<KeyId, TensorMeta>,
    /// A send waits for credit, or for the peer to be there.
    pub(crate) is_awaited: bool,
    /// Leases of values that the peer has on offer in this epoch.
    pub(crate) leased: usize,
    /// True while every waiting receive of this link has asked.
    pub(crate) has_asked: bool,
    /// The next connection: it begins when the one before is quiet.
    pub(crate) next: Option<NextConnection>,
}

impl Link {
    /// True if a value would leave by it at once.
    pub(crate) fn is_open(&self) -> bool {
        self.parked.is_empty() && self.channel.takes_push()
    }

    /// True if the link is unused as it stands: nothing of an ended connection is left, and none is to come.
    pub(crate) fn is_empty(&self) -> bool {
        self.qp.is_none()
            && self.next.is_none()
            && self.parked.is_empty()
            && self.seen.is_empty()
            && self.channel.is_empty()
    }

    /// True if values not yet received, `offered` ones not yet taken, or leases still held, take so much of the peer's
    /// credit or of its places on offer that a value may not come unrequested. A requested one needs neither.
    pub(crate) fn is_pressed(&self, offered: usize, offers: usize) -> bool {
        self.channel.is_pressed() || (self.leased + offered) * 2 >= offers
    }
}

/// How the next connection of a link is made.
pub(crate) struct NextConnection(Attach);

impl NextConnection {
    /// Ends the connection before it began. Dropped alone, an end in shared memory tells its other end nothing.
    pub(crate) fn discard(self, ports: &mut [AnyPort]) {
        if let Some((port, qp)) = (self.0)(ports)
            && let Some(port) = ports.get_mut(port)
        {
            port.close(qp);
        }
    }
}

impl std::fmt::Debug for NextConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Next")
    }
}

/// A task we share keys with.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) task: TaskName,
    pub(crate) state: PeerState,
    /// By the peer's shard index: the link.
    pub(crate) links: Vec<LinkId>,
    /// How many keys name it.
    pub(crate) keys: u32,
    pub(crate) read_domain: bool,
    /// Which of our devices it can import memory of: a bit for each.
    pub(crate) devices: u64,
    pub(crate) segments: Vec<PeerSegment>,
    /// Values that wait for the peer to be there at all.
    pub(crate) parked: ParkedQueue,
    /// Steps that ended here while it was not there, oldest first, and whether by an abort: a waiter there in one of
    /// them may have no other way to hear of it.
    pub(crate) untold: VecDeque<(StepId, bool)>,
    /// Receives of in-shard tasks that began while it was not there, and the life of it that each names.
    pub(crate) expecting: Vec<(WaiterId, Incarnation)>,
    /// The incarnation that parked values are bound to.
    pub(crate) bound: Option<Incarnation>,
    /// The connection it came up by last.
    pub(crate) connection: u32,
    /// While it is away: what waiters are told if it does not come back.
    pub(crate) away: Option<Status>,
}

impl Peer {
    /// True if it is there, or away, in that life.
    fn is_of_life(&self, incarnation: Incarnation) -> bool {
        match self.state {
            PeerState::Up { incarnation: now } => now == incarnation,
            PeerState::Away { .. } => self.bound == Some(incarnation),
            PeerState::Awaited { .. } | PeerState::Gone => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerState {
    /// Named by a key; not there yet. Control has been asked to dial, and at this time it is given up.
    Awaited { until: Nanos },
    /// There.
    Up { incarnation: Incarnation },
    /// Its connection is lost; it is given up at this time. Channels keep what they owe, and go on where they were.
    Away { until: Nanos },
    /// Gone; it may come back as another.
    Gone,
}

impl Core {
    /// The peer of that name, made known if it is new.
    pub(crate) fn peer_of(&mut self, task: &TaskName) -> Result<PeerId, Status> {
        if let Some(at) = self.peers.position(|peer| peer.task == *task) {
            return Ok(at);
        }
        let at = self.new_peer(task)?;
        self.await_peer(at);
        Ok(at)
    }

    /// A place for a peer that is not known: that of one of which nothing is left, or a new one.
    fn new_peer(&mut self, task: &TaskName) -> Result<PeerId, Status> {
        let peer = Peer {
            task: task.clone(),
            state: PeerState::Gone,
            links: Vec::new(),
            keys: 0,
            read_domain: false,
            devices: 0,
            segments: Vec::new(),
            parked: ParkedQueue::default(),
            untold: VecDeque::new(),
            expecting: Vec::new(),
            bound: None,
            connection: 0,
            away: None,
        };
        if let Some(at) = self.vacant_peer() {
            self.peers[at] = peer;
            return Ok(at);
        }
        if self.peers.len() >= limits::PEERS {
            return Err(faults::peers_exhausted(limits::PEERS));
        }
        Ok(self.peers.push(peer))
    }

    /// Something waits for the peer: if it is not there, control is asked to dial, and the wait has an end.
    pub(crate) fn await_peer(&mut self, at: PeerId) {
        let until = self.now + self.settings.connect_timeout_ns;
        let Some(peer) = self.peers.at_mut(at) else {
            return;
        };
        if peer.state == PeerState::Gone {
            peer.state = PeerState::Awaited { until };
            self.next_timer = self.next_timer.min(until);
            self.observer.peer_wanted(&peer.task);
        }
    }

    /// The connection is lost, which says nothing about the peer: it may come back, in the same life, until then.
    pub(crate) fn peer_away(&mut self, task: &TaskName, status: Status, until: Nanos) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.task == *task)
            && matches!(peer.state, PeerState::Up { .. })
        {
            peer.state = PeerState::Away { until };
            peer.away = Some(status);
            self.next_timer = self.next_timer.min(until);
        }
    }

    /// The link a key of that hash travels by.
    pub(crate) fn link_for(&self, peer: PeerId, hash: u64) -> LinkId {
        let Some(peer) = self.peers.at(peer) else {
            return NO_LINK;
        };
        if peer.links.is_empty() {
            return NO_LINK;
        }
        let theirs = (hash % peer.links.len() as u64) as usize;
        peer.links.get(theirs).copied().unwrap_or(NO_LINK)
    }

    /// Control has greeted the peer.
    pub(crate) fn peer_up(&mut self, up: PeerUp, ports: &mut [AnyPort]) {
        let known = self.peers.position(|peer| peer.task == up.task);
        // A peer that is connected need not be dialled.
        let Ok(at) = known.map_or_else(|| self.new_peer(&up.task), Ok) else {
            return;
        };
        let former = match self.peers[at].state {
            PeerState::Up { incarnation } => Some(incarnation),
            _ => self.peers[at].bound,
        };
        if let Some(former) = former
            && former != up.incarnation
        {
            self.peer_restarted(at, former, up.incarnation);
        }
        self.fail_strangers(at, up.incarnation);
        self.lives_over.forget(up.incarnation);
        let peer = &mut self.peers[at];
        peer.state = PeerState::Up {
            incarnation: up.incarnation,
        };
        peer.away = None;
        peer.connection = up.connection;
        peer.bound = Some(up.incarnation);
        peer.read_domain = up.read_domain;
        peer.devices = up.devices;
        peer.segments = up.segments;
        if peer.links.len() != usize::from(up.shards) {
            let none = vec![NO_LINK; usize::from(up.shards)];
            let former = std::mem::replace(&mut peer.links, none);
            self.spare_links(former);
        }
        for (theirs, attach) in up.links {
            let link = self.link_with(at, theirs, up.read_domain);
            let reads_in_place = up.read_domain && self.settings.lease;
            let entry = &mut self.links[link];
            entry.channel.set_read_domain(reads_in_place);
            let former = entry.next.replace(NextConnection(attach));
            self.port_ops.extend(former.map(PortOp::Discard));
            if let Some((port, qp)) = entry.qp {
                // What the former connection holds comes home first.
                self.port_ops.push(PortOp::Close { port, qp });
            } else {
                self.attach_next(link, ports);
            }
        }
        self.resolve_links(at);
        self.requeue_parked(at);
        self.tell_ends(at);
    }

    fn link_with(&mut self, peer: PeerId, theirs: u16, read_domain: bool) -> LinkId {
        if let Some(&link) = self.peers[peer].links.get(usize::from(theirs))
            && link != NO_LINK
        {
            return link;
        }
        if let Some(link) = self.spare_links.pop() {
            let entry = &mut self.links[link];
            (entry.peer, entry.is_awaited, entry.has_asked) = (peer, false, false);
            entry.leased = 0;
            reached!("a_spare_link");
            entry.channel.rebind(self.spared_epoch + 1);
            self.peers[peer].links[usize::from(theirs)] = link;
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
        let mut channel = Channel::new(settings);
        if self.spared_epoch > 0 {
            channel.rebind(self.spared_epoch + 1);
        }
        let link = self.links.push(Link {
            peer,
            channel,
            qp: None,
            is_dirty: false,
            parked: ParkedQueue::default(),
            seen: BTreeMap::new(),
            is_awaited: false,
            leased: 0,
            has_asked: false,
            next: None,
        });
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
        let Some(qp) = entry
            .next
            .take()
            .and_then(|NextConnection(attach)| attach(ports))
        else {
            return;
        };
        entry.qp = Some(qp);
        entry.channel.connected();
        self.map_qp(qp, link);
        self.touch(link);
    }

    fn map_qp(&mut self, (port, qp): (usize, QpId), link: LinkId) {
        let at = qp.0 as usize & 0xffff;
        let links = &mut self.by_qp[port];
        if links.len() <= at {
            links.resize(at + 1, NO_LINK);
        }
        links[at] = link;
    }

    /// Tells every key of the peer its link.
    fn resolve_links(&mut self, at: PeerId) {
        let links = self.peers[at].links.clone();
        for entry in self.keys.iter_mut() {
            if matches!(entry.way.route, Route::Out { peer } | Route::In { peer } if peer == at)
                && !links.is_empty()
            {
                entry.way.link = links[(entry.key.hash() % links.len() as u64) as usize];
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
            for ticket in self.asked.picked(|asked| asked.link == link) {
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
        let task = self.peers[entry.peer].task.clone();
        if let Some((port, qp)) = entry.qp {
            self.port_ops.push(PortOp::Close { port, qp });
        }
        let status = faults::frame_malformed(&task, &violation);
        self.observer.violated(&task, &status);
        let peer = entry.peer;
        self.peer_lost(peer, &status);
    }

    /// The peer is given up: what waits for it or of it fails with `status`.
    pub(crate) fn peer_lost(&mut self, at: PeerId, status: &Status) {
        let Some(peer) = self.peers.at_mut(at) else {
            return;
        };
        let life = match peer.state {
            PeerState::Up { incarnation } => Some(incarnation),
            _ => peer.bound,
        };
        peer.state = PeerState::Gone;
        peer.away = None;
        // A receive from now on waits for whatever life comes next, unless its key names this one.
        peer.bound = None;
        peer.parked.clear();
        peer.expecting.clear();
        // The mappings stay with the leases that need them; nothing new is leased.
        peer.segments.clear();
        let links = peer.links.clone();
        let holds_values = self.hold_values(&links);
        let dropped = self.stats.dropped;
        for &link in &links {
            self.end_link(link);
        }
        self.fail_peer(at, status);
        self.forget_keys_of(at);
        if let Some(life) = life {
            self.lives_over.note(life, status);
            if holds_values || self.stats.dropped > dropped {
                self.mark_dropped(&links, life);
            }
        }
    }

    /// A life of the peer is proved over: what it may have been reading comes home.
    pub(crate) fn peer_exited(&mut self, task: &TaskName, incarnation: Incarnation) {
        let Some(at) = self.peers.position(|peer| peer.task == *task) else {
            return;
        };
        // It could come back from being away, but not in that life.
        if self.peers[at].is_of_life(incarnation) {
            if matches!(self.peers[at].state, PeerState::Away { .. }) {
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
        for ticket in self.asked.picked(|asked| asked.link == link) {
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
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.task == *task) else {
            return;
        };
        if !peer.is_of_life(incarnation) && !mutant!("segments_of_any_life") {
            return;
        }
        peer.segments.push(segment);
        for link in peer.links.clone() {
            let unmapped = |of: &Incoming| of.link == link && of.region.is_some();
            for id in self.transfers.pick(unmapped) {
                self.read_in_place(id);
            }
        }
    }

    /// When the next link wants to be called, and the table.
    pub(crate) fn find_next_timer(&self) -> Nanos {
        let links = self
            .links
            .iter()
            .map(|link| link.channel.poll_timeout())
            .min();
        let awaited = self.peers.iter().filter_map(|peer| match peer.state {
            PeerState::Awaited { until } | PeerState::Away { until } => Some(until),
            _ => None,
        });
        let awaited = awaited.min().unwrap_or(Nanos::NEVER);
        let table = self.table.poll_timeout();
        let steps = self.deadlines.values().min().copied();
        let blocked_sends = self.send_queue.next_deadline();
        links
            .unwrap_or(Nanos::NEVER)
            .min(table.unwrap_or(Nanos::NEVER))
            .min(awaited)
            .min(self.transfers.next_try())
            .min(steps.unwrap_or(Nanos::NEVER))
            .min(blocked_sends.unwrap_or(Nanos::NEVER))
    }
}

/// Closes what a port holds when the shard stops.
pub(crate) fn close_all(links: &Rows<LinkId, Link>, ports: &mut [AnyPort]) {
    for link in links {
        if let Some((port, qp)) = link.qp
            && let Some(port) = ports.get_mut(port)
        {
            port.close(qp);
        }
    }
}
