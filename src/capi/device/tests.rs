//! Tensors of devices by the table of functions, over a played driver.
// One call after the other under one contract: the header's, which the pointers here keep.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block)]

use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::time::{Duration, Instant};

use rendez::engine::{DeviceUse, EngineDevices};
use rendez::memory::TensorBytes;
use rendez::{Config, Engine, Shape, Tensor};
use rendez_played_cuda::{Played, path};

use crate::tests::{api, reason};
use crate::{CEngine, CKey, CStatus, CTensor, Meta, Value};

const LEN: usize = 100_000;

fn fine(status: *mut CStatus) {
    assert_eq!(reason(status), "");
}

fn started(task: &str) -> Engine {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    (config.shards, config.share_cores) = (1, true);
    config.devices.usage = DeviceUse::Require;
    config.devices.library = Some(path());
    config.devices.segment_bytes = 4 << 20;
    config.devices.bytes_max = 32 << 20;
    Engine::start(config).unwrap()
}

fn handle(engine: &Engine) -> *mut CEngine {
    Box::into_raw(Box::new(CEngine::of(engine.clone())))
}

fn key() -> *mut CKey {
    let mut key = null_mut();
    // SAFETY: texts, and room for a handle.
    fine(unsafe { (api().key_between)(c"a".as_ptr(), c"b".as_ptr(), c"x".as_ptr(), &raw mut key) });
    key
}

fn meta(len: usize) -> Meta {
    let mut meta = Meta {
        dtype: 3,
        rank: 1,
        dims: [0; 8],
    };
    meta.dims[0] = len as u64;
    meta
}

fn place(tensor: *mut CTensor) -> (i32, u64, usize) {
    let (mut device, mut address, mut size) = (7, 0, 0);
    // SAFETY: a handle of the library's, and room for each answer.
    fine(unsafe { (api().tensor_place)(tensor, &raw mut device, &raw mut address, &raw mut size) });
    (device, address, size)
}

fn bytes(tensor: *mut CTensor) -> Vec<u8> {
    let (mut data, mut size) = (null(), 0);
    // SAFETY: a handle of the library's, whose bytes live as long as it does.
    unsafe {
        fine((api().tensor_data)(tensor, &raw mut data, &raw mut size));
        std::slice::from_raw_parts(data.cast::<u8>(), size).to_vec()
    }
}

fn stream_of(devices: &EngineDevices) -> (rendez::memory::Stream, *mut c_void) {
    let stream = devices.stream(0).unwrap();
    let handle = without_provenance_mut(stream.handle() as usize);
    (stream, handle)
}

/// A library's array on a device: this is the engine's own, of which nothing is known but its address.
fn array(devices: &EngineDevices, written: &[u8]) -> (Tensor, u64) {
    let shape = Shape::new(&[written.len() as u64]).unwrap();
    let tensor = Tensor::from_slice(written, shape).unwrap();
    let array = devices.to_device(&tensor, 0).unwrap();
    let TensorBytes::Device(place) = array.bytes() else {
        panic!("it lies on the host");
    };
    while !array.readiness().is_ready() {
        std::thread::yield_now();
    }
    (array, place.address)
}

fn in_use(devices: &EngineDevices) -> u64 {
    devices
        .stats()
        .iter()
        .map(|one| one.arena.in_use_bytes)
        .sum()
}

fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A value that lies on a device is copied to memory of the host by its receiver.
fn into_memory(to: *mut CEngine, key: *mut CKey, written: &[u8]) {
    let (mut room, mut meta, mut size) = (vec![0_u8; written.len() + 1], meta(0), 0);
    for (len, outcome) in [(written.len() - 1, "RECV_ROOM"), (room.len(), "")] {
        // SAFETY: handles of the library's, memory of so many bytes, and room for what is said of the value.
        let status = unsafe {
            (api().recv_into)(
                to,
                5,
                key,
                u64::MAX,
                room.as_mut_ptr().cast(),
                len,
                &raw mut meta,
                &raw mut size,
            )
        };
        assert_eq!((&*reason(status), size), (outcome, written.len()));
        size = 0;
    }
    assert_eq!(&room[..written.len()], written);
}

#[test]
fn an_array_of_a_device_is_handed_over_there() {
    let played = Played::load();
    let violations = played.violations();
    let (a, b) = (started("a"), started("b"));
    a.add_peer(b.task().clone(), b.address().unwrap().clone());
    let (from, to) = (handle(&a), handle(&b));
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    let written: Vec<u8> = (0..LEN).map(|at| (at * 7 % 251) as u8).collect();
    let (owned, address) = array(&ours, &written);
    let (_ours, writer) = stream_of(&ours);
    let (_theirs, reader) = stream_of(&theirs);
    let (key, meta) = (key(), meta(LEN));
    // SAFETY: handles of the library's, each freed or sent once; streams that live as long as this.
    unsafe {
        let mut is_in_place = false;
        let end = Instant::now() + Duration::from_secs(20);
        while !is_in_place {
            assert!(Instant::now() < end, "values go by way of the host");
            let mut copy = null_mut();
            fine((api().tensor_copy_device)(
                from,
                &raw const meta,
                0,
                address,
                writer,
                &raw mut copy,
            ));
            let (device, copied, size) = place(copy);
            assert_eq!((device, size), (0, LEN));
            assert_ne!(copied, address);
            let mut again = null_mut();
            fine((api().tensor_clone)(copy, &raw mut again));
            fine((api().send)(from, 5, key, copy, u64::MAX));
            let mut value = Value::NONE;
            fine((api().recv)(to, 5, key, u64::MAX, &raw mut value));
            // Until the peer is known to see the device, the bytes come by way of the host.
            is_in_place = place(value.tensor).0 == 0;
            let mut here = null_mut();
            if is_in_place {
                fine((api().tensor_order)(to, value.tensor, 0, reader));
                fine((api().send)(from, 5, key, again, u64::MAX));
                into_memory(to, key, &written);
                let mut data = null();
                let mut size = 0;
                let refused = (api().tensor_data)(value.tensor, &raw mut data, &raw mut size);
                assert_eq!(reason(refused), "TENSOR_DEVICE");
            } else {
                (api().tensor_free)(again);
                let mut there = null_mut();
                fine((api().tensor_to_device)(
                    to,
                    value.tensor,
                    0,
                    &raw mut there,
                ));
                assert_eq!(place(there).0, 0);
                (api().tensor_free)(there);
            }
            fine((api().tensor_to_host)(to, value.tensor, &raw mut here));
            assert_eq!(place(here).0, -1);
            assert_eq!(bytes(here), written);
            (api().tensor_free)(here);
            fine((api().tensor_free_after)(to, value.tensor, 0, reader));
        }
        drop(owned);
        until(|| in_use(&ours) == 0 && in_use(&theirs) == 0);
        (api().key_free)(key);
        (api().engine_free)(from);
        (api().engine_free)(to);
    }
    drop((a, b));
    assert_eq!(
        played.violations(),
        violations,
        "work met memory that is gone"
    );
}

/// A few bytes lie in the handle: it must not change while they may be written.
#[test]
fn a_tensor_that_is_being_written_tells_its_place() {
    let mut config = Config::new("/job:e/task:0");
    (config.shards, config.share_cores, config.control) = (1, true, false);
    let a = Engine::start(config).unwrap();
    let engine = handle(&a);
    let (mut key, mut tensor, mut data, mut value) =
        (null_mut(), null_mut(), null_mut(), Value::NONE);
    let scalar = Meta {
        dtype: 13,
        rank: 0,
        dims: [0; 8],
    };
    // SAFETY: texts, handles of the library's, and room for each answer; the tensor is written before it is sent.
    unsafe {
        fine((api().key_between)(
            c"e".as_ptr(),
            c"e".as_ptr(),
            c"x".as_ptr(),
            &raw mut key,
        ));
        fine((api().tensor_new)(
            engine,
            &raw const scalar,
            &raw mut tensor,
            &raw mut data,
        ));
        assert_eq!(place(tensor), (-1, data.addr() as u64, 8));
        data.cast::<f64>().write(1.5);
        fine((api().send)(engine, 1, key, tensor, 0));
        fine((api().recv)(engine, 1, key, u64::MAX, &raw mut value));
        assert_eq!(bytes(value.tensor), 1.5_f64.to_ne_bytes());
        (api().tensor_free)(value.tensor);
        (api().key_free)(key);
        (api().engine_free)(engine);
    }
}

#[test]
fn what_is_no_array_of_a_device_is_told() {
    let a = started("c");
    let engine = handle(&a);
    let devices = a.devices().unwrap();
    let (owned, address) = array(&devices, &[1; 64]);
    let (_kept, stream) = stream_of(&devices);
    let mut copy = null_mut();
    // SAFETY: a handle of the library's; a stream that lives as long as this, or none.
    let mut copied = |device: u32, address: u64, meta: Meta, stream: *mut c_void| unsafe {
        let copied = (api().tensor_copy_device)(
            engine,
            &raw const meta,
            device,
            address,
            stream,
            &raw mut copy,
        );
        reason(copied)
    };
    assert_eq!(copied(9, address, meta(64), stream), "DEVICE_ORDINAL");
    assert_eq!(copied(0, 4096, meta(64), stream), "DEVICE_POINTER");
    assert_eq!(copied(0, address, meta(1 << 30), stream), "REGION_OUTSIDE");
    let strings = Meta {
        dtype: 16,
        ..meta(64)
    };
    assert_eq!(copied(0, address, strings, stream), "C_ARGUMENT");
    assert!(copy.is_null());
    let mut config = Config::new("/job:d/task:0");
    (config.shards, config.share_cores, config.control) = (1, true, false);
    let none = Engine::start(config).unwrap();
    let without = handle(&none);
    let meta = meta(64);
    // SAFETY: as above; the tensors are freed once, and NULL is refused.
    unsafe {
        let refused =
            (api().tensor_copy_device)(without, &raw const meta, 0, address, stream, &raw mut copy);
        assert_eq!(reason(refused), "DEVICE_MISSING");
        let refused =
            (api().tensor_copy_device)(engine, &raw const meta, 0, address, stream, null_mut());
        assert_eq!(reason(refused), "C_ARGUMENT");
        assert_eq!(
            reason((api().tensor_order)(engine, null_mut(), 0, stream)),
            "C_ARGUMENT"
        );
        let freed = (api().tensor_free_after)(engine, null_mut(), 0, stream);
        assert_eq!(reason(freed), "C_ARGUMENT");
        // One of the host's is ready, and its way to the host is none; NULL is the default stream.
        let (mut host, mut same, mut data) = (null_mut(), null_mut(), null_mut());
        fine((api().tensor_new)(
            without,
            &raw const meta,
            &raw mut host,
            &raw mut data,
        ));
        fine((api().tensor_to_host)(without, host, &raw mut same));
        assert_eq!(place(same).1, data.addr() as u64);
        fine((api().tensor_order)(engine, same, 0, null_mut()));
        fine((api().tensor_free_after)(engine, same, 0, null_mut()));
        (api().tensor_free)(host);
        (api().engine_free)(without);
        (api().engine_free)(engine);
    }
    drop(owned);
}
