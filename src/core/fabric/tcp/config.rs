//! How a TCP port treats its connections, and why it refuses one. Knows numbers only.

use rustix::io::Errno;

use crate::ground::limits::{STREAM_SEND_BYTES, TCP_USER_TIMEOUT_MS};

/// How a port treats its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// How long sent bytes may wait for the peer, in milliseconds, before it passes for gone; a silent connection is
    /// probed each quarter of it.
    pub user_timeout_ms: u32,
    /// Bytes of frames that wait to be sent, for each connection; at least two of the longest fit.
    pub send_bytes: usize,
    /// The kernel's own buffers, each way, in bytes; `None` leaves their size to the kernel.
    pub socket_bytes: Option<usize>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            user_timeout_ms: TCP_USER_TIMEOUT_MS,
            send_bytes: STREAM_SEND_BYTES,
            socket_bytes: None,
        }
    }
}

/// Why a port could not be made, or a socket not be attached. The socket is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// A system call failed.
    #[error("{0}: {1}")]
    Os(&'static str, Errno),
    /// Not a stream socket.
    #[error("the descriptor is not a stream socket")]
    NoStream,
    /// It has no peer.
    #[error("the socket is not connected")]
    NotConnected,
    /// The port has [`QUEUE_PAIRS_MAX`](crate::fabric::QUEUE_PAIRS_MAX) already.
    #[error(
        "the port is full; the limit QUEUE_PAIRS_MAX is {}",
        crate::fabric::QUEUE_PAIRS_MAX
    )]
    Full,
}
