//! Stamps: the words in which the times of a value travel, from shard to shard and from a shard to a thread.
//!
//! It knows layouts, and no clock. Both are claims to their reader: whatever they say, a time comes out.
//!
//! ```text
//!  stamp of a frame     16 how long before, in short │ 48 when it was posted, on the sender's counter
//!  word for a thread     6 place │ 16 how long so far, in short │ 42 when it set out, in nanoseconds
//! ```
//!
//! *In short* is a time of eleven significant bits and an exponent of five, so within one part in 2048; zero says that
//! it is not known.

use crate::ground::Nanos;

/// Significant bits of a time in short.
const SHORT_BITS: u32 = 11;
/// Its longest: more than an hour.
const SHORT_MAX: u64 = ((1 << SHORT_BITS) - 1) << 31;

/// Bits of the counter in a stamp: at 4 GHz they come round in 19 hours, and no value is under way for half of that.
const TICK_BITS: u32 = 48;
const TICKS: u64 = (1 << TICK_BITS) - 1;

/// Bits of a moment that a thread is told: it has an hour to wake up.
const MOMENT_BITS: u32 = 42;
const MOMENT: u64 = (1 << MOMENT_BITS) - 1;
/// Bits of a time in short.
const SHORT: u32 = 16;
/// Places that a word for a thread can name.
pub(super) const PLACES: usize = 1 << (u64::BITS - MOMENT_BITS - SHORT);

/// A time in short, never zero.
const fn shorten(nanos: u64) -> u64 {
    let nanos = if nanos > SHORT_MAX { SHORT_MAX } else { nanos };
    let bits = u64::BITS - nanos.leading_zeros();
    let shift = bits.saturating_sub(SHORT_BITS);
    let short = (shift as u64) << SHORT_BITS | nanos >> shift;
    if short == 0 { 1 } else { short }
}

/// The same of a time that may be unknown.
const fn short_of(nanos: Option<u64>) -> u64 {
    match nanos {
        Some(nanos) => shorten(nanos),
        None => 0,
    }
}

/// The middle of the times that are the same in short; `None` for zero, and of more bits only the low ones count.
const fn lengthen(short: u64) -> Option<u64> {
    let short = short & ((1 << SHORT) - 1);
    if short == 0 {
        return None;
    }
    let shift = short >> SHORT_BITS;
    let nanos = (short & ((1 << SHORT_BITS) - 1)) << shift;
    Some(nanos + ((1 << shift) >> 1))
}

/// The stamp of a frame that is posted at `ticks`, whose value set out so long before, if that is known. Never zero.
pub(super) const fn stamp(ticks: u64, before_ns: Option<u64>) -> u64 {
    let stamp = short_of(before_ns) << TICK_BITS | ticks & TICKS;
    if stamp == 0 { 1 } else { stamp }
}

/// When the frame was posted, on a counter that shows about `now`.
pub(super) const fn ticks_of(stamp: u64, now: u64) -> u64 {
    let ahead = stamp.wrapping_sub(now) & TICKS;
    // More than half of a round ahead is behind.
    let behind = if ahead > TICKS / 2 { TICKS + 1 } else { 0 };
    now.wrapping_add(ahead).wrapping_sub(behind)
}

/// How long before that the value set out, if the stamp says so.
pub(super) const fn before_of(stamp: u64) -> Option<u64> {
    lengthen(stamp >> TICK_BITS)
}

/// The word for a thread that is about to be woken with a value: where its time is to be recorded, how long it has
/// taken until `at`, if that is known. Never zero.
pub(super) const fn waking(place: usize, so_far_ns: Option<u64>, at: Nanos) -> u64 {
    // A nanosecond is nothing here, and zero means that nothing is said.
    let moment = at.0 & MOMENT | 1;
    (place as u64) << (MOMENT_BITS + SHORT) | short_of(so_far_ns) << MOMENT_BITS | moment
}

/// What such a word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waking {
    /// Where.
    pub(crate) place: usize,
    /// How long it has taken before, if that is known.
    pub(crate) so_far_ns: Option<u64>,
    /// How long it took since.
    pub(crate) woken_ns: u64,
}

impl Waking {
    /// Of the word, now.
    pub(crate) const fn of(word: u64, now: Nanos) -> Self {
        Self {
            place: (word >> (MOMENT_BITS + SHORT)) as usize,
            so_far_ns: lengthen(word >> MOMENT_BITS),
            // The moment was made odd, so it may lie one ahead.
            woken_ns: (now.0 | 1).wrapping_sub(word) & MOMENT,
        }
    }
}

#[cfg(test)]
mod tests;
