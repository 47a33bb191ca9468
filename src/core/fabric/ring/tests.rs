//! The ring's algorithm over heap memory: placing, wrapping, and a peer that lies.

use super::*;
use crate::fabric::lane::{Geometry, MemoryLane};
use crate::fabric::link::Endpoint;

const SLOTS: u64 = 8;
const PAYLOAD: u64 = 4096;

fn ring() -> (RingProducer<MemoryLane>, RingConsumer<MemoryLane>) {
    let geometry = Geometry {
        slots: SLOTS as u32,
        payload_bytes: PAYLOAD as u32,
    };
    let (one, other) = Endpoint::heap_pair(geometry);
    (RingProducer::new(one.tx), RingConsumer::new(other.rx))
}

fn frame(number: u64, len: usize) -> Frame {
    let mut frame = Frame::default();
    frame.words[0] = 0x17 << 32;
    frame.words[1] = (len as u64) << 32;
    frame.words[2] = number;
    frame
}

fn post(producer: &mut RingProducer<MemoryLane>, number: u64, len: usize) -> Result<(), PostError> {
    let body = vec![number as u8; len];
    producer.post(&frame(number, len), [&body, &[]], Reserve::default())
}

/// Takes one frame; its number and body.
fn take(consumer: &mut RingConsumer<MemoryLane>) -> Result<Option<(u64, Vec<u8>)>, Corrupt> {
    let taken = consumer.take()?;
    Ok(taken.map(|taken| {
        let mut bytes = vec![0; taken.body_len()];
        taken.copy_body_to(&mut bytes);
        assert_eq!(taken.frame().stamp(), 0, "the stamp stays in the fabric");
        (taken.frame().words[2], bytes)
    }))
}

#[test]
fn pieces_are_aligned_never_wrap_and_never_overlap_within_a_ring() {
    let mut cursor = 0;
    for len in (17..1024).chain((17..1024).rev()) {
        let (offset, next) = place(cursor, len, PAYLOAD);
        assert_eq!(offset % PIECE_ALIGN, 0);
        assert!(offset + len <= PAYLOAD);
        assert!(
            next >= cursor + len && (next - len.next_multiple_of(PIECE_ALIGN)) % PAYLOAD == offset
        );
        assert!(
            next - cursor <= PAYLOAD / 2,
            "what is skipped and what is placed stay below one half"
        );
        cursor = next;
    }
}

#[test]
fn a_body_begins_in_its_frame_and_comes_whole_wherever_it_was_cut() {
    let (mut producer, mut consumer) = ring();
    let bytes: Vec<u8> = (0..200).map(|at| at as u8 + 1).collect();
    for len in 0..bytes.len() {
        for middle in 0..=len {
            let (lead, data) = bytes[..len].split_at(middle);
            let before = producer.cursor;
            producer
                .post(&frame(7, len), [lead, data], Reserve::default())
                .expect("room");
            let beside = len.saturating_sub(INLINE_BODY_MAX + SIDE) as u64;
            if before % PAYLOAD + beside.next_multiple_of(64) <= PAYLOAD {
                assert_eq!(
                    producer.cursor - before,
                    beside.next_multiple_of(64),
                    "{len} bytes: what the slot takes costs nothing of the payload ring"
                );
            }
            let taken = consumer.take().expect("honest").expect("a frame");
            assert!(len <= INLINE_BODY_MAX || taken.frame().tail() == [0; INLINE_BODY_MAX]);
            let mut copy = vec![0; taken.body_len()];
            taken.copy_body_to(&mut copy);
            assert_eq!(copy, bytes[..len], "cut at {middle}");
        }
    }
}

#[test]
fn a_ring_holds_as_many_frames_as_slots() {
    let (mut producer, mut consumer) = ring();
    for lap in 0..10 {
        for number in 0..SLOTS {
            post(&mut producer, lap * SLOTS + number, 3).expect("room");
        }
        assert_eq!(post(&mut producer, 0, 3), Err(PostError::Full));
        for number in 0..SLOTS {
            let number = lap * SLOTS + number;
            assert_eq!(
                take(&mut consumer),
                Ok(Some((number, vec![number as u8; 3])))
            );
        }
        assert_eq!(take(&mut consumer), Ok(None));
    }
}

#[test]
fn progress_is_told_each_quarter_or_when_asked() {
    let (mut producer, mut consumer) = ring();
    for number in 0..3 {
        post(&mut producer, number, 0).expect("room");
    }
    take(&mut consumer).expect("honest");
    assert_eq!(consumer.told.slots, 0);
    take(&mut consumer).expect("honest");
    assert_eq!(consumer.told.slots, 2, "a quarter of eight");
    take(&mut consumer).expect("honest");
    assert!(consumer.is_unsettled());
    assert!(consumer.settle());
    assert!(!consumer.settle(), "nothing new");
    assert_eq!(consumer.told.slots, 3);
}

#[test]
fn a_reserve_is_left_free() {
    let (mut producer, _consumer) = ring();
    let reserve = Reserve {
        slots: 2,
        payload: PAYLOAD / 2,
    };
    let body = [0; 1024];
    for _ in 0..2 {
        producer
            .post(&frame(0, 1024), [&body, &[]], reserve)
            .expect("half the payload");
    }
    assert_eq!(
        producer.post(&frame(0, 1024), [&body, &[]], reserve),
        Err(PostError::Full)
    );
    for _ in 0..4 {
        producer
            .post(&frame(0, 0), [&[], &[]], reserve)
            .expect("six slots");
    }
    assert_eq!(
        producer.post(&frame(0, 0), [&[], &[]], reserve),
        Err(PostError::Full)
    );
    producer
        .post(&frame(0, 0), [&[], &[]], Reserve::default())
        .expect("the reserve");
}

#[test]
fn positions_past_the_stamps_range_still_differ_from_the_lap_before() {
    for position in [0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, (1 << 32) + 5] {
        for count in [8, 1 << 16] {
            if position >= count {
                assert_ne!(stamp(position), stamp(position - count));
            } else {
                assert_ne!(stamp(position), 0);
            }
        }
    }
}

#[test]
fn a_stamp_that_cannot_be_is_corrupt() {
    for lie in [2, 3, SLOTS, SLOTS + 1, 0xffff_ffff] {
        let (_producer, mut consumer) = ring();
        consumer.lane().publish(0, lie);
        assert!(consumer.is_ready());
        assert_eq!(take(&mut consumer), Err(Corrupt), "stamp {lie}");
    }
    // The right stamp over a body that never was: garbage in the ring's own payload, nothing outside.
    let (_producer, mut consumer) = ring();
    consumer.lane().fill(0, &frame(9, 100));
    consumer.lane().publish(0, 1);
    assert_eq!(take(&mut consumer), Ok(Some((9, vec![0; 100]))));
}

#[test]
fn a_length_over_the_bound_is_corrupt() {
    for len in [body_max(PAYLOAD) as u64 + 1, PAYLOAD, u64::from(u32::MAX)] {
        let (_producer, mut consumer) = ring();
        consumer.lane().fill(0, &frame(0, len as usize));
        consumer.lane().publish(0, 1);
        assert_eq!(take(&mut consumer), Err(Corrupt), "length {len}");
    }
}

#[test]
fn progress_that_cannot_be_is_corrupt() {
    let lies = [
        RingProgress {
            slots: SLOTS + 1,
            payload: 0,
        },
        RingProgress {
            slots: u64::MAX,
            payload: 0,
        },
        RingProgress {
            slots: SLOTS,
            payload: 64,
        },
        RingProgress {
            slots: SLOTS,
            payload: u64::MAX,
        },
    ];
    for lie in lies {
        let (mut producer, consumer) = ring();
        for number in 0..SLOTS {
            post(&mut producer, number, 0).expect("room");
        }
        consumer.lane().set_progress(lie);
        assert_eq!(
            post(&mut producer, 0, 0),
            Err(PostError::Corrupt),
            "{lie:?}"
        );
    }
    // Going back is a lie as well.
    let (mut producer, consumer) = ring();
    for number in 0..SLOTS {
        post(&mut producer, number, 0).expect("room");
    }
    consumer.lane().set_progress(RingProgress {
        slots: 1,
        payload: 0,
    });
    post(&mut producer, 0, 0).expect("one came free");
    consumer.lane().set_progress(RingProgress {
        slots: 0,
        payload: 0,
    });
    assert_eq!(post(&mut producer, 0, 0), Err(PostError::Corrupt));
}

#[test]
fn any_bytes_at_all_never_panic() {
    let mut rng = crate::ground::rng::Rng::new(5);
    let words = Geometry {
        slots: SLOTS as u32,
        payload_bytes: PAYLOAD as u32,
    }
    .lane_bytes()
        / 8;
    for _ in 0..200 {
        let (mut producer, mut consumer) = ring();
        for _ in 0..300 {
            match rng.below(4) {
                0 => {
                    let _ = post(&mut producer, 1, rng.below(1025) as usize);
                }
                1 => consumer.lane().scribble(
                    rng.below(words as u64) as usize * 8,
                    rng.next_u64() >> rng.below(64),
                ),
                _ => {
                    if take(&mut consumer).is_err() {
                        break;
                    }
                }
            }
        }
    }
}
