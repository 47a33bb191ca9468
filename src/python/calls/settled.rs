//! The result of a coroutine that a call began, where a thread of the pool waits for it: another takes its place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use rendez::Status;
use rendez::ground::catalogue;
use rendez_rpc::Context;

use super::call::SLICE;
use super::exit;
use super::serve::Served;
use crate::ending;
use crate::errors::Failure;
use crate::wakes::Wakes;

#[derive(Default)]
struct Ending {
    outcome: Option<PyResult<Py<PyAny>>>,
    waker: Option<Waker>,
    /// An outcome would keep this alive, if it is an error: its traceback holds who tells it.
    is_given_up: bool,
}

/// What the loop tells how the coroutine ended.
#[pyclass(frozen, module = "rendez._rendez")]
#[derive(Default)]
struct Settled(Mutex<Ending>);

impl Settled {
    fn lock(&self) -> MutexGuard<'_, Ending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self, waker: Option<&Waker>) -> bool {
        let mut ending = self.lock();
        if let Some(waker) = waker {
            ending.waker = Some(waker.clone());
        }
        ending.outcome.is_some()
    }

    fn end(&self, outcome: PyResult<Py<PyAny>>) {
        let waker = {
            let mut ending = self.lock();
            if ending.is_given_up {
                return;
            }
            ending.outcome = Some(outcome);
            ending.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// No outcome is wanted any more.
    fn give_up(&self) {
        let _untold = {
            let mut ending = self.lock();
            ending.is_given_up = true;
            ending.outcome.take()
        };
    }
}

#[pymethods]
impl Settled {
    fn finish(&self, value: Py<PyAny>) {
        self.end(Ok(value));
    }

    fn fail(&self, error: Bound<'_, PyBaseException>) {
        self.end(Err(PyErr::from_value(error.into_any())));
    }
}

/// The result of a coroutine, which this thread waits for. It is cancelled if the call is wanted no more.
pub(super) fn wait<'py>(
    py: Python<'py>,
    context: &Context,
    served: Bound<'py, Served>,
    coroutine: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let settled = Bound::new(py, Settled::default())?;
    let begin = py.import("rendez.rpc._serve")?.getattr("begin")?;
    let begun = begin.call1((&settled, served, coroutine))?;
    let (wakes, number) = begun.extract::<(Bound<'_, Wakes>, u64)>()?;
    let (agent, settled) = (context.agent(), settled.get());
    loop {
        let waited = ending::detach(py, || {
            agent.wait_until(&|waker: Option<&Waker>| settled.is_over(waker), Some(SLICE))
        });
        if let Some(outcome) = settled.lock().outcome.take() {
            return outcome.map(|value| value.into_bound(py));
        }
        if waited.is_err() || !is_wanted(context) {
            settled.give_up();
            Arc::clone(&wakes.get().queue).ring(number);
            return Err(unwanted());
        }
    }
}

/// Whether the call that this thread carries out is still wanted.
pub(super) fn is_wanted(context: &Context) -> bool {
    !context.is_cancelled() && !exit::is_ending()
}

/// Of a call that is not.
pub(super) fn unwanted() -> PyErr {
    let message = "its caller waits for it no more";
    Failure(Status::of(catalogue::RPC_CANCELLED, message)).into()
}
