//! Calls: what the control plane and the other shards of a process ask of a shard.
//!
//! Calls are rare and may carry an answer; notes between shards are the hot path of an in-shard task whose key
//! belongs to a neighbour.

use std::sync::Arc;

use super::delivery::Handed;
use super::seat::Seat;
use super::wait::WaitCell;
use crate::fabric::QpId;
use crate::fabric::verbs::VerbsStats;
use crate::ground::device::TaskName;
use crate::ground::{FrameIter, Incarnation, Key, Nanos, Status, StepId, Traceparent};
use crate::memory::{MappedSegment, Tensor};
use crate::rendezvous::KeyId;
use crate::trace::stages::PeerClock;

/// How a link of a peer is made on this shard, in the shard's own thread, so that its pages are near.
pub type Attach = Box<dyn FnOnce(&mut [crate::fabric::AnyPort]) -> Option<(usize, QpId)> + Send>;

/// Something to be done with a shard's ports, in its own thread.
pub(crate) type PortWork = Box<dyn FnOnce(&mut [crate::fabric::AnyPort]) + Send>;

/// A segment of a peer's arena, mapped.
#[derive(Clone, Debug)]
pub struct PeerSegment {
    /// Its arena.
    pub arena: u16,
    /// Its number among them.
    pub index: u16,
    /// Where it is mapped.
    pub mapped: Arc<MappedSegment>,
}

/// A peer has been greeted: what this shard must know.
pub struct PeerUp {
    /// Which task.
    pub task: TaskName,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// How many shards it has.
    pub shards: u16,
    /// Each side may map the other's memory.
    pub read_domain: bool,
    /// Which of our devices, by number, the peer can import memory of: a bit for each of the first 64.
    pub devices: u64,
    /// Which connection this is: told back when a link of it goes down.
    pub connection: u32,
    /// The peer's arenas, mapped.
    pub segments: Vec<PeerSegment>,
    /// For each shard of the peer that shares a link with this one: its index and how to attach.
    pub links: Vec<(u16, Attach)>,
}

shown! { PeerUp { task } }

/// What control asks of a shard whose tasks are `T`.
pub enum Call<T> {
    /// A peer is there.
    PeerUp(Box<PeerUp>),
    /// A peer's connection is lost, and is made again if it can be: what waits goes on waiting until then.
    PeerAway {
        /// Which task.
        task: TaskName,
        /// What waiters hear.
        status: Status,
        /// When it is given up.
        until: Nanos,
    },
    /// A peer is gone for good: it exited, was given up, or cannot be connected to.
    PeerLost {
        /// Which task.
        task: TaskName,
        /// What waiters hear.
        status: Status,
    },
    /// A life of a peer is proved over: it reads nothing of ours any more.
    PeerExited {
        /// Which task.
        task: TaskName,
        /// Which life of it.
        incarnation: Incarnation,
    },
    /// A peer's arena grew.
    PeerSegment {
        /// Which task.
        task: TaskName,
        /// The life of it whose memory it is.
        incarnation: Incarnation,
        /// The segment.
        segment: PeerSegment,
    },
    /// Queue pairs are to be made or memory made known.
    Ports(PortWork),
    /// How a peer's counter compares with ours.
    PeerClock {
        /// Which task.
        task: TaskName,
        /// The clock.
        clock: PeerClock,
    },
    /// A step belongs to a trace of its caller's.
    Traced {
        /// Which step.
        step: StepId,
        /// What its spans belong to.
        trace: Traceparent,
    },
    /// A step ends.
    Abort {
        /// Which step.
        step: StepId,
        /// What waiters hear.
        status: Status,
    },
    /// A step is done: its clean-up.
    Finish {
        /// Which step.
        step: StepId,
    },
    /// A step is to end by then.
    Deadline {
        /// Which step.
        step: StepId,
        /// Until when.
        deadline: Nanos,
        /// The waiter for the outcome.
        answer: Arc<WaitCell<()>>,
    },
    /// Run a task on this shard.
    Spawn {
        /// The task.
        task: T,
        /// Where others wake it.
        seat: Arc<Seat>,
    },
    /// Call a task that was woken.
    Wake {
        /// Where others wake it.
        seat: Arc<Seat>,
    },
    /// What is pending.
    Pending {
        /// The waiter for the outcome.
        answer: Arc<WaitCell<Vec<PendingItem>>>,
    },
    /// What was counted.
    Stats {
        /// The waiter for the outcome.
        answer: Arc<WaitCell<ShardStats>>,
    },
    /// Stop: drain until the deadline, then fail what is left.
    Stop {
        /// Until when.
        deadline: Nanos,
    },
    /// Another shard of this engine panicked: everything ends with this.
    Fail {
        /// What waiters hear.
        status: Status,
    },
}

shown! { <T> Call<T> {} }

/// What has begun and not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PendingWhat {
    /// A receive without its value.
    Receive,
    /// A value that was not received.
    Value,
    /// A send that waits for room.
    Send,
}

/// A parked value, a waiting receive, or a waiting send.
#[derive(Clone, Debug)]
pub struct PendingItem {
    /// The step.
    pub step: StepId,
    /// The key, with its loop frame and iteration.
    pub key: Key,
    /// What it is.
    pub what: PendingWhat,
    /// How long it has been so.
    pub age_ns: u64,
    /// Bytes parked, or to be sent.
    pub bytes: u64,
    /// How many of the same kind wait at this key.
    pub count: u32,
}

/// What a shard has counted, and what it holds now.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardStats {
    /// The shard.
    pub index: u16,
    /// Turns of the loop.
    pub turns: u64,
    /// Turns in which nothing happened.
    pub idle_turns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Times that a thread which sent or waited took it, to turn it itself.
    pub driven: u64,
    /// Values handed over here.
    pub delivered: u64,
    /// Of these, values that were not read: they went back to their keys.
    pub returned: u64,
    /// Values dropped because their step had ended.
    pub dropped: u64,
    /// Values parked now.
    pub parked: u64,
    /// Bytes parked now.
    pub parked_bytes: u64,
    /// Bytes on offer to peers, or lent to them, that are kept here until they have let go: they count against the
    /// bounds of what is parked.
    pub offered_bytes: u64,
    /// Sends that wait for room now.
    pub waiting_sends: u64,
    /// Receives waiting now.
    pub waiting: u64,
    /// Leases of peers' memory held now.
    pub leases: u64,
    /// Landings open now, in bytes.
    pub landing_bytes: u64,
    /// Bytes of this shard's arena in use and mapped.
    pub arena_in_use: u64,
    /// See `arena_in_use`.
    pub arena_mapped: u64,
    /// True if the arena lies in huge pages.
    pub arena_is_huge: bool,
    /// Peers that are up.
    pub peers_up: u64,
    /// Requests, offers, writes and frames that links still owe.
    pub owed: u64,
    /// References to another generation that were refused.
    pub stale: u64,
    /// Connections closed because the peer broke the protocol.
    pub violations: u64,
    /// Values copied into the arena for a peer to read, because their memory is not the engine's.
    pub copied_foreign: u64,
    /// … because they are leases of another peer's memory, or of this one's that cannot go back as they are.
    pub copied_leased: u64,
    /// Leases that went back to whose memory they are, and were not copied.
    pub sent_back: u64,
    /// Recalls of leases heard.
    pub recalls: u64,
    /// Receives whose deadline passed while nothing had been sent, within this task.
    pub missed_here: u64,
    /// … while their peer was not connected.
    pub missed_unconnected: u64,
    /// … while nothing had come from their peer.
    pub missed_unsent: u64,
    /// … while the bytes of what their peer offers were on their way.
    pub missed_fetching: u64,
    /// Time spent in turns that did something, in nanoseconds.
    pub busy_ns: u64,
    /// Time spent in turns that found nothing to do.
    pub idle_ns: u64,
    /// Time spent asleep.
    pub slept_ns: u64,
    /// The longest turn that did something, since the start.
    pub longest_turn_ns: u64,
    /// Frames handed to the fabrics.
    pub frames_sent: u64,
    /// Frames heard from peers.
    pub frames_received: u64,
    /// Values that had to wait because a link had no credit for them.
    pub no_credit: u64,
    /// Lines of credit that peers' shards grant us now, over all links.
    pub credit_lines: u64,
    /// What its RDMA port counted, where it has one.
    pub verbs: VerbsStats,
}

/// A neighbour's number for a key, or the key itself while the number is not known.
#[derive(Debug)]
pub(crate) enum MessageKey {
    /// The receiver's number.
    Id(KeyId),
    /// The key, and the sender's number for it, to be told the receiver's.
    Key(Key, KeyId),
}

/// What one shard tells another of the same process.
#[derive(Debug)]
pub(crate) enum ShardMessage {
    /// Hand a value over for me.
    Send {
        key: MessageKey,
        step: StepId,
        at: FrameIter,
        tensor: Tensor,
        is_dead: bool,
    },
    /// Wait for a value for me; `wait` is my ticket, packed.
    Recv {
        key: MessageKey,
        step: StepId,
        at: FrameIter,
        wait: u32,
        deadline: Nanos,
        /// The life of the source that my key names.
        expected: Incarnation,
    },
    /// I wait no longer.
    Cancel { wait: u32 },
    /// What you waited for.
    Deliver {
        wait: u32,
        outcome: Result<Handed, Status>,
    },
    /// What you delivered, and was not read here.
    Unread(Handed),
    /// My number for your key, if there was room for it.
    Interned { theirs: Option<KeyId>, mine: KeyId },
    /// I call your key by its number no more, after you have told it so often.
    Forget { key: KeyId, told: u32 },
    /// A step ended: the home shard has fixed the status.
    Abort { step: StepId, status: Status },
    /// I am asked to stop, and owe nothing any more. Said once.
    Drained,
}
