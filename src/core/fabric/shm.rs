//! Shared memory: a port whose peers are processes of the same machine, over links (`link.rs`).
//!
//! Knows mapped memory for rings; everything else is the ring port's. How descriptors and doorbells reach the peer, and
//! whether a peer is alive, is the control plane's business: it closes the queue pairs of dead peers.

pub use super::link::{CHANNELS_MAX, Endpoint, LinkConfig, LinkError, LinkMapping, Side};

use super::doorbell::PeerWake;
use super::ring_port::{PortStats, RingPort};
use super::{Arrival, Caps, Landing, Port, PostRefusal, QpId, RefusedWrite, Write};
use crate::ground::{Nanos, Region};
use crate::memory::Buffer;
use crate::wire::Frame;

/// A shard's end of shared memory.
#[derive(Debug)]
pub struct ShmPort(RingPort);

impl ShmPort {
    /// A port without peers.
    #[must_use]
    pub fn new() -> Self {
        Self(RingPort::new())
    }

    /// Its rings.
    pub(super) const fn rings(&mut self) -> &mut RingPort {
        &mut self.0
    }

    /// See [`AnyPort::has_few_rings`](super::AnyPort).
    pub(super) const fn has_few_rings(&self) -> bool {
        self.0.has_few_rings()
    }

    /// Makes a queue pair of an endpoint. `wake` is the peer's doorbell, or [`PeerWake::NEVER_SLEEPS`] by its poll
    /// policy; of `caps` the port takes `read_domain` as it is and lowers `body_max` to what the ring holds. The
    /// mapping lives as long as any queue pair in it.
    ///
    /// # Errors
    /// The endpoint, when the port has [`super::QUEUE_PAIRS_MAX`] already.
    pub fn attach(
        &mut self,
        endpoint: Endpoint,
        wake: PeerWake,
        caps: Caps,
    ) -> Result<QpId, Endpoint> {
        self.0
            .attach(endpoint, wake, caps.body_max, caps.read_domain)
    }

    /// What it counted.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        self.0.stats()
    }
}

impl Default for ShmPort {
    fn default() -> Self {
        Self::new()
    }
}

super::ring_port::forward::forward_port!(ShmPort);
