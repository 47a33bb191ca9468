//! The result of a coroutine that a call began: a loop of rendez' carries it out, and no thread of the pool is held.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;

use super::serve::Served;
use crate::wakes::{Queue, Wakes};
use rendez::ground::Locked;

/// What a function returned, or raised.
pub(crate) type Outcome<'py> = PyResult<Bound<'py, PyAny>>;

enum State<T> {
    Runs(Option<Waker>),
    Ended(T),
    /// The end was taken, or is wanted no more. An exception would keep this alive: its traceback holds who tells it.
    Over,
}

type Shared<T> = Arc<Mutex<State<T>>>;

fn end<T>(shared: &Shared<T>, ended: T) {
    let mut state = shared.locked();
    let waker = match &mut *state {
        State::Runs(waker) => waker.take(),
        State::Ended(_) | State::Over => return,
    };
    *state = State::Ended(ended);
    drop(state);
    waker.into_iter().for_each(Waker::wake);
}

type Tell = dyn for<'py> Fn(Python<'py>, Outcome<'py>) + Send + Sync;

/// What the loop tells how the coroutine ended.
#[pyclass(frozen, module = "rendez._rendez")]
pub(crate) struct Promise(Box<Tell>);

/// The end of the call, once it is there. If it is dropped before, the loop is told to cancel the coroutine.
pub(crate) struct Later<T> {
    shared: Shared<T>,
    queue: Arc<Queue>,
    number: u64,
}

impl<T: Send + 'static> Later<T> {
    /// Hands a coroutine over to the loop. `made` makes the call's end of its outcome.
    pub(crate) fn begin(
        py: Python<'_>,
        served: Bound<'_, Served>,
        coroutine: &Bound<'_, PyAny>,
        made: impl for<'py> Fn(Python<'py>, Outcome<'py>) -> T + Send + Sync + 'static,
    ) -> PyResult<Self> {
        let shared: Shared<T> = Arc::new(Mutex::new(State::Runs(None)));
        let told = Arc::clone(&shared);
        let promise = Promise(Box::new(move |py, outcome| {
            if matches!(*told.locked(), State::Runs(_)) {
                end(&told, made(py, outcome));
            }
        }));
        let begin = py.import("rendez.rpc._serve")?.getattr("begin")?;
        let promise = Py::new(py, promise)?;
        let begun = begin.call1((promise, served, coroutine))?;
        let (wakes, number) = begun.extract::<(Bound<'_, Wakes>, u64)>()?;
        Ok(Self {
            shared,
            queue: Arc::clone(&wakes.get().queue),
            number,
        })
    }
}

#[pymethods]
impl Promise {
    fn finish(&self, py: Python<'_>, value: Bound<'_, PyAny>) {
        self.0(py, Ok(value));
    }

    fn fail(&self, py: Python<'_>, error: Bound<'_, PyBaseException>) {
        self.0(py, Err(PyErr::from_value(error.into_any())));
    }
}

impl<T> Future for Later<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.shared.locked();
        match std::mem::replace(&mut *state, State::Over) {
            State::Runs(_) => *state = State::Runs(Some(context.waker().clone())),
            State::Ended(ended) => return Poll::Ready(ended),
            State::Over => {}
        }
        Poll::Pending
    }
}

impl<T> Drop for Later<T> {
    fn drop(&mut self) {
        // Dropped after the lock: it may be an object of Python's.
        let state = std::mem::replace(&mut *self.shared.locked(), State::Over);
        if matches!(state, State::Runs(_)) {
            self.queue.ring(self.number);
        }
    }
}
