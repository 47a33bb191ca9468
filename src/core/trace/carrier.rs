//! Carriers: what moves a link's frames, and the way that a value takes through it.

use super::recorder::Way;

/// The way a value came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Path {
    /// Within this process: the very tensor that was sent.
    Local,
    /// In a frame.
    Inline,
    /// Read in place: in the memory of the sender's engine, or in ours if the sender had it from here. What lay
    /// elsewhere the sender has copied into its engine's memory, once, and its `ShardStats` count that.
    Lease,
    /// Written into memory of ours.
    Copy,
}

impl Path {
    /// Its name, as users of the command and of Python read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Inline => "inline",
            Self::Lease => "lease",
            Self::Copy => "copy",
        }
    }
}

/// What carries a link's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// Shared memory, or a loopback.
    Shm,
    /// A stream socket.
    Tcp,
    /// RDMA.
    Verbs,
}

impl Carrier {
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
