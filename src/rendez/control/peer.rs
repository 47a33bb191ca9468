//! Peers in plain values: what a task offers, what it hears of another, and the handler that is told.
//!
//! Numbers, texts and descriptors only: what a segment, a link or a doorbell *does* is the business of other floors.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::fabric::{Protection, Secured};
use crate::ground::{Code, Incarnation, MemoryKind, Status, limits};

use super::service::Services;
use super::transport::{Ends, Offers, Path};

/// One connection with one peer. A peer that comes back has another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u32);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// How a task's shards wait for work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PollPolicy {
    /// Spins a while, then sleeps.
    #[default]
    Adaptive,
    /// Never sleeps.
    Busy,
    /// Sleeps whenever there is nothing to do.
    Park,
}

/// The numbers that both sides of a link size their tables by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerLimits {
    /// Frames that may be under way in one direction of a channel; a power of two.
    pub frame_window: u32,
    /// Cache lines of bodies that may be under way in one direction of a channel; a power of two.
    pub line_window: u32,
    /// Bytes of the longest body beside a frame.
    pub body_max: u32,
    /// Bytes of a usual arena segment.
    pub segment_bytes: u64,
    /// Segments the task may ever announce.
    pub segments_max: u32,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            frame_window: 1024,
            line_window: 4096,
            body_max: 16 << 10,
            segment_bytes: 64 << 20,
            segments_max: limits::SEGMENTS_PER_TASK_MAX,
        }
    }
}

/// What a peer said of itself in its hello, checked against every limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerHello {
    /// Its task.
    pub task: String,
    /// Its life; never zero.
    pub incarnation: Incarnation,
    /// Its shards; at least one.
    pub shards: u16,
    /// How they wait.
    pub poll_policy: PollPolicy,
    /// Its numbers.
    pub limits: PeerLimits,
    /// Its optional abilities, as it named them.
    pub features: Vec<String>,
    /// The abilities of its control plane, one bit each. Bits that are not known here mean nothing.
    pub abilities: u64,
    /// Transports that it lacks by their numbers, and why.
    pub lacks: Vec<(u32, String)>,
    /// Why it found no shared memory between the two, if it dialled us and tried; else empty.
    pub no_shm: String,
    /// Its user, by the kernel's word; `None` over TCP.
    pub user: Option<u32>,
    /// Its process, by the kernel's word, as numbered here; `None` for a process outside our process namespace, and
    /// over TCP.
    pub process: Option<i32>,
}

/// One segment of an arena, as a sealed memory file or a device driver's. The length is the sender's *claim*.
#[derive(Clone, Debug)]
pub struct SegmentOffer {
    /// The arena.
    pub arena: u16,
    /// The segment within it.
    pub segment: u16,
    /// Its bytes.
    pub len: u64,
    /// The file. Ours is the one that the segment has.
    pub fd: Arc<OwnedFd>,
    /// What kind of memory it is; for other than the host's the file is what its driver has exported.
    pub kind: MemoryKind,
    /// Of a device's memory, the device's identity.
    pub uuid: [u8; 16],
}

/// A doorbell: an eventfd that wakes one shard of its sender.
#[derive(Debug)]
pub struct DoorbellOffer {
    /// The shard that hears it.
    pub shard: u16,
    /// The eventfd.
    pub fd: OwnedFd,
}

/// The memory both sides of a link write, made by the dialler.
#[derive(Debug)]
pub struct LinkOffer {
    /// Its bytes.
    pub len: u64,
    /// The numbers its layout follows from, at most `LINK_NUMBERS_MAX`.
    pub numbers: Vec<u64>,
    /// The file.
    pub fd: OwnedFd,
}

/// What this task offers one peer.
#[derive(Debug, Default)]
pub struct LocalOffer {
    /// Its memory so far; sent only to peers of our read domain.
    pub segments: Vec<SegmentOffer>,
    /// Its shards' doorbells.
    pub doorbells: Vec<DoorbellOffer>,
}

/// What came from a peer in its greeting.
#[derive(Debug)]
pub struct Descriptors {
    /// The peer's memory so far; empty outside the read domain.
    pub segments: Vec<SegmentOffer>,
    /// The peer's doorbells.
    pub doorbells: Vec<DoorbellOffer>,
    /// The link, on the path of shared memory: ours if we dialled, else the peer's.
    pub link: Option<LinkOffer>,
    /// The data connections, on the path of TCP: one for each channel, in order.
    pub sockets: Vec<DataSocket>,
    /// Our ends, on a path whose ends are offered.
    pub ends: Option<Box<dyn Ends>>,
}

impl Descriptors {
    /// What protects the data connections: the least of them.
    pub(super) fn protection(&self) -> Protection {
        let of = |socket: &DataSocket| {
            let secured = socket.secured.as_ref();
            secured.map_or(Protection::Clear, Secured::protection)
        };
        self.sockets
            .iter()
            .map(of)
            .min()
            .unwrap_or(Protection::Clear)
    }
}

/// A connected TCP socket for one channel: non-blocking, without delay, given up by the system after a silence of
/// [`super::ControlConfig::lost_after`]. Nothing has been said on it that the other side has not read.
#[derive(Debug)]
pub struct DataSocket {
    /// The channel, counted as both sides count the channels of a link: the dialler's shard first.
    pub channel: u32,
    /// The socket.
    pub fd: OwnedFd,
    /// The TLS session that both sides have agreed on, where TLS is set.
    pub secured: Option<Secured>,
}

/// A peer is connected.
#[derive(Debug)]
pub struct PeerUp {
    /// The connection.
    pub peer: PeerId,
    /// The peer's task.
    pub task: String,
    /// The peer's life.
    pub incarnation: Incarnation,
    /// All it said of itself.
    pub hello: PeerHello,
    /// The way to it.
    pub path: Path,
    /// What protects what travels on it, where it leaves the machine.
    pub protection: Protection,
    /// Why this way and no better one: for people.
    pub path_why: String,
    /// The better path that was tried and unavailable, or stands idle: `path_why` says why.
    pub fell_back: Option<Path>,
    /// The descriptors of both.
    pub descriptors: Descriptors,
    /// True if we dialled.
    pub dialler: bool,
    /// True if both may map each other's memory.
    pub read_domain: bool,
    /// True if the peer's exit will be proved by its process handle. Where the kernel has none for it (another
    /// process namespace, or this very process) nothing will ever prove it.
    pub exit_provable: bool,
}

/// A connection is over.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PeerGone {
    /// The process is proved gone: nothing of it runs any more, and it reads no memory.
    ProcessExited,
    /// The connection is gone, which proves nothing about the process. [`PeerGone::ProcessExited`] may follow, once.
    ConnectionLost(Status),
    /// The peer said goodbye. [`PeerGone::ProcessExited`] may follow, once.
    Said {
        /// Its words.
        reason: String,
    },
}

impl PeerGone {
    /// True if the process is proved gone.
    #[must_use]
    pub const fn is_proof(&self) -> bool {
        matches!(self, Self::ProcessExited)
    }

    /// The status of whatever waited for `task`.
    #[must_use]
    pub fn status(&self, task: &str) -> Status {
        let message = match self {
            Self::ProcessExited => format!("task {task} is gone: its process has exited"),
            Self::ConnectionLost(status) => format!(
                "the connection to task {task} is lost: {}",
                status.message()
            ),
            Self::Said { reason } => format!("task {task} has left: {reason}"),
        };
        Status::new(Code::Unavailable, "PEER_LOST", message)
    }
}

/// The code that is asked and told. Every call comes from the one control thread, one at a time: an answer that takes
/// long keeps all peers waiting. Calls of [`super::Control`] from within are fine, except `stop`.
pub trait Handler: Send + Sync + 'static {
    /// Judges a peer that dials us, before its name is compared with those that are connected.
    ///
    /// # Errors
    /// A status refuses the peer.
    fn judge(&self, _peer: &PeerHello) -> Result<(), Status> {
        Ok(())
    }

    /// What this task offers `peer`. Asked at each greeting, and again where a segment was announced during one.
    ///
    /// # Errors
    /// A status refuses the peer.
    fn local(&self, peer: &PeerHello) -> Result<LocalOffer, Status>;

    /// Makes the memory of the link with `peer`, which we dialled.
    ///
    /// # Errors
    /// A status ends the dial.
    fn make_link(&self, peer: &PeerHello) -> Result<LinkOffer, Status>;

    /// Judges the link that `peer`, the dialler, has made. Nothing may be kept of it yet: it comes again with
    /// `peer_up`.
    ///
    /// # Errors
    /// A status refuses the peer.
    fn accept_link(&self, peer: &PeerHello, link: &LinkOffer) -> Result<(), Status>;

    /// How many data connections the path of TCP with `peer` has: the channels between both tasks' shards, a number on
    /// which both sides must agree.
    ///
    /// # Errors
    /// A status refuses the path.
    fn data_channels(&self, peer: &PeerHello) -> Result<u32, Status>;

    /// The transports whose ends are offered to peers, the best first. Asked at each greeting, and must not block.
    fn transports(&self) -> Vec<Arc<dyn Offers>> {
        Vec::new()
    }

    /// The services that peers may call; asked once, at the start.
    fn services(&self) -> Services {
        Services::new()
    }

    /// A peer is connected.
    fn peer_up(&self, up: PeerUp);

    /// A connected peer made another segment.
    fn segment_added(&self, peer: PeerId, segment: SegmentOffer);

    /// A connected peer made another segment, number `segment` of its arena `arena`, and this process had no descriptor
    /// left to take it: what lies there has to be copied.
    fn segment_missed(&self, peer: PeerId, arena: u16, segment: u16);

    /// A connection is over. After [`PeerGone::ConnectionLost`] and [`PeerGone::Said`] a second call with the same
    /// `peer` may bring [`PeerGone::ProcessExited`], unless the same life was up again since, which brings its own;
    /// after that none. `proved` is the last moment of which it is proved that the peer lived and heard us: a timeout
    /// for giving it up counts from there.
    fn peer_gone(&self, peer: PeerId, gone: PeerGone, proved: Instant);

    /// No second call of `peer_gone` will come for `peer`: too many others went after it.
    fn peer_forgotten(&self, _peer: PeerId) {}

    /// An attempt of a dial came to nothing, by `last`, and another follows.
    fn dial_goes_on(&self, _task: &str, _last: &Status) {}

    /// A dial is over without a connection. `status` says so; `last` is what befell its last attempt, by its own
    /// reason, and the same where that was a no for good.
    fn dial_failed(&self, task: &str, status: Status, last: Status);

    /// A peer that dialled us, or a data connection of one, was refused. One that is only put off, and an observer that
    /// was told who is here, are not.
    fn refused(&self, _reason: &'static str) {}
}
