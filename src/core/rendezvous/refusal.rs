//! Refusal: the table's small "no", and the status that it becomes at the edge.
//!
//! Two bytes on the hot path; text is made only by [`Refusal::status`], where a user will read it.

use super::names::Limits;
use crate::ground::{Code, Status, StepId, catalogue};

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
    pub fn status(self, step: StepId, limits: &Limits) -> Status {
        let aborted = |reason, message| Status::new(Code::Aborted, reason, message);
        let (reason, setting, limit) = match self {
            Self::Aborted => return aborted("STEP_ABORTED", format!("Step {step} was aborted")),
            Self::Finished => return aborted("STEP_FINISHED", format!("Cleanup {step}")),
            Self::Unclaimed => {
                let seconds = limits.grace_ttl_ns / 1_000_000_000;
                let message = format!(
                    "Step {step}: peers ran it, but it was not used here within {seconds} s, \
                     set by `grace_ttl_ns`"
                );
                return aborted("STEP_UNCLAIMED", message);
            }
            Self::Stale => {
                let message =
                    format!("Step {step} ended while a value was on its way to be parked");
                return aborted("STEP_ENDED", message);
            }
            Self::Direction => {
                let message =
                    format!("step {step}: a request for a key whose values come from the peer");
                return Status::new(Code::InvalidArgument, "KEY_DIRECTION", message);
            }
            Self::ParkedBytes => ("PARKED_BYTES", "parked_bytes", limits.parked_bytes),
            Self::ParkedBytesOfStep => {
                let limit = limits.parked_bytes_per_step;
                ("PARKED_BYTES_OF_STEP", "parked_bytes_per_step", limit)
            }
            Self::Values => ("PARKED_VALUES", "values", limits.values.into()),
            Self::Records => ("KEYS", "records", limits.records.into()),
            Self::Waiters => ("WAITERS", "waiters", limits.waiters.into()),
            Self::WaitersOfKey => {
                let limit = limits.waiters_per_key;
                ("WAITERS_OF_KEY", "waiters_per_key", limit.into())
            }
            Self::Steps => ("STEPS", "steps", limits.steps.into()),
            Self::GraceSteps => ("GRACE_STEPS", "grace_steps", limits.grace_steps.into()),
            Self::Ordinals => ("ORDINALS", "none: begin another step", u32::MAX.into()),
        };
        let what = match self {
            Self::ParkedBytes => "too many bytes wait for receivers in this shard",
            Self::ParkedBytesOfStep => "too many bytes of this step wait for receivers",
            Self::Values => "too many values wait for receivers in this shard",
            Self::Records => "too many keys were used by the steps alive in this shard",
            Self::Waiters => "too many receives wait in this shard",
            Self::WaitersOfKey => "too many receives wait for this key",
            Self::Steps => "too many steps are alive in this shard",
            Self::GraceSteps => "peers have begun too many steps that were not used here yet",
            _ => "this key has carried all the values it can in one step",
        };
        let message = format!("step {step}: {what}; the limit is {limit}, set by `{setting}`");
        Status::new(Code::ResourceExhausted, reason, message)
    }
}

/// The status of a waiter whose deadline passed.
#[must_use]
pub fn deadline_status() -> Status {
    Status::new(
        Code::DeadlineExceeded,
        catalogue::DEADLINE,
        "Timed out waiting for notification",
    )
}

#[cfg(test)]
mod tests;
