//! A region is its five numbers and its kind, and nothing else.

use super::{MemoryKind, Region};

#[test]
fn every_number_counts() {
    let region = Region {
        arena: 1,
        segment: 2,
        generation: 3,
        offset: 4,
        len: 5,
        kind: MemoryKind::Host,
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
        Region {
            kind: MemoryKind::Cuda,
            ..region
        },
    ] {
        assert_ne!(region, other);
    }
}

#[test]
fn length_and_kind_share_a_word() {
    for kind in [MemoryKind::Host, MemoryKind::Cuda] {
        for len in [0, 1, (1 << 56) - 1] {
            let region = Region {
                len,
                kind,
                ..Region::default()
            };
            let word = region.len_and_kind();
            assert_eq!(Region::split_len(word), Some((len, kind)));
            // Of the host's memory it is the length alone.
            assert_eq!(word == len, kind == MemoryKind::Host);
        }
    }
    for unknown in 2..=u8::MAX {
        assert_eq!(Region::split_len(u64::from(unknown) << 56 | 5), None);
    }
}
