//! Tests of time: values that are not there yet, streams that wait, and the rule for freeing. Streams are held, so that
//! nothing passes but what a test lets pass.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::super::times::SLOTS;
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
    let ordered = order_after(&leased, &reader, &gates, &side.keeper).unwrap();
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
        order_after(&leased, &reader, &gates, &side.keeper).unwrap(),
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
    let ordered = order_after(&leased, &reader, &times(&side.pool), &side.keeper).unwrap();
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
    let marks: Vec<_> = (0..SLOTS)
        .map(|_| times.mark(&stream).unwrap().expect("a word is free"))
        .collect();
    assert_eq!(times.free(), 0);
    assert!(
        times.mark(&stream).unwrap().is_none(),
        "the stream was waited for"
    );
    drop(marks);
    assert_eq!(times.free(), SLOTS);
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
        let ordered = order_after(&tensor, &reader, &gates, &side.keeper).unwrap();
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
    let ordered = order_after(&tensor, &reader, &times(&other.pool), &other.keeper).unwrap();
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

/// Runs on a thread of its own: who waits for ever fails the test, and holds up no other.
fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(work()));
    let patience = std::time::Duration::from_secs(20);
    hears
        .recv_timeout(patience)
        .unwrap_or_else(|_| panic!("{what} waits for ever"))
}

/// The device fails while a value is to be written: no word ever says so, and who waits is told all the same.
#[test]
fn who_waits_for_a_device_that_has_failed_is_told_so() {
    for has_thread in [true, false] {
        let alone = alone();
        let (mut side, stream) = held_side(&alone);
        let tensor = side.tensor(&pattern(1, 4096)).unwrap();
        let (lane, words) = (side.lanes.take().unwrap(), times(&side.pool));
        if !has_thread {
            assert!(side.keeper.end(&mut side.watch, true));
            side.keeper.close();
        }
        alone.played.break_devices(sys::CUDA_ERROR_ILLEGAL_ADDRESS);
        let keeper = Arc::clone(&side.keeper);
        let of = tensor.clone();
        let waited = within("a lane", move || lane.wait_for(&of, &words, &keeper));
        let reason = Status::from(waited.unwrap_err()).reason().to_owned();
        assert_eq!(reason, catalogue::DEVICE_LOST);
        alone.played.heal();
        assert!(alone.played.hold(stream, false));
        drop((tensor, side));
        assert_eq!(alone.played.violations(), alone.violations);
    }
}

/// The owner says that its device has failed: its own readers and those of other processes are told, and what the
/// device was to be past is kept, counted and looked at no more.
#[test]
fn the_owner_of_a_device_that_has_failed_tells_all_who_wait() {
    let alone = alone();
    let (mut side, writer) = held_side(&alone);
    let view = imported(&side.accelerator, &side.pool).unwrap();
    let mut leases = Leases::new(1);
    let tensor = side.tensor(&pattern(1, 4096)).unwrap();
    let dropped = side.buffer(4096).unwrap();
    let dropped = dropped.into_tensor_after(meta(4096), side.staging.stream());
    let leased = lease(&mut leases, &view, &tensor, 1).unwrap();
    let mut other = Side::new(Arc::clone(&side.accelerator)).unwrap();
    let reader = Stream::new(&side.accelerator, 0).unwrap();
    let ordered = order_after(&leased, &reader, &times(&other.pool), &other.keeper);
    assert_eq!((ordered.unwrap(), other.turn()), (Ordered::Stream, 0));
    assert!(times(&side.pool).is_waited_for());
    drop(dropped.unwrap());
    assert_eq!(side.turn(), 0);
    times(&side.pool).lose();
    assert_eq!(
        (other.turn(), alone.played.pending(reader.handle() as usize)),
        (1, 0)
    );
    assert_eq!(other.read(&leased).unwrap_err(), MemoryError::Lost);
    let (lane, words) = (other.lanes.take().unwrap(), times(&other.pool));
    assert_eq!(
        lane.wait_for(&tensor, &words, &other.keeper),
        Err(MemoryError::Lost)
    );
    side.turn();
    assert_eq!((side.keeper.count(), side.keeper.quarantined()), (0, 1));
    assert!(alone.played.hold(writer, false));
    assert!(
        tensor.readiness().is_ready(),
        "what came all the same is there"
    );
    while other.keeper.count() > 0 {
        other.turn();
    }
    drop((tensor, leased, leases, view, reader, other, side));
    assert_eq!(alone.played.violations(), alone.violations);
}
