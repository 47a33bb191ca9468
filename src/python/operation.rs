//! What is under way, and its end: a receive, a send that waits for room, or a call. It can be waited for by threads,
//! awaited in any event loop, asked, and given up.
//!
//! ```text
//!   Idle ── a thread takes it ──▶ Taken ── not yet ──▶ Idle ── polled, or waited for ──▶ Ended
//! ```
//!
//! The outcome is taken from the engine by who waits or polls, never by who only wakes them: a receive that is given
//! up before has lost nothing. If it is given up while a thread waits for it, a value that this thread is handed goes
//! back to the front of its key; and who gives it up waits until that thread has left the line of its key, so that no
//! value that is sent afterwards goes to it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use rendez::ground::{Locked, Unpoisoned, catalogue, faults};
use rendez::mail::forks;
use rendez::{Driver, Engine, Key, Recv as Receive, Status, StepId};

pub(crate) use self::copying::Copying;
pub(crate) use self::work::{ByHost, Sender, Work};
use self::work::{Done, Fate, Slice};
use super::ending;
use super::errors::raise;
use super::room::Into;
use super::wakes::{Bell, Wakes};
use super::{arguments, errands};

mod copying;
mod work;

/// So long a thread waits before it looks at signals, and whether the operation was given up.
const SLICE: Duration = Duration::from_millis(50);
/// The same where no thread of the engine's goes on meanwhile, or tells when there is room.
const SHORT_SLICE: Duration = Duration::from_millis(1);

#[expect(
    clippy::large_enum_variant,
    reason = "it is moved as it is; a box would cost each receive"
)]
enum State {
    Idle(Work),
    Taken,
    /// See [`Operation::outcome`].
    Ended,
}

/// Why it failed.
enum Failed {
    Status(Status),
    /// What a call has raised, here or at the other side.
    Raised(Py<PyBaseException>),
}

/// What an operation is of, as it says.
pub(crate) enum Subject {
    Value(Key, StepId),
    Worker(Arc<str>),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(key, step) => write!(f, "{} in step {step}", key.text()),
            Self::Worker(name) => write!(f, "worker `{name}`"),
        }
    }
}

/// A receive, a send that waits for room, or a call.
#[pyclass(frozen, subclass, weakref, module = "rendez")]
pub(crate) struct Operation {
    state: Mutex<State>,
    /// How it ended. It is set while the thread has the interpreter's lock, and is read without the other: Python's
    /// collector looks here.
    outcome: OnceLock<Result<Py<PyAny>, Failed>>,
    ended: Condvar,
    fate: Fate,
    /// All that wait in event loops.
    bell: Arc<Bell>,
    about: Subject,
    /// How it ends if it is given up.
    cancelled: &'static str,
    slice: Duration,
}

/// A receive.
#[pyclass(frozen, extends = Operation, module = "rendez")]
pub(crate) struct Recv;

/// A send that waits for room.
#[pyclass(frozen, extends = Operation, module = "rendez")]
pub(crate) struct Sending;

impl Operation {
    pub(crate) fn new(engine: &Engine, about: Subject, work: Work) -> Self {
        let is_alone = engine.driver() == Driver::Caller || matches!(work, Work::Copy(_));
        Self {
            bell: Arc::default(),
            about,
            cancelled: match work {
                Work::Receive(_) | Work::ReceiveInto(..) => catalogue::RECV_CANCELLED,
                Work::Send(..) | Work::Copy(_) => catalogue::SEND_CANCELLED,
                Work::Call(_) => catalogue::RPC_CANCELLED,
            },
            state: Mutex::new(State::Idle(work)),
            outcome: OnceLock::new(),
            ended: Condvar::new(),
            fate: Fate::default(),
            slice: if is_alone { SHORT_SLICE } else { SLICE },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }

    /// It ended: who waits hears so, when the memory that it was to fill is its owner's again.
    fn end(&self, py: Python<'_>, room: Option<Into>, outcome: Result<Py<PyAny>, Failed>) {
        if let Some(into) = room {
            into.release(py);
        }
        let untold = self.outcome.set(outcome).err();
        *self.lock() = State::Ended;
        drop(untold);
        self.ended.notify_all();
        self.bell.ring_and_forget();
    }

    fn has_ended(&self) -> bool {
        matches!(*self.lock(), State::Ended)
    }

    fn given_up(&self) -> Failed {
        let message = format!("the {} was cancelled", self.name());
        Failed::Status(Status::of(self.cancelled, message))
    }

    /// What it is.
    fn name(&self) -> String {
        let kind = match self.cancelled {
            catalogue::RPC_CANCELLED => "call",
            catalogue::SEND_CANCELLED => "send",
            _ => "receive",
        };
        format!("{kind} of {}", self.about)
    }

    /// The work, for this thread to do. `None` if another does it, or it is done.
    fn take(&self) -> Option<Work> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Idle(work) => Some(work),
            other => {
                *state = other;
                None
            }
        }
    }

    /// The work was not done yet.
    fn lay_down(&self, py: Python<'_>, work: Work) {
        let mut state = self.lock();
        // Under the lock: who gives it up from here on finds it idle.
        if self.fate.is_given_up() {
            drop(state);
            self.give_up(py, work);
            return;
        }
        *state = State::Idle(work);
        drop(state);
        self.ended.notify_all();
    }

    /// It was given up, and this thread has the work. Of a send the engine says how it ended: its value may be taken.
    fn give_up(&self, py: Python<'_>, work: Work) {
        if let Work::Send(send, mut sender) = work {
            let sent = ending::detach(py, || send.give_up());
            let sent = sent
                .map(|()| Done::Sent)
                .map_err(|unsent| sender.given_up(unsent));
            return self.finish(py, sent, None);
        }
        let room = ending::detach(py, || work.room());
        self.end(py, room, Err(self.given_up()));
    }

    fn is_send(&self) -> bool {
        self.cancelled == catalogue::SEND_CANCELLED
    }

    fn is_call(&self) -> bool {
        self.cancelled == catalogue::RPC_CANCELLED
    }

    fn finish(&self, py: Python<'_>, done: Result<Done, Status>, room: Option<Into>) {
        let outcome = match done {
            // Who gave it up was told that it ends so. Who gives a send up is told how that ends.
            Err(_) | Ok(Done::Answered(_)) if !self.is_send() && !self.fate.keep() => {
                Err(self.given_up())
            }
            Ok(done) => done
                .object(py)
                .map_err(|error| Failed::Raised(error.into_value(py))),
            Err(status) => Err(Failed::Status(status)),
        };
        self.end(py, room, outcome);
    }

    /// Its outcome, if it has ended.
    fn outcome(&self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        Some(match self.outcome.get()? {
            Ok(object) => Ok(object.clone_ref(py)),
            Err(Failed::Raised(error)) => Err(PyErr::from_value(error.bind(py).clone().into_any())),
            Err(Failed::Status(status)) => Err(raise(py, status)),
        })
    }

    /// Polls the work once. True if it has ended.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(mut work) = self.take() else {
            self.end_in_child(py);
            return Ok(self.has_ended());
        };
        let waker = self.bell.waker();
        let polled = match work.is_long() {
            true => ending::detach_briefly(py, || work.poll(&waker, &self.fate)),
            false => work.poll(&waker, &self.fate),
        };
        match polled {
            Poll::Ready(done) => {
                self.finish(py, done, work.room());
                Ok(true)
            }
            Poll::Pending => {
                self.lay_down(py, work);
                Ok(self.has_ended())
            }
        }
    }

    fn wait_until(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<Py<PyAny>> {
        loop {
            if let Some(outcome) = self.outcome(py) {
                return outcome;
            }
            if ending::is_over() {
                // What its engine's end has brought is here.
                self.poll(py)?;
                let shutdown = || Err(raise(py, &faults::shutdown()));
                return self.outcome(py).unwrap_or_else(shutdown);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let slice = left.unwrap_or(self.slice).min(self.slice);
            match self.take() {
                None if forks::is_child() => self.end_in_child(py),
                None => ending::detach(py, || self.follow(slice)),
                Some(work) => match ending::detach(py, || work.wait(slice, &self.fate)) {
                    Slice::Later(work) => self.lay_down(py, work),
                    Slice::Done(done, room) => self.finish(py, done, room),
                },
            }
            if let Some(outcome) = self.outcome(py) {
                return outcome;
            }
            errands::run(py);
            py.check_signals()?;
            // Not by the slice: what wakes a thread need not be the end.
            if until.is_some_and(|until| Instant::now() >= until) {
                if self.poll(py)?
                    && let Some(outcome) = self.outcome(py)
                {
                    return outcome;
                }
                let message = format!(
                    "the {} has not ended in time; it goes on while it is held",
                    self.name()
                );
                return Err(raise(py, &Status::of(catalogue::DEADLINE, message)));
            }
        }
    }

    /// In a child of `fork` the thread that had the work is not there: it ends here.
    fn end_in_child(&self, py: Python<'_>) {
        if forks::is_child() && matches!(*self.lock(), State::Taken) {
            self.end(py, None, Err(Failed::Status(faults::forked())));
        }
    }

    /// Another thread waits for it: waits until that one has heard, or lays it down.
    fn follow(&self, patience: Duration) {
        let state = self.lock();
        if matches!(*state, State::Taken) {
            let _ = self.ended.wait_timeout(state, patience);
        }
    }

    /// Waits until no thread has the work.
    fn until_laid_down(&self) {
        let mut state = self.lock();
        // At the interpreter's end a thread may keep it for ever.
        while matches!(*state, State::Taken) && !ending::has_begun() {
            let waited = self.ended.wait_timeout(state, SLICE);
            (state, _) = waited.unpoisoned();
        }
    }
}

impl Drop for Operation {
    /// A send that is under way ends with it, and what could be written is its sender's again.
    fn drop(&mut self) {
        let state = self.state.get_mut().unpoisoned();
        if let State::Idle(Work::Send(send, mut sender)) = std::mem::replace(state, State::Ended)
            && sender.room.is_some()
            && let Err(unsent) = send.give_up()
        {
            sender.put_back(unsent);
        }
    }
}

#[pymethods]
impl Operation {
    /// Blocks until it has ended, without the interpreter's lock; signals are heard meanwhile.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let until =
            arguments::patience(timeout, "timeout")?.map(|patience| Instant::now() + patience);
        let outcome = self.wait_until(py, until);
        if outcome.is_err() {
            // The engine knew this thread alone as who waits: others ask again.
            self.bell.ring();
        }
        outcome
    }

    /// Gives it up. True if it had not ended: then it ends as cancelled, and its value is the next receive's.
    fn cancel(&self, py: Python<'_>) -> bool {
        if self.has_ended() || !self.fate.give_up() {
            return false;
        }
        match self.take() {
            Some(work) => self.give_up(py, work),
            // The answer of a call is its own alone.
            None if self.is_call() => {}
            None if forks::is_child() => self.end_in_child(py),
            // The thread that waits hears of this when its slice is over.
            None => ending::detach(py, || self.until_laid_down()),
        }
        !self.is_send() || self.cancelled()
    }

    /// Whether it has ended; it begins if it has not.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.poll(py)
    }

    /// Begins, if it has not: a receive takes its place among those of its key.
    fn start<'py>(slf: Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        slf.get().poll(py)?;
        Ok(slf)
    }

    /// Its outcome, if it has ended.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.outcome(py).unwrap_or_else(|| {
            let message = format!("the {} has not ended yet", self.name());
            Err(raise(py, &Status::of(catalogue::PYTHON_PENDING, message)))
        })
    }

    /// True if it ended by `cancel`, or its task's end.
    fn cancelled(&self) -> bool {
        match self.outcome.get() {
            Some(Err(Failed::Status(status))) => status.reason() == self.cancelled,
            _ => false,
        }
    }

    /// Calls `function` with this once it has ended, on a thread of rendez'.
    fn add_done_callback(slf: &Bound<'_, Self>, function: &Bound<'_, PyAny>) -> PyResult<()> {
        let waits = slf.py().import("rendez._waits")?;
        waits.getattr("add_done_callback")?.call1((slf, function))?;
        Ok(())
    }

    /// Polls it; `wakes` is told `number` when it can go on. True if it has ended.
    fn _poll(&self, py: Python<'_>, wakes: &Wakes, number: u64) -> PyResult<bool> {
        self.bell.hang(&wakes.queue, number);
        self.poll(py)
    }

    /// Whether nothing wakes who waits for it: it is to be polled each millisecond.
    fn _is_alone(&self) -> bool {
        self.slice == SHORT_SLICE
    }

    /// Waits for so many nanoseconds in this thread, in which a loop runs. True if it has ended; else it is to be
    /// polled again.
    fn _linger(&self, py: Python<'_>, wakes: &Wakes, nanos: u64) -> PyResult<bool> {
        let work = match self.take() {
            Some(work) if self.is_send() || ending::is_over() => {
                self.lay_down(py, work);
                return Ok(false);
            }
            Some(work) => work,
            None => return Ok(self.has_ended()),
        };
        match ending::detach(py, || work.wait(Duration::from_nanos(nanos), &self.fate)) {
            Slice::Done(done, room) => {
                wakes.linger.has_ended(true);
                self.finish(py, done, room);
                Ok(true)
            }
            Slice::Later(work) => {
                wakes.linger.has_ended(false);
                self.lay_down(py, work);
                // The engine knew this thread alone as who waits: others ask again.
                self.bell.ring();
                Ok(self.has_ended())
            }
        }
    }

    #[classmethod]
    fn __class_getitem__(
        cls: &Bound<'_, pyo3::types::PyType>,
        _of: &Bound<'_, PyAny>,
    ) -> Py<PyAny> {
        cls.clone().into_any().unbind()
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waits = slf.py().import("rendez._waits")?;
        waits
            .getattr("wait")?
            .call1((slf,))?
            .call_method0("__await__")
    }

    /// What it raises has in its traceback the frame that waited, and that as a rule has this: only Python's collector
    /// frees the three. It breaks such a cycle at another of its objects, so this needs no `__clear__`.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.outcome.get() {
            Some(Ok(object)) => visit.call(object),
            Some(Err(Failed::Raised(error))) => visit.call(error),
            _ => Ok(()),
        }
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let class = slf.get_type().name()?.to_string();
        let state = match slf.get().outcome.get() {
            Some(Ok(_)) => "done",
            Some(Err(_)) => "failed",
            None => "pending",
        };
        Ok(format!("<rendez.{class} of {}: {state}>", slf.get().about))
    }
}

/// A receive of Python's.
pub(crate) fn receive(
    py: Python<'_>,
    engine: &Engine,
    about: Subject,
    receive: Receive,
    into: Option<Into>,
) -> PyResult<Py<Recv>> {
    let work = match into {
        None => Work::Receive(receive),
        Some(into) => Work::ReceiveInto(receive, into),
    };
    let base = PyClassInitializer::from(Operation::new(engine, about, work));
    Py::new(py, base.add_subclass(Recv))
}

/// A send of Python's.
pub(crate) fn sending(
    py: Python<'_>,
    engine: &Engine,
    about: Subject,
    work: Work,
) -> PyResult<Py<Sending>> {
    let base = PyClassInitializer::from(Operation::new(engine, about, work));
    Py::new(py, base.add_subclass(Sending))
}
