//! What this side hears: frames, completions, the life of connections, and what follows from each; and its accessors.
//!
//! Every byte of a frame is a peer's claim; what is impossible for an honest peer is a [`Violation`].

use super::credit::{Credit, lines};
use super::demands::Demands;
use super::drain::Drain;
use super::heard::{Heard, OfferHeard, PushHeard, RequestHeard, ReturnedLease};
use super::intern::{Given, Learned};
use super::offers::Offers;
use super::served::Served;
use super::session::{Session, SessionState};
use super::stream::FrameStream;
use super::{Accepted, Channel, ChannelSettings, Counters, Demand, Payload, Rule, Violation};
use crate::ground::limits::{PARKED_REQUESTS, SECOND_ANSWERS, STREAM_FRAMES};
use crate::ground::{Incarnation, Nanos, StepId};
use crate::rendezvous::KeyId;
use crate::wire::message::{Hello, Offer, Push, Request, Subject};
use crate::wire::{Frame, INLINE_BODY_MAX, Message, Point, Ticket};

/// The life of connections and epochs.
impl<V: Payload> Channel<V> {
    /// A channel with no connection.
    #[must_use]
    pub fn new(settings: ChannelSettings) -> Self {
        Self {
            session: Session::new(&settings),
            stream: FrameStream::new(usize::from(settings.frame_window)),
            credit: Credit::new(&settings),
            given: Given::new(settings.interned),
            learned: Learned::new(settings.rules),
            requests: Demands::new(settings.requests),
            second_answers: SECOND_ANSWERS,
            offers: Offers::new(&settings),
            served: Served::new(),
            drain: Drain::default(),
            counters: Counters::default(),
            settings,
        }
    }

    /// A connection stands: the hello is due.
    pub const fn connected(&mut self) {
        self.session.connected();
    }

    /// The connection is gone, and every buffer of it has come back. What is owed waits for the next one.
    pub fn disconnected(&mut self) {
        self.session.disconnected();
        self.stream.end_connection();
        self.requests.end_connection();
    }

    /// Gives the peer up: the epoch ends, and everything of it is dropped here. The shard fails what waited.
    pub fn lose(&mut self) {
        self.session.lose();
        self.credit.lose_peer();
        self.forget_epoch();
    }

    /// Values for that life of the peer were dropped with an epoch, here or in the table: the peer is told.
    pub const fn mark_dropped(&mut self, reader: Incarnation) {
        self.session.mark_dropped(reader);
    }

    /// True if values are on their way, or on offer, in this epoch.
    #[must_use]
    pub fn holds_values(&self) -> bool {
        self.stream.has_values() || self.offers.len() > 0 || self.served.len() > 0
    }

    /// Begins anew, with another peer or another of its shards: nothing of the former one is left. Neither has met
    /// `epoch` on any channel of this shard.
    pub fn rebind(&mut self, epoch: u64) {
        self.session.rebind(epoch);
        self.credit.lose_peer();
        self.forget_epoch();
    }

    /// A life of the peer is proved over: nothing that was offered to it is read any more.
    pub fn exited(&mut self, reader: Incarnation) {
        self.offers.exited(reader);
    }

    fn forget_epoch(&mut self) {
        self.stream.restart();
        self.credit.end_epoch();
        self.given.clear();
        self.learned.clear();
        self.requests.drain();
        self.second_answers = SECOND_ANSWERS;
        self.offers.end_epoch();
        self.served.clear();
        self.drain.end_epoch();
    }

    fn handle_hello(&mut self, hello: &Hello) -> Result<Heard<'static, V>, Violation> {
        let met = self.session.hear(hello)?;
        if met.is_other_epoch {
            if self.holds_values() {
                self.session.mark_dropped(hello.incarnation);
            }
            self.forget_epoch();
        }
        let rules = self.settings.rules;
        if rules.on(Rule::KeptUntilAcknowledged) {
            let resumed = self.stream.resume(met.consumed);
            resumed.map_err(|()| Violation::Credit)?;
        } else {
            self.stream.forget_posted();
        }
        self.stream
            .drop_of_connection(rules.on(Rule::WriteSpendsGrant));
        self.stream.open(hello.frame_window);
        self.credit.greet(hello);
        self.second_answers = self.second_answers.max(SECOND_ANSWERS);
        if rules.on(Rule::Interning) {
            self.given.clear();
            self.learned.clear();
        }
        if met.former.is_none() || met.is_other_epoch {
            // It releases what it does not read of the epochs before.
            for ticket in self.offers.kept_for(hello.incarnation) {
                self.queue(&Message::Recall(ticket));
            }
        }
        self.session.accept();
        if self.offers.wanting() > 0 {
            self.tell_drain();
        }
        Ok(Heard::Up {
            incarnation: hello.incarnation,
            former: met.former.filter(|_| met.is_other_epoch),
            has_dropped: met.has_dropped,
        })
    }
}

/// Frames and completions.
impl<V: Payload> Channel<V> {
    /// A frame came that says this push.
    ///
    /// # Errors
    /// As [`Channel::handle_frame`].
    #[inline(always)]
    pub fn handle_push<'a>(
        &mut self,
        now: Nanos,
        frame: &Frame,
        push: &Push<'a>,
    ) -> Result<PushHeard<'a>, Violation> {
        self.count_frame(now, frame, false)?;
        let key = self.learned.key(push.subject.key);
        let key = key.ok_or(Violation::UnknownKey)?;
        let (mut demand, mut cost) = (None, 0);
        match push.request {
            None => {
                cost = lines(frame.body_len() as usize);
                self.credit.hold(cost)?;
            }
            Some(request) => demand = self.answered(request)?.map(|(ticket, _)| ticket),
        }
        // Read from the frame once more, which is at hand: there are too many words here to keep these since it was
        // parsed.
        let Subject { point, ordinal, .. } = Subject::of(frame);
        Ok(PushHeard {
            key,
            point,
            ordinal,
            meta: push.meta,
            is_dead: push.is_dead,
            lines: cost,
            data: push.data,
            demand,
            stamp: push.stamp,
        })
    }

    /// A frame came that is an offer. The demand that it answers is put into `answered`: few offers answer one, and in
    /// the result its bytes would be moved for each.
    ///
    /// # Errors
    /// As [`Channel::handle_frame`].
    #[inline(always)]
    pub fn handle_offer(
        &mut self,
        now: Nanos,
        frame: &Frame,
        tail: &[u8; INLINE_BODY_MAX],
        body: &[u8],
        answered: &mut Option<(Ticket, Demand)>,
    ) -> Result<OfferHeard, Violation> {
        let offer = Offer::parse(frame, tail, body)?;
        self.count_frame(now, frame, false)?;
        self.judge_stream()?;
        self.take_offer(&offer, answered)
    }

    /// A frame came that brings no value: no push, and no offer. `tail` is the frame's tail, kept by the caller; `body`
    /// what came beside it.
    ///
    /// # Errors
    /// [`Violation`]: the peer broke the protocol, and this connection must be closed.
    pub fn handle_frame<'a>(
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
        self.count_frame(now, frame, matches!(message, Message::Credit))?;
        self.judge_stream()?;
        self.handle_message(&message)
    }

    /// What is queued in answer to a peer that acknowledges nothing is bounded: whatever brings no small value may be
    /// answered.
    fn judge_stream(&self) -> Result<(), Violation> {
        if self.is_overfull() && !mutant!("stream_unbounded") {
            return Err(Violation::Unacknowledged);
        }
        Ok(())
    }

    /// True if more frames wait than its bounds let an honest peer leave.
    #[must_use]
    pub const fn is_overfull(&self) -> bool {
        self.stream.len() > STREAM_FRAMES
    }

    /// What a frame says of ours, and that it came.
    #[inline(always)]
    fn count_frame(&mut self, now: Nanos, frame: &Frame, is_credit: bool) -> Result<(), Violation> {
        if self.session.state() != SessionState::Up {
            return Err(Violation::BeforeHello);
        }
        let (frames, lines) = frame.credit();
        let acknowledged = self.stream.acknowledge(frames);
        acknowledged.map_err(|()| Violation::Credit)?;
        self.credit.give_back(lines)?;
        if !is_credit {
            self.credit.consume(now);
            self.counters.frames_received += 1;
        }
        Ok(())
    }

    fn handle_message<'a>(&mut self, message: &Message<'a>) -> Result<Heard<'a, V>, Violation> {
        Ok(match *message {
            Message::Request(request) => return self.handle_request(&request),
            Message::Cancel(request) => Heard::Cancel {
                request,
                tag: self.served.unpark(request),
            },
            Message::Cancelled(request) => self.handle_end(request, None),
            Message::Failed(request, status) => self.handle_end(request, Some(status)),
            Message::Release(offer, more) => {
                return Ok(self.handle_release(tickets(offer, more)));
            }
            Message::Recall(offer) => Heard::Recall(offer),
            Message::Intern(number, "") => {
                self.learned.unlearn(number);
                Heard::Nothing
            }
            Message::Intern(number, text) => Heard::Intern { number, text },
            Message::Abort(step, status) => Heard::Abort { step, status },
            Message::Finish(step) => Heard::Finish(step),
            Message::Drain => self.handle_drain(),
            Message::Held(offer, more) => return self.handle_held(tickets(offer, more)),
            Message::Credit | Message::Push(_) | Message::Offer(_) | Message::Hello(_) => {
                Heard::Nothing
            }
        })
    }

    fn handle_release(&mut self, offers: impl Iterator<Item = Ticket>) -> Heard<'static, V> {
        let (mut released, mut stale) = (0, 0);
        for offer in offers {
            if self.offers.release(offer) {
                released += 1;
            } else {
                stale += 1;
            }
        }
        self.counters.stale += stale;
        if released > 0 {
            Heard::Released(released)
        } else {
            Heard::Nothing
        }
    }

    pub(super) const fn stale(&mut self) -> Heard<'static, V> {
        self.counters.stale += 1;
        Heard::Nothing
    }

    #[inline(always)]
    fn take_offer(
        &mut self,
        offer: &Offer,
        answered: &mut Option<(Ticket, Demand)>,
    ) -> Result<OfferHeard, Violation> {
        let key = self
            .learned
            .key(offer.subject.key)
            .ok_or(Violation::UnknownKey)?;
        let lent = match offer.lent {
            Some(ticket) => self.judge_lent(ticket, offer.size)?,
            None => None,
        };
        let mut cost = 0;
        match offer.request {
            None => {
                cost = lines(0);
                self.credit.hold(cost)?;
            }
            Some(request) => *answered = self.answered(request)?,
        }
        Ok(OfferHeard {
            key,
            point: offer.subject.point,
            ordinal: offer.subject.ordinal,
            offer: Accepted {
                ticket: offer.offer,
                meta: offer.meta,
                size: offer.size,
                is_dead: offer.is_dead,
                lines: cost,
            },
            region: offer.region,
            lent,
            stamp: offer.stamp,
        })
    }

    fn judge_lent(&mut self, offer: Ticket, size: u64) -> Result<Option<ReturnedLease>, Violation> {
        let reader = self.session.peer();
        let lent = self.offers.judge_lent(offer, size, reader)?;
        self.counters.stale += u64::from(lent.is_none());
        Ok(lent)
    }

    fn handle_request(&mut self, request: &Request) -> Result<Heard<'static, V>, Violation> {
        let key = self
            .learned
            .key(request.subject.key)
            .ok_or(Violation::UnknownKey)?;
        let is_beyond = request.request.index as usize >= PARKED_REQUESTS;
        if is_beyond || self.served.is_taken(request.request) {
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
        let Some(offered) = self.offers.take(offer) else {
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
}

/// Accessors.
impl<V: Payload> Channel<V> {
    /// True between the hellos and the end of a connection.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.session.is_up()
    }

    /// True if the longest push, or an offer, would be taken now.
    #[inline]
    #[must_use]
    pub fn takes_push(&self) -> bool {
        self.is_up() && self.credit.is_open() && self.offers.has_room()
    }

    /// True if [`Channel::take_weighed`] has something to say.
    #[inline]
    #[must_use]
    pub fn has_weighed(&self) -> bool {
        self.offers.has_weighed()
    }

    /// Changes in what is on offer since the last call, in order: bytes more or less, and of which step. What is
    /// offered keeps its memory until the peer has let go of it, so it counts as what is parked does; but bytes that
    /// the peer reads in place count for no step: they may have been received long since.
    #[inline]
    pub fn take_weighed(&mut self, weigh: impl FnMut(Option<StepId>, i64)) {
        self.offers.take_weighed(weigh);
    }

    /// True if the peer's arenas are read in place.
    #[must_use]
    pub const fn reads_in_place(&self) -> bool {
        self.settings.read_domain
    }

    /// True if unrequested values hold so much room here that the peer may be out of push credit.
    #[inline]
    #[must_use]
    pub const fn is_pressed(&self) -> bool {
        self.credit.is_pressed()
    }

    /// Lines of unrequested values the peer would still take.
    #[inline]
    #[must_use]
    pub const fn lines_open(&self) -> u32 {
        self.credit.open()
    }

    /// True if nothing is owed, asked, offered or on its way, in either direction.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let [requests, _, writes, frames] = self.load();
        requests + writes + frames + self.offers.wanting() == 0
    }

    /// True if an ended connection has left nothing here: nothing is kept for the peer either.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.load() == [0; 4] && self.session.state() == SessionState::Down
    }

    /// Requests outstanding, values on offer, writes on their way, frames kept.
    #[must_use]
    pub fn load(&self) -> [usize; 4] {
        [
            self.requests.len(),
            self.offers.len_with_kept(),
            self.served.len(),
            self.stream.len(),
        ]
    }

    /// True if requests are outstanding.
    #[inline]
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.requests.len() > 0
    }

    /// Frames posted and not acknowledged.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.stream.in_flight() as usize
    }

    /// Lines of unrequested values that wait here, and lines of ours that the peer has not returned.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub const fn lines_out(&self) -> [u64; 2] {
        [self.credit.held() as u64, self.credit.out() as u64]
    }

    /// The value of ours that the peer sent back, for as long as it is on offer: the peer lets go of it only after it
    /// has heard that what it sent is taken.
    #[must_use]
    pub fn lent(&self, lent: ReturnedLease) -> Option<&V> {
        self.offers.lent(lent)
    }

    /// A demand of ours.
    #[must_use]
    pub fn demand_at(&self, ticket: Ticket) -> Option<&Demand> {
        self.requests.at(ticket)
    }

    /// Every demand of ours that `pred` picks.
    pub fn demands(&self, pred: impl FnMut(&Demand) -> bool) -> Vec<Ticket> {
        self.requests.picked(pred)
    }

    /// Whether the value of a write is dead: its bytes do not say so.
    #[must_use]
    pub fn writes_dead(&self, ticket: Ticket) -> bool {
        let writing = self.served.write(ticket);
        writing.is_some_and(|writing| writing.is_dead)
    }

    /// Every demand of ours for the values of a key at a point.
    pub fn demands_of(&self, key: KeyId, point: Point) -> impl Iterator<Item = (Ticket, &Demand)> {
        self.requests.of_place(key, point)
    }

    /// The tag that the peer's request waits under, if it waits here.
    #[must_use]
    pub fn parked_tag(&self, request: Ticket) -> Option<u64> {
        self.served.tag(request)
    }

    /// True if something that was begun here is of `key`: it is asked for, on offer, being written, or a frame of it is
    /// not acknowledged.
    #[must_use]
    pub fn is_busy_with(&self, key: KeyId) -> bool {
        self.requests.has(key)
            || self.offers.has(key)
            || self.served.has(key)
            || self.stream.has(key)
    }

    /// True if the peer may speak of `key` by a number that it gave.
    #[must_use]
    pub fn is_called(&self, key: KeyId) -> bool {
        self.learned.has(key)
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Our epoch, by its number.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.session.epoch()
    }

    /// How many epochs have ended: tickets of an earlier one mean nothing to the peer.
    #[inline]
    #[must_use]
    pub const fn life(&self) -> u32 {
        self.session.life()
    }

    /// How many of those ended while the peer was what it is now: tickets of its own of that time still mean to it
    /// what they did.
    #[must_use]
    pub fn lives_of_peer(&self) -> u32 {
        self.session.lives_of_peer()
    }
}

/// The tickets of a frame that names several: one, and those behind it.
fn tickets(first: Ticket, more: &[u8]) -> impl Iterator<Item = Ticket> + '_ {
    let more = more
        .chunks_exact(4)
        .filter_map(|packed| packed.first_chunk());
    let more = more.map(|packed| Ticket::unpack(u32::from_le_bytes(*packed)));
    std::iter::once(first).chain(more)
}
