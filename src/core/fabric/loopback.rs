//! Loopback: a port whose peers are ports of the same process, in any thread. Simulations run over it, too.
//!
//! Knows heap memory for rings; everything else is the ring port's.

use super::doorbell::PeerWake;
use super::lane::Geometry;
use super::link::Endpoint;
use super::ring_port::{PortStats, RingPort};
use super::{Arrival, BODY_MAX, Caps, Landing, Port, PostRefusal, QpId, RefusedWrite, Write};
use crate::ground::{Nanos, Region};
use crate::memory::Buffer;
use crate::wire::Frame;

/// A shard's end of loopback.
#[derive(Debug)]
pub struct LoopbackPort(RingPort);

impl LoopbackPort {
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

    /// Two ends of one channel, for two ports, or for one that talks to itself. `None` for measures out of bounds.
    #[must_use]
    pub fn endpoints(geometry: Geometry) -> Option<(Endpoint, Endpoint)> {
        geometry.is_valid().then(|| Endpoint::heap_pair(geometry))
    }

    /// Makes a queue pair of an endpoint; `wake` is the doorbell of the other end's owner.
    ///
    /// # Errors
    /// The endpoint, when the port has [`super::QUEUE_PAIRS_MAX`] already.
    pub fn attach(&mut self, endpoint: Endpoint, wake: PeerWake) -> Result<QpId, Endpoint> {
        self.0.attach(endpoint, wake, BODY_MAX, true)
    }

    /// Connects two ports that never sleep. `None` for measures out of bounds, or when a port is full.
    pub fn pair(one: &mut Self, other: &mut Self, geometry: Geometry) -> Option<(QpId, QpId)> {
        let (maker, opener) = Self::endpoints(geometry)?;
        let first = one.attach(maker, PeerWake::NEVER_SLEEPS).ok()?;
        let second = other.attach(opener, PeerWake::NEVER_SLEEPS).ok()?;
        Some((first, second))
    }

    /// What it counted.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        self.0.stats()
    }
}

impl Default for LoopbackPort {
    fn default() -> Self {
        Self::new()
    }
}

super::ring_port::forward::forward_port!(LoopbackPort);
