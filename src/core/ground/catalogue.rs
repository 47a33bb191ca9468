//! The catalogue of reasons: every failure a user can meet, under a name that never changes.
//!
//! Knows nothing of how a failure comes about. A [`Status`](super::Status) carries one of these names beside its
//! code; programs may match on it and people may look it up here. Messages may be reworded, reasons may not, and
//! a reason that is no longer used stays in its table. Each subject has its table; [`ALL`] is all of them.

use super::Code;

/// What the catalogue says of a reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The stable name.
    pub reason: &'static str,
    /// The code that usually goes with it, and that [`Status::of`](super::Status::of) gives it.
    pub code: Code,
    /// What happened.
    pub meaning: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

/// What the catalogue says of `reason`, if it stands there.
#[must_use]
pub fn find(reason: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.reason == reason)
}

/// A subject's table, and a constant for each of its reasons.
macro_rules! catalogue {
    (
        $(#[$doc:meta])*
        $table:ident;
        $($reason:ident: $code:ident, $meaning:literal, $remedy:literal;)*
    ) => {
        $(
            #[doc = concat!("`", stringify!($code), "`: ", $meaning)]
            ///
            #[doc = $remedy]
            pub const $reason: &str = stringify!($reason);
        )*

        $(#[$doc])*
        ///
        /// | reason | code | what happened | what to do |
        /// |---|---|---|---|
        $(#[doc = concat!(
            "| `", stringify!($reason), "` | ", stringify!($code), " | ", $meaning, " | ", $remedy, " |"
        )])*
        pub const $table: &[super::Entry] = &[$(
            super::Entry { reason: $reason, code: super::Code::$code, meaning: $meaning, remedy: $remedy },
        )*];
    };
}

mod autograd;
mod files;
mod graphs;
mod peers;
mod rpc;
mod steps;

pub use autograd::*;
pub use files::*;
pub use graphs::*;
pub use peers::*;
pub use rpc::*;
pub use steps::*;

const TABLES: [&[Entry]; 6] = [OF_STEPS, OF_PEERS, OF_FILES, OF_GRAPHS, OF_RPC, OF_AUTOGRAD];
const COUNT: usize = OF_STEPS.len()
    + OF_PEERS.len()
    + OF_FILES.len()
    + OF_GRAPHS.len()
    + OF_RPC.len()
    + OF_AUTOGRAD.len();

/// Every reason: those [of steps](OF_STEPS), [of peers](OF_PEERS), [of files](OF_FILES), [of graphs](OF_GRAPHS), [of
/// remote calls](OF_RPC) and [of autograd](OF_AUTOGRAD).
pub const ALL: &[Entry] = &joined();

const fn joined() -> [Entry; COUNT] {
    let mut all = [TABLES[0][0]; COUNT];
    let (mut table, mut row, mut at) = (0, 0, 0);
    while at < COUNT {
        if row == TABLES[table].len() {
            (table, row) = (table + 1, 0);
        } else {
            all[at] = TABLES[table][row];
            (row, at) = (row + 1, at + 1);
        }
    }
    all
}

#[cfg(test)]
mod tests;
