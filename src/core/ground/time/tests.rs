//! Time saturates: "never" stays never, and nothing is earlier than the origin.

use super::*;

#[test]
fn after_saturates_at_never() {
    assert_eq!(Nanos::ZERO.after(Duration::from_micros(3)), Nanos(3000));
    assert_eq!(Nanos::NEVER.after(Duration::from_nanos(1)), Nanos::NEVER);
    assert_eq!(Nanos(1).after(Duration::MAX), Nanos::NEVER);
    assert_eq!(Nanos(u64::MAX - 1) + 5, Nanos::NEVER);
}

#[test]
fn since_stops_at_zero() {
    assert_eq!(Nanos(10).since(Nanos(4)), Duration::from_nanos(6));
    assert_eq!(Nanos(4).since(Nanos(10)), Duration::ZERO);
    assert_eq!(Nanos(10) - Nanos(4), 6);
    assert_eq!(Nanos(4) - Nanos(10), 0);
}

#[test]
fn later_is_greater() {
    assert!(Nanos::ZERO < Nanos(1) && Nanos(1) < Nanos::NEVER);
    assert_eq!(Nanos::default(), Nanos::ZERO);
}
