//! Messages: what a frame and its body mean. `parse ∘ emit` is the identity, and no bytes panic.
//!
//! It may not know who sends a message or what follows from it. Everything parsed is well-formed and still only
//! a peer's *claim*: whether a ticket is live or a region readable is the channel's and the fabric's to check.

use super::frame::{Flags, Frame, INLINE_BODY_MAX, Kind};
use crate::ground::limits::{BODY_MAX, STATUS_TEXT_MAX};
use crate::ground::{Code, DType, FrameIter, Incarnation, Region, Shape, StepId, TensorMeta};

/// A slot of a slab and the generation it was given out in: a stale ticket is recognisable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ticket {
    /// Which slot; below 2²⁰, so that slot and generation fit the 32 bits of immediate data.
    pub index: u32,
    /// Which use of it; below 2¹².
    pub generation: u32,
}

impl Ticket {
    /// Bits of an index.
    pub const INDEX_BITS: u32 = 20;
    /// Bits of a generation.
    pub const GENERATION_BITS: u32 = 12;

    /// Both in one word: the immediate data of a one-sided write.
    #[inline]
    #[must_use]
    pub const fn packed(self) -> u32 {
        (self.generation << Self::INDEX_BITS) | self.index
    }

    /// The ticket of a packed word. Every word is one.
    #[inline]
    #[must_use]
    pub const fn unpack(word: u32) -> Self {
        Self {
            index: word & ((1 << Self::INDEX_BITS) - 1),
            generation: word >> Self::INDEX_BITS,
        }
    }
}

/// Where a value belongs, but for its key: step, loop frame and iteration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Point {
    /// The step.
    pub step: StepId,
    /// The loop frame and iteration.
    pub at: FrameIter,
}

/// Why a frame is not a message. Small: the hot path formats nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// No kind of this number.
    #[error("no kind of frame has this number")]
    Kind,
    /// A flag that this version does not know.
    #[error("the frame has a flag that this version does not know")]
    Flags,
    /// The body's length is not what the kind needs, or over the limit.
    #[error("the frame's body is too short or too long for what it says")]
    Body,
    /// No data type of this number.
    #[error("no data type has this number")]
    DType,
    /// The dimensions are no shape, or disagree with the bytes.
    #[error("the dimensions are no shape, or disagree with the number of bytes")]
    Shape,
    /// Text that is not UTF-8.
    #[error("the text is not UTF-8")]
    Text,
}

/// A value's identity on the wire: its interned key, its point, and its ordinal there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Subject {
    /// The key's number in the sender's intern table.
    pub key: Ticket,
    /// Step, loop frame, iteration.
    pub point: Point,
    /// Which value of the key: 0, 1, 2, …
    pub ordinal: u32,
}

/// A small value, whole.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Push<'a> {
    /// Whose value.
    pub subject: Subject,
    /// Type and shape.
    pub meta: TensorMeta,
    /// True for a dead value.
    pub is_dead: bool,
    /// The request it answers; such a push costs no credit.
    pub request: Option<Ticket>,
    /// The value's bytes: exactly what `meta` says, strings encoded.
    pub data: &'a [u8],
}

/// A large value that waits at its sender.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Offer {
    /// Whose value.
    pub subject: Subject,
    /// Type and shape.
    pub meta: TensorMeta,
    /// True for a dead value.
    pub is_dead: bool,
    /// The request it answers, when its landing did not fit or it had none.
    pub request: Option<Ticket>,
    /// The offer's ticket at its sender.
    pub offer: Ticket,
    /// The value's length in bytes.
    pub size: u64,
    /// Where the receiver may read it in place.
    pub region: Option<Region>,
}

/// A demand.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Request {
    /// Whose value; the ordinal is the one the receiver expects.
    pub subject: Subject,
    /// The request's ticket at its sender, and the immediate data of the write that serves it.
    pub request: Ticket,
    /// The offer it accepts, if it accepts one.
    pub offer: Option<Ticket>,
    /// Nanoseconds until the demand is worthless; zero for never.
    pub patience_ns: u64,
    /// Where the value may be written, and for which type and shape.
    pub landing: Option<(Region, TensorMeta)>,
}

/// What the two ends of a channel tell each other first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hello {
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The incarnation the sender believes the receiver has.
    pub expected: Incarnation,
    /// The sender's epoch of this channel: counts up when it gave the peer up.
    pub epoch: u64,
    /// The receiver's epoch as the sender knows it; zero if it knows none.
    pub peer_epoch: u64,
    /// Frames of that epoch that the sender has consumed: they need no repeating.
    pub consumed: u64,
    /// Frames that may be in flight towards the sender.
    pub frame_window: u16,
    /// Lines of unrequested values that may wait at the sender.
    pub line_window: u16,
}

/// A status as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusText<'a> {
    /// The code.
    pub code: Code,
    /// True for a derived status.
    pub is_derived: bool,
    /// The message.
    pub message: &'a str,
}

/// One message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Message<'a> {
    /// See [`Push`].
    Push(Push<'a>),
    /// See [`Offer`].
    Offer(Offer),
    /// See [`Request`].
    Request(Request),
    /// Takes the request back.
    Cancel(Ticket),
    /// The cancelled request was not served and never will be.
    Cancelled(Ticket),
    /// The request cannot be served.
    Failed(Ticket, StatusText<'a>),
    /// The receiver needs the offered value no more.
    Release(Ticket),
    /// The sender wants the offered value's memory back.
    Recall(Ticket),
    /// Credit only.
    Credit,
    /// From now on the ticket means this text: source, destination and edge, joined by `;`.
    Intern(Ticket, &'a str),
    /// The step ended.
    Abort(StepId, StatusText<'a>),
    /// See [`Hello`].
    Hello(Hello),
    /// Leaves in good order.
    Bye,
}

/// A body made on the stack: dimensions, tickets, regions.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Body {
    /// The longest such body: a request's tickets (8), patience (8), landing (24) and dimensions (32).
    pub const MAX: usize = 72;

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

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    #[inline]
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn put_region(&mut self, region: &Region) {
        self.put(&region.arena.to_le_bytes());
        self.put(&region.segment.to_le_bytes());
        self.put_u32(region.generation);
        self.put_u64(region.offset);
        self.put_u64(region.len);
    }

    /// Dimensions: eight bytes each up to rank four, four bytes each above.
    #[inline]
    fn put_dims(&mut self, shape: &Shape) {
        let wide = shape.rank() <= 4;
        for dim in shape.dims() {
            if wide {
                self.put_u64(dim);
            } else {
                self.put_u32(dim as u32);
            }
        }
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reads a body front to back; every read is checked.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed::Body)?;
        self.0 = rest;
        Ok(head)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        let mut le = [0; 2];
        le.copy_from_slice(self.take(2)?);
        Ok(u16::from_le_bytes(le))
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, Malformed> {
        let mut le = [0; 4];
        le.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(le))
    }

    #[inline]
    fn u64(&mut self) -> Result<u64, Malformed> {
        let mut le = [0; 8];
        le.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(le))
    }

    fn ticket(&mut self) -> Result<Ticket, Malformed> {
        self.u32().map(Ticket::unpack)
    }

    fn region(&mut self) -> Result<Region, Malformed> {
        Ok(Region {
            arena: self.u16()?,
            segment: self.u16()?,
            generation: self.u32()?,
            offset: self.u64()?,
            len: self.u64()?,
        })
    }

    #[inline]
    fn meta(&mut self, frame: &Frame) -> Result<TensorMeta, Malformed> {
        let dtype = DType::from_wire(frame.dtype()).ok_or(Malformed::DType)?;
        let rank = usize::from(frame.rank());
        let mut dims = [0u64; 8];
        let dims = dims.get_mut(..rank).ok_or(Malformed::Shape)?;
        for dim in dims.iter_mut() {
            *dim = if rank <= 4 {
                self.u64()?
            } else {
                u64::from(self.u32()?)
            };
        }
        let shape = Shape::new(dims).map_err(|_| Malformed::Shape)?;
        TensorMeta::new(dtype, shape).map_err(|_| Malformed::Shape)
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(std::mem::take(&mut self.0)).map_err(|_| Malformed::Text)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed::Body)
        }
    }
}

/// The bytes of a frame's body as it lies in the frame or beside it.
#[inline]
fn body_of<'a>(
    frame: &Frame,
    tail: &'a [u8; INLINE_BODY_MAX],
    beside: &'a [u8],
) -> Result<&'a [u8], Malformed> {
    let len = frame.body_len() as usize;
    if len <= INLINE_BODY_MAX {
        Ok(&tail[..len])
    } else if len == beside.len() && len <= BODY_MAX {
        Ok(beside)
    } else {
        Err(Malformed::Body)
    }
}

impl<'a> Message<'a> {
    /// What `frame` says. `tail` is [`Frame::tail`] of the same frame, kept by the caller so that data can point
    /// into it; `beside` is the body that came with the frame when it is longer than the tail.
    ///
    /// # Errors
    /// [`Malformed`] names what is wrong; nothing else happens.
    #[inline]
    pub fn parse(
        frame: &Frame,
        tail: &'a [u8; INLINE_BODY_MAX],
        beside: &'a [u8],
    ) -> Result<Self, Malformed> {
        let kind = Kind::from_wire(frame.kind()).ok_or(Malformed::Kind)?;
        let flags = frame.flags();
        if flags.0 & !Flags::ALL.0 != 0 {
            return Err(Malformed::Flags);
        }
        let mut reader = Reader(body_of(frame, tail, beside)?);
        if kind == Kind::Push {
            return parse_push(frame, flags, reader).map(Self::Push);
        }
        let ticket = Ticket::unpack(frame.slot());
        let message = match kind {
            Kind::Push => return Err(Malformed::Kind),
            Kind::Offer => Self::Offer(parse_offer(frame, flags, &mut reader)?),
            Kind::Request => Self::Request(parse_request(frame, flags, &mut reader)?),
            Kind::Cancel => Self::Cancel(ticket),
            Kind::Cancelled => Self::Cancelled(ticket),
            Kind::Failed => Self::Failed(ticket, status_text(frame, flags, &mut reader)?),
            Kind::Release => Self::Release(ticket),
            Kind::Recall => Self::Recall(ticket),
            Kind::Credit => Self::Credit,
            Kind::Intern => Self::Intern(ticket, reader.text()?),
            Kind::Abort => Self::Abort(
                StepId(frame.words[2]),
                status_text(frame, flags, &mut reader)?,
            ),
            Kind::Hello => Self::Hello(Hello {
                incarnation: Incarnation(frame.words[2]),
                expected: Incarnation(frame.words[3]),
                epoch: frame.words[4],
                peer_epoch: reader.u64()?,
                consumed: reader.u64()?,
                frame_window: reader.u16()?,
                line_window: reader.u16()?,
            }),
            Kind::Bye => Self::Bye,
        };
        reader.end()?;
        Ok(message)
    }

    /// The frame that says this, and the part of its body that is made here; the second part of the body, which
    /// is the value's own bytes or a text, is [`Message::trailing`]. When both together fit the tail they are in
    /// it already.
    #[must_use]
    pub fn emit(&self) -> (Frame, Body) {
        let mut body = Body::new();
        let frame = match self {
            Self::Push(push) => return push.emit(),
            Self::Offer(offer) => offer.head(&mut body),
            Self::Request(request) => request.head(&mut body),
            Self::Cancel(ticket) => head(Kind::Cancel, ticket.packed()),
            Self::Cancelled(ticket) => head(Kind::Cancelled, ticket.packed()),
            Self::Failed(ticket, status) => status_head(Kind::Failed, ticket.packed(), status),
            Self::Release(ticket) => head(Kind::Release, ticket.packed()),
            Self::Recall(ticket) => head(Kind::Recall, ticket.packed()),
            Self::Credit => head(Kind::Credit, 0),
            Self::Intern(ticket, _) => head(Kind::Intern, ticket.packed()),
            Self::Abort(step, status) => {
                let mut frame = status_head(Kind::Abort, 0, status);
                frame.words[2] = step.0;
                frame
            }
            Self::Hello(hello) => {
                body.put_u64(hello.peer_epoch);
                body.put_u64(hello.consumed);
                body.put(&hello.frame_window.to_le_bytes());
                body.put(&hello.line_window.to_le_bytes());
                let mut frame = head(Kind::Hello, 0);
                frame.words[2] = hello.incarnation.0;
                frame.words[3] = hello.expected.0;
                frame.words[4] = hello.epoch;
                frame
            }
            Self::Bye => head(Kind::Bye, 0),
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
            _ => &[],
        }
    }
}

impl Push<'_> {
    /// As [`Message::emit`], without the detour.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> (Frame, Body) {
        let body = Self::lead(&self.meta, self.request);
        let flags = Flags::default()
            .with(Flags::DEAD, self.is_dead)
            .with(Flags::SOLICITED, self.request.is_some());
        let mut frame = subject_head(Kind::Push, flags, &self.meta, &self.subject);
        let len = body.len + self.data.len();
        frame.words[1] |= (len as u64) << 32;
        if len <= INLINE_BODY_MAX {
            frame.set_tail([body.as_bytes(), self.data]);
        }
        (frame, body)
    }

    /// What goes before the data in the body: the request's ticket where one is answered, and the dimensions.
    #[inline]
    #[must_use]
    pub fn lead(meta: &TensorMeta, request: Option<Ticket>) -> Body {
        let mut body = Body::new();
        if let Some(request) = request {
            body.put_u32(request.packed());
            body.put_u32(0);
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

impl Offer {
    fn head(&self, body: &mut Body) -> Frame {
        body.put_u32(self.offer.packed());
        body.put_u32(self.request.map_or(0, Ticket::packed));
        body.put_u64(self.size);
        if let Some(region) = &self.region {
            body.put_region(region);
        }
        body.put_dims(&self.meta.shape);
        let flags = Flags::default()
            .with(Flags::DEAD, self.is_dead)
            .with(Flags::SOLICITED, self.request.is_some())
            .with(Flags::REGION, self.region.is_some());
        subject_head(Kind::Offer, flags, &self.meta, &self.subject)
    }
}

impl Request {
    fn head(&self, body: &mut Body) -> Frame {
        body.put_u32(self.request.packed());
        body.put_u32(self.offer.map_or(0, Ticket::packed));
        body.put_u64(self.patience_ns);
        let flags = Flags::default()
            .with(Flags::OFFER, self.offer.is_some())
            .with(Flags::REGION, self.landing.is_some());
        if let Some((region, meta)) = &self.landing {
            body.put_region(region);
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

fn finish(mut frame: Frame, body: &Body, trailing: &[u8]) -> Frame {
    let len = body.len + trailing.len();
    frame.words[1] |= (len as u64) << 32;
    if len <= INLINE_BODY_MAX {
        frame.set_tail([body.as_bytes(), trailing]);
    }
    frame
}

#[inline]
fn subject_of(frame: &Frame) -> Subject {
    Subject {
        key: Ticket::unpack(frame.slot()),
        point: Point {
            step: StepId(frame.words[2]),
            at: FrameIter {
                frame: frame.words[3],
                iter: frame.words[4],
            },
        },
        ordinal: frame.ordinal(),
    }
}

#[inline]
fn parse_push<'a>(
    frame: &Frame,
    flags: Flags,
    mut reader: Reader<'a>,
) -> Result<Push<'a>, Malformed> {
    let request = if flags.has(Flags::SOLICITED) {
        let ticket = reader.ticket()?;
        reader.u32()?;
        Some(ticket)
    } else {
        None
    };
    let meta = reader.meta(frame)?;
    let data = reader.0;
    if meta.size().is_some_and(|size| size != data.len() as u64) {
        return Err(Malformed::Shape);
    }
    Ok(Push {
        subject: subject_of(frame),
        meta,
        is_dead: flags.has(Flags::DEAD),
        request,
        data,
    })
}

fn parse_offer(frame: &Frame, flags: Flags, reader: &mut Reader<'_>) -> Result<Offer, Malformed> {
    let offer = reader.ticket()?;
    let request = reader.ticket()?;
    let size = reader.u64()?;
    let region = if flags.has(Flags::REGION) {
        Some(reader.region()?)
    } else {
        None
    };
    let meta = reader.meta(frame)?;
    if meta.size().is_some_and(|bytes| bytes != size)
        || region.is_some_and(|region| region.len != size)
    {
        return Err(Malformed::Shape);
    }
    Ok(Offer {
        subject: subject_of(frame),
        meta,
        is_dead: flags.has(Flags::DEAD),
        request: flags.has(Flags::SOLICITED).then_some(request),
        offer,
        size,
        region,
    })
}

fn parse_request(
    frame: &Frame,
    flags: Flags,
    reader: &mut Reader<'_>,
) -> Result<Request, Malformed> {
    let request = reader.ticket()?;
    let offer = reader.ticket()?;
    let patience_ns = reader.u64()?;
    let landing = if flags.has(Flags::REGION) {
        Some((reader.region()?, reader.meta(frame)?))
    } else {
        None
    };
    Ok(Request {
        subject: subject_of(frame),
        request,
        offer: flags.has(Flags::OFFER).then_some(offer),
        patience_ns,
        landing,
    })
}

fn status_text<'a>(
    frame: &Frame,
    flags: Flags,
    reader: &mut Reader<'a>,
) -> Result<StatusText<'a>, Malformed> {
    Ok(StatusText {
        code: Code::from_wire(frame.dtype()),
        is_derived: flags.has(Flags::DERIVED),
        message: reader.text()?,
    })
}
