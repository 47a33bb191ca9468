//! Rendezvous: the matching table of one shard, where values meet those who wait for them.
//!
//! It knows ground and nothing else: no clock, no I/O, no threads, and not what a value or a waiter is.
//!
//! A rendezvous point is a [`Slot`]: a step, an interned key, a frame and an iteration. Each point that was used has
//! a *record* that counts its values and holds its queue: of values, or of waiters, never of both (but for offers,
//! whose bytes are still on their way: those stand in the queue of values while receivers wait for them).
//!
//! ```text
//!   Slot ──hash──▶ index ──▶ record (one line) ─┬─ first value, in the record itself
//!                  8 bytes                      ├─ more values:  node ▶ node ▶ …
//!                  an entry                     └─ waiters:      node ▶ node ▶ …
//!                                                   step ─▶ its records, so that ending it needs no search
//! ```
//!
//! A record exists only while its step is alive; abort and finish unlink them all and leave a tombstone. So whoever
//! finds a record need not ask after the step, and nobody can slip in between the look and the insertion: a warm send
//! or receive is one probe of the index and one record.
#![forbid(unsafe_code)]

mod ending;
mod index;
mod local;
mod look;
mod names;
mod pushed;
mod queues;
mod refusal;
mod requested;
mod returned;
mod room;
mod steps;
mod table;
mod timers;

pub use ending::deadline_status;
pub use look::{Pending, PendingKind, Stats};
pub use names::{
    Arrival, Arrived, Ended, Expired, KeyId, Limits, Origin, Pass, Received, Requested, Sent, Slot,
    Ticket, WaiterId, Withdrawn,
};
pub use refusal::Refusal;
pub use table::Table;
