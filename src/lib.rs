//! rendez hands a tensor from whoever made it to whoever needs it, by key.

pub mod sync;

pub mod ground;

pub mod proto;
pub mod wire;

pub mod channel;
pub mod rendezvous;

pub mod fabric;
pub mod memory;

pub mod shard;

pub mod control;
pub mod engine;

pub mod cli;
