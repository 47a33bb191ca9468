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

use crate::ground::Nanos;

/// Deadlines of waiters, each waiter at most once.
#[derive(Debug)]
pub(super) struct Timers {
    links: Vec<Link>,
    heads: Vec<u32>,
    occupied: [u64; LEVELS],
    /// The tick up to which buckets were emptied; no deadline stands on an earlier one.
    elapsed: u64,
    /// No deadline is earlier than this.
    next: Nanos,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    deadline: Nanos,
    prev: u32,
    next: u32,
    bucket: u32,
}

const NONE: u32 = u32::MAX;
const TICK_SHIFT: u32 = 12;
const DIGIT: u32 = 6;
const SLOTS: usize = 1 << DIGIT;
// 64 − 12 bits of tick, six a level.
const LEVELS: usize = (64 - TICK_SHIFT as usize).div_ceil(DIGIT as usize);
/// The bucket of those whose deadline has passed and who were not handed out yet.
const DUE: u32 = (LEVELS * SLOTS) as u32;
const IDLE: u32 = NONE;

impl Timers {
    pub(super) fn new() -> Self {
        Self {
            links: Vec::new(),
            heads: vec![NONE; LEVELS * SLOTS + 1],
            occupied: [0; LEVELS],
            elapsed: 0,
            next: Nanos::NEVER,
            count: 0,
        }
    }

    /// Gives `waiter` a deadline. It must have none.
    #[inline]
    pub(super) fn set(&mut self, waiter: u32, deadline: Nanos) {
        let index = waiter as usize;
        if index >= self.links.len() {
            self.grow(index);
        }
        debug_assert_eq!(self.links[index].bucket, IDLE, "a waiter has one deadline");
        self.links[index].deadline = deadline;
        self.count += 1;
        if deadline < self.next {
            self.next = deadline;
        }
        self.place(waiter);
    }

    /// Takes the deadline of `waiter` away; nothing happens if it has none.
    #[inline]
    pub(super) fn clear(&mut self, waiter: u32) {
        if self
            .links
            .get(waiter as usize)
            .is_some_and(|link| link.bucket != IDLE)
        {
            self.unlink(waiter);
            self.count -= 1;
        }
    }

    /// True if `waiter` has a deadline.
    pub(super) fn is_set(&self, waiter: u32) -> bool {
        let link = self.links.get(waiter as usize);
        link.is_some_and(|link| link.bucket != IDLE)
    }

    /// When to ask again: never later than the earliest deadline, and seldom much earlier.
    #[inline]
    pub(super) fn next(&self) -> Option<Nanos> {
        (self.count > 0).then_some(self.next)
    }

    /// One waiter whose deadline is not after `now`; its deadline is gone. `None` when there are no more.
    pub(super) fn pop(&mut self, now: Nanos) -> Option<u32> {
        loop {
            let due = self.heads[DUE as usize];
            if due != NONE {
                self.clear(due);
                return Some(due);
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
        let bucket = level * SLOTS + slot;
        let mut at = std::mem::replace(&mut self.heads[bucket], NONE);
        self.occupied[level] &= !(1 << slot);
        while at != NONE {
            let following = self.links[at as usize].next;
            self.place(at);
            at = following;
        }
    }

    /// Moves what is due in a bucket of the lowest level to the due list. False if nothing was.
    fn sift(&mut self, slot: usize, now: Nanos) -> bool {
        let mut earliest = Nanos::NEVER;
        let mut any = false;
        let mut at = self.heads[slot];
        while at != NONE {
            let link = self.links[at as usize];
            if link.deadline <= now {
                self.unlink(at);
                self.push(at, DUE);
                any = true;
            } else {
                earliest = earliest.min(link.deadline);
            }
            at = link.next;
        }
        if !any {
            self.next = earliest;
        }
        any
    }

    fn place(&mut self, waiter: u32) {
        let due = tick(self.links[waiter as usize].deadline).max(self.elapsed);
        // The low digit is forced to differ, so that a deadline in the wheel's own tick stands on the lowest level.
        let differs = (due ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = (63 - differs.leading_zeros()) / DIGIT;
        let slot = (due >> (DIGIT * level)) & (SLOTS as u64 - 1);
        self.occupied[level as usize] |= 1 << slot;
        self.push(waiter, level * SLOTS as u32 + slot as u32);
    }

    fn push(&mut self, waiter: u32, bucket: u32) {
        let head = std::mem::replace(&mut self.heads[bucket as usize], waiter);
        if head != NONE {
            self.links[head as usize].prev = waiter;
        }
        let link = &mut self.links[waiter as usize];
        link.prev = NONE;
        link.next = head;
        link.bucket = bucket;
    }

    fn unlink(&mut self, waiter: u32) {
        let Link {
            prev, next, bucket, ..
        } = self.links[waiter as usize];
        self.links[waiter as usize].bucket = IDLE;
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        if prev != NONE {
            self.links[prev as usize].next = next;
            return;
        }
        self.heads[bucket as usize] = next;
        if next == NONE && bucket != DUE {
            self.occupied[bucket as usize / SLOTS] &= !(1 << (bucket as usize % SLOTS));
        }
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        let idle = Link {
            deadline: Nanos::NEVER,
            prev: NONE,
            next: NONE,
            bucket: IDLE,
        };
        self.links
            .resize((index + 1).next_power_of_two().max(64), idle);
    }
}

const fn tick(time: Nanos) -> u64 {
    time.0 >> TICK_SHIFT
}

#[cfg(test)]
mod tests;
