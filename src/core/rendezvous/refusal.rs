//! Refusal: the table's small "no", and the status that it becomes at the edge.
//!
//! Two bytes on the hot path; text is made only by [`Refusal::status`], where a user will read it.

use super::names::{Limits, Slot};
use crate::ground::{Code, Status};

/// Why the table took nothing. The caller keeps, or gets back, what it brought.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The step was aborted; [`Table::status_of`](super::Table::status_of) has the first status.
    Aborted,
    /// The step was finished.
    Finished,
    /// The step was pushed to by peers and never used here in its time.
    Unclaimed,
    /// `parked_bytes` is reached.
    ParkedBytes,
    /// `parked_bytes_per_step` is reached.
    ParkedBytesOfStep,
    /// `values` is reached.
    Values,
    /// `records` is reached.
    Records,
    /// `waiters` is reached.
    Waiters,
    /// `waiters_per_key` is reached.
    WaitersOfKey,
    /// `steps` is reached.
    Steps,
    /// `grace_steps` is reached.
    GraceSteps,
    /// The slot has given all of its 2³² − 1 ordinals.
    Ordinals,
    /// The ticket's step ended since, or its slot began again.
    Stale,
    /// A request for a slot that holds a peer's offers: a key has one direction.
    Direction,
}

impl Refusal {
    /// The status that tells a user of it. For an aborted step prefer the table's
    /// [`refusal_status`](super::Table::refusal_status): it knows the step's own status.
    #[must_use]
    pub fn status(self, slot: Slot, limits: &Limits) -> Status {
        let step = slot.step;
        let exhausted = |reason, what: &str, setting: &str, limit: u64| {
            let message = format!("step {step}: {what}; the limit is {limit}, set by `{setting}`");
            Status::new(Code::ResourceExhausted, reason, message)
        };
        match self {
            Self::Aborted => Status::new(
                Code::Aborted,
                "STEP_ABORTED",
                format!("Step {step} was aborted"),
            ),
            Self::Finished => {
                Status::new(Code::Aborted, "STEP_FINISHED", format!("Cleanup {step}"))
            }
            Self::Unclaimed => {
                let seconds = limits.grace_ttl_ns / 1_000_000_000;
                let message = format!(
                    "Step {step}: peers ran it, but it was not used here within {seconds} s, \
                     set by `grace_ttl_ns`"
                );
                Status::new(Code::Aborted, "STEP_UNCLAIMED", message)
            }
            Self::ParkedBytes => exhausted(
                "PARKED_BYTES",
                "too many bytes wait for receivers in this shard",
                "parked_bytes",
                limits.parked_bytes,
            ),
            Self::ParkedBytesOfStep => exhausted(
                "PARKED_BYTES_OF_STEP",
                "too many bytes of this step wait for receivers",
                "parked_bytes_per_step",
                limits.parked_bytes_per_step,
            ),
            Self::Values => exhausted(
                "PARKED_VALUES",
                "too many values wait for receivers in this shard",
                "values",
                u64::from(limits.values),
            ),
            Self::Records => exhausted(
                "KEYS",
                "too many keys were used by the steps alive in this shard",
                "records",
                u64::from(limits.records),
            ),
            Self::Waiters => exhausted(
                "WAITERS",
                "too many receives wait in this shard",
                "waiters",
                u64::from(limits.waiters),
            ),
            Self::WaitersOfKey => exhausted(
                "WAITERS_OF_KEY",
                "too many receives wait for this key",
                "waiters_per_key",
                u64::from(limits.waiters_per_key),
            ),
            Self::Steps => exhausted(
                "STEPS",
                "too many steps are alive in this shard",
                "steps",
                u64::from(limits.steps),
            ),
            Self::GraceSteps => exhausted(
                "GRACE_STEPS",
                "peers have begun too many steps that were not used here yet",
                "grace_steps",
                u64::from(limits.grace_steps),
            ),
            Self::Ordinals => exhausted(
                "ORDINALS",
                "this key has carried all the values it can in one step",
                "none: begin another step",
                u64::from(u32::MAX),
            ),
            Self::Stale => {
                let message =
                    format!("Step {step} ended while a value was on its way to be parked");
                Status::new(Code::Aborted, "STEP_ENDED", message)
            }
            Self::Direction => Status::new(
                Code::InvalidArgument,
                "KEY_DIRECTION",
                format!("step {step}: a request for a key whose values come from the peer"),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
