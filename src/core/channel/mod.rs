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

mod commands;
pub mod heard;
mod inputs;
pub(crate) mod intern;
mod keyed;
mod outputs;
pub mod ring;
mod rules;
pub(crate) mod slab;
pub(crate) mod stream;

#[cfg(test)]
mod tests;

pub use heard::{Demand, Heard, Lent, OfferHeard, PushHeard, RequestHeard, Violation};
pub use rules::{Rule, Rules};

use crate::ground::limits::PARKED_REQUESTS;
use crate::ground::{Incarnation, Nanos, Region, StepId, TensorMeta};
use crate::rendezvous::KeyId;
use crate::wire::message::Push;
use crate::wire::{Point, Ticket};
use intern::{Given, Learned};
use keyed::{Keyed, OfKey};
use stream::Stream;

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
pub struct Settings {
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No connection.
    Down,
    /// Connected; our hello is due or sent, theirs has not come.
    Greeting { hello_sent: bool },
    /// Theirs has come, ours is due.
    Answering,
    /// Both hellos exchanged.
    Up,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    incarnation: Incarnation,
    epoch: u64,
    frame_window: u16,
    line_window: u16,
}

/// A value of ours that the peer knows of and that still lies here.
#[derive(Debug)]
struct Offered<V> {
    value: V,
    key: KeyId,
    point: Point,
    ordinal: u32,
    is_readable: bool,
    /// Its bytes are the peer's own, and their lease is kept by the value: the peer releases it.
    is_lent: bool,
    /// The life of the peer it was offered to.
    reader: Option<Incarnation>,
    /// Its epoch is over, and the peer may read it all the same.
    is_kept: bool,
}

/// A one-sided write on its way.
#[derive(Clone, Copy, Debug)]
struct Writing {
    request: Ticket,
    key: KeyId,
    point: Point,
    ordinal: u32,
    is_dead: bool,
}

impl OfKey for Demand {
    fn key(&self) -> KeyId {
        self.key
    }
}

impl<V> OfKey for Offered<V> {
    fn key(&self) -> KeyId {
        self.key
    }
}

impl OfKey for Writing {
    fn key(&self) -> KeyId {
        self.key
    }
}

/// Why a push was not taken. The value comes back.
#[derive(Debug)]
pub enum NoPush<V> {
    /// No connection yet, or none just now.
    NotUp(V),
    /// The peer has no room for unrequested values now.
    NoCredit(V),
    /// Too many values are on offer.
    NoOffer(V),
}

impl<V> NoPush<V> {
    /// The value.
    pub fn into_value(self) -> V {
        match self {
            Self::NotUp(value) | Self::NoCredit(value) | Self::NoOffer(value) => value,
        }
    }
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

/// The protocol with one peer shard.
#[derive(Debug)]
pub struct Channel<V> {
    settings: Settings,
    state: State,
    epoch: u64,
    peer: Option<Peer>,
    stream: Stream<V>,
    given: Given,
    learned: Learned,
    requests: Keyed<Demand>,
    offers: Keyed<Offered<V>>,
    /// How the bytes on offer have changed, by step, since that was last asked.
    weighed: Vec<(Option<StepId>, i64)>,
    writes: Keyed<Writing>,
    /// Requests of the peer that wait here, by the peer's ticket index: the generation and the shard's tag.
    parked: Vec<Option<(u32, u64)>>,
    /// Frames of the peer's epoch consumed, and how many of them it has been told.
    consumed: u64,
    consumed_told: u64,
    /// Lines of unrequested values that wait here; lines taken in all, and how many the peer has been told.
    lines_held: u32,
    lines_taken: u64,
    lines_taken_told: u64,
    /// Lines we have pushed in all, and how many of them the peer has returned.
    lines_pushed: u64,
    lines_returned: u64,
    ack_at: Nanos,
    counters: Counters,
    /// How many epochs, of either side, have ended.
    life: u32,
    /// Whom this channel last heard a hello of, and `life` when it first did.
    met: Option<(Incarnation, u32)>,
    /// Values of ended epochs that the peer may still read.
    kept: usize,
    /// Offers that can be read in place, with those kept: no more than `offers`, and what is beyond is copied.
    readable: usize,
}

/// Lines of 64 bytes that an unrequested body costs: one for its frame and its place in the table, and its bytes.
#[inline]
const fn lines(body_len: usize) -> u32 {
    1 + (body_len as u32).div_ceil(64)
}

impl<V: Payload> Channel<V> {
    /// A channel with no connection.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            state: State::Down,
            epoch: 1,
            peer: None,
            stream: Stream::new(usize::from(settings.frame_window)),
            given: Given::new(settings.interned),
            learned: Learned::new(settings.rules),
            requests: Keyed::new(settings.requests),
            // Writes that failed come back as offers, beyond what may be offered; and as many as may be offered are
            // kept for readers of ended epochs.
            offers: Keyed::new(2 * settings.offers + PARKED_REQUESTS),
            weighed: Vec::new(),
            // Each serves a request of the peer: there is always room, so that an accepted offer never has to wait.
            writes: Keyed::new(PARKED_REQUESTS),
            parked: Vec::new(),
            consumed: 0,
            consumed_told: 0,
            lines_held: 0,
            lines_taken: 0,
            lines_taken_told: 0,
            lines_pushed: 0,
            lines_returned: 0,
            ack_at: Nanos::NEVER,
            counters: Counters::default(),
            life: 0,
            met: None,
            kept: 0,
            readable: 0,
            settings,
        }
    }

    /// True between the hellos and the end of a connection.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up | State::Answering)
    }

    /// The peer's incarnation, once it has said hello in this epoch.
    #[must_use]
    pub fn peer_incarnation(&self) -> Option<Incarnation> {
        self.peer.map(|peer| peer.incarnation)
    }

    /// True if the longest push, or an offer, would be taken now.
    #[inline]
    #[must_use]
    pub fn takes_push(&self) -> bool {
        self.is_up() && self.lines_open() >= lines(self.settings.inline_max) && self.has_offer()
    }

    /// True if one more value may be offered. What peers of ended epochs may still read is counted apart.
    #[inline]
    pub(super) fn has_offer(&self) -> bool {
        self.offers.len() - self.kept < self.settings.offers
    }

    /// True if a value of this type and length goes whole, in a frame; otherwise it is offered.
    #[must_use]
    pub fn goes_whole(&self, meta: &TensorMeta, len: usize) -> bool {
        Push::lead_len(meta, false) + len <= self.settings.inline_max
    }

    /// What has changed of what is on offer, in order, that nobody has asked for before: bytes more or less, and of
    /// which step. What is offered keeps its memory until the peer has let go of it, so it counts as what is parked
    /// does; but what the peer reads in place is of no step: it may have been received long since.
    pub fn take_weighed(&mut self) -> impl Iterator<Item = (Option<StepId>, i64)> {
        self.weighed.drain(..)
    }

    /// True if the peer's arenas are read in place.
    #[must_use]
    pub const fn reads_in_place(&self) -> bool {
        self.settings.read_domain
    }

    /// True if there is something to post now.
    #[inline]
    #[must_use]
    pub fn must_transmit(&self, now: Nanos) -> bool {
        self.has_due() || self.credit_is_due(now)
    }

    /// True if unrequested values hold so much room here that the peer may be out of push credit.
    #[inline]
    #[must_use]
    pub const fn is_pressed(&self) -> bool {
        let window = self.settings.line_window as u32;
        self.lines_held * 2 >= window || self.lines_held + lines(self.settings.inline_max) > window
    }

    /// Lines of unrequested values the peer would still take.
    #[inline]
    #[must_use]
    pub fn lines_open(&self) -> u32 {
        let window = self.peer.map_or(0, |peer| u64::from(peer.line_window));
        window.saturating_sub(self.lines_pushed - self.lines_returned) as u32
    }

    /// True if frames wait to be posted.
    #[inline]
    #[must_use]
    pub fn has_due(&self) -> bool {
        self.stream.due() > 0
            || matches!(
                self.state,
                State::Greeting { hello_sent: false } | State::Answering
            )
    }

    /// True if nothing is owed, asked, offered or on its way, in either direction.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.stream.is_empty()
            && self.requests.len() == 0
            && self.offers.len() == self.kept
            && self.writes.len() == 0
    }

    /// Requests outstanding, values on offer, writes on their way, frames kept.
    #[must_use]
    pub fn load(&self) -> [usize; 4] {
        let kept = self.stream.in_flight() + self.stream.due();
        [
            self.requests.len(),
            self.offers.len(),
            self.writes.len(),
            kept,
        ]
    }

    /// Frames posted and not acknowledged.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.stream.in_flight()
    }

    /// Lines of unrequested values that wait here, and lines of ours that the peer has not returned.
    #[must_use]
    pub fn lines_out(&self) -> [u64; 2] {
        [
            u64::from(self.lines_held),
            self.lines_pushed - self.lines_returned,
        ]
    }

    /// The value of ours that the peer sent back, for as long as it is on offer: the peer lets go of it only after it
    /// has heard that what it sent is taken.
    #[must_use]
    pub fn lent(&self, lent: Lent) -> Option<&V> {
        let offered = self.offers.at(lent.offer)?;
        (offered.value.region() == Some(lent.region)).then_some(&offered.value)
    }

    /// A demand of ours.
    #[must_use]
    pub fn demand_at(&self, ticket: Ticket) -> Option<&Demand> {
        self.requests.at(ticket)
    }

    /// True if something that was begun here is of `key`: it is asked for, on offer, being written, or a frame of it is
    /// not acknowledged.
    #[must_use]
    pub fn is_busy_with(&self, key: KeyId) -> bool {
        self.stream.may_have(key)
            || self.requests.has(key)
            || self.offers.has(key)
            || self.writes.has(key)
    }

    /// True if the peer may speak of `key` by a number that it gave.
    #[must_use]
    pub fn is_called(&self, key: KeyId) -> bool {
        self.learned.has(key)
    }

    /// True if an ended connection has left nothing here: nothing is kept for the peer either.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_at_rest() && self.kept == 0 && self.state == State::Down
    }

    /// Every demand of ours that `pred` picks.
    pub fn demands(&self, mut pred: impl FnMut(&Demand) -> bool) -> Vec<Ticket> {
        self.requests
            .tickets()
            .filter(|&ticket| self.requests.at(ticket).is_some_and(&mut pred))
            .collect()
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Our epoch, by its number.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many epochs have ended: tickets of an earlier one mean nothing to the peer.
    #[inline]
    #[must_use]
    pub const fn life(&self) -> u32 {
        self.life
    }

    /// How many of those ended while the peer was what it is now: tickets of its own of that time still mean to it
    /// what they did.
    #[must_use]
    pub fn lives_of_peer(&self) -> u32 {
        self.met.map_or(0, |(_, life)| self.life.wrapping_sub(life))
    }

    pub(super) fn forget_epoch(&mut self) {
        self.life = self.life.wrapping_add(1);
        self.stream.restart();
        self.given.clear();
        self.requests.drain();
        self.keep_leases();
        self.writes.drain();
        self.parked.clear();
        self.lines_pushed = 0;
        self.lines_returned = 0;
        self.forget_peer_epoch();
    }

    pub(super) fn forget_peer_epoch(&mut self) {
        self.learned.clear();
        self.consumed = 0;
        self.consumed_told = 0;
        self.lines_held = 0;
        self.lines_taken = 0;
        self.lines_taken_told = 0;
        self.ack_at = Nanos::NEVER;
    }

    /// What an ended epoch left in the table has gone: its lines are owed to nobody.
    pub fn forget_lines(&mut self) {
        self.lines_held = 0;
        self.lines_taken = 0;
        self.lines_taken_told = 0;
    }

    #[inline]
    pub(super) fn note_due(&mut self, now: Nanos) {
        if self.ack_at == Nanos::NEVER {
            self.ack_at = now + self.settings.ack_delay_ns;
        }
    }
}
