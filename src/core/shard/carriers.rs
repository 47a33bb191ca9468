//! Carriers: which carrier each of a shard's ports is, for the stages.

use crate::fabric::AnyPort;
use crate::trace::Carrier;

/// What carries the frames of each port.
pub fn carriers(ports: &[AnyPort]) -> Vec<Carrier> {
    ports.iter().map(carrier).collect()
}

fn carrier(port: &AnyPort) -> Carrier {
    match port {
        AnyPort::Loopback(_) | AnyPort::Shm(_) => Carrier::Shm,
        AnyPort::Tcp(_) => Carrier::Tcp,
        AnyPort::Verbs(_) => Carrier::Verbs,
        #[cfg(any(test, feature = "testing"))]
        AnyPort::Faulty(inner) => carrier(inner.inner()),
    }
}
