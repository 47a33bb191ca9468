//! Status: what went wrong, in the field's seventeen codes, and whether it is only a consequence.
//!
//! A status crosses the wire and reaches users, so it is text and numbers: no source errors, no backtraces.

use std::fmt;
use std::sync::Arc;

use super::catalogue;
use super::limits::STATUS_MESSAGE_BYTES_MAX;

mod group;
#[cfg(test)]
mod tests;

pub use group::StatusGroup;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        /// The field's status codes, with the field's numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name = $number,)* }

        impl Code {
            /// Every code, in numeric order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code of a wire number; `Unknown` for numbers that are none.
            #[must_use]
            pub const fn from_wire(number: u8) -> Self {
                match number { $($number => Self::$name,)* _ => Self::Unknown }
            }

            /// The code's name, as in `InvalidArgument`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

codes! {
    /// All is well. A [`Status`] is never made with it.
    Ok = 0;
    /// The caller gave up.
    Cancelled = 1;
    /// No better code is known.
    Unknown = 2;
    /// What was asked makes no sense, whatever the state.
    InvalidArgument = 3;
    /// Time ran out first.
    DeadlineExceeded = 4;
    /// No such thing.
    NotFound = 5;
    /// There is one already.
    AlreadyExists = 6;
    /// Not allowed.
    PermissionDenied = 7;
    /// A bound was reached; the message names it and its setting.
    ResourceExhausted = 8;
    /// The state is not one in which this can be done.
    FailedPrecondition = 9;
    /// Ended by an abort of its step.
    Aborted = 10;
    /// Past the end.
    OutOfRange = 11;
    /// Not built.
    Unimplemented = 12;
    /// An invariant broke on this side.
    Internal = 13;
    /// The peer is not there now; trying again may help.
    Unavailable = 14;
    /// Bytes were lost or damaged.
    DataLoss = 15;
    /// The caller's identity is not proved.
    Unauthenticated = 16;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure: a code, a stable reason, a message for people, and whether it follows from another failure.
///
/// `reason` is the stable catalogue code (as `KEY_MALFORMED`); messages may be reworded, reasons may not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    code: Code,
    reason: &'static str,
    message: Arc<str>,
    derived: bool,
}

impl Status {
    /// A status of `code` with the catalogue's `reason` and a `message` that says what, where and what to do. A message
    /// longer than [`STATUS_MESSAGE_BYTES_MAX`] is cut between two characters and ends with `…`: so every status can be
    /// told to every task.
    pub fn new(code: Code, reason: &'static str, message: impl Into<Arc<str>>) -> Self {
        let message = message.into();
        Self {
            code,
            reason,
            message: bounded(&message).map_or(message, Into::into),
            derived: false,
        }
    }

    /// A status for a `reason` of the [`catalogue`], with the code that stands there.
    ///
    /// ```
    /// # extern crate rendez_core as rendez;
    /// use rendez::ground::{Code, Status, catalogue};
    ///
    /// let status = Status::of(catalogue::STEP_FINISHED, "step 7 was finished");
    /// assert_eq!(status.code(), Code::Aborted);
    /// assert_eq!(status.to_string(), "Aborted: step 7 was finished [STEP_FINISHED]");
    /// ```
    pub fn of(reason: &'static str, message: impl Into<Arc<str>>) -> Self {
        let code = catalogue::find(reason).map_or(Code::Unknown, |entry| entry.code);
        Self::new(code, reason, message)
    }

    /// A status as a peer tells it. A number that is no code, or that says all is well, is `Unknown`; a message
    /// longer than [`STATUS_MESSAGE_BYTES_MAX`] is cut.
    #[must_use]
    pub fn from_wire(code: u8, derived: bool, message: &str) -> Self {
        let code = match Code::from_wire(code) {
            Code::Ok => Code::Unknown,
            code => code,
        };
        Self {
            code,
            reason: catalogue::PEER_STATUS,
            message: bounded(message).map_or_else(|| message.into(), Into::into),
            derived,
        }
    }

    /// The same failure under the stable `reason`, for a peer's status whose reason came along as text and was
    /// found in the [`catalogue`].
    #[must_use]
    pub const fn with_reason(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// The same status, marked as a consequence of another failure.
    #[must_use]
    pub fn derived(mut self) -> Self {
        self.derived = true;
        self
    }

    /// The code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The stable reason, in capitals.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// True if this failure is only a consequence of another.
    #[must_use]
    pub const fn is_derived(&self) -> bool {
        self.derived
    }
}

/// `Aborted: step 7 was finished [STEP_FINISHED]`
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}]", self.code, self.message, self.reason)
    }
}

impl std::error::Error for Status {}

/// As much of `message` as a status holds, and that it was cut; `None` if it holds all of it.
fn bounded(message: &str) -> Option<String> {
    const CUT: &str = "…";
    let is_long = message.len() > STATUS_MESSAGE_BYTES_MAX;
    is_long.then(|| {
        let kept = message.floor_char_boundary(STATUS_MESSAGE_BYTES_MAX - CUT.len());
        format!("{}{CUT}", &message[..kept])
    })
}

/// `text`, or as much of it as `bytes_max` bytes hold and then how long it was.
pub(super) fn cut(text: &str, bytes_max: usize) -> Box<str> {
    if text.len() <= bytes_max {
        return text.into();
    }
    format!(
        "{}… ({} bytes)",
        &text[..text.floor_char_boundary(bytes_max)],
        text.len()
    )
    .into()
}
