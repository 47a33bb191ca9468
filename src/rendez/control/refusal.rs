//! Refusals: why a greeting ends, whether it may succeed later, and how that is said to a peer.
//!
//! Knows statuses and their message; not what is refused.

use crate::ground::limits::CONTROL_TEXT_MAX;
use crate::ground::{Code, Status, catalogue};
use rendez_proto as proto;

use super::frame::FrameError;

/// The reasons a greeting ends with, this room's and its handlers'. A reason from the wire is one of them or counts as
/// `PEER_REFUSED`.
const REASONS: [&str; 16] = [
    "PEER_VERSION",
    "PEER_DUPLICATE_NAME",
    "PEER_UNKNOWN",
    "PEER_LOST",
    "PEER_PROTOCOL",
    "PEER_SELF",
    "PEER_BUSY",
    "CONNECT_DEADLINE",
    "PATH_REFUSED",
    "SECRET_WRONG",
    "SECRET_MISSING",
    "PEER_OTHER_USER",
    "TLS_REFUSED",
    "PEER_NOT_OF_CLUSTER",
    "PEER_OTHER_EPOCH",
    "PEER_REFUSED",
];

/// A no to a hello or in a greeting, and whether it may be a yes later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) retry: bool,
}

impl Refusal {
    /// A no for good.
    pub(crate) fn fatal(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: Status::new(code, reason, message.into()),
            retry: false,
        }
    }

    /// A no for now.
    pub(crate) fn later(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: Status::new(Code::Unavailable, reason, message.into()),
            retry: true,
        }
    }

    /// True for a no that says nothing about the two or the way between them: only that the time was wrong.
    pub(crate) fn is_busy(&self) -> bool {
        self.retry && self.status.reason() == catalogue::PEER_BUSY
    }

    /// True for a greeting that began and took too long, here or for the other side, which then hung up: one of the two
    /// may have no processor time.
    pub(crate) fn is_late(&self) -> bool {
        let reason = self.status.reason();
        self.retry && (reason == catalogue::GREETING_LATE || reason == catalogue::PEER_LOST)
    }

    /// True for a no of another than the task that was dialled, or of another life of the cluster: the task itself may
    /// answer by and by. One that has our own name is this very task, at an address that was another's before.
    pub(crate) fn is_of_another(&self) -> bool {
        matches!(
            self.status.reason(),
            catalogue::PEER_UNKNOWN
                | catalogue::PEER_OTHER_EPOCH
                | catalogue::PEER_NOT_OF_CLUSTER
                | catalogue::PEER_SELF
        )
    }

    /// True for a greeting that one of both had no descriptors for: it may have some by the next.
    pub(crate) fn is_short(&self) -> bool {
        let reason = self.status.reason();
        self.retry && (reason == catalogue::SYSTEM_LIMIT || reason == catalogue::PEER_REFUSED)
    }

    /// As it goes on the wire.
    pub(crate) fn to_wire(&self) -> proto::Refusal {
        proto::Refusal {
            code: self.status.code() as u32,
            reason: self.status.reason().to_owned(),
            message: clip(self.status.message()),
            retry: self.retry,
        }
    }

    /// As it came from `task`.
    pub(crate) fn from_wire(task: &str, refusal: &proto::Refusal) -> Self {
        let status = status_from_wire(task, refusal.code, &refusal.reason, &refusal.message);
        Self {
            status,
            retry: refusal.retry,
        }
    }
}

impl From<Status> for Refusal {
    /// A no for good, unless the system only has nothing left.
    fn from(status: Status) -> Self {
        let retry = status.reason() == catalogue::SYSTEM_LIMIT;
        Self { status, retry }
    }
}

/// A status that `task` sent, with its text cut to the bound and its reason one of ours.
pub(crate) fn status_from_wire(task: &str, code: u32, reason: &str, message: &str) -> Status {
    let code = match u8::try_from(code).map(Code::from_wire) {
        Ok(Code::Ok) | Err(_) => Code::Unknown,
        Ok(code) => code,
    };
    let reason = REASONS
        .iter()
        .find(|known| **known == reason)
        .copied()
        .unwrap_or("PEER_REFUSED");
    Status::new(code, reason, format!("task {task} says: {}", clip(message)))
}

/// At most [`CONTROL_TEXT_MAX`] bytes of `text`, cut between characters. It ends in logs and on terminals: characters
/// that control those are spelled out.
pub(crate) fn clip(text: &str) -> String {
    spelled(text, char::is_control)
}

/// As [`clip`], of what may have several lines, as the words of a service have.
pub(crate) fn clip_lines(text: &str) -> String {
    spelled(text, |character| {
        character.is_control() && !matches!(character, '\n' | '\t')
    })
}

fn spelled(text: &str, is_spelled: impl Fn(char) -> bool) -> String {
    let mut clipped = String::with_capacity(text.len().min(CONTROL_TEXT_MAX));
    for character in text.chars() {
        let before = clipped.len();
        match is_spelled(character) {
            true => clipped.extend(character.escape_default()),
            false => clipped.push(character),
        }
        if clipped.len() > CONTROL_TEXT_MAX {
            clipped.truncate(before);
            break;
        }
    }
    clipped
}

/// `task` broke the protocol.
pub(crate) fn protocol_refusal(task: &str, what: &str) -> Refusal {
    Refusal::fatal(
        Code::Internal,
        "PEER_PROTOCOL",
        format!("task {task} broke the protocol: {what}"),
    )
}

/// The stream of `task` failed: for good if it holds no messages, for now if it ended.
pub(crate) fn frame_refusal(task: &str, error: &FrameError) -> Refusal {
    match error {
        FrameError::TooLong(_) | FrameError::Malformed(_) | FrameError::Unsealed => {
            protocol_refusal(task, &error.to_string())
        }
        FrameError::Ended | FrameError::Truncated | FrameError::System(_) => Refusal::later(
            "PEER_LOST",
            format!("the connection to task {task}: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests;
