//! Pairs of connected verbs ports: over the library that is played in memory, and over real devices in a guest.

use rendez::fabric::verbs::{Domain, PathConfig, VerbsConfig, VerbsPort, sys};
use rendez::fabric::{AnyPort, Port};
use rendez::ground::limits::{VERBS_WINDOW, VERBS_WINDOW_RESERVE};

use crate::{Pair, shim};

/// A port on each of two devices, connected as the control plane will do it.
pub(crate) fn connected(
    table: &'static sys::VerbsTable,
    devices: [&str; 2],
    config: VerbsConfig,
) -> Pair {
    let mut ends = devices.map(|device| {
        let path = PathConfig {
            device: Some(device.into()),
            ..PathConfig::default()
        };
        let domain = Domain::open(table, &path).expect("a device with an active port");
        let mut port = VerbsPort::new(&domain, config).expect("queues");
        let (qp, endpoint) = port.open(0x00ab_cdef).expect("a queue pair");
        (port, qp, endpoint)
    });
    let endpoints = [ends[0].2, ends[1].2];
    for (side, (port, qp, _)) in ends.iter_mut().enumerate() {
        assert_eq!(port.caps(*qp).body_max, 0, "no peer yet");
        port.connect(*qp, &endpoints[1 - side]).expect("a peer");
    }
    let qps = [ends[0].1, ends[1].1];
    let ports = ends.map(|(port, ..)| AnyPort::Verbs(Box::new(port)));
    (ports, qps, u64::from(VERBS_WINDOW - VERBS_WINDOW_RESERVE))
}

pub(crate) fn verbs_shim() -> Pair {
    shim::reset();
    connected(shim::table(), ["shim0", "shim1"], VerbsConfig::default())
}

/// Over two devices of this machine, which `RENDEZ_VERBS_DEVICES` names: in a guest, by `scripts/soft-roce.sh`.
pub(crate) fn verbs_devices() -> Pair {
    let names = std::env::var("RENDEZ_VERBS_DEVICES").expect("RENDEZ_VERBS_DEVICES=one,other");
    let (one, other) = names.split_once(',').expect("two names");
    let table = sys::table().unwrap_or_else(|error| panic!("{error}"));
    connected(table, [one, other], VerbsConfig::default())
}
