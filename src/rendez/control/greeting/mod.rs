//! The greeting: what both sides of a fresh connection say until it counts, as two machines without input or output.
//!
//! Pure: messages and outcomes in, messages and jobs out. What only the task can answer (is this peer admitted? does
//! it count?) is asked of its [`Side`]; what may block is a [`Job`] of it. No stream, no runtime, no clock, and no
//! deadline: the caller keeps it, and drops the machine when it is over. `exchange.rs` runs a machine over a stream.
//!
//! ```text
//!   dialler                                   acceptor
//!   Hello ──────────────────────────────────▶ judge, choose, admit
//!   judge ◀───────────────────────── HelloReply (accepted, refused, or elsewhere: the Unix address)
//!
//!   over a Unix socket: descriptors in a lane; each batch is answered by Ack or Error
//!   Descriptors: link, doorbells, segments ─▶ accept link
//!   take ◀───────────── Descriptors: doorbells, segments
//!   counts: Ack ────────────────────────────▶ counts
//!
//!   over TCP: each transport that both have, the best first, until one is proved
//!   make ends; Offer: ends ─────────────────▶ make ends, connect them to the dialler's
//!   connect ends ◀─────────────── OfferReply: ends, or why not
//!   Prove ──────────────────────────────────▶
//!   each channel, in both directions ◀══════▶ each channel, in both directions
//!         ◀───────────────────── ProveReply: good, or why not
//!   counts: OfferDone, or why not ──────────▶ counts, or waits for the next offer
//!   up ◀──────────────────────────────── Ack  up
//!
//!   and if none is: data connections
//!   DataOpen ───────────────────────────────▶ as many as we count?
//!         ◀───────────────────────── DataOpenReply (ticket)
//!   one connection per channel ═════════════▶ ticket judged, answered
//!   counts: DataReady ──────────────────────▶ all there? counts
//!   up ◀──────────────────────────────── Ack  up
//! ```

mod acceptor;
mod choice;
mod dialler;
mod rungs;
mod talk;

use rendez_proto::{self as proto, Envelope};

pub(crate) use acceptor::Acceptor;
pub(crate) use dialler::Dialler;
use rungs::No;
pub(crate) use rungs::Rung;
pub(crate) use talk::Talk;

use super::peer::PeerHello;
use super::refusal::Refusal;
use super::transport::{Path, PathWish};

/// What a machine needs to know of its own side from the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GreetingTerms<'a> {
    /// Our task.
    pub(crate) own: &'a str,
    /// The boot we run in.
    pub(crate) machine: &'a str,
    /// The path that we demand, if any.
    pub(crate) wish: PathWish,
    /// The connection is a Unix socket with a lane.
    pub(crate) is_near: bool,
}

/// What a machine waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wants {
    /// The peer's next message.
    Message,
    /// The end of the job.
    Job,
    /// Nothing: it has an outcome.
    Nothing,
}

/// What happens to a machine.
#[derive(Debug)]
pub(crate) enum Event {
    /// The peer has said something.
    Heard(Envelope),
    /// The job is done, or refuses.
    Done(Result<(), Refusal>),
}

/// What may block. One is under way at a time, and its outcome is waited for unless the greeting ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    /// Make our ends of a transport.
    Open(Path, PeerHello),
    /// Connect them to the peer's.
    Connect(Vec<Vec<u8>>),
    /// Prove them.
    Prove,
    /// Open the data connections that the peer expects.
    Dial(Expected),
    /// Wait for the peer's data connections.
    Gather,
}

/// The data connections that a peer expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    pub(crate) incarnation: crate::ground::Incarnation,
    pub(crate) channels: u32,
    pub(crate) id: [u8; 16],
    pub(crate) expires_ms: u64,
}

/// What a machine asks of its own side. Nothing here blocks.
pub(crate) trait Side {
    /// Our hello, to the task that is `dialled`, or as an answer.
    fn hello(&self, dialled: &str) -> proto::Hello;

    /// Judges the peer's; with it, whether the peer is of our read domain.
    fn judge(&self, hello: &proto::Hello) -> Result<(PeerHello, bool), Refusal>;

    /// May this peer be greeted? Asked of the acceptor, once.
    fn admit(&mut self, peer: &PeerHello) -> Result<(), Refusal>;

    /// Does the connection count? Asked last.
    fn count(&mut self, peer: &PeerHello) -> Result<(), Refusal>;

    /// Where this task listens on its machine.
    fn near_address(&self) -> String;

    /// The transports that are offered, the best first.
    fn rungs(&self) -> Vec<Rung>;

    /// How many channels there are to `peer`.
    fn channels(&self, peer: &PeerHello) -> Result<u32, Refusal>;

    /// Makes up what is passed to `peer`: with a link if we dialled.
    fn gather(&mut self, peer: &PeerHello, read_domain: bool) -> Result<(), Refusal>;

    /// Puts the next batch of it into the lane, and gives the message that names it.
    fn pass(&mut self, peer: &PeerHello) -> Result<proto::Descriptors, Refusal>;

    /// Takes the batch that the peer names; after the last one, whether it makes a whole.
    fn take(
        &mut self,
        peer: &PeerHello,
        read_domain: bool,
        batch: proto::Descriptors,
    ) -> Result<(), Refusal>;

    /// Judges the link that the peer has passed.
    fn accept_link(&mut self, peer: &PeerHello) -> Result<(), Refusal>;

    /// Our ends, and on which devices they are, once they are open.
    fn ends(&self) -> (Vec<Vec<u8>>, String);

    /// Lets go of our ends: the transport is not taken.
    fn drop_ends(&mut self);

    /// Expects the peer's data connections.
    fn expect(&mut self, channels: u32) -> Result<proto::DataOpenReply, Refusal>;

    /// Begins a job.
    fn begin(&mut self, job: Job);
}

/// A greeting that succeeded. What was passed, proved or opened in it is with the side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    pub(crate) peer: PeerHello,
    pub(crate) read_domain: bool,
    pub(crate) path: Path,
    /// Why this path, or why no better one: for people.
    pub(crate) why: String,
    /// A better one that should work and does not, or stands idle.
    pub(crate) fell_back: Option<Path>,
}

impl Agreed {
    /// By shared memory.
    fn near(peer: PeerHello, read_domain: bool) -> Self {
        Self {
            peer,
            read_domain,
            path: Path::Shm,
            why: "one machine: descriptors came through".into(),
            fell_back: None,
        }
    }
}

/// How a greeting ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The connection counts.
    Met(Box<Agreed>),
    /// The dialler is to go to this address of the acceptor's machine; nothing came of this connection.
    Elsewhere(String),
}

/// One side of a greeting.
pub(crate) trait Machine {
    /// The first step: what is said before anything is heard.
    fn begin(&mut self, side: &mut impl Side);

    /// The next step, as long as it is not over.
    fn step(&mut self, event: Event, side: &mut impl Side) -> Result<(), Refusal>;

    /// It waits for the end of a job, not for a message.
    fn awaits_job(&self) -> bool;

    /// What has been said and heard.
    fn talk(&mut self) -> &mut Talk;

    /// Takes the next step; a refusal ends it, and is told to the peer.
    fn handle(&mut self, event: Event, side: &mut impl Side) {
        if let Err(refusal) = self.step(event, side) {
            self.talk().refuse(refusal);
        }
    }

    /// What it waits for, once all that was to be said is said.
    fn wants(&mut self) -> Wants {
        match (self.talk().outcome.is_some(), self.awaits_job()) {
            (true, _) => Wants::Nothing,
            (false, true) => Wants::Job,
            (false, false) => Wants::Message,
        }
    }

    /// How it ended. Asked once, when it wants nothing.
    fn outcome(&mut self) -> Result<Outcome, Refusal> {
        let outcome = self.talk().outcome.take();
        outcome.unwrap_or_else(|| Err(self.talk().broken("a greeting without an end")))
    }
}

#[cfg(test)]
mod tests;
