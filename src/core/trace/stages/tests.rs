//! Stages: which values are timed, and that nothing is counted twice or left behind.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::ground::{FrameIter, StepId};

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
    let place = RecorderPlace {
        file: None,
        ring_bytes: 4096,
    };
    let clock = Clock::simulated(Arc::clone(&now));
    (
        Stages::new(clock, vec![Carrier::Shm], place, head(sampling)).expect("memory"),
        now,
    )
}

const fn subject(bytes: u64) -> TimedValue {
    TimedValue {
        step: StepId(7),
        at: FrameIter { frame: 0, iter: 0 },
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
    let stamp = sender.stamp(trace);
    sender.sent(trace, 0, Path::Inline, &subject(4));
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
    // 150 before its frame was posted, and 112 after.
    assert_eq!(
        cell(&receiver, Stage::Whole, Way::ShmInline).map(|cell| cell.0),
        Some(262)
    );
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
    // An unknown port is no neighbour's.
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
    // Further apart than any value is under way: the comparison is wrong.
    let (mut receiver, now) = stages(1);
    now.store(1 << 50, Ordering::Relaxed);
    let scale = Scale {
        ticks: 1 << 50,
        nanos: 1 << 50,
        rate: 1 << 32,
    };
    let clock = PeerClock {
        scale,
        error_ns: 50,
    };
    receiver.compare(2, Some(clock));
    for ago in [WIRE_MAX_NS + 1, 1 << 40, 1 << 46] {
        let stamp = stamps::stamp((1 << 50) - ago, Some(5));
        let trace = receiver.arrived(stamp, 2, 9, Path::Inline, &subject(4));
        receiver.meets(trace);
        receiver.woke(trace, Nanos(1 << 50));
    }
    let times = [Stage::Wire, Stage::Whole].map(|stage| cell(&receiver, stage, Way::ShmInline));
    assert_eq!(times, [None, None]);
}

/// Whichever side sends at `from`, and whatever the times between: the stages of all hand-overs together, on both
/// sides, are the whole of them, which is measured without looking at the stages.
#[test]
#[cfg(feature = "stages")]
fn the_stages_leave_nothing_out() {
    use crate::ground::rng::Rng;
    let (mut sender, now) = stages(1);
    let (mut receiver, other) = stages(1);
    let mut rng = Rng::new(6);
    let pass = |nanos: u64| {
        let time = now.load(Ordering::Relaxed) + nanos;
        now.store(time, Ordering::Relaxed);
        other.store(time, Ordering::Relaxed);
        Nanos(time)
    };
    pass(1 << 50);
    // Hours pass between some of them: the counter of a stamp comes round.
    let mut wait = |up_to: u64| pass(rng.below(up_to));
    for round in 0..1000 {
        wait(1 << 47);
        let begun = wait(1000);
        if round % 3 == 0 {
            wait(90_000);
            sender.took(begun);
        } else {
            sender.count();
        }
        let trace = sender.take_sending();
        // It parks twice before there is room, now and then for longer than 32 bits of nanoseconds say.
        let long = if round % 50 == 7 { 10_000_000_000 } else { 0 };
        for _ in 0..round % 3 {
            wait(1 << (round % 20));
            pass(long);
            sender.matched(trace);
        }
        wait(300);
        pass(long);
        if round % 5 == 0 {
            sender.is_here(trace, &subject(4));
            sender.meets(trace);
            assert_eq!(sender.take_handing(), trace);
            wait(50);
            let woke = sender.wakes();
            sender.woke(trace, woke);
            continue;
        }
        let stamp = sender.stamp(trace);
        wait(77);
        sender.sent(trace, 0, Path::Inline, &subject(4));
        wait(5000);
        pass(long);
        let trace = receiver.arrived(stamp, 0, 0, Path::Inline, &subject(4));
        wait(1 << (round % 16));
        pass(long);
        receiver.meets(trace);
        let trace = receiver.take_handing();
        let recorder = receiver.recorder().expect("it records");
        if round % 2 == 0 {
            let word = receiver.hands_to_thread(trace);
            woke_thread(&recorder, word, wait(60_000));
        } else {
            wait(500);
            pass(long);
            let woke = receiver.wakes();
            receiver.woke(trace, woke);
        }
    }
    let of = |stage: Stage, way: Way| {
        let found = [&sender, &receiver].map(|side| cell(side, stage, way));
        let found = found.into_iter().flatten();
        found.fold((0, 0), |(sum, count), (nanos, times)| {
            (
                sum + nanos,
                count + times.iter().map(|(_, count)| count).sum::<u64>(),
            )
        })
    };
    for (way, count) in [(Way::Local, 200), (Way::ShmInline, 800)] {
        let (whole, wholes) = of(Stage::Whole, way);
        let stages = Stage::ALL
            .iter()
            .copied()
            .filter(|stage| *stage != Stage::Whole);
        let sum: u64 = stages.map(|stage| of(stage, way).0).sum();
        assert_eq!(wholes, count, "{way:?}");
        assert!(
            sum.abs_diff(whole) * 1000 <= whole,
            "{way:?}: {sum} of {whole}"
        );
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
    stages.sent(old, 0, Path::Inline, &subject(4));
    assert_eq!(cell(&stages, Stage::Posted, Way::ShmInline), None);
    stages.meets(old);
    assert_eq!(stages.take_handing(), 0);
}
