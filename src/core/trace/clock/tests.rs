//! The rate of the counter, on clocks that are played.

use std::time::{Duration, Instant};

use super::paired;

/// Looks at a counter of 3 ticks a nanosecond: each look takes 60 ticks, and one of three is interrupted between its
/// two readings.
#[test]
fn a_reading_that_was_interrupted_does_not_count() {
    let origin = Instant::now();
    let mut ticks = 1_000_000;
    let mut looks = 0;
    for interrupted in 0..3 {
        let (now, counted) = paired(|| {
            looks += 1;
            let before = ticks;
            ticks += if looks % 3 == interrupted {
                900_000
            } else {
                30
            };
            let now = origin + Duration::from_nanos(ticks / 3);
            ticks += 30;
            (before, now, ticks)
        });
        assert_eq!(now, origin + Duration::from_nanos(counted / 3));
    }
}

#[test]
fn the_rate_holds_over_a_counter_that_comes_round() {
    let (now, counted) = paired(|| (u64::MAX - 9, Instant::now(), 10));
    assert!(now.elapsed() < Duration::from_secs(60));
    assert_eq!(counted, 0);
}
