//! Tests of `mapped.rs`: every claim that does not hold is refused.

use rustix::fs::MemfdFlags;
use std::os::fd::OwnedFd;

use super::super::{ArenaConfig, ArenaId, HugePages, Pool};
use super::*;

fn file(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create(c"test", MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&fd, len).expect("resized");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("sealed");
    fd
}

const GOOD: SealFlags = SealFlags::SHRINK.union(SealFlags::FUTURE_WRITE);

#[test]
fn an_unsealed_descriptor_is_refused() {
    for seals in [
        SealFlags::empty(),
        SealFlags::SHRINK,
        SealFlags::GROW | SealFlags::WRITE,
        SealFlags::FUTURE_WRITE,
    ] {
        let error = MappedSegment::open(file(4096, seals), 4096).expect_err("unsealed");
        assert_eq!(
            error,
            MemoryError::Unsealed {
                seals: seals.bits()
            }
        );
    }
    let null = OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null"));
    assert_eq!(
        MappedSegment::open(null, 1).map(drop),
        Err(MemoryError::Unsealed { seals: 0 })
    );
    let plain = tempfile::tempfile().expect("a file");
    plain.set_len(4096).expect("resized");
    assert!(matches!(
        MappedSegment::open(OwnedFd::from(plain), 4096),
        Err(MemoryError::Unsealed { .. })
    ));
    for seals in [GOOD, SealFlags::SHRINK | SealFlags::WRITE] {
        MappedSegment::open(file(4096, seals), 4096).expect("sealed");
    }
}

#[test]
fn a_descriptor_shorter_than_claimed_is_refused() {
    for claimed in [0, 4097, 1 << 40, u64::MAX] {
        let error = MappedSegment::open(file(4096, GOOD), claimed).expect_err("short");
        assert_eq!(
            error,
            MemoryError::Short {
                claimed,
                size: 4096
            }
        );
    }
    assert_eq!(
        MappedSegment::open(file(5000, GOOD), 4500)
            .expect("long enough")
            .len(),
        4500
    );
}

#[test]
fn a_region_outside_the_claim_is_refused() {
    let mapped = MappedSegment::open(file(8192, GOOD), 5000).expect("mapped");
    let at = |offset, len| {
        mapped
            .slice(Region {
                offset,
                len,
                ..Region::default()
            })
            .map(<[u8]>::len)
    };
    assert_eq!(
        (at(0, 5000), at(4999, 1), at(5000, 0)),
        (Ok(5000), Ok(1), Ok(0))
    );
    for (offset, len) in [
        (0, 5001),
        (4999, 2),
        (5000, 1),
        (5001, 0),
        (u64::MAX, 1),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
    ] {
        assert_eq!(
            at(offset, len),
            Err(MemoryError::Outside {
                offset,
                len,
                segment_len: 5000
            })
        );
    }
}

#[test]
fn what_a_pool_writes_is_read_where_it_lies() {
    let config = ArenaConfig {
        segment_bytes: 1 << 20,
        bytes_max: 1 << 20,
        huge_pages: HugePages::Auto,
    };
    let mut pool = Pool::new(ArenaId(0), config).expect("a pool");
    let segment = pool.segments()[0].clone();
    let fd = segment.fd().try_clone_to_owned().expect("a descriptor");
    let mapped = MappedSegment::open(fd, segment.len() as u64).expect("mapped");
    let mut buffer = pool.buffer(1000).expect("room");
    buffer.fill(42);
    assert_eq!(mapped.slice(buffer.region()), Ok(&[42u8; 1000][..]));
}
