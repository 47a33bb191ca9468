//! What protects a socket: a TLS session that both ends have agreed on.
//!
//! Knows sessions whose handshake is done; not who shook hands, nor with what certificates.

use std::fmt;

use rustls::Connection;

/// What protects the bytes of a socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protection {
    /// Nothing.
    Clear,
    /// TLS 1.3, by this process.
    Process,
}

/// A TLS session of a socket, its handshake done, whose records this process keeps.
pub struct Secured(Box<Connection>);

impl Secured {
    /// A session whose handshake is done.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self(Box::new(connection))
    }

    /// Who keeps the records.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        Protection::Process
    }

    pub(super) fn into_connection(self) -> Connection {
        *self.0
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
        }
    }
}
