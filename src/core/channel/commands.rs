//! Commands: what this side wants said. A command queues frames, or posts the one that it makes if nothing goes before
//! that.
//!
//! It knows neither queue pairs nor keys' texts. What is queued leaves by `outputs.rs`.

use super::credit::lines;
use super::demand::Cancelled;
use super::offers::Placed;
use super::outputs::post_value;
use super::served::Writing;
use super::session::SessionState;
use super::stream::Load;
use super::{Channel, Demand, NoPush, Payload, Rule, Violation};
use crate::ground::{DType, Nanos, Region, Status, StepId, TensorMeta};
use crate::rendezvous::KeyId;
use crate::wire::message::{Offer, Push, Request, StatusText, Subject};
use crate::wire::{Body, Flags, Frame, INLINE_BODY_MAX, Kind, Message, Point, Ticket};

/// A message as the stream keeps it. The load of a push is its value: [`Channel::push`].
pub(super) fn framed<V>(message: &Message<'_>) -> (Frame, Option<Load<V>>) {
    let (frame, body) = message.emit();
    if frame.body_is_inline() {
        return (frame, None);
    }
    let load = match message {
        Message::Failed(..) | Message::Abort(..) | Message::Intern(..) => {
            // The emitted frame counts exactly the bytes of `trailing`, clipped on a character's border.
            Load::Text(String::from_utf8_lossy(message.trailing()).into())
        }
        _ => Load::Fields(body),
    };
    (frame, Some(load))
}

/// Whose value a queued frame is about. The key's number comes into the frame when it is posted; until then the key
/// itself stands there.
#[inline]
pub(crate) const fn subject_of(key: KeyId, point: Point, ordinal: u32) -> Subject {
    Subject {
        key: Ticket::unpack(key.0),
        point,
        ordinal,
    }
}

/// Commands.
impl<V: Payload> Channel<V> {
    #[inline]
    pub(super) fn queue(&mut self, message: &Message<'_>) {
        let (frame, load) = framed(message);
        self.stream.push(frame, load);
    }

    /// Whether the peer reads our arenas in place, from the connection that is coming on.
    pub const fn set_read_domain(&mut self, read_domain: bool) {
        self.settings.read_domain = read_domain;
    }

    /// Pushes or offers a value: small ones whole, large ones by their place. `request` is the demand it answers;
    /// without one it needs push credit. The value is taken out if it must be kept: one whose bytes all lie in the
    /// frame stays where it is.
    ///
    /// # Errors
    /// [`NoPush`]: nothing happened, and the value is where it was.
    pub fn push(
        &mut self,
        key: KeyId,
        point: Point,
        ordinal: u32,
        sending: &mut Option<V>,
        request: Option<Ticket>,
    ) -> Result<(), NoPush> {
        let post = &mut |_: &Frame, _: [&[u8]; 2]| false;
        let pushed = match self.push_whole(key, point, ordinal, sending, request, post) {
            Err(NoPush::Long) => self.push_offer(key, point, ordinal, sending, request, post),
            pushed => pushed,
        };
        pushed.map(|_| ())
    }

    /// As [`Channel::push`], of a value that goes whole. A frame that nothing goes before is posted at once, and kept
    /// for a reconnect once it has left. True if it was posted; else it is due.
    ///
    /// # Errors
    /// As [`Channel::push`]; [`NoPush::Long`] for a value that is to be offered.
    #[inline(always)]
    pub fn push_whole(
        &mut self,
        key: KeyId,
        point: Point,
        ordinal: u32,
        sending: &mut Option<V>,
        request: Option<Ticket>,
        post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
    ) -> Result<bool, NoPush> {
        let Some(value) = sending.as_ref() else {
            return Ok(false);
        };
        if !self.is_up() && request.is_none() {
            return Err(NoPush::NotUp);
        }
        let is_free = self.is_free(request);
        let meta = value.meta();
        let body_len = Push::lead_len(&meta, request.is_some()) + value.size();
        let is_short = body_len <= self.settings.inline_max;
        let Some(data) = value.data().filter(|_| is_short) else {
            return Err(NoPush::Long);
        };
        if !is_free && !self.credit.spend(lines(body_len)) {
            self.counters.no_credit += 1;
            return Err(NoPush::NoCredit);
        }
        let push = Push {
            subject: subject_of(key, point, ordinal),
            meta,
            is_dead: value.is_dead(),
            request,
            data,
            stamp: 0,
        };
        let mut frame = push.frame();
        if frame.body_is_inline() {
            // The value is kept no longer than its bytes: they are in the frame.
            let is_posted = self.post_now(key, frame, |frame| post(frame, [&[], &[]]));
            self.stream.push(frame, None);
            self.mark_posted(is_posted, false);
            return Ok(is_posted);
        }
        frame.words[6] = request.map_or(0, |request| u64::from(request.packed()));
        let is_posted = self.post_now(key, frame, |frame| post_value(frame, value, post));
        self.stream.push(frame, sending.take().map(Load::Value));
        self.mark_posted(is_posted, true);
        Ok(is_posted)
    }

    /// The frame of the usual push: unrequested, a scalar or a row that is not offered, and nothing goes before it. To
    /// be posted at once, with its dimension and its bytes beside it if they do not lie in it, and then given to
    /// [`Channel::keep_posted`]. `None` for any other: [`Channel::push_whole`] takes it, and what was not posted.
    #[inline(always)]
    pub fn frame_now(&mut self, key: KeyId, push: &Push<'_>) -> Option<Frame> {
        let rank = push.meta.shape.rank();
        let body_len = 8 * rank + push.data.len();
        if rank > 1
            || rank == 0 && body_len > INLINE_BODY_MAX
            || body_len > self.settings.inline_max
            || lines(body_len) > self.credit.open()
            || self.session.state() != SessionState::Up
            || !self.stream.is_clear()
        {
            return None;
        }
        let number = self.given.number(key)?;
        let mut frame = push.frame();
        frame.set_slot(number.packed());
        self.credit.write(&mut frame);
        Some(frame)
    }

    /// Keeps a frame of [`Channel::frame_now`], which was posted; its value comes by [`Channel::keep_value`] if its
    /// bytes do not lie in it.
    #[inline(always)]
    pub fn keep_posted(&mut self, key: KeyId, frame: &Frame) {
        if !mutant!("short_values_spend_no_credit") {
            self.credit.spend(lines(frame.body_len() as usize));
        }
        self.stream.push_frame(frame).set_slot(key.0);
        self.mark_posted(true, !frame.body_is_inline());
    }

    /// Keeps the value of the frame that [`Channel::keep_posted`] kept last.
    #[inline]
    pub fn keep_value(&mut self, value: V) {
        self.stream.push_load(Load::Value(value));
    }

    /// True if what answers `request` needs no credit.
    #[inline]
    fn is_free(&self, request: Option<Ticket>) -> bool {
        request.is_some() && self.settings.rules.on(Rule::RequestedNeedsNoCredit)
    }

    /// As [`Channel::push_whole`], of a value that is too long for a frame, or that the host cannot read: it is kept
    /// here, and the peer is told of it.
    ///
    /// # Errors
    /// As [`Channel::push`].
    pub fn push_offer(
        &mut self,
        key: KeyId,
        point: Point,
        ordinal: u32,
        sending: &mut Option<V>,
        request: Option<Ticket>,
        post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
    ) -> Result<bool, NoPush> {
        if !self.is_up() && request.is_none() {
            return Err(NoPush::NotUp);
        }
        let is_free = self.is_free(request);
        if !is_free && self.credit.open() >= lines(0) && !self.offers.has_room() {
            return Err(NoPush::NoOffer);
        }
        if !is_free && !self.credit.spend(lines(0)) {
            self.counters.no_credit += 1;
            return Err(NoPush::NoCredit);
        }
        let offered = self.offer(key, point, ordinal, sending, request, post);
        offered.ok_or(NoPush::NoOffer)
    }

    /// Lets the frame that was queued last say when that was, if it is a push or an offer.
    pub fn stamp_last(&mut self, stamp: u64) {
        let Some((frame, load)) = self.stream.last_mut() else {
            return;
        };
        let mut none = Body::EMPTY;
        match load {
            // Made anew whenever it is posted: see `post_next`.
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

    /// True if the peer reads in place, and cannot read `value` so, though it is too long for a frame or is not the
    /// host's to put into one.
    #[inline]
    #[must_use]
    pub fn must_copy(&self, value: &V) -> bool {
        let is_offered = || {
            Push::lead_len(&value.meta(), true) + value.size() > self.settings.inline_max
                || value.data().is_none()
        };
        self.settings.read_domain && self.is_up() && value.region().is_none() && is_offered()
    }

    /// Puts a value on offer and tells the peer. True if its frame was posted; `None` if there was no place, and the
    /// value is where it was.
    #[inline]
    pub(super) fn offer(
        &mut self,
        key: KeyId,
        point: Point,
        ordinal: u32,
        offering: &mut Option<V>,
        request: Option<Ticket>,
        post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
    ) -> Option<bool> {
        let subject = subject_of(key, point, ordinal);
        let value = offering.as_ref()?;
        let (meta, is_dead, size) = (value.meta(), value.is_dead(), value.size() as u64);
        let (peer, shows) = (self.session.peer(), self.settings.read_domain);
        self.tell_drain();
        let Placed {
            ticket,
            region,
            lent,
        } = self.offers.put(key, &subject, offering, peer, shows)?;
        self.counters.sent_back += u64::from(lent.is_some());
        let offer = Offer {
            subject,
            meta,
            is_dead,
            request,
            offer: ticket,
            size,
            region,
            lent,
            stamp: 0,
        };
        let (frame, body) = offer.emit();
        let is_posted = self.post_now(key, frame, |frame| post(frame, [body.as_bytes(), &[]]));
        let has_load = !frame.body_is_inline();
        self.stream
            .push(frame, has_load.then_some(Load::Fields(body)));
        self.mark_posted(is_posted, has_load);
        Some(is_posted)
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

    /// Sends the request of a demand that [`Demand::may_ask`], with the landing it may be written to.
    pub fn ask(&mut self, ticket: Ticket, patience_ns: u64, landing: Option<(Region, TensorMeta)>) {
        let Some(demand) = self.requests.ask(ticket, landing.is_some()) else {
            return;
        };
        // The peer may answer each time.
        let is_again = demand.is_asked_again();
        self.second_answers = self.second_answers.saturating_add(u32::from(is_again));
        let request = Request {
            subject: subject_of(demand.key, demand.point, demand.ordinal),
            request: ticket,
            offer: demand.offer.map(|offer| offer.ticket),
            patience_ns,
            landing,
        };
        self.queue(&Message::Request(request));
    }

    /// Takes a demand back. Its end is still to come, `Cancelled` or the value, if the peer has heard of it.
    pub fn cancel(&mut self, ticket: Ticket) {
        match self.requests.cancel(ticket) {
            Cancelled::Tell => self.queue(&Message::Cancel(ticket)),
            Cancelled::Unheard(Some(offer)) => {
                reached!("accepted_and_never_asked");
                self.release(offer.ticket);
            }
            Cancelled::Unheard(None) | Cancelled::Not => {}
        }
    }

    /// A demand that was never asked, or whose landing is home: its place is free again.
    pub fn settle(&mut self, ticket: Ticket) -> Option<Demand> {
        self.requests.remove(ticket)
    }

    /// The peer's request waits here under the shard's `tag`.
    pub fn park_request(&mut self, request: Ticket, tag: u64) {
        self.served.park(request, tag);
    }

    /// The peer's request waits here no more; the tag it waited under.
    pub fn unpark_request(&mut self, request: Ticket) -> Option<u64> {
        self.served.unpark(request)
    }

    /// Answers a cancel, unless a write is the answer that is on its way.
    pub fn answer_cancel(&mut self, request: Ticket) {
        if !self.served.is_written(request) && self.settings.rules.on(Rule::CancelAnswered) {
            self.queue(&Message::Cancelled(request));
        }
    }

    /// Answers a request with a failure.
    pub fn fail_request(&mut self, request: Ticket, status: &Status) {
        self.queue(&Message::Failed(request, text_of(status)));
    }

    /// A one-sided write that serves `request` is about to be posted: its ticket. `None` when too many are on their
    /// way.
    pub fn begin_write(
        &mut self,
        request: Ticket,
        key: KeyId,
        point: Point,
        ordinal: u32,
        is_dead: bool,
    ) -> Option<Ticket> {
        self.served.begin(Writing {
            request,
            key,
            point,
            ordinal,
            is_dead,
        })
    }

    /// The peer's offered value is no longer needed here. Those that are released one after the other go in one frame.
    pub fn release(&mut self, offer: Ticket) {
        self.queue_ticket(Kind::Release, offer, Message::Release(offer, &[]));
    }

    /// Adds the ticket to the frame that was queued last, if that is of this kind and has room; else queues `alone`.
    pub(super) fn queue_ticket(&mut self, kind: Kind, ticket: Ticket, alone: Message<'_>) {
        let last = self.stream.last_mut();
        if !last.is_some_and(|(frame, _)| frame.add_ticket(kind, ticket)) {
            self.queue(&alone);
        }
    }

    /// A value that waited here unrequested has been taken (or dropped): its lines are the peer's again.
    #[inline]
    pub fn take_lines(&mut self, now: Nanos, lines: u32) {
        self.credit.take(now, lines);
    }

    /// The table has dropped what an ended epoch left in it: no peer is owed those lines.
    pub const fn forget_lines(&mut self) {
        self.credit.forget_lines();
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
        let tells = self.session.state() == SessionState::Up;
        if tells {
            self.queue(&Message::Intern(number, ""));
        }
        tells
    }

    /// Drops what is on offer for a step and cannot be had without us: by reading in place, or from the peer's own
    /// memory.
    pub fn drop_offers(&mut self, step: StepId) {
        self.offers.end_step(step);
    }

    /// Tells the peer that a step ended, and drops what is on offer for it, as [`Channel::drop_offers`] does.
    pub fn abort(&mut self, step: StepId, status: &Status) {
        self.drop_offers(step);
        // A greeting under way may yet bring up a peer that waits in the step.
        if self.session.may_know() && self.settings.rules.on(Rule::AbortTold) {
            self.queue(&Message::Abort(step, text_of(status)));
        }
    }

    /// Tells the peer that this side has done its part of a step. All that was pushed before is heard before it; what
    /// is on offer stays until the peer has it or lets go of it.
    pub fn finish(&mut self, step: StepId) {
        if self.session.may_know() && !mutant!("finish_not_told") {
            self.queue(&Message::Finish(step));
        }
    }
}

fn text_of(status: &Status) -> StatusText<'_> {
    StatusText {
        code: status.code(),
        is_derived: status.is_derived(),
        message: status.message(),
    }
}
