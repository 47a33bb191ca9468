//! What a tensor's life costs: a measurement, not a promise. Run by hand, in release, on a quiet machine:
//! `cargo test --release --test costs -- --ignored --nocapture memory`.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use rendez::ground::{DType, Shape, TensorMeta};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};

/// The best of many short rounds, in nanoseconds per turn: shorter than a time slice, so that one ran undisturbed.
fn best(mut turn: impl FnMut()) -> f64 {
    const TURNS: u32 = 5_000;
    let mut round = || {
        let start = Instant::now();
        (0..TURNS).for_each(|_| turn());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS)
    };
    (0..2_000).map(|_| round()).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a measurement: it proves nothing on a busy machine"]
fn life_of_a_tensor() {
    let config = ArenaConfig {
        segment_bytes: 64 << 20,
        bytes_max: 256 << 20,
        huge_pages: HugePages::Auto,
    };
    let mut pool = Pool::new(ArenaId(0), config).expect("a pool");
    let meta = |bytes: u64| TensorMeta {
        dtype: DType::U8,
        shape: Shape::new(&[bytes]).expect("a shape"),
    };
    for (name, bytes) in [
        ("8 B inline", 8),
        ("64 B", 64),
        ("4 KiB", 4 << 10),
        ("64 KiB", 64 << 10),
        ("1 MiB", 1 << 20),
    ] {
        let meta = meta(bytes);
        let life = best(|| {
            let mut builder = pool.builder(black_box(meta)).expect("room");
            builder.bytes_mut()[0] = 1;
            drop(black_box(builder.finish()));
            pool.reclaim();
        });
        println!("builder + finish + drop + reclaim, {name}: {life:.1} ns");
    }
    let tensor =
        Tensor::from_vec(vec![0u8; 64], Shape::new(&[64]).expect("a shape")).expect("it fits");
    println!(
        "clone + drop, foreign: {:.1} ns",
        best(|| drop(black_box(tensor.clone())))
    );
    let tensor = pool.builder(meta(64)).expect("room").finish();
    println!(
        "clone + drop, block: {:.1} ns",
        best(|| drop(black_box(tensor.clone())))
    );
    println!(
        "bytes: {:.2} ns",
        best(|| _ = black_box(black_box(&tensor).bytes()))
    );
    let burst = best(|| {
        let held: [Tensor; 32] =
            std::array::from_fn(|_| pool.builder(black_box(meta(64))).expect("room").finish());
        drop(black_box(held));
        pool.reclaim();
    });
    println!(
        "the same life in bursts of 32, 64 B: {:.1} ns each",
        burst / 32.0
    );
}
