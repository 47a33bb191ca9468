//! What a channel heard: the outcomes of a frame, for the shard to act on.

use super::{Accepted, Demand};
use crate::ground::{Incarnation, Region, StepId, TensorMeta};
use crate::rendezvous::KeyId;
use crate::wire::message::StatusText;
use crate::wire::{Malformed, Point, Ticket};

/// A small value came.
#[derive(Clone, Copy, Debug)]
pub struct PushHeard<'a> {
    /// The key.
    pub key: KeyId,
    /// Step, loop frame, iteration.
    pub point: Point,
    /// Which value of the key.
    pub ordinal: u32,
    /// Type and shape.
    pub meta: TensorMeta,
    /// True for a dead value.
    pub is_dead: bool,
    /// Lines to give back when the value is taken.
    pub lines: u32,
    /// The bytes.
    pub data: &'a [u8],
    /// The demand that it ended. One that had a landing stands until that has come home.
    pub demand: Option<Ticket>,
    /// When it was posted, on the sender's counter; zero if it does not say.
    pub stamp: u64,
}

/// Bytes of ours that the peer held a lease of and sends back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReturnedLease {
    /// Our offer.
    pub offer: Ticket,
    /// Where its value lies.
    pub region: Region,
}

/// A large value is on offer.
#[derive(Clone, Copy, Debug)]
pub struct OfferHeard {
    /// The key.
    pub key: KeyId,
    /// Step, loop frame, iteration.
    pub point: Point,
    /// Which value of the key.
    pub ordinal: u32,
    /// What accepting it takes.
    pub offer: Accepted,
    /// Where it can be read in place: the peer's claim.
    pub region: Option<Region>,
    /// Which bytes of ours it is: see [`Channel::lent`](super::Channel::lent).
    pub lent: Option<ReturnedLease>,
    /// When it was posted, on the sender's counter; zero if it does not say.
    pub stamp: u64,
}

/// The peer wants a value.
#[derive(Clone, Copy, Debug)]
pub struct RequestHeard {
    /// The key.
    pub key: KeyId,
    /// Step, loop frame, iteration.
    pub point: Point,
    /// The ordinal it expects.
    pub ordinal: u32,
    /// Its ticket at the peer.
    pub request: Ticket,
    /// Nanoseconds until it is worthless; zero for never.
    pub patience_ns: u64,
    /// Where it may be written: the peer's claim.
    pub landing: Option<(Region, TensorMeta)>,
}

/// What a frame said that brought no value.
#[derive(Debug)]
pub enum Heard<'a, V> {
    /// Nothing to do.
    Nothing,
    /// The channel is up. `former` is set when what was bound to the peer's former life, or to an epoch that one
    /// side gave up, must fail now.
    Up {
        /// The peer's incarnation.
        incarnation: Incarnation,
        /// The incarnation that is gone, or the same one if the peer had given us up.
        former: Option<Incarnation>,
        /// True if the peer has dropped values for us before we first heard it, or does so when it hears us: what
        /// waits for it may wait for one of them.
        has_dropped: bool,
    },
    /// See [`RequestHeard`].
    Request(RequestHeard),
    /// An offer of ours was accepted: write its value into the landing.
    Write {
        /// The peer's request.
        request: Ticket,
        /// The key.
        key: KeyId,
        /// Step, loop frame, iteration.
        point: Point,
        /// Which value of the key.
        ordinal: u32,
        /// The value.
        value: V,
        /// Where to, and for which type and shape.
        landing: (Region, TensorMeta),
    },
    /// A request names an offer of another generation: answer `Failed` with `Stale`.
    Stale(Ticket),
    /// The peer takes a request back; `tag` is where it waited, if it did.
    Cancel {
        /// The request.
        request: Ticket,
        /// The tag it was parked under.
        tag: Option<u64>,
    },
    /// A demand of ours ended without a value. If it has a landing, that must come home first.
    Ended {
        /// Its ticket.
        ticket: Ticket,
        /// The demand.
        demand: Demand,
        /// Why; `None` if it was cancelled.
        status: Option<StatusText<'a>>,
    },
    /// So many values of ours are no longer needed by the peer, and were let go.
    Released(usize),
    /// The peer is about to leave: call `hold` for each value of its that was received and is read in place.
    Drain,
    /// The peer asks whether an offer of an ended epoch is still read here: if not, `release` it.
    Recall(Ticket),
    /// The peer gives a key a number: call `interned`, or close the connection if the text is no key of ours.
    Intern {
        /// The number.
        number: Ticket,
        /// Source, destination and edge, joined by `;`.
        text: &'a str,
    },
    /// The peer ended a step.
    Abort {
        /// The step.
        step: StepId,
        /// Why.
        status: StatusText<'a>,
    },
    /// The peer has cleaned the step up: of its values only those come that were asked for and are being written.
    Finish(StepId),
}

/// The peer broke the protocol. The connection is closed; nothing else is harmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[repr(u64)] // As `Malformed`.
pub enum Violation {
    /// Bytes that are no message.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// A frame before the hello.
    #[error("a frame came before the hello")]
    BeforeHello,
    /// Two hellos on one connection.
    #[error("a second hello came")]
    SecondHello,
    /// A window that nothing fits through.
    #[error("the hello's windows are zero or too large")]
    Window,
    /// More credit or acknowledgement than was ever owed.
    #[error("more was acknowledged than was sent")]
    Credit,
    /// More unrequested values than there was credit for.
    #[error("more unrequested values came than there was credit for")]
    LineCredit,
    /// Values for requests that were answered before.
    #[error("more values came for requests that had their answer than were asked for again")]
    Unasked,
    /// Values that overtook others which never came.
    #[error("values of keys came in an order that leaves out too many others")]
    Gaps,
    /// No acknowledgement of what was sent.
    #[error("too many frames wait for this peer to acknowledge those before them")]
    Unacknowledged,
    /// The hello of another life than the one that was greeted.
    #[error("the hello names an incarnation other than the one that was greeted")]
    Incarnation,
    /// A key number that was not given.
    #[error("a frame names a key that was not interned")]
    UnknownKey,
    /// A key number beyond the bound.
    #[error("more keys were interned than agreed")]
    Intern,
    /// A request beyond the bound, or one that makes no sense.
    #[error(
        "a request is beyond the bound, has the number of another that waits, or accepts an offer without a landing"
    )]
    Requests,
    /// Bytes of ours sent back that were not lent to this peer, or other bytes than were lent.
    #[error("an offer sends back memory that this peer holds no lease of")]
    Lease,
    /// A key that does not belong to this pair of tasks.
    #[error("an interned key does not belong to this pair of tasks")]
    ForeignKey,
}
