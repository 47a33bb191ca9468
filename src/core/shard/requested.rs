//! Requests of peers, and how our own requests to them end.
//!
//! It may not post; what must go to a peer is left in the link's channel.

use super::asked::Asked;
use super::core::{Core, PortOp, Target};
use super::ids::LinkId;
use super::keys::Route;
use super::remote::status_of;
use super::transfers::TransferId;
use super::value::{Value, Waiter};
use crate::channel::{Demand, Rule, Violation};
use crate::fabric::{Landing, Token, Write};
use crate::ground::{Code, Nanos, Status, catalogue, faults};
use crate::rendezvous::{Origin, Refusal, Requested, Slot, is_before};
use crate::wire::Ticket;
use crate::wire::message::StatusText;

impl Core {
    /// A value goes to the peer that asked for it.
    pub(crate) fn answer(&mut self, waiter: Waiter, slot: Slot, ordinal: u32, value: Value) {
        let Waiter::Asked(ticket) = waiter else {
            // Only peers wait for values whose destination is a peer.
            return self.hand_over(waiter, value, Origin::NOWHERE);
        };
        let Some(asked) = self.asked.remove(ticket) else {
            return;
        };
        let Some(entry) = self.links.at_mut(asked.link) else {
            return;
        };
        entry.channel.unpark_request(asked.request);
        let landing = asked.landing.filter(|_| asked.ordinal == ordinal);
        self.serve(
            asked.link,
            asked.request,
            Target {
                landing,
                is_accepted: false,
            },
            slot,
            ordinal,
            value,
        );
    }

    /// Serves a request: written into its landing where that fits, pushed or offered otherwise.
    pub(crate) fn serve(
        &mut self,
        link: LinkId,
        request: Ticket,
        target: Target,
        slot: Slot,
        ordinal: u32,
        mut value: Value,
    ) {
        let point = Self::point_of(slot);
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        let qp = entry.qp.filter(|_| entry.channel.is_up());
        self.links.touch(link);
        // Bytes do not say that they are of a dead value; an offer has.
        let fits = target.landing.is_some_and(|(region, meta)| {
            meta == value.tensor.meta()
                && (target.is_accepted || !value.is_dead)
                && region.len == value.tensor.size() as u64
        });
        let is_device = value.tensor.is_device();
        if is_device && target.is_accepted {
            // It was to be read in place, and cannot be: its bytes are not the host's to write.
            let status = faults::device_value(self.key_of(slot).as_ref(), &value.tensor);
            if let Some(entry) = self.links.at_mut(link) {
                entry.channel.fail_request(request, &status);
            }
            return self.weigh(link);
        }
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        if fits
            && !is_device
            && let (Some((_, qp)), Some((region, _))) = (qp, target.landing)
            && let Some(token) =
                entry
                    .channel
                    .begin_write(request, slot.key, point, ordinal, value.is_dead)
        {
            let landing = Landing {
                index: request.index,
                generation: request.generation,
            };
            let token = Token(u64::from(link.number()) << 32 | u64::from(token.packed()));
            let write = Write {
                qp,
                token,
                source: value.tensor,
                landing,
                region,
            };
            self.port_ops.push(PortOp::Write { link, write });
            return;
        }
        self.make_readable(link, &mut value);
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        let mut sending = Some(value);
        if entry
            .channel
            .push(slot.key, point, ordinal, &mut sending, Some(request))
            .is_err()
        {
            // A request that cannot be served now waits again, its value first in line.
            self.park_again(link, slot, ordinal, sending);
        }
        self.weigh(link);
    }

    /// A request came up for a value that is parked here, or waits for one.
    pub(crate) fn requested(&mut self, link: LinkId, heard: &crate::channel::RequestHeard) {
        let slot = Self::slot_of(heard.key, heard.point);
        if !self
            .keys
            .at(slot.key)
            .is_some_and(|entry| matches!(entry.way.route, Route::Out { .. }))
        {
            return self.violated(link, Violation::ForeignKey);
        }
        let waits = self.links[link].channel.parked_tag(heard.request);
        if let Some(asked) = waits.and_then(|tag| self.asked.at_mut(Ticket::unpack(tag as u32))) {
            // Asked again, on a new connection, with a new landing.
            asked.landing = heard.landing;
            return;
        }
        let deadline = if heard.patience_ns == 0 {
            Nanos::NEVER
        } else {
            self.now + heard.patience_ns
        };
        let asked = Asked {
            peer: self.links[link].peer,
            link,
            request: heard.request,
            id: None,
            ordinal: heard.ordinal,
            landing: heard.landing,
        };
        let ticket = match self.asked.insert(asked) {
            Ok(ticket) => ticket,
            Err(limit) => {
                let status = faults::requests_exhausted(limit);
                self.links[link]
                    .channel
                    .fail_request(heard.request, &status);
                return self.links.touch(link);
            }
        };
        let ordinal = if self.settings.rules.on(Rule::Ordinals) {
            heard.ordinal
        } else {
            self.table.next_ordinal(slot)
        };
        match self
            .table
            .request(self.now, slot, ordinal, Waiter::Asked(ticket), deadline)
        {
            Ok(Requested::Waiting { id }) => {
                if !self.send_queue.is_empty() {
                    self.wanted(slot);
                }
                self.watch_table();
                if let Some(asked) = self.asked.at_mut(ticket) {
                    asked.id = Some(id);
                }
                self.links[link]
                    .channel
                    .park_request(heard.request, u64::from(ticket.packed()));
            }
            Ok(Requested::AlreadySent) => {
                // The value is on its way, or was taken: it answers, or the cancel that follows is answered.
                self.asked.remove(ticket);
            }
            Ok(Requested::Ready { value, ordinal }) => {
                self.asked.remove(ticket);
                let table = &self.table;
                let parked = &mut self.links[link].parked;
                parked.taken(|slot| table.values_at(&slot));
                let landing = heard.landing.filter(|_| heard.ordinal == ordinal);
                self.serve(
                    link,
                    heard.request,
                    Target {
                        landing,
                        is_accepted: false,
                    },
                    slot,
                    ordinal,
                    value,
                );
            }
            Err(refusal) => {
                self.asked.remove(ticket);
                let status = self.refused(refusal, slot);
                let channel = &mut self.links[link].channel;
                if matches!(refusal, Refusal::Finished) {
                    // The peer has forgotten it, or would not ask: without this the answer would end its step.
                    channel.finish(slot.step);
                }
                channel.fail_request(heard.request, &status);
                self.links.touch(link);
            }
        }
    }

    pub(super) fn heard_end(
        &mut self,
        link: LinkId,
        ticket: Ticket,
        demand: Demand,
        status: Option<StatusText<'_>>,
    ) {
        if demand.has_landing() {
            self.close_landing(link, ticket);
        }
        let slot = Self::slot_of(demand.key, demand.point);
        let status = status.map(|status| status_of(&status));
        if let Some(accepted) = demand.offer {
            if let Some(status) = &status
                && status.code() == Code::InvalidArgument
            {
                // Its bytes cannot come: who waits for them hears so, and what comes next is for the others.
                let status = Status::of(catalogue::TENSOR_DEVICE, status.message());
                self.fail_waiters_of(slot, &status, |ordinal| ordinal == demand.ordinal);
            }
            if status.is_none() {
                // Taken back before it was served: the value still lies at its sender.
                self.links[link].channel.release(accepted.ticket);
            }
            // The offer is gone at its sender: a receive that waits behind it must ask again.
            self.withdraw(link, slot, TransferId::from_token(demand.tag), &accepted);
        }
        let Some(status) = status else { return };
        match status.code() {
            // Its part of the step is done: nothing comes of it, and others may go on.
            Code::Aborted if self.partings.has(slot.step, link) => {
                let status = faults::step_finished(slot.step);
                self.fail_waiters_of(slot, &status, |ordinal| !is_before(ordinal, demand.ordinal));
            }
            // The peer's step has ended: so has ours.
            Code::Aborted | Code::Cancelled => {
                self.observer.step_ended(slot.step, &status);
                if self.abort(slot.step, &status) {
                    self.tell_neighbours(slot.step, &status);
                }
            }
            _ if demand.offer.is_some() => {}
            // The patience of one receive, which has ended here as well; those behind it have their own.
            Code::DeadlineExceeded => self.ask_for_waiting(link, slot),
            _ => self.fail_waiters(slot, &status),
        }
    }
}
