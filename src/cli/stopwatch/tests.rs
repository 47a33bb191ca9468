//! The stopwatch agrees with the system's clock in kind; how well is measured, not tested.

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
        origin: Instant::now(),
        scale: Some((1u64 << 32) / 2),
    };
    assert_eq!(watch.ticks(Duration::from_micros(3)), 6_000);
    assert_eq!(watch.nanos(Stamp(10), Stamp(6_010)), 3_000);
    assert_eq!(watch.picos(Stamp(0), Stamp(3)), 1_500);
    assert_eq!(
        watch.nanos(Stamp(7), Stamp(3)),
        0,
        "a clock that went back gives zero"
    );
    assert_eq!(watch.frequency_hz(), Some(2_000_000_000));
}

#[test]
fn without_a_counter_ticks_are_nanoseconds() {
    let watch = Stopwatch {
        origin: Instant::now(),
        scale: None,
    };
    assert_eq!(watch.ticks(Duration::from_nanos(12)), 12);
    assert_eq!(watch.nanos(Stamp(5), Stamp(17)), 12);
    assert_eq!(
        (watch.source(), watch.frequency_hz()),
        ("clock_gettime", None)
    );
}
