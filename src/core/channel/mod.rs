//! Channel: the protocol with one peer shard, as a pure state machine. No I/O, no clock, no memory of its own.
//!
//! It knows frames, tickets, credits, ordinals and lengths; it does not know buffers, tensors, queue pairs or the
//! table. A value is an opaque [`Payload`] that it keeps and hands back.
//!
//! Methods come in four kinds. *Commands* (`push`, `ask`, `cancel`, …) say what this side wants; they only ever
//! queue frames. *Inputs* (`handle_frame`, `landed`, `wrote`, …) say what happened; `handle_frame` returns what
//! was heard, for the shard to act on. *Outputs*: `transmit` posts what is due, `poll_timeout` says when to call
//! it again at the latest. *Accessors* change nothing. Call `transmit` after any command or input.
//!
//! The life of a channel: `connected` → hello both ways → up → `disconnected` → `connected` … A connection that
//! broke resumes where it stood, because every frame is kept until the peer acknowledged it (`stream.rs`). When the
//! peer is given up for lost (`lose`), the epoch ends and nothing of it survives.
#![forbid(unsafe_code)]

mod answers;
mod commands;
mod credit;
mod demand;
mod demands;
mod drain;
pub mod heard;
mod inputs;
pub(crate) mod intern;
mod keyed;
mod offers;
mod outputs;
mod ring;
mod rules;
mod served;
mod session;
pub(crate) mod slab;
mod stream;

#[cfg(test)]
mod tests;

pub(crate) use commands::subject_of;
pub use demand::{Accepted, Demand};
pub use heard::{Heard, OfferHeard, PushHeard, RequestHeard, ReturnedLease, Violation};
pub use rules::{Rule, Rules};

use crate::ground::{Incarnation, Region, TensorMeta};
use crate::wire::Ticket;
use crate::wire::message::Hello;
use credit::Credit;
use demands::Demands;
use drain::Drain;
use intern::{Given, Learned};
use offers::Offers;
use served::Served;
use session::Session;
use stream::FrameStream;

/// A value as far as a channel must know it.
pub trait Payload {
    /// Type and shape.
    fn meta(&self) -> TensorMeta;
    /// How many bytes it is long.
    fn size(&self) -> usize;
    /// The bytes; `None` if the host cannot read them: such a value is offered by its place, and never in a frame.
    fn data(&self) -> Option<&[u8]>;
    /// True for a dead value.
    fn is_dead(&self) -> bool;
    /// Where a peer of the same read domain can read the bytes in place; `None` if it cannot.
    fn region(&self) -> Option<Region>;
    /// The offer of the peer that the bytes are a lease of, if it can have them back so: it must be of this epoch. The
    /// value keeps the lease.
    fn lent(&self) -> Option<Ticket> {
        None
    }
    /// Bytes of our memory that it keeps occupied for as long as it is here.
    fn weight(&self) -> u64 {
        self.size() as u64
    }
}

/// What a channel is told when it is made.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSettings {
    /// Our incarnation.
    pub incarnation: Incarnation,
    /// Frames that may be in flight towards us.
    pub frame_window: u16,
    /// Lines (of 64 bytes) of unrequested values that may wait here; below 2¹⁵.
    pub line_window: u16,
    /// Bodies up to this long are pushed; longer values are offered.
    pub inline_max: usize,
    /// True if the peer may read our arenas in place.
    pub read_domain: bool,
    /// Requests of ours that may be outstanding.
    pub requests: usize,
    /// Values of ours that may be offered at once.
    pub offers: usize,
    /// Keys with a number.
    pub interned: usize,
    /// How long an acknowledgement may wait for a frame to ride on.
    pub ack_delay_ns: u64,
    /// Which rules are on.
    pub rules: Rules,
}

/// Why a push was not taken. The value is where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPush {
    /// No connection yet, or none just now.
    NotUp,
    /// The peer has no room for unrequested values now.
    NoCredit,
    /// Too many values are on offer.
    NoOffer,
    /// It is too long for a frame, or not the host's to put into one: it goes as an offer.
    Long,
}

/// How a one-sided write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteEnd {
    /// The bytes are there.
    Done,
    /// They may be there or not; or the peer refused them.
    Failed,
}

/// What a channel has counted. Cumulative.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Frames posted.
    pub frames_sent: u64,
    /// Frames consumed.
    pub frames_received: u64,
    /// References to slots of another generation, answered with nothing.
    pub stale: u64,
    /// Pushes that found no credit.
    pub no_credit: u64,
    /// Leases that went back to whose memory they are, instead of a copy.
    pub sent_back: u64,
}

/// The protocol with one peer shard. Each part keeps its own rules; the channel turns what is said and heard into
/// events of the parts.
#[derive(Debug)]
pub struct Channel<V> {
    settings: ChannelSettings,
    session: Session,
    stream: FrameStream<V>,
    credit: Credit,
    given: Given,
    learned: Learned,
    requests: Demands,
    /// Values that may still come for requests that have had their answer.
    second_answers: u32,
    offers: Offers<V>,
    served: Served,
    drain: Drain,
    counters: Counters,
}
