//! Measures and their bounds.

use super::*;

#[test]
fn measures_have_bounds() {
    let good = Geometry {
        slots: 8,
        payload_bytes: 4096,
    };
    assert!(good.is_valid());
    // 128 bytes before the slots, 128 for each of the eight, and the payload ring.
    assert_eq!(
        good.lane_bytes(),
        (128 + 8 * 128 + 4096_usize).next_multiple_of(PAGE)
    );
    for (slots, payload_bytes) in [
        (7, 4096),
        (4, 4096),
        (12, 4096),
        (1 << 17, 4096),
        (8, 4095),
        (8, 2048),
        (8, 128 << 20),
    ] {
        assert!(
            !Geometry {
                slots,
                payload_bytes
            }
            .is_valid()
        );
    }
}

#[test]
fn words_start_zeroed_and_are_seen_by_both_ends() {
    let geometry = Geometry {
        slots: 8,
        payload_bytes: 4096,
    };
    let backing = Backing::heap(2 * geometry.lane_bytes());
    let lanes =
        [0, 0, geometry.lane_bytes()].map(|offset| MemoryLane::new(&backing, offset, geometry));
    drop(backing);
    assert_eq!(lanes[0].peek(7), 0);
    lanes[0].publish(7, 5);
    lanes[0].set_progress(RingProgress {
        slots: 1,
        payload: 2,
    });
    assert_eq!((lanes[1].peek(7), lanes[2].peek(7)), (5, 0));
    assert_eq!(
        lanes[1].progress(),
        RingProgress {
            slots: 1,
            payload: 2
        }
    );
}
