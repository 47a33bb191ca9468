//! Any bytes as a peer's stream, cut anywhere: no panic, no byte beyond a landing, and everything comes back once.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use rendez::fabric::tcp::fuzz::Lone;
use rendez::fabric::{Arrival, BODY_MAX, Landing, QpId, Token, Write};
use rendez::ground::{DType, Region, Shape, TensorMeta};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};

const LANDINGS: usize = 4;

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(pool());
}

fn pool() -> Pool {
    let config = ArenaConfig {
        segment_bytes: 1 << 20,
        bytes_max: 1 << 20,
        huge_pages: HugePages::Off,
    };
    Pool::new(ArenaId(0), config).expect("1 MiB")
}

fn write(token: u64) -> Write {
    let meta = TensorMeta::new(DType::U8, Shape::new(&[40]).expect("a shape")).expect("small");
    Write {
        qp: QpId(0),
        token: Token(token),
        source: Tensor::from_bytes(meta, vec![7; 40].into()).expect("as many bytes"),
        landing: Landing {
            index: 0,
            generation: 0,
        },
        region: Region::default(),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, rest)) = bytes.split_first() else {
        return;
    };
    let (cuts, stream) = rest.split_at(usize::from(count).min(rest.len()));
    POOL.with_borrow_mut(|pool| {
        let mut lone = Lone::new();
        for index in 0..LANDINGS {
            let landing = Landing {
                index: index as u32,
                generation: 0,
            };
            let buffer = pool.buffer(64 << index).expect("room");
            lone.open_landing(landing, buffer).expect("a free index");
        }
        // Answers have something to answer.
        assert!(lone.post_write(write(0)) && lone.post_write(write(1)));
        let _ = lone.sent(&[255]);
        let (mut landings, mut writes) = (0, 0);
        let mut count = |arrival: Arrival<'_>| match arrival {
            Arrival::Frame { body, .. } => assert!(body.len() <= BODY_MAX),
            Arrival::Landed { len, buffer, .. } => {
                assert!(len <= buffer.len() as u64);
                landings += 1;
            }
            Arrival::Quiet { .. } => landings += 1,
            Arrival::Wrote { .. } => writes += 1,
            Arrival::Down { .. } => {}
        };
        let (_, sent) = lone.hear(stream, cuts, &mut count);
        // It answers each write once, and a write takes a frame at least.
        assert!(sent.len() <= stream.len(), "more answers than questions");
        lone.go_down(&mut count);
        assert_eq!((landings, writes), (LANDINGS, 2));
        pool.reclaim();
        assert_eq!(pool.stats().blocks, 0);
    });
});
