//! Fabric: moves frames and bytes between shards, whatever lies between them. A machine room.
//!
//! Knows bytes, landings and completions; not keys, steps or what a frame means (beyond its body's length).
//!
//! A [`Port`] is a shard's end of one kind of fabric. It has queue pairs, one to each peer, named by [`QpId`]. Nothing
//! here blocks, nothing allocates once warm, and every [`Buffer`] and [`Tensor`] given in comes back exactly once.
//!
//! | given | comes back as |
//! |---|---|
//! | a frame and its body | nothing: copied before `post_send` returns |
//! | `Write::source` | `Arrival::Wrote`, or in the refusal |
//! | a buffer in `open_landing` | `Arrival::Landed` or `Arrival::Quiet`, one of them; or in the refusal |
//!
//! A one-sided write puts bytes into a buffer that the receiver has opened as a landing. Where the fabric has no such
//! operation (loopback, shm, tcp) it is emulated: the bytes travel as the fabric's own chunk frames, and the receiver's
//! port puts them into the landing that it holds (`landings.rs`, `writes.rs`).
//!
//! | file | |
//! |---|---|
//! | `ring.rs`, `lane.rs` | the frame ring: algorithm, and memory |
//! | `link.rs` | shared memory for channels between two processes |
//! | `ring_port.rs`, `queue_pair.rs`, `landings.rs`, `writes.rs` | a port over rings: loopback and shm in common |
//! | `loopback.rs`, `shm.rs` | its names for rings within a process, and between two |
//! | `tcp.rs`, `tcp/` | a port over sockets, and the frames as a byte stream |
//! | `verbs/` | a port over RDMA queue pairs |
//! | `faulty.rs` | a port that misbehaves, by seed, for simulations |
//! | `fuzz.rs` | a port over rings whose peer misbehaves, for fuzzing |
//! | `doorbell.rs` | waking a shard that sleeps |
//! | `descriptors.rs` | what a peer's descriptor is |
//! | `listeners.rs` | sockets that children of `fork` close |
//! | `spsc.rs` | the typed queue between two shards of one process |
#![allow(clippy::result_large_err)] // A refusal hands the item back by value: a box would allocate.

use std::os::fd::BorrowedFd;

use crate::ground::{Nanos, Region};
use crate::memory::{Buffer, Tensor};
use crate::wire::{Frame, INLINE_BODY_MAX};

mod descriptors;
pub mod doorbell;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod landings;
mod lane;
pub mod link;
#[doc(hidden)]
pub mod listeners;
pub mod loopback;
mod queue_pair;
pub mod ring;
mod ring_port;
pub mod shm;
pub mod spsc;
#[cfg(test)]
#[path = "spsc/tests.rs"]
mod spsc_tests; // Not within `spsc.rs`, which a loom test includes by path.
pub mod tcp;
pub mod verbs;
mod writes;

pub use doorbell::{Doorbell, DoorbellError, PeerWake};
#[cfg(any(test, feature = "testing"))]
pub use faulty::FaultyPort;
pub use lane::Geometry;
pub use link::{Endpoint, Side};
pub use loopback::LoopbackPort;
pub use ring_port::{PortStats, RingPort};
pub use shm::ShmPort;
pub use tcp::{KernelTlsMissing, Protection, Secured, TcpConfig, TcpError, TcpPort, kernel_tls};
pub use verbs::VerbsPort;

/// Frame kinds (byte 4 of word 0) from here on are the fabric's own, and never shown above it.
pub const FABRIC_KIND_MIN: u8 = 0xf0;

/// The longest body of a frame, on rings and on streams. What is longer goes by a write, or by a lease: from some
/// 16 KiB on a copy costs more than the extra frame of either.
pub const BODY_MAX: usize = 16 << 10;

/// Landings open at once in one queue pair: indices are below it. Those above name a landing by the request it is
/// for, so there are as many as requests.
pub const LANDINGS_MAX: u32 = crate::ground::limits::REQUESTS as u32;

/// Writes in progress at once in one queue pair, each way.
pub const WRITES_MAX: usize = 64;

/// Queue pairs of one port.
pub const QUEUE_PAIRS_MAX: usize = 4096;

/// Names a queue pair within its port. Not used again for another before 2¹⁶ others had its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QpId(pub u32);

/// The poster's own name for a write; the fabric only hands it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// What a queue pair can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// The longest body of a frame, in bytes.
    pub body_max: usize,
    /// One-sided writes are the hardware's; otherwise emulated.
    pub one_sided: bool,
    /// The peer's arenas may be mapped, so that leases are possible.
    pub read_domain: bool,
}

impl Caps {
    /// What a queue pair can do that is down, or that there is not.
    pub(crate) const CLOSED: Self = Self {
        body_max: 0,
        one_sided: false,
        read_domain: false,
    };

    /// True for a frame that a queue pair takes: none of the fabric's own, with a body as long as it says, and not too
    /// long. A body in the tail needs no slices.
    #[inline]
    pub(crate) const fn takes(&self, frame: &Frame, body: [&[u8]; 2]) -> bool {
        let len = body[0].len() + body[1].len();
        let told = frame.body_len() as usize;
        let agrees = len == told || (len == 0 && told <= INLINE_BODY_MAX);
        frame.kind() < FABRIC_KIND_MIN && agrees && told <= self.body_max
    }
}

/// Why a post was refused. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostRefusal {
    /// No room now; there will be, and a shard that sleeps till then is woken: see [`Port::arm`].
    #[error("no room now")]
    Full,
    /// The body is longer than the queue pair takes, or not as long as its frame says, or the frame's kind is one of
    /// the fabric's own: a caller's bug, which waiting does not mend.
    #[error("the queue pair does not accept a frame or body like this one")]
    Malformed,
    /// No such queue pair, or it is down.
    #[error("the queue pair is down")]
    Closed,
    /// The source of a write lies in memory that this port cannot read: a device's.
    #[error("the port cannot read the memory of the write's source")]
    Unreadable,
}

impl PostRefusal {
    /// Why `write` is handed back.
    pub(crate) const fn of(self, write: Write) -> RefusedWrite {
        RefusedWrite {
            refusal: self,
            write,
        }
    }
}

/// A refused write, handed back.
#[derive(Debug)]
pub struct RefusedWrite {
    /// Why.
    pub refusal: PostRefusal,
    /// The write as it was posted.
    pub write: Write,
}

/// Names a landing within a queue pair. The opener chooses both numbers; an index is in use by one landing at a time,
/// and a new generation makes writes to the one before recognisable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Landing {
    /// Below [`LANDINGS_MAX`].
    pub index: u32,
    /// Told apart from the index's earlier landings.
    pub generation: u32,
}

/// A one-sided write.
#[derive(Debug)]
pub struct Write {
    /// The queue pair it goes out by.
    pub qp: QpId,
    /// Comes back in [`Arrival::Wrote`].
    pub token: Token,
    /// What; held until [`Arrival::Wrote`].
    pub source: Tensor,
    /// The landing at the peer.
    pub landing: Landing,
    /// Where the peer says the landing lies.
    pub region: Region,
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The bytes are in the landing.
    Done,
    /// The queue pair went down first; the bytes may have arrived or not.
    Flushed,
    /// The peer has no such landing, or not that range: nothing of it stays.
    Refused,
}

/// Why a queue pair went down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DownReason {
    /// Closed on this side.
    Closed,
    /// Closed by the peer.
    PeerClosed,
    /// The peer broke the ring's or the fabric's rules.
    Corrupt,
    /// The connection broke, or the peer's process ended without a word.
    Reset,
    /// The peer acknowledged nothing for as long as a peer may.
    TimedOut,
}

/// What a poll brings.
#[derive(Debug)]
pub enum Arrival<'a> {
    /// A frame, in the order posted.
    Frame {
        /// The queue pair it came by.
        qp: QpId,
        /// A private copy; the stamp is zero.
        frame: &'a Frame,
        /// The body, wherever it travelled: [`Frame::body_len`] bytes. Valid in the call only; a private copy too, so
        /// it does not change under its reader.
        body: &'a [u8],
    },
    /// A one-sided write is complete: the buffer comes back.
    Landed {
        /// The queue pair it came by.
        qp: QpId,
        /// Where.
        landing: Landing,
        /// Bytes written, from the start of the written range.
        len: u64,
        /// The landing's buffer.
        buffer: Buffer,
    },
    /// A closed landing that nothing can write to any more: the buffer comes back.
    Quiet {
        /// Whose.
        qp: QpId,
        /// Which.
        landing: Landing,
        /// The landing's buffer; its bytes are undefined.
        buffer: Buffer,
    },
    /// A write of ours has ended: the source comes back.
    Wrote {
        /// The queue pair it goes out by.
        qp: QpId,
        /// Its token.
        token: Token,
        /// What was written.
        source: Tensor,
        /// How it ended.
        outcome: Outcome,
    },
    /// The queue pair is down. Comes last, after everything it held came back; the id is dead from here on.
    Down {
        /// Which.
        qp: QpId,
        /// Why.
        reason: DownReason,
    },
}

/// A shard's end of one fabric. No call blocks; only connecting allocates.
pub trait Port {
    /// What a queue pair can do; all nothing for one that is down.
    fn caps(&self, qp: QpId) -> Caps;

    /// Posts a frame; its body, [`Frame::body_len`] bytes, is gathered from two slices and copied before return. A
    /// body of up to 16 bytes is put in the frame's tail, or lies there already when both slices are empty.
    ///
    /// # Errors
    /// [`PostRefusal`]; nothing was taken.
    fn post_send(&mut self, qp: QpId, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal>;

    /// Posts a one-sided write; [`Arrival::Wrote`] follows. No order is promised, among writes or between them and
    /// frames.
    ///
    /// # Errors
    /// [`RefusedWrite`] hands the write back.
    fn post_write(&mut self, write: Write) -> Result<(), RefusedWrite>;

    /// Opens `buffer` for one write by the peer: [`Arrival::Landed`] follows, or [`Arrival::Quiet`] after
    /// [`Port::close_landing`]. The region is what the peer must name.
    ///
    /// # Errors
    /// The buffer itself, when the queue pair is down, or the index too large or in use.
    fn open_landing(
        &mut self,
        qp: QpId,
        landing: Landing,
        buffer: Buffer,
    ) -> Result<Region, Buffer>;

    /// Closes a landing: Landed or Quiet follows, exactly one. Nothing happens for one that is not open.
    fn close_landing(&mut self, qp: QpId, landing: Landing);

    /// Gives what has arrived to `sink`, at most `budget` arrivals, and moves writes on. Returns how much was done, in
    /// arrivals and steps of the fabric's own; 0 when there was nothing to do.
    fn poll<S: FnMut(Arrival<'_>)>(&mut self, now: Nanos, budget: usize, sink: &mut S) -> usize;

    /// As [`Port::poll`], of what this queue pair has brought, also if it is not its turn: its peer is about to be
    /// given up. Fabrics that have one place for all look there.
    fn poll_one<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        now: Nanos,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        let _ = qp;
        self.poll(now, budget, sink)
    }

    /// Rings the doorbell of every peer that was posted to since the last time, and may sleep. Once per burst of
    /// posts; `poll` and `arm` do it too.
    fn flush(&mut self);

    /// True if `flush` has something to do, or may have.
    fn must_flush(&self) -> bool {
        true
    }

    /// Closes a queue pair: everything it holds comes back, and then [`Arrival::Down`].
    fn close(&mut self, qp: QpId);

    /// Before sleep, with the shard's doorbell armed: true if nothing has arrived and nothing is left to move on. From
    /// then on whatever arrives wakes the shard, and so does room for what was [refused](PostRefusal::Full).
    fn arm(&mut self) -> bool;

    /// After sleep.
    fn disarm(&mut self);

    /// What a sleeper must wait for beside its doorbell: readable as long as anything has come that `arm` does not
    /// know of, or something that was left unsent can go. `None` if every poster rings the doorbell.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Any port: matched once per burst, so that the shard needs neither `dyn` nor a type parameter.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // A shard has a handful of ports, made once.
pub enum AnyPort {
    /// Within a process.
    Loopback(RingPort),
    /// Between processes of a machine.
    Shm(RingPort),
    /// Between machines, or wherever a socket goes.
    Tcp(TcpPort),
    /// Between machines with RDMA.
    Verbs(Box<VerbsPort>),
    /// Any other, misbehaving.
    #[cfg(any(test, feature = "testing"))]
    Faulty(Box<FaultyPort>),
}

macro_rules! each {
    ($any:expr, $port:ident => $call:expr) => {
        match $any {
            AnyPort::Loopback($port) => $call,
            AnyPort::Shm($port) => $call,
            AnyPort::Tcp($port) => $call,
            AnyPort::Verbs($port) => $call,
            #[cfg(any(test, feature = "testing"))]
            AnyPort::Faulty($port) => $call,
        }
    };
}

impl AnyPort {
    /// What it counted, if it is one of RDMA.
    #[must_use]
    pub fn verbs_stats(&self) -> Option<verbs::VerbsStats> {
        match self {
            Self::Verbs(port) => Some(port.stats()),
            #[cfg(any(test, feature = "testing"))]
            Self::Faulty(port) => port.inner().verbs_stats(),
            _ => None,
        }
    }

    /// The port over rings that it is, if it is one.
    #[inline(always)]
    const fn as_rings(&mut self) -> Option<&mut RingPort> {
        match self {
            Self::Loopback(port) | Self::Shm(port) => Some(port),
            _ => None,
        }
    }

    /// As [`Port::post_send`], of a frame whose body, if it has one, lies in its tail. Says whether the port must be
    /// flushed.
    ///
    /// # Errors
    /// As [`Port::post_send`].
    #[inline(always)]
    pub(crate) fn post_short(&mut self, qp: QpId, frame: &Frame) -> Result<bool, PostRefusal> {
        match self.as_rings() {
            Some(port) => port.post_short(qp, frame),
            None => self.post_short_elsewhere(qp, frame),
        }
    }

    #[inline(never)]
    fn post_short_elsewhere(&mut self, qp: QpId, frame: &Frame) -> Result<bool, PostRefusal> {
        self.post_send(qp, frame, [&[], &[]])?;
        Ok(self.must_flush())
    }

    /// True if it looks at a few rings of memory and no more: then arrivals can be taken one by one at little cost, and
    /// no peer waits for another's.
    pub(crate) const fn has_few_rings(&self) -> bool {
        match self {
            Self::Loopback(port) | Self::Shm(port) => port.has_few_rings(),
            #[cfg(any(test, feature = "testing"))]
            Self::Faulty(port) => port.inner().has_few_rings(),
            Self::Tcp(_) | Self::Verbs(_) => false,
        }
    }
}

impl Port for AnyPort {
    fn caps(&self, qp: QpId) -> Caps {
        each!(self, port => port.caps(qp))
    }

    #[inline(always)]
    fn post_send(&mut self, qp: QpId, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal> {
        each!(self, port => port.post_send(qp, frame, body))
    }

    fn post_write(&mut self, write: Write) -> Result<(), RefusedWrite> {
        each!(self, port => port.post_write(write))
    }

    fn open_landing(
        &mut self,
        qp: QpId,
        landing: Landing,
        buffer: Buffer,
    ) -> Result<Region, Buffer> {
        each!(self, port => port.open_landing(qp, landing, buffer))
    }

    fn close_landing(&mut self, qp: QpId, landing: Landing) {
        each!(self, port => port.close_landing(qp, landing));
    }

    #[inline(always)]
    fn poll<S: FnMut(Arrival<'_>)>(&mut self, now: Nanos, budget: usize, sink: &mut S) -> usize {
        match self.as_rings() {
            Some(port) => port.poll(now, budget, sink),
            None => each!(self, port => port.poll(now, budget, sink)),
        }
    }

    fn poll_one<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        now: Nanos,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        each!(self, port => port.poll_one(qp, now, budget, sink))
    }

    #[inline(always)]
    fn flush(&mut self) {
        each!(self, port => port.flush());
    }

    #[inline(always)]
    fn must_flush(&self) -> bool {
        each!(self, port => port.must_flush())
    }

    fn close(&mut self, qp: QpId) {
        each!(self, port => port.close(qp));
    }

    fn arm(&mut self) -> bool {
        each!(self, port => port.arm())
    }

    fn disarm(&mut self) {
        each!(self, port => port.disarm());
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(self, port => port.wake_fd())
    }
}
