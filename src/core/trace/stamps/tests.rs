//! Stamps: what goes in comes out, and anything else is a time too.

use super::*;

#[test]
fn a_time_in_short_is_within_one_part_in_2048() {
    assert_eq!(lengthen(0), None);
    for nanos in
        (1..5000).chain((12..42).flat_map(|bit| [(1 << bit) - 1, 1 << bit, 3 << (bit - 1)]))
    {
        let back = lengthen(shorten(nanos)).expect("never zero");
        assert!(back.abs_diff(nanos) * 2048 <= nanos, "{nanos}: {back}");
    }
    assert_eq!(shorten(0), 1, "a time of nothing is a time");
    assert_eq!(shorten(u64::MAX), 0xffff);
    assert!((0..=u64::from(u16::MAX)).all(|short| lengthen(short) <= Some(2 * SHORT_MAX)));
}

#[test]
fn a_stamp_is_told_apart_by_a_counter_that_is_near_it() {
    for ticks in [1, 77, TICKS, TICKS + 1, 5 << TICK_BITS, u64::MAX - 9] {
        let word = stamp(ticks, Some(1000));
        assert_eq!(before_of(word), Some(1000));
        // Behind and ahead: another's comparison may be older or younger than the frame.
        for off in [0, 1, 1 << 30, TICKS / 2] {
            assert_eq!(
                ticks_of(word, ticks.wrapping_add(off)),
                ticks,
                "{ticks} + {off}"
            );
            assert_eq!(
                ticks_of(word, ticks.wrapping_sub(off)),
                ticks,
                "{ticks} - {off}"
            );
        }
    }
    assert!(stamp(0, Some(0)) != 0 && stamp(0, None) != 0);
    assert_ne!(stamp(TICKS + 1, None), 0);
    assert_eq!(before_of(stamp(5, None)), None);
    // One that says no more than when.
    assert_eq!(before_of(77), None);
}

#[test]
fn a_thread_is_told_where_and_when() {
    for (place, at, later) in [
        (0, 0, 5),
        (PLACES - 1, u64::MAX >> 1, 1 << 40),
        (39, MOMENT, 2),
    ] {
        let word = waking(place, Some(640), Nanos(at));
        assert_ne!(word, 0);
        let told = Waking::of(word, Nanos(at + later));
        assert_eq!((told.place, told.so_far_ns), (place, Some(640)));
        assert!(told.woken_ns.abs_diff(later) <= 1, "{told:?}");
    }
    assert_eq!(
        Waking::of(waking(3, None, Nanos(8)), Nanos(9)).so_far_ns,
        None
    );
    assert_eq!(Waking::of(waking(3, None, Nanos(8)), Nanos(8)).woken_ns, 0);
}
