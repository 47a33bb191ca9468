//! Timers: the waiters that have a deadline, by when it is.
//!
//! Knows waiters as numbers only.
//!
//! A hierarchical wheel (Varghese and Lauck, "Hashed and hierarchical timing wheels", SOSP 1987), with bitmaps of
//! occupied buckets: setting and clearing a deadline is a few stores, whatever the number of waiters. A deadline
//! stands on the level of the highest six-bit digit in which its tick differs from the wheel's own, so on each level
//! the buckets ahead are above the wheel's digit, the lowest occupied level holds what is next, and nine levels of
//! ticks of 4 µs cover all of a 64-bit clock. Within a tick deadlines are compared exactly: nothing fires early, and
//! nothing that is due is kept.

use super::slab::{List, RecordSlab};
use crate::ground::Nanos;

/// Deadlines of waiters.
#[derive(Debug)]
pub(super) struct Timers {
    slab: RecordSlab<Timer>,
    buckets: Vec<List>,
    occupied: [u64; LEVELS],
    /// The tick up to which buckets were emptied; no deadline stands on an earlier one.
    elapsed: u64,
    /// No deadline is earlier than this.
    next: Nanos,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    deadline: Nanos,
    waiter: u32,
    bucket: u32,
}

const TICK_SHIFT: u32 = 12;
const DIGIT: u32 = 6;
const SLOTS: usize = 1 << DIGIT;
// 64 − 12 bits of tick, six a level.
const LEVELS: usize = (64 - TICK_SHIFT as usize).div_ceil(DIGIT as usize);
/// The bucket of entries whose deadline has passed and that were not handed out yet.
const DUE: u32 = (LEVELS * SLOTS) as u32;

impl Timers {
    pub(super) fn new() -> Self {
        Self {
            slab: RecordSlab::new(),
            buckets: vec![List::EMPTY; LEVELS * SLOTS + 1],
            occupied: [0; LEVELS],
            elapsed: 0,
            next: Nanos::NEVER,
            count: 0,
        }
    }

    /// Gives `waiter` a deadline, by the number of which it can be cleared.
    pub(super) fn set(&mut self, waiter: u32, deadline: Nanos) -> u32 {
        self.count += 1;
        self.next = self.next.min(deadline);
        let timer = self.slab.put(Timer {
            deadline,
            waiter,
            bucket: DUE,
        });
        self.place(timer);
        timer
    }

    /// Takes a deadline away.
    pub(super) fn clear(&mut self, timer: u32) {
        self.unlink(timer);
        self.slab.free(timer);
        self.count -= 1;
    }

    /// When to ask again: never later than the earliest deadline, and seldom much earlier.
    pub(super) fn next(&self) -> Option<Nanos> {
        (self.count > 0).then_some(self.next)
    }

    /// One waiter whose deadline is not after `now`; its deadline is gone. `None` when there are no more.
    pub(super) fn pop(&mut self, now: Nanos) -> Option<u32> {
        loop {
            let due = self.buckets[DUE as usize].head();
            if let Some(&Timer { waiter, .. }) = self.slab.get(due) {
                self.clear(due);
                return Some(waiter);
            }
            if self.count == 0 {
                self.next = Nanos::NEVER;
                self.elapsed = self.elapsed.max(tick(now));
                return None;
            }
            if now < self.next || !self.turn(now) {
                return None;
            }
        }
    }

    /// Opens the next bucket. False if nothing in it, or no bucket, is due; then `next` is brought up to date.
    fn turn(&mut self, now: Nanos) -> bool {
        let Some(level) = self.occupied.iter().position(|&slots| slots != 0) else {
            return false;
        };
        let slot = self.occupied[level].trailing_zeros() as usize;
        let start = self.start(level, slot);
        if start > tick(now) {
            self.elapsed = self.elapsed.max(tick(now));
            self.next = Nanos(start << TICK_SHIFT);
            return false;
        }
        self.elapsed = start;
        if level > 0 {
            self.reopen(level, slot);
            return true;
        }
        self.sift(slot, now)
    }

    /// The first tick of a bucket ahead of the wheel.
    fn start(&self, level: usize, slot: usize) -> u64 {
        let low = DIGIT * level as u32;
        let above = self.elapsed.checked_shr(low + DIGIT).unwrap_or(0);
        let above = above.checked_shl(low + DIGIT).unwrap_or(0);
        above | (slot as u64) << low
    }

    /// Spreads a bucket over the levels below, now that the wheel stands at its start.
    fn reopen(&mut self, level: usize, slot: usize) {
        let list = std::mem::replace(&mut self.buckets[level * SLOTS + slot], List::EMPTY);
        self.occupied[level] &= !(1 << slot);
        let mut at = list.head();
        for _ in 0..list.len() {
            let following = self.slab.next(at);
            self.place(at);
            at = following;
        }
    }

    /// Moves what is due in a bucket of the lowest level to the due list. False if nothing was.
    fn sift(&mut self, slot: usize, now: Nanos) -> bool {
        let mut earliest = Nanos::NEVER;
        let mut any = false;
        let list = self.buckets[slot];
        let mut at = list.head();
        for _ in 0..list.len() {
            let (timer, following) = (self.slab[at], self.slab.next(at));
            if timer.deadline <= now {
                self.unlink(at);
                self.push(at, DUE);
                any = true;
            } else {
                earliest = earliest.min(timer.deadline);
            }
            at = following;
        }
        if !any {
            self.next = earliest;
        }
        any
    }

    fn place(&mut self, timer: u32) {
        let due = tick(self.slab[timer].deadline).max(self.elapsed);
        // The low digit is forced to differ, so that a deadline in the wheel's own tick stands on the lowest level.
        let differs = (due ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = (63 - differs.leading_zeros()) / DIGIT;
        let slot = (due >> (DIGIT * level)) & (SLOTS as u64 - 1);
        self.occupied[level as usize] |= 1 << slot;
        self.push(timer, level * SLOTS as u32 + slot as u32);
    }

    fn push(&mut self, timer: u32, bucket: u32) {
        self.slab[timer].bucket = bucket;
        let list = &mut self.buckets[bucket as usize];
        self.slab.insert(list, None, timer);
    }

    fn unlink(&mut self, timer: u32) {
        let bucket = self.slab[timer].bucket;
        let list = &mut self.buckets[bucket as usize];
        self.slab.unlink(list, timer);
        if list.len() == 0 && bucket != DUE {
            self.occupied[bucket as usize / SLOTS] &= !(1 << (bucket as usize % SLOTS));
        }
    }
}

const fn tick(time: Nanos) -> u64 {
    time.0 >> TICK_SHIFT
}

#[cfg(test)]
mod tests;
