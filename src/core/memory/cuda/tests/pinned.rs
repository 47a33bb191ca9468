//! Tests of copies from and to memory of the host's that devices reach: as it lies, in time, and kept until they are
//! over.

use super::super::super::{Memfd, Pinned};
use super::*;

/// An arena of the host's, whose first segment the device reaches.
pub(super) fn near(side: &Side) -> Result<(Pool<Memfd>, Arc<Pinned>), MemoryError> {
    let pool = Pool::new(ArenaId(3), CONFIG)?;
    let segment = Arc::clone(&pool.segments()[0]);
    let len = segment.len();
    let pinned = Pinned::of(&side.accelerator, 0, segment, len)?;
    Ok((pool, Arc::new(pinned)))
}

/// Copies `sent` to a device and back, each by one copy.
pub(super) fn to_and_fro(side: &mut Side, sent: &[u8]) -> Result<(), MemoryError> {
    let (mut pool, pinned) = near(side)?;
    let words = times(&side.pool);
    let source = pool.tensor_from(meta(sent.len()), sent)?;
    let lane = side.lanes.take()?;
    let to = side.buffer(sent.len())?;
    let there = lane.to_device(source, Arc::clone(&pinned), to, &words, &side.keeper)?;
    let lane = side.lanes.take()?;
    let room = pool.builder(meta(sent.len()))?;
    let back = lane.to_host(&there, &pinned, room, &words, &side.keeper)?;
    assert!(
        back.host().is_ok_and(|back| back == sent),
        "what came back is what was sent"
    );
    Ok(())
}

#[test]
fn each_way_is_one_copy() {
    let alone = alone();
    for words in [true, false] {
        alone.played.can("words", words);
        let mut side = Side::new(alone.open()).unwrap();
        for (seed, len) in [65_usize, 4096, 1 << 20].into_iter().enumerate() {
            let count = |name| alone.played.count(Some(name));
            let before = [count("cuMemcpyHtoDAsync_v2"), count("cuMemcpyDtoHAsync_v2")];
            to_and_fro(&mut side, &pattern(seed, len)).unwrap();
            let after = [count("cuMemcpyHtoDAsync_v2"), count("cuMemcpyDtoHAsync_v2")];
            assert_eq!(after, before.map(|before| before + 1));
        }
        while side.keeper.count() > 0 {
            side.turn();
        }
        side.pool.reclaim();
        assert_eq!(side.pool.stats().blocks, 0);
        drop(side);
    }
    alone.played.can("words", true);
    alone.assert_clean();
}

#[test]
fn a_source_is_kept_until_its_copy_is_over() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let (mut pool, pinned) = near(&side).unwrap();
    let words = times(&side.pool);
    let source = pool.tensor_from(meta(5000), &pattern(1, 5000)).unwrap();
    let lane = side.lanes.take().unwrap();
    let held = alone.hold(lane.stream().handle() as usize);
    let to = side.buffer(5000).unwrap();
    let there = lane
        .to_device(source, Arc::clone(&pinned), to, &words, &side.keeper)
        .unwrap();
    drop(pinned);
    for _ in 0..10 {
        side.turn();
    }
    assert!(!there.readiness().is_ready());
    assert_eq!(pool.reclaim(), 0, "the copy reads it still");
    assert_eq!(alone.played.held().registered, alone.held.registered + 4);
    drop(held);
    while side.keeper.count() > 0 {
        side.turn();
    }
    assert!(there.readiness().is_ready());
    assert_eq!(pool.reclaim(), 1);
    assert_eq!(side.read(&there).unwrap(), pattern(1, 5000));
    drop((there, words, side));
    alone.assert_clean();
}

#[test]
fn what_is_not_there_or_too_short_is_refused_and_costs_nothing() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let (mut pool, pinned) = near(&side).unwrap();
    let words = times(&side.pool);
    let mut other = Pool::new(ArenaId(4), CONFIG).unwrap();
    let there = side.tensor(&pattern(1, 5000)).unwrap();
    let mut sent = |source: Tensor, len: usize| {
        let to = side.pool.device_buffer(len, &side.keeper).unwrap();
        let lane = side.lanes.take().unwrap();
        let made = lane.to_device(source, Arc::clone(&pinned), to, &words, &side.keeper);
        Status::from(made.unwrap_err()).reason().to_owned()
    };
    let outside = other.tensor_from(meta(5000), &pattern(1, 5000)).unwrap();
    assert_eq!(sent(outside, 5000), "REGION_OUTSIDE");
    let inside = pool.tensor_from(meta(5000), &pattern(1, 5000)).unwrap();
    assert_eq!(sent(inside, 5001), "TENSOR_SHAPE");
    assert_eq!(sent(there.clone(), 5000), catalogue::DESCRIPTOR_KIND);
    let brought = |of: &Tensor, room| {
        let lane = side.lanes.take().unwrap();
        let made = lane.to_host(of, &pinned, room, &words, &side.keeper);
        Status::from(made.unwrap_err()).reason().to_owned()
    };
    let outside = other.builder(meta(5000)).unwrap();
    assert_eq!(brought(&there, outside), "REGION_OUTSIDE");
    let long = pool.builder(meta(5001)).unwrap();
    assert_eq!(brought(&there, long), "TENSOR_SHAPE");
    let room = pool.builder(meta(5000)).unwrap();
    let here = pool.tensor_from(meta(5000), &pattern(1, 5000)).unwrap();
    assert_eq!(brought(&here, room), catalogue::DESCRIPTOR_KIND);
    drop(here);
    while side.keeper.count() > 0 {
        side.turn();
    }
    pool.reclaim();
    assert_eq!(pool.stats().blocks, 0);
    drop((there, words, pinned, side));
    alone.assert_clean();
}

/// A copy to the host is queued, and then nothing is known of its stream: what it reads and writes stays.
#[test]
fn room_that_a_device_may_still_write_is_kept_and_counted() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let (mut pool, pinned) = near(&side).unwrap();
    let words = times(&side.pool);
    let there = side.tensor(&pattern(1, 5000)).unwrap();
    while !there.readiness().is_ready() {}
    let lane = side.lanes.take().unwrap();
    let room = pool.builder(meta(5000)).unwrap();
    alone.played.fail(Some("cuStreamWriteValue64_v2"), 1, 999);
    alone.played.fail(Some("cuStreamSynchronize"), 1, 999);
    let error = lane.to_host(&there, &pinned, room, &words, &side.keeper);
    assert_eq!(
        Status::from(error.unwrap_err()).reason(),
        catalogue::DEVICE_CALL
    );
    drop((there, pinned));
    assert_eq!(side.keeper.quarantined(), 1);
    assert_eq!(side.accelerator.unreleased(), 1);
    assert_eq!((pool.reclaim(), side.pool.reclaim()), (0, 0));
    assert!(alone.played.held().registered > alone.held.registered);
    drop((pool, words, side));
    assert_eq!(alone.played.violations(), alone.violations);
}
