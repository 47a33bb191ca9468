//! Errors of remote calls: what happened, at which worker, what caused it, and where.

use std::fmt;
use std::time::Duration;

use rendez::ground::{Code, Status, catalogue};

use crate::id::WorkerId;
use crate::message::{Fault, FaultKind};
use crate::node::Ending;

/// Characters of what another worker says that are shown.
const WORDS_MAX: usize = 500;

/// Why a call, or anything else of an agent, has failed.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    status: Status,
    worker: Option<String>,
    causes: Vec<String>,
    backtrace: Option<String>,
}

impl Error {
    /// A failure of this worker's own.
    #[must_use]
    pub const fn local(status: Status) -> Self {
        Self {
            status,
            worker: None,
            causes: Vec::new(),
            backtrace: None,
        }
    }

    pub(crate) fn of(reason: &'static str, message: impl Into<String>) -> Self {
        Self::local(Status::of(reason, message.into()))
    }

    /// What a worker has answered.
    pub(crate) fn remote(fault: Fault, worker: &str, id: WorkerId) -> Self {
        let reason = match fault.kind {
            FaultKind::Error => catalogue::RPC_REMOTE_ERROR,
            FaultKind::Timeout => catalogue::RPC_TIMEOUT,
            FaultKind::Cancelled => catalogue::RPC_CANCELLED,
            FaultKind::Panic => catalogue::RPC_REMOTE_PANIC,
            FaultKind::Function => catalogue::RPC_FUNCTION,
            FaultKind::Arguments => catalogue::RPC_ARGUMENTS,
            FaultKind::Busy => catalogue::RPC_BUSY,
            FaultKind::Shutdown => catalogue::RPC_SHUTDOWN,
            FaultKind::Reference => catalogue::RPC_REFERENCE,
        };
        let message = format!("On WorkerInfo(id={id}, name={worker}): {}", fault.message);
        Self {
            status: Status::of(reason, message),
            worker: Some(worker.to_owned()),
            causes: fault.causes,
            backtrace: Some(fault.backtrace).filter(|text| !text.is_empty()),
        }
    }

    /// It is about that worker.
    pub(crate) fn at(self, worker: &str) -> Self {
        Self {
            worker: Some(worker.to_owned()),
            ..self
        }
    }

    /// How a call ended that has no answer; `what` it was, `timeout` how long it might take.
    pub(crate) fn ended<P>(
        ending: &Ending<P>,
        (what, timeout): (&str, Duration),
        worker: &str,
        window: usize,
    ) -> Self {
        let status = match ending {
            Ending::Answered(_) => {
                Status::of(catalogue::RPC_MESSAGE, "the answer is not of this call")
            }
            Ending::Timeout => Status::of(
                catalogue::RPC_TIMEOUT,
                format!(
                    "{what} at '{worker}' ran for more than its timeout of {timeout:?}; '{worker}' was told to give it \
                     up"
                ),
            ),
            Ending::Cancelled => Status::of(
                catalogue::RPC_CANCELLED,
                format!("{what} at '{worker}' was cancelled; '{worker}' was told"),
            ),
            Ending::Lost(status) | Ending::Unsent(status) => status.clone(),
            Ending::Busy => Status::of(
                catalogue::RPC_BUSY,
                format!("{window} calls wait for '{worker}' already (`waiting`)"),
            ),
            Ending::Shutdown => shut_down(),
        };
        Self::local(status).at(worker)
    }

    /// The failure as a status: its code, its stable reason, and what happened.
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// The code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.status.code()
    }

    /// The stable reason, as `RPC_TIMEOUT` or `PEER_LOST`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.status.reason()
    }

    /// What happened.
    #[must_use]
    pub fn message(&self) -> &str {
        self.status.message()
    }

    /// The worker that was called, if it is about one.
    #[must_use]
    pub fn worker(&self) -> Option<&str> {
        self.worker.as_deref()
    }

    /// What caused it there, the nearest first.
    #[must_use]
    pub fn causes(&self) -> &[String] {
        &self.causes
    }

    /// Where it happened there, if that was captured: with `RUST_BACKTRACE` set at the worker.
    #[must_use]
    pub fn backtrace(&self) -> Option<&str> {
        self.backtrace.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.status, f)?;
        self.causes
            .iter()
            .try_for_each(|cause| write!(f, "\ncaused by: {cause}"))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        self.backtrace
            .iter()
            .try_for_each(|trace| write!(f, "\n{trace}"))
    }
}

impl std::error::Error for Error {}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::local(status)
    }
}

pub(crate) fn unmet(worker: WorkerId) -> Status {
    Status::of(
        catalogue::RPC_WORKER,
        format!("worker {worker} is not there yet"),
    )
}

pub(crate) fn restarted(worker: WorkerId) -> Status {
    Status::of(
        catalogue::PEER_RESTARTED,
        format!("worker {worker} has started again"),
    )
}

pub(crate) fn has_left(worker: WorkerId) -> Status {
    Status::of(
        catalogue::PEER_LOST,
        format!("worker {worker} has left the group"),
    )
}

/// `why` is what the worker says.
pub(crate) fn is_over(worker: WorkerId, why: &str) -> Status {
    let shown = |character: &char| !character.is_control();
    let why: String = why.chars().filter(shown).take(WORDS_MAX).collect();
    Status::of(
        catalogue::PEER_LOST,
        format!("worker {worker} has given this one up: {why}"),
    )
}

/// Nothing goes between two workers any more, though both are there: what each of them is told from then on.
pub(crate) fn are_through(one: WorkerId, other: WorkerId, why: &Status) -> Status {
    let message = format!(
        "workers {one} and {other} are through with each other until one of them starts again: {}",
        why.message()
    );
    Status::new(why.code(), why.reason(), message)
}

pub(crate) fn lost_value(rref: crate::id::RRefId) -> Status {
    Status::of(
        catalogue::PEER_LOST,
        format!("the owner of {rref} was lost, and its value with it"),
    )
}

pub(crate) fn held_up(calls: usize) -> Status {
    let message =
        format!("{calls} calls wait already for the shard of their own worker, which is held up");
    Status::of(catalogue::RPC_BUSY, message)
}

/// What is said of a call that was under way when this worker left.
pub(crate) fn left_first() -> Status {
    Status::of(
        catalogue::RPC_SHUTDOWN,
        "the caller was shut down before the call was answered",
    )
}

pub(crate) fn shut_down() -> Status {
    Status::of(
        catalogue::RPC_SHUTDOWN,
        "RPC has not been initialized, or is shut down. Call Agent::init first.",
    )
}
