//! A region is its five numbers and nothing else.

use super::Region;

#[test]
fn every_number_counts() {
    let region = Region {
        arena: 1,
        segment: 2,
        generation: 3,
        offset: 4,
        len: 5,
    };
    for other in [
        Region { arena: 9, ..region },
        Region {
            segment: 9,
            ..region
        },
        Region {
            generation: 9,
            ..region
        },
        Region {
            offset: 9,
            ..region
        },
        Region { len: 9, ..region },
    ] {
        assert_ne!(region, other);
    }
    assert_eq!(
        size_of::<Region>(),
        24,
        "three words: as it travels in a frame's body"
    );
}
