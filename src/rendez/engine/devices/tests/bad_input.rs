//! Bad input at an engine's devices: each has its own error, costs nothing, and stops nothing else.

use super::copies::{Foreign, place};
use super::*;
use crate::memory::Readiness;

#[test]
fn a_device_that_is_not_there_is_refused_wherever_it_is_named() {
    let _alone = alone();
    let (a, _b) = pair(Way::Loopback);
    let ours = a.devices().unwrap();
    let value = host(64, 1);
    let here = ours.to_device(&value, 0).unwrap();
    let refused = [
        ours.stream(2).map(drop),
        ours.buffer(2, meta(64)).map(drop),
        ours.to_device(&value, 2).map(drop),
        ours.to_device(&here, u32::MAX).map(drop),
        ours.lane(2).map(drop),
    ];
    for status in refused {
        assert_eq!(status.unwrap_err().reason(), catalogue::DEVICE_ORDINAL);
    }
    drop(here);
    until("the memory comes home", || blocks(&a) == 0);
}

#[test]
fn memory_that_was_freed_is_no_memory() {
    let _alone = alone();
    let (a, b) = pair(Way::Shm);
    let ours = a.devices().unwrap();
    let mut config = config("c");
    config.control = false;
    let other = Engine::start(config).unwrap();
    let tensor = other.devices().unwrap().to_device(&host(4096, 1), 0);
    let at = place(&tensor.unwrap());
    drop(other);
    let sent = Tensor::from_device(meta(4096), Foreign { at, _kept: None }).unwrap();
    let mut reason = String::new();
    until("its owner gives it back", || {
        let copied = ours.copy(&sent, ours.lane(0).unwrap());
        copied
            .map_err(|status| reason = status.reason().into())
            .is_err()
    });
    assert_eq!(reason, catalogue::DEVICE_POINTER);
    // Nor does it go to a peer, and what comes behind it does.
    let of = key("a", "b", "freed");
    let status = a.step(STEP).send(&of, sent).unwrap_err();
    assert!(status.reason().starts_with("DEVICE_"), "{status}");
    let value = ours.to_device(&host(64, 2), 0).unwrap();
    a.step(STEP).send(&of, value).unwrap();
    drop(received(&b, &of));
    until("the memory comes home", || blocks(&a) == 0);
}

#[test]
fn what_a_dead_process_had_not_written_is_lost_by_name() {
    let alone = alone();
    let a = Engine::start(config("a")).unwrap();
    let ours = a.devices().unwrap();
    let third = {
        let mut config = config("c");
        config.devices.usage = DeviceUse::Off;
        Engine::start(config).unwrap()
    };
    a.add_peer(third.task().clone(), third.address().unwrap().clone());
    let mut other = Other::new("writer", &a);
    for edge in 0..8 {
        received(&a, &key("b", "a", &format!("up{edge}")));
    }
    a.step(STEP)
        .send(&key("a", "b", "go"), Tensor::scalar(1_u8))
        .unwrap();
    let got = received(&a, &key("b", "a", "value")).tensor;
    other.await_ready();
    assert!(!got.readiness().is_ready());
    drop(other);
    until(
        "its end is known",
        || matches!(got.readiness(), Readiness::After(event) if event.is_lost()),
    );
    let stream = ours.stream(0).unwrap();
    let lost = [
        ours.order(&got, &stream),
        ours.to_host(&got).map(drop),
        ours.copy(&got, ours.lane(0).unwrap()).map(drop),
        ours.copy(&got, ours.lane(1).unwrap()).map(drop),
        ours.to_device(&got, 1).map(drop),
        // By way of the host: another task does not see the device.
        a.step(STEP).send(&key("a", "c", "late"), got.clone()),
    ];
    for (at, status) in lost.into_iter().enumerate() {
        let status = status.unwrap_err();
        assert_eq!(status.reason(), catalogue::DEVICE_LOST, "{at}: {status}");
    }
    // No stream waits for it, and what comes behind goes well.
    until("nothing is kept", || ours.kept() == (0, 0));
    assert_eq!(alone.played.pending(stream.handle() as usize), 0);
    let value = ours.to_device(&host(64, 2), 0).unwrap();
    a.step(STEP).send(&key("a", "c", "late"), value).unwrap();
    assert_eq!(received(&third, &key("a", "c", "late")).tensor.size(), 64);
    drop(got);
    until("the memory comes home", || blocks(&a) == 0);
}
