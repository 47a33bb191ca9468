//! Tests of `memfd.rs`: what the seals forbid, tried.

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::*;

fn segment(huge: HugePages) -> Segment {
    Segment::create(0, 64 << 10, 8 << 20, huge).expect("a segment")
}

#[test]
fn nobody_can_resize_or_write_to_a_segment_but_through_our_mapping() {
    let segment = segment(HugePages::Off);
    let fd = segment.fd();
    assert_eq!(rustix::fs::ftruncate(fd, 100), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(fd, 1 << 20), Err(Errno::PERM));
    assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(Errno::PERM));
    assert_eq!(
        rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE),
        Err(Errno::PERM)
    );
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = rustix::fs::fallocate(fd, hole, 0, 64 << 10);
    assert_eq!(punched, Err(Errno::PERM));
    let writable = Mapping::new(fd, 0, 4096, MapAccess::Write, "a test");
    let refused = writable.expect_err("sealed").refused();
    assert_eq!(refused, Some(("mmap", Errno::PERM.raw_os_error())));
    // SAFETY: our own mapping stays writable, and no other code knows of it.
    unsafe { segment.base().write(7) };
    let mut byte = [0];
    rustix::io::pread(fd, &mut byte, 0).expect("readable");
    assert_eq!(byte, [7]);
}

#[test]
fn a_segment_says_which_pages_it_got() {
    assert_eq!(segment(HugePages::Off).huge_pages(), HugePagesReport::Off);
    let auto = segment(HugePages::Auto);
    assert_eq!(
        auto.is_huge(),
        matches!(auto.huge_pages(), HugePagesReport::Reserved { .. })
    );
    match Segment::create(0, 64 << 10, 8 << 20, HugePages::Require) {
        Ok(segment) => assert!(segment.is_huge() && segment.len() >= 2 << 20),
        Err(error) => {
            assert!(matches!(error, MemoryError::HugePages { .. }), "{error}");
            assert!(!auto.is_huge(), "what is required and what is tried agree");
        }
    }
}
