//! What every fabric must do: one suite, instantiated for each.
//!
//! Knows ports by their trait only; how a pair of connected ports is made is all that differs.

mod faults;
mod speed;
mod storm;
mod stress;
mod suite;
mod world;

use rendez::fabric::shm::{Link, LinkConfig};
use rendez::fabric::{
    AnyPort, Caps, FaultyPort, Geometry, LoopbackPort, PeerWake, QpId, ShmPort, Side,
    faulty::Faults,
};

/// Frames each way of the pairs under test: small, so that "full" is near.
const SLOTS: u32 = 32;
/// Payload each way: the longest body is a quarter of it.
const PAYLOAD: u32 = 16 << 10;

/// Two connected ports and the queue pair of each.
type Pair = ([AnyPort; 2], [QpId; 2]);

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
    )
}

fn shm() -> Pair {
    let config = LinkConfig {
        slots: SLOTS,
        payload_bytes: PAYLOAD,
        channels: 2,
    };
    let mut made = Link::create(config).expect("memfd");
    let fd = made.fd().try_clone_to_owned().expect("dup");
    let mut opened = Link::open(fd, config).expect("a link just made");
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
    ([AnyPort::Shm(one), AnyPort::Shm(other)], [first, second])
}

/// Loopback that is late and refuses, but breaks nothing.
fn faulty() -> Pair {
    let (ports, qps) = loopback();
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
    (ports, qps)
}

macro_rules! conformance {
    ($($fabric:ident)*) => {$(
        mod $fabric {
            use crate::{suite, storm};
            use crate::world::World;

            #[test]
            fn frames_and_bodies_of_every_size_arrive_in_order() {
                suite::bodies(&mut World::new(super::$fabric()));
            }
            #[test]
            fn a_full_queue_pair_refuses_and_recovers() {
                suite::full(&mut World::new(super::$fabric()));
            }
            #[test]
            fn malformed_posts_are_refused() {
                suite::malformed(&mut World::new(super::$fabric()));
            }
            #[test]
            fn writes_land_whatever_their_size() {
                suite::landings(&mut World::new(super::$fabric()));
            }
            #[test]
            fn writes_without_a_landing_are_refused_and_harm_nobody() {
                suite::refusals(&mut World::new(super::$fabric()));
            }
            #[test]
            fn a_landing_closed_during_a_write_gives_its_buffer_back_once() {
                suite::closed_while_writing(&mut World::new(super::$fabric()));
            }
            #[test]
            fn small_frames_pass_a_large_write() {
                suite::overtaking(&mut World::new(super::$fabric()));
            }
            #[test]
            fn close_flushes_everything_and_tells_both_sides() {
                suite::close(&mut World::new(super::$fabric()));
            }
            #[test]
            fn a_storm_keeps_every_promise() {
                for seed in 0..20 {
                    storm::storm(World::new(super::$fabric()), seed);
                }
            }
        }
    )*};
}

conformance! { loopback shm faulty }
