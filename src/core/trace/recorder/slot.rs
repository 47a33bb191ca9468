//! A slot of the ring of events: words that one thread writes again and again, and any thread reads whole or not at
//! all.
//!
//! Knows no events. The last word is the number of what the others hold, never the same twice, and zero while they are
//! written. Who writes pays two stores for it and, where the machine exchanges stores, two barriers; who reads looks at
//! it before and after the others.

use crate::sync::{AtomicU64, Ordering, fence};

/// Puts `values` in, under `number`, which is not zero. Only one thread may.
#[inline]
pub(super) fn write(slot: &[AtomicU64], values: &[u64], number: u64) {
    let Some((last, words)) = slot.split_last() else {
        return;
    };
    last.store(0, Ordering::Relaxed);
    // Who sees one of the values sees the zero, or a number after it.
    fence(Ordering::Release);
    for (word, value) in words.iter().zip(values) {
        word.store(*value, Ordering::Relaxed);
    }
    last.store(number, Ordering::Release);
}

/// Copies the words and their number into `to`; false if there is nothing, or it was written meanwhile.
pub(super) fn read(slot: &[AtomicU64], to: &mut [u64]) -> bool {
    let Some((last, _)) = slot.split_last() else {
        return false;
    };
    // Who sees a number sees the values under it, or later ones.
    let number = last.load(Ordering::Acquire);
    for (word, to) in slot.iter().zip(to) {
        *to = word.load(Ordering::Relaxed);
    }
    // What was seen of later values has the number seen as no longer the same.
    fence(Ordering::Acquire);
    number != 0 && last.load(Ordering::Relaxed) == number
}
