//! One thread's view; the interleavings are loom's (`tests/loom_rings.rs`).

use super::spsc::*;

#[test]
fn a_queue_is_full_at_its_capacity_and_hands_the_value_back() {
    let (mut producer, mut consumer) = ring::<String>(5);
    assert_eq!(producer.capacity(), 8);
    for lap in 0..5 {
        for number in 0..8 {
            producer.push(format!("{lap} {number}")).expect("room");
        }
        assert_eq!(producer.push("more".into()), Err("more".into()));
        assert!(consumer.is_ready());
        for number in 0..8 {
            assert_eq!(consumer.pop(), Some(format!("{lap} {number}")));
        }
        assert!(!consumer.is_ready());
        assert_eq!(consumer.pop(), None);
    }
}

#[test]
fn a_slot_takes_as_few_lines_as_it_can() {
    assert_eq!(size_of::<SpscSlot<[u8; 56]>>(), 64);
    assert_eq!(size_of::<SpscSlot<[u8; 57]>>(), 128);
    assert_eq!(size_of::<SpscSlot<[u64; 15]>>(), 128);
}

#[test]
fn what_nobody_took_is_dropped_once() {
    let token = std::sync::Arc::new(());
    for taken in 0..4 {
        let (mut producer, mut consumer) = ring(4);
        for _ in 0..4 {
            producer.push(std::sync::Arc::clone(&token)).expect("room");
        }
        for _ in 0..taken {
            drop(consumer.pop());
        }
        drop(consumer);
        drop(producer);
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    }
}
