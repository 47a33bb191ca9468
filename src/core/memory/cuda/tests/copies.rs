//! Tests of copies from device to device: within one and between two, in time, and the rule for freeing at both ends.

use super::super::super::{DeviceMemory, DevicePtr, Lane, Readiness};
use super::*;
use crate::ground::limits;

/// Another library's memory of device 0.
#[derive(Debug)]
struct Foreign(DevicePtr);

impl DeviceMemory for Foreign {
    fn place(&self) -> DevicePtr {
        self.0
    }
}

/// An arena of device 1 beside a side's own of device 0.
fn far(side: &Side) -> (Pool<DeviceArena>, Lanes) {
    let arena = DeviceArena::new(&side.accelerator, 1).unwrap();
    let pool = Pool::over(House::new(), arena, ArenaId(0x8002), CONFIG).unwrap();
    (pool, Lanes::new(&side.accelerator, 1))
}

fn copied(side: &Side, pool: &mut Pool<DeviceArena>, lane: Lane, of: &Tensor) -> Tensor {
    let to = pool.device_buffer(of.size(), &side.keeper).unwrap();
    let words = times(pool);
    lane.copy(of.clone(), to, &words, &side.keeper).unwrap()
}

#[test]
fn bytes_get_from_one_device_to_another_whether_or_not_they_reach_each_other() {
    let alone = alone();
    for peers in [true, false] {
        alone.played.can("peers", peers);
        let mut side = Side::new(alone.open()).unwrap();
        let readers: Vec<_> = (side.accelerator.devices().iter())
            .map(|one| one.readers)
            .collect();
        assert_eq!(readers, if peers { [2, 1] } else { [0, 0] });
        let (mut pool, lanes) = far(&side);
        let words = times(&pool);
        let mut back = Staging::new(&side.accelerator, 1, &words, 2, 1 << 16).unwrap();
        let before = alone.played.count(Some("cuMemcpyPeerAsync"));
        for (seed, len) in [1_usize, 4096, 200_001].into_iter().enumerate() {
            let sent = pattern(seed, len);
            let tensor = side.tensor(&sent).unwrap();
            let copy = copied(&side, &mut pool, lanes.take().unwrap(), &tensor);
            let mut out = vec![0; len];
            back.to_host(&copy, &mut out, &side.keeper).unwrap();
            assert_eq!(out, sent);
        }
        assert_eq!(alone.played.count(Some("cuMemcpyPeerAsync")) - before, 3);
        while side.keeper.count() > 0 {
            side.turn();
        }
        drop((back, words, pool, lanes, side));
    }
    alone.played.can("peers", true);
    alone.assert_clean();
}

#[test]
fn a_copy_waits_for_its_source_which_is_kept_until_it_is_over() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let (mut pool, lanes) = far(&side);
    let producer = side.staging.stream().handle() as usize;
    let produced = alone.hold(producer);
    let tensor = side.tensor(&pattern(7, 4096)).unwrap();
    let lane = lanes.take().unwrap();
    let stream = lane.stream().handle() as usize;
    let copy = copied(&side, &mut pool, lane, &tensor);
    drop(tensor);
    side.turn();
    // The lane waits for the source, and no other user is given it meanwhile.
    assert!(!copy.readiness().is_ready());
    let other = lanes.take().unwrap();
    assert_ne!(other.stream().handle() as usize, stream);
    drop(other);
    let copied_then = alone.hold(stream);
    drop(produced);
    while alone.played.pending(producer) > 0 {}
    for _ in 0..10 {
        side.turn();
    }
    assert_eq!(side.pool.reclaim(), 0, "the copy may read it still");
    drop(copied_then);
    while side.keeper.count() > 0 {
        side.turn();
    }
    assert!(copy.readiness().is_ready());
    assert_eq!(side.pool.reclaim(), 1);
    // Both lanes are idle again, the one that was given back first before the other.
    let idle = [lanes.take().unwrap(), lanes.take().unwrap()];
    assert_eq!(idle[1].stream().handle() as usize, stream);
    drop((copy, idle, pool, lanes, side));
    alone.assert_clean();
}

#[test]
fn a_lane_follows_another_librarys_stream() {
    let alone = alone();
    for words in [true, false] {
        alone.played.can("words", words);
        let mut side = Side::new(alone.open()).unwrap();
        let gates = times(&side.pool);
        let free = gates.free();
        let tensor = side.tensor(&pattern(1, 64)).unwrap();
        let theirs = Stream::new(&side.accelerator, 0).unwrap();
        let mut lane = side.lanes.take().unwrap();
        let held = words.then(|| alone.hold(theirs.handle() as usize));
        lane.follow(&theirs, &gates).unwrap();
        let to = side.buffer(64).unwrap();
        let copy = lane.copy(tensor.clone(), to, &gates, &side.keeper).unwrap();
        assert_eq!(copy.readiness().is_ready(), !words);
        drop(held);
        while side.keeper.count() > 0 {
            side.turn();
        }
        assert!(copy.readiness().is_ready());
        drop((tensor, copy, side.staging));
        assert_eq!(gates.free(), free, "each word is given back");
        drop((gates, theirs, side.pool, side.lanes));
    }
    alone.played.can("words", true);
    alone.assert_clean();
}

#[test]
fn copies_that_make_no_sense_are_refused_and_cost_nothing() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let tensor = side.tensor(&pattern(1, 64)).unwrap();
    let gates = times(&side.pool);
    let mut refused = |of: &Tensor, len: usize, device: u32| {
        let lanes = Lanes::new(&side.accelerator, device);
        let to = side.pool.device_buffer(len, &side.keeper).unwrap();
        let lane = lanes.take().unwrap();
        let error = lane.copy(of.clone(), to, &gates, &side.keeper).unwrap_err();
        assert_eq!(side.pool.reclaim(), 1);
        Status::from(error).reason().to_owned()
    };
    assert_eq!(refused(&tensor, 65, 0), "TENSOR_SHAPE");
    assert_eq!(refused(&tensor, 64, 1), catalogue::DEVICE_OTHER);
    let host = Tensor::scalar(1_u64);
    assert_eq!(refused(&host, 8, 0), catalogue::DESCRIPTOR_KIND);
    // Memory that is none: the driver says so.
    let place = DevicePtr {
        kind: MemoryKind::Cuda,
        device: 0,
        address: 0x1000,
        size: 64,
    };
    let foreign = Tensor::from_device(meta(64), Foreign(place)).unwrap();
    assert!(matches!(foreign.readiness(), Readiness::Ready));
    assert_eq!(refused(&foreign, 64, 0), catalogue::DEVICE_ARGUMENT);
    alone.played.can("copies", false);
    let (mut pool, lanes) = far(&side);
    let to = pool.device_buffer(64, &side.keeper).unwrap();
    let lane = lanes.take().unwrap();
    let error = lane.copy(tensor.clone(), to, &times(&pool), &side.keeper);
    assert_eq!(
        Status::from(error.unwrap_err()).reason(),
        catalogue::DEVICE_UNSUPPORTED
    );
    drop((tensor, foreign, gates, pool, lanes, side));
    alone.assert_clean();
}

/// A peer's stamps are its word: one that names no word of its is no event.
#[test]
fn an_event_that_was_never_recorded_is_refused() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let tensor = side.tensor(&pattern(1, 64)).unwrap();
    let (memory, _) = imported(&side.accelerator, &side.pool).unwrap();
    // A segment of the peer's that is full of ones, and one that names a word and no ticket.
    for stamp in [u64::MAX, 7 << 48] {
        let all = stamp.to_ne_bytes().repeat((64 << 10) / 8);
        let segment = super::super::super::Segment::create(0, 64 << 10, 64 << 10, HugePages::Off);
        let segment = segment.unwrap();
        // SAFETY: the segment is as long, is this test's alone, and nothing else touches it.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), segment.base(), all.len()) };
        let Export { fd, len, .. } = segment.export();
        let times = Arc::new(MappedSegment::open(fd, len).unwrap());
        let mut leases = Leases::new(1);
        let made = lease(&mut leases, &(Arc::clone(&memory), times), &tensor, 1);
        let status = Status::from(made.unwrap_err());
        assert_eq!(status.reason(), catalogue::DEVICE_EVENT, "{stamp:#x}");
        assert_eq!(leases.out(), 0);
    }
    drop((tensor, memory, side));
    alone.assert_clean();
}

/// A burst of copies made a stream for each, and all of them stayed.
#[test]
fn lanes_of_a_burst_end_but_some_dozens() {
    let alone = alone();
    let side = Side::new(alone.open()).unwrap();
    let before = alone.played.held().streams;
    let streams = || (alone.played.held().streams - before) as usize;
    let take = |count| -> Vec<_> { (0..count).map(|_| side.lanes.take().unwrap()).collect() };
    let burst = take(3 * limits::DEVICE_LANES_IDLE);
    assert_eq!(streams(), burst.len());
    drop(burst);
    assert_eq!(streams(), limits::DEVICE_LANES_IDLE);
    drop(take(limits::DEVICE_LANES_IDLE));
    assert_eq!(streams(), limits::DEVICE_LANES_IDLE, "they are used again");
    drop(side);
    alone.assert_clean();
}
