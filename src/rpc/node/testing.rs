//! What tests simulate with: worlds of workers, and the network between them. Nothing else uses it.

pub(crate) mod network;
pub(crate) mod world;
