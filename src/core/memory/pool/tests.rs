//! Tests of `pool.rs`: buffers against a model, accounts, growth and refusal, generations, life after the pool.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;

use super::super::HugePages;
use super::*;
use crate::ground::rng::Rng;
use crate::ground::{DType, Shape};

fn pool(segment_bytes: usize, bytes_max: u64) -> Pool {
    let config = ArenaConfig {
        segment_bytes,
        bytes_max,
        huge_pages: HugePages::Off,
    };
    Pool::new(ArenaId(3), config).expect("a pool")
}

fn meta(dtype: DType, dims: &[u64]) -> TensorMeta {
    TensorMeta::new(dtype, Shape::new(dims).expect("a shape")).expect("metadata")
}

/// Lengths as they occur: mostly small, some at the borders of classes and pages, a few large.
fn some_len(rng: &mut Rng) -> usize {
    match rng.below(10) {
        0 => rng.below(2_000_000) as usize,
        1 => (rng.below(12) as usize * PAGE_BYTES + 1).saturating_sub(rng.below(3) as usize),
        2 => (64 << 10) - 1 + rng.below(3) as usize,
        3 => 0,
        _ => rng.below(9_000) as usize,
    }
}

/// Buffers that are out, by where they lie, with what was written into them.
#[derive(Default)]
struct Model {
    live: BTreeMap<(u16, u64), (Buffer, u8)>,
    in_use: u64,
}

impl Model {
    fn take(&mut self, pool: &mut Pool, len: usize, mark: u8) -> Result<(), MemoryError> {
        let before = pool.stats().in_use_bytes;
        let mut buffer = pool.buffer(len)?;
        buffer.fill(mark);
        let region = buffer.region();
        assert_eq!(
            (region.arena, region.len, buffer.len()),
            (3, len as u64, len)
        );
        assert!(buffer.as_ptr().addr().is_multiple_of(64));
        assert!(
            region.offset + region.len <= pool.segments()[usize::from(region.segment)].len() as u64
        );
        let (at, end) = (
            (region.segment, region.offset),
            (region.segment, region.offset + region.len),
        );
        if let Some((&(segment, start), (other, _))) = self.live.range(..=at).next_back() {
            assert!(
                segment != region.segment || start + other.len() as u64 <= at.1 && start != at.1,
                "overlap below"
            );
        }
        assert!(self.live.range(at..end).next().is_none(), "overlap above");
        self.in_use = self.in_use - before + pool.stats().in_use_bytes;
        self.live.insert(at, (buffer, mark));
        Ok(())
    }

    fn drop_one(&mut self, rng: &mut Rng) -> Option<Buffer> {
        let at = *self
            .live
            .keys()
            .nth(rng.below(self.live.len() as u64) as usize)?;
        let (buffer, mark) = self.live.remove(&at)?;
        let written = vec![mark; buffer.len()];
        assert!(buffer[..] == written, "another writer wrote here");
        Some(buffer)
    }
}

#[test]
fn buffers_never_overlap_and_all_come_home() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut pool = pool(4 << 20, 16 << 20);
        let mut model = Model::default();
        let mut refused = 0;
        for turn in 0..4_000u32 {
            // Waves: more taken than dropped, then more dropped, so that the arena fills up and empties.
            let takes = rng.below(10) < if (turn / 500).is_multiple_of(2) { 7 } else { 3 };
            if takes {
                let len = some_len(&mut rng);
                match model.take(&mut pool, len, turn as u8) {
                    Ok(()) => {}
                    Err(MemoryError::Full { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            } else {
                drop(model.drop_one(&mut rng));
            }
            if rng.one_in(20) {
                pool.reclaim();
                assert_eq!(
                    pool.stats().blocks,
                    model.live.len() as u64,
                    "seed {seed}, turn {turn}"
                );
            }
        }
        while model.drop_one(&mut rng).is_some() {}
        pool.reclaim();
        let stats = pool.stats();
        assert_eq!(
            (stats.blocks, stats.in_use_bytes, stats.refused),
            (0, 0, refused),
            "seed {seed}"
        );
        assert_eq!(stats.free_bytes, stats.mapped_bytes);
        assert!(stats.peak_bytes <= stats.mapped_bytes && stats.mapped_bytes <= 16 << 20);
        // At rest nothing is lost to cracks: each whole segment can go out in one piece.
        let mut lens: Vec<_> = pool.segments().iter().map(|one| one.len()).collect();
        lens.sort_unstable();
        let whole = lens.iter().rev().map(|len| pool.buffer(*len));
        let _whole: Vec<_> = whole.map(|one| one.expect("a segment")).collect();
        assert_eq!(pool.stats().in_use_bytes, stats.mapped_bytes);
    }
}

#[test]
fn tensors_dropped_on_other_threads_come_home() {
    let mut pool = pool(1 << 20, 4 << 20);
    let (give, take) = mpsc::channel::<(Tensor, u8)>();
    let reader = thread::spawn(move || {
        for (tensor, mark) in take {
            assert!(tensor.host().unwrap().iter().all(|&byte| byte == mark));
        }
    });
    let mut rng = Rng::new(7);
    for turn in 0..20_000u32 {
        let bound = if rng.one_in(50) { 200_000 } else { 2_000 };
        let len = 17 + rng.below(bound);
        let mut builder = loop {
            match pool.builder(meta(DType::U8, &[len])) {
                Ok(builder) => break builder,
                Err(MemoryError::Full { .. }) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        builder.bytes_mut().fill(turn as u8);
        let tensor = builder.finish();
        give.send((tensor.clone(), turn as u8)).expect("a reader");
        give.send((tensor, turn as u8)).expect("a reader");
    }
    drop(give);
    reader.join().expect("every byte as it was written");
    pool.reclaim();
    assert_eq!((pool.stats().blocks, pool.stats().in_use_bytes), (0, 0));
}

#[test]
fn tensors_outlive_the_pool_here_and_on_other_threads() {
    let mut pool = pool(1 << 20, 4 << 20);
    let segment = Arc::downgrade(&pool.segments()[0]);
    let tensors: Vec<_> = (0..64u8)
        .map(|mark| {
            let mut builder = pool
                .builder(meta(
                    DType::U8,
                    &[if mark % 8 == 0 { 100_000 } else { 500 }],
                ))
                .expect("room");
            builder.bytes_mut().fill(mark);
            builder.finish()
        })
        .collect();
    drop(tensors[5].clone());
    drop(pool);
    let readers: Vec<_> = (0..4)
        .map(|part| {
            let mine: Vec<_> = tensors.iter().skip(part).step_by(4).cloned().collect();
            thread::spawn(move || {
                for (at, tensor) in mine.into_iter().enumerate() {
                    assert!(
                        tensor
                            .host()
                            .unwrap()
                            .iter()
                            .all(|&byte| usize::from(byte) == at * 4 + part)
                    );
                }
            })
        })
        .collect();
    assert!(
        segment.upgrade().is_some(),
        "the memory stays as long as a tensor does"
    );
    drop(tensors);
    readers
        .into_iter()
        .for_each(|reader| reader.join().expect("every byte as it was written"));
    assert!(segment.upgrade().is_none(), "and goes with the last one");
}

#[test]
fn a_pool_dropped_with_nothing_out_takes_its_memory_along() {
    let mut pool = pool(1 << 20, 1 << 20);
    let segment = Arc::downgrade(&pool.segments()[0]);
    drop(pool.buffer(100));
    drop(pool);
    assert!(segment.upgrade().is_none());
}

#[test]
fn the_arena_grows_by_segments_up_to_its_limit_and_then_refuses() {
    let mut pool = pool(1 << 20, 3 << 20);
    let mut held: Vec<_> = (0..3)
        .map(|_| pool.buffer(1 << 20).expect("room"))
        .collect();
    let lens: Vec<_> = pool.segments().iter().map(|one| one.len()).collect();
    assert_eq!((lens, pool.stats().free_bytes), (vec![1 << 20, 2 << 20], 0));
    let full = MemoryError::Full {
        asked: 16 << 10,
        in_use: 3 << 20,
        longest: 0,
        limit: 3 << 20,
    };
    assert_eq!(pool.buffer(1).expect_err("full"), full);
    assert_eq!(
        pool.buffer(70_000).map(drop),
        Err(MemoryError::Full {
            asked: 80 << 10,
            in_use: 3 << 20,
            longest: 0,
            limit: 3 << 20
        })
    );
    assert_eq!(pool.stats().refused, 2);
    let unfit = pool.buffer((3 << 20) + 1).expect_err("never fits");
    assert!(matches!(unfit, MemoryError::Unfit { asked, limit } if asked > limit));
    // No reclaim by hand: asking finds what came home.
    held.pop();
    pool.buffer(1).expect("room again");
}

/// Peers take no end of bytes, and not of segments.
#[test]
fn an_arena_of_many_small_segments_takes_longer_ones() {
    let mut pool = pool(1 << 20, 1 << 30);
    let mut held = vec![];
    while let Ok(buffer) = pool.buffer(1 << 20) {
        held.push(buffer);
    }
    assert!(held.len() > 1000, "nearly all of it is given out");
    let lens: Vec<_> = pool.segments().iter().map(|one| one.len()).collect();
    assert!(lens[..64].iter().all(|len| *len == 1 << 20), "{lens:?}");
    assert!(lens.len() < 80, "{lens:?}");
}

#[test]
fn a_large_buffer_gets_a_segment_of_its_own() {
    let mut pool = pool(1 << 20, 16 << 20);
    let buffer = pool.buffer(5 << 20).expect("room");
    assert_eq!(
        (buffer.region().segment, pool.segments()[1].len()),
        (1, 5 << 20)
    );
}

/// Small blocks had taken all of the arena, a segment at a time: no longer block was ever given out again.
#[test]
fn half_of_the_arena_stays_whole_for_a_long_block() {
    let mut pool = pool(1 << 20, 4 << 20);
    let held: Vec<_> = (0..64)
        .map(|_| pool.buffer(64 << 10).expect("room"))
        .collect();
    assert_eq!(pool.stats().in_use_bytes, 4 << 20);
    assert!(pool.buffer(1).is_err());
    drop(held);
    drop(pool.buffer(2 << 20).expect("half of it"));
    let full = MemoryError::Full {
        asked: (2 << 20) + PAGE_BYTES as u64,
        in_use: 0,
        longest: 2 << 20,
        limit: 4 << 20,
    };
    assert_eq!(pool.buffer((2 << 20) + 1).map(drop), Err(full));
}

/// Each new length had taken a segment of just that length, which held none of the next.
#[test]
fn lengths_that_grow_do_not_use_the_arena_up() {
    for limit in [4 << 20, 64 << 20, 67 << 20] {
        let mut pool = pool(1 << 20, limit);
        for len in (1 << 20..=limit as usize / 2).step_by(PAGE_BYTES) {
            drop(pool.buffer(len).expect("nothing is in use"));
        }
        assert!(pool.stats().mapped_bytes <= limit);
    }
}

#[test]
fn small_blocks_find_room_in_the_last_page() {
    // Two pages in all: no usual span fits, and each class still gets its one.
    let mut pool = pool(32 << 10, 32 << 10);
    let held = [
        pool.buffer(64).expect("room"),
        pool.buffer(9_000).expect("room"),
    ];
    assert!(pool.buffer(20_000).is_err());
    drop(held);
    pool.buffer(20_000)
        .expect("idle spans give their pages to another class");
}

#[test]
fn a_block_that_is_given_out_again_is_of_another_generation() {
    let mut pool = pool(1 << 20, 1 << 20);
    for len in [100, 100_000] {
        let buffer = pool.buffer(len).expect("room");
        let region = buffer.region();
        let tensor = buffer
            .into_tensor(meta(DType::U8, &[len as u64]))
            .expect("it fits");
        assert_eq!(tensor.region(), Some(region));
        drop(tensor);
        pool.reclaim();
        let again = pool.buffer(len).expect("room");
        assert_eq!(again.region().offset, region.offset, "the same block");
        assert_ne!(
            again.region().generation,
            region.generation,
            "another generation"
        );
    }
}

#[test]
fn a_buffer_too_short_for_its_tensor_comes_back() {
    let mut pool = pool(1 << 20, 1 << 20);
    let buffer = pool.buffer(15).expect("room");
    let misfit = buffer
        .into_tensor(meta(DType::F32, &[4]))
        .expect_err("too short");
    assert_eq!(
        misfit.error,
        TensorError::Size {
            expected: 16,
            actual: 15
        }
    );
    assert_eq!(misfit.buffer.len(), 15);
    let tensor = misfit
        .buffer
        .into_tensor(meta(DType::F32, &[3]))
        .expect("a tail is no harm");
    assert_eq!(tensor.size(), 12);
    let huge = TensorMeta {
        dtype: DType::C128,
        shape: Shape::new(&[1 << 62]).expect("a shape"),
    };
    assert_eq!(pool.builder(huge).map(drop), Err(TensorError::Huge.into()));
}

#[test]
fn strings_and_copies_lie_in_the_arena() {
    let mut pool = pool(1 << 20, 1 << 20);
    let (words, two) = (["left", "right"], Shape::new(&[2]).expect("a shape"));
    let room = |pool: &mut Pool, len: u64| pool.builder(meta(DType::U8, &[len])).expect("room");
    let tensor = room(&mut pool, 25)
        .finish_strings(&words, two)
        .expect("it fits");
    assert!(tensor.region().is_some());
    let strings = tensor.strings().expect("strings");
    assert_eq!(
        strings.iter().collect::<Vec<_>>(),
        [b"left".as_slice(), b"right"]
    );
    for (len, items) in [(26, &words[..]), (12, &words[..1])] {
        assert!(room(&mut pool, len).finish_strings(items, two).is_err());
    }
    let copy = pool
        .tensor_from(tensor.meta(), tensor.host().unwrap())
        .expect("room");
    assert_eq!(copy.bytes(), tensor.bytes());
    let wrong = pool.tensor_from(meta(DType::U8, &[3]), &[1, 2]);
    assert_eq!(
        wrong.map(drop),
        Err(TensorError::Size {
            expected: 3,
            actual: 2
        }
        .into())
    );
}
