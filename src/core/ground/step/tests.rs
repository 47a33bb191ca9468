//! Numbers as texts: what stands in keys and messages.

use super::*;

#[test]
fn texts() {
    assert_eq!(StepId(u64::MAX).to_string(), "18446744073709551615");
    assert_eq!(Incarnation(7890).to_string(), "0000000000001ed2");
    assert_eq!(Incarnation(u64::MAX).to_string(), "ffffffffffffffff");
}

#[test]
fn zero_is_the_current_incarnation() {
    assert!(Incarnation::CURRENT.is_current());
    assert!(Incarnation::default().is_current());
    assert!(!Incarnation(1).is_current());
    assert_eq!(Incarnation::CURRENT.to_string(), "0000000000000000");
}
