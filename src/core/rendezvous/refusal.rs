//! Refusal: the table's small "no", and the status that it becomes at the edge.
//!
//! Two bytes on the hot path; text is made only by [`Refusal::status`], where a user will read it.

use super::names::Limits;
use crate::ground::{Code, Status, StepId, faults};

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
        let (reason, what, limit, remedy) = match self {
            Self::Aborted => return aborted("STEP_ABORTED", format!("Step {step} was aborted")),
            Self::Finished => return faults::step_finished(step),
            Self::Unclaimed => {
                let seconds = limits.grace_ttl_ns / 1_000_000_000;
                let message = format!(
                    "Step {step}: peers ran it, but it was not used here within {seconds} s; \
                     begin it on all tasks at about the same time"
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
            Self::ParkedBytes => (
                "PARKED_BYTES",
                "too many bytes wait for receivers in this shard",
                limits.parked_bytes,
                "receive sooner, or raise `parked_bytes`",
            ),
            Self::ParkedBytesOfStep => (
                "PARKED_BYTES_OF_STEP",
                "too many bytes of this step wait for receivers",
                limits.parked_bytes_per_step,
                "receive sooner, or raise `parked_bytes_per_step`",
            ),
            Self::Values => (
                "PARKED_VALUES",
                "too many values wait for receivers in this shard",
                limits.values.into(),
                "receive sooner, or send later",
            ),
            Self::Records => (
                "KEYS",
                "too many keys were used by the steps alive in this shard",
                limits.records.into(),
                "finish steps that are over",
            ),
            Self::Waiters => (
                "WAITERS",
                "too many receives wait in this shard",
                limits.waiters.into(),
                "ask for fewer values at once",
            ),
            Self::WaitersOfKey => (
                "WAITERS_OF_KEY",
                "too many receives wait for this key",
                limits.waiters_per_key.into(),
                "ask for fewer values at once",
            ),
            Self::Steps => (
                "STEPS",
                "too many steps are alive in this shard",
                limits.steps.into(),
                "finish steps that are over",
            ),
            Self::GraceSteps => (
                "GRACE_STEPS",
                "peers have begun too many steps that this task has not used yet",
                limits.grace_steps.into(),
                "begin steps on all tasks at about the same time",
            ),
        };
        let message = format!("step {step}: {what}; the limit is {limit}; {remedy}");
        Status::new(Code::ResourceExhausted, reason, message)
    }
}

#[cfg(test)]
mod tests;
