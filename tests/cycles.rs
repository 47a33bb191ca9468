//! Engines that come and go: each leaves the process as it found it.
//!
//! It counts what the whole process holds, so it runs alone in one: this very binary, in another role. There the
//! allocator has one arena: with one for each thread what it keeps for itself grows with every thread that comes.
//! `RENDEZ_TEST_CYCLES` says how many pairs of engines come and go on each runtime over each way, 3000 for a thorough
//! look.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use rendez::control::RuntimeKind;
use rendez::engine::{Config, Engine, Require};
use rendez::ground::{DType, Key, StepId};

const CYCLES: &str = "RENDEZ_TEST_CYCLES";
const ROLE: &str = "RENDEZ_TEST_CYCLES_ROLE";
const USUAL_CYCLES: u32 = 30;
/// Engines that come and go before anything is counted: what a process makes once is made then.
const WARM: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(20);
/// Memory that may be kept whatever the number of cycles: the allocator's own.
const SLACK_KIB: u64 = 2 << 10;
/// From here on the C library maps what it gives out, and unmaps what it is given back. Left alone it raises this bound
/// to the largest block it was ever given back, and then keeps one of 16 MiB, now and then, below a small block.
const MAPPED_FROM: &str = "131072";

/// What this process holds now.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Held {
    /// Descriptors, by what they are.
    descriptors: BTreeMap<String, usize>,
    threads: usize,
    /// Mappings of memory files, which are the engine's: arenas, rings, doorbells, recorders.
    files: usize,
}

fn held() -> Held {
    let mut descriptors = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(target) = std::fs::read_link(entry.unwrap().path()) else {
            continue; // the folder that is being read
        };
        let kind = target.to_string_lossy();
        let kind = kind.split(":[").next().unwrap().to_owned();
        *descriptors.entry(kind).or_default() += 1;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_file = |line: &&str| line.contains("memfd:") || line.contains("anon_inode");
    Held {
        descriptors,
        threads: std::fs::read_dir("/proc/self/task").unwrap().count(),
        files: maps.lines().filter(is_file).count(),
    }
}

/// Bytes of memory that are this process's own, in KiB.
fn own_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("RssAnon"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn engine(task: &str, runtime: RuntimeKind, way: Require) -> Engine {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    (config.shards, config.share_cores) = (1, true);
    config.runtime = Some(runtime);
    config.arena.segment_bytes = 1 << 20;
    config.require = way;
    if way == Require::Tcp {
        config.listen = Some("127.0.0.1:0".parse().unwrap());
    }
    Engine::start(config).unwrap()
}

/// Two engines come, meet, hand a value over, and go.
fn cycle(runtime: RuntimeKind, way: Require) {
    let (one, other) = (engine("a", runtime, way), engine("b", runtime, way));
    assert_eq!(one.control_runtime().unwrap().kind, runtime);
    let address = other.tcp_address().or_else(|| other.address());
    one.add_peer(other.task().clone(), address.unwrap().clone());
    let key = Key::between("a", "b", "value").unwrap();
    let tensor = one.tensor(DType::U8, &[4096]).unwrap();
    one.step(StepId(1)).send(&key, tensor.finish()).unwrap();
    let got = other.step(StepId(1)).recv(&key).deadline(PATIENCE).wait();
    assert_eq!(got.unwrap().tensor.size(), 4096);
    one.shutdown(Duration::from_millis(100));
    other.shutdown(Duration::from_millis(100));
}

#[test]
fn engines_that_come_and_go_leave_nothing() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "alone", "--nocapture", "--test-threads=1"])
        .env(ROLE, "1")
        .env("MALLOC_ARENA_MAX", "1")
        .env("MALLOC_MMAP_THRESHOLD_", MAPPED_FROM)
        .env("MALLOC_TRIM_THRESHOLD_", MAPPED_FROM)
        .status()
        .unwrap();
    assert!(status.success());
}

/// Not a test of its own: what the process runs that is looked at.
#[test]
fn alone() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let cycles = std::env::var(CYCLES).map_or(USUAL_CYCLES, |cycles| cycles.parse().unwrap());
    for runtime in [RuntimeKind::Glommio, RuntimeKind::Poll] {
        for way in [Require::Shm, Require::Tcp] {
            (0..WARM).for_each(|_| cycle(runtime, way));
            let (before, before_kib) = (settled(None), own_kib());
            (0..cycles).for_each(|_| cycle(runtime, way));
            let (after, after_kib) = (settled(Some(&before)), own_kib());
            let what = format!("{cycles} cycles on {runtime:?} over {way:?}");
            eprintln!("{what}: {after:?}, {before_kib} -> {after_kib} KiB");
            assert_eq!(before, after, "{what}");
            assert!(
                after_kib < before_kib + SLACK_KIB,
                "{what}: {before_kib} -> {after_kib} KiB"
            );
        }
    }
}

/// What is held when threads that were about to end have ended: as `expected`, or what it stays at.
fn settled(expected: Option<&Held>) -> Held {
    let until = Instant::now() + PATIENCE;
    let (mut last, mut seen) = (held(), 0);
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = held();
        seen = if now == last { seen + 1 } else { 0 };
        let is_it = expected.map_or(seen >= 10, |expected| *expected == now);
        if is_it || Instant::now() > until {
            return now;
        }
        last = now;
    }
}
