//! Carriers: what moves a link's frames, and which way a value takes by it.

use super::Path;
use super::recorder::Way;
use crate::fabric::AnyPort;

/// What carries a link's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carrier {
    Shm,
    Tcp,
    Verbs,
}

impl Carrier {
    pub(crate) fn of(port: &AnyPort) -> Self {
        match port {
            AnyPort::Loopback(_) | AnyPort::Shm(_) => Self::Shm,
            AnyPort::Tcp(_) => Self::Tcp,
            AnyPort::Verbs(_) => Self::Verbs,
            AnyPort::Faulty(inner) => Self::of(inner.inner()),
        }
    }

    /// The way of a value that it carries in a frame, or else by a lease or a copy.
    pub(crate) const fn way(self, path: Path) -> Way {
        match (self, path) {
            (_, Path::Local) => Way::Local,
            (Self::Shm, Path::Inline) => Way::ShmInline,
            (Self::Shm, Path::Lease) => Way::ShmLease,
            (Self::Shm, Path::Copy) => Way::ShmCopy,
            (Self::Tcp, Path::Inline) => Way::TcpInline,
            (Self::Tcp, Path::Lease | Path::Copy) => Way::TcpCopy,
            (Self::Verbs, Path::Inline) => Way::VerbsInline,
            (Self::Verbs, Path::Lease | Path::Copy) => Way::VerbsCopy,
        }
    }
}
