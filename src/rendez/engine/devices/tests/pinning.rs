//! Tests of pinned segments: large tensors of the engine's are copied as they lie, within the bound.

use super::super::pinning::ROOM_RETRY;
use super::*;

const LARGE: usize = 2 << 20;

/// Chunks of 12 MiB, and `segments` segments of 4 MiB beside them.
fn engine(segments: usize) -> Engine {
    let mut config = config("a");
    config.control = false;
    config.devices.pinned_bytes = (12 + 4 * segments) << 20;
    Engine::start(config).unwrap()
}

/// A tensor in the engine's own memory.
fn near(engine: &Engine, len: usize, seed: usize) -> Tensor {
    let mut builder = engine.tensor(DType::U8, &[len as u64]).unwrap();
    let sent = host(len, seed);
    builder.bytes_mut().copy_from_slice(sent.host().unwrap());
    builder.finish()
}

/// There and back.
fn to_and_fro(devices: &EngineDevices, sent: &Tensor, device: u32) {
    let there = devices.to_device(sent, device).unwrap();
    let back = devices.to_host(&there).unwrap();
    assert!(back.host().unwrap() == sent.host().unwrap());
}

fn copies(alone: &Alone) -> [u64; 2] {
    ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"].map(|name| alone.played.count(Some(name)))
}

#[test]
fn large_tensors_are_copied_as_they_lie() {
    let alone = alone();
    let engine = engine(8);
    let devices = engine.devices().unwrap();
    for device in [0, 1] {
        for round in 0..5 {
            let sent = near(&engine, LARGE, round);
            let before = copies(&alone);
            to_and_fro(&devices, &sent, device);
            assert_eq!(copies(&alone), before.map(|before| before + 1));
        }
    }
    // A segment is reached by both devices, and pinned by the first.
    let stats = devices.stats();
    assert_eq!(stats[0].pinned_bytes % (4 << 20), 0);
    assert!(stats[0].pinned_bytes > 0);
    assert_eq!(stats[1].pinned_bytes, 0);
    assert_eq!(stats[1].to_device_bytes, 5 * LARGE as u64);
    until("the memory comes home", || blocks(&engine) == 0);
    // A copy's end is told behind that of its memory.
    until("no copy is under way", || devices.kept() == (0, 0));
    drop((devices, engine));
}

#[test]
fn what_lies_elsewhere_or_is_short_goes_by_way_of_chunks() {
    let alone = alone();
    let engine = engine(8);
    let devices = engine.devices().unwrap();
    let before = alone.played.count(Some("cuMemHostRegister_v2"));
    for len in [100, 70_000] {
        to_and_fro(&devices, &near(&engine, len, 1), 0);
    }
    let there = devices.to_device(&host(LARGE, 2), 0).unwrap();
    // The marks of the device and of its arena's first segment, and three chunks.
    let after = alone.played.count(Some("cuMemHostRegister_v2"));
    assert_eq!(after - before, 5, "no segment is pinned for them");
    let back = devices.to_host(&there).unwrap();
    assert!(back.host().unwrap() == host(LARGE, 2).host().unwrap());
    drop((there, back));
    until("the memory comes home", || blocks(&engine) == 0);
}

#[test]
fn segments_are_pinned_within_the_bound() {
    let _alone = alone();
    let engine = engine(1);
    let devices = engine.devices().unwrap();
    let held: Vec<Tensor> = (0..4).map(|seed| near(&engine, LARGE, seed)).collect();
    for sent in &held {
        to_and_fro(&devices, sent, 0);
    }
    let stats = devices.stats();
    assert_eq!(stats[0].pinned_bytes, 16 << 20);
    assert_eq!(stats[0].pinned_limit_bytes, 16 << 20);
    // Without room beside the chunks there is none.
    let engine = self::engine(0);
    let devices = engine.devices().unwrap();
    to_and_fro(&devices, &near(&engine, LARGE, 1), 0);
    assert_eq!(devices.stats()[0].pinned_bytes, 12 << 20);
}

#[test]
fn a_driver_that_pins_no_segment_costs_chunks_alone() {
    let alone = alone();
    let engine = engine(8);
    let devices = engine.devices().unwrap();
    // The chunks are there already.
    to_and_fro(&devices, &host(100, 1), 0);
    let before = alone.played.count(Some("cuMemHostRegister_v2"));
    alone.played.fail(Some("cuMemHostRegister_v2"), 1, 2);
    let sent = near(&engine, LARGE, 1);
    for _ in 0..3 {
        drop(devices.to_device(&sent, 0).unwrap());
    }
    let after = alone.played.count(Some("cuMemHostRegister_v2"));
    assert_eq!(after - before, 1, "it is asked once");
    assert_eq!(devices.stats()[0].pinned_bytes, 12 << 20);
    to_and_fro(&devices, &sent, 1);
    until("the memory comes home", || blocks(&engine) == 0);
}

#[test]
fn a_segment_without_room_is_not_asked_for_with_each_copy() {
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    let group = root.path().join("sys/fs/cgroup/box");
    let leaves = |bytes: u64| {
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("memory.max"), bytes.to_string()).unwrap();
        std::fs::write(group.join("memory.current"), "0").unwrap();
    };
    std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
    std::fs::write(root.path().join("proc/self/cgroup"), "0::/box\n").unwrap();
    // Of the chunks there is room, and of no segment beside them.
    leaves(13 << 20);
    let engine = engine(8);
    *engine.inner.wiring.devices().root.locked() = root.path().into();
    let devices = engine.devices().unwrap();
    to_and_fro(&devices, &host(100, 1), 0);
    leaves(1 << 20);
    let sent = near(&engine, LARGE, 1);
    let all = engine.inner.wiring.devices();
    let arena = all.arena(&engine.inner, 0).unwrap();
    let at = |now| {
        let bytes = sent.host().unwrap();
        all.pinned(&engine.inner, &arena, 0, bytes, now).is_some()
    };
    let began = Nanos(7);
    assert!(!at(began));
    leaves(1 << 30);
    assert!(!at(began), "the group is not asked again at once");
    assert!(at(began.after(ROOM_RETRY)), "and it is, later");
    to_and_fro(&devices, &sent, 0);
    until("the memory comes home", || blocks(&engine) == 0);
}

#[test]
fn no_short_copy_waits_while_a_segment_is_pinned() {
    let alone = alone();
    let engine = engine(8);
    let devices = engine.devices().unwrap();
    // The chunks are there already, and the device's memory, with room for all that follows.
    to_and_fro(&devices, &host(100, 1), 0);
    until("the memory comes home", || blocks(&engine) == 0);
    let (pinned, short) = (near(&engine, 1 << 20, 2), near(&engine, 4096, 3));
    let turn = &engine.inner.wiring.devices().pinning.turn;
    let patience = PATIENCE.as_millis() as u64;
    alone.played.stall(Some("cuMemHostRegister_v2"), patience);
    let copy = {
        let (devices, pinned) = (devices.clone(), pinned.clone());
        std::thread::spawn(move || devices.to_device(&pinned, 0).map(drop))
    };
    until("it is being pinned", || turn.try_lock().is_err());
    to_and_fro(&devices, &short, 0);
    assert!(!copy.is_finished(), "it came before that");
    alone.played.stall(None, 0);
    copy.join().unwrap().unwrap();
    assert!(devices.stats()[0].pinned_bytes > 12 << 20);
    until("the memory comes home", || blocks(&engine) == 0);
}

#[test]
fn a_copy_that_waits_for_its_writer_holds_up_no_other() {
    let alone = alone();
    let engine = engine(8);
    let devices = engine.devices().unwrap();
    let writer = devices.stream(0).unwrap();
    assert!(alone.played.hold(writer.handle() as usize, true));
    let buffer = devices.buffer(0, meta(LARGE)).unwrap();
    let waiting = buffer.into_tensor_after(meta(LARGE), &writer).unwrap();
    let copy = {
        let devices = devices.clone();
        std::thread::spawn(move || devices.to_host(&waiting).map(|back| back.size()))
    };
    for round in 0..3 {
        to_and_fro(&devices, &near(&engine, LARGE, round), 0);
    }
    assert!(!copy.is_finished());
    assert!(alone.played.hold(writer.handle() as usize, false));
    assert_eq!(copy.join().unwrap().unwrap(), LARGE);
    until("the memory comes home", || blocks(&engine) == 0);
}
