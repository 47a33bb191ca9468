//! What this side wants of its peer: each command only ever queues frames.
//!
//! It knows no connection: whether there is one is the channel's state, and posting is `outputs.rs`.

use super::stream::Load;
use super::{
    Channel, Demand, NoPush, Offered, Payload, Rule, Rules, State, Violation, Writing, lines,
};
use crate::ground::{DType, Incarnation, Nanos, Region, Status, StepId, TensorMeta};
use crate::rendezvous::KeyId;
use crate::wire::message::{Offer, Push, Request, StatusText, Subject};
use crate::wire::{Body, Flags, Kind, Message, Point, Ticket};

impl<V: Payload> Channel<V> {
    /// A connection stands: the hello is due.
    pub fn connected(&mut self) {
        self.state = State::Greeting { hello_sent: false };
    }

    /// Whether the peer reads our arenas in place, from the connection that is coming on.
    pub const fn set_read_domain(&mut self, read_domain: bool) {
        self.settings.read_domain = read_domain;
    }

    /// The connection is gone, and every buffer of it has come back. What is owed waits for the next one.
    pub fn disconnected(&mut self) {
        self.state = State::Down;
        self.ack_at = Nanos::NEVER;
        self.stream.end_connection();
        for ticket in self.demands(|demand| demand.has_landing) {
            self.quiet(ticket);
        }
    }

    /// Gives the peer up: the epoch ends, and everything of it is dropped here. The shard fails what waited.
    pub fn lose(&mut self) {
        self.epoch += 1;
        self.forget_epoch();
        self.peer = None;
        self.state = State::Down;
    }

    /// Begins anew, with another peer or another of its shards: nothing of the former one is left. Neither has met
    /// `epoch` on any channel of this shard.
    pub fn rebind(&mut self, epoch: u64) {
        self.forget_epoch();
        self.epoch = epoch;
        self.peer = None;
        self.met = None;
        self.state = State::Down;
    }

    /// Pushes or offers a value: small ones whole, large ones by their place. `request` is the demand it answers;
    /// without one it needs push credit.
    ///
    /// # Errors
    /// [`NoPush`] hands the value back; nothing happened.
    #[inline]
    pub fn push(
        &mut self,
        key: KeyId,
        point: Point,
        ordinal: u32,
        value: V,
        request: Option<Ticket>,
    ) -> Result<(), NoPush<V>> {
        if !self.is_up() && request.is_none() {
            return Err(NoPush::NotUp(value));
        }
        let meta = value.meta();
        let body_len = Push::lead_len(&meta, request.is_some()) + value.size();
        let is_whole = body_len <= self.settings.inline_max && value.data().is_some();
        let is_free = request.is_some() && self.settings.rules.on(Rule::RequestedNeedsNoCredit);
        if !is_free {
            let cost = if is_whole { lines(body_len) } else { lines(0) };
            if self.lines_open() < cost {
                self.counters.no_credit += 1;
                return Err(NoPush::NoCredit(value));
            }
            if !is_whole && !self.has_offer() {
                return Err(NoPush::NoOffer(value));
            }
            self.lines_pushed += u64::from(cost);
        }
        let subject = Subject {
            key: Ticket::default(),
            point,
            ordinal,
        };
        if !is_whole {
            return self.offer(key, subject, value, request);
        }
        let push = Push {
            subject,
            meta,
            is_dead: value.is_dead(),
            request,
            data: value.data().unwrap_or_default(),
            stamp: 0,
        };
        let mut frame = push.frame();
        if frame.body_is_inline() {
            // The value is kept no longer than its bytes: they are in the frame.
            self.stream.push(frame, Some(key));
        } else {
            frame.words[6] = request.map_or(0, |request| u64::from(request.packed()));
            self.stream
                .push_loaded(frame, Some(key), Load::Value(value));
        }
        Ok(())
    }

    /// Lets the frame that was queued last say when that was, if it is a push or an offer.
    pub fn stamp_last(&mut self, stamp: u64) {
        let Some((due, load)) = self.stream.last_mut() else {
            return;
        };
        let (frame, mut none) = (&mut due.frame, Body::EMPTY);
        match load {
            // Made anew whenever it is posted: see `post_due`.
            Some(Load::Value(value)) if frame.kind() == Kind::Push as u8 => {
                let meta = value.meta();
                let has_place = meta.shape.rank() > 0;
                let is_stamped = has_place && Push::put_stamp(frame, &mut none, &meta, stamp);
                frame.words[7] = if is_stamped { stamp } else { 0 };
            }
            None if frame.kind() == Kind::Push as u8 => {
                let size = DType::from_wire(frame.dtype()).and_then(DType::size);
                match (frame.rank(), size) {
                    _ if frame.flags().has(Flags::SOLICITED) => return,
                    (1, Some(_)) => {}
                    // A scalar has no dimension for it to stand in the place of: it goes before the element.
                    (0, Some(..=8)) => {
                        frame.words[7] = frame.words[6];
                        frame.words[1] += 8 << 32;
                    }
                    _ => return,
                }
                frame.words[6] = stamp;
                frame.words[0] |= u64::from(Flags::STAMPED.0) << 40;
            }
            Some(Load::Fields(body)) if frame.kind() == Kind::Offer as u8 => {
                body.put_offer_stamp(frame, stamp);
            }
            _ => {}
        }
    }

    /// True if the peer reads in place, and cannot read `value` so, though it is too long for a frame.
    #[inline]
    #[must_use]
    pub fn must_copy(&self, value: &V) -> bool {
        let is_offered =
            || Push::lead_len(&value.meta(), true) + value.size() > self.settings.inline_max;
        self.settings.read_domain && self.is_up() && value.region().is_none() && is_offered()
    }

    pub(super) fn offer(
        &mut self,
        key: KeyId,
        subject: Subject,
        value: V,
        request: Option<Ticket>,
    ) -> Result<(), NoPush<V>> {
        let meta = value.meta();
        let is_dead = value.is_dead();
        let size = value.size() as u64;
        let region = if self.settings.read_domain && self.readable < self.settings.offers {
            value.region()
        } else {
            None
        };
        let lent = value.lent().filter(|_| region.is_none());
        let weight = value.weight();
        let offered = Offered {
            value,
            key,
            point: subject.point,
            ordinal: subject.ordinal,
            is_readable: region.is_some(),
            is_lent: lent.is_some(),
            reader: self.peer_incarnation(),
            is_kept: false,
        };
        let offer = match self.offers.insert(offered) {
            Ok(offer) => offer,
            Err(offered) => return Err(NoPush::NoOffer(offered.value)),
        };
        self.readable += usize::from(region.is_some());
        self.counters.sent_back += u64::from(lent.is_some());
        self.weigh(subject.point.step, region.is_some(), weight as i64);
        let message = Message::Offer(Offer {
            subject,
            meta,
            is_dead,
            request,
            offer,
            size,
            region,
            lent,
            stamp: 0,
        });
        self.queue(message, Some(key));
        Ok(())
    }

    /// Takes a place among our outstanding requests: its ticket names the landing before anything is asked.
    ///
    /// # Errors
    /// The demand comes back when too many are outstanding.
    // Handed back by value: a box would allocate.
    #[allow(clippy::result_large_err)]
    pub fn demand(&mut self, demand: Demand) -> Result<Ticket, Demand> {
        self.requests.insert(demand)
    }

    /// Sends the request of a demand, with the landing it may be written to.
    pub fn ask(&mut self, ticket: Ticket, patience_ns: u64, landing: Option<(Region, TensorMeta)>) {
        let Some(demand) = self.requests.at_mut(ticket) else {
            return;
        };
        demand.has_landing = landing.is_some();
        demand.wants_landing = demand.has_landing;
        demand.is_asked_again = std::mem::replace(&mut demand.is_asked, true);
        let subject = Subject {
            key: Ticket::default(),
            point: demand.point,
            ordinal: demand.ordinal,
        };
        let key = demand.key;
        let offer = demand.offer.map(|offer| offer.ticket);
        self.queue(
            Message::Request(Request {
                subject,
                request: ticket,
                offer,
                patience_ns,
                landing,
            }),
            Some(key),
        );
    }

    /// Takes a demand back. Its end is still to come: `Cancelled`, or the value.
    pub fn cancel(&mut self, ticket: Ticket) {
        let Some(demand) = self.requests.at_mut(ticket) else {
            return;
        };
        if !demand.is_asked {
            // Nobody has heard of it; an offer that it was to accept still lies at the peer.
            let offer = demand.offer;
            self.requests.remove(ticket);
            if let Some(offer) = offer {
                reached!("accepted_and_never_asked");
                self.release(offer.ticket);
            }
        } else if !std::mem::replace(&mut demand.is_cancelled, true) {
            self.queue(Message::Cancel(ticket), None);
        }
    }

    /// A demand that was never asked, or whose landing is home: its place is free again.
    pub fn settle(&mut self, ticket: Ticket) -> Option<Demand> {
        self.requests.remove(ticket)
    }

    /// The peer's request waits here under the shard's `tag`.
    pub fn park_request(&mut self, request: Ticket, tag: u64) {
        let at = request.index as usize;
        if self.parked.len() <= at {
            self.parked.resize(at + 1, None);
        }
        self.parked[at] = Some((request.generation, tag));
    }

    /// The peer's request waits here no more; the tag it waited under.
    pub fn unpark_request(&mut self, request: Ticket) -> Option<u64> {
        let slot = self.parked.get_mut(request.index as usize)?;
        match *slot {
            Some((generation, tag)) if generation == request.generation => {
                *slot = None;
                Some(tag)
            }
            _ => None,
        }
    }

    /// Answers a cancel.
    pub fn answer_cancel(&mut self, request: Ticket) {
        let is_being_written = self.writes.tickets().any(|ticket| {
            self.writes
                .at(ticket)
                .is_some_and(|writing| writing.request == request)
        });
        if !is_being_written && self.settings.rules.on(Rule::CancelAnswered) {
            self.queue(Message::Cancelled(request), None);
        }
    }

    /// Answers a request with a failure.
    pub fn fail_request(&mut self, request: Ticket, status: &Status) {
        self.queue(Message::Failed(request, text_of(status)), None);
    }

    /// A one-sided write that serves `request` is about to be posted: its ticket.
    ///
    /// # Errors
    /// `None` when too many are on their way.
    pub fn begin_write(
        &mut self,
        request: Ticket,
        key: KeyId,
        point: Point,
        ordinal: u32,
        is_dead: bool,
    ) -> Option<Ticket> {
        self.writes
            .insert(Writing {
                request,
                key,
                point,
                ordinal,
                is_dead,
            })
            .ok()
    }

    /// Whether the value of a write is dead: its bytes do not say so.
    #[must_use]
    pub fn writes_dead(&self, ticket: Ticket) -> bool {
        self.writes
            .at(ticket)
            .is_some_and(|writing| writing.is_dead)
    }

    /// The tag that the peer's request waits under, if it waits here.
    #[must_use]
    pub fn parked_tag(&self, request: Ticket) -> Option<u64> {
        let (generation, tag) = (*self.parked.get(request.index as usize)?)?;
        (generation == request.generation).then_some(tag)
    }

    /// The peer's offered value is no longer needed here.
    pub fn release(&mut self, offer: Ticket) {
        self.queue(Message::Release(offer), None);
    }

    /// An epoch ends: what is on offer goes, but for what the peer may be reading. Giving it up proves nothing about
    /// its process, so that memory stays as it is until the peer releases it, or is proved gone.
    pub(super) fn keep_leases(&mut self) {
        let tickets: Vec<_> = self.offers.tickets().collect();
        for ticket in tickets {
            let Some(offered) = self.offers.at_mut(ticket) else {
                continue;
            };
            if offered.may_be_leased(self.settings.rules) {
                reached!("read_by_a_lost_peer");
                self.kept += usize::from(!std::mem::replace(&mut offered.is_kept, true));
            } else {
                self.take_offer(ticket);
            }
        }
    }

    /// Asks the peer, of whom a new epoch begins, what it reads of the ones before: it releases what it does not.
    pub(super) fn recall_kept(&mut self, reader: Incarnation) {
        let tickets: Vec<_> = self.offers.tickets().collect();
        for ticket in tickets {
            if self
                .offers
                .at(ticket)
                .is_some_and(|offered| offered.is_kept && offered.reader == Some(reader))
            {
                self.queue(Message::Recall(ticket), None);
            }
        }
    }

    /// A life of the peer is proved over: nothing that was offered to it is read any more.
    pub fn exited(&mut self, reader: Incarnation) {
        let tickets: Vec<_> = self.offers.tickets().collect();
        for ticket in tickets {
            if self
                .offers
                .at(ticket)
                .is_some_and(|offered| offered.reader == Some(reader))
            {
                self.take_offer(ticket);
            }
        }
    }

    /// Takes an offer out, whichever epoch it is of.
    pub(super) fn take_offer(&mut self, ticket: Ticket) -> Option<Offered<V>> {
        let offered = self.offers.remove(ticket)?;
        self.kept -= usize::from(offered.is_kept);
        self.readable -= usize::from(offered.is_readable);
        let weight = offered.value.weight() as i64;
        self.weigh(offered.point.step, offered.is_readable, -weight);
        Some(offered)
    }

    fn weigh(&mut self, step: StepId, is_readable: bool, change: i64) {
        if change != 0 {
            self.weighed.push(((!is_readable).then_some(step), change));
        }
    }

    /// A value that waited here unrequested has been taken (or dropped): its lines are the peer's again.
    #[inline]
    pub fn take_lines(&mut self, now: Nanos, lines: u32) {
        if lines > 0 {
            self.lines_held = self.lines_held.saturating_sub(lines);
            self.lines_taken += u64::from(lines);
            self.note_due(now);
        }
    }

    /// The peer's `number` stands for `key` from here on. Returns the key it stood for before.
    ///
    /// # Errors
    /// [`Violation::Intern`] if the number is beyond the bound.
    pub fn interned(&mut self, number: Ticket, key: KeyId) -> Result<Option<KeyId>, Violation> {
        self.learned
            .learn(number, key)
            .map_err(|()| Violation::Intern)
    }

    /// Takes the number of `key` back, if it has one, and tells the peer. Nothing here may be busy with the key. True
    /// if there is something to post.
    pub fn forget_key(&mut self, key: KeyId) -> bool {
        let Some(number) = self.given.take_back(key) else {
            return false;
        };
        if self.state == State::Up {
            self.queue(Message::Intern(number, ""), None);
        }
        self.state == State::Up
    }

    /// Drops what is on offer for a step and cannot be had without us: by reading in place, or from the peer's own
    /// memory.
    pub fn drop_offers(&mut self, step: StepId) {
        let tickets: Vec<_> = self.offers.tickets().collect();
        for ticket in tickets {
            let Some(offered) = self.offers.at(ticket) else {
                continue;
            };
            let is_had = offered.is_lent || offered.may_be_leased(self.settings.rules);
            if offered.point.step == step && !is_had {
                self.take_offer(ticket);
            }
        }
    }

    /// Tells the peer that a step ended, and drops what is on offer for it, as [`Channel::drop_offers`] does.
    pub fn abort(&mut self, step: StepId, status: &Status) {
        self.drop_offers(step);
        // A greeting under way may yet bring up a peer that waits in the step.
        let may_know = self.peer.is_some() || self.state != State::Down;
        if may_know && self.settings.rules.on(Rule::AbortTold) {
            self.queue(Message::Abort(step, text_of(status)), None);
        }
    }

    /// Tells the peer that this side has done its part of a step. All that was pushed before is heard before it; what
    /// is on offer stays until the peer has it or lets go of it.
    pub fn finish(&mut self, step: StepId) {
        let may_know = self.peer.is_some() || self.state != State::Down;
        if may_know && !mutant!("finish_not_told") {
            self.queue(Message::Finish(step), None);
        }
    }

    /// Says that this side leaves.
    pub fn bye(&mut self) {
        if self.peer.is_some() {
            self.queue(Message::Bye, None);
        }
    }

    pub(super) fn queue(&mut self, message: Message<'_>, key: Option<KeyId>) {
        let (frame, body) = message.emit();
        if frame.body_is_inline() {
            return self.stream.push(frame, key);
        }
        let load = match message {
            Message::Failed(..) | Message::Abort(..) | Message::Intern(..) => {
                // The emitted frame counts exactly the bytes of `trailing`, clipped on a character's border.
                Load::Text(String::from_utf8_lossy(message.trailing()).into())
            }
            _ => Load::Fields(body),
        };
        self.stream.push_loaded(frame, key, load);
    }
}

impl<V> Offered<V> {
    /// True if the peer may be reading it.
    fn may_be_leased(&self, rules: Rules) -> bool {
        self.is_readable && rules.on(Rule::LeaseStays)
    }
}

fn text_of(status: &Status) -> StatusText<'_> {
    StatusText {
        code: status.code(),
        is_derived: status.is_derived(),
        message: status.message(),
    }
}
