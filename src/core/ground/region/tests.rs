//! A region is its five numbers, its kind and whether it owns its pages, and nothing else.

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
        owns_pages: false,
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
        Region {
            owns_pages: true,
            ..region
        },
    ] {
        assert_ne!(region, other);
    }
}

#[test]
fn length_kind_and_pages_share_a_word() {
    for &kind in MemoryKind::ALL {
        for (len, owns_pages) in [0, 1, (1 << 56) - 1]
            .into_iter()
            .flat_map(|len| [(len, false), (len, true)])
        {
            let region = Region {
                len,
                kind,
                owns_pages,
                ..Region::default()
            };
            let word = region.len_and_kind();
            assert_eq!(Region::split_len(word), Some((len, kind, owns_pages)));
            // Of the host's memory, in pages that others share, it is the length alone.
            assert_eq!(word == len, kind == MemoryKind::Host && !owns_pages);
        }
    }
    let is_known = |byte: u8| {
        let kinds = MemoryKind::ALL.iter();
        kinds
            .map(|&kind| kind as u8)
            .any(|kind| kind == byte & 0x7f)
    };
    for unknown in (0..=u8::MAX).filter(|&byte| !is_known(byte)) {
        assert_eq!(Region::split_len(u64::from(unknown) << 56 | 5), None);
    }
}
