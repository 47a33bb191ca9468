//! A call that is under way: an operation as a receive is one, to be awaited or waited for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rendez::Status;
use rendez::ground::{catalogue, faults};
use rendez::mail::forks;
use rendez_rpc::{Error, Pending, PendingRaw, Type, Unpacker};

use super::answer;
use super::body::Body;
use super::core::Core;
use super::typed;
use crate::ending;
use crate::operation::{self, Operation, Work};
use crate::{arguments, errands, errors};

/// So long a thread waits before it looks at signals, or whether it is to wait on.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// A call of a function, or of a method; or the question for a value.
#[pyclass(frozen, extends = Operation, module = "rendez.rpc")]
pub(crate) struct Call;

/// What is waited for.
pub(crate) struct Underway {
    pending: Under,
    about: About,
}

/// Of which kind the call is.
pub(crate) enum Under {
    Python(Pending<Body>),
    /// By a signature, with the type of its result.
    Typed(PendingRaw, Type),
}

enum Answer {
    Python(Body),
    Typed(Unpacker, Type),
}

/// The agent that called, and the worker that answers.
#[derive(Clone)]
pub(crate) struct About {
    core: Arc<Core>,
    worker: Arc<str>,
}

/// How it ended.
pub(crate) struct Answered {
    outcome: Result<Answer, Error>,
    about: About,
}

impl Call {
    pub(crate) fn begin(
        py: Python<'_>,
        core: &Arc<Core>,
        worker: String,
        pending: Under,
    ) -> PyResult<Py<Self>> {
        let about = About {
            core: Arc::clone(core),
            worker: worker.into(),
        };
        let worker = operation::Subject::Worker(Arc::clone(&about.worker));
        let work = Work::Call(Box::new(Underway { pending, about }));
        let base = PyClassInitializer::from(Operation::new(&core.engine, worker, work));
        Py::new(py, base.add_subclass(Self))
    }
}

impl Underway {
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answered> {
        if let Some(answered) = self.forked() {
            return Poll::Ready(answered);
        }
        let polled = match &mut self.pending {
            Under::Python(pending) => {
                Future::poll(Pin::new(pending), context).map_ok(Answer::Python)
            }
            Under::Typed(pending, result) => Future::poll(Pin::new(pending), context)
                .map_ok(|from| Answer::Typed(from, result.clone())),
        };
        polled.map(|outcome| Answered {
            outcome,
            about: self.about.clone(),
        })
    }

    /// Its end in a child of `fork`, where no answer comes.
    fn forked(&self) -> Option<Answered> {
        forks::is_child().then(|| Answered {
            outcome: Err(Error::local(faults::forked())),
            about: self.about.clone(),
        })
    }

    /// Waits for at most so long.
    pub(crate) fn wait(self, patience: Duration) -> Result<Answered, Self> {
        if let Some(answered) = self.forked() {
            return Ok(answered);
        }
        let Self { pending, about } = self;
        let waited = match pending {
            Under::Python(pending) => match pending.wait_for(patience) {
                Ok(outcome) => Ok(outcome.map(Answer::Python)),
                Err(pending) => Err(Under::Python(pending)),
            },
            Under::Typed(pending, result) => match pending.wait_for(patience) {
                Ok(outcome) => Ok(outcome.map(|from| Answer::Typed(from, result))),
                Err(pending) => Err(Under::Typed(pending, result)),
            },
        };
        match waited {
            Ok(outcome) => Ok(Answered { outcome, about }),
            Err(pending) => Err(Self { pending, about }),
        }
    }
}

impl Answered {
    /// The result as Python has it.
    pub(crate) fn object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let About { core, worker } = &self.about;
        match self.outcome {
            Ok(Answer::Python(body)) => answer::read_answer(py, core, worker, body),
            Ok(Answer::Typed(from, result)) => typed::unpack(py, core, &result, from),
            Err(error) => {
                // It may be another program by now.
                if [catalogue::RPC_FUNCTION, catalogue::RPC_ARGUMENTS].contains(&error.reason()) {
                    core.forget(worker);
                }
                Err(raise(py, &error, Some(worker)))
            }
        }
    }
}

/// How long a call may take: zero for no limit, as the agent has it.
pub(crate) fn timeout_of(core: &Core, timeout: Option<f64>) -> PyResult<Duration> {
    let Some(seconds) = timeout else {
        return Ok(core.timeout);
    };
    Ok(limit_of(arguments::patience(Some(seconds), "timeout")?))
}

/// A time as the agent has it. None at all ends at once, and is not without limit.
pub(crate) fn limit_of(patience: Option<Duration>) -> Duration {
    patience.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)))
}

/// Until when all that a call consists of is over: what is asked before it, and the call itself.
pub(crate) struct Limit {
    began: Instant,
    /// Zero for no limit.
    timeout: Duration,
}

impl Limit {
    /// From now on.
    pub(crate) fn of(timeout: Duration) -> Self {
        Self {
            began: Instant::now(),
            timeout,
        }
    }

    /// The time that is left, as the agent has it.
    pub(crate) fn left(&self) -> Duration {
        let left = self.timeout.checked_sub(self.began.elapsed());
        match self.timeout.is_zero() {
            true => Duration::ZERO,
            false => limit_of(Some(left.unwrap_or_default())),
        }
    }
}

/// Waits for what is under way a slice at a time, without the interpreter's lock. In between `look` says whether it is
/// still wanted.
pub(crate) fn in_slices<P: Send, R: Send>(
    py: Python<'_>,
    mut pending: P,
    wait: impl Fn(P, Duration) -> Result<R, P> + Sync,
    look: impl Fn() -> PyResult<()>,
) -> PyResult<R> {
    loop {
        match ending::detach(py, || wait(pending, SLICE)) {
            Ok(outcome) => return Ok(outcome),
            Err(later) => pending = later,
        }
        errands::run(py);
        look()?;
    }
}

/// The exception of a call that has failed. It names the worker.
pub(crate) fn raise(py: Python<'_>, error: &Error, worker: Option<&str>) -> PyErr {
    let status = error.status();
    let is_remote =
        [catalogue::RPC_REMOTE_ERROR, catalogue::RPC_REMOTE_PANIC].contains(&status.reason());
    let Some(worker) = worker.or_else(|| error.worker()) else {
        return errors::raise(py, status);
    };
    if is_remote {
        let causes = error.causes().join("\ncaused by: ");
        let trace = error.backtrace().unwrap_or(&causes);
        let about = (worker, error.message(), trace, error.reason());
        let made = py
            .import("rendez.rpc._errors")
            .and_then(|errors| errors.getattr("foreign")?.call1(about));
        return made.map_or_else(|error| error, PyErr::from_value);
    }
    if status.reason() == catalogue::RPC_FUNCTION && status.message().contains(super::serve::CALL) {
        let message = format!(
            "worker '{worker}' is no worker of Python's: call its functions by their names, with all arguments and \
             without keywords; `agent.signatures` lists them"
        );
        return errors::raise(py, &Status::of(status.reason(), message));
    }
    match status.message().contains(worker) {
        true => errors::raise(py, status),
        false => {
            let message = format!("worker '{worker}': {}", status.message());
            errors::raise(py, &Status::new(status.code(), status.reason(), message))
        }
    }
}
