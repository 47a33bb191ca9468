//! Posting: what goes from channels and tables to the ports and the neighbours, between polls.
//!
//! It decides nothing: what is due was decided where it was put.

use super::Shard;
use super::budget::LandingPlace;
use super::core::{Core, PortOp};
use super::ids::LinkId;
use super::links::Link;
use super::reconnect::Lack;
use super::transfers::ToOpen;
use crate::channel::Demand;
use crate::fabric::{AnyPort, Port, PostRefusal, QpId, Write};
use crate::ground::Nanos;
use crate::mail::neighbour::Neighbour;
use crate::wire::Frame;

/// The ports, for what may be posted at once; by default there are none, and all is queued.
#[derive(Default)]
pub(crate) struct Outlet<'a> {
    ports: &'a mut [AnyPort],
    must_flush: bool,
}

impl<'a> Outlet<'a> {
    #[inline(always)]
    pub(super) const fn new(ports: &'a mut [AnyPort]) -> Self {
        Self {
            ports,
            must_flush: false,
        }
    }

    /// A function that posts a value's frame by that port and queue pair. It posts none of a value that is timed: that
    /// one is queued, and its frame says when it was posted.
    #[inline(always)]
    pub(super) fn by(
        &mut self,
        qp: Option<(usize, QpId)>,
        trace: u16,
    ) -> impl FnMut(&Frame, [&[u8]; 2]) -> bool {
        move |frame, body| match qp {
            Some(qp) if trace == 0 => self.post(qp, frame, body),
            _ => false,
        }
    }

    /// Posts a frame, if it can be.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        (port, qp): (usize, QpId),
        frame: &Frame,
        body: [&[u8]; 2],
    ) -> bool {
        let Some(port) = self.ports.get_mut(port) else {
            return false;
        };
        let is_posted = port.post_send(qp, frame, body).is_ok();
        self.must_flush |= port.must_flush();
        is_posted
    }

    /// As [`Outlet::post`], of a frame whose body, if it has one, lies in its tail.
    #[inline(always)]
    pub(super) fn post_short(&mut self, (port, qp): (usize, QpId), frame: &Frame) -> bool {
        let Some(port) = self.ports.get_mut(port) else {
            return false;
        };
        let posted = port.post_short(qp, frame);
        self.must_flush |= posted == Ok(true);
        posted.is_ok()
    }

    /// True if a port has doorbells to ring.
    pub(super) const fn must_flush(&self) -> bool {
        self.must_flush
    }
}

impl Core {
    /// A link was posted to, and sends may wait for it, here or before they are admitted.
    #[cold]
    fn follow_transmit(&mut self, link: LinkId) {
        if self.links[link].channel.takes_push() {
            self.pump(link);
        }
        if self.links[link].is_awaited() {
            self.stir(link);
        }
    }

    /// A link was posted to. Credit that was refused is due as well, and no timer runs for it; nor for what is due
    /// later, if it was for something else that the link was looked at.
    #[inline]
    fn watch_posted(&mut self, link: LinkId) {
        let channel = &self.links[link].channel;
        if channel.must_transmit(self.now) {
            self.links.note_timer(link);
            return self.links.touch(link);
        }
        if channel.poll_timeout() != Nanos::NEVER {
            self.watch_later(link);
        }
    }

    #[cold]
    fn watch_later(&mut self, link: LinkId) {
        self.links.note_timer(link);
        let at = self.links[link].channel.poll_timeout();
        if self.next_timer > at {
            reached!("due_later");
            self.next_timer = at;
        }
    }
}

impl Shard {
    pub(super) fn transmit(&mut self) {
        if !self.core.port_ops.is_empty() {
            self.run_port_ops();
        }
        if self.core.links.is_dirty() {
            let mut dirty = self.core.links.take_dirty();
            for link in dirty.drain(..) {
                self.core.links.clean(link);
                self.transmit_link(link);
            }
            self.core.links.put_back(dirty);
        }
        if !self.core.neighbour_queues.is_empty() {
            self.send_notes();
        }
    }

    fn send_notes(&mut self) {
        let Self {
            core, neighbours, ..
        } = self;
        for (at, neighbour) in neighbours.iter_mut().enumerate() {
            if let Some(Neighbour { to, wake, .. }) = neighbour
                && core.neighbour_queues.send(at, |note| to.push(note).err())
                && !mutant!("neighbours_not_rung")
            {
                wake.ring();
            }
        }
    }

    /// Posts what a link owes, and lets parked values follow while there is room.
    #[inline]
    pub(super) fn transmit_link(&mut self, link: LinkId) {
        self.transmit_link_or(link, |_| ());
    }

    /// The same; what became of each frame is told.
    #[inline(always)]
    fn transmit_link_or(&mut self, link: LinkId, mut told: impl FnMut(Result<(), PostRefusal>)) {
        let Self { core, ports, .. } = self;
        let Core {
            links, keys, now, ..
        } = core;
        let Some(entry) = links.at_mut(link) else {
            return;
        };
        let Some((port, qp)) = entry.qp else { return };
        let Some(port) = ports.get_mut(port) else {
            return;
        };
        self.has_posted = true;
        entry
            .channel
            .transmit(*now, &|key| keys.text(key), &mut |frame, body| {
                let posted = port.post_send(qp, frame, body);
                told(posted);
                posted.is_ok()
            });
        if entry.is_awaited() || !entry.parked.is_empty() {
            core.follow_transmit(link);
        }
        core.watch_posted(link);
    }

    /// Tries what could not be posted once more, with the doorbell armed. True if none of it could, for want of room
    /// alone: the port wakes the shard when there is some, and until then no try would come to more. One that could
    /// leaves the shard awake: what it posted is still to be sent, which may make room that no port tells of.
    #[cold]
    #[inline(never)]
    pub(super) fn retry_refused(&mut self) -> bool {
        let is_late = |op: &PortOp| matches!(op, PortOp::WriteLate { .. });
        if !self.core.port_ops.iter().all(is_late) {
            return false;
        }
        let late = self.late_writes();
        if !self.core.port_ops.is_empty() {
            self.run_port_ops();
        }
        let mut has_posted = self.late_writes() != late;
        let mut tried = self.core.links.take_dirty();
        tried.retain(|&link| {
            self.core.links.clean(link);
            let mut is_refused = false;
            self.transmit_link_or(link, |posted| match posted {
                Ok(()) => has_posted = true,
                Err(refusal) => is_refused |= refusal == PostRefusal::Full,
            });
            is_refused
        });
        let is_refused_alone = self.core.links.are_due(&tried);
        tried.clear();
        self.core.links.put_back(tried);
        !has_posted && is_refused_alone && self.core.port_ops.iter().all(is_late)
    }

    /// How many writes of these links wait for room in their queue pairs.
    fn late_writes(&self) -> usize {
        let links = self.core.port_ops.iter().filter_map(|op| match op {
            PortOp::WriteLate { link } => self.core.links.at(*link),
            _ => None,
        });
        links.map(|entry| entry.late.len()).sum()
    }

    #[cold]
    pub(super) fn run_port_ops(&mut self) {
        let ops = std::mem::take(&mut self.core.port_ops);
        for op in ops {
            self.run_port_op(op);
        }
    }

    pub(super) fn run_port_op(&mut self, op: PortOp) {
        match op {
            PortOp::Write { link, write } => self.write(link, write),
            PortOp::WriteLate { link } => self.write_late(link),
            PortOp::OpenAndAsk(landing) => self.open_and_ask(landing),
            PortOp::CloseLanding(LandingPlace { port, qp, landing }) => {
                self.ports[port].close_landing(qp, landing)
            }
            PortOp::Close { port, qp } => self.ports[port].close(qp),
            PortOp::Attach { link } => self.core.attach_next(link, &mut self.ports),
            PortOp::Discard(next) => next.discard(&mut self.ports),
        }
    }

    /// Posts a write, behind those of its link that found their queue pair full.
    fn write(&mut self, link: LinkId, write: Write) {
        let is_late = |entry: &Link| !entry.late.is_empty();
        let late = if self.core.links.at(link).is_some_and(is_late) {
            write
        } else {
            match self.try_write(link, write) {
                Some(late) => {
                    self.core.port_ops.push(PortOp::WriteLate { link });
                    late
                }
                None => return,
            }
        };
        if let Some(entry) = self.core.links.at_mut(link) {
            entry.late.push_back(late);
        }
    }

    /// Posts the late writes of a link, until its queue pair is full again. One that is full is not asked for each of
    /// them in each turn.
    fn write_late(&mut self, link: LinkId) {
        while let Some(write) = self.core.links.at_mut(link).and_then(Link::pop_late) {
            if let Some(late) = self.try_write(link, write) {
                if let Some(entry) = self.core.links.at_mut(link) {
                    entry.late.push_front(late);
                }
                return self.core.port_ops.push(PortOp::WriteLate { link });
            }
        }
    }

    /// Posts a write, or ends it if it cannot be. It comes back from a queue pair that is full.
    fn try_write(&mut self, link: LinkId, write: Write) -> Option<Write> {
        // A queue pair of another connection of the link may be another peer's by now, at another port.
        let connection = self.core.links.at(link).and_then(|entry| entry.qp);
        let Some((port, _)) = connection.filter(|&(_, qp)| qp == write.qp) else {
            self.core.write_refused(link, write);
            return None;
        };
        match self.ports[port].post_write(write) {
            Ok(()) => None,
            Err(refused) if refused.refusal == PostRefusal::Full => Some(refused.write),
            Err(refused) => {
                self.core.write_refused(link, refused.write);
                None
            }
        }
    }

    /// Opens a landing for a demand and sends its request.
    pub(super) fn open_and_ask(&mut self, landing: ToOpen) {
        let ToOpen {
            link, ticket, room, ..
        } = landing;
        let entry = self.core.links.at(link).filter(|entry| {
            let is_wanted = entry.channel.demand_at(ticket).is_some_and(Demand::may_ask);
            // Before the peer's hello it is not known whether the demand outlives it, and if not its landing would stay
            // open.
            is_wanted && entry.channel.is_up()
        });
        let Some(qp) = entry.and_then(|entry| entry.qp) else {
            // Taken back meanwhile; or without a connection, and then it is asked with the next.
            return self.core.transfers.come_home(room);
        };
        let bytes = room.bytes();
        let buffer = match self.core.pool.buffer(bytes as usize) {
            Ok(buffer) => buffer,
            Err(why) => {
                self.core.transfers.come_home(room);
                return (self.core).no_landing(link, ticket, bytes, Lack::Memory(why));
            }
        };
        let place = LandingPlace::new(qp, ticket);
        let (port, qp) = qp;
        match self.ports[port].open_landing(qp, place.landing, buffer) {
            Ok(region) => {
                self.core.transfers.opened(place, room);
                if let Some(entry) = self.core.links.at_mut(link) {
                    let granted = Some((region, landing.meta));
                    entry.channel.ask(ticket, landing.patience_ns, granted);
                }
                self.core.links.touch(link);
            }
            Err(buffer) => {
                drop(buffer);
                self.core.transfers.come_home(room);
                // One that is going down gets its landings on the next connection.
                if self.ports[port].caps(qp).body_max > 0 {
                    self.core
                        .no_landing(link, ticket, bytes, Lack::Registration);
                }
            }
        }
    }

    /// Rings the doorbells of peers that were posted to and may sleep.
    pub(super) fn flush(&mut self) {
        self.has_posted = false;
        for port in &mut self.ports {
            port.flush();
        }
    }
}
