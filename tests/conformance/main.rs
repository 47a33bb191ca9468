//! What every fabric must do: one suite, instantiated for each.
//!
//! Knows ports by their trait only; how a pair of connected ports is made is all that differs.

mod devices;
mod faults;
mod secured;
mod speed;
mod speed_tcp;
mod storm;
mod stress;
mod suite;
mod verbs;
mod world;

#[path = "../shim/mod.rs"]
mod shim;

use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rendez::fabric::shm::{LinkConfig, LinkMapping};
use rendez::fabric::{
    AnyPort, Caps, FaultyPort, Geometry, LoopbackPort, PeerWake, QpId, Secured, ShmPort, Side,
    TcpConfig, TcpError, TcpPort, faulty::Faults,
};

/// Frames each way of the pairs under test: small, so that "full" is near.
const SLOTS: u32 = 32;
/// Payload each way: the longest body is a quarter of it.
const PAYLOAD: u32 = 16 << 10;

/// Two connected ports, the queue pair of each, and how many frames there is room for between them.
type Pair = ([AnyPort; 2], [QpId; 2], u64);

fn loopback() -> Pair {
    let (mut one, mut other) = (LoopbackPort::new(), LoopbackPort::new());
    let geometry = Geometry {
        slots: SLOTS,
        payload_bytes: PAYLOAD,
    };
    let (first, second) =
        LoopbackPort::pair(&mut one, &mut other, geometry).expect("valid measures");
    (
        [AnyPort::Loopback(one), AnyPort::Loopback(other)],
        [first, second],
        u64::from(SLOTS),
    )
}

fn shm() -> Pair {
    let config = LinkConfig {
        slots: SLOTS,
        payload_bytes: PAYLOAD,
        channels: 2,
    };
    let mut made = LinkMapping::create(config).expect("memfd");
    let fd = made.fd().try_clone_to_owned().expect("dup");
    let mut opened = LinkMapping::open(fd, config).expect("a link just made");
    let caps = Caps {
        body_max: usize::MAX,
        one_sided: false,
        read_domain: true,
    };
    let (mut one, mut other) = (ShmPort::new(), ShmPort::new());
    let maker = made.endpoint(1, Side::Maker).expect("first use");
    let opener = opened.endpoint(1, Side::Opener).expect("first use");
    let first = one
        .attach(maker, PeerWake::NEVER_SLEEPS, caps)
        .expect("room");
    let second = other
        .attach(opener, PeerWake::NEVER_SLEEPS, caps)
        .expect("room");
    // Both links go here: queue pairs keep the memory they need.
    (
        [AnyPort::Shm(one), AnyPort::Shm(other)],
        [first, second],
        u64::from(SLOTS),
    )
}

/// Loopback that is late and refuses, but breaks nothing.
fn faulty() -> Pair {
    let (ports, qps, window) = loopback();
    let faults = Faults {
        latency_max_ns: 50_000,
        refuse_one_in: 5,
        pause_one_in: 100,
        pause_max_ns: 30_000,
        ..Faults::default()
    };
    let mut seed = 7;
    let ports = ports.map(|port| {
        seed += 1;
        AnyPort::Faulty(Box::new(FaultyPort::new(port, faults, seed)))
    });
    (ports, qps, window)
}

/// Two ports over real sockets: `address` is the loopback of a family.
fn sockets(address: IpAddr, config: TcpConfig) -> Pair {
    streams(connected(address), CLEAR, || TcpPort::new(config))
}

/// The same, under TLS.
fn secured_sockets(config: TcpConfig) -> Pair {
    let fds = connected(Ipv4Addr::LOCALHOST.into());
    let sessions = secured::sessions().map(Some);
    streams(fds, sessions, || TcpPort::new(config))
}

/// Two ends of one connection.
fn connected(address: IpAddr) -> [OwnedFd; 2] {
    let listener = TcpListener::bind((address, 0)).expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (far, _) = listener.accept().expect("it connects");
    [near.into(), far.into()]
}

/// No TLS on either side.
const CLEAR: [Option<Secured>; 2] = [None, None];

fn streams(
    fds: [OwnedFd; 2],
    sessions: [Option<Secured>; 2],
    port: impl FnMut() -> Result<TcpPort, TcpError>,
) -> Pair {
    let caps = Caps {
        body_max: usize::MAX,
        one_sided: false,
        read_domain: false,
    };
    let ports = iter::repeat_with(port).map(|port| port.expect("epoll"));
    let mut ends = ports
        .zip(fds)
        .zip(sessions)
        .map(|((mut port, fd), session)| {
            let attached = port.attach_secured(fd, session, caps);
            let qp = attached.expect("a connected stream");
            (AnyPort::Tcp(port), qp)
        });
    let ends: [_; 2] = std::array::from_fn(|_| ends.next().expect("two"));
    let qps = [ends[0].1, ends[1].1];
    // A frame is 64 bytes, and nothing is sent before a flush.
    let window = TcpConfig::default().send_bytes as u64 / 64;
    (ends.map(|(port, _)| port), qps, window)
}

fn tcp4() -> Pair {
    sockets(Ipv4Addr::LOCALHOST.into(), TcpConfig::default())
}

fn tcp6() -> Pair {
    sockets(Ipv6Addr::LOCALHOST.into(), TcpConfig::default())
}

/// Kernel buffers so small that no large write is sent or received whole.
fn tcp_narrow() -> Pair {
    let config = TcpConfig {
        socket_bytes: Some(64 << 10),
        ..TcpConfig::default()
    };
    sockets(Ipv4Addr::LOCALHOST.into(), config)
}

/// A stream cut anywhere.
fn tcp_cut() -> Pair {
    let (near, far) = UnixStream::pair().expect("a pair");
    let mut seed = 20;
    streams([near.into(), far.into()], CLEAR, || {
        seed += 1;
        TcpPort::cutting(TcpConfig::default(), seed)
    })
}

fn tcp_tls() -> Pair {
    secured_sockets(TcpConfig::default())
}

/// TLS over kernel buffers that take no record whole.
fn tcp_tls_narrow() -> Pair {
    secured_sockets(TcpConfig {
        socket_bytes: Some(64 << 10),
        ..TcpConfig::default()
    })
}

/// TLS whose keys change at once.
fn tcp_tls_rekeyed() -> Pair {
    let fds = connected(Ipv4Addr::LOCALHOST.into());
    streams(fds, secured::rekeyed().map(Some), || {
        TcpPort::new(TcpConfig::default())
    })
}

/// TLS whose records the kernel keeps.
fn tcp_tls_kernel() -> Pair {
    kernel_sockets(TcpConfig::default())
}

/// The same over kernel buffers that take no record whole.
fn tcp_tls_kernel_narrow() -> Pair {
    kernel_sockets(TcpConfig {
        socket_bytes: Some(64 << 10),
        ..TcpConfig::default()
    })
}

/// One side's records kept by the kernel, the other's by the process.
fn tcp_tls_kernel_mixed() -> Pair {
    let fds = connected(Ipv4Addr::LOCALHOST.into());
    let [near, far] = secured::connections();
    let near = secured::in_kernel(near, &fds[0]);
    streams(fds, [Some(near), Some(Secured::new(far))], || {
        TcpPort::new(TcpConfig::default())
    })
}

fn kernel_sockets(config: TcpConfig) -> Pair {
    let fds = connected(Ipv4Addr::LOCALHOST.into());
    let [near, far] = secured::connections();
    let sessions = [
        secured::in_kernel(near, &fds[0]),
        secured::in_kernel(far, &fds[1]),
    ];
    streams(fds, sessions.map(Some), || TcpPort::new(config))
}

/// Records cut anywhere.
fn tcp_tls_cut() -> Pair {
    let (near, far) = UnixStream::pair().expect("a pair");
    let mut seed = 40;
    let sessions = secured::sessions().map(Some);
    streams([near.into(), far.into()], sessions, || {
        seed += 1;
        TcpPort::cutting(TcpConfig::default(), seed)
    })
}

macro_rules! conformance {
    ($($fabric:ident)*) => { $(conformance!(@ $fabric, #[test]);)* };
    (@ $fabric:ident, $(#[$kind:meta])*) => {
        mod $fabric {
            use crate::{suite, storm};
            use crate::world::World;

            $(#[$kind])*
            fn frames_and_bodies_of_every_size_arrive_in_order() {
                suite::bodies(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn a_full_queue_pair_refuses_and_recovers() {
                suite::full(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn malformed_posts_are_refused() {
                suite::malformed(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn writes_land_whatever_their_size() {
                suite::landings(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn writes_without_a_landing_are_refused_and_harm_nobody() {
                suite::refusals(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn writes_of_device_memory_are_refused() {
                suite::device_source(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn a_landing_closed_during_a_write_gives_its_buffer_back_once() {
                suite::closed_while_writing(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn small_frames_pass_a_large_write() {
                suite::overtaking(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn close_flushes_everything_and_tells_both_sides() {
                suite::close(&mut World::new(super::$fabric()));
            }
            $(#[$kind])*
            fn a_storm_keeps_every_promise() {
                for seed in 0..20 {
                    storm::storm(World::new(super::$fabric()), seed);
                }
            }
        }
    };
}

use verbs::{verbs_devices, verbs_shim};

conformance! { loopback shm faulty tcp4 tcp6 tcp_narrow tcp_cut verbs_shim }
conformance! { tcp_tls tcp_tls_narrow tcp_tls_rekeyed tcp_tls_cut }
conformance! { @ tcp_tls_kernel, #[test] #[ignore = "needs TLS in the kernel: scripts/soft-roce.sh"] }
conformance! { @ tcp_tls_kernel_narrow, #[test] #[ignore = "needs TLS in the kernel: scripts/soft-roce.sh"] }
conformance! { @ tcp_tls_kernel_mixed, #[test] #[ignore = "needs TLS in the kernel: scripts/soft-roce.sh"] }
conformance! { @ verbs_devices, #[test] #[ignore = "needs two RDMA devices: scripts/soft-roce.sh"] }
