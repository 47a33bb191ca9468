//! Tests of the statuses that refusals become.

use super::Refusal;
use crate::ground::{Code, StepId};
use crate::rendezvous::Limits;

#[test]
fn every_limit_is_named_with_its_setting() {
    let limits = Limits::default();
    let all = [
        (
            Refusal::ParkedBytes,
            "PARKED_BYTES",
            "`parked_bytes`",
            limits.parked_bytes,
        ),
        (
            Refusal::ParkedBytesOfStep,
            "PARKED_BYTES_OF_STEP",
            "`parked_bytes_per_step`",
            limits.parked_bytes_per_step,
        ),
        (
            Refusal::Values,
            "PARKED_VALUES",
            "`values`",
            u64::from(limits.values),
        ),
        (
            Refusal::Records,
            "KEYS",
            "`records`",
            u64::from(limits.records),
        ),
        (
            Refusal::Waiters,
            "WAITERS",
            "`waiters`",
            u64::from(limits.waiters),
        ),
        (
            Refusal::WaitersOfKey,
            "WAITERS_OF_KEY",
            "`waiters_per_key`",
            u64::from(limits.waiters_per_key),
        ),
        (Refusal::Steps, "STEPS", "`steps`", u64::from(limits.steps)),
        (
            Refusal::GraceSteps,
            "GRACE_STEPS",
            "`grace_steps`",
            u64::from(limits.grace_steps),
        ),
    ];
    for (refusal, reason, setting, limit) in all {
        let status = refusal.status(StepId(5), &limits);
        assert_eq!(
            (status.code(), status.reason()),
            (Code::ResourceExhausted, reason)
        );
        assert!(status.message().contains(setting), "{status}");
        assert!(status.message().contains(&limit.to_string()), "{status}");
        assert!(status.message().contains("step 5"), "{status}");
    }
    let finished = Refusal::Finished.status(StepId(5), &limits);
    assert_eq!(
        (finished.code(), finished.message()),
        (Code::Aborted, "Cleanup 5")
    );
}
