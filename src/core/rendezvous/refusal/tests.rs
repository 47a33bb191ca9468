//! Tests of the statuses that refusals become.

use super::Refusal;
use crate::ground::{Code, StepId};
use crate::rendezvous::Limits;

#[test]
fn every_limit_is_named_with_what_to_do() {
    let limits = Limits::default();
    let all = [
        (
            Refusal::ParkedBytes,
            "PARKED_BYTES",
            "raise `parked_bytes`",
            limits.parked_bytes,
        ),
        (
            Refusal::ParkedBytesOfStep,
            "PARKED_BYTES_OF_STEP",
            "raise `parked_bytes_per_step`",
            limits.parked_bytes_per_step,
        ),
        (
            Refusal::Values,
            "PARKED_VALUES",
            "receive sooner",
            u64::from(limits.values),
        ),
        (
            Refusal::Records,
            "KEYS",
            "finish steps",
            u64::from(limits.records),
        ),
        (
            Refusal::Waiters,
            "WAITERS",
            "ask for fewer",
            u64::from(limits.waiters),
        ),
        (
            Refusal::WaitersOfKey,
            "WAITERS_OF_KEY",
            "ask for fewer",
            u64::from(limits.waiters_per_key),
        ),
        (
            Refusal::Steps,
            "STEPS",
            "finish steps",
            u64::from(limits.steps),
        ),
        (
            Refusal::GraceSteps,
            "GRACE_STEPS",
            "at about the same time",
            u64::from(limits.grace_steps),
        ),
    ];
    for (refusal, reason, remedy, limit) in all {
        let status = refusal.status(StepId(5), &limits);
        assert_eq!(
            (status.code(), status.reason()),
            (Code::ResourceExhausted, reason)
        );
        assert!(status.message().contains(remedy), "{status}");
        let is_setting = matches!(refusal, Refusal::ParkedBytes | Refusal::ParkedBytesOfStep);
        assert_eq!(status.message().contains('`'), is_setting, "{status}");
        assert!(status.message().contains(&limit.to_string()), "{status}");
        assert!(status.message().contains("step 5"), "{status}");
    }
    let finished = Refusal::Finished.status(StepId(5), &limits);
    assert_eq!(
        (finished.code(), finished.message()),
        (
            Code::Aborted,
            "step 5 was finished: nothing more is sent or received in it"
        )
    );
}
