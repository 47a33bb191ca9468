//! Mail: how other threads talk to a shard, and hear from it: commands, calls and notes, and where they wait.
//!
//! It carries, and does not know what is done with what it carries: the tables, links and tasks are the shard's. What
//! runs inside of a shard is a type argument here, `T`.

pub mod call;
mod delivery;
pub mod forks;
pub mod mailbox;
pub mod neighbour;
pub mod pending_send;
pub mod seat;
pub mod stops;
pub mod wait;

#[cfg(test)]
mod tests;

pub use call::{PendingItem, PendingWhat, ShardStats};
pub use delivery::{Handed, Received};
