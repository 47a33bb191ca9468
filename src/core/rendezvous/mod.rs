//! Rendezvous: the matching table of one shard, where values meet their receivers.
//!
//! It knows ground and nothing else: no clock, no I/O, no threads, and not what a value or a waiter is.
//!
//! A rendezvous point is a [`Slot`]: a step, an interned key, a frame and an iteration. Each point that was used has
//! a *record* that counts its values and holds its queue: of values, or of waiters, never of both (except offers,
//! whose bytes are still on their way: those stand in the queue of values while receivers wait for them).
//!
//! ```text
//!   Slot ──hash──▶ index ──▶ record, first line: slot, next ordinal, the first waiter
//!                  8 bytes          second line ─┬─ values:        node ▶ node ▶ …  (two lines a node)
//!                  an entry                      └─ more waiters:  node ▶ node ▶ …
//!                                                   step ─▶ its records, so that ending it needs no search
//! ```
//!
//! A record exists only while its step is alive; abort and finish unlink them all and leave a tombstone. So a caller
//! that finds a record need not look the step up, and nothing can slip in between the look and the insertion: a value
//! that meets a waiter costs one probe and one line. A slot whose key was used last at the same slot needs no probe.
//!
//! Each part has one owner: `records`, `values`, `waiters` (with `timers`), `steps` and `room`. The `table` is what can
//! be done with them, at one point (`table.rs`) and with many (`table/sweep.rs`).
#![forbid(unsafe_code)]

mod index;
mod names;
mod ordinal;
mod records;
mod refusal;
mod room;
mod slab;
mod steps;
mod table;
mod timers;
mod values;
mod waiters;

pub use names::{
    Arrived, Ended, Expired, KeyId, Limits, NextOrdinal, Origin, Pass, Pending, PendingKind,
    PushOutcome, QueuePosition, ReceiveOutcome, Requested, Sent, Slot, Stats, WaiterId, Withdrawn,
};
pub use ordinal::{distance, is_before};
pub use refusal::Refusal;
pub use table::Table;
