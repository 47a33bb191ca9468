//! Fetching: what a receiver does for a large value. It leases if the sender's memory can be read in place, opens
//! landings for one-sided writes if it cannot, and sends requests if the sender may be out of push credit.

use super::budget::{LandingPlace, LandingRoom};
use super::core::{Core, PortOp};
use super::ids::{LinkId, NO_LINK, PeerId};
use super::transfers::{Incoming, Next, Opening, ToOpen, TransferId};
use super::value::{NOT_LENT, Value, Waiter};
use crate::channel::{Accepted, Demand, Rule};
use crate::ground::Nanos;
use crate::memory::{Buffer, Tensor};
use crate::rendezvous::{Arrived, PushOutcome, Slot, Withdrawn, distance};
use crate::trace::Path;
use crate::trace::recorder::What;
use crate::wire::Ticket;

impl Core {
    /// The bytes of an offer are here: it becomes a value in its place in line.
    pub(crate) fn supply(&mut self, incoming: &Incoming, id: TransferId, tensor: Tensor) {
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
        let left = self.table.supply(
            self.now,
            incoming.slot,
            id.token(),
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
        if let Ok(PushOutcome::Matched {
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

    /// A receiver wants an offer's bytes.
    pub(crate) fn fetch(&mut self, id: TransferId) {
        let next = self.transfers.want(id);
        self.go_on(id, next);
    }

    /// Does what an offer needs next.
    pub(super) fn go_on(&mut self, id: TransferId, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Lease => self.read_in_place(id),
            Next::TakeBack(lent) => self.take_back(id, lent),
            Next::Open => self.fetch_more(),
            Next::Decline(link, offer) => self.decline(link, &offer),
        }
    }

    /// Opens landings for wanted offers while there is budget.
    pub(crate) fn fetch_more(&mut self) {
        if !self.transfers.is_barred(self.now) {
            self.open_landings();
        }
    }

    pub(super) fn open_landings(&mut self) {
        let mut passed = 0;
        loop {
            let links = &self.links;
            let bare = |link, ticket| {
                let demand = links.at(link)?.channel.demand_at(ticket).copied();
                demand.filter(Demand::is_bare)
            };
            match self.transfers.next_opening(&mut passed, bare) {
                None => return,
                Some(Opening::Bare(link, ticket)) => self.ask_bare(link, ticket),
                Some(Opening::Again(landing)) => self.port_ops.push(PortOp::OpenAndAsk(landing)),
                Some(Opening::Offer(id, incoming, room)) => {
                    passed = match self.accept(id, &incoming, room) {
                        true => 0,
                        false => passed + 1,
                    };
                }
            }
        }
    }

    /// A demand accepts an offer, with a landing. False if its link takes none now.
    fn accept(&mut self, id: TransferId, incoming: &Incoming, room: LandingRoom) -> bool {
        let Incoming {
            link, slot, offer, ..
        } = *incoming;
        let point = Self::point_of(slot);
        let mut demand =
            Demand::new(id.token(), slot.key, point, incoming.ordinal).landing_for(offer.meta);
        demand.offer = Some(offer);
        let entry = self.links.at_mut(link);
        let Some(ticket) = entry.and_then(|entry| entry.channel.demand(demand).ok()) else {
            self.transfers.pass(link, id, room);
            return false;
        };
        if incoming.trace != 0 {
            self.remember(What::Fetched, slot, offer.size, offer.size);
        }
        self.port_ops.push(PortOp::OpenAndAsk(ToOpen {
            link,
            ticket,
            meta: offer.meta,
            patience_ns: 0,
            room,
        }));
        true
    }

    /// A receive waits for a peer's value: whether it must be asked for.
    #[inline(always)]
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
        let Some(entry) = self
            .links
            .at_mut(link)
            .filter(|entry| entry.channel.is_up())
        else {
            return self.await_peer(peer);
        };
        if entry.is_pressed(self.transfers.of_link(link), self.settings.offers) {
            return self.ask(link, slot, ordinal, deadline);
        }
        let is_large = !entry.seen.is_empty() && !entry.channel.reads_in_place();
        // Should the link be pressed again, this one has not asked.
        entry.has_asked = false;
        if is_large {
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
            self.links.touch(link);
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
        let Some(room) = self.transfers.room_ahead(link, size) else {
            // Beyond the budget a request goes without a landing.
            return self.ask(link, slot, ordinal, deadline);
        };
        let demand =
            Demand::new(u64::MAX, slot.key, Self::point_of(slot), ordinal).landing_for(meta);
        let Ok(ticket) = self.links[link].channel.demand(demand) else {
            return self.transfers.come_home(room);
        };
        self.port_ops.push(PortOp::OpenAndAsk(ToOpen {
            link,
            ticket,
            meta,
            patience_ns,
            room,
        }));
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
        let offered = self.transfers.of_link(link);
        if !entry.is_pressed(offered, self.settings.offers) {
            entry.has_asked = false;
            return;
        }
        if std::mem::replace(&mut entry.has_asked, true) {
            return;
        }
        if !entry.is_pressed(0, self.settings.offers) {
            reached!("pressed_by_what_is_on_offer");
        }
        let mut wanted = Vec::new();
        let keys = &self.keys;
        self.table.waiting(|slot, _, waiter, ordinal| {
            // The peer's own requests wait here too, for values that go the other way.
            if matches!(waiter, Waiter::Asked(_)) {
                return;
            }
            if keys
                .at(slot.key)
                .is_some_and(|entry| entry.way.link == link)
            {
                wanted.push((slot, ordinal));
            }
        });
        for (slot, ordinal) in wanted {
            self.ask_once(link, slot, ordinal);
        }
    }

    /// A demand belongs to its key: when fewer wait there than have asked, the youngest demands are taken back.
    pub(crate) fn settle_demands(&mut self, slot: Slot) {
        if let Some(link) = self.keys.at(slot.key).map(|entry| entry.way.link)
            && link != NO_LINK
        {
            self.settle_demands_of(link, slot);
        }
    }

    /// As [`Core::settle_demands`], where the link is known.
    #[inline(always)]
    pub(crate) fn settle_demands_of(&mut self, link: LinkId, slot: Slot) {
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        if entry.channel.is_asking() {
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
        let demands = entry.channel.demands_of(slot.key, point);
        let mut open: Vec<_> = demands
            .filter(|(_, demand)| demand.offer.is_none() && !demand.is_over())
            .map(|(ticket, demand)| (distance(next, demand.ordinal), ticket))
            .collect();
        open.sort_by_key(|&(after, ticket)| (after, ticket.index));
        // Values that have come serve no demand any more; of the others as many stay as receives wait.
        let moot = open.iter().filter(|&&(after, _)| after < 0).count();
        let surplus = open.split_off(open.len().min(moot + waiting));
        for (_, ticket) in open.into_iter().take(moot).chain(surplus) {
            entry.channel.cancel(ticket);
        }
        self.links.touch(link);
    }

    /// A one-sided write into one of our landings is complete.
    pub(crate) fn landed(&mut self, place: LandingPlace, len: u64, mut buffer: Buffer) {
        self.transfers.quiet(place);
        let link = self.links.of_qp(place.port, place.qp);
        let demand = self
            .links
            .at_mut(link)
            .and_then(|entry| entry.channel.landed(place.demand()));
        let (Some(demand), Some(meta)) = (demand, demand.and_then(|demand| demand.meta)) else {
            drop(buffer);
            return self.fetch_more();
        };
        buffer.truncate(len as usize);
        let slot = Self::slot_of(demand.key, demand.point);
        match (buffer.into_tensor(meta), demand.offer) {
            (Ok(tensor), Some(offer)) => {
                let id = TransferId::from_token(demand.tag);
                // A value that was given up has left its number to others.
                if self.transfers.is_of(id, link, &offer)
                    && let Some(incoming) = self.transfers.end(id)
                {
                    self.supply(&incoming, id, tensor);
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
                    self.arrive_in_turn(link, slot, demand.ordinal, Arrived::Value(value));
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
    pub(crate) fn quiet(&mut self, place: LandingPlace, buffer: Buffer) {
        self.transfers.quiet(place);
        drop(buffer);
        let link = self.links.of_qp(place.port, place.qp);
        if let Some(entry) = self.links.at_mut(link) {
            entry.channel.quiet(place.demand());
        }
        self.fetch_more();
    }

    /// Every receive that waits at a slot asks, unless enough ask already.
    pub(crate) fn ask_for_waiting(&mut self, link: LinkId, slot: Slot) {
        let mut wanted = Vec::new();
        self.table
            .waiting_at(slot, |_, _, ordinal| wanted.push(ordinal));
        for ordinal in wanted {
            self.ask_once(link, slot, ordinal);
        }
    }

    fn ask_once(&mut self, link: LinkId, slot: Slot, ordinal: u32) {
        let point = Self::point_of(slot);
        let channel = &self.links[link].channel;
        let is_its =
            |demand: &Demand| demand.ordinal == ordinal || mutant!("one_receive_asks_for_all");
        let has_asked = channel
            .demands_of(slot.key, point)
            .any(|(_, demand)| is_its(demand) && !demand.is_over());
        if !has_asked {
            self.ask(link, slot, ordinal, Nanos::NEVER);
        }
    }

    /// The landing of a demand is closed; Landed or Quiet follows.
    pub(crate) fn close_landing(&mut self, link: LinkId, ticket: Ticket) {
        let Some(qp) = self.links.at(link).and_then(|entry| entry.qp) else {
            return;
        };
        let place = LandingPlace::new(qp, ticket);
        self.port_ops.push(PortOp::CloseLanding(place));
        if !self.settings.rules.on(Rule::Quiet) {
            // With the rule off the landing counts as home at once, though something may still write there.
            self.transfers.quiet(place);
        }
    }

    /// An offer we had accepted is gone at its sender.
    pub(crate) fn withdraw(&mut self, link: LinkId, slot: Slot, id: TransferId, offer: &Accepted) {
        if !self.transfers.is_of(id, link, offer) {
            return;
        }
        self.transfers.end(id);
        self.return_lines(link, offer.lines);
        let (mut matched, mut wanted, mut asked) = (Vec::new(), None, None);
        self.table
            .withdraw(slot, id.token(), &mut |outcome| match outcome {
                Withdrawn::Matched(waiter, value, from) => matched.push((waiter, value, from)),
                Withdrawn::Wanted(token) => wanted = Some(token),
                Withdrawn::Ask(ordinal) => asked = Some(ordinal),
            });
        if let Some(token) = wanted {
            self.fetch(TransferId::from_token(token));
        }
        if let Some(ordinal) = asked {
            // Where a receive before it has just ended, the place that it moves up to may be asked for already.
            self.ask_once(link, slot, ordinal);
        }
        self.hand_over_in_order(link, slot, matched);
    }

    /// An offer in the table ended with its step or its peer.
    pub(crate) fn drop_incoming(&mut self, id: TransferId) {
        let Some(incoming) = self.transfers.end(id) else {
            return;
        };
        let tag = id.token();
        let Some(entry) = self.links.at_mut(incoming.link) else {
            return;
        };
        // A demand that accepted it before it was offered again has its answer, and waits for its landing alone.
        let ticket = incoming.offer.ticket;
        let point = Self::point_of(incoming.slot);
        let demands = entry.channel.demands_of(incoming.slot.key, point);
        let is_of_offer = |demand: &Demand| {
            demand.tag == tag && demand.offer.is_some_and(|offer| offer.ticket == ticket)
        };
        let asked: Vec<_> = demands
            .filter(|(_, demand)| is_of_offer(demand))
            .map(|(ticket, _)| ticket)
            .collect();
        if asked.is_empty() {
            self.decline(incoming.link, &incoming.offer);
        } else {
            reached!("dropped_while_its_landing_is_out");
            for ticket in asked {
                self.links[incoming.link].channel.cancel(ticket);
            }
            self.return_lines(incoming.link, incoming.offer.lines);
            self.links.touch(incoming.link);
        }
    }
}
