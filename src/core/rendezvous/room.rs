//! Room: what values may still occupy, by the shard's bounds and by their step's.
//!
//! Does not know what occupies it: values that are parked, and those that left the table and whose memory is kept for
//! their receivers, count alike.

use super::names::Limits;
use super::refusal::Refusal;

/// What the values of all points occupy.
#[derive(Debug)]
pub(super) struct Room {
    limits: Limits,
    /// Values and offers that stand for no waiter.
    values: u32,
    /// All of them.
    items: u32,
    parked: u64,
    held: u64,
}

impl Room {
    pub(super) const fn new(limits: Limits) -> Self {
        Self {
            limits,
            values: 0,
            items: 0,
            parked: 0,
            held: 0,
        }
    }

    pub(super) const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Values and offers that stand for no waiter, bytes of parked values, and bytes that left the table and are kept
    /// for receivers.
    pub(super) const fn counts(&self) -> (u32, u64, u64) {
        (self.values, self.parked, self.held)
    }

    /// Checks that an item may be parked, or stand in its queue because a waiter wants it. Its step occupies `of_step`.
    pub(super) fn may_stand(&self, wanted: bool, of_step: u64, bytes: u64) -> Result<(), Refusal> {
        let limits = &self.limits;
        // Waiters that leave may leave as many behind as they were.
        let all = u64::from(limits.values) + u64::from(limits.waiters);
        if wanted && u64::from(self.items) >= all || !wanted && self.values >= limits.values {
            return Err(Refusal::Values);
        }
        if bytes > limits.parked_bytes.saturating_sub(self.parked + self.held) {
            return Err(Refusal::ParkedBytes);
        }
        if bytes > limits.parked_bytes_per_step.saturating_sub(of_step) {
            return Err(Refusal::ParkedBytesOfStep);
        }
        Ok(())
    }

    /// The queue of a point has changed by so many, and what stands in it for no waiter was `before` and is `after`.
    pub(super) const fn count(&mut self, change: i32, before: u32, after: u32) {
        self.items = self.items.wrapping_add_signed(change);
        self.values = self.values + after - before;
    }

    /// Bytes of parked values have changed by so many.
    pub(super) const fn park(&mut self, change: i64) {
        self.parked = self.parked.wrapping_add_signed(change);
    }

    /// Bytes that left the table and are kept for receivers have changed by so many.
    pub(super) const fn hold(&mut self, change: i64) {
        self.held = self.held.saturating_add_signed(change);
    }
}
