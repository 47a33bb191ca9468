//! Two ports of one kind that are connected, and what a warm one may ask of the heap: nothing.

use rendez::fabric::{Arrival, Landing, Port, QpId, Token, Write};
use rendez::ground::{DType, Nanos, Shape, TensorMeta};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};
use rendez::wire::Frame;

use crate::counting;

const BYTES: usize = 3 << 20;

/// Both ends of a connection, and the memory that is written from and to.
pub(crate) struct Pair<P> {
    ports: [P; 2],
    qps: [QpId; 2],
    pool: Pool,
    source: Tensor,
    now: u64,
}

/// Memory for it.
pub(crate) fn pool() -> Pool {
    let config = ArenaConfig {
        segment_bytes: 32 << 20,
        bytes_max: 32 << 20,
        huge_pages: HugePages::Off,
    };
    Pool::new(ArenaId(1), config).expect("a pool")
}

impl<P: Port> Pair<P> {
    pub(crate) fn new(ports: [P; 2], qps: [QpId; 2], mut pool: Pool) -> Self {
        let shape = Shape::new(&[BYTES as u64]).expect("one dimension");
        let meta = TensorMeta::new(DType::U8, shape);
        let mut buffer = pool.buffer(BYTES).expect("room");
        buffer.fill(7);
        let source = buffer
            .into_tensor(meta.expect("small"))
            .expect("as many bytes");
        Self {
            ports,
            qps,
            pool,
            source,
            now: 0,
        }
    }

    /// Warms both ports up, and counts.
    pub(crate) fn leaves_the_heap_alone(&mut self) {
        (0..50).for_each(|number| self.round(number));
        let calls = counting::calls(|| (50..150).for_each(|number| self.round(number)));
        assert_eq!(calls, 0, "heap calls in 100 rounds");
    }

    /// Frames of all lengths to and fro, and a large write between them.
    fn round(&mut self, number: u64) {
        let landing = Landing {
            index: (number % 7) as u32,
            generation: number as u32,
        };
        let buffer = self.pool.buffer(BYTES).expect("room");
        let region = self.ports[1]
            .open_landing(self.qps[1], landing, buffer)
            .expect("free");
        let write = Write {
            qp: self.qps[0],
            token: Token(number),
            source: self.source.clone(),
            landing,
            region,
        };
        self.ports[0].post_write(write).expect("room");
        let body = [3; 1000];
        for side in 0..2 {
            for len in [0, 9, 16, 17, 300, 1000] {
                let mut frame = Frame::default();
                frame.words[0] = 1 << 32;
                frame.words[1] = (len as u64) << 32;
                self.ports[side]
                    .post_send(self.qps[side], &frame, [&body[..len], &[]])
                    .expect("room");
            }
        }
        let mut came = 0;
        while came < 6 + 6 + 2 {
            for port in &mut self.ports {
                self.now += 1_000;
                port.poll(Nanos(self.now), 64, &mut |arrival| {
                    assert!(!matches!(
                        arrival,
                        Arrival::Down { .. } | Arrival::Quiet { .. }
                    ));
                    came += 1;
                });
            }
        }
        for port in &mut self.ports {
            port.arm();
            port.disarm();
        }
        self.pool.reclaim();
    }
}
