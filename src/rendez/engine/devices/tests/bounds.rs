//! Tests of bounds: what the metrics page and `pending` say of device memory, and what is refused where a bound is met.

use std::path::Path;

use rendez_proto::services::PendingItem;

use super::*;
use crate::engine::metrics::{Page, Pages as _};
use crate::engine::services::what_waits;

/// The bound of [`config`] on each device's memory.
const BOUND: f64 = (32 << 20) as f64;
/// Its bound on pinned memory, which its pool takes in full.
const PINNED: f64 = (3 << 16) as f64;

fn page(engine: &Engine) -> String {
    let page = Page(Arc::downgrade(&engine.inner)).metrics(false);
    page.unwrap()
}

/// A metric of the page, over all lines whose labels hold `labels`.
fn metric(engine: &Engine, family: &str, labels: &str) -> f64 {
    let page = page(engine);
    let lines = page.lines().filter_map(|line| {
        let (name, number) = line.rsplit_once(' ')?;
        let rest = name.strip_prefix(family)?;
        let is_meant = (rest.is_empty() || rest.starts_with('{')) && rest.contains(labels);
        is_meant.then(|| number.parse::<f64>().unwrap())
    });
    lines.sum()
}

/// What `pending` says of devices.
fn kept(engine: &Engine) -> Option<PendingItem> {
    let mut items = what_waits(engine).items.into_iter();
    items.find(|item| item.what == "device memory")
}

#[test]
fn a_lease_and_a_stalled_stream_are_in_the_figures_and_go_again() {
    let alone = alone();
    let (a, b) = pair(Way::Shm);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    let used = |engine| metric(engine, "rendez_device_used_bytes", "device=\"0\"");
    assert!(
        !page(&a).contains("{device="),
        "no device has been used yet"
    );
    drop(ours.to_device(&host(64, 0), 0).unwrap());
    let pinned = |labels| metric(&a, "rendez_device_pinned_bytes", labels);
    assert_eq!((pinned("copies"), pinned("marks")), (PINNED, 65536.0));
    assert_eq!(
        metric(&a, "rendez_device_pinned_headroom_bytes", "device=\"0\""),
        0.0
    );
    until("the copy's memory comes home", || used(&a) == 0.0);
    let (writer, reader) = (ours.stream(0).unwrap(), theirs.stream(0).unwrap());
    for stream in [&writer, &reader] {
        assert!(alone.played.hold(stream.handle() as usize, true));
    }
    let tensor = ours.buffer(0, meta(4096)).unwrap();
    let tensor = tensor.into_tensor_after(meta(4096), &writer).unwrap();
    a.step(STEP).send(&key("a", "b", "value"), tensor).unwrap();
    let got = received(&b, &key("a", "b", "value")).tensor;
    until("the lease is in the figures", || {
        metric(&a, "rendez_lent_bytes", "") == 4096.0 && metric(&b, "rendez_leases", "") == 1.0
    });
    assert_eq!(used(&a), 4096.0);
    let headroom = metric(&a, "rendez_device_headroom_bytes", "device=\"0\"");
    assert_eq!(headroom, BOUND - 4096.0);
    assert_eq!(
        (used(&b), kept(&b)),
        (0.0, None),
        "the memory is its owner's"
    );
    let copied = |way| metric(&b, "rendez_device_copied_bytes_total", way);
    // The figures are read while a copy waits for the writer.
    let copy = {
        let (theirs, got) = (theirs.clone(), got.clone());
        std::thread::spawn(move || theirs.to_host(&got).map(|back| back.size()))
    };
    theirs.order(&got, &reader).unwrap();
    theirs.release_after(got.clone(), &reader).unwrap();
    until("the waiting copy and the reader are in the figures", || {
        let kept = kept(&b).unwrap_or_default();
        (kept.count, kept.bytes) == (3, 4096)
    });
    assert_eq!(metric(&b, "rendez_devices_kept", ""), 3.0);
    assert_eq!(metric(&b, "rendez_devices_kept_bytes", ""), 4096.0);
    let before = kept(&b).unwrap();
    assert!(before.is_connected && before.on == b.task().to_string());
    until("it gets older", || kept(&b).unwrap().age_ns > before.age_ns);
    assert_eq!(copied("to_host"), 0.0);
    assert!(alone.played.hold(writer.handle() as usize, false));
    assert_eq!(copy.join().unwrap().unwrap(), 4096);
    assert_eq!(copied("to_host"), 4096.0);
    drop(got);
    until("what the reader uses is kept alone", || {
        kept(&b).is_some_and(|kept| (kept.count, kept.bytes) == (2, 4096))
    });
    assert_eq!(used(&a), 4096.0, "the reader's stream may read it still");
    assert!(alone.played.hold(reader.handle() as usize, false));
    until("all figures are as they were", || {
        used(&a) == 0.0
            && metric(&a, "rendez_lent_bytes", "") == 0.0
            && metric(&b, "rendez_leases", "") == 0.0
            && metric(&b, "rendez_devices_kept", "") == 0.0
    });
    assert_eq!(metric(&b, "rendez_devices_kept_bytes", ""), 0.0);
    assert_eq!(kept(&b), None);
    for family in ["rendez_devices_quarantined", "rendez_devices_unreleased"] {
        assert!(page(&b).contains(&format!("\n{family} 0\n")), "{family}");
    }
}

#[test]
fn values_on_a_device_are_in_the_figures_until_they_are_taken() {
    let _alone = alone();
    let engine = alone_engine();
    let devices = engine.devices().unwrap();
    let here = devices.to_device(&host(70_000, 1), 0).unwrap();
    let copied = |way| metric(&engine, "rendez_device_copied_bytes_total", way);
    assert_eq!(copied("to_device"), 70_000.0);
    let there = devices.to_device(&here, 1).unwrap();
    assert_eq!(copied("device=\"1\",way=\"between\""), 70_000.0);
    let of = key("a", "a", "parked");
    engine.step(STEP).send(&of, there).unwrap();
    let parked = || {
        let items = what_waits(&engine).items.into_iter();
        let parked = items.filter(|item| item.key == of.to_string());
        parked.map(|item| item.bytes).sum::<u64>()
    };
    until("pending has it", || parked() == 70_000);
    drop(received(&engine, &of));
    drop(here);
    until("pending has it no more", || parked() == 0);
    until("all is home", || {
        blocks(&engine) == 0 && devices.kept().0 == 0
    });
    // To the bound, and not a page further; what was refused cost nothing.
    let whole = devices.buffer(0, meta(4 << 20)).unwrap();
    let mut all = vec![whole];
    let refused = loop {
        match devices.buffer(0, meta(4 << 20)) {
            Ok(buffer) => all.push(buffer),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (refused.reason(), all.len()),
        ("ARENA_FULL", 8),
        "{refused}"
    );
    let headroom = || metric(&engine, "rendez_device_headroom_bytes", "device=\"0\"");
    assert_eq!(headroom(), 0.0);
    drop(all);
    until("the memory comes home", || headroom() == BOUND);
    let mapped = metric(&engine, "rendez_device_mapped_bytes", "device=\"0\"");
    assert!(mapped <= BOUND, "{mapped}");
}

fn put(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_pinned_pool_that_the_control_group_has_no_room_for_is_refused() {
    let alone = alone();
    let root = tempfile::tempdir().unwrap();
    let (root, group) = (root.path(), "sys/fs/cgroup/box");
    put(root, "proc/self/cgroup", "0::/box/task\n");
    put(root, &format!("{group}/task/memory.max"), "max\n");
    put(root, &format!("{group}/memory.max"), "1000000\n");
    put(root, &format!("{group}/memory.current"), "900000\n");
    put(
        root,
        &format!("{group}/memory.stat"),
        "anon 890000\ninactive_file 9000\n",
    );
    let engine = alone_engine();
    *engine.inner.wiring.devices().root.locked() = root.into();
    let devices = engine.devices().unwrap();
    drop(devices.buffer(0, meta(64)).unwrap());
    let registered = alone.played.held().registered;
    let status = devices.to_device(&host(64, 0), 0).unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_FULL);
    for part in [
        "196608",
        "device_pinned_bytes",
        "box/memory.max",
        "109000 of 1000000",
    ] {
        assert!(status.message().contains(part), "{part}: {status}");
    }
    assert_eq!(
        alone.played.held().registered,
        registered,
        "nothing was pinned"
    );
    assert_eq!(metric(&engine, "rendez_device_pinned_bytes", "copies"), 0.0);
    until("the memory comes home", || blocks(&engine) == 0);
    // Pages of files make room.
    put(
        root,
        &format!("{group}/memory.stat"),
        "inactive_file 50000\nactive_file 50000\n",
    );
    drop(devices.to_device(&host(64, 0), 0).unwrap());
    assert_eq!(
        metric(&engine, "rendez_device_pinned_bytes", "copies"),
        PINNED
    );
}

#[test]
fn the_pinned_pool_takes_no_more_than_its_bound() {
    let _alone = alone();
    let mut config = config("a");
    config.control = false;
    config.devices.pinned_bytes = 100_000;
    let engine = Engine::start(config.clone()).unwrap();
    drop(
        engine
            .devices()
            .unwrap()
            .to_device(&host(64, 0), 0)
            .unwrap(),
    );
    let pinned = |name| metric(&engine, name, "device=\"0\"");
    let (taken, left) = (
        "rendez_device_pinned_bytes",
        "rendez_device_pinned_headroom_bytes",
    );
    assert_eq!(pinned(taken) - 65536.0, 98304.0);
    assert_eq!(pinned(left), 100_000.0 - 98304.0);
    config.devices.pinned_bytes = (48 << 10) - 1;
    let status = Engine::start(config).unwrap_err();
    assert!(status.message().contains("device_pinned_bytes"), "{status}");
}

#[test]
fn without_devices_nothing_is_said_of_them() {
    let mut off = config("a");
    (off.devices.usage, off.control) = (DeviceUse::Off, false);
    let engine = Engine::start(off).unwrap();
    assert!(!page(&engine).contains("rendez_device"));
    assert_eq!(kept(&engine), None);
}

#[test]
fn who_reads_a_peers_value_takes_no_memory_of_the_device() {
    let alone = alone();
    let (a, b) = pair(Way::Shm);
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    let sent = host(4096, 1);
    let tensor = ours.to_device(&sent, 0).unwrap();
    let of = key("a", "b", "value");
    a.step(STEP).send(&of, tensor).unwrap();
    let got = received(&b, &of).tensor;
    assert!(got.is_leased());
    alone.played.limit(1);
    let reader = theirs.stream(0).unwrap();
    theirs.order(&got, &reader).unwrap();
    let back = theirs.to_host(&got).unwrap();
    assert_eq!(back.host().unwrap(), sent.host().unwrap());
    theirs.release_after(got, &reader).unwrap();
    until("the memory comes home", || blocks(&a) == 0);
    let status = theirs.to_device(&sent, 0).unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_FULL);
    // Half of a usual segment.
    alone.played.limit(2 << 20);
    let there = theirs.to_device(&sent, 0).unwrap();
    alone.played.limit(0);
    let back = theirs.to_host(&there).unwrap();
    assert_eq!(back.host().unwrap(), sent.host().unwrap());
    assert_eq!(theirs.stats()[0].arena.mapped_bytes, 2 << 20);
    drop(there);
    until("nothing is kept", || theirs.kept() == (0, 0));
}

/// The second chunk fails, and then the driver does not say what became of the first.
#[test]
fn memory_of_a_copy_that_failed_goes_home_behind_what_was_queued() {
    let alone = alone();
    let engine = alone_engine();
    let devices = engine.devices().unwrap();
    alone.played.hold_new(true);
    let copy = Some("cuMemcpyHtoDAsync_v2");
    alone.played.fail(copy, 2, 999);
    alone.played.fail(Some("cuStreamSynchronize"), 1, 999);
    let failed = devices.to_device(&host(150_000, 1), 0);
    alone.played.hold_new(false);
    failed.unwrap_err();
    assert_eq!(blocks(&engine), 1, "the first chunk is under way");
    // The stream is the engine's own: all are let go on.
    for number in 0..1 << 12 {
        let _known = alone.played.hold(0x5000 + 16 * number, false);
    }
    until("the memory comes home", || blocks(&engine) == 0);
}

#[test]
fn a_send_that_finds_no_room_is_refused_and_does_not_wait() {
    let _alone = alone();
    let (a, b) = pair_of(Way::Shm, |config| {
        (config.parked_bytes, config.parked_bytes_per_step) = (64 << 10, 64 << 10);
    });
    let tensor = a.devices().unwrap().to_device(&host(16 << 10, 1), 0);
    let (step, tensor) = (a.step(STEP), tensor.unwrap());
    let of = |number: usize| key("a", "b", &format!("x{number}"));
    let (told, heard) = std::sync::mpsc::channel();
    let sender = std::thread::spawn(move || {
        let sent = (0..32).map(|number| step.send(&of(number), tensor.clone()));
        sent.for_each(|sent| told.send(sent).unwrap());
    });
    let all = (0..32).map(|_| heard.recv_timeout(PATIENCE).expect("it waits for room"));
    let all: Vec<_> = all.collect();
    sender.join().unwrap();
    let sent = all.iter().take_while(|sent| sent.is_ok()).count();
    assert!((1..32).contains(&sent), "{all:?}");
    for refused in &all[sent..] {
        let reason = refused.as_ref().unwrap_err().reason();
        assert!(
            [catalogue::PARKED_BYTES, catalogue::PARKED_BYTES_OF_STEP].contains(&reason),
            "{refused:?}"
        );
    }
    for number in 0..sent {
        assert!(received(&b, &of(number)).tensor.is_device());
    }
}
