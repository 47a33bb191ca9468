//! Room shard.
