//! Fetching: what a receiver does for a large value. Leases where the sender's memory can be read in place,
//! landings and one-sided writes where it cannot, and requests when the sender may be out of push credit.

use super::core::{Core, Incoming, PortOp};
use super::ids::{LinkId, NO_LINK, PeerId};
use super::peers::Link;
use super::recorder::What;
use super::value::{NOT_LENT, Path, Value, Waiter};
use crate::channel::heard::Accepted;
use crate::channel::{Demand, OfferHeard, Rule};
use crate::fabric::Landing;
use crate::ground::Nanos;
use crate::memory::{Buffer, Tensor};
use crate::rendezvous::{Arrival, Arrived, Slot, Withdrawn};
use crate::wire::Ticket;

impl Core {
    /// The bytes of an offer are here: it becomes a value in its place in line.
    pub(crate) fn supply(&mut self, incoming: &Incoming, ticket: Ticket, tensor: Tensor) {
        let Incoming {
            offer,
            link,
            trace,
            lent,
            ..
        } = *incoming;
        let path = if tensor.is_leased() || lent.is_some() {
            Path::Lease
        } else {
            Path::Copy
        };
        let value = Value {
            tensor,
            is_dead: offer.is_dead,
            path,
            trace,
            lines: offer.lines,
            link,
            lent: NOT_LENT,
        };
        let bytes = value.parked_bytes();
        if !self.settings.rules.on(Rule::Ordinals) {
            return self.arrive_unordered(incoming, value, bytes);
        }
        let mut matched = Vec::new();
        let token = u64::from(ticket.packed());
        let left = self.table.supply(
            self.now,
            incoming.slot,
            token,
            value,
            bytes,
            &mut |waiter, value, from| {
                matched.push((waiter, value, from));
            },
        );
        if let Err(value) = left {
            self.stats.dropped += 1;
            drop(self.taken(value));
        }
        self.hand_over_in_order(incoming.link, incoming.slot, matched);
        self.ask_last(incoming.link, incoming.slot);
    }

    fn arrive_unordered(&mut self, incoming: &Incoming, value: Value, bytes: u64) {
        let next = self.table.next_ordinal(incoming.slot);
        let item = Arrived::Value(value);
        if let Ok(Arrival::Matched {
            waiter,
            value,
            from,
        }) = self
            .table
            .arrive(self.now, incoming.slot, next, item, bytes)
        {
            self.hand_over(waiter, value, from);
        }
    }

    /// Somebody wants an offer's bytes: a landing is opened for them when there is budget.
    pub(crate) fn fetch(&mut self, ticket: Ticket) {
        let Some(incoming) = self.incoming.at_mut(ticket) else {
            return;
        };
        if std::mem::replace(&mut incoming.is_wanted, true) || incoming.region.is_some() {
            // A region is read in place as soon as its segment is mapped.
            return;
        }
        let link = incoming.link;
        if incoming.lent.is_some() && self.take_back(ticket) {
            return;
        }
        self.fetch_backlog.push_back(link, ticket);
        self.fetch_more();
    }

    /// Opens landings for wanted offers while there is budget: each link in its turn, and of a link the oldest first.
    pub(crate) fn fetch_more(&mut self) {
        if self.is_barred() || !self.renew_more() {
            return;
        }
        let mut passed = 0;
        while passed < self.fetch_backlog.links() {
            let Some((link, ticket)) = self.fetch_backlog.front() else {
                return;
            };
            let Some(incoming) = self.incoming.at(ticket).copied() else {
                self.fetch_backlog.pop();
                continue;
            };
            let size = incoming.offer.size;
            if !self.has_budget(size, false) {
                // It keeps its turn: a large value would never find room behind small ones.
                return;
            }
            let point = Self::point_of(incoming.slot);
            let tag = u64::from(ticket.packed());
            let mut demand = Demand::new(tag, incoming.slot.key, point, incoming.ordinal);
            demand.offer = Some(incoming.offer);
            demand.meta = Some(incoming.offer.meta);
            demand.wants_landing = true;
            let has_share = self.has_share(link, size);
            let entry = self.links.at_mut(link).filter(|_| has_share);
            let Some(request) = entry.and_then(|entry| entry.channel.demand(demand).ok()) else {
                self.fetch_backlog.pass();
                passed += 1;
                continue;
            };
            passed = 0;
            self.fetch_backlog.pop();
            if incoming.trace != 0 {
                self.remember(What::Fetched, incoming.slot, size, size);
            }
            let room = self.enter(size, false);
            self.links[link].fetching += size;
            let meta = incoming.offer.meta;
            self.port_ops.push(PortOp::OpenAndAsk {
                link,
                ticket: request,
                meta,
                patience_ns: 0,
                room,
            });
        }
    }

    /// A receive waits for a peer's value: whether it must be asked for.
    #[inline]
    pub(crate) fn want(
        &mut self,
        peer: PeerId,
        link: LinkId,
        slot: Slot,
        ordinal: u32,
        deadline: Nanos,
    ) {
        if self.partings.has(slot.step, link) {
            return self.ask_last(link, slot);
        }
        let Some(entry) = self.links.at(link).filter(|entry| entry.channel.is_up()) else {
            return self.await_peer(peer);
        };
        if entry.is_pressed(self.settings.offers) {
            self.ask(link, slot, ordinal, deadline);
        } else if !entry.seen.is_empty() && !entry.channel.reads_in_place() {
            self.ask_with_landing(link, slot, ordinal, deadline);
        }
    }

    /// A plain request: the peer may be out of push credit, and a requested value needs none.
    fn ask(&mut self, link: LinkId, slot: Slot, ordinal: u32, deadline: Nanos) {
        let patience_ns = self.patience(deadline);
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        let demand = Demand::new(u64::MAX, slot.key, Self::point_of(slot), ordinal);
        if let Ok(ticket) = entry.channel.demand(demand) {
            entry.channel.ask(ticket, patience_ns, None);
            self.touch(link);
        }
    }

    /// The value's type and shape were seen before, and it was large: the landing goes with the request, and the
    /// value comes in one trip.
    fn ask_with_landing(&mut self, link: LinkId, slot: Slot, ordinal: u32, deadline: Nanos) {
        let patience_ns = self.patience(deadline);
        let seen = self.links.at(link).map(|entry| &entry.seen);
        let Some(&meta) = seen.and_then(|seen| seen.get(&slot.key)) else {
            return;
        };
        let Some(size) = meta.size() else { return };
        if !self.has_budget(size, true) {
            // Beyond the budget a request goes without a landing.
            return self.ask(link, slot, ordinal, deadline);
        }
        let mut demand = Demand::new(u64::MAX, slot.key, Self::point_of(slot), ordinal);
        demand.meta = Some(meta);
        demand.wants_landing = true;
        let entry = &mut self.links[link];
        if let Ok(ticket) = entry.channel.demand(demand) {
            let room = self.enter(size, true);
            self.port_ops.push(PortOp::OpenAndAsk {
                link,
                ticket,
                meta,
                patience_ns,
                room,
            });
        }
    }

    const fn patience(&self, deadline: Nanos) -> u64 {
        if deadline.0 == Nanos::NEVER.0 {
            0
        } else {
            deadline.0.saturating_sub(self.now.0) + 1
        }
    }

    /// So much is held here that a wanted value may not come by itself: every waiting receive of this link asks.
    pub(crate) fn ask_when_pressed(&mut self, link: LinkId) {
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        if !entry.is_pressed(self.settings.offers) {
            entry.has_asked = false;
            return;
        }
        if std::mem::replace(&mut entry.has_asked, true) {
            return;
        }
        let mut wanted = Vec::new();
        let keys = &self.keys;
        self.table.waiting(|slot, _, waiter, ordinal| {
            // The peer's own requests wait here too, for values that go the other way.
            if matches!(waiter, Waiter::Asked(_)) {
                return;
            }
            if keys.at(slot.key).is_some_and(|entry| entry.link == link) {
                wanted.push((slot, ordinal));
            }
        });
        for (slot, ordinal) in wanted {
            self.ask_once(link, slot, ordinal);
        }
    }

    /// A demand belongs to its key: when fewer wait there than have asked, the youngest demands are taken back.
    pub(crate) fn settle_demands(&mut self, slot: Slot) {
        if let Some(link) = self.keys.at(slot.key).map(|entry| entry.link)
            && link != NO_LINK
        {
            self.settle_demands_of(link, slot);
        }
    }

    /// As [`Core::settle_demands`], where the link is known.
    #[inline]
    pub(crate) fn settle_demands_of(&mut self, link: LinkId, slot: Slot) {
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        if entry.channel.load()[0] > 0 {
            self.settle_some(link, slot);
        }
    }

    #[cold]
    fn settle_some(&mut self, link: LinkId, slot: Slot) {
        let point = Self::point_of(slot);
        let waiting = self.table.waiters_at(slot);
        let next = self.table.next_ordinal(slot);
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        let mut open = entry.channel.demands(|demand| {
            demand.key == slot.key
                && demand.point == point
                && demand.offer.is_none()
                && !demand.is_cancelled
        });
        let ordinal_of = |ticket| {
            entry
                .channel
                .demand_at(ticket)
                .map_or(0, |demand| demand.ordinal)
        };
        open.sort_by_key(|&ticket| ordinal_of(ticket));
        // Values that have come serve no demand any more; of the others as many stay as receives wait.
        let moot = open
            .iter()
            .filter(|&&ticket| ordinal_of(ticket) < next)
            .count();
        let surplus = open.split_off(open.len().min(moot + waiting));
        for ticket in open.into_iter().take(moot).chain(surplus) {
            entry.channel.cancel(ticket);
        }
        self.touch(link);
    }

    /// A one-sided write into one of our landings is complete.
    pub(crate) fn landed(&mut self, link: LinkId, ticket: Ticket, len: u64, mut buffer: Buffer) {
        self.leave(link, self.room_of(link, ticket, buffer.len()));
        let demand = self
            .links
            .at_mut(link)
            .and_then(|entry| entry.channel.landed(ticket));
        let (Some(demand), Some(meta)) = (demand, demand.and_then(|demand| demand.meta)) else {
            drop(buffer);
            return self.fetch_more();
        };
        buffer.truncate(len as usize);
        let slot = Slot {
            step: demand.point.step,
            key: demand.key,
            at: demand.point.at,
        };
        match (buffer.into_tensor(meta), demand.offer) {
            (Ok(tensor), Some(_)) => {
                let offer = Ticket::unpack(demand.tag as u32);
                if let Some(incoming) = self.incoming.remove(offer) {
                    self.supply(&incoming, offer, tensor);
                }
            }
            (Ok(tensor), None) => {
                let value = Value {
                    tensor,
                    is_dead: false,
                    path: Path::Copy,
                    trace: 0,
                    lines: 0,
                    link,
                    lent: NOT_LENT,
                };
                // Frames that were sent before may still be on their way, whether anything is asked or not.
                if self.settings.rules.on(Rule::NoOrderBetweenLanes) {
                    self.arrive_in_turn(
                        link,
                        slot,
                        demand.ordinal,
                        crate::rendezvous::Arrived::Value(value),
                    );
                } else {
                    self.arrive(link, slot, demand.ordinal, value);
                }
            }
            // Shorter than its type and shape say: the peer wrote nonsense, and its value is lost.
            (Err(_), _) => self.violated(link, crate::channel::Violation::Requests),
        }
        self.fetch_more();
    }

    /// A landing came home with nothing in it.
    pub(crate) fn quiet(&mut self, link: LinkId, ticket: Ticket, buffer: Buffer) {
        self.leave(link, self.room_of(link, ticket, buffer.len()));
        drop(buffer);
        if let Some(entry) = self.links.at_mut(link) {
            entry.channel.quiet(ticket);
        }
        self.fetch_more();
    }

    /// A link's epoch is about to end: what its landings wait for comes no more.
    pub(crate) fn forget_ahead(&mut self, link: LinkId) {
        let Some(Link { channel, .. }) = self.links.at(link) else {
            return;
        };
        for ticket in channel.demands(|demand| demand.has_landing && demand.offer.is_none()) {
            let size = channel
                .demand_at(ticket)
                .and_then(|demand| demand.meta?.size());
            self.ahead_bytes = self.ahead_bytes.saturating_sub(size.unwrap_or(0));
        }
    }

    /// A write that served an accepted offer did not arrive: the value is on offer again, under another ticket.
    pub(crate) fn offered_again(
        &mut self,
        link: LinkId,
        ticket: Ticket,
        accepted: &Accepted,
        offer: &OfferHeard,
    ) {
        let again = Accepted {
            ticket: offer.offer,
            lines: accepted.lines,
            ..*accepted
        };
        match self.incoming.at_mut(ticket) {
            Some(incoming) if incoming.offer.ticket == accepted.ticket => {
                incoming.offer = again;
                incoming.region = offer.region;
                incoming.lent = offer.lent;
                incoming.is_wanted = offer.region.is_some();
                if incoming.is_wanted {
                    self.read_in_place(ticket);
                } else {
                    self.fetch(ticket);
                }
            }
            _ => {
                // Nobody wants it any more. Its lines went back when it was given up.
                self.decline(link, &Accepted { lines: 0, ..again });
            }
        }
    }

    /// Every receive that waits at a slot asks, unless enough ask already.
    pub(crate) fn ask_for_waiting(&mut self, link: LinkId, slot: Slot) {
        let mut wanted = Vec::new();
        self.table.waiting(|at, _, _, ordinal| {
            if at == slot {
                wanted.push(ordinal);
            }
        });
        for ordinal in wanted {
            self.ask_once(link, slot, ordinal);
        }
    }

    fn ask_once(&mut self, link: LinkId, slot: Slot, ordinal: u32) {
        let point = Self::point_of(slot);
        let is_same = |demand: &Demand| {
            demand.key == slot.key
                && demand.point == point
                && demand.ordinal == ordinal
                && !demand.is_cancelled
        };
        if self.links[link].channel.demands(is_same).is_empty() {
            self.ask(link, slot, ordinal, Nanos::NEVER);
        }
    }

    /// The landing of a demand is closed; Landed or Quiet follows.
    pub(crate) fn close_landing(&mut self, link: LinkId, ticket: Ticket) {
        let Some(entry) = self.links.at(link) else {
            return;
        };
        if let Some((port, qp)) = entry.qp {
            let landing = Landing {
                index: ticket.index,
                generation: ticket.generation,
            };
            self.port_ops
                .push(PortOp::CloseLanding { port, qp, landing });
        }
        if !self.settings.rules.on(Rule::Quiet) {
            // With the rule off the landing counts as home at once, though something may still write there.
            let size = entry
                .channel
                .demand_at(ticket)
                .and_then(|demand| demand.meta)
                .and_then(|meta| meta.size());
            let room = self.room_of(link, ticket, size.unwrap_or(0) as usize);
            self.leave(link, room);
        }
    }

    /// An offer we had accepted is gone at its sender.
    pub(crate) fn withdraw(&mut self, link: LinkId, slot: Slot, ticket: Ticket, offer: &Accepted) {
        if self
            .incoming
            .at(ticket)
            .is_none_or(|incoming| incoming.offer.ticket != offer.ticket)
        {
            return;
        }
        self.incoming.remove(ticket);
        self.return_lines(link, offer.lines);
        let (mut matched, mut wanted, mut asked) = (Vec::new(), None, None);
        let token = u64::from(ticket.packed());
        self.table
            .withdraw(slot, token, &mut |outcome| match outcome {
                Withdrawn::Matched(waiter, value, from) => matched.push((waiter, value, from)),
                Withdrawn::Wanted(token) => wanted = Some(token),
                Withdrawn::Ask(ordinal) => asked = Some(ordinal),
            });
        if let Some(token) = wanted {
            self.fetch(Ticket::unpack(token as u32));
        }
        if let Some(ordinal) = asked {
            self.ask(link, slot, ordinal, Nanos::NEVER);
        }
        self.hand_over_in_order(link, slot, matched);
    }

    /// An offer in the table ended with its step or its peer.
    pub(crate) fn drop_incoming(&mut self, ticket: Ticket) {
        let Some(incoming) = self.incoming.remove(ticket) else {
            return;
        };
        let tag = u64::from(ticket.packed());
        let Some(entry) = self.links.at_mut(incoming.link) else {
            return;
        };
        entry.unmapped.retain(|&waiting| waiting != ticket);
        // A demand that accepted it before it was offered again has its answer, and waits for its landing alone.
        let ticket = incoming.offer.ticket;
        let asked = entry.channel.demands(|demand| {
            demand.tag == tag && demand.offer.is_some_and(|offer| offer.ticket == ticket)
        });
        if asked.is_empty() {
            self.decline(incoming.link, &incoming.offer);
        } else {
            reached!("dropped_while_its_landing_is_out");
            for ticket in asked {
                self.links[incoming.link].channel.cancel(ticket);
            }
            self.return_lines(incoming.link, incoming.offer.lines);
            self.touch(incoming.link);
        }
    }

    /// A link's epoch ended: its offers are gone.
    pub(crate) fn forget_incoming(&mut self, link: LinkId) {
        let gone: Vec<_> = self
            .incoming
            .tickets()
            .filter(|&ticket| {
                self.incoming
                    .at(ticket)
                    .is_some_and(|incoming| incoming.link == link)
            })
            .collect();
        for ticket in gone {
            self.incoming.remove(ticket);
        }
    }

    /// A link's epoch ended: what its peer asked for is asked no more.
    pub(crate) fn forget_asked(&mut self, link: LinkId) {
        let gone: Vec<_> = self
            .asked
            .tickets()
            .filter(|&ticket| {
                self.asked
                    .at(ticket)
                    .is_some_and(|asked| asked.link == link)
            })
            .collect();
        for ticket in gone {
            if let Some(id) = self.asked.remove(ticket).and_then(|asked| asked.id) {
                self.table.cancel(id);
            }
        }
    }
}
