//! A call that is under way: an operation as a receive is one, to be awaited or waited for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pyo3::prelude::*;
use rendez::Status;
use rendez::ground::catalogue;
use rendez_rpc::{Error, Pending};

use super::answer;
use super::body::Body;
use super::core::Core;
use crate::operation::{Operation, Work};
use crate::{arguments, errors};

/// A call of a function, or of a method; or the question for a value.
#[pyclass(frozen, extends = Operation, module = "rendez.rpc")]
pub(crate) struct Call;

/// What is waited for.
pub(crate) struct Underway {
    pending: Pending<Body>,
    about: About,
}

/// Whose answer it is.
#[derive(Clone)]
pub(crate) struct About {
    core: Arc<Core>,
    worker: Arc<str>,
}

/// How it ended.
pub(crate) struct Answered {
    outcome: Result<Body, Error>,
    about: About,
}

impl Call {
    pub(crate) fn begin(
        py: Python<'_>,
        core: &Arc<Core>,
        worker: String,
        pending: Pending<Body>,
    ) -> PyResult<Py<Self>> {
        let about = About {
            core: Arc::clone(core),
            worker: worker.into(),
        };
        let work = Work::Call(Box::new(Underway { pending, about }));
        let base = PyClassInitializer::from(Operation::new(&core.engine, work));
        Py::new(py, base.add_subclass(Self))
    }
}

impl Underway {
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answered> {
        let polled = Future::poll(Pin::new(&mut self.pending), context);
        polled.map(|outcome| Answered {
            outcome,
            about: self.about.clone(),
        })
    }

    /// Waits for at most so long.
    pub(crate) fn wait(self, patience: Duration) -> Result<Answered, Self> {
        let Self { pending, about } = self;
        match pending.wait_for(patience) {
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
            Ok(body) => answer::read_answer(py, core, worker, body),
            Err(error) => Err(raise(py, &error, Some(worker))),
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

/// The exception of a call that has failed. It names the worker.
pub(crate) fn raise(py: Python<'_>, error: &Error, worker: Option<&str>) -> PyErr {
    let status = error.status();
    let is_remote =
        [catalogue::RPC_REMOTE_ERROR, catalogue::RPC_REMOTE_PANIC].contains(&status.reason());
    let Some(worker) = worker.or(error.worker()) else {
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
    match status.message().contains(worker) {
        true => errors::raise(py, status),
        false => {
            let message = format!("worker '{worker}': {}", status.message());
            errors::raise(py, &Status::new(status.code(), status.reason(), message))
        }
    }
}
