//! Requests of peers, and how our own requests to them end.
//!
//! It may not post; what must go to a peer is left in the link's channel.

use super::core::{Core, Target};
use super::ids::LinkId;
use super::keys::Route;
use super::remote::status_of;
use super::transfers::TransferId;
use super::value::Waiter;
use crate::channel::{Demand, Rule, Violation};
use crate::ground::{Code, Nanos, faults};
use crate::rendezvous::Requested;
use crate::wire::Ticket;
use crate::wire::message::StatusText;

impl Core {
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
        let asked = super::core::Asked {
            link,
            request: heard.request,
            id: None,
            ordinal: heard.ordinal,
            landing: heard.landing,
        };
        let Ok(ticket) = self.asked.insert(asked) else {
            let status = faults::waiters_exhausted(self.settings.waiters);
            self.links[link]
                .channel
                .fail_request(heard.request, &status);
            return self.touch(link);
        };
        let ordinal = if self.settings.rules.on(Rule::Ordinals) {
            heard.ordinal
        } else {
            u32::MAX
        };
        match self
            .table
            .request(self.now, slot, ordinal, Waiter::Asked(ticket), deadline)
        {
            Ok(Requested::Waiting { id }) => {
                if !self.anteroom.is_empty() {
                    self.wanted(slot);
                }
                self.next_timer = self.next_timer.min(deadline);
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
                self.links[link]
                    .channel
                    .fail_request(heard.request, &status);
                self.touch(link);
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
        if let Some(accepted) = demand.offer {
            if status.is_none() {
                // Taken back before it was served: the value still lies at its sender.
                self.links[link].channel.release(accepted.ticket);
            }
            // The offer is gone at its sender: a receive that waits behind it must ask again.
            self.withdraw(link, slot, TransferId::from_token(demand.tag), &accepted);
        }
        let Some(status) = status else { return };
        let status = status_of(&status);
        match status.code() {
            // Its part of the step is done: nothing comes of it, and others may go on.
            Code::Aborted if self.partings.has(slot.step, link) => {
                self.fail_waiters_from(slot, demand.ordinal, &faults::step_finished(slot.step));
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
