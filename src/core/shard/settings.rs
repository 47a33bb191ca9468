//! What a shard is told when it is made, and the observer that it tells of what happens.
//!
//! Plain values and one trait; nothing here decides anything.

use std::sync::Arc;

use crate::channel::Rules;
use crate::fabric::DownReason;
use crate::ground::device::TaskName;
use crate::ground::{Key, Status, StepId, limits};
use crate::rendezvous;

/// A shard's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Shards of this task.
    pub shards: u16,
    /// Bounds of the table.
    pub table: rendezvous::Limits,
    /// Keys known at once.
    pub keys: usize,
    /// Keys known before those that rest are forgotten.
    pub idle_keys: usize,
    /// Receives of application threads and neighbours that may wait.
    pub waiters: usize,
    /// Notes that may wait for a neighbour.
    pub shard_messages: usize,
    /// Frames in flight towards this shard, for each link.
    pub frame_window: u16,
    /// Lines of unrequested values that may wait here, for each link.
    pub line_window: u16,
    /// Values up to this many bytes (with their dimensions) travel in a frame; longer ones by lease or landing.
    pub inline_max: usize,
    /// Read large values of peers of the same read domain in place.
    pub lease: bool,
    /// Leases held at once.
    pub leases: u32,
    /// Bytes of landings open at once.
    pub landing_bytes: u64,
    /// Keys with a number on one link, in each direction.
    pub interned: usize,
    /// Values of ours on offer on one link.
    pub offers: usize,
    /// How long an acknowledgement waits for a frame to ride on.
    pub ack_delay_ns: u64,
    /// How long a peer that a key names may take to connect: what waits for it then fails, except receives with a
    /// deadline of their own, which wait until that.
    pub connect_timeout_ns: u64,
    /// One value in so many is timed through its stages, on the fastest ways; zero times none.
    pub sampling: u32,
    /// Bytes of the ring of last events.
    pub recorder_bytes: usize,
    /// Which rules of the protocol are on. All, outside simulations.
    pub rules: Rules,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            shards: 1,
            table: rendezvous::Limits::default(),
            keys: limits::KEYS,
            idle_keys: limits::IDLE_KEYS,
            waiters: limits::WAITS,
            shard_messages: limits::SHARD_MESSAGES,
            frame_window: limits::FRAME_WINDOW,
            line_window: limits::LINE_WINDOW,
            inline_max: limits::INLINE_MAX,
            lease: true,
            leases: limits::LEASES,
            landing_bytes: limits::LANDING_BYTES,
            interned: limits::INTERNED_KEYS,
            offers: limits::OFFERS,
            ack_delay_ns: limits::ACK_DELAY_NS,
            connect_timeout_ns: limits::CONNECT_TIMEOUT_NS,
            sampling: limits::STAGE_SAMPLING,
            recorder_bytes: limits::RECORDER_BYTES,
            rules: Rules::ALL,
        }
    }
}

/// What had not begun to leave for a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unsent {
    /// How many values.
    pub values: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a shard tells those above it. Called on cold paths, from the shard's thread; must not block.
pub trait Observer: Send + Sync {
    /// A key names a task that is not connected: dial it.
    fn peer_wanted(&self, task: &TaskName);
    /// Why a task that is wanted is not connected, as far as is known.
    fn why_absent(&self, _task: &TaskName) -> Option<String> {
        None
    }
    /// A step ended here, by a peer's word or a failure.
    fn step_ended(&self, step: StepId, status: &Status);
    /// A queue pair of that connection went down, and no other is there to take its place.
    fn link_down(&self, task: &TaskName, connection: u32, reason: DownReason);
    /// A peer broke the protocol on that connection, which is to end: its links here are closed already.
    fn violated(&self, task: &TaskName, connection: u32, status: &Status);
    /// A task of this shard panicked, and has ended.
    fn task_failed(&self, _status: &Status) {}
    /// This shard panicked, and is gone when this returns. Returns the status that all waiters get: the engine's first.
    fn shard_failed(&self, status: &Status) -> Status {
        status.clone()
    }
    /// A receive's deadline passed before a value was there.
    fn deadline_missed(&self, _step: StepId, _key: &Key) {}
    /// Values that had not begun to leave for that peer were dropped: told once until it has been there.
    fn dropped(&self, _task: &TaskName, _what: Unsent, _why: &Status) {}
    /// The shard's arena grew.
    fn segment_added(&self, segment: Arc<crate::memory::Segment>);
}
