//! Testing: shards that are turned by hand, and what they are seen to hold.
//!
//! It starts no thread. It stands above the shard, whose insides it may look at, and no shard knows of it.

pub mod solo;

#[cfg(test)]
mod tests;
