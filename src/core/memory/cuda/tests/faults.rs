//! Every call fails once at every place: nothing is lost, stuck or wrong.
//!
//! One story is told again and again: a value is copied to a device, sent before it is there, imported and read by a
//! peer whose stream waits for it, and all is given back. In the nth telling the nth call of the driver fails. Whatever
//! comes of it, the error is one by name or the bytes are right; nothing is given out twice; no work meets memory that
//! is gone; and what was taken is given back, except what the driver itself refused to take, which is counted.

use super::super::super::{order_after, release_after};
use super::*;

/// What the story takes, and how the driver refuses.
const CODES: [u32; 3] = [
    sys::CUDA_ERROR_OUT_OF_MEMORY,
    sys::CUDA_ERROR_NOT_SUPPORTED,
    999,
];

/// Calls that give back: where one fails, something stays.
const GIVES_BACK: [&str; 8] = [
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuMemRelease",
    "cuMemHostUnregister",
    "cuStreamDestroy_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
];

/// The story; how it ended, and what its driver refused to take back.
fn tell(played: &Played) -> (Result<(), String>, u64, u64) {
    let accelerator = match accelerator::open(Some(&path())) {
        Ok(accelerator) => accelerator,
        Err(why) => return (Err(why), 0, 0),
    };
    let mut quarantined = 0;
    let told = act(played, &accelerator, &mut quarantined);
    let unreleased = accelerator.unreleased();
    (
        told.map_err(|error| Status::from(error).to_string()),
        unreleased,
        quarantined,
    )
}

fn act(
    played: &Played,
    accelerator: &Arc<dyn Accelerator>,
    quarantined: &mut u64,
) -> Result<(), MemoryError> {
    let mut side = Side::new(Arc::clone(accelerator))?;
    let done = hand_over(played, &mut side);
    // All that waits for a stream is let go of in the end, whatever happened.
    for _ in 0..1000 {
        if side.keeper.count() == 0 {
            break;
        }
        side.turn();
    }
    assert_eq!(side.keeper.count(), 0, "nothing is stuck");
    *quarantined = side.keeper.quarantined();
    side.pool.reclaim();
    assert_eq!(side.pool.stats().blocks, *quarantined, "nothing is lost");
    done
}

fn hand_over(played: &Played, side: &mut Side) -> Result<(), MemoryError> {
    let sent = pattern(3, 150_000);
    let buffer = side.buffer(sent.len())?;
    side.staging.to_device(&sent, &buffer)?;
    side.staging.stream().synchronize()?;
    // Work of the application's, which is not done yet.
    let writer = Stream::new(&side.accelerator, 0)?;
    played.hold(writer.handle() as usize, true);
    let tensor = buffer.into_tensor_after(meta(sent.len()), &writer)?;
    let view = imported(&side.accelerator, &side.pool)?;
    // The reader's is of another library.
    let theirs = Stream::new(&side.accelerator, 0)?;
    let reader = borrowed(&side.accelerator, &theirs)?;
    let mut leases = Leases::new(1);
    let leased = lease(&mut leases, &view, &tensor, 5)?;
    order_after(&leased, &reader, &times(&side.pool), &side.keeper)?;
    played.hold(writer.handle() as usize, false);
    side.turn();
    let read = side.read(&leased)?;
    assert!(read == sent, "what came is what was sent");
    // Once more, as a copy on the device.
    let words = times(&side.pool);
    let mut lane = side.lanes.take()?;
    lane.follow(&reader, &words)?;
    let copy = lane.copy(
        leased.clone(),
        side.buffer(sent.len())?,
        &words,
        &side.keeper,
    )?;
    let read = side.read(&copy)?;
    assert!(read == sent, "what is copied is what was sent");
    drop(copy);
    super::pinned::to_and_fro(side, &sent)?;
    release_after(leased, &reader, &words, &side.keeper)?;
    while side.keeper.count() > 0 {
        side.turn();
    }
    assert_eq!(leases.reclaim(|token| assert_eq!(token, 5)), 1);
    Ok(())
}

#[test]
fn every_call_fails_once_at_every_place() {
    for code in CODES {
        let mut nth = 1;
        loop {
            let alone = alone();
            let counts = GIVES_BACK.map(|name| alone.played.count(Some(name)));
            alone.played.fail(None, nth, code);
            let (told, unreleased, quarantined) = tell(&alone.played);
            if !alone.played.has_failed() {
                told.expect("no call failed");
                assert!(nth > 60, "the story has more calls than {nth}");
                alone.played.heal();
                alone.assert_clean();
                break;
            }
            alone.played.heal();
            assert_eq!(
                alone.played.violations(),
                alone.violations,
                "call {nth}: {told:?}"
            );
            let held = alone.played.held();
            // What stays is there because a call that gives back was refused, or because nothing is known of a stream.
            let stays = [
                held.reserved - alone.held.reserved,
                held.mapped - alone.held.mapped,
                held.registered - alone.held.registered,
                held.streams - alone.held.streams,
                held.handles - alone.held.handles,
            ];
            let is_clean = stays.iter().all(|count| *count == 0);
            assert!(
                is_clean || unreleased > 0 || quarantined > 0,
                "call {nth}: {stays:?} stay, and nothing says so; {told:?}, {counts:?}",
            );
            // And the next one goes well.
            let (told, ..) = tell(&alone.played);
            told.expect("the driver works again");
            nth += 1;
        }
    }
}

/// A copy to the host fails when a chunk of it is queued, and so does the wait for those before: the device may still
/// read the tensor, so its memory goes to no other.
#[test]
fn what_a_copy_that_failed_may_still_read_is_kept_and_counted() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let tensor = side.tensor(&pattern(1, 3 << 16)).unwrap();
    side.staging.stream().synchronize().unwrap();
    alone.played.fail(Some("cuMemcpyDtoHAsync_v2"), 2, 999);
    alone.played.fail(Some("cuStreamSynchronize"), 1, 999);
    let error = side.read(&tensor).unwrap_err();
    assert_eq!(Status::from(error).reason(), catalogue::DEVICE_CALL);
    assert!(!side.staging.is_usable());
    drop(tensor);
    assert_eq!((side.keeper.quarantined(), side.pool.reclaim()), (1, 0));
    assert_eq!(alone.played.violations(), alone.violations);
}

/// Two failures at once: a mark is refused, and so is the wait in its place. The memory is kept for ever, and counted.
#[test]
fn what_nothing_is_known_of_is_kept_and_counted() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let stream = Stream::new(&side.accelerator, 0).unwrap();
    let buffer = side.buffer(4096).unwrap();
    let place = buffer.place();
    alone.played.fail(Some("cuStreamWriteValue64_v2"), 1, 999);
    alone.played.fail(Some("cuStreamSynchronize"), 1, 999);
    let error = buffer.into_tensor_after(meta(4096), &stream).unwrap_err();
    assert_eq!(Status::from(error).reason(), catalogue::DEVICE_CALL);
    assert_eq!((side.keeper.quarantined(), side.pool.reclaim()), (1, 0));
    let next = side.buffer(4096).unwrap();
    assert_ne!(next.place().address, place.address);
    // One failure alone is made up for.
    alone.played.fail(Some("cuStreamWriteValue64_v2"), 1, 999);
    let tensor = next.into_tensor_after(meta(4096), &stream).unwrap();
    assert!(tensor.readiness().is_ready());
    drop((tensor, stream, side));
    // Nothing of the arena goes while a block of it is kept.
    assert!(alone.played.held().mapped > alone.held.mapped);
    assert_eq!(alone.played.violations(), alone.violations);
}
