//! Trace: times hand-overs, and keeps the last events for a look back.
//!
//! It knows no links, no peers and no keys: what a shard says of a value comes in as plain numbers. The shard calls it,
//! and it never calls the shard.

mod carrier;
pub mod clock;
pub mod histogram;
pub mod recorder;
pub mod stages;
mod stamps;

pub use carrier::{Carrier, Path};
pub use clock::Clock;
pub use histogram::Histogram;
