//! The frame ring, the typed queue and a slot of the recorder's ring under loom: every interleaving of a producer and a
//! consumer, within a bound.
//!
//! The sources are those of the library, included with loom's atomics in place of the real ones.
#![allow(unsafe_code, dead_code, unreachable_pub, missing_docs, unused_imports)]

use std::sync::Arc;

use rendez::fabric::ring::{self, PostError, Reserve, RingMemory, RingProgress};
use rendez::wire::Frame;

/// Loom's types under the names of `src/core/sync.rs`.
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[path = "../src/core/trace/recorder/slot.rs"]
mod slot;
#[path = "../src/core/fabric/spsc.rs"]
mod spsc;

const SLOTS: usize = 4;
const PAYLOAD: usize = 256;
const PIECE: usize = 64;
/// A body that fills its frame's tail and its slot, and lies in the payload ring too.
const BODY: usize = 16 + 64 + 40;

/// A lane in loom's memory. The payload is one cell per cache line, so that loom sees who touches which piece.
struct LoomLane {
    words: Vec<[loom::sync::atomic::AtomicU64; 8]>,
    done: [loom::sync::atomic::AtomicU64; 2],
    sides: Vec<loom::cell::UnsafeCell<[u8; PIECE]>>,
    payload: Vec<loom::cell::UnsafeCell<[u8; PIECE]>>,
}

impl LoomLane {
    fn new() -> Self {
        let zero = || loom::sync::atomic::AtomicU64::new(0);
        Self {
            words: (0..SLOTS)
                .map(|_| std::array::from_fn(|_| zero()))
                .collect(),
            done: [zero(), zero()],
            sides: cells(SLOTS),
            payload: cells(PAYLOAD / PIECE),
        }
    }
}

fn cells(count: usize) -> Vec<loom::cell::UnsafeCell<[u8; PIECE]>> {
    let cell = |_| loom::cell::UnsafeCell::new([0; PIECE]);
    (0..count).map(cell).collect()
}

// SAFETY: the cells stopped it; loom itself checks that no thread touches one while another does.
unsafe impl Sync for LoomLane {}
// SAFETY: as for `Sync`.
unsafe impl Send for LoomLane {}

/// One end's handle of a lane.
struct End(loom::sync::Arc<LoomLane>);

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};

impl RingMemory for End {
    fn slot_count(&self) -> u64 {
        SLOTS as u64
    }
    fn payload_len(&self) -> u64 {
        PAYLOAD as u64
    }
    fn peek(&self, slot: u64) -> u64 {
        self.0.words[slot as usize][0].load(Acquire)
    }
    // Of the seven other words the checker carries those that tests use: each costs it a branch.
    fn load(&self, slot: u64, frame: &mut Frame) {
        for word in [1, 2, 6, 7] {
            frame.words[word] = self.0.words[slot as usize][word].load(Relaxed);
        }
    }
    fn fill(&self, slot: u64, frame: &Frame) {
        for word in [1, 2, 6, 7] {
            self.0.words[slot as usize][word].store(frame.words[word], Relaxed);
        }
    }
    fn publish(&self, slot: u64, word: u64) {
        self.0.words[slot as usize][0].store(word, Release);
    }
    fn progress(&self) -> RingProgress {
        RingProgress {
            slots: self.0.done[0].load(Acquire),
            payload: self.0.done[1].load(Acquire),
        }
    }
    fn set_progress(&self, progress: RingProgress) {
        self.0.done[0].store(progress.slots, Release);
        self.0.done[1].store(progress.payload, Release);
    }
    unsafe fn write_side(&self, slot: u64, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.0.sides[slot as usize].with_mut(|cell| {
            // SAFETY: loom checks that this access is exclusive, which is what the test is about.
            unsafe { (&mut *cell)[at..at + bytes.len()].copy_from_slice(bytes) };
        });
    }
    unsafe fn read_side(&self, slot: u64, bytes: &mut [u8]) {
        self.0.sides[slot as usize].with(|cell| {
            // SAFETY: loom checks that no thread writes meanwhile.
            unsafe { bytes.copy_from_slice(&(&*cell)[..bytes.len()]) };
        });
    }
    unsafe fn write(&self, at: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        assert!(
            (at as usize).is_multiple_of(PIECE) && bytes.len() <= PIECE,
            "test bodies are one piece in one slice"
        );
        self.0.payload[at as usize / PIECE].with_mut(|cell| {
            // SAFETY: loom checks that this access is exclusive, which is what the test is about.
            unsafe { (&mut *cell)[..bytes.len()].copy_from_slice(bytes) };
        });
    }
    unsafe fn read(&self, at: u64, bytes: &mut [u8]) {
        self.0.payload[at as usize / PIECE].with(|cell| {
            // SAFETY: loom checks that no thread writes meanwhile.
            unsafe { bytes.copy_from_slice(&(&*cell)[..bytes.len()]) };
        });
    }
}

/// Sends `count` frames through one ring in two threads; every `stride`th has a body, in its slot and in the payload
/// ring.
fn frame_ring(count: u64, stride: u64, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let lane = loom::sync::Arc::new(LoomLane::new());
        let mut producer = ring::RingProducer::new(End(loom::sync::Arc::clone(&lane)));
        let mut consumer = ring::RingConsumer::new(End(lane));
        let sender = loom::thread::spawn(move || {
            for number in 0..count {
                let body = [number as u8 + 1; BODY];
                let body: &[u8] = if number.is_multiple_of(stride) {
                    &body
                } else {
                    &[]
                };
                let mut frame = Frame::default();
                frame.words[1] = (body.len() as u64) << 32;
                frame.words[2] = number;
                while let Err(error) = producer.post(&frame, [body, &[]], Reserve::default()) {
                    assert_eq!(error, PostError::Full);
                    loom::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < count {
            if let Some(taken) = consumer.take().expect("both ends are honest") {
                assert_eq!(taken.frame().words[2], next, "frames keep their order");
                if next.is_multiple_of(stride) {
                    let mut bytes = [0; BODY];
                    taken.copy_body_to(&mut bytes);
                    assert_eq!(bytes, [next as u8 + 1; BODY], "a body belongs to its frame");
                }
                next += 1;
            } else {
                consumer.settle();
                loom::thread::yield_now();
            }
        }
        sender.join().expect("the sender asserts nothing else");
    });
}

#[test]
fn frames_cross_in_order_with_their_bodies() {
    frame_ring(3, 2, None);
}

#[test]
fn a_full_ring_is_reused_only_after_the_consumer_let_go() {
    // As many pieces as slots: slots and payload are both used a second time.
    frame_ring(SLOTS as u64 + 2, 1, Some(2));
}

#[test]
fn values_cross_the_typed_queue_once_and_in_order() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer) = spsc::ring::<Box<u64>>(4);
        let sender = loom::thread::spawn(move || {
            for number in 0..6 {
                let mut value = Box::new(number);
                while let Err(back) = producer.push(value) {
                    value = back;
                    loom::thread::yield_now();
                }
            }
        });
        for number in 0..6 {
            let value = loop {
                if let Some(value) = consumer.pop() {
                    break value;
                }
                loom::thread::yield_now();
            };
            assert_eq!(*value, number);
        }
        sender.join().expect("the sender asserts nothing");
    });
}

#[test]
fn values_left_in_the_typed_queue_are_dropped_once() {
    loom::model(|| {
        let counter = Arc::new(());
        let (mut producer, mut consumer) = spsc::ring::<Arc<()>>(4);
        let sent = Arc::clone(&counter);
        let sender = loom::thread::spawn(move || {
            for _ in 0..2 {
                assert!(producer.push(Arc::clone(&sent)).is_ok());
            }
        });
        drop(consumer.pop());
        drop(consumer);
        sender.join().expect("four fit");
        assert_eq!(Arc::strong_count(&counter), 1);
    });
}

/// A slot holds an event, and is used for two more while another thread copies it. This fails without either fence of
/// `slot.rs`, its Release, its Acquire, its store of zero, or its second look at the number.
#[test]
fn an_event_is_copied_whole_or_not_at_all() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let slot: [_; 3] = std::array::from_fn(|_| loom::sync::atomic::AtomicU64::new(0));
        let slot = loom::sync::Arc::new(slot);
        let event = |number: u64| [number * 10, number * 100];
        slot::write(&*slot, &event(1), 1);
        let written = loom::sync::Arc::clone(&slot);
        let writer = loom::thread::spawn(move || {
            (2..4).for_each(|number| slot::write(&*written, &event(number), number));
        });
        let mut copied = [0; 3];
        if slot::read(&*slot, &mut copied) {
            let [first, second, number] = copied;
            assert_eq!([first, second], event(number));
        }
        writer.join().expect("the writer asserts nothing");
        assert!(slot::read(&*slot, &mut copied), "nothing is written now");
        assert_eq!(copied, [30, 300, 3]);
    });
}
