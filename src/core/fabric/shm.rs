//! Shared memory: a port over rings whose peers are processes of the same machine, over links (`link.rs`).
//!
//! How descriptors and doorbells reach the peer, and whether a peer is alive, is the control plane's business: it
//! closes the queue pairs of dead peers.

pub use super::link::{CHANNELS_MAX, Endpoint, LinkConfig, LinkError, LinkMapping, Side};
pub use super::ring_port::RingPort as ShmPort;
