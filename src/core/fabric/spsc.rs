//! A bounded queue between two threads of one process: one producer, one consumer, values handed over by move.
//!
//! Knows nothing of what it carries, and never sleeps: a consumer that finds it empty asks again, or waits on a
//! doorbell.
//!
//! ```text
//!  slot    │ stamp │ value ............. │  64 bytes for a value of up to 56, 128 for one of up to 120
//!             └ position + 1 once the value is there (Release); anything else: not yet
//! ```
//!
//! As in the frame ring (`ring.rs`) the slot itself tells that it is full, so handing a value over moves the slot's
//! line or lines and nothing else. The consumer tells its progress each quarter ring, and when it finds the ring
//! empty; the producer reads that only when its last view says "full".
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crossbeam::utils::CachePadded;

use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};

/// Makes a ring for `capacity` values, rounded up to a power of two, and at least four.
#[must_use]
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.next_power_of_two().max(4);
    let slots = (0..capacity)
        .map(|_| SpscSlot {
            stamp: AtomicU64::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        })
        .collect();
    let shared = Arc::new(Shared {
        slots,
        consumed: CachePadded::new(AtomicU64::new(0)),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        head: 0,
        seen: 0,
    };
    (
        producer,
        Consumer {
            shared,
            tail: 0,
            told: 0,
        },
    )
}

/// The sending end.
#[derive(Debug)]
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Position of the next value.
    head: u64,
    /// The consumer's progress when last looked at.
    seen: u64,
}

impl<T: Send> Producer<T> {
    /// Hands `value` over.
    ///
    /// # Errors
    /// The value itself, when there is no room now.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        let capacity = self.shared.slots.len() as u64;
        if self.head - self.seen == capacity {
            // Pairs with the Release in `Consumer::tell`: the values counted there have been moved out.
            self.seen = self.shared.consumed.load(Ordering::Acquire);
            if self.head - self.seen == capacity {
                return Err(value);
            }
        }
        let slot = self.shared.slot(self.head);
        slot.value.with_mut(|place| {
            // SAFETY: the place is a valid, aligned `MaybeUninit<T>` inside the slot. The consumer moved out what the
            // lap before left (its progress, read with Acquire, is past it) and does not look in again before it
            // sees the new stamp; `&mut self` excludes another producer.
            unsafe { place.write(MaybeUninit::new(value)) };
        });
        self.head += 1;
        // Pairs with the Acquire in `Consumer::pop`.
        slot.stamp.store(self.head, Ordering::Release);
        Ok(())
    }

    /// Values the ring holds at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// Position of the next value to take.
    tail: u64,
    /// Progress the producer was told.
    told: u64,
}

impl<T: Send> Consumer<T> {
    /// Takes the oldest value, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let slot = self.shared.slot(self.tail);
        // Pairs with the Release in `Producer::push`: the stamp brings the value.
        if slot.stamp.load(Ordering::Acquire) != self.tail + 1 {
            self.tell();
            return None;
        }
        let value = slot.value.with(|place| {
            // SAFETY: the stamp, read with Acquire, says that the producer finished writing this place, which is a
            // valid, aligned `MaybeUninit<T>`; it does not write again before `tell` passes this position.
            unsafe { place.read() }
        });
        // SAFETY: written by `push` for this position, and moved out once: the tail passes it below.
        let value = unsafe { value.assume_init() };
        self.tail += 1;
        if self.tail - self.told >= self.shared.slots.len() as u64 / 4 {
            self.tell();
        }
        Some(value)
    }

    /// True if a value waits. Changes nothing: for the look before going to sleep.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.slot(self.tail).stamp.load(Ordering::Acquire) == self.tail + 1
    }

    /// Tells the producer how far we are.
    #[inline]
    fn tell(&mut self) {
        if self.told != self.tail {
            // Pairs with the Acquire in `Producer::push`.
            self.shared.consumed.store(self.tail, Ordering::Release);
            self.told = self.tail;
        }
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // `Shared` starts there when it drops what was never taken. The `Arc` orders this before that.
        self.shared.consumed.store(self.tail, Ordering::Release);
    }
}

/// One value's place. Aligned to a cache line, so that neighbours do not share one.
#[repr(align(64))]
pub(super) struct SpscSlot<T> {
    stamp: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// What both ends hold.
struct Shared<T> {
    slots: Box<[SpscSlot<T>]>,
    /// The consumer's progress, on lines of its own.
    consumed: CachePadded<AtomicU64>,
}

impl<T> Shared<T> {
    #[inline]
    fn slot(&self, position: u64) -> &SpscSlot<T> {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }
}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("capacity", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let mut position = self.consumed.load(Ordering::Acquire);
        while self.slot(position).stamp.load(Ordering::Acquire) == position + 1 {
            self.slot(position).value.with_mut(|place| {
                // SAFETY: both ends are gone, so this is the only access. The stamp says that a value was put here
                // for this position, and the consumer's last progress that it was not moved out.
                unsafe { place.cast::<T>().drop_in_place() };
            });
            position += 1;
        }
    }
}

// SAFETY: `UnsafeCell` stopped it. One `Producer` and one `Consumer` exist, neither is `Clone`, and the stamps give
// each place to one of them at a time; values cross threads, hence `T: Send`. No `&T` is ever shared.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; moving or dropping the whole elsewhere moves or drops values, hence `T: Send`.
unsafe impl<T: Send> Send for Shared<T> {}
