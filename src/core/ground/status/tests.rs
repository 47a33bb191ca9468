//! Statuses, what they look like from the wire, and how several become one.

use super::*;
use crate::ground::limits::STATUS_GROUP_MAX;

fn root(code: Code, message: &str) -> Status {
    Status::new(code, catalogue::PEER_STATUS, message)
}

fn group(outcomes: &[Result<(), Status>]) -> StatusGroup {
    let mut group = StatusGroup::default();
    outcomes
        .iter()
        .cloned()
        .for_each(|outcome| group.add(outcome));
    group
}

#[test]
fn codes_have_the_fields_numbers() {
    for (number, &code) in Code::ALL.iter().enumerate() {
        assert_eq!(code as usize, number);
        assert_eq!(Code::from_wire(number as u8), code);
    }
    assert_eq!(Code::ALL.len(), 17);
    assert_eq!(Code::from_wire(17), Code::Unknown);
    assert_eq!(Code::DeadlineExceeded.to_string(), "DeadlineExceeded");
}

#[test]
fn of_takes_the_code_from_the_catalogue() {
    let status = Status::of(catalogue::RECV_CANCELLED, "RecvAsync is cancelled.").derived();
    assert_eq!(status.code(), Code::Cancelled);
    assert!(status.is_derived());
    assert_eq!(
        status.to_string(),
        "Cancelled: RecvAsync is cancelled. [RECV_CANCELLED]"
    );
    assert_eq!(Status::of("NO_SUCH_REASON", "x").code(), Code::Unknown);
}

#[test]
fn from_wire_believes_nothing() {
    let status = Status::from_wire(10, true, "step 7 was finished");
    assert_eq!(
        (status.code(), status.message(), status.is_derived()),
        (Code::Aborted, "step 7 was finished", true)
    );
    assert_eq!(status.reason(), catalogue::PEER_STATUS);
    assert_eq!(
        status.with_reason(catalogue::STEP_FINISHED).reason(),
        "STEP_FINISHED"
    );
    assert_eq!(
        Status::from_wire(0, false, "").code(),
        Code::Unknown,
        "no failure is told with Ok"
    );
    assert_eq!(Status::from_wire(255, false, "").code(), Code::Unknown);
    let long = "é".repeat(STATUS_MESSAGE_BYTES_MAX);
    let cut = Status::from_wire(2, false, &format!("x{long}"));
    assert_eq!(
        cut.message().len(),
        STATUS_MESSAGE_BYTES_MAX,
        "cut before the character that does not fit, and three bytes say so"
    );
    assert!(cut.message().ends_with("é…"));
}

#[test]
fn a_message_is_cut_where_it_is_made() {
    let fits = "x".repeat(STATUS_MESSAGE_BYTES_MAX);
    let whole = Status::of(catalogue::STEP_ABORTED, fits.clone());
    assert_eq!(whole.message(), fits);
    for padding in ["", "x", "xx"] {
        let long = format!("{padding}{}", "é".repeat(STATUS_MESSAGE_BYTES_MAX));
        let made = [
            Status::new(Code::Internal, catalogue::PEER_STATUS, long.clone()),
            Status::of(catalogue::STEP_ABORTED, long.clone()),
            Status::from_wire(13, false, &long),
        ];
        for status in made {
            let kept = status.message().strip_suffix('…').unwrap();
            assert!(long.starts_with(kept), "cut between two characters");
            let left = STATUS_MESSAGE_BYTES_MAX - status.message().len();
            assert!(left <= 1, "{left} bytes are given away");
            let again = Status::new(status.code(), status.reason(), status.message());
            assert_eq!(
                again.message(),
                status.message(),
                "what was cut stays as it is"
            );
        }
    }
}

#[test]
fn nothing_failed() {
    let group = group(&[Ok(()), Ok(())]);
    assert!(group.is_ok());
    assert_eq!(group.summary(), Ok(()));
    assert_eq!(StatusGroup::default().summary(), Ok(()));
}

#[test]
fn one_root_is_told_as_it_is() {
    let only = root(Code::NotFound, "gone");
    let derived = root(Code::Aborted, "because").derived();
    let group = group(&[Err(derived), Ok(()), Err(only.clone()), Err(only.clone())]);
    assert!(!group.is_ok());
    assert_eq!(group.summary(), Err(only));
}

#[test]
fn only_derived_ones_stay_derived() {
    let (first, second) = (
        root(Code::Aborted, "one").derived(),
        root(Code::Internal, "two").derived(),
    );
    let group = group(&[Ok(()), Err(first.clone()), Err(second)]);
    assert_eq!(group.summary(), Err(first));
}

#[test]
fn several_roots_are_listed() {
    let group = group(&[
        Ok(()),
        Err(root(Code::Cancelled, "given up")),
        Err(root(Code::Aborted, "because").derived()),
        Err(root(Code::Unavailable, "lost").with_reason(catalogue::PEER_LOST)),
        Err(root(Code::Internal, "broken")),
        Err(root(Code::Internal, "broken")),
        Ok(()),
    ]);
    let summary = group.summary().unwrap_err();
    assert_eq!(
        summary.code(),
        Code::Unavailable,
        "the first that is not Cancelled"
    );
    assert_eq!(summary.reason(), catalogue::PEER_LOST);
    assert!(!summary.is_derived());
    assert_eq!(
        summary.message(),
        "3 root error(s) found.\n  (0) Cancelled: given up\n  (1) Unavailable: lost\n  (2) Internal: broken\n\
         2 successful operations.\n1 derived errors ignored."
    );
}

#[test]
fn cancelled_only_if_all_are() {
    let group = group(&[
        Err(root(Code::Cancelled, "a")),
        Err(root(Code::Cancelled, "b")),
    ]);
    assert_eq!(group.summary().unwrap_err().code(), Code::Cancelled);
}

#[test]
fn messages_are_cut_between_characters() {
    let long = "é".repeat(STATUS_MESSAGE_BYTES_MAX / 4);
    for padding in ["", "x"] {
        let outcomes: Vec<_> = (0..8)
            .map(|n| Err(root(Code::Internal, &format!("{padding}{n}{long}"))))
            .collect();
        let group = group(&outcomes);
        let told = group.summary().unwrap_err();
        let len = told.message().len();
        assert!(told.message().ends_with('…'));
        assert!(
            (STATUS_MESSAGE_BYTES_MAX - 1..=STATUS_MESSAGE_BYTES_MAX).contains(&len),
            "{len}"
        );
    }
}

#[test]
fn a_group_is_bounded() {
    let outcomes: Vec<_> = (0..10 * STATUS_GROUP_MAX)
        .map(|n| Err(root(Code::Internal, &n.to_string())))
        .collect();
    let told = group(&outcomes).summary().unwrap_err();
    assert!(
        told.message().starts_with("640 root error(s) found.\n"),
        "those not kept are counted"
    );
    assert_eq!(
        told.message().matches("Internal: ").count(),
        STATUS_GROUP_MAX
    );
}
