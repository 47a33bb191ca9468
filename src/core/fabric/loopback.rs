//! Loopback: a port over rings whose peers are ports of the same process, in any thread. Simulations run over it, too.

pub use super::ring_port::RingPort as LoopbackPort;

use super::doorbell::PeerWake;
use super::lane::Geometry;
use super::link::Endpoint;
use super::{BODY_MAX, Caps, QpId};

const CAPS: Caps = Caps {
    body_max: BODY_MAX,
    one_sided: false,
    read_domain: true,
};

impl LoopbackPort {
    /// Two ends of one channel within a process, for two ports, or for one that talks to itself. `None` for measures
    /// out of bounds.
    #[must_use]
    pub fn endpoints(geometry: Geometry) -> Option<(Endpoint, Endpoint)> {
        geometry.is_valid().then(|| Endpoint::heap_pair(geometry))
    }

    /// Makes a queue pair of such an end; `wake` is the doorbell of the other end's owner.
    ///
    /// # Errors
    /// As [`LoopbackPort::attach`].
    pub fn attach_local(&mut self, endpoint: Endpoint, wake: PeerWake) -> Result<QpId, Endpoint> {
        self.attach(endpoint, wake, CAPS)
    }

    /// Connects two ports that never sleep. `None` for measures out of bounds, or when a port is full.
    pub fn pair(one: &mut Self, other: &mut Self, geometry: Geometry) -> Option<(QpId, QpId)> {
        let (maker, opener) = Self::endpoints(geometry)?;
        let first = one.attach_local(maker, PeerWake::NEVER_SLEEPS).ok()?;
        let second = other.attach_local(opener, PeerWake::NEVER_SLEEPS).ok()?;
        Some((first, second))
    }
}
