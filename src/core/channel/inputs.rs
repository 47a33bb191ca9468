//! What happened: frames, completions, and what follows from each.
//!
//! Every byte of a frame is a peer's claim; what is impossible for an honest peer is a [`Violation`].

use super::heard::{Heard, Lent, OfferHeard, PushHeard, RequestHeard};
use super::{Channel, Demand, Payload, Peer, Rule, State, Violation, WriteEnd, lines};
use crate::ground::Nanos;
use crate::ground::limits::PARKED_REQUESTS;
use crate::wire::message::{Hello, Offer, Push, Request, StatusText, Subject};
use crate::wire::{Frame, INLINE_BODY_MAX, Kind, Message, Ticket};

impl<V: Payload> Channel<V> {
    /// A frame came. `tail` is the frame's tail, kept by the caller; `body` what came beside it.
    ///
    /// # Errors
    /// [`Violation`]: the peer broke the protocol, and this connection must be closed.
    #[inline]
    pub fn handle_frame<'a>(
        &mut self,
        now: Nanos,
        frame: &Frame,
        tail: &'a [u8; INLINE_BODY_MAX],
        body: &'a [u8],
    ) -> Result<Heard<'a, V>, Violation> {
        if frame.kind() != Kind::Push as u8 {
            return self.handle_other(now, frame, tail, body);
        }
        self.handle_push(now, frame, tail, body).map(Heard::Push)
    }

    /// As [`Channel::handle_frame`], for a frame that is known to be a push.
    ///
    /// # Errors
    /// As [`Channel::handle_frame`].
    #[inline]
    pub fn handle_push<'a>(
        &mut self,
        now: Nanos,
        frame: &Frame,
        tail: &'a [u8; INLINE_BODY_MAX],
        body: &'a [u8],
    ) -> Result<PushHeard<'a>, Violation> {
        let push = Push::parse(frame, tail, body)?;
        self.count_frame(now, frame)?;
        let key = self.learned.key(push.subject.key);
        let key = key.ok_or(Violation::UnknownKey)?;
        let (mut demand, mut cost) = (None, 0);
        match push.request {
            None => {
                cost = lines(frame.body_len() as usize);
                self.hold_lines(cost)?;
            }
            Some(request) => demand = self.answered(request).map(|(ticket, _)| ticket),
        }
        Ok(PushHeard {
            key,
            point: push.subject.point,
            ordinal: push.subject.ordinal,
            meta: push.meta,
            is_dead: push.is_dead,
            lines: cost,
            data: push.data,
            demand,
            stamp: push.stamp,
        })
    }

    /// A frame that brings no value.
    fn handle_other<'a>(
        &mut self,
        now: Nanos,
        frame: &Frame,
        tail: &'a [u8; INLINE_BODY_MAX],
        body: &'a [u8],
    ) -> Result<Heard<'a, V>, Violation> {
        let message = Message::parse(frame, tail, body)?;
        if let Message::Hello(hello) = message {
            return self.handle_hello(&hello);
        }
        self.count_frame(now, frame)?;
        self.handle_message(&message)
    }

    /// What a frame says of ours, and that it came.
    #[inline]
    fn count_frame(&mut self, now: Nanos, frame: &Frame) -> Result<(), Violation> {
        if self.state != State::Up {
            return Err(Violation::BeforeHello);
        }
        self.handle_credit(frame.credit())?;
        if frame.kind() != Kind::Credit as u8 {
            self.consumed += 1;
            self.counters.frames_received += 1;
            self.note_due(now);
        }
        Ok(())
    }

    /// A one-sided write into the landing of `ticket` is complete: the demand it served.
    pub fn landed(&mut self, ticket: Ticket) -> Option<Demand> {
        let demand = self.requests.remove(ticket);
        if demand.is_none() {
            self.counters.stale += 1;
        }
        demand
    }

    /// The landing of `ticket` is quiet and nothing was written. True if the demand stands and wants another.
    pub fn quiet(&mut self, ticket: Ticket) -> bool {
        let Some(demand) = self.requests.at_mut(ticket) else {
            return false;
        };
        demand.has_landing = false;
        if demand.is_cancelled && demand.is_answered {
            self.requests.remove(ticket);
            return false;
        }
        true
    }

    /// A write of ours ended. A value whose bytes may not have arrived is put on offer again.
    pub fn wrote(&mut self, ticket: Ticket, end: WriteEnd, value: V) {
        let Some(writing) = self.writes.remove(ticket) else {
            return;
        };
        if end == WriteEnd::Done {
            return;
        }
        let subject = Subject {
            key: Ticket::default(),
            point: writing.point,
            ordinal: writing.ordinal,
        };
        // There is a slot: there are as many as offers and writes together may be.
        let _ = self.offer(writing.key, subject, value, Some(writing.request));
    }

    fn handle_hello(&mut self, hello: &Hello) -> Result<Heard<'static, V>, Violation> {
        let State::Greeting { hello_sent } = self.state else {
            return Err(Violation::SecondHello);
        };
        if hello.frame_window == 0 || hello.line_window == 0 || hello.line_window >= 1 << 15 {
            return Err(Violation::Window);
        }
        let former = self.peer;
        let is_other_epoch = former
            .is_some_and(|peer| peer.incarnation != hello.incarnation || peer.epoch != hello.epoch);
        if is_other_epoch {
            // Our own epoch stays: its number is in a hello that may be on its way, and the peer has forgotten it.
            self.forget_epoch();
        }
        self.peer = Some(Peer {
            incarnation: hello.incarnation,
            epoch: hello.epoch,
            frame_window: hello.frame_window,
            line_window: hello.line_window,
        });
        // A peer that speaks of our predecessor, or of an epoch that is over, has consumed nothing of this one.
        let is_of_us =
            hello.expected == self.settings.incarnation && hello.peer_epoch == self.epoch;
        let their_view = if is_of_us { hello.consumed } else { 0 };
        if self.settings.rules.on(Rule::KeptUntilAcknowledged) {
            self.stream
                .resume(their_view)
                .map_err(|()| Violation::Credit)?;
        } else {
            self.stream.forget_posted();
        }
        self.stream
            .drop_of_connection(self.settings.rules.on(Rule::WriteSpendsGrant));
        if self.settings.rules.on(Rule::Interning) {
            self.given.clear();
            self.learned.clear();
        }
        if self.met.is_none_or(|(met, _)| met != hello.incarnation) {
            self.met = Some((hello.incarnation, self.life));
        }
        if self.kept > 0 && (former.is_none() || is_other_epoch) {
            self.recall_kept(hello.incarnation);
        }
        if self.consumed > 0 || self.lines_taken > 0 {
            // What was told last may have been lost with the connection: it is told again at once.
            self.ack_at = Nanos::ZERO;
        }
        // They send nothing more before they have heard ours.
        self.state = if hello_sent {
            State::Up
        } else {
            State::Answering
        };
        Ok(Heard::Up {
            incarnation: hello.incarnation,
            former: if is_other_epoch {
                former.map(|peer| peer.incarnation)
            } else {
                None
            },
            is_resumed: former.is_some() && !is_other_epoch,
        })
    }

    #[inline]
    fn handle_credit(&mut self, (frames, lines): (u16, u16)) -> Result<(), Violation> {
        self.stream
            .acknowledge(frames)
            .map_err(|()| Violation::Credit)?;
        let returned = u64::from(lines.wrapping_sub(self.lines_returned as u16));
        if returned > 0 {
            if returned > self.lines_pushed - self.lines_returned {
                return Err(Violation::Credit);
            }
            self.lines_returned += returned;
        }
        Ok(())
    }

    #[inline]
    const fn hold_lines(&mut self, cost: u32) -> Result<(), Violation> {
        self.lines_held += cost;
        if self.lines_held > self.settings.line_window as u32 {
            return Err(Violation::LineCredit);
        }
        Ok(())
    }

    /// A request of ours was answered by a value: the demand is over, unless its landing still has to come home.
    fn answered(&mut self, request: Ticket) -> Option<(Ticket, Demand)> {
        self.forestall(request);
        match self.requests.at_mut(request) {
            Some(demand) if demand.is_answered => None,
            Some(demand) if demand.has_landing => {
                demand.is_answered = true;
                demand.is_cancelled = true;
                Some((request, *demand))
            }
            Some(demand) if !demand.is_answered => self
                .requests
                .remove(request)
                .map(|demand| (request, demand)),
            _ => {
                self.counters.stale += 1;
                None
            }
        }
    }

    /// A demand that is over was asked again meanwhile. If what ended it was an answer to the first time, the peer
    /// takes the second for a new request, and nobody waits for that one: it is taken back.
    fn forestall(&mut self, request: Ticket) {
        let is_over = |demand: &&mut Demand| demand.is_asked_again && !demand.is_answered;
        if let Some(demand) = self.requests.at_mut(request).filter(is_over) {
            reached!("asked_again_and_answered");
            demand.is_asked_again = false;
            self.queue(Message::Cancel(request), None);
        }
    }

    fn handle_message<'a>(&mut self, message: &Message<'a>) -> Result<Heard<'a, V>, Violation> {
        Ok(match *message {
            Message::Offer(offer) => return self.handle_offer(&offer),
            Message::Request(request) => return self.handle_request(&request),
            Message::Cancel(request) => Heard::Cancel {
                request,
                tag: self.unpark_request(request),
            },
            Message::Cancelled(request) => self.handle_end(request, None),
            Message::Failed(request, status) => self.handle_end(request, Some(status)),
            Message::Release(offer) => match self.take_offer(offer) {
                Some(offered) => Heard::Released(offered.value),
                None => self.stale(),
            },
            Message::Recall(offer) => Heard::Recall(offer),
            Message::Intern(number, "") => {
                self.learned.unlearn(number);
                Heard::Nothing
            }
            Message::Intern(number, text) => Heard::Intern { number, text },
            Message::Abort(step, status) => Heard::Abort { step, status },
            Message::Bye => Heard::Bye,
            Message::Finish(step) => Heard::Finish(step),
            Message::Credit | Message::Push(_) | Message::Hello(_) => Heard::Nothing,
        })
    }

    const fn stale(&mut self) -> Heard<'static, V> {
        self.counters.stale += 1;
        Heard::Nothing
    }

    fn handle_offer(&mut self, offer: &Offer) -> Result<Heard<'static, V>, Violation> {
        let key = self
            .learned
            .key(offer.subject.key)
            .ok_or(Violation::UnknownKey)?;
        let lent = match offer.lent {
            Some(ticket) => self.judge_lent(ticket, offer.size)?,
            None => None,
        };
        let mut demand = None;
        let mut cost = 0;
        match offer.request {
            None => {
                cost = lines(0);
                self.hold_lines(cost)?;
            }
            Some(request) => demand = self.answered(request),
        }
        Ok(Heard::Offer(OfferHeard {
            key,
            point: offer.subject.point,
            ordinal: offer.subject.ordinal,
            meta: offer.meta,
            is_dead: offer.is_dead,
            lines: cost,
            offer: offer.offer,
            size: offer.size,
            region: offer.region,
            lent,
            demand,
            stamp: offer.stamp,
        }))
    }

    /// What the peer sends back must be on offer to this very life of it, readable in place, and as long as it says.
    /// An offer that is gone is stale: the value can still be asked for.
    fn judge_lent(&mut self, offer: Ticket, size: u64) -> Result<Option<Lent>, Violation> {
        let Some(offered) = self.offers.at(offer) else {
            self.counters.stale += 1;
            return Ok(None);
        };
        let is_theirs = offered.is_readable && offered.reader == self.peer_incarnation();
        match offered.value.region() {
            Some(region) if is_theirs && region.len == size => Ok(Some(Lent { offer, region })),
            _ => Err(Violation::Lease),
        }
    }

    fn handle_request(&mut self, request: &Request) -> Result<Heard<'static, V>, Violation> {
        let key = self
            .learned
            .key(request.subject.key)
            .ok_or(Violation::UnknownKey)?;
        if request.request.index as usize >= PARKED_REQUESTS {
            return Err(Violation::Requests);
        }
        let heard = RequestHeard {
            key,
            point: request.subject.point,
            ordinal: request.subject.ordinal,
            request: request.request,
            patience_ns: request.patience_ns,
            landing: request.landing,
        };
        let Some(offer) = request.offer else {
            return Ok(Heard::Request(heard));
        };
        let Some(landing) = request.landing else {
            return Err(Violation::Requests);
        };
        let Some(offered) = self.take_offer(offer) else {
            self.counters.stale += 1;
            return Ok(Heard::Stale(request.request));
        };
        Ok(Heard::Write {
            request: request.request,
            key: offered.key,
            point: offered.point,
            ordinal: offered.ordinal,
            value: offered.value,
            landing,
        })
    }

    /// A demand of ours ended without a value.
    fn handle_end<'a>(&mut self, request: Ticket, status: Option<StatusText<'a>>) -> Heard<'a, V> {
        self.forestall(request);
        let trusts_lanes = !self.settings.rules.on(Rule::NoOrderBetweenLanes);
        // A cancel crosses the answer it wants to forestall: the demand that waits for its landing hears of one end.
        let Some(demand) = self
            .requests
            .at_mut(request)
            .filter(|demand| !demand.is_answered)
        else {
            return self.stale();
        };
        demand.is_answered = true;
        demand.is_cancelled = true;
        let copy = *demand;
        if !copy.has_landing || trusts_lanes {
            self.requests.remove(request);
        }
        Heard::Ended {
            ticket: request,
            demand: copy,
            status,
        }
    }
}
