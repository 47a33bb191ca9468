//! Two connected ports, a pool, virtual time, and a log of what each side was given.

use rendez::fabric::{
    AnyPort, Arrival, DownReason, Landing, Outcome, Port, PostRefusal, QpId, RefusedWrite, Token,
    Write,
};
use rendez::ground::{DType, Nanos, Region, Shape, TensorMeta};
use rendez::memory::{ArenaConfig, ArenaId, Buffer, HugePages, Pool, Tensor};
use rendez::wire::Frame;

/// Turns after which a test gives up: no test needs a tenth of it.
const TURNS_MAX: u64 = 200_000;

/// What a side was given, kept.
#[derive(Debug)]
pub(crate) enum Event {
    Frame {
        frame: Frame,
        body: Vec<u8>,
    },
    Landed {
        landing: Landing,
        len: u64,
        buffer: Buffer,
    },
    Quiet {
        landing: Landing,
        buffer: Buffer,
    },
    Wrote {
        token: Token,
        source: Tensor,
        outcome: Outcome,
    },
    Down {
        reason: DownReason,
    },
}

pub(crate) struct World {
    pub(crate) ports: [AnyPort; 2],
    pub(crate) qps: [QpId; 2],
    pub(crate) pool: Pool,
    pub(crate) now: u64,
    /// Frames that may be on their way at once.
    pub(crate) window: u64,
    /// What each side was given, oldest first.
    pub(crate) log: [Vec<Event>; 2],
    /// Something else than our polls moves the bytes: an idle turn waits for it, in its time.
    takes_time: bool,
}

impl World {
    pub(crate) fn new((ports, qps, window): crate::Pair) -> Self {
        let config = ArenaConfig {
            segment_bytes: 16 << 20,
            bytes_max: 256 << 20,
            huge_pages: HugePages::Off,
        };
        let pool = Pool::new(ArenaId(3), config).expect("16 MiB");
        let takes_time = match &ports[0] {
            AnyPort::Verbs(port) => !port.domain().device().name().as_str().starts_with("shim"),
            _ => false,
        };
        let mut world = Self {
            takes_time,
            ports,
            qps,
            pool,
            now: 0,
            window,
            log: [Vec::new(), Vec::new()],
        };
        world.register();
        world
    }

    /// Makes the pool's memory known to ports that need to know it: after whatever may have made it grow.
    pub(crate) fn register(&mut self) {
        for port in &mut self.ports {
            if let AnyPort::Verbs(port) = port {
                port.register(self.pool.segments())
                    .expect("memory can be registered");
            }
        }
    }

    /// Polls both sides once, a microsecond later; how much was done.
    pub(crate) fn turn(&mut self) -> usize {
        self.now += if self.takes_time { 50_000 } else { 1_000 };
        let done = (0..2).map(|side| self.poll(side, 16)).sum();
        if self.takes_time && done == 0 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        done
    }

    pub(crate) fn poll(&mut self, side: usize, budget: usize) -> usize {
        let Self {
            ports,
            qps,
            log,
            now,
            ..
        } = self;
        let before = log[side].len();
        let done = ports[side].poll(Nanos(*now), budget, &mut |arrival| {
            let (qp, event) = match arrival {
                Arrival::Frame { qp, frame, body } => (
                    qp,
                    Event::Frame {
                        frame: *frame,
                        body: body.to_vec(),
                    },
                ),
                Arrival::Landed {
                    qp,
                    landing,
                    len,
                    buffer,
                } => (
                    qp,
                    Event::Landed {
                        landing,
                        len,
                        buffer,
                    },
                ),
                Arrival::Quiet {
                    qp,
                    landing,
                    buffer,
                } => (qp, Event::Quiet { landing, buffer }),
                Arrival::Wrote {
                    qp,
                    token,
                    source,
                    outcome,
                } => (
                    qp,
                    Event::Wrote {
                        token,
                        source,
                        outcome,
                    },
                ),
                Arrival::Down { qp, reason } => (qp, Event::Down { reason }),
            };
            assert_eq!(qp, qps[side]);
            log[side].push(event);
        });
        assert!(
            log[side].len() - before <= budget,
            "a poll keeps to its budget"
        );
        done
    }

    /// Turns until `side` was given `count` events.
    pub(crate) fn until(&mut self, side: usize, count: usize) {
        let mut turns = 0;
        while self.log[side].len() < count {
            self.turn();
            turns += 1;
            assert!(
                turns < TURNS_MAX,
                "still {} of {count} events: {:?}",
                self.log[side].len(),
                self.log[side].last()
            );
        }
    }

    /// Turns for long enough that everything on its way has come.
    pub(crate) fn rest(&mut self) {
        let mut idle = 0;
        while idle < 1_000 {
            idle = if self.turn() > 0 { 0 } else { idle + 1 };
        }
    }

    /// Posts, turning as long as there is no room.
    pub(crate) fn send(&mut self, side: usize, frame: &Frame, body: [&[u8]; 2]) {
        let mut turns = 0;
        loop {
            match self.ports[side].post_send(self.qps[side], frame, body) {
                Ok(()) => return,
                Err(PostRefusal::Full) => {
                    self.turn();
                }
                Err(refusal) => panic!("{refusal}"),
            }
            turns += 1;
            assert!(turns < TURNS_MAX, "full for ever");
        }
    }

    /// Posts a write, turning as long as there is no room.
    pub(crate) fn write(
        &mut self,
        side: usize,
        token: u64,
        source: Tensor,
        landing: Landing,
        region: Region,
    ) {
        let mut write = Write {
            qp: self.qps[side],
            token: Token(token),
            source,
            landing,
            region,
        };
        loop {
            match self.ports[side].post_write(write) {
                Ok(()) => return,
                Err(RefusedWrite {
                    refusal: PostRefusal::Full,
                    write: back,
                }) => write = back,
                Err(RefusedWrite { refusal, .. }) => panic!("{refusal}"),
            }
            self.turn();
        }
    }

    /// Opens a fresh landing of `len` bytes at `side`.
    pub(crate) fn open(&mut self, side: usize, landing: Landing, len: usize) -> Region {
        let buffer = self.pool.buffer(len).expect("pool");
        assert_eq!(buffer.len(), len);
        self.register();
        self.ports[side]
            .open_landing(self.qps[side], landing, buffer)
            .expect("free index")
    }

    pub(crate) fn take_log(&mut self, side: usize) -> Vec<Event> {
        std::mem::take(&mut self.log[side])
    }
}

/// A frame that says it has a body of `len` bytes, and a number in its middle.
pub(crate) fn frame(kind: u8, number: u64, len: usize) -> Frame {
    let mut frame = Frame::default();
    frame.words[0] = u64::from(kind) << 32;
    frame.words[1] = (len as u64) << 32 | 7;
    frame.words[2] = number;
    frame.words[5] = !number;
    frame
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| {
            ((at ^ (at >> 8) ^ (at >> 16))
                .wrapping_mul(31)
                .wrapping_add(seed * 13)) as u8
        })
        .collect()
}

pub(crate) fn tensor(bytes: Vec<u8>) -> Tensor {
    let shape = Shape::new(&[bytes.len() as u64]).expect("one dimension");
    Tensor::from_bytes(
        TensorMeta::new(DType::U8, shape).expect("small"),
        bytes.into(),
    )
    .expect("as many bytes")
}
