//! Messages: what a frame and its body mean, as values. `parse ∘ emit` is the identity, and no bytes panic.
//!
//! It may not know how they lie in bytes (`parse.rs`, `emit.rs`), which side sends a message or what follows from it.
//! Everything parsed is well-formed and still only a peer's *claim*: whether a ticket is live or a region readable is
//! the channel's and the fabric's to check.

use crate::ground::{Code, FrameIter, Incarnation, Region, StepId, TensorMeta};

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

/// Where a value belongs, besides its key: step, loop frame and iteration.
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
#[repr(u64)] // A whole word: what is parsed lies behind it in a result, and is moved by words.
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
    /// No kind of memory of this number.
    #[error("no kind of memory has this number")]
    Memory,
    /// The dimensions are no shape, or disagree with the bytes.
    #[error("the dimensions are not a shape, or disagree with the number of bytes")]
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
    /// When it was posted, on the sender's counter; zero if it does not say. Put in by [`Push::put_stamp`].
    pub stamp: u64,
}

impl<'a> Push<'a> {
    /// Of a value that was not asked for and is not timed.
    #[inline(always)]
    #[must_use]
    pub const fn usual(subject: Subject, meta: TensorMeta, is_dead: bool, data: &'a [u8]) -> Self {
        Self {
            subject,
            meta,
            is_dead,
            request: None,
            data,
            stamp: 0,
        }
    }
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
    /// The receiver's own offer, of which the sender holds a lease and sends the bytes back; never beside a region.
    pub lent: Option<Ticket>,
    /// When it was posted, on the sender's counter; zero if it does not say.
    pub stamp: u64,
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
    /// The receiver's epoch as the sender knows it; zero if it knows none. With `expected`, zero also says that the
    /// sender has dropped values for that life with an epoch of its own.
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
    /// The receiver needs the offered value no more, nor those whose tickets follow: packed, in four bytes each, and
    /// at most four.
    Release(Ticket, &'a [u8]),
    /// The sender asks whether the receiver still reads a value that it offered in an epoch that is over: if not, the
    /// receiver releases it.
    Recall(Ticket),
    /// Credit only.
    Credit,
    /// From now on the ticket means this text: source, destination and edge, joined by `;`.
    Intern(Ticket, &'a str),
    /// The step ended.
    Abort(StepId, StatusText<'a>),
    /// See [`Hello`].
    Hello(Hello),
    /// The sender has cleaned the step up: no value follows in it, and none of what was not handed over yet.
    Finish(StepId),
    /// The sender is about to leave. The receiver answers with a `Held` for each value of the sender's that was
    /// received and is read in place, and from then on says so of each that is.
    Drain,
    /// The offered value was received and is read in place: nothing more is owed for it, even if the sender leaves. The
    /// release follows when it is read no more. More tickets follow as in a release.
    Held(Ticket, &'a [u8]),
}
