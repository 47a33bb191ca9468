//! Links: the channels to the shards of peers, which queue pair each has, and which of them have frames due.
//!
//! Knows links by number, and what of them is spare; not why a peer comes or goes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};

use super::ids::{LinkId, NO_LINK, PeerId, Rows};
use super::link_timers::LinkTimers;
use super::parked::ParkedQueue;
use super::value::Value;
use crate::channel::Channel;
use crate::fabric::{AnyPort, Port, QpId, Write};
use crate::ground::{Nanos, TensorMeta};
use crate::mail::call::Attach;
use crate::rendezvous::KeyId;

/// A send waits for the link's credit, or for its peer to be there.
const AWAITED: u8 = 1;
/// It does not stand among the timers.
const UNTIMED: u8 = 2;

/// The channel to one shard of a peer, and the queue pair under it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: PeerId,
    pub(crate) channel: Channel<Value>,
    /// The port and queue pair; `None` without a connection.
    pub(crate) qp: Option<(usize, QpId)>,
    is_dirty: bool,
    /// Values for this peer that wait for credit, or for the connection.
    pub(crate) parked: ParkedQueue,
    /// Type and shape last seen of a key's values: for landings before the value is there.
    pub(crate) seen: BTreeMap<KeyId, TensorMeta>,
    /// What is to be seen to when it is watched, beside what is due. These are bits, so that one look shows that, as a
    /// rule, there is nothing.
    besides: u8,
    /// Leases of values that the peer has on offer in this epoch.
    pub(crate) leased: usize,
    /// True while every waiting receive of this link has asked.
    pub(crate) has_asked: bool,
    /// The next connection: it begins when the one before is quiet.
    pub(crate) next: Option<NextConnection>,
    /// Writes that found their queue pair full, oldest first.
    pub(super) late: VecDeque<Write>,
}

impl Link {
    /// True if there is nothing to see to beside what is due: no send waits for it, and it stands among the timers.
    #[inline]
    pub(super) const fn is_plain(&self) -> bool {
        self.besides == 0
    }

    /// True if a send waits for its credit, or for its peer to be there.
    #[inline]
    pub(super) const fn is_awaited(&self) -> bool {
        self.besides & AWAITED != 0
    }

    /// A send waits for it, or none does.
    pub(super) const fn set_awaited(&mut self, is_awaited: bool) {
        self.besides = self.besides & !AWAITED | if is_awaited { AWAITED } else { 0 };
    }

    /// True if there is something to post now: by the channel, or parked values that may follow.
    #[inline(always)]
    pub(super) fn must_post(&self, now: Nanos) -> bool {
        !self.parked.is_empty() && self.channel.takes_push() || self.channel.must_transmit(now)
    }

    /// The write that was late first.
    pub(super) fn pop_late(&mut self) -> Option<Write> {
        self.late.pop_front()
    }

    /// True if a value would leave by it at once.
    pub(crate) fn is_open(&self) -> bool {
        self.parked.is_empty() && self.channel.takes_push()
    }

    /// True if the link is unused as it stands: nothing of an ended connection is left, and none is to come.
    pub(crate) fn is_empty(&self) -> bool {
        self.qp.is_none()
            && self.next.is_none()
            && self.late.is_empty()
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
    pub(super) const fn new(attach: Attach) -> Self {
        Self(attach)
    }

    /// The queue pair it is made by; `None` if there is none any more.
    pub(super) fn begin(self, ports: &mut [AnyPort]) -> Option<(usize, QpId)> {
        (self.0)(ports)
    }

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

/// The links of a shard.
#[derive(Debug)]
pub(crate) struct Links {
    rows: Rows<LinkId, Link>,
    /// Those that belong to no peer.
    spare: Vec<LinkId>,
    /// Those that their peer has left, and of which something is still kept.
    left: Vec<LinkId>,
    /// No link that went to another peer was in a later epoch then. A peer that is met again, and was forgotten
    /// meanwhile, remembers the epoch of the link that it had.
    spared_epoch: u64,
    /// The shard is about to stop: see [`Links::drain`].
    is_draining: bool,
    /// By port and queue pair: the link.
    by_qp: Vec<Vec<LinkId>>,
    /// Those that have frames due.
    dirty: Vec<LinkId>,
    /// Those that want to be called at a time.
    timers: LinkTimers,
    /// How many links were looked at for their timers.
    #[cfg(test)]
    pub(crate) looks: std::cell::Cell<u64>,
}

impl Links {
    /// None yet, over so many ports.
    pub(super) fn new(ports: usize) -> Self {
        Self {
            rows: Rows::default(),
            spare: Vec::new(),
            left: Vec::new(),
            spared_epoch: 0,
            is_draining: false,
            by_qp: vec![Vec::new(); ports],
            dirty: Vec::new(),
            timers: LinkTimers::default(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    #[inline]
    pub(crate) fn at(&self, link: LinkId) -> Option<&Link> {
        self.rows.at(link)
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.rows.at_mut(link)
    }

    /// Every link there is now; it holds no borrow.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LinkId> + use<> {
        self.rows.ids()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Link> {
        self.rows.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Link> {
        self.rows.iter_mut()
    }

    /// The shard is about to stop: peers hear so, also those that come yet.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        for link in self.ids() {
            self.rows[link].channel.drain();
            self.touch(link);
        }
    }

    /// A link for that peer: a spare one, or one with the channel that `make` gives. It begins in an epoch that no
    /// link of an earlier peer has had.
    pub(super) fn assign(&mut self, peer: PeerId, make: impl FnOnce() -> Channel<Value>) -> LinkId {
        if let Some(link) = self.spare.pop().or_else(|| self.take_left()) {
            let entry = &mut self.rows[link];
            entry.set_awaited(false);
            (entry.peer, entry.has_asked) = (peer, false);
            entry.leased = 0;
            reached!("a_spare_link");
            entry.channel.rebind(self.spared_epoch + 1);
            return link;
        }
        let mut channel = make();
        if self.is_draining {
            channel.drain();
        }
        if self.spared_epoch > 0 {
            channel.rebind(self.spared_epoch + 1);
        }
        self.rows.push(Link {
            peer,
            channel,
            qp: None,
            is_dirty: false,
            parked: ParkedQueue::default(),
            seen: BTreeMap::new(),
            besides: UNTIMED,
            leased: 0,
            has_asked: false,
            next: None,
            late: VecDeque::new(),
        })
    }

    /// Links that nothing is left of go to the next peer.
    pub(super) fn spare(&mut self, links: Vec<LinkId>) {
        for link in links {
            let Some(entry) = self.rows.at(link) else {
                continue;
            };
            self.spared_epoch = self.spared_epoch.max(entry.channel.epoch());
            if entry.is_empty() {
                self.spare.push(link);
            } else {
                self.left.push(link);
            }
        }
    }

    /// A link of which something was kept when its peer left it, and nothing is any more.
    fn take_left(&mut self) -> Option<LinkId> {
        let rows = &mut self.rows;
        let at = self.left.iter().position(|&link| rows[link].is_empty())?;
        let link = self.left.swap_remove(at);
        self.spared_epoch = self.spared_epoch.max(rows[link].channel.epoch());
        Some(link)
    }

    // ─────────────────────────────────────────────── queue pairs ────────────────────────────────────────────────

    /// The link's connection begins, by that port and queue pair.
    pub(super) fn connect(&mut self, link: LinkId, (port, qp): (usize, QpId)) {
        let Some(entry) = self.rows.at_mut(link) else {
            return;
        };
        entry.qp = Some((port, qp));
        entry.channel.connected();
        let at = qp.0 as usize & 0xffff;
        let links = &mut self.by_qp[port];
        if links.len() <= at {
            links.resize(at + 1, NO_LINK);
        }
        links[at] = link;
        self.touch(link);
    }

    /// The link of a queue pair.
    #[inline]
    pub(crate) fn of_qp(&self, port: usize, qp: QpId) -> LinkId {
        let link = self
            .by_qp
            .get(port)
            .and_then(|links| links.get(qp.0 as usize & 0xffff))
            .copied();
        match link {
            Some(link)
                if self
                    .rows
                    .at(link)
                    .is_some_and(|entry| entry.qp == Some((port, qp))) =>
            {
                link
            }
            _ => self.find_qp(port, qp),
        }
    }

    /// The link of a queue pair whose place in its port another has taken already, though its Down is still to come.
    #[cold]
    fn find_qp(&self, port: usize, qp: QpId) -> LinkId {
        let found = self.rows.position(|entry| entry.qp == Some((port, qp)));
        found.unwrap_or(NO_LINK)
    }

    /// Closes what the ports hold, when the shard stops. That leaves a goodbye in each ring of memory. No port is
    /// polled or flushed any more: it wakes no peer that sleeps, and sockets and RDMA end without one, with the shard.
    pub(super) fn close_all(&self, ports: &mut [AnyPort]) {
        for link in &self.rows {
            if let Some((port, qp)) = link.qp
                && let Some(port) = ports.get_mut(port)
            {
                port.close(qp);
            }
        }
    }

    // ─────────────────────────────────────────────── what is due ────────────────────────────────────────────────

    /// The link has frames due.
    #[inline]
    pub(crate) fn touch(&mut self, link: LinkId) {
        if let Some(entry) = self.rows.at_mut(link)
            && !std::mem::replace(&mut entry.is_dirty, true)
        {
            self.dirty.push(link);
        }
    }

    /// True if a link has frames due.
    #[inline]
    pub(crate) const fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Those that have frames due, of which none is listed any more. The list comes back by [`Links::put_back`].
    pub(super) fn take_dirty(&mut self) -> Vec<LinkId> {
        std::mem::take(&mut self.dirty)
    }

    /// One of them is posted to now: from here on it can become due again.
    #[inline]
    pub(super) fn clean(&mut self, link: LinkId) {
        if let Some(entry) = self.rows.at_mut(link) {
            entry.is_dirty = false;
        }
    }

    /// The list is done. What could not be posted is due again, in the new list: the larger allocation is kept.
    pub(super) fn put_back(&mut self, list: Vec<LinkId>) {
        if self.dirty.is_empty() {
            self.dirty = list;
        }
    }

    /// True if these have frames due, in this order, and no other has.
    pub(super) fn are_due(&self, links: &[LinkId]) -> bool {
        self.dirty == links
    }

    // ────────────────────────────────────────────────── timers ──────────────────────────────────────────────────

    /// The link may want to be called at a time. From here on it is known, however that time moves, until it wants
    /// nothing.
    pub(super) fn note_timer(&mut self, link: LinkId) {
        if let Some(entry) = self.rows.at_mut(link)
            && entry.besides & UNTIMED != 0
            && let at = entry.channel.poll_timeout()
            && at != Nanos::NEVER
        {
            entry.besides &= !UNTIMED;
            self.timers.note(link, at);
        }
    }

    /// Those that want to be called by `now` have frames due.
    pub(super) fn touch_due(&mut self, now: Nanos) {
        while let Some((at, link)) = self.first_timer()
            && at <= now
        {
            self.timers.pop();
            self.rows[link].besides |= UNTIMED;
            self.touch(link);
        }
    }

    /// When the next channel wants to be called.
    pub(super) fn poll_timeout(&mut self) -> Nanos {
        let is_known = |link: &Link| {
            link.besides & UNTIMED == 0 || link.channel.poll_timeout() == Nanos::NEVER
        };
        debug_assert!(self.rows.iter().all(is_known), "a timer was not noted");
        self.first_timer().map_or(Nanos::NEVER, |(at, _)| at)
    }

    fn first_timer(&mut self) -> Option<(Nanos, LinkId)> {
        let rows = &mut self.rows;
        self.timers.first(|link| {
            #[cfg(test)]
            self.looks.set(self.looks.get() + 1);
            let entry = &mut rows[link];
            let at = entry.channel.poll_timeout();
            if at == Nanos::NEVER {
                entry.besides |= UNTIMED;
            }
            at
        })
    }
}

impl Index<LinkId> for Links {
    type Output = Link;

    #[inline]
    fn index(&self, link: LinkId) -> &Link {
        &self.rows[link]
    }
}

impl IndexMut<LinkId> for Links {
    #[inline]
    fn index_mut(&mut self, link: LinkId) -> &mut Link {
        &mut self.rows[link]
    }
}

impl<'a> IntoIterator for &'a Links {
    type Item = &'a Link;
    type IntoIter = std::slice::Iter<'a, Link>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}

#[cfg(test)]
mod tests;
