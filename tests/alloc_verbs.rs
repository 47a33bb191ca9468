//! After warm-up the RDMA port touches the heap no more, whatever it carries: counted, in a process of its own, over
//! the library that is played in memory.
mod counting;
#[path = "shim/mod.rs"]
mod shim;

use rendez::fabric::verbs::{Domain, PathConfig, VerbsConfig, VerbsPort};
use rendez::fabric::{Arrival, Landing, Port, QpId, Token, Write};
use rendez::ground::{DType, Nanos, Shape, TensorMeta};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};
use rendez::wire::Frame;

const BYTES: usize = 3 << 20;

struct Pair {
    ports: [VerbsPort; 2],
    qps: [QpId; 2],
    pool: Pool,
    source: Tensor,
    now: u64,
}

fn pair() -> Pair {
    shim::reset();
    let config = ArenaConfig {
        segment_bytes: 32 << 20,
        bytes_max: 32 << 20,
        huge_pages: HugePages::Off,
    };
    let mut pool = Pool::new(ArenaId(1), config).expect("a pool");
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
    let meta = TensorMeta::new(
        DType::U8,
        Shape::new(&[BYTES as u64]).expect("one dimension"),
    );
    let mut buffer = pool.buffer(BYTES).expect("room");
    buffer.fill(7);
    let source = buffer
        .into_tensor(meta.expect("small"))
        .expect("as many bytes");
    Pair {
        ports,
        qps,
        pool,
        source,
        now: 0,
    }
}

/// Frames of all lengths to and fro, and a large write between them.
fn round(pair: &mut Pair, number: u64) {
    let landing = Landing {
        index: (number % 7) as u32,
        generation: number as u32,
    };
    let buffer = pair.pool.buffer(BYTES).expect("room");
    let region = pair.ports[1]
        .open_landing(pair.qps[1], landing, buffer)
        .expect("free");
    let write = Write {
        qp: pair.qps[0],
        token: Token(number),
        source: pair.source.clone(),
        landing,
        region,
    };
    pair.ports[0].post_write(write).expect("room");
    let body = [3; 1000];
    for side in 0..2 {
        for len in [0, 9, 16, 17, 300, 1000] {
            let mut frame = Frame::default();
            frame.words[0] = 1 << 32;
            frame.words[1] = (len as u64) << 32;
            pair.ports[side]
                .post_send(pair.qps[side], &frame, [&body[..len], &[]])
                .expect("room");
        }
    }
    let mut came = 0;
    while came < 6 + 6 + 2 {
        for port in &mut pair.ports {
            pair.now += 1_000;
            port.poll(Nanos(pair.now), 64, &mut |arrival| {
                assert!(!matches!(
                    arrival,
                    Arrival::Down { .. } | Arrival::Quiet { .. }
                ));
                came += 1;
            });
        }
    }
    for port in &mut pair.ports {
        port.arm();
        port.disarm();
    }
    pair.pool.reclaim();
}

#[test]
fn a_warm_port_leaves_the_heap_alone() {
    let mut pair = pair();
    for number in 0..50 {
        round(&mut pair, number);
    }
    let calls = counting::calls(|| {
        for number in 50..150 {
            round(&mut pair, number);
        }
    });
    assert_eq!(calls, 0, "heap calls in 100 rounds");
}
