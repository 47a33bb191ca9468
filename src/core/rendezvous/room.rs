//! Room: what a value may still occupy, of the shard's bound and of its step's.
//!
//! Does not know what occupies it: values that are parked, and those that left the table and whose memory is kept for
//! their receivers, count alike.

use super::names::Slot;
use super::refusal::Refusal;
use super::steps::NONE;
use super::table::Table;
use crate::ground::StepId;

impl<V, W: Copy> Table<V, W> {
    /// The bound that a value of `bytes` of that step would meet if it were parked now; its step's, where it meets
    /// both: what waits for that is in the way of its own step alone.
    ///
    /// # Errors
    /// The bound.
    pub fn room(&self, step: StepId, bytes: u64) -> Result<(), Refusal> {
        let number = self.steps.find(step).unwrap_or(NONE);
        if bytes > self.room_of(number) {
            return Err(Refusal::ParkedBytesOfStep);
        }
        self.may_keep(number, bytes)
    }

    /// The bound that a value of `bytes` would meet if it were offered to a peer now. A value that is longer than a
    /// bound has it for itself.
    ///
    /// # Errors
    /// The bound.
    pub fn room_to_offer(&self, step: StepId, bytes: u64) -> Result<(), Refusal> {
        let longest = self
            .limits
            .parked_bytes
            .min(self.limits.parked_bytes_per_step);
        self.room(step, bytes.min(longest))
    }

    /// Bytes that are kept for receivers outside the table have changed by so many; those of a step count against its
    /// bound as well.
    pub fn hold(&mut self, step: Option<StepId>, change: i64) {
        self.held_bytes = self.held_bytes.saturating_add_signed(change);
        if let Some(number) = step.and_then(|step| self.steps.find(step)) {
            let held = &mut self.steps.step_mut(number).held;
            *held = held.saturating_add_signed(change);
        }
    }

    /// True if the slot's next value would go to a waiter at once.
    #[must_use]
    pub fn is_awaited(&self, slot: &Slot) -> bool {
        self.existing(slot).is_some_and(|at| {
            let record = &self.records[at as usize];
            record.waiters > 0 && record.items == 0
        })
    }

    /// True if no value of the slot is parked.
    #[must_use]
    pub fn is_clear(&self, slot: &Slot) -> bool {
        self.existing(slot)
            .is_none_or(|at| self.records[at as usize].items == 0)
    }

    #[inline]
    pub(super) fn may_keep(&self, step: u32, bytes: u64) -> Result<(), Refusal> {
        if self.value_count >= self.limits.values {
            return Err(Refusal::Values);
        }
        self.may_occupy(step, bytes)
    }

    #[inline]
    pub(super) fn may_occupy(&self, step: u32, bytes: u64) -> Result<(), Refusal> {
        let kept = self.parked_bytes + self.held_bytes;
        if bytes > self.limits.parked_bytes.saturating_sub(kept) {
            return Err(Refusal::ParkedBytes);
        }
        if bytes > self.room_of(step) {
            return Err(Refusal::ParkedBytesOfStep);
        }
        Ok(())
    }

    /// What a step may still occupy.
    #[inline]
    fn room_of(&self, step: u32) -> u64 {
        let of_step = if step == NONE {
            0
        } else {
            let step = self.steps.step(step);
            step.bytes + step.held
        };
        self.limits.parked_bytes_per_step.saturating_sub(of_step)
    }
}

#[cfg(test)]
mod tests;
