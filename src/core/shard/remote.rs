//! What peers say: arrivals from a port, through the link's channel, into the table.
//!
//! It runs while the port is being polled, so it posts nothing: answers are left in channels and `port_ops`.

use super::budget::LandingPlace;
use super::core::{Core, Target};
use super::ids::{LinkId, NO_LINK, PeerId};
use super::keys;
use super::leases::NoLease;
use super::transfers::{Incoming, TransferId};
use super::value::{Arriving, NOT_LENT, Pushed, Value};
use crate::channel::{Accepted, Demand, Heard, OfferHeard, PushHeard, Rule, Violation, WriteEnd};
use crate::fabric::{self, Outcome, QpId};
use crate::ground::{Key, Status, faults};
use crate::mail::Received;
use crate::memory::{INLINE_MAX, Tensor};
use crate::rendezvous::{Arrived, PushOutcome, Slot, is_before};
use crate::trace::Path;
use crate::trace::recorder::What;
use crate::wire::message::{Push, StatusText};
use crate::wire::{Frame, Kind, Ticket};

impl Core {
    /// Something arrived at a port.
    #[inline(always)]
    pub(crate) fn arrived(&mut self, port: usize, arrival: fabric::Arrival<'_>) {
        if let fabric::Arrival::Frame { qp, frame, body } = arrival {
            self.heard_at(port, qp, frame, body);
            return std::mem::forget(arrival); // It is not looked at for anything to drop.
        }
        self.arrived_besides(port, arrival);
    }

    /// As [`Core::arrived`], mostly of what is no frame.
    #[inline(never)]
    fn arrived_besides(&mut self, port: usize, arrival: fabric::Arrival<'_>) {
        match arrival {
            fabric::Arrival::Frame { qp, frame, body } => self.heard_at(port, qp, frame, body),
            fabric::Arrival::Landed {
                qp,
                landing,
                len,
                buffer,
            } => {
                self.landed(LandingPlace { port, qp, landing }, len, buffer);
            }
            fabric::Arrival::Quiet {
                qp,
                landing,
                buffer,
            } => {
                self.quiet(LandingPlace { port, qp, landing }, buffer);
            }
            fabric::Arrival::Wrote {
                qp,
                token,
                source,
                outcome,
            } => {
                let link = LinkId::from_number((token.0 >> 32) as u32);
                if self.links.of_qp(port, qp) != link {
                    // Of a connection that the link has left: its ticket may name another write by now.
                    return;
                }
                let end = if outcome == Outcome::Done {
                    WriteEnd::Done
                } else {
                    WriteEnd::Failed
                };
                self.wrote(link, Ticket::unpack(token.0 as u32), end, source);
            }
            fabric::Arrival::Down { qp, reason } => {
                let link = self.links.of_qp(port, qp);
                if link != NO_LINK {
                    self.link_down(link, reason);
                }
            }
        }
    }

    /// A frame arrived.
    #[inline(never)]
    fn heard_at(&mut self, port: usize, qp: QpId, frame: &Frame, body: &[u8]) {
        let link = self.links.of_qp(port, qp);
        if link == NO_LINK {
            return;
        }
        // The same way as for every push, compiled once more for what most of them say. One in 64 is timed, and takes
        // `heard_any`.
        match Push::parse_row(frame, body) {
            Some(push) => self.heard_push(link, frame, &push),
            None => self.heard_any(link, frame, body),
        }
    }

    #[inline(never)]
    fn heard_any(&mut self, link: LinkId, frame: &Frame, body: &[u8]) {
        if frame.kind() == Kind::Push as u8 {
            let tail = frame.tail();
            return match Push::parse(frame, &tail, body) {
                Ok(push) => self.heard_push(link, frame, &push),
                Err(malformed) => self.violated(link, malformed.into()),
            };
        }
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        let tail = frame.tail();
        if frame.kind() == Kind::Offer as u8 {
            let mut answered = None;
            let heard = (entry.channel).handle_offer(self.now, frame, &tail, body, &mut answered);
            match &heard {
                Ok(offer) => self.heard_offer(link, offer, answered.as_ref()),
                Err(violation) => return self.violated(link, *violation),
            }
        } else {
            match entry.channel.handle_frame(self.now, frame, &tail, body) {
                Ok(heard) => self.heard_other(link, heard),
                Err(violation) => return self.violated(link, violation),
            }
        }
        self.weigh(link);
        self.watch_link(link);
    }

    #[inline(always)]
    fn heard_push(&mut self, link: LinkId, frame: &Frame, push: &Push<'_>) {
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        match entry.channel.handle_push(self.now, frame, push) {
            Ok(push) => self.judged_push(link, &push),
            Err(violation) => self.violated(link, violation),
        }
    }

    #[inline(always)]
    fn judged_push(&mut self, link: LinkId, push: &PushHeard<'_>) {
        if let Some(demand) = push.demand {
            self.answered(link, demand);
        }
        let buffer = if push.data.len() <= INLINE_MAX {
            None
        } else {
            match self.pool.buffer_of(push.data) {
                Ok(buffer) => Some(buffer),
                Err(_) => return self.heard_on_heap(link, *push),
            }
        };
        self.heard_whole(link, push, Pushed { push, buffer });
    }

    /// A value for which the arena has no room. It is short, and the peer's credit bounds how many are parked: so what
    /// a program says about its large tensors still arrives.
    #[cold]
    #[inline(never)]
    fn heard_on_heap(&mut self, link: LinkId, push: PushHeard<'_>) {
        let received = Received {
            tensor: Tensor::on_heap(push.meta, push.data),
            is_dead: push.is_dead,
            path: Path::Inline,
        };
        self.heard_whole(link, &push, received);
    }

    #[inline(always)]
    fn heard_whole(&mut self, link: LinkId, push: &PushHeard<'_>, arriving: impl Arriving) {
        let slot = Self::slot_of(push.key, push.point);
        let trace = if push.stamp == 0 {
            0
        } else {
            self.timed(
                link,
                slot,
                push.ordinal,
                push.data.len(),
                push.stamp,
                Path::Inline,
            )
        };
        self.arrive_whole(link, slot, push.ordinal, trace, push.lines, arriving);
    }

    /// A value that is all here: it goes to its waiter, and was never in the table, or it goes into the table.
    #[inline(always)]
    fn arrive_whole(
        &mut self,
        link: LinkId,
        slot: Slot,
        ordinal: u32,
        trace: u16,
        lines: u32,
        arriving: impl Arriving,
    ) {
        // All that is before it has come, and nothing is asked of the peer.
        let claimed = if self.is_plain(link) {
            self.table.claim(&slot, ordinal)
        } else {
            None
        };
        let Some((waiter, from)) = claimed else {
            let place = (link, slot, ordinal);
            return self.arrive_unclaimed(place, trace, lines, arriving.received());
        };
        self.stats.delivered += 1;
        self.stages.meets(trace);
        if let Some(tensor) = arriving.in_place() {
            self.hold(tensor);
        }
        self.bring_value(waiter, from, arriving);
        self.return_lines(link, lines);
    }

    /// A value that has no receiver yet, or others before it.
    #[inline(never)]
    fn arrive_unclaimed(
        &mut self,
        (link, slot, ordinal): (LinkId, Slot, u32),
        trace: u16,
        lines: u32,
        received: Received,
    ) {
        let Received {
            tensor,
            is_dead,
            path,
        } = received;
        let value = Value {
            tensor,
            is_dead,
            path,
            trace,
            lines,
            link,
            lent: NOT_LENT,
        };
        self.arrive(link, slot, ordinal, value);
    }

    #[inline]
    pub(super) fn arrive(&mut self, link: LinkId, slot: Slot, ordinal: u32, value: Value) {
        if self.may_overtake(link) {
            return self.arrive_in_turn(link, slot, ordinal, Arrived::Value(value));
        }
        self.take_in(link, slot, ordinal, value);
    }

    #[inline]
    pub(super) fn take_in(&mut self, link: LinkId, slot: Slot, ordinal: u32, value: Value) {
        let bytes = value.parked_bytes();
        self.claim_step(slot);
        let ordinal = self.judge(slot, ordinal);
        match self
            .table
            .arrive(self.now, slot, ordinal, Arrived::Value(value), bytes)
        {
            Ok(PushOutcome::Matched {
                waiter,
                value,
                from,
            }) => {
                let is_watched = value.lines > 0;
                self.hand_over(waiter, value, from);
                self.settle_demands_of(link, slot);
                if is_watched {
                    // Giving its lines back has looked after the link.
                    return;
                }
            }
            Ok(PushOutcome::Parked) => {
                self.watch_table();
                self.ask_when_pressed(link);
            }
            Ok(PushOutcome::Wanted { .. }) => {}
            Ok(PushOutcome::Duplicate(item)) => self.drop_item(link, item),
            Err((refusal, item)) => {
                self.drop_item(link, item);
                self.refused_arrival(slot, refusal);
            }
        }
        // The frame is to be acknowledged, and may have brought credit.
        self.watch_link(link);
    }

    /// With the rule off, a value that was here before is taken for a new one.
    #[inline]
    fn judge(&self, slot: Slot, ordinal: u32) -> u32 {
        if self.settings.rules.on(Rule::Duplicates) {
            return ordinal;
        }
        let next = self.table.next_ordinal(slot);
        if is_before(ordinal, next) {
            next
        } else {
            ordinal
        }
    }

    /// With the rule off, a frame makes a step as a local use does: the harm a simulation shows.
    #[inline]
    fn claim_step(&mut self, slot: Slot) {
        if !self.settings.rules.on(Rule::Grace) {
            let _ = self.table.open_step(self.now, slot.step);
        }
    }

    fn heard_other(&mut self, link: LinkId, heard: Heard<'_, Value>) {
        match heard {
            Heard::Nothing | Heard::Released(_) => {}
            Heard::Up {
                incarnation,
                former,
                has_dropped,
                ..
            } => self.heard_up(link, incarnation, former, has_dropped),
            Heard::Request(request) => {
                self.claim_step(Slot {
                    step: request.point.step,
                    key: request.key,
                    at: request.point.at,
                });
                self.requested(link, &request);
            }
            Heard::Write {
                request,
                key,
                point,
                ordinal,
                value,
                landing,
            } => {
                let slot = Slot {
                    step: point.step,
                    key,
                    at: point.at,
                };
                let target = Target {
                    landing: Some(landing),
                    is_accepted: true,
                };
                self.serve(link, request, target, slot, ordinal, value);
            }
            Heard::Stale(request) => {
                let status = faults::stale_offer();
                self.links[link].channel.fail_request(request, &status);
                self.links.touch(link);
            }
            Heard::Cancel { request, tag } => self.heard_cancel(link, request, tag),
            Heard::Ended {
                ticket,
                demand,
                status,
            } => self.heard_end(link, ticket, demand, status),
            Heard::Recall(offer) => self.recalled(link, offer),
            Heard::Drain => self.tell_held(link),
            Heard::Intern { number, text } => self.heard_intern(link, number, text),
            Heard::Abort { step, status } => {
                let status = status_of(&status);
                self.observer.step_ended(step, &status);
                if self.abort(step, &status) {
                    self.tell_neighbours(step, &status);
                }
            }
            Heard::Finish(step) => self.heard_finish(link, step),
        }
    }

    fn heard_offer(
        &mut self,
        link: LinkId,
        offer: &OfferHeard,
        answered: Option<&(Ticket, Demand)>,
    ) {
        let slot = Slot {
            step: offer.point.step,
            key: offer.key,
            at: offer.point.at,
        };
        self.claim_step(slot);
        if let Some((ticket, demand)) = answered {
            self.answered(link, *ticket);
            if let Some(accepted) = &demand.offer {
                let id = TransferId::from_token(demand.tag);
                let next = self.transfers.offered_again(link, id, accepted, offer);
                return self.go_on(id, next);
            }
        }
        let entry = &mut self.links[link];
        let accepted = &offer.offer;
        let mut region = offer.region;
        if !entry.channel.reads_in_place() {
            entry.seen.insert(offer.key, accepted.meta);
            // Said on a connection before this one: the segment is not mapped, and no news of it comes.
            if !mutant!("offers_of_former_ways_wait") {
                region = None;
            }
        }
        let trace = if offer.stamp == 0 {
            0
        } else {
            let is_in_place = region.is_some() || offer.lent.is_some();
            let path = if is_in_place { Path::Lease } else { Path::Copy };
            self.timed(
                link,
                slot,
                offer.ordinal,
                accepted.size as usize,
                offer.stamp,
                path,
            )
        };
        if let Some(claim) = region
            && self.table_takes(slot)
        {
            match self.lease(link, claim, accepted) {
                Ok(tensor) => {
                    let received = Received {
                        tensor,
                        is_dead: accepted.is_dead,
                        path: Path::Lease,
                    };
                    self.arrive_whole(link, slot, offer.ordinal, trace, accepted.lines, received);
                    // It may have been taken at once, and be kept.
                    return self.ask_when_pressed(link);
                }
                Err(NoLease::Unmapped) => {}
                Err(NoLease::Never) => {
                    reached!("no_lease_free");
                    region = None;
                }
            }
        }
        let incoming = Incoming {
            link,
            slot,
            ordinal: offer.ordinal,
            offer: *accepted,
            region,
            lent: offer.lent,
            is_wanted: false,
            trace,
        };
        if trace != 0 {
            self.remember(What::Offered, slot, accepted.size, accepted.size);
        }
        let Some(id) = self.transfers.begin(incoming) else {
            self.decline(link, accepted);
            if self.table_takes(slot) && !mutant!("declined_untold") {
                self.fail_step(slot.step, &faults::incoming_exhausted());
            }
            return;
        };
        if self.may_overtake(link) {
            let item = Arrived::Offer(id.token());
            return self.arrive_in_turn(link, slot, offer.ordinal, item);
        }
        self.take_in_offer(link, slot, offer.ordinal, id);
    }

    pub(super) fn take_in_offer(&mut self, link: LinkId, slot: Slot, ordinal: u32, id: TransferId) {
        let ordinal = self.judge(slot, ordinal);
        if !self.settings.rules.on(Rule::Ordinals) {
            // With the rule off the offer takes no place in line: later values overtake it.
            return self.fetch(id);
        }
        match self
            .table
            .arrive(self.now, slot, ordinal, Arrived::Offer(id.token()), 0)
        {
            Ok(PushOutcome::Wanted { .. }) => self.fetch(id),
            Ok(PushOutcome::Duplicate(item)) => self.drop_item(link, item),
            Err((refusal, item)) => {
                self.drop_item(link, item);
                self.refused_arrival(slot, refusal);
            }
            Ok(_) => {
                self.watch_table();
                self.ask_when_pressed(link);
            }
        }
        // A demand for this very value gets no answer of its own: the value left unrequested.
        self.settle_demands_of(link, slot);
    }

    /// An offer that no receiver here wants: its place and credit go back.
    pub(crate) fn decline(&mut self, link: LinkId, offer: &Accepted) {
        self.stats.dropped += 1;
        if let Some(entry) = self.links.at_mut(link) {
            entry.channel.release(offer.ticket);
            self.links.touch(link);
        }
        self.return_lines(link, offer.lines);
    }

    fn heard_cancel(&mut self, link: LinkId, request: Ticket, tag: Option<u64>) {
        if let Some(asked) = tag.and_then(|tag| self.asked.remove(Ticket::unpack(tag as u32)))
            && let Some(id) = asked.id
        {
            self.table.cancel(id);
        }
        self.links[link].channel.answer_cancel(request);
        self.links.touch(link);
    }

    /// The peer gives a key a number. What is no key of this pair of tasks ends the connection.
    fn heard_intern(&mut self, link: LinkId, number: Ticket, text: &str) {
        let peer = self.links[link].peer;
        // Judged before anything is made of it: a name of another task would take a place among the peers.
        let key = keys::parse(text).filter(|key| self.is_between(key, peer));
        let key = key.and_then(|key| self.intern_heard(&key).ok());
        let is_ours = key
            .and_then(|id| self.keys.at(id))
            .is_some_and(|entry| entry.way.owner == self.index);
        let learned = match key {
            Some(key) if is_ours => self.links[link].channel.interned(number, key),
            _ => Err(Violation::ForeignKey),
        };
        if let Err(violation) = learned {
            self.violated(link, violation);
        }
    }

    /// As if the peer had given that key its first number.
    #[cfg(test)]
    pub(crate) fn heard_key(&mut self, link: LinkId, text: &str) {
        self.heard_intern(link, Ticket::unpack(1), text);
    }

    /// True if the key's two ends are this task and that peer.
    fn is_between(&self, key: &Key, peer: PeerId) -> bool {
        let ends = [key.source(), key.destination()].map(|device| device.task_name());
        let [source, destination] = ends.each_ref().map(Option::as_ref);
        let (us, them) = (Some(&self.task), Some(&self.peers[peer].task));
        (source, destination) == (us, them) || (source, destination) == (them, us)
    }

    /// A demand was answered by a value or an offer: a landing it still has comes home first.
    fn answered(&mut self, link: LinkId, ticket: Ticket) {
        let demand = self
            .links
            .at(link)
            .and_then(|entry| entry.channel.demand_at(ticket));
        if demand.is_some_and(Demand::has_landing) {
            self.close_landing(link, ticket);
        }
    }

    /// The first status of a step goes to every shard of this process.
    pub(crate) fn tell_neighbours(&mut self, step: crate::ground::StepId, status: &Status) {
        for shard in 0..self.settings.shards {
            if shard != self.index {
                self.neighbour_queues.push(
                    shard,
                    crate::mail::call::ShardMessage::Abort {
                        step,
                        status: status.clone(),
                    },
                );
            }
        }
    }

    pub(super) fn table_takes(&self, slot: Slot) -> bool {
        !self.table.has_ended(slot.step)
    }
}

/// A status from the wire.
pub(crate) fn status_of(text: &StatusText<'_>) -> Status {
    Status::from_wire(text.code as u8, text.is_derived, text.message)
}
