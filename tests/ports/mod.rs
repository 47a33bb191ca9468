//! Ports for tests that must name an address before a process listens there.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// Below the ports that the kernel hands out by itself (from 32 768), and below those that rendez and torch take unless
/// told otherwise: no connection and no listener of another test can come by one of these.
const RANGE: std::ops::Range<u16> = 10_000..29_000;

/// What this process has been given: where to look next, and the claims, kept until it ends.
struct Given {
    next: u16,
    claims: Vec<UnixListener>,
}

static GIVEN: Mutex<Option<Given>> = Mutex::new(None);

/// `N` ports that follow each other, on which no process listens. No other call is given one of them while this
/// process lives, in this process or in another: an abstract Unix socket of its name stands for each.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Processes begin apart from each other, so that they do not try each other's ports one by one.
    let spread = (std::process::id() as u16).wrapping_mul(97) % (RANGE.end - RANGE.start);
    let given = given.get_or_insert_with(|| Given {
        next: RANGE.start + spread,
        claims: Vec::new(),
    });
    for _ in RANGE {
        let first = given.next;
        given.next += 1;
        if given.next + N as u16 > RANGE.end {
            given.next = RANGE.start;
        }
        let row = std::array::from_fn(|index| first + index as u16);
        let claims: Option<Vec<_>> = row.iter().map(|port| claim(*port)).collect();
        if let Some(claims) = claims {
            given.claims.extend(claims);
            given.next = (first + N as u16).min(RANGE.end - N as u16);
            return row;
        }
    }
    panic!("no {N} free ports in {RANGE:?}");
}

/// Claims a port, if it is free.
fn claim(port: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("rendez-test-port-{port}")).ok()?;
    let claim = UnixListener::bind_addr(&name).ok()?;
    TcpListener::bind(("127.0.0.1", port)).ok()?;
    Some(claim)
}
