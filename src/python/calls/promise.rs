//! The result of a coroutine that a call began: a loop of rendez' carries it out, and no thread of the pool is held.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;

use super::answer;
use super::body::Body;
use super::core::Core;
use super::serve::Served;
use crate::wakes::{Queue, Wakes};

#[derive(Debug, Default)]
struct State {
    ended: Option<Body>,
    waker: Option<Waker>,
    is_taken: bool,
}

type Shared = Arc<Mutex<State>>;

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the loop tells how the coroutine ended.
#[pyclass(frozen, module = "rendez._rendez")]
pub(crate) struct Promise {
    core: Arc<Core>,
    shared: Shared,
}

/// The answer, once it is there. If it is dropped before, the loop is told to cancel the coroutine.
pub(crate) struct Later {
    shared: Shared,
    queue: Arc<Queue>,
    number: u64,
}

impl Promise {
    /// Hands a coroutine over to the loop.
    pub(crate) fn begin(
        py: Python<'_>,
        core: &Arc<Core>,
        served: Bound<'_, Served>,
        coroutine: &Bound<'_, PyAny>,
    ) -> PyResult<Later> {
        let shared = Shared::default();
        let promise = Self {
            core: Arc::clone(core),
            shared: Arc::clone(&shared),
        };
        let begin = py.import("rendez.rpc._serve")?.getattr("begin")?;
        let promise = Py::new(py, promise)?;
        let begun = begin.call1((promise, served, coroutine))?;
        let (wakes, number) = begun.extract::<(Bound<'_, Wakes>, u64)>()?;
        Ok(Later {
            shared,
            queue: Arc::clone(&wakes.get().queue),
            number,
        })
    }

    fn end(&self, body: Body) {
        let waker = {
            let mut state = lock(&self.shared);
            state.ended = Some(body);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

#[pymethods]
impl Promise {
    fn finish(&self, py: Python<'_>, value: &Bound<'_, PyAny>) {
        let body = answer::value(&self.core, value);
        self.end(body.unwrap_or_else(|error| answer::raised(py, &self.core, &error)));
    }

    fn fail(&self, py: Python<'_>, error: Bound<'_, PyBaseException>) {
        let error = PyErr::from_value(error.into_any());
        self.end(answer::raised(py, &self.core, &error));
    }
}

impl Future for Later {
    type Output = Body;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Body> {
        let mut state = lock(&self.shared);
        match state.ended.take() {
            Some(body) => {
                state.is_taken = true;
                Poll::Ready(body)
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let state = lock(&self.shared);
        if !state.is_taken && state.ended.is_none() {
            self.queue.ring(self.number);
        }
    }
}
