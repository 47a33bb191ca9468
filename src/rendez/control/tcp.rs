//! TCP sockets: how one is bound, dialled and tuned.
//!
//! Knows sockets and names, and nothing of what is said over them. What blocks here (names, connections) is called
//! from an [`errand`](super::errand) and never from the control thread.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::ground::limits::ADDRESSES_OF_HOST_MAX;

use super::address::Address;

/// A keepalive probe is repeated this often before the system gives the connection up.
const KEEPALIVE_PROBES: u32 = 3;

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The name means nothing, now.
    #[error("{address} cannot be resolved: {error}")]
    Unresolved { address: Address, error: io::Error },
    /// No listener answered at any of its addresses; the error is the last one's.
    #[error("{address}: {error}")]
    Unreachable {
        address: SocketAddr,
        error: io::Error,
    },
    /// An address of another kind.
    #[error("{0} is no TCP address")]
    NotTcp(Address),
    /// There was none to try.
    #[error("no address is known")]
    Nowhere,
}

impl DialError {
    /// What the system called it.
    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Unreachable { error, .. } => error.kind(),
            Self::Unresolved { .. } | Self::NotTcp(_) | Self::Nowhere => io::ErrorKind::Other,
        }
    }
}

/// Listens at the first of `addresses` that this machine has. One that another process has taken is told: peers that
/// dial the name would meet that one.
pub(crate) fn listen(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        // The library's own bind lets an address be taken again while old connections of it are dying.
        match TcpListener::bind(address) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
            Err(error) if is_missing(&error) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// True if this machine lacks the address that was to be bound, or its whole family.
fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

/// What the name of `address` means now: at most [`ADDRESSES_OF_HOST_MAX`] addresses. Blocks while the system asks.
pub(crate) fn resolve(address: &Address) -> Result<Vec<SocketAddr>, DialError> {
    let Address::Tcp { host, port } = address else {
        return Err(DialError::NotTcp(address.clone()));
    };
    let unresolved = |error| DialError::Unresolved {
        address: address.clone(),
        error,
    };
    let mut found = resolve_host(host).map_err(unresolved)?;
    if found.is_empty() {
        return Err(unresolved(no_address()));
    }
    for address in &mut found {
        address.set_port(*port);
    }
    Ok(found)
}

/// The same of a host alone: the port of each address is zero.
pub(crate) fn resolve_host(host: &str) -> io::Result<Vec<SocketAddr>> {
    let found = (host, 0).to_socket_addrs()?;
    Ok(found.take(ADDRESSES_OF_HOST_MAX).collect())
}

/// What is wrong with a name that is known and means nothing.
pub(crate) fn no_address() -> io::Error {
    io::Error::other("it has no address")
}

/// Connects to the first address of `address` that answers before `deadline`. Blocks.
pub(crate) fn connect(address: &Address, deadline: Instant) -> Result<TcpStream, DialError> {
    connect_any(&resolve(address)?, deadline)
}

/// Connects to the first of `addresses` that answers before `deadline`. Blocks; for that they share the time there is.
pub(crate) fn connect_any(
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<TcpStream, DialError> {
    let mut left = addresses.len() as u32;
    let mut last = DialError::Nowhere;
    for &address in addresses {
        let time = deadline.saturating_duration_since(Instant::now()) / left.max(1);
        left -= 1;
        match connect_to(address, time) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = DialError::Unreachable { address, error },
        }
    }
    Err(last)
}

/// Connects to one address within `time`.
pub(crate) fn connect_to(address: SocketAddr, time: Duration) -> io::Result<TcpStream> {
    // No time at all is refused by the library as a mistake; here it is merely late.
    let stream = TcpStream::connect_timeout(&address, time.max(Duration::from_millis(1)))?;
    if stream.local_addr()? == stream.peer_addr()? {
        // A dial of a free local port may meet itself, and would then keep the port from the task that it waits for.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// Sends at once, and gives the connection up when the other side was silent for `lost_after`, data or no data.
pub(crate) fn tune(stream: &TcpStream, lost_after: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probe = (lost_after / (KEEPALIVE_PROBES + 1)).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, probe)?;
    sockopt::set_tcp_keepintvl(stream, probe)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    let millis = u32::try_from(lost_after.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, millis)?;
    Ok(())
}

/// True if a listener at `ip` cannot be reached from beyond this machine.
#[must_use]
pub fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => {
            ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests;
