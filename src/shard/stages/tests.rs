//! Stages: who is timed, and that nothing is counted twice or left behind.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::Path;
use super::*;
use crate::fabric::LoopbackPort;
use crate::ground::{FrameIter, StepId};
use crate::rendezvous::KeyId;

fn head(sampling: u32) -> Head {
    Head {
        task: "/job:a".into(),
        incarnation: 1,
        shard: 0,
        pid: 0,
        sampling,
        clock_ns: 0,
        scale: Scale {
            ticks: 0,
            nanos: 0,
            rate: 1 << 32,
        },
        boot: 9,
    }
}

fn stages(sampling: u32) -> (Stages, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(1));
    let ports = [AnyPort::Loopback(LoopbackPort::new())];
    let place = Place {
        file: None,
        ring_bytes: 4096,
    };
    let clock = Clock::simulated(Arc::clone(&now));
    (
        Stages::new(clock, &ports, place, head(sampling)).expect("memory"),
        now,
    )
}

const fn subject(bytes: u64) -> Subject {
    Subject {
        slot: Slot {
            step: StepId(7),
            key: KeyId(0),
            at: FrameIter { frame: 0, iter: 0 },
        },
        key: 0xfeed,
        ordinal: 3,
        bytes,
    }
}

fn cell(stages: &Stages, stage: Stage, way: Way) -> Option<(u64, Vec<(u64, u64)>)> {
    stages
        .recorder()
        .and_then(|recorder| recorder.cell(cell_of(stage, way, 0)))
}

#[test]
fn one_in_so_many_is_timed_and_none_where_nobody_asks() {
    let (mut stages, _) = stages(4);
    let timed = |stages: &mut Stages| {
        stages.count();
        stages.take_sending() != 0
    };
    let found: Vec<bool> = (0..8).map(|_| timed(&mut stages)).collect();
    assert_eq!(found, [false, false, false, ON, false, false, false, ON]);
    let (mut none, _) = self::stages(0);
    assert!((0..1000).all(|_| !timed(&mut none)));
    assert!(none.recorder().is_none());
}

#[test]
#[cfg(feature = "stages")]
fn a_value_is_followed_from_its_sender_to_its_receiver() {
    let (mut sender, now) = stages(1);
    let at = |nanos: u64| now.store(nanos, Ordering::Relaxed);
    at(1000);
    sender.took(Nanos(900));
    let trace = sender.take_sending();
    at(1020);
    sender.matched(trace);
    at(1050);
    let stamp = sender.stamp();
    sender.sent(trace, stamp, 0, Path::Inline, &subject(4));
    let times = [Stage::Queued, Stage::Matched, Stage::Posted]
        .map(|stage| cell(&sender, stage, Way::ShmInline));
    let once = |nanos: u64| Some((nanos, vec![(nanos, 1)]));
    assert_eq!(times, [once(100), once(20), once(30)]);

    let (mut receiver, now) = stages(64);
    let at = |nanos: u64| now.store(nanos, Ordering::Relaxed);
    at(1150);
    let trace = receiver.arrived(stamp, 0, 0, Path::Inline, &subject(4));
    at(1155);
    receiver.meets(trace);
    assert_eq!(receiver.take_handing(), trace);
    at(1162);
    let woke = receiver.wakes();
    receiver.woke(trace, woke);
    let times = [Stage::Wire, Stage::Landed, Stage::Woken]
        .map(|stage| cell(&receiver, stage, Way::ShmInline));
    assert_eq!(times, [once(100), once(5), once(7)]);
    receiver.woke(trace, woke);
    assert_eq!(
        cell(&receiver, Stage::Woken, Way::ShmInline),
        once(7),
        "a trace ends once"
    );
    assert_eq!(receiver.take_handing(), 0);
}

#[test]
#[cfg(feature = "stages")]
fn the_time_on_the_wire_needs_a_comparison_and_nonsense_is_left_out() {
    let (mut receiver, now) = stages(1);
    now.store(5_000, Ordering::Relaxed);
    // A port that nobody knows is no neighbour's.
    let far = |receiver: &mut Stages, stamp: u64| {
        let trace = receiver.arrived(stamp, 2, 9, Path::Inline, &subject(4));
        receiver.meets(trace);
        receiver.woke(trace, Nanos(5_000));
    };
    far(&mut receiver, 77);
    assert_eq!(cell(&receiver, Stage::Wire, Way::ShmInline), None);
    let scale = Scale {
        ticks: 77,
        nanos: 4_000,
        rate: 1 << 32,
    };
    receiver.compare(
        2,
        Some(PeerClock {
            scale,
            error_ns: 50,
        }),
    );
    far(&mut receiver, 177);
    assert_eq!(
        cell(&receiver, Stage::Wire, Way::ShmInline).map(|cell| cell.0),
        Some(900)
    );
    for stamp in [1, u64::MAX, u64::MAX / 2, 1 << 63] {
        far(&mut receiver, stamp);
    }
}

#[test]
fn a_trace_that_was_overtaken_is_nobodys() {
    let (mut stages, _) = stages(1);
    stages.took(Nanos(1));
    let old = stages.take_sending();
    for _ in 0..TRACES {
        stages.took(Nanos(1));
    }
    stages.sent(old, 1, 0, Path::Inline, &subject(4));
    assert_eq!(cell(&stages, Stage::Posted, Way::ShmInline), None);
    stages.meets(old);
    assert_eq!(stages.take_handing(), 0);
}
