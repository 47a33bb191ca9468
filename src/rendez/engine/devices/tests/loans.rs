//! Tests of other libraries' memory that is lent before its bytes are there.

use super::copies::{Foreign, place};
use super::*;
use crate::memory::DevicePtr;

#[test]
fn lent_memory_is_there_after_its_streams_work_and_goes_home_then() {
    let alone = alone();
    let (a, b) = pair(Way::Shm);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    let sent = host(70_000, 5);
    let owned = ours.to_device(&sent, 0).unwrap();
    until("the bytes are there", || owned.readiness().is_ready());
    let (before, kept) = (blocks(&a), ours.kept().0);
    let stream = ours.stream(0).unwrap();
    let handle = stream.handle() as usize;
    let lend = || {
        let memory = Foreign {
            at: place(&owned),
            _kept: Some(owned.clone()),
        };
        ours.lend(owned.meta(), memory, &stream).unwrap()
    };
    // Its owner has it back only when the stream is past its work.
    assert!(alone.played.hold(handle, true));
    let lent = lend();
    assert!(!lent.readiness().is_ready());
    drop(lent);
    assert_eq!(ours.kept().0, kept + 1);
    assert!(alone.played.hold(handle, false));
    until("it went home", || ours.kept().0 == kept);

    // A peer gets a copy that is behind the same work.
    assert!(alone.played.hold(handle, true));
    let lent = lend();
    let of = key("a", "b", "lent");
    a.step(STEP).send(&of, lent).unwrap();
    let got = received(&b, &of).tensor;
    assert!(got.is_device() && got.is_leased(), "{got:?}");
    assert!(!got.readiness().is_ready());
    assert!(alone.played.hold(handle, false));
    until("the copy is there", || got.readiness().is_ready());
    let back = theirs.to_host(&got).unwrap();
    assert_eq!(back.host().unwrap(), sent.host().unwrap());
    drop(got);
    until("all is home", || {
        blocks(&a) == before && ours.kept().0 == kept
    });
}

#[test]
fn what_is_lent_wrongly_is_refused_and_given_back() {
    let _alone = alone();
    let engine = alone_engine();
    let devices = engine.devices().unwrap();
    let owned = devices.to_device(&host(4096, 1), 0).unwrap();
    let streams = [devices.stream(0).unwrap(), devices.stream(1).unwrap()];
    let refused = |at: DevicePtr, len: usize, stream: &Stream| {
        let kept = owned.clone();
        let memory = Foreign {
            at,
            _kept: Some(kept),
        };
        let status = devices.lend(meta(len), memory, stream).unwrap_err();
        status.reason().to_owned()
    };
    let at = place(&owned);
    let segment = engine.devices().unwrap().stats()[0].arena.mapped_bytes;
    assert_eq!(refused(at, 4096, &streams[1]), catalogue::DEVICE_OTHER);
    assert_eq!(refused(at, 4095, &streams[0]), "TENSOR_SHAPE");
    let other = DevicePtr { device: 1, ..at };
    assert_eq!(refused(other, 4096, &streams[1]), catalogue::DEVICE_OTHER);
    let long = DevicePtr {
        size: segment + 1,
        ..at
    };
    assert_eq!(refused(long, 4096, &streams[0]), catalogue::REGION_OUTSIDE);
    let none = DevicePtr {
        address: 4096,
        ..at
    };
    assert_eq!(refused(none, 4096, &streams[0]), catalogue::DEVICE_POINTER);
    assert_eq!(devices.kept(), (0, 0));
    drop(owned);
    until("it went home", || blocks(&engine) == 0);
}
