//! Addresses of tasks: a host and a port, as text.
//!
//! Knows no resolver of names: a host is a word, or an IP address in its text form.

use std::fmt;
use std::str::FromStr;

use core::net::Ipv6Addr;

use super::quoted::shown;
use crate::ground::limits::HOST_NAME_BYTES_MAX;
use crate::ground::{Status, catalogue};

/// Where a task listens: `worker-1.example.org:2222`, `10.0.0.7:2222` or `[fe80::1]:2222`.
///
/// Port 0 lets the task pick one when it starts.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostPort {
    host: Box<str>,
    port: u16,
}

impl HostPort {
    /// The address of `port` on `host`; an IPv6 address may stand in brackets or not.
    ///
    /// # Errors
    /// `CLUSTER_ADDRESS` if `host` is neither a name nor an IP address.
    pub fn new(host: &str, port: u16) -> Result<Self, Status> {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        if is_ipv6(bare) || (bare.len() == host.len() && is_name(bare)) {
            let host = bare.into();
            return Ok(Self { host, port });
        }
        Err(malformed(&format!("{host}:{port}")))
    }

    /// The host, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for HostPort {
    type Err = Status;

    /// Reads `host:port`; an IPv6 address must stand in brackets.
    fn from_str(text: &str) -> Result<Self, Status> {
        let malformed = || malformed(text);
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        // `u16` also reads "+1".
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or_else(malformed)?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(malformed());
        }
        Self::new(host, port).map_err(|_| malformed())
    }
}

/// `[fe80::1]:2222`
impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// As text.
impl serde::Serialize for HostPort {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Letters, digits, points, hyphens, and underscores, which no standard allows and many networks have.
pub(super) fn is_name(host: &str) -> bool {
    !host.is_empty()
        && host.len() <= HOST_NAME_BYTES_MAX
        && host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

/// An IPv6 address, with or without a zone, as `fe80::1%eth0`.
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
    address.parse::<Ipv6Addr>().is_ok() && zone.len() < 16 && is_name(zone)
}

fn malformed(text: &str) -> Status {
    let message = format!(
        "Could not interpret \"{}\" as a host-port pair.",
        shown(text)
    );
    Status::of(catalogue::CLUSTER_ADDRESS, message)
}
