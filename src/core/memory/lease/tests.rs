//! Tests of `lease.rs`: tokens come back once, the mapping lives as long as it is read, tables end early.

use std::sync::Arc;
use std::thread;

use super::{
    ArenaConfig, ArenaId, HugePages, LeaseToken, Leases, MappedSegment, MemoryError, Pool, Tensor,
};
use crate::ground::{DType, Region, Shape, TensorMeta};

/// A pool, a written buffer of 1000 bytes of it, and the mapping a peer would have.
fn peer() -> (Pool, Tensor, Arc<MappedSegment>) {
    let config = ArenaConfig {
        segment_bytes: 1 << 20,
        bytes_max: 1 << 20,
        huge_pages: HugePages::Off,
    };
    let mut pool = Pool::new(ArenaId(0), config).expect("a pool");
    let mut builder = pool.builder(*META).expect("room");
    builder.bytes_mut().fill(9);
    let segment = &pool.segments()[0];
    let fd = segment.fd().try_clone_to_owned().expect("a descriptor");
    let mapped = MappedSegment::open(fd, segment.len() as u64).expect("mapped");
    (pool, builder.finish(), Arc::new(mapped))
}

static META: std::sync::LazyLock<TensorMeta> = std::sync::LazyLock::new(|| TensorMeta {
    dtype: DType::U8,
    shape: Shape::new(&[1000]).expect("a shape"),
});

fn tokens(leases: &mut Leases) -> Vec<LeaseToken> {
    let mut tokens = Vec::new();
    let count = leases.reclaim(|token| tokens.push(token));
    assert_eq!(count, tokens.len());
    tokens.sort_unstable();
    tokens
}

#[test]
fn a_token_comes_back_once_after_the_last_clone() {
    let (_pool, source, mapped) = peer();
    let mut leases = Leases::new(8);
    let region = source.region().expect("in the arena");
    let tensor = leases.make(mapped, region, *META, 77).expect("an entry");
    assert!(tensor.is_leased() && tensor.region().is_none());
    assert_eq!(tensor.bytes(), source.bytes());
    assert_ne!(
        tensor.host().unwrap().as_ptr(),
        source.host().unwrap().as_ptr(),
        "through the peer's own mapping"
    );
    let clone = tensor.clone();
    drop(tensor);
    assert!(tokens(&mut leases).is_empty());
    thread::spawn(move || drop(clone)).join().expect("dropped");
    assert_eq!(
        (tokens(&mut leases), tokens(&mut leases), leases.out()),
        (vec![77], vec![], 0)
    );
}

#[test]
fn the_mapping_lives_until_the_lease_is_taken_home() {
    let (_pool, source, mapped) = peer();
    let mut leases = Leases::new(1);
    let weak = Arc::downgrade(&mapped);
    let tensor = leases
        .make(mapped, source.region().expect("a region"), *META, 1)
        .expect("an entry");
    assert_eq!(tensor.host().unwrap()[999], 9);
    drop(tensor);
    assert!(weak.upgrade().is_some());
    leases.reclaim(|_| assert!(weak.upgrade().is_none(), "let go before the token is told"));
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_full_table_refuses_and_has_room_again() {
    let (_pool, source, mapped) = peer();
    let mut leases = Leases::new(2);
    let region = source.region().expect("a region");
    let held: Vec<_> = (0..2)
        .map(|n| {
            leases
                .make(mapped.clone(), region, *META, n)
                .expect("an entry")
        })
        .collect();
    let refused = leases.make(mapped.clone(), region, *META, 2).map(drop);
    assert_eq!(refused, Err(MemoryError::LeasesOut { capacity: 2 }));
    drop(held);
    assert_eq!(tokens(&mut leases), [0, 1]);
    leases
        .make(mapped.clone(), region, *META, 3)
        .expect("an entry");
    assert_eq!(
        Leases::new(0).make(mapped, region, *META, 4).map(drop),
        Err(MemoryError::LeasesOut { capacity: 0 })
    );
}

/// A table names its own leases only: not another table's, nor a tensor that is no lease.
#[test]
fn a_table_knows_its_own_tensors() {
    let (_pool, source, mapped) = peer();
    let (mut leases, mut others) = (Leases::new(2), Leases::new(2));
    let region = source.region().expect("a region");
    let tensor = leases
        .make(mapped.clone(), region, *META, 7)
        .expect("an entry");
    let other = others.make(mapped, region, *META, 8).expect("an entry");
    let shape = Shape::new(&[10, 100]).expect("a shape");
    for same in [tensor.clone(), tensor.reshaped(shape).expect("as many")] {
        assert_eq!(leases.token_of(&same), Some(7));
    }
    assert_eq!(others.token_of(&other), Some(8));
    assert_eq!(
        (leases.token_of(&other), leases.token_of(&source)),
        (None, None)
    );
    assert!(leases.retag(|token| token == 7, 9));
    assert_eq!(leases.token_of(&tensor), Some(9));
}

#[test]
fn false_claims_take_no_entry() {
    let (_pool, source, mapped) = peer();
    let mut leases = Leases::new(1);
    let region = source.region().expect("a region");
    let outside = leases.make(
        mapped.clone(),
        Region {
            offset: u64::MAX,
            ..region
        },
        *META,
        1,
    );
    assert!(matches!(outside, Err(MemoryError::Outside { .. })));
    let short = leases.make(mapped, Region { len: 999, ..region }, *META, 1);
    assert!(matches!(short, Err(MemoryError::Tensor(_))));
    assert_eq!(leases.out(), 0);
}

#[test]
fn leased_tensors_outlive_their_table() {
    let (pool, source, mapped) = peer();
    let mut leases = Leases::new(16);
    let weak = Arc::downgrade(&mapped);
    let region = source.region().expect("a region");
    let held: Vec<_> = (0..8)
        .map(|n| {
            leases
                .make(mapped.clone(), region, *META, n)
                .expect("an entry")
        })
        .collect();
    drop(mapped);
    drop(leases);
    drop((pool, source));
    let threads: Vec<_> = held
        .into_iter()
        .map(|tensor| {
            thread::spawn(move || assert!(tensor.host().unwrap().iter().all(|&byte| byte == 9)))
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("readable to the end"));
    assert!(weak.upgrade().is_none(), "unmapped with the last tensor");
}
