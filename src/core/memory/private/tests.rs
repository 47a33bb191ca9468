//! Tests of `private.rs`: writes stay with the writer, pages are the tensor's alone, and claims are worth nothing.

use std::sync::Arc;

use super::super::{
    Arena, ArenaConfig, ArenaId, ArenaSegment, HugePages, Leases, MappedSegment, Memfd, Pool,
};
use super::*;
use crate::ground::rng::Rng;
use crate::ground::{DType, Region, Shape};

/// Two pages and a bit.
const LEN: usize = 9000;

fn pool(huge_pages: HugePages) -> Pool {
    let config = ArenaConfig {
        segment_bytes: 8 << 20,
        bytes_max: 16 << 20,
        huge_pages,
    };
    Pool::new(ArenaId(3), config).expect("a pool")
}

fn meta(len: usize) -> TensorMeta {
    TensorMeta::new(DType::U8, Shape::from([len as u64])).expect("a size")
}

/// A tensor of `byte`s in pages of its own.
fn paged(pool: &mut Pool, len: usize, byte: u8) -> Tensor {
    let mut builder = pool.paged_builder(meta(len)).expect("room");
    builder.bytes_mut().fill(byte);
    builder.finish()
}

/// The first segment, as a peer has it.
fn mapped(pool: &Pool) -> Arc<MappedSegment> {
    let segment = &pool.segments()[0];
    Arc::new(Memfd::default().import(segment.export()).expect("mapped"))
}

fn holds(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|&at| at == byte)
}

#[test]
fn what_is_written_stays_with_its_writer() {
    let mut pool = pool(HugePages::Auto);
    let source = paged(&mut pool, LEN, 5);
    let region = source.region().expect("in the arena");
    assert!(region.owns_pages);
    let mut leases = Leases::new(4);
    let [one, other] = [1, 2].map(|token| {
        leases
            .make(mapped(&pool), region, meta(LEN), token)
            .expect("an entry")
    });
    // Over a lease, over another lease, and over the block itself.
    let mut mine = one.map_private().expect("whole pages");
    let mut others = other.map_private().expect("whole pages");
    let mut owners = source.map_private().expect("whole pages");
    mine.bytes_mut()[4096..].fill(6);
    others.as_mut_slice::<u8>().expect("bytes")[0] = 7;
    owners.bytes_mut().fill(8);
    assert!(holds(&mine.bytes()[..4096], 5) && holds(&mine.bytes()[4096..], 6));
    assert!(others.bytes()[0] == 7 && holds(&others.as_slice::<u8>().expect("bytes")[1..], 5));
    assert!(holds(owners.as_ref(), 8));
    for reader in [&source, &one, &other] {
        assert!(holds(reader.host().expect("of the host"), 5));
    }
    assert_eq!(mine.meta(), meta(LEN));
    assert_eq!(
        mine.as_slice::<f32>().map(<[f32]>::len),
        Err(TensorError::Dtype {
            expected: DType::F32,
            actual: DType::U8
        })
    );
}

#[test]
fn a_mapping_keeps_its_lease_and_outlives_the_owner() {
    let mut pool = pool(HugePages::Auto);
    let source = paged(&mut pool, LEN, 5);
    let region = source.region().expect("in the arena");
    let mut leases = Leases::new(4);
    let lease = leases
        .make(mapped(&pool), region, meta(LEN), 77)
        .expect("an entry");
    let mut mine = lease.map_private().expect("whole pages");
    drop(lease);
    assert_eq!(leases.reclaim(|_| {}), 0, "the mapping keeps it");
    drop(source);
    drop(pool);
    mine.bytes_mut()[0] = 1;
    assert!(holds(&mine.bytes()[1..], 5), "also when its owner has gone");
    drop(mine);
    let mut tokens = Vec::new();
    assert_eq!(leases.reclaim(|token| tokens.push(token)), 1);
    assert_eq!(tokens, [77]);
}

#[test]
fn a_mapping_of_a_block_keeps_it() {
    let mut pool = pool(HugePages::Auto);
    let mine = paged(&mut pool, LEN, 5).map_private().expect("whole pages");
    assert_eq!(pool.reclaim(), 0);
    assert!(holds(mine.bytes(), 5));
    drop(mine);
    assert_eq!((pool.reclaim(), pool.stats().in_use_bytes), (1, 0));
    // The next tenant of these pages may be a packed one, and says so.
    let next = pool.buffer(LEN * 10).expect("room");
    assert!(!next.region().owns_pages);
}

#[test]
fn nobody_elses_bytes_lie_in_its_pages() {
    let mut pool = pool(HugePages::Auto);
    let page = pool.segments()[0].paged().expect("a file").page_bytes as u64;
    let mapped = mapped(&pool);
    let mut rng = Rng::new(7);
    let mut held: Vec<(Region, Tensor)> = Vec::new();
    let mut seen = 0;
    for round in 0..4000 {
        let len = 1 + rng.below(40_000) as usize;
        let is_paged = rng.one_in(2);
        let room = if is_paged {
            pool.paged_builder(meta(len))
        } else {
            pool.builder(meta(len))
        };
        let is_full = room.is_err();
        if let Ok(mut builder) = room {
            // Everything that ever lay here is seen if it is left behind.
            builder.bytes_mut().fill(0xff);
            if let Some(region) = builder.region() {
                assert_eq!(region.owns_pages, is_paged);
                held.push((region, builder.finish()));
            }
        }
        if held.len() > 60 || is_full {
            held.swap_remove(rng.below(held.len() as u64) as usize);
        }
        if round % 10 != 0 {
            continue;
        }
        let here = |(region, _): &&(Region, Tensor)| region.segment == 0;
        for (region, _) in held
            .iter()
            .filter(here)
            .filter(|(region, _)| region.owns_pages)
        {
            assert_eq!(region.offset % page, 0);
            let whole = region.len.next_multiple_of(page);
            let ends = region.offset + whole;
            let alone = held.iter().filter(here).all(|(other, _)| {
                other == region || other.offset >= ends || other.offset + other.len <= region.offset
            });
            assert!(alone, "another block lies in {region:?}");
            seen += 1;
            let padded = Region {
                len: whole,
                ..*region
            };
            let bytes = mapped.slice(padded).expect("within the segment");
            let (its, padding) = bytes.split_at(region.len as usize);
            assert!(holds(its, 0xff) && holds(padding, 0), "{region:?}");
        }
    }
    assert!(seen > 100, "{seen}");
}

#[test]
fn what_shares_its_pages_has_no_private_mapping() {
    let mut pool = pool(HugePages::Off);
    let packed = pool.tensor_from(meta(LEN), &[9; LEN]).expect("room");
    let region = packed.region().expect("in the arena");
    let mut leases = Leases::new(4);
    let leased = leases
        .make(mapped(&pool), region, meta(LEN), 1)
        .expect("an entry");
    // A peer that lies of a region that begins no page: its offset is no place to map from.
    let inside = pool.tensor_from(meta(100), &[9; 100]).expect("room");
    let lie = Region {
        owns_pages: true,
        offset: inside.region().expect("in the arena").offset + 64,
        len: 100,
        ..region
    };
    let lied = leases
        .make(mapped(&pool), lie, meta(100), 2)
        .expect("an entry");
    let foreign = Tensor::from_vec(vec![0_u8; LEN], Shape::from([LEN as u64])).expect("a tensor");
    for tensor in [packed, leased, lied, foreign, Tensor::scalar(1.0_f64)] {
        assert_eq!(
            tensor.map_private().map(drop),
            Err(MemoryError::Unpaged),
            "{tensor:?}"
        );
    }
    // One byte of a kind that needs no handle elsewhere, and none at all.
    assert_eq!(
        paged(&mut pool, 1, 4)
            .map_private()
            .expect("a page")
            .bytes(),
        [4]
    );
    let mut empty = paged(&mut pool, 0, 0)
        .map_private()
        .expect("nothing to map");
    assert!(empty.bytes_mut().is_empty());
}

/// A lie about pages of the peer's own shows no more than the tensor's bytes; at the very end of its segment too.
#[test]
fn a_claim_at_the_end_of_a_segment_is_mapped_to_the_end_and_no_further() {
    let pool = pool(HugePages::Off);
    let segment = mapped(&pool);
    let len = 100;
    let last = Region {
        owns_pages: true,
        offset: segment.len() as u64 - 4096,
        len,
        ..Region::default()
    };
    let mut leases = Leases::new(2);
    let lease = leases
        .make(Arc::clone(&segment), last, meta(100), 1)
        .expect("an entry");
    let mut mine = lease.map_private().expect("the last page");
    mine.bytes_mut().fill(1);
    assert_eq!(mine.bytes().len(), 100);
    let beyond = Region { len: 5000, ..last };
    assert!(matches!(
        leases.make(segment, beyond, meta(5000), 2),
        Err(MemoryError::Outside { .. })
    ));
}

#[test]
fn a_full_arena_refuses_whole_pages_and_has_room_again() {
    let mut pool = pool(HugePages::Off);
    let held: Vec<_> = std::iter::from_fn(|| pool.paged_builder(meta(LEN)).ok()).collect();
    assert_eq!(held.len(), (16 << 20) / (16 << 10));
    assert!(matches!(
        pool.paged_builder(meta(LEN)).map(drop),
        Err(MemoryError::Full { .. })
    ));
    drop(held);
    assert!(pool.paged_builder(meta(8 << 20)).is_ok());
    assert!(matches!(
        pool.paged_builder(meta(1 << 45)).map(drop),
        Err(MemoryError::Unfit { .. })
    ));
}
