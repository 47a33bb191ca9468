//! Failures: statuses as they go over a line, with their reasons and whether they follow from another.

use rendez::ground::{Status, catalogue};
use rendez_proto::services::Failure;

/// As it is sent.
pub(crate) fn of_status(status: &Status) -> Failure {
    Failure {
        code: status.code() as u32,
        reason: status.reason().to_owned(),
        message: status.message().to_owned(),
        derived: status.is_derived(),
    }
}

/// As it came. A code that is none is `Unknown`, a reason that we do not know is `PEER_STATUS`.
pub(crate) fn status_of(failure: &Failure) -> Status {
    let code = u8::try_from(failure.code).unwrap_or(u8::MAX);
    let status = Status::from_wire(code, failure.derived, &failure.message);
    match catalogue::find(&failure.reason) {
        Some(entry) => status.with_reason(entry.reason),
        None => status,
    }
}
