//! Answers: what ends a request, on either side: a value, a write into its landing, or a word that there is none.
//!
//! Knows demands and writes, and nothing of how frames travel.

use super::demand::Answer;
use super::heard::Heard;
use super::served::Writing;
use super::{Channel, Demand, Payload, Rule, Violation, WriteEnd};
use crate::ground::StepId;
use crate::wire::message::StatusText;
use crate::wire::{Frame, Message, Ticket};

impl<V: Payload> Channel<V> {
    /// A one-sided write into the landing of `ticket` is complete: the demand it served.
    pub fn landed(&mut self, ticket: Ticket) -> Option<Demand> {
        let demand = self.requests.remove(ticket);
        self.counters.stale += u64::from(demand.is_none());
        demand
    }

    /// The landing of `ticket` is quiet and nothing was written. True if the demand stands.
    pub fn quiet(&mut self, ticket: Ticket) -> bool {
        self.requests.quiet(ticket)
    }

    /// A write of ours ended. A value whose bytes may not have arrived is put on offer again. Returns the step of one
    /// for which there is no place: it is lost.
    pub fn wrote(&mut self, ticket: Ticket, end: WriteEnd, value: V) -> Option<StepId> {
        let writing = self.served.end(ticket)?;
        if end == WriteEnd::Done {
            return None;
        }
        let Writing {
            request,
            key,
            point,
            ordinal,
            ..
        } = writing;
        // There are as many places as offers and writes together may be; a peer that asks on without an end, and
        // releases nothing, takes them all.
        let queue = &mut |_: &Frame, _: [&[u8]; 2]| false;
        let value = &mut Some(value);
        let offered = self.offer(key, point, ordinal, value, Some(request), queue);
        offered.is_none().then_some(point.step)
    }

    /// A request of ours was answered by a value: the demand is over, unless its landing still has to come home. A
    /// value for one that is over needs no credit either: no more are taken than an honest peer can send.
    pub(super) fn answered(
        &mut self,
        request: Ticket,
    ) -> Result<Option<(Ticket, Demand)>, Violation> {
        match self.requests.answer(request, true) {
            Answer::Ends { demand, is_again } => {
                self.forestall(request, is_again);
                return Ok(Some((request, demand)));
            }
            Answer::Late => {}
            Answer::Stale => self.counters.stale += 1,
        }
        if !mutant!("answers_unbounded") {
            let left = self.second_answers.checked_sub(1);
            self.second_answers = left.ok_or(Violation::Unasked)?;
        }
        Ok(None)
    }

    /// A demand of ours ended without a value.
    pub(super) fn handle_end<'a>(
        &mut self,
        request: Ticket,
        status: Option<StatusText<'a>>,
    ) -> Heard<'a, V> {
        let waits = self.settings.rules.on(Rule::NoOrderBetweenLanes);
        // A cancel crosses the answer it wants to forestall: the demand that waits for its landing hears of one end.
        let Answer::Ends { demand, is_again } = self.requests.answer(request, waits) else {
            return self.stale();
        };
        self.forestall(request, is_again);
        Heard::Ended {
            ticket: request,
            demand,
            status,
        }
    }

    /// A demand that is over had been asked for again. If the answer to the first request ended it, the peer takes the
    /// second for a new request, for which no receiver waits: it is cancelled.
    fn forestall(&mut self, request: Ticket, is_again: bool) {
        if is_again {
            reached!("asked_again_and_answered");
            self.queue(&Message::Cancel(request));
        }
    }
}
