//! What protects a socket: a TLS session that both ends have agreed on.
//!
//! Knows sessions whose handshake is done; not the peers, nor their certificates.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use rustls::Connection;

use super::kernel;

/// What protects the bytes of a socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protection {
    /// Nothing.
    Clear,
    /// TLS 1.3, by this process.
    Process,
    /// TLS 1.3, by the kernel.
    Kernel,
}

/// A TLS session of a socket, its handshake done.
pub struct Secured(pub(super) RecordLayer);

/// What keeps a session's records.
pub(super) enum RecordLayer {
    Process(Box<Connection>),
    /// The socket has the keys.
    Kernel,
}

impl Secured {
    /// A session whose records this process keeps.
    #[must_use]
    pub fn new(session: Connection) -> Self {
        Self(RecordLayer::Process(Box::new(session)))
    }

    /// A session whose records the kernel keeps, where it can and the session lets its keys go
    /// (`enable_secret_extraction`); else this process keeps them. Nothing may have been read from the socket behind
    /// what the session was given.
    ///
    /// # Errors
    /// The kernel took its keys in a trial, and not now: the session is gone, and the socket useless.
    pub fn in_kernel(mut session: Connection, socket: &impl AsFd) -> io::Result<Self> {
        if !kernel::takes(&mut session) {
            return Ok(Self::new(session));
        }
        kernel::hand_over(session, socket)?;
        Ok(Self(RecordLayer::Kernel))
    }

    /// What keeps the records.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        match self.0 {
            RecordLayer::Process(_) => Protection::Process,
            RecordLayer::Kernel => Protection::Kernel,
        }
    }
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secured").field(&self.protection()).finish()
    }
}

impl Protection {
    /// For people.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Process => "encrypted: TLS 1.3 in the process",
            Self::Kernel => "encrypted: TLS 1.3 in the kernel",
        }
    }
}
