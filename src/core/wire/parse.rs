//! Parsing: what a frame and its body say, or the first thing that is wrong with them.
//!
//! It may not know whether a claim is true. Every read is checked: no bytes panic, and nothing is allocated.

use super::emit::is_stampable;
use super::frame::{Flags, Frame, INLINE_BODY_MAX, Kind};
use super::message::{
    Hello, Malformed, Message, Offer, Point, Push, Request, StatusText, Subject, Ticket,
};
use crate::ground::limits::BODY_MAX;
use crate::ground::{Code, DType, FrameIter, Incarnation, Region, Shape, StepId, TensorMeta};

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
        if kind == Kind::Push {
            return Push::parse(frame, tail, beside).map(Self::Push);
        }
        let flags = flags_of(frame)?;
        let mut reader = Reader(body_of(frame, tail, beside)?);
        let ticket = Ticket::unpack(frame.slot());
        let message = match kind {
            Kind::Push => return Err(Malformed::Kind),
            Kind::Offer => return Offer::parse(frame, tail, beside).map(Self::Offer),
            Kind::Request => Self::Request(parse_request(frame, flags, &mut reader)?),
            Kind::Cancel => Self::Cancel(ticket),
            Kind::Cancelled => Self::Cancelled(ticket),
            Kind::Failed => Self::Failed(ticket, status_text(frame, flags, &mut reader)?),
            Kind::Release => Self::Release(ticket, reader.tickets()?),
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
            Kind::Finish => Self::Finish(StepId(frame.words[2])),
            Kind::Drain => Self::Drain,
            Kind::Held => Self::Held(ticket, reader.tickets()?),
        };
        reader.end()?;
        Ok(message)
    }
}

impl Subject {
    /// Whose value a frame is about that says a push, an offer or a request.
    #[inline(always)]
    #[must_use]
    pub const fn of(frame: &Frame) -> Self {
        Self {
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
}

impl<'a> Push<'a> {
    /// What the usual push says: a scalar or a row, which answers no request and is not timed. `body` is the frame's,
    /// wherever it lies. `None` for every other frame, which [`Message::parse`] judges; where it is something, it is
    /// the same.
    #[inline(always)]
    #[must_use]
    pub fn parse_row(frame: &Frame, body: &'a [u8]) -> Option<Self> {
        let (flags, rank) = (frame.flags(), frame.rank());
        let is_usual = frame.kind() == Kind::Push as u8 && flags.0 & !Flags::DEAD.0 == 0;
        if !is_usual || rank > 1 {
            return None;
        }
        let dtype = DType::from_wire(frame.dtype())?;
        let size = dtype.size()? as u64;
        if body.len() != frame.body_len() as usize || body.len() > BODY_MAX {
            return None;
        }
        let (elements, data) = if rank == 0 {
            (1, body)
        } else {
            let (dim, data) = body.split_first_chunk()?;
            (u64::from_le_bytes(*dim), data)
        };
        // So few bytes are no more than a shape may have.
        if elements > BODY_MAX as u64 || elements * size != data.len() as u64 {
            return None;
        }
        Some(Push {
            subject: Subject::of(frame),
            meta: TensorMeta {
                dtype,
                shape: Shape::few(rank == 1, elements),
            },
            is_dead: flags.has(Flags::DEAD),
            request: None,
            data,
            stamp: 0,
        })
    }

    /// As [`Message::parse`] for a frame that is known to be a push, without the detour.
    ///
    /// # Errors
    /// [`Malformed`] names what is wrong; nothing else happens.
    #[inline(always)]
    pub fn parse(
        frame: &Frame,
        tail: &'a [u8; INLINE_BODY_MAX],
        beside: &'a [u8],
    ) -> Result<Self, Malformed> {
        let flags = flags_of(frame)?;
        let mut reader = Reader(body_of(frame, tail, beside)?);
        let is_solicited = flags.has(Flags::SOLICITED);
        let is_stamped = flags.has(Flags::STAMPED);
        if is_solicited && is_stamped {
            // As `put_stamp` has it: an answer to a request has none.
            return Err(Malformed::Flags);
        }
        let request = if is_solicited {
            let ticket = reader.ticket()?;
            reader.u32()?;
            Some(ticket)
        } else {
            None
        };
        let dtype = DType::from_wire(frame.dtype()).ok_or(Malformed::DType)?;
        let (mut shape, mut stamp) = (Shape::SCALAR, 0);
        if is_stamped || frame.rank() > 1 {
            // A separate reader, so that this one stays in registers.
            let mut apart = Reader(reader.0);
            if is_stamped {
                (shape, stamp) = apart.stamped_shape(frame, dtype)?;
            } else {
                shape = apart.shape(usize::from(frame.rank()))?;
            }
            reader.0 = apart.0;
        } else if frame.rank() == 1 {
            shape = Shape::row(reader.u64()?).ok_or(Malformed::Shape)?;
        }
        let data = reader.0;
        // A shape of so many bytes is no larger than a tensor may be.
        let is_whole = dtype.size().is_none_or(|size| {
            shape.elements().checked_mul(size as u64) == Some(data.len() as u64)
        });
        if !is_whole {
            return Err(Malformed::Shape);
        }
        Ok(Push {
            subject: Subject::of(frame),
            meta: TensorMeta { dtype, shape },
            is_dead: flags.has(Flags::DEAD),
            request,
            data,
            stamp,
        })
    }
}

impl Offer {
    /// As [`Message::parse`] for a frame that is known to be an offer, without the detour.
    ///
    /// # Errors
    /// [`Malformed`] names what is wrong; nothing else happens.
    #[inline]
    pub fn parse(
        frame: &Frame,
        tail: &[u8; INLINE_BODY_MAX],
        beside: &[u8],
    ) -> Result<Self, Malformed> {
        let mut reader = Reader(body_of(frame, tail, beside)?);
        let offer = parse_offer(frame, flags_of(frame)?, &mut reader)?;
        reader.end()?;
        Ok(offer)
    }
}

#[inline]
fn parse_offer(frame: &Frame, flags: Flags, reader: &mut Reader<'_>) -> Result<Offer, Malformed> {
    let [tickets, size] = reader.words()?;
    let [offer, request] = both(tickets);
    let region = if flags.has(Flags::REGION) {
        Some(reader.region()?)
    } else {
        None
    };
    let lent = if flags.has(Flags::LENT) {
        // Bytes lie in one place.
        if region.is_some() {
            return Err(Malformed::Flags);
        }
        let ticket = reader.ticket()?;
        reader.u32()?;
        Some(ticket)
    } else {
        None
    };
    let meta = reader.meta(frame)?;
    let stamp = if flags.has(Flags::STAMPED) {
        reader.u64()?
    } else {
        0
    };
    if meta.size().is_some_and(|bytes| bytes != size)
        || region.is_some_and(|region| region.len != size)
    {
        return Err(Malformed::Shape);
    }
    Ok(Offer {
        subject: Subject::of(frame),
        meta,
        is_dead: flags.has(Flags::DEAD),
        request: flags.has(Flags::SOLICITED).then_some(request),
        offer,
        size,
        region,
        lent,
        stamp,
    })
}

fn parse_request(
    frame: &Frame,
    flags: Flags,
    reader: &mut Reader<'_>,
) -> Result<Request, Malformed> {
    let [tickets, patience_ns] = reader.words()?;
    let [request, offer] = both(tickets);
    let landing = if flags.has(Flags::REGION) {
        Some((reader.region()?, reader.meta(frame)?))
    } else {
        None
    };
    Ok(Request {
        subject: Subject::of(frame),
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

/// The two tickets of a word.
#[inline]
const fn both(word: u64) -> [Ticket; 2] {
    [
        Ticket::unpack(word as u32),
        Ticket::unpack((word >> 32) as u32),
    ]
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

    /// Words, of eight bytes each.
    #[inline]
    fn words<const N: usize>(&mut self) -> Result<[u64; N], Malformed> {
        let bytes = self.take(8 * N)?;
        let mut words = [0; N];
        for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut le = [0; 8];
            le.copy_from_slice(eight);
            *word = u64::from_le_bytes(le);
        }
        Ok(words)
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

    /// Packed tickets, as many as fit a frame's tail.
    fn tickets(&mut self) -> Result<&'a [u8], Malformed> {
        let tickets = std::mem::take(&mut self.0);
        if tickets.len() > INLINE_BODY_MAX || !tickets.len().is_multiple_of(4) {
            return Err(Malformed::Body);
        }
        Ok(tickets)
    }

    #[inline]
    fn region(&mut self) -> Result<Region, Malformed> {
        Region::of_words(self.words()?).ok_or(Malformed::Memory)
    }

    #[inline]
    fn meta(&mut self, frame: &Frame) -> Result<TensorMeta, Malformed> {
        let dtype = DType::from_wire(frame.dtype()).ok_or(Malformed::DType)?;
        let shape = match frame.rank() {
            1 => Shape::row(self.u64()?).ok_or(Malformed::Shape)?,
            rank => self.shape(usize::from(rank))?,
        };
        TensorMeta::new(dtype, shape).map_err(|_| Malformed::Shape)
    }

    #[inline(never)]
    fn shape(&mut self, rank: usize) -> Result<Shape, Malformed> {
        let mut dims = [0u64; 8];
        let dims = dims.get_mut(..rank).ok_or(Malformed::Shape)?;
        for dim in dims.iter_mut() {
            *dim = if rank <= 4 {
                self.u64()?
            } else {
                u64::from(self.u32()?)
            };
        }
        Shape::new(dims).map_err(|_| Malformed::Shape)
    }

    /// The shape of a stamped push, and the stamp: it stands where the first dimension would, which follows
    /// from the others and the bytes that are left; before a scalar there is none.
    #[inline(never)]
    fn stamped_shape(&mut self, frame: &Frame, dtype: DType) -> Result<(Shape, u64), Malformed> {
        let size = dtype.size().ok_or(Malformed::Shape)? as u64;
        let rank = usize::from(frame.rank());
        let mut dims = [0u64; 4];
        let dims = dims.get_mut(..rank).ok_or(Malformed::Shape)?;
        let stamp = self.u64()?;
        let mut row = size;
        for dim in dims.iter_mut().skip(1) {
            *dim = self.u64()?;
            row = row.checked_mul(*dim).ok_or(Malformed::Shape)?;
        }
        if let Some(first) = dims.first_mut() {
            let len = self.0.len() as u64;
            if row == 0 || !len.is_multiple_of(row) {
                return Err(Malformed::Shape);
            }
            *first = len / row;
        }
        let shape = Shape::new(dims).map_err(|_| Malformed::Shape)?;
        let meta = TensorMeta::new(dtype, shape).map_err(|_| Malformed::Shape)?;
        if !is_stampable(&meta) {
            return Err(Malformed::Shape);
        }
        Ok((shape, stamp))
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

/// The flags of a frame, if there are no others than are known.
#[inline]
fn flags_of(frame: &Frame) -> Result<Flags, Malformed> {
    let flags = frame.flags();
    if flags.0 & !Flags::ALL.0 != 0 {
        return Err(Malformed::Flags);
    }
    Ok(flags)
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
