//! Verbs: a port over RDMA queue pairs, and everything between it and libibverbs.
//!
//! Knows devices, registered memory and queue pairs; not how two shards come to know each other's, nor what a frame
//! means. All of it works on a [`sys::VerbsTable`] of functions: the machine's libibverbs, or a test's.
//!
//! | file | |
//! |---|---|
//! | `sys/` | the library as it is: layouts, numbers, functions, and how they are found |
//! | `device.rs`, `domain.rs` | which device, port and address; what is registered, what the device tells |
//! | `completion.rs`, `shared_receive.rs`, `queue_pair.rs` | the three queues, without policy |
//! | `chain.rs` | the requests of one doorbell |
//! | `message.rs` | what travels |
//! | `incoming.rs`, `outgoing.rs` | landings and writes of one queue pair |
//! | `slots.rs` | memory for messages |
//! | `link.rs`, `port.rs` | one peer; all of them |
//! | `proof.rs` | whether the way to a peer works, for another thread to look at |
//! | `error.rs` | what can go wrong, and what to do about it |
//!
//! A small frame is one request, one message and one completion at the receiver. A large value goes straight from its
//! arena into the landing, by one write with immediate; above
//! [`VERBS_SLICE_BYTES`](crate::ground::limits::VERBS_SLICE_BYTES) in pieces, of which the last has
//! the immediate. What does not lie in registered memory is copied, 32 KiB at a time.
//!
//! The control plane exchanges [`QpEndpoint`]s (`control/greeting`); the engine opens devices, registers memory and
//! wires the port (`engine/transports/rdma.rs`). `tests/conformance` runs it over a library that is played in memory,
//! and in a Soft-RoCE guest by `scripts/soft-roce.sh`.
//!
//! **The way is proved before it is used.** [`VerbsPort::prove`] connects a queue pair whose first message each way is
//! a word of the fabric's own; a [`Proof`] says what is known. What a peer sends after its word, because it is ready
//! sooner, waits in its receive entries until [`VerbsPort::adopt`].

mod chain;
mod completion;
mod device;
mod domain;
mod error;
mod incoming;
mod link;
mod message;
mod outgoing;
mod port;
mod proof;
mod queue_pair;
mod shared_receive;
mod slots;
mod stage;
pub mod sys;

#[doc = include_str!("VERBS.md")]
pub mod story {}

pub use completion::CompletionQueue;
pub use device::{DeviceLimits, DevicePath, PathConfig, VerbsDevice};
pub use domain::{Access, Domain, Registration};
pub use error::{CompletionStatus, VerbsDeviceName, VerbsError};
pub use port::{VerbsConfig, VerbsPort};
pub use proof::Proof;
pub use queue_pair::{QpEndpoint, QueuePair, RetryPolicy, WorkKind, WorkRequest};
pub use shared_receive::{ReceiveEntry, SharedReceive};

use stage::StagingSlots;

use crate::ground::limits::{VERBS_REFILL, VERBS_WINDOW};

/// Slots of a queue pair's slab that are received into: what its peer is granted, and what waits to be posted again.
const RECEIVE_SLOTS: usize = VERBS_WINDOW as usize + VERBS_REFILL;

/// What a port has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerbsStats {
    /// Polls.
    pub polls: u64,
    /// Frames posted.
    pub frames: u64,
    /// Messages sent: frames, what their bodies go on in, and the fabric's own words.
    pub messages: u64,
    /// Requests: messages, and pieces of writes.
    pub requests: u64,
    /// Of them, those whose completion was asked for.
    pub signalled: u64,
    /// Calls that post requests.
    pub doorbells: u64,
    /// Completions looked at, of both kinds.
    pub completions: u64,
    /// Calls that post receive entries.
    pub refills: u64,
    /// Posts refused for want of room.
    pub refused_full: u64,
    /// Queue pairs that cannot be destroyed now: what they may touch is kept.
    pub quarantined: u64,
    /// Queue pairs destroyed before their device said that it was done with them: of the shared receive queue's entries
    /// those that it had taken are lost.
    pub undrained: u64,
}
