//! Peers: their segments, found by arena and number.

use super::*;
use crate::memory::{ArenaConfig, ArenaId, HugePages, Pool};

#[test]
fn segments_are_found_in_whatever_order_they_come() {
    let config = ArenaConfig {
        segment_bytes: 1 << 20,
        bytes_max: 1 << 20,
        huge_pages: HugePages::Off,
    };
    let pool = Pool::new(ArenaId(0), config).unwrap();
    let segment = |arena, index| {
        let file = &pool.segments()[0];
        let fd = file.fd().try_clone_to_owned().unwrap();
        let mapped = MappedSegment::open(fd, file.len() as u64).unwrap();
        PeerSegment {
            arena,
            index,
            mapped: Arc::new(mapped),
        }
    };
    let mut peer = Peer::new(&TaskName::parse("/job:a/task:0").unwrap(), 0);
    let greeted = [(3, 0), (0, 1), (1, 7), (0, 0)].map(|(arena, index)| segment(arena, index));
    let news = [(1, 8), (0, 2), (2, 0), (9, 9)].map(|(arena, index)| segment(arena, index));
    peer.set_segments(greeted.to_vec());
    for one in &news {
        peer.add_segment(one.clone());
    }
    // Of what the greeting has brought already there is no news.
    peer.add_segment(segment(1, 7));
    for one in greeted.iter().chain(&news) {
        let found = peer.segment(one.arena, one.index);
        assert!(found.is_some_and(|found| Arc::ptr_eq(found, &one.mapped)));
    }
    assert!(peer.segment(1, 9).is_none());
    peer.set_segments(Vec::new());
    assert!(peer.segment(0, 0).is_none());
}
