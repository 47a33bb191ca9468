//! Tests of `pool.rs`.

use super::*;

fn pool(segment_bytes: usize, bytes_max: u64) -> Pool {
    Pool::new(ArenaId(3), ArenaConfig { segment_bytes, bytes_max, huge_pages: HugePages::Off })
        .expect("a pool")
}

use super::super::HugePages;

#[test]
fn a_buffer_is_written_and_comes_home() {
    let mut pool = pool(1 << 20, 1 << 20);
    let mut buffer = pool.buffer(100).expect("room");
    buffer.fill(7);
    assert!(pool.is_current(buffer.region()));
    let region = buffer.region();
    drop(buffer);
    assert!(!pool.is_current(region));
    assert_eq!(pool.reclaim(), 1);
    assert_eq!(pool.stats().in_use_bytes, 0);
}
