//! Emitting: a message as a frame, and the part of its body that is made here.
//!
//! It may not know whether a message makes sense: it writes what it is given, and allocates nothing. The layout of
//! each kind's body is drawn in `WIRE.md`; `parse.rs` is its mirror.

use super::frame::{Flags, Frame, INLINE_BODY_MAX, Kind};
use super::message::{Message, Offer, Push, Request, StatusText, Subject, Ticket};
use crate::ground::limits::STATUS_TEXT_MAX;
use crate::ground::{Shape, TensorMeta};

/// A body made on the stack: dimensions, tickets, regions.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Body {
    /// The longest such body: an offer's tickets (8), size (8), region (24), dimensions (32) and stamp (8).
    pub const MAX: usize = 80;

    /// Nothing.
    pub const EMPTY: Self = Self::new();

    const fn new() -> Self {
        Self {
            bytes: [0; Self::MAX],
            len: 0,
        }
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Words, of eight bytes each.
    #[inline]
    fn put_words<const N: usize>(&mut self, words: [u64; N]) {
        let end = self.len + 8 * N;
        let places = self.bytes[self.len..end].chunks_exact_mut(8);
        for (place, word) in places.zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.len = end;
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// Dimensions: eight bytes each up to rank four, four bytes each above.
    #[inline]
    fn put_dims(&mut self, shape: &Shape) {
        match (shape.rank(), shape.dim(0)) {
            (0, _) => {}
            (1, Some(dim)) => self.put_words([dim]),
            (2..=4, _) => shape.dims().for_each(|dim| self.put_words([dim])),
            _ => shape.dims().for_each(|dim| self.put_u32(dim as u32)),
        }
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<'a> Message<'a> {
    /// The frame that says this, and the part of its body that is made here; the second part of the body, which
    /// is the value's own bytes or a text, is [`Message::trailing`]. When both together fit the tail they are in
    /// it already.
    #[must_use]
    pub fn emit(&self) -> (Frame, Body) {
        let mut body = Body::new();
        let frame = match self {
            Self::Push(push) => return push.emit(),
            Self::Offer(offer) => return offer.emit(),
            Self::Request(request) => request.head(&mut body),
            Self::Cancel(ticket) => head(Kind::Cancel, ticket.packed()),
            Self::Cancelled(ticket) => head(Kind::Cancelled, ticket.packed()),
            Self::Failed(ticket, status) => status_head(Kind::Failed, ticket.packed(), status),
            Self::Release(ticket, _) => head(Kind::Release, ticket.packed()),
            Self::Recall(ticket) => head(Kind::Recall, ticket.packed()),
            Self::Credit => head(Kind::Credit, 0),
            Self::Intern(ticket, _) => head(Kind::Intern, ticket.packed()),
            Self::Abort(step, status) => {
                let mut frame = status_head(Kind::Abort, 0, status);
                frame.words[2] = step.0;
                frame
            }
            Self::Hello(hello) => {
                body.put_words([hello.peer_epoch, hello.consumed]);
                body.put(&hello.frame_window.to_le_bytes());
                body.put(&hello.line_window.to_le_bytes());
                let mut frame = head(Kind::Hello, 0);
                frame.words[2] = hello.incarnation.0;
                frame.words[3] = hello.expected.0;
                frame.words[4] = hello.epoch;
                frame
            }
            Self::Finish(step) => {
                let mut frame = head(Kind::Finish, 0);
                frame.words[2] = step.0;
                frame
            }
            Self::Drain => head(Kind::Drain, 0),
            Self::Held(ticket, _) => head(Kind::Held, ticket.packed()),
        };
        (finish(frame, &body, self.trailing()), body)
    }

    /// The part of the body that the message only points to.
    #[must_use]
    pub fn trailing(&self) -> &'a [u8] {
        match self {
            Self::Push(push) => push.data,
            Self::Failed(_, status) | Self::Abort(_, status) => status.clipped().as_bytes(),
            Self::Intern(_, text) => text.as_bytes(),
            Self::Release(_, more) | Self::Held(_, more) => more,
            _ => &[],
        }
    }
}

impl Push<'_> {
    /// As [`Message::emit`], without the detour.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> (Frame, Body) {
        let mut frame = self.frame();
        let mut body = Self::lead(&self.meta, self.request);
        if self.stamp != 0 {
            Self::put_stamp(&mut frame, &mut body, &self.meta, self.stamp);
        }
        (frame, body)
    }

    /// The frame alone. A body that fits the tail is in it; of a longer one [`Push::lead`] goes beside the frame, and
    /// then the data.
    #[inline(always)]
    #[must_use]
    pub fn frame(&self) -> Frame {
        let is_solicited = self.request.is_some();
        let flags = Flags::default()
            .with(Flags::DEAD, self.is_dead)
            .with(Flags::SOLICITED, is_solicited);
        let mut frame = subject_head(Kind::Push, flags, &self.meta, &self.subject);
        let len = Self::lead_len(&self.meta, is_solicited) + self.data.len();
        frame.words[1] |= (len as u64) << 32;
        if len > INLINE_BODY_MAX {
            return frame;
        }
        [frame.words[6], frame.words[7]] = match self.meta.shape.dim(0) {
            _ if is_solicited || self.meta.shape.rank() > 1 => {
                tail_of(self.meta, self.request, self.data)
            }
            None => words_of(self.data),
            Some(dim) => [dim, words_of(self.data)[0]],
        };
        frame
    }

    /// Lets a frame that was emitted with this `body` say when it was posted. What it says stands in the place of the
    /// first dimension, which follows from the others and the number of bytes: a stamped frame is no longer than
    /// another, so that what is timed costs what everything costs. False, and nothing happens, where that does not
    /// follow: strings, more than four dimensions or one of zero, answers to requests; and scalars of more than eight
    /// bytes, since they have no dimension and the stamp must fit before them.
    #[inline]
    pub fn put_stamp(frame: &mut Frame, body: &mut Body, meta: &TensorMeta, stamp: u64) -> bool {
        if !is_stampable(meta) || frame.flags().has(Flags::SOLICITED) {
            return false;
        }
        if meta.shape.rank() == 0 {
            frame.words[7] = frame.words[6];
            frame.words[1] += 8 << 32;
            body.put_words([stamp]);
        }
        if frame.body_is_inline() {
            frame.words[6] = stamp;
        } else {
            body.bytes[..8].copy_from_slice(&stamp.to_le_bytes());
        }
        frame.words[0] |= u64::from(Flags::STAMPED.0) << 40;
        true
    }

    /// What goes before the data in the body: the request's ticket where one is answered, and the dimensions.
    #[inline]
    #[must_use]
    pub fn lead(meta: &TensorMeta, request: Option<Ticket>) -> Body {
        let mut body = Body::new();
        if let Some(request) = request {
            body.put_words([u64::from(request.packed())]);
        }
        body.put_dims(&meta.shape);
        body
    }

    /// Length of that part.
    #[inline]
    #[must_use]
    pub const fn lead_len(meta: &TensorMeta, is_solicited: bool) -> usize {
        let rank = meta.shape.rank();
        let dims = if rank <= 4 { 8 * rank } else { 4 * rank };
        dims + if is_solicited { 8 } else { 0 }
    }
}

impl Frame {
    /// Adds a ticket to a frame of that kind, which names others. False, and nothing happens, if it is of another kind
    /// or has no room.
    pub(crate) const fn add_ticket(&mut self, kind: Kind, ticket: Ticket) -> bool {
        let len = self.body_len() as usize;
        if self.kind() != kind as u8 || len + 4 > INLINE_BODY_MAX {
            return false;
        }
        self.words[6 + len / 8] |= (ticket.packed() as u64) << (len % 8 * 8);
        self.words[1] += 4 << 32;
        true
    }
}

/// The whole body of a push. Apart, and by value: so what the usual push says stays in registers.
#[inline(never)]
fn tail_of(meta: TensorMeta, request: Option<Ticket>, data: &[u8]) -> [u64; 2] {
    let mut frame = Frame::default();
    frame.set_tail([Push::lead(&meta, request).as_bytes(), data]);
    [frame.words[6], frame.words[7]]
}

/// At most sixteen bytes as two words, and zeros behind them.
#[inline(always)]
fn words_of(bytes: &[u8]) -> [u64; 2] {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return [u64::from(u32::from_le_bytes(four)), 0];
    }
    if let Ok(eight) = <[u8; 8]>::try_from(bytes) {
        return [u64::from_le_bytes(eight), 0];
    }
    padded(bytes)
}

#[inline(never)]
fn padded(bytes: &[u8]) -> [u64; 2] {
    let mut padded = [0; INLINE_BODY_MAX];
    padded[..bytes.len()].copy_from_slice(bytes);
    let all = u128::from_le_bytes(padded);
    [all as u64, (all >> 64) as u64]
}

/// True if the first dimension follows from the others and the bytes, or a stamp fits before the scalar.
#[inline]
pub(super) fn is_stampable(meta: &TensorMeta) -> bool {
    let Some(size) = meta.dtype.size() else {
        return false;
    };
    match meta.shape.rank() {
        0 => size <= 8,
        1 => true,
        2..=4 => meta.shape.dims().skip(1).all(|dim| dim != 0),
        _ => false,
    }
}

impl Body {
    /// Adds the stamp of an offer that was emitted without one.
    pub fn put_offer_stamp(&mut self, frame: &mut Frame, stamp: u64) {
        if self.len + 8 <= Self::MAX {
            self.put_words([stamp]);
            frame.words[1] += 8 << 32;
            frame.words[0] |= u64::from(Flags::STAMPED.0) << 40;
        }
    }

    /// Puts a stamp in the place of the first dimension.
    pub fn replace_first_dim(&mut self, stamp: u64) {
        self.bytes[..8].copy_from_slice(&stamp.to_le_bytes());
    }
}

impl Offer {
    /// As [`Message::emit`], without the detour.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> (Frame, Body) {
        let mut body = Body::new();
        let frame = self.head(&mut body);
        (finish(frame, &body, &[]), body)
    }

    #[inline]
    fn head(&self, body: &mut Body) -> Frame {
        let tickets = tickets(self.offer, self.request);
        if let Some(region) = &self.region {
            let [place, offset, len] = region.words();
            body.put_words([tickets, self.size, place, offset, len]);
        } else {
            body.put_words([tickets, self.size]);
            if let Some(lent) = self.lent {
                body.put_words([u64::from(lent.packed())]);
            }
        }
        body.put_dims(&self.meta.shape);
        if self.stamp != 0 {
            body.put_words([self.stamp]);
        }
        let flags = Flags::default()
            .with(Flags::DEAD, self.is_dead)
            .with(Flags::SOLICITED, self.request.is_some())
            .with(Flags::REGION, self.region.is_some())
            .with(Flags::LENT, self.lent.is_some() && self.region.is_none())
            .with(Flags::STAMPED, self.stamp != 0);
        subject_head(Kind::Offer, flags, &self.meta, &self.subject)
    }
}

impl Request {
    fn head(&self, body: &mut Body) -> Frame {
        body.put_words([tickets(self.request, self.offer), self.patience_ns]);
        let flags = Flags::default()
            .with(Flags::OFFER, self.offer.is_some())
            .with(Flags::REGION, self.landing.is_some());
        if let Some((region, meta)) = &self.landing {
            body.put_words(region.words());
            body.put_dims(&meta.shape);
            return subject_head(Kind::Request, flags, meta, &self.subject);
        }
        let mut frame = head(Kind::Request, 0);
        frame.words[0] |= u64::from(flags.0) << 40;
        put_subject(&mut frame, &self.subject);
        frame
    }
}

impl<'a> StatusText<'a> {
    /// The message, cut to what a frame carries at a character's border.
    fn clipped(&self) -> &'a str {
        let mut end = self.message.len().min(STATUS_TEXT_MAX);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        &self.message[..end]
    }
}

/// Two tickets in one word, as they stand in front of an offer and a request; none is zero.
#[inline]
fn tickets(first: Ticket, second: Option<Ticket>) -> u64 {
    u64::from(first.packed()) | u64::from(second.map_or(0, Ticket::packed)) << 32
}

#[inline]
const fn head(kind: Kind, slot: u32) -> Frame {
    Frame {
        words: [(kind as u64) << 32, slot as u64, 0, 0, 0, 0, 0, 0],
    }
}

fn status_head(kind: Kind, slot: u32, status: &StatusText<'_>) -> Frame {
    let flags = Flags::default().with(Flags::DERIVED, status.is_derived);
    let mut frame = head(kind, slot);
    frame.words[0] |= u64::from(flags.0) << 40 | (status.code as u64) << 48;
    frame
}

#[inline]
fn subject_head(kind: Kind, flags: Flags, meta: &TensorMeta, subject: &Subject) -> Frame {
    let mut frame = head(kind, 0);
    frame.words[0] |=
        u64::from(flags.0) << 40 | (meta.dtype as u64) << 48 | (meta.shape.rank() as u64) << 56;
    put_subject(&mut frame, subject);
    frame
}

#[inline]
fn put_subject(frame: &mut Frame, subject: &Subject) {
    frame.words[1] |= u64::from(subject.key.packed());
    frame.words[2] = subject.point.step.0;
    frame.words[3] = subject.point.at.frame;
    frame.words[4] = subject.point.at.iter;
    frame.words[5] |= u64::from(subject.ordinal);
}

#[inline]
fn finish(mut frame: Frame, body: &Body, trailing: &[u8]) -> Frame {
    let len = body.len + trailing.len();
    frame.words[1] |= (len as u64) << 32;
    if len <= INLINE_BODY_MAX {
        frame.set_tail([body.as_bytes(), trailing]);
    }
    frame
}
