//! Tests of time: values that are not there yet, streams that wait, and the rule for freeing. Streams are held, so that
//! nothing passes but what a test lets pass.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::super::{
    DeviceMemory, DevicePtr, Ordered, Readiness, lend_after, order_after, release_after,
};
use super::*;

/// A side whose copier is held.
fn held_side(alone: &Alone) -> (Side, usize) {
    let side = Side::new(alone.open()).unwrap();
    let stream = side.staging.stream().handle() as usize;
    assert!(alone.played.hold(stream, true));
    (side, stream)
}

#[test]
fn a_value_is_sent_before_it_is_there_and_both_sides_see_when_it_is() {
    let alone = alone();
    let (mut side, stream) = held_side(&alone);
    let view = imported(&side.accelerator, &side.pool).unwrap();
    let mut leases = Leases::new(1);
    let tensor = side.tensor(&pattern(1, 4096)).unwrap();
    let leased = lease(&mut leases, &view, &tensor, 1).unwrap();
    let is_ready = || (tensor.readiness().is_ready(), leased.readiness().is_ready());
    assert_eq!(is_ready(), (false, false));
    let calls = alone.played.count(None);
    assert_eq!(is_ready(), (false, false));
    assert_eq!(
        alone.played.count(None),
        calls,
        "to look costs no call of the driver"
    );
    // The copy, then the chunk's mark, then the tensor's.
    for _ in 0..2 {
        assert!(alone.played.step(stream, 1));
        assert_eq!(is_ready(), (false, false));
    }
    assert!(alone.played.step(stream, 1));
    assert_eq!(is_ready(), (true, true));
    assert!(alone.played.hold(stream, false));
    assert_eq!(side.read(&leased).unwrap(), pattern(1, 4096));
    drop((tensor, leased, leases, view, side));
    alone.assert_clean();
}

#[test]
fn a_block_does_not_go_home_before_its_writer_is_past_it() {
    let alone = alone();
    let (mut side, stream) = held_side(&alone);
    let tensor = side.tensor(&pattern(1, 4096)).unwrap();
    let TensorBytes::Device(place) = tensor.bytes() else {
        panic!("it lies on the device");
    };
    drop(tensor);
    assert_eq!((side.turn(), side.keeper.count()), (0, 1));
    assert_eq!(side.pool.reclaim(), 0, "the stream has not written it yet");
    // None that is given out meanwhile is that memory.
    let others: Vec<_> = (0..64).map(|_| side.buffer(4096).unwrap()).collect();
    assert!(
        others
            .iter()
            .all(|other| other.place().address != place.address)
    );
    assert!(alone.played.hold(stream, false));
    assert_eq!((side.turn(), side.keeper.count()), (1, 0));
    assert_eq!(side.pool.reclaim(), 1);
    drop((others, side));
    alone.assert_clean();
}

#[test]
fn a_lease_does_not_end_before_its_readers_stream_is_past_it() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let view = imported(&side.accelerator, &side.pool).unwrap();
    let mut leases = Leases::new(1);
    let tensor = side.tensor(&pattern(1, 4096)).unwrap();
    let leased = lease(&mut leases, &view, &tensor, 9).unwrap();
    let reader = Stream::new(&side.accelerator, 0).unwrap();
    assert!(alone.played.hold(reader.handle() as usize, true));
    release_after(leased, &reader, &times(&side.pool), &side.keeper).unwrap();
    side.turn();
    assert_eq!(leases.reclaim(|_| {}), 0, "the stream may read it still");
    assert!(alone.played.hold(reader.handle() as usize, false));
    assert_eq!(side.turn(), 1);
    let mut ended = Vec::new();
    assert_eq!(leases.reclaim(|token| ended.push(token)), 1);
    assert_eq!(ended, [9]);
    drop((tensor, leases, view, reader, side));
    alone.assert_clean();
}

#[test]
fn a_stream_waits_for_a_peers_work_and_the_host_does_not() {
    let alone = alone();
    let (mut side, writer) = held_side(&alone);
    let view = imported(&side.accelerator, &side.pool).unwrap();
    let mut leases = Leases::new(1);
    let tensor = side.tensor(&pattern(1, 4096)).unwrap();
    let leased = lease(&mut leases, &view, &tensor, 1).unwrap();
    let reader = Stream::new(&side.accelerator, 0).unwrap();
    let gates = times(&side.pool);
    let ordered = order_after(&leased, &reader, &gates, &side.keeper);
    assert_eq!(ordered, Ordered::Stream);
    release_after(leased, &reader, &gates, &side.keeper).unwrap();
    side.turn();
    // It waits, and with it what was queued behind.
    let pending = || alone.played.pending(reader.handle() as usize);
    assert_eq!((pending(), side.keeper.count()), (3, 2));
    assert!(alone.played.hold(writer, false));
    while side.keeper.count() > 0 {
        side.turn();
        assert_eq!(pending(), 0);
    }
    assert_eq!(leases.reclaim(|_| {}), 1);
    // What is there is waited for by none.
    let leased = lease(&mut leases, &view, &tensor, 2).unwrap();
    assert_eq!(
        order_after(&leased, &reader, &gates, &side.keeper),
        Ordered::Ready
    );
    drop((tensor, leased, leases, view, reader, gates, side));
    alone.assert_clean();
}

#[test]
fn no_stream_waits_for_a_process_that_is_gone() {
    let alone = alone();
    let (mut side, writer) = held_side(&alone);
    let view = imported(&side.accelerator, &side.pool).unwrap();
    let mut leases = Leases::new(1);
    let tensor = side.tensor(&pattern(1, 4096)).unwrap();
    let leased = lease(&mut leases, &view, &tensor, 1).unwrap();
    let reader = Stream::new(&side.accelerator, 0).unwrap();
    let ordered = order_after(&leased, &reader, &times(&side.pool), &side.keeper);
    assert_eq!((ordered, side.turn()), (Ordered::Stream, 0));
    view.1.orphan();
    assert_eq!(side.turn(), 1);
    assert_eq!(alone.played.pending(reader.handle() as usize), 0);
    // Who looks is told that the bytes never came.
    let Readiness::After(event) = leased.readiness() else {
        panic!("it was not there when it came");
    };
    assert!(!event.is_over() && event.is_lost());
    let mut other = Side::new(Arc::clone(&side.accelerator)).unwrap();
    assert_eq!(other.read(&leased).unwrap_err(), MemoryError::Lost);
    assert_eq!(other.turn(), 1, "nor does the copier's stream wait");
    assert!(alone.played.hold(writer, false));
    drop((tensor, leased, leases, view, reader, other));
    while side.keeper.count() > 0 {
        side.turn();
    }
    drop(side);
    alone.assert_clean();
}

/// The owner dies while the reader's stream waits for its work, or the keeper that watches for it ends: the stream goes
/// on, and what it copies was never written.
#[test]
fn who_reads_while_the_owner_dies_is_told_that_the_bytes_never_came() {
    let alone = alone();
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    let outcomes = ways.map(|(is_pinned, has_ended)| {
        let (mut side, writer) = held_side(&alone);
        let view = imported(&side.accelerator, &side.pool).unwrap();
        let mut leases = Leases::new(1);
        let tensor = side.tensor(&pattern(1, 4096)).unwrap();
        let leased = lease(&mut leases, &view, &tensor, 1).unwrap();
        let mut other = Side::new(Arc::clone(&side.accelerator)).unwrap();
        let (keeper, mut watch) = (Arc::clone(&other.keeper), Watch::default());
        let is_woken = Arc::new(AtomicBool::new(false));
        let woken = Arc::clone(&is_woken);
        keeper.set_wake(move || woken.store(true, Ordering::Release));
        let read = std::thread::scope(|scope| {
            let (leased, other) = (&leased, &mut other);
            let reader = scope.spawn(move || {
                if !is_pinned {
                    return other.read(leased).map(drop);
                }
                let (mut pool, pinned) = super::pinned::near(other)?;
                let out = pool.builder(leased.meta())?;
                let (lane, words) = (other.lanes.take()?, times(&other.pool));
                let read = lane.to_host(leased, &pinned, out, &words, &other.keeper);
                read.map(drop)
            });
            // Its stream waits: the keeper watches for the owner's word.
            while !is_woken.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert_eq!(keeper.turn(&mut watch, Nanos::ZERO), 0);
            if has_ended {
                assert!(keeper.end(&mut watch, true));
            } else {
                view.1.orphan();
                while keeper.turn(&mut watch, Nanos::ZERO) == 0 {
                    std::thread::yield_now();
                }
            }
            reader.join().unwrap()
        });
        assert!(alone.played.hold(writer, false));
        drop((tensor, leased, leases, view, other));
        while side.keeper.count() > 0 {
            side.turn();
        }
        drop(side);
        read
    });
    assert_eq!(outcomes, [Err(MemoryError::Lost); 4]);
    alone.assert_clean();
}

#[test]
fn marks_that_are_all_out_make_the_host_wait_and_come_back() {
    let alone = alone();
    let side = Side::new(alone.open()).unwrap();
    let times = times(&side.pool);
    let stream = Stream::new(&side.accelerator, 0).unwrap();
    let marks: Vec<_> = (0..crate::ground::limits::DEVICE_MARKS)
        .map(|_| times.mark(&stream).unwrap().expect("a word is free"))
        .collect();
    assert_eq!(times.free(), 0);
    assert!(
        times.mark(&stream).unwrap().is_none(),
        "the stream was waited for"
    );
    drop(marks);
    assert_eq!(times.free(), crate::ground::limits::DEVICE_MARKS);
    drop((times, stream, side));
    alone.assert_clean();
}

/// Memory of another library's, that says when it is let go.
#[derive(Debug)]
struct Lent(DevicePtr, Arc<AtomicBool>);

impl DeviceMemory for Lent {
    fn place(&self) -> DevicePtr {
        self.0
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Ready
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

/// Tensors whose last handles go when no thread turns the keeper any more: it looks at them when something else comes,
/// when it is asked to, or at last when it goes itself.
#[test]
fn what_comes_when_no_thread_turns_the_keeper_is_let_go_of_too() {
    let alone = alone();
    for way in 0..3 {
        let mut side = Side::new(alone.open()).unwrap();
        let held = alone.hold(side.staging.stream().handle() as usize);
        let tensor = side.tensor(&pattern(1, 4096)).unwrap();
        let (lent, read) = (side.buffer(4096).unwrap(), side.buffer(4096).unwrap());
        let read = read.into_tensor(meta(4096)).unwrap();
        let is_back = Arc::new(AtomicBool::new(false));
        let memory = Lent(lent.place(), Arc::clone(&is_back));
        let (gates, writer) = (times(&side.pool), side.staging.stream());
        let loan = lend_after(meta(4096), memory, writer, &gates, &side.keeper).unwrap();
        assert!(side.keeper.end(&mut side.watch, false));
        drop((tensor, loan));
        side.keeper.sweep();
        assert_eq!(side.keeper.count(), 2, "the stream is not past them");
        assert!(!is_back.load(Ordering::Relaxed));
        drop(held);
        let reader = Stream::new(&side.accelerator, 0).unwrap();
        match way {
            0 => side.keeper.sweep(),
            1 => {
                let _held = alone.hold(reader.handle() as usize);
                release_after(read.clone(), &reader, &gates, &side.keeper).unwrap();
            }
            _ => {}
        }
        let left = [0, 1, 2][way];
        assert_eq!(
            (side.keeper.count(), is_back.load(Ordering::Relaxed)),
            (left, way < 2)
        );
        if way == 1 {
            // The tensor that is kept keeps the keeper.
            side.keeper.sweep();
        }
        drop((lent, read, gates, reader, side));
        assert!(is_back.load(Ordering::Relaxed));
    }
    alone.assert_clean();
}

/// The keeper's thread ends while a reader lets its stream wait: no gate is left that none will open.
#[test]
fn no_stream_waits_for_a_keeper_that_has_ended() {
    let alone = alone();
    for is_before in [true, false] {
        let mut side = Side::new(alone.open()).unwrap();
        let held = alone.hold(side.staging.stream().handle() as usize);
        let tensor = side.tensor(&pattern(1, 4096)).unwrap();
        let reader = Stream::new(&side.accelerator, 0).unwrap();
        let gates = times(&side.pool);
        if is_before {
            assert!(side.keeper.end(&mut side.watch, false));
        }
        let ordered = order_after(&tensor, &reader, &gates, &side.keeper);
        if is_before {
            assert_eq!(ordered, Ordered::Host);
        } else {
            assert_eq!(ordered, Ordered::Stream);
            assert!(!side.keeper.end(&mut side.watch, false), "a gate is kept");
            assert!(side.keeper.end(&mut side.watch, true));
        }
        assert_eq!(alone.played.pending(reader.handle() as usize), 0);
        side.keeper.sweep();
        assert_eq!(side.keeper.count(), 0);
        drop(held);
        drop((tensor, reader, gates, side));
    }
    alone.assert_clean();
}

/// A gate is open, and its engine ends: the stream that waits at it has other work to do first, and looks later.
#[test]
fn the_word_of_a_gate_stays_until_the_stream_is_past_it() {
    let alone = alone();
    let (mut side, writer) = held_side(&alone);
    let mut other = Side::new(Arc::clone(&side.accelerator)).unwrap();
    let tensor = side.tensor(&pattern(1, 4096)).unwrap();
    let reader = Stream::new(&side.accelerator, 0).unwrap();
    let held = alone.hold(reader.handle() as usize);
    let ordered = order_after(&tensor, &reader, &times(&other.pool), &other.keeper);
    assert_eq!(ordered, Ordered::Stream);
    drop(tensor);
    assert!(alone.played.hold(writer, false));
    assert_eq!(other.turn(), 1, "the gate opens");
    let (keeper, mut watch) = (Arc::clone(&other.keeper), std::mem::take(&mut other.watch));
    drop(other);
    assert_eq!(
        (keeper.turn(&mut watch, Nanos::ZERO), keeper.count()),
        (0, 1)
    );
    drop(held);
    assert_eq!(alone.played.pending(reader.handle() as usize), 0);
    assert_eq!(
        (keeper.turn(&mut watch, Nanos::ZERO), keeper.count()),
        (1, 0)
    );
    while side.keeper.count() > 0 {
        side.turn();
    }
    drop((reader, side));
    alone.assert_clean();
}

/// Memory whose drop panics.
#[derive(Debug)]
struct Spiteful(DevicePtr);

impl DeviceMemory for Spiteful {
    fn place(&self) -> DevicePtr {
        self.0
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Ready
    }
}

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("as a library's might");
    }
}

#[test]
fn a_drop_that_panics_does_not_end_the_keepers_thread() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let (lent, gates) = (side.buffer(4096).unwrap(), times(&side.pool));
    let held = alone.hold(side.staging.stream().handle() as usize);
    let writer = side.staging.stream();
    let memory = Spiteful(lent.place());
    drop(lend_after(meta(4096), memory, writer, &gates, &side.keeper).unwrap());
    assert_eq!((side.turn(), side.keeper.count()), (0, 1));
    drop(held);
    assert_eq!((side.turn(), side.keeper.count()), (1, 0));
    drop((lent, gates, side));
    alone.assert_clean();
}
