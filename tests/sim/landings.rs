//! Landings: what a write may reach whose landing was closed, and its place taken by another, while it was under way.
//!
//! No shard does this: it gives a place anew when the writer has answered. A peer may answer and write on.

use rendez::fabric::{
    AnyPort, Arrival, Geometry, Landing, LoopbackPort, Outcome, Port, QpId, Token, Write,
};
use rendez::ground::{Nanos, Region, Shape};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};

/// As long as several times what the rings hold.
const LEN: usize = 1 << 17;
const WRITTEN: u8 = 7;
const UNTOUCHED: u8 = 1;

fn open(port: &mut AnyPort, qp: QpId, pool: &mut Pool, generation: u32) -> (Landing, Region) {
    let landing = Landing {
        index: 3,
        generation,
    };
    let mut buffer = pool.buffer(LEN).unwrap();
    buffer.fill(UNTOUCHED);
    let region = port.open_landing(qp, landing, buffer).unwrap();
    (landing, region)
}

#[test]
fn a_write_ends_with_its_landing() {
    let mut pool = Pool::new(
        ArenaId(0),
        ArenaConfig {
            segment_bytes: 1 << 20,
            bytes_max: 1 << 20,
            huge_pages: HugePages::Off,
        },
    )
    .unwrap();
    let geometry = Geometry {
        slots: 16,
        payload_bytes: 1 << 14,
    };
    let (mut writer, mut reader) = (LoopbackPort::new(), LoopbackPort::new());
    let (from, to) = LoopbackPort::pair(&mut writer, &mut reader, geometry).unwrap();
    let mut ports = [AnyPort::Loopback(writer), AnyPort::Loopback(reader)];
    let (landing, region) = open(&mut ports[1], to, &mut pool, 1);
    let source = Tensor::from_vec(vec![WRITTEN; LEN], Shape::row(LEN as u64).unwrap()).unwrap();
    let write = Write {
        qp: from,
        token: Token(1),
        source,
        landing,
        region,
    };
    assert!(ports[0].post_write(write).is_ok());
    let mut ends = Vec::new();
    let mut successor = None;
    for turn in 0..200 {
        if turn == 2 {
            ports[1].close_landing(to, landing);
            successor = Some(open(&mut ports[1], to, &mut pool, 2).0);
        } else if turn == 100
            && let Some(successor) = successor
        {
            ports[1].close_landing(to, successor);
        }
        for port in &mut ports {
            port.poll(Nanos(turn), 16, &mut |arrival| match arrival {
                Arrival::Wrote { outcome, .. } => ends.push(format!("wrote: {outcome:?}")),
                Arrival::Quiet {
                    landing, buffer, ..
                } => {
                    let is_untouched = buffer.iter().all(|&byte| byte == UNTOUCHED);
                    ends.push(format!("{} quiet: {is_untouched}", landing.generation));
                }
                other => panic!("{other:?}"),
            });
        }
    }
    let refused = format!("wrote: {:?}", Outcome::Refused);
    assert_eq!(ends, ["1 quiet: false", &refused, "2 quiet: true"]);
}
