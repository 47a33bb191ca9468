//! After warm-up the RDMA port touches the heap no more, whatever it carries: counted, in a process of its own, over
//! the library that is played in memory.

use crate::shim;
use crate::warm::{self, Pair};
use rendez::fabric::verbs::{Domain, PathConfig, VerbsConfig, VerbsPort};

fn pair() -> Pair<VerbsPort> {
    shim::reset();
    let pool = warm::pool();
    let ends = ["shim0", "shim1"].map(|device| {
        let path = PathConfig {
            device: Some(device.into()),
            ..PathConfig::default()
        };
        let domain = Domain::open(shim::table(), &path).expect("a device");
        let mut port = VerbsPort::new(&domain, VerbsConfig::default()).expect("queues");
        port.register(pool.segments()).expect("registered");
        let (qp, end) = port.open(1).expect("a queue pair");
        (port, qp, end)
    });
    let ends_told = [ends[1].2, ends[0].2];
    let qps = [ends[0].1, ends[1].1];
    let mut ports = ends.map(|(port, ..)| port);
    for side in 0..2 {
        ports[side]
            .connect(qps[side], &ends_told[side])
            .expect("a peer");
    }
    Pair::new(ports, qps, pool)
}

#[test]
fn a_warm_port_leaves_the_heap_alone() {
    pair().leaves_the_heap_alone();
}
