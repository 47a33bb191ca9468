//! Tests of copies from device to device by an engine: each way, for a peer that does not see where a value lies, and
//! of what is no device's memory.

use super::*;
use crate::memory::{DeviceMemory, DevicePtr};

/// Memory that another library says lies on a device.
#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) at: DevicePtr,
    pub(super) _kept: Option<Tensor>,
}

impl DeviceMemory for Foreign {
    fn place(&self) -> DevicePtr {
        self.at
    }
}

pub(super) fn place(tensor: &Tensor) -> DevicePtr {
    match tensor.bytes() {
        TensorBytes::Device(place) => place,
        TensorBytes::Host(_) => panic!("it lies on a device: {tensor:?}"),
    }
}

/// A tensor of another library's over memory of ours, which it keeps.
fn foreign(of: &Tensor) -> Tensor {
    Tensor::from_device(
        of.meta(),
        Foreign {
            at: place(of),
            _kept: Some(of.clone()),
        },
    )
    .unwrap()
}

#[test]
fn bytes_go_from_device_to_device_whichever_way_there_is() {
    let alone = alone();
    for (peers, copies) in [(true, true), (false, true), (true, false)] {
        alone.played.can("peers", peers);
        alone.played.can("copies", copies);
        let engine = alone_engine();
        let devices = engine.devices().unwrap();
        for (seed, len) in [1_usize, 4096, 200_001].into_iter().enumerate() {
            let sent = host(len, seed);
            let here = devices.to_device(&sent, 0).unwrap();
            let staged = devices.staged_bytes();
            let there = devices.to_device(&here, 1).unwrap();
            assert_eq!((place(&here).device, place(&there).device), (0, 1));
            assert_eq!(
                devices.staged_bytes() > staged,
                !copies,
                "by way of the host only where the driver copies nothing between devices"
            );
            let again = devices.to_device(&there, 1).unwrap();
            assert_eq!(place(&again), place(&there), "it lies there already");
            let back = devices.to_host(&there).unwrap();
            assert_eq!(back.host().unwrap(), sent.host().unwrap());
        }
        until("the memory comes home", || blocks(&engine) == 0);
        assert_eq!(devices.kept(), (0, 0));
    }
    alone.played.can("peers", true);
    alone.played.can("copies", true);
}

#[test]
fn a_peer_that_does_not_see_the_device_reads_a_copy_on_one_that_it_sees() {
    let _alone = alone();
    let a = Engine::start(config("a")).unwrap();
    let ours = a.devices().unwrap();
    let tensor = ours.to_device(&host(50_000, 4), 0).unwrap();
    // The arena of the device that both see, told of before a value lies there.
    drop(ours.to_device(&host(64, 0), 1).unwrap());
    let mut other = Other::new("stranger", &a);
    for edge in 0..8 {
        received(&a, &key("b", "a", &format!("up{edge}")));
    }
    let staged = ours.staged_bytes();
    a.step(STEP).send(&key("a", "b", "value"), tensor).unwrap();
    assert_eq!(ours.staged_bytes(), staged, "nothing goes through the host");
    other.await_ready();
    until("the source comes home, the copy is lent", || {
        blocks(&a) == 1
    });
    drop(other);
    until("the memory comes home", || blocks(&a) == 0);
}

#[test]
fn another_librarys_memory_is_lent_as_a_copy() {
    let _alone = alone();
    let (a, b) = pair(Way::Shm);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    let sent = host(70_000, 2);
    let tensor = foreign(&ours.to_device(&sent, 1).unwrap());
    let staged = ours.staged_bytes();
    a.step(STEP)
        .send(&key("a", "b", "foreign"), tensor)
        .unwrap();
    assert_eq!(ours.staged_bytes(), staged, "nothing goes through the host");
    let got = received(&b, &key("a", "b", "foreign")).tensor;
    assert!(got.is_leased());
    assert_eq!(place(&got).device, 1);
    let back = theirs.to_host(&got).unwrap();
    assert_eq!(back.host().unwrap(), sent.host().unwrap());
    drop(got);
    until("the memory comes home", || blocks(&a) == 0);
}

#[test]
fn memory_that_is_not_what_it_is_said_to_be_is_refused_by_name() {
    let _alone = alone();
    let engine = alone_engine();
    let devices = engine.devices().unwrap();
    let held = devices.to_device(&host(4096, 0), 0).unwrap();
    let good = place(&held);
    let refused = |place: DevicePtr| {
        let tensor = Tensor::from_device(
            meta(place.size as usize),
            Foreign {
                at: place,
                _kept: None,
            },
        )
        .unwrap();
        let copied = devices.copy(&tensor, devices.lane(1).unwrap());
        copied.unwrap_err().reason().to_owned()
    };
    let local = 0_u64;
    let none = DevicePtr {
        address: (&raw const local).addr() as u64,
        size: 8,
        ..good
    };
    assert_eq!(refused(none), catalogue::DEVICE_POINTER);
    let other = DevicePtr { device: 1, ..good };
    assert_eq!(refused(other), catalogue::DEVICE_OTHER);
    let long = DevicePtr {
        size: 64 << 20,
        ..good
    };
    assert_eq!(refused(long), catalogue::REGION_OUTSIDE);
    let status = devices.copy(&host(8, 0), devices.lane(1).unwrap());
    assert_eq!(status.unwrap_err().reason(), catalogue::TENSOR_DEVICE);
    let status = devices.lane(2).unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_ORDINAL);
    // None of them cost anything, and the good one goes.
    assert_eq!(blocks(&engine), 1);
    drop(devices.copy(&held, devices.lane(1).unwrap()).unwrap());
    drop(held);
    until("the memory comes home", || blocks(&engine) == 0);
}

/// A copy that waits for its tensor had held up every other of its device that goes by way of chunks.
#[test]
fn a_tensor_that_is_not_there_holds_up_no_other() {
    let alone = alone();
    let engine = alone_engine();
    let devices = engine.devices().unwrap();
    let writer = devices.stream(0).unwrap();
    assert!(alone.played.hold(writer.handle() as usize, true));
    let late = devices.buffer(0, meta(4096)).unwrap();
    let late = late.into_tensor_after(meta(4096), &writer).unwrap();
    let there = devices.clone();
    let waiting = std::thread::spawn(move || there.to_host(&late).map(drop));
    until("it waits at a gate", || devices.kept().0 == 1);
    let (done, is_done) = std::sync::mpsc::channel();
    let there = devices.clone();
    let other = std::thread::spawn(move || {
        let copied = there.to_device(&host(1024, 1), 0);
        done.send(copied.map(drop)).unwrap();
    });
    let copied = is_done.recv_timeout(Duration::from_secs(5));
    assert!(!waiting.is_finished(), "it still waits");
    assert!(alone.played.hold(writer.handle() as usize, false));
    waiting.join().unwrap().unwrap();
    other.join().unwrap();
    copied.expect("it ends meanwhile").unwrap();
    until("the memory comes home", || blocks(&engine) == 0);
}
