//! After warm-up neither giving memory out nor taking it home touches the heap: counted, in a process of its own.

use crate::counting::calls;
use rendez::ground::{DType, Shape, TensorMeta};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Leases, MappedSegment, Pool, Tensor};

fn pool() -> Pool {
    let config = ArenaConfig {
        segment_bytes: 8 << 20,
        bytes_max: 32 << 20,
        huge_pages: HugePages::Off,
    };
    Pool::new(ArenaId(1), config).expect("a pool")
}

/// A little of everything: small and large, a few at a time, freed in another order, spans opened and closed.
fn churn(pool: &mut Pool) {
    const SIZES: [usize; 8] = [1, 64, 700, 4096, 30_000, 65_536, 200_000, 3_000_000];
    for round in 0..50 {
        let mut buffers: [Option<_>; 8] = [const { None }; 8];
        for (at, place) in buffers.iter_mut().enumerate() {
            *place = Some(pool.buffer(SIZES[(at * 3 + round) % 8]).expect("room"));
        }
        for at in 0..8 {
            buffers[(at * 5) % 8] = None;
        }
        pool.reclaim();
        // As much as the arena can hold: every idle span must give its pages back.
        drop(pool.buffer(8 << 20).expect("a whole segment"));
        pool.reclaim();
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(calls(|| drop(std::hint::black_box(Box::new(1)))), 2);
}

#[test]
fn buffers_after_warm_up_take_nothing_from_the_heap() {
    let mut pool = pool();
    churn(&mut pool);
    assert_eq!(calls(|| churn(&mut pool)), 0);
}

#[test]
fn tensors_after_warm_up_take_nothing_from_the_heap() {
    let mut pool = pool();
    let meta = |count: u64| TensorMeta {
        dtype: DType::F32,
        shape: Shape::new(&[count]).expect("a shape"),
    };
    let mut work = || {
        for count in [0, 1, 4, 5, 1000, 100_000] {
            let mut builder = pool.builder(meta(count)).expect("room");
            builder.as_mut_slice::<f32>().expect("floats").fill(1.5);
            let tensor = builder.finish();
            let clone = tensor.clone();
            drop(tensor);
            assert_eq!(clone.as_slice::<f32>().expect("floats").len() as u64, count);
            assert_eq!(clone.view::<f32>().expect("an array").len() as u64, count);
        }
        drop(Tensor::scalar(3.0f64));
        pool.reclaim();
    };
    work();
    assert_eq!(calls(work), 0);
}

#[test]
fn leases_after_warm_up_take_nothing_from_the_heap() {
    let mut pool = pool();
    let buffer = pool.buffer(4096).expect("room");
    let segment = &pool.segments()[0];
    let fd = segment.fd().try_clone_to_owned().expect("a descriptor");
    let mapped =
        std::sync::Arc::new(MappedSegment::open(fd, segment.len() as u64).expect("mapped"));
    let meta = TensorMeta {
        dtype: DType::U8,
        shape: Shape::new(&[4096]).expect("a shape"),
    };
    let mut leases = Leases::new(4);
    let mut work = || {
        for token in 0..100 {
            let tensor = leases
                .make(mapped.clone(), buffer.region(), meta, token)
                .expect("an entry");
            drop(tensor.clone());
            drop(tensor);
            assert_eq!(leases.reclaim(|back| assert_eq!(back, token)), 1);
        }
    };
    work();
    assert_eq!(calls(work), 0);
}
