//! What comparisons of clocks say, and what is heard of traces.

use super::*;
use crate::engine::{Config, Require};

#[test]
fn a_comparison_is_as_good_as_half_of_its_round_trip() {
    let reply = ClockReply {
        ticks: 77_000,
        rate: 1 << 31,
        boot_id: "another".into(),
        unix_ns: 5_000_600,
    };
    let (trip, clock, offset) = compared(&reply, Nanos(1000), Nanos(1400), 5_000_000);
    assert_eq!((trip, clock.error_ns), (400, 200));
    // Its counter was read half way, at 1200 of ours; two ticks of it are a nanosecond.
    assert_eq!(clock.scale.stamp(77_000), Nanos(1200));
    assert_eq!(clock.scale.stamp(77_100), Nanos(1250));
    // It was 5 000 200 here then.
    assert_eq!(offset, Some(400));
    let behind = ClockReply {
        unix_ns: 4_999_000,
        ..reply.clone()
    };
    let (_, _, offset) = compared(&behind, Nanos(1000), Nanos(1400), 5_000_000);
    assert_eq!(offset, Some(-1200));
    let silent = ClockReply {
        unix_ns: 0,
        ..reply
    };
    let (_, clock, offset) = compared(&silent, Nanos(1400), Nanos(1400), u64::MAX);
    assert_eq!(offset, None);
    assert_eq!(clock.error_ns, 1, "zero is for who shares our counter");
}

#[test]
fn an_old_comparison_is_as_wrong_as_counters_drift() {
    let fresh = ComparedClock {
        offset_ns: None,
        error: Duration::from_micros(40),
    };
    assert_eq!(fresh.aged(Duration::ZERO), fresh);
    // Two virtual counters of one rate, measured 47 millionths too fast here and too slow there.
    for hours in [1, 24] {
        let age = Duration::from_secs(3600 * hours);
        let apart = age * 94 / 1_000_000 + fresh.error;
        assert!(fresh.aged(age).error >= apart, "after {hours} hours");
    }
    let shared = ComparedClock {
        error: Duration::ZERO,
        ..fresh
    };
    assert_eq!(shared.aged(Duration::from_secs(86_400)), shared);
}

#[test]
fn the_error_is_of_what_lies_between_machines() {
    let mut config = Config::new("/job:a/task:0");
    (config.shards, config.share_cores) = (1, true);
    config.require = Require::Tcp;
    config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let engine = Engine::start(config).expect("it starts");
    let mut other = Config::new("/job:b/task:0");
    (other.shards, other.share_cores, other.require) = (1, true, Require::Tcp);
    other.listen.clone_from(&engine.inner.config.listen);
    let other = Engine::start(other).expect("it starts");
    engine.add_peer(
        other.task().clone(),
        other.tcp_address().expect("it listens").clone(),
    );
    engine.connect(other.task());
    let began = std::time::Instant::now();
    while engine.compared_clocks().is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "clocks are not compared"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // As if it were of another boot.
    let clock = ComparedClock {
        offset_ns: Some(-3),
        error: Duration::from_nanos(4321),
    };
    let clocks = || engine.inner.clocks.lock().expect("no panic");
    // Compared just now, whenever it is looked at.
    clocks().insert(other.task().clone(), (clock, Nanos::NEVER));
    let error = |stage, way| engine.error_of(stage, way).as_nanos();
    for &way in ValueWay::ALL {
        let is_far = way.name().starts_with("tcp") || way.name().starts_with("verbs");
        for &stage in Stage::ALL {
            let is_between = matches!(stage, Stage::Wire | Stage::Whole);
            let expected = if is_far && is_between { 4321 } else { 0 };
            assert_eq!(error(stage, way), expected, "{stage:?} {way:?}");
        }
    }
    other.shutdown(Duration::ZERO);
    engine.shutdown(Duration::ZERO);
}

#[test]
fn what_is_no_traceparent_is_counted_and_left_out() {
    let mut config = Config::new("/job:a/task:0");
    (config.shards, config.share_cores, config.control) = (1, true, false);
    let engine = Engine::start(config).expect("it starts");
    let hear = |text: &str| engine.heard_traceparent(text, &"a peer");
    assert_eq!(hear(""), None);
    assert_eq!(engine.refused_traceparents(), 0, "nothing was said");
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert_eq!(
        hear(good).map(|trace| trace.to_string()).as_deref(),
        Some(good)
    );
    for bad in ["x", &good.to_uppercase(), "00-ä"] {
        assert_eq!(hear(bad), None);
    }
    assert_eq!(engine.refused_traceparents(), 3);
    engine.shutdown(Duration::ZERO);
}
