//! What ends a command early: a stable reason for scripts, a message for people, and the exit code it stands for.
//!
//! Knows nothing of where errors are printed; [`super::run()`] does that once, at the very end.

use std::fmt;
use std::io;
use std::path::Path;

use super::exits::{EXIT_OK, EXIT_USAGE, exit_of};
use rendez::ground::{Code, Status, catalogue};

/// Why a command ended early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CliError {
    reason: &'static str,
    message: String,
    exit: u8,
}

impl CliError {
    /// A failure: the exit status of its reason. The message says what, where and what to do.
    pub fn failure(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            exit: exit_of(reason),
        }
    }

    /// A usage error: exit code 2.
    pub fn usage(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            exit: EXIT_USAGE,
        }
    }

    /// That the file at `path` cannot be written.
    pub fn unwritable(path: &Path, why: &dyn fmt::Display) -> Self {
        let message = format!("cannot write '{}': {why}", path.display());
        Self::failure("FILE_UNWRITABLE", message)
    }

    /// That the file at `path` cannot be read.
    pub fn unreadable(path: &Path, why: &dyn fmt::Display) -> Self {
        let message = format!("cannot read '{}': {why}", path.display());
        Self::failure("FILE_UNREADABLE", message)
    }

    /// The catalogue's code, in capitals.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// The status code that goes with the reason.
    pub(super) fn code(&self) -> Code {
        catalogue::find(self.reason).map_or(Code::Unknown, |entry| entry.code)
    }

    /// The message, without its reason.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The exit code of the process.
    #[must_use]
    pub const fn exit(&self) -> u8 {
        self.exit
    }
}

/// `error[FILE_UNREADABLE]: cannot open 'x': …`
impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.reason, self.message)
    }
}

impl std::error::Error for CliError {}

impl From<Status> for CliError {
    fn from(status: Status) -> Self {
        Self::failure(
            status.reason(),
            format!("{}: {}", status.code(), status.message()),
        )
    }
}

/// The only I/O that is not wrapped where it happens is the command's own output.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The reader of our output has read enough, as `head` does: that is an end, not a failure.
            io::ErrorKind::BrokenPipe => Self {
                reason: "OUTPUT_CLOSED",
                message: "the reader of the output went away".into(),
                exit: EXIT_OK,
            },
            _ => Self::failure(
                "OUTPUT_UNWRITABLE",
                format!("cannot write the output: {error}; is the disk full?"),
            ),
        }
    }
}
