//! The stopwatch agrees with the system's clock in kind; how well is measured, not tested.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::*;

#[test]
fn stamps_do_not_go_back() {
    let watch = Stopwatch::calibrated();
    let mut last = watch.stamp();
    for _ in 0..10_000 {
        let now = watch.stamp();
        assert!(now >= last);
        last = now;
    }
}

#[test]
fn an_interval_lies_within_what_the_system_saw() {
    let watch = Stopwatch::calibrated();
    let outer = Instant::now();
    let start = watch.stamp();
    let inner = Instant::now();
    while inner.elapsed() < Duration::from_millis(5) {
        std::hint::spin_loop();
    }
    let inner = inner.elapsed().as_nanos() as u64;
    let nanos = watch.nanos(start, watch.stamp());
    let outer = outer.elapsed().as_nanos() as u64;
    // One part in a hundred for the calibration: an error of scale is far larger, an unlucky schedule is smaller.
    assert!(
        nanos >= inner - inner / 100 && nanos <= outer + outer / 100,
        "{inner} ≤ {nanos} ≤ {outer}"
    );
}

#[test]
fn ticks_and_nanos_are_inverse() {
    let watch = Stopwatch {
        clock: Clock::system(),
        rate: (1u64 << 32) / 2,
    };
    assert_eq!(watch.ticks(Duration::from_micros(3)), 6_000);
    assert_eq!(watch.nanos(Stamp(10), Stamp(6_010)), 3_000);
    assert_eq!(watch.picos(Stamp(0), Stamp(3)), 1_500);
    assert_eq!(
        watch.nanos(Stamp(7), Stamp(3)),
        0,
        "a clock that went back gives zero"
    );
}

/// As where there is no counter: ticks are nanoseconds, and two sides of a measurement made theirs at different times.
#[test]
fn stamps_do_not_depend_on_when_a_stopwatch_was_made() {
    let now = Arc::new(AtomicU64::new(1_000));
    let near = Stopwatch::of(Clock::simulated(Arc::clone(&now)));
    now.store(51_000, std::sync::atomic::Ordering::Relaxed);
    let far = Stopwatch::of(Clock::simulated(now));
    assert_eq!((near.stamp(), far.stamp()), (Stamp(51_000), Stamp(51_000)));
    assert_eq!(far.ticks(Duration::from_nanos(12)), 12);
    assert_eq!(far.nanos(Stamp(5), near.stamp()), 50_995);
}
