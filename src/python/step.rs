//! Steps: scopes of values that end together. As context managers they finish, or end with what was raised.

use std::time::Instant;

use pyo3::prelude::*;
use rendez::ground::{catalogue, faults};
use rendez::mail::forks;
use rendez::{Engine, Shape, Status, Step as Inner, Tensor as Value};

use super::convert::{Taking, ToSend, tensor_of, to_send};
use super::ending;
use super::errors::{Failure, Outcome, status_of};
use super::key::key_of;
use super::operation::{ByHost, Copying, Recv, Sender, Sending, Subject, Work, receive, sending};
use super::room::Into;
use super::writable::{TensorMut, handed_over};
use super::{arguments, errands};

/// One step of one engine.
#[pyclass(frozen, weakref, module = "rendez")]
pub(crate) struct Step {
    pub(crate) engine: Engine,
    pub(crate) inner: Inner,
}

#[pymethods]
impl Step {
    /// Its number.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().0
    }

    /// Hands a value over, and never waits for its receiver. Memory of Python's is copied once, unless `copy=False`:
    /// then it must not change until `on_release` is called.
    #[pyo3(signature = (key, value, *, copy = None, on_release = None))]
    fn send(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        copy: Option<bool>,
        on_release: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.send_taking(py, key, value, &Taking::new(copy, on_release)?)
    }

    /// As `send`, and waits for room where that is refused: await it, or call `wait`.
    #[pyo3(signature = (key, value, *, timeout = None, copy = None, on_release = None))]
    fn send_wait(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        copy: Option<bool>,
        on_release: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<Sending>> {
        let taking = Taking::new(copy, on_release)?;
        errands::run(py);
        let key = key_of(key)?;
        let patience = arguments::patience(timeout, "timeout")?;
        let until = patience.map(|patience| Instant::now() + patience);
        let about = Subject::Value(key.clone(), self.inner.id());
        let tensor = match to_send(&self.engine, value, &taking)? {
            ToSend::Tensor(tensor) => tensor,
            ToSend::NoRoom(source, _) => {
                let (engine, step) = (self.engine.clone(), self.inner.clone());
                let copying = Copying::new(engine, step, key, until, (source, taking));
                return sending(py, &self.engine, about, Work::Copy(Box::new(copying)));
            }
        };
        let room = value.cast::<TensorMut>().ok();
        let by_host = tensor.is_device().then(|| {
            Box::new(ByHost {
                engine: self.engine.clone(),
                step: self.inner.clone(),
                key: key.clone(),
                until,
            })
        });
        let sender = Sender::new(room.map(|room| room.clone().unbind()), by_host);
        let mut send = self.inner.send_async(&key, tensor);
        if let Some(patience) = patience {
            send = send.deadline(patience);
        }
        // Its place among the values of its key is taken now.
        sending(py, &self.engine, about, Work::Send(send.start(), sender))
    }

    /// Tells the receiver that no value will come; `why` is what it gets in its place.
    #[pyo3(signature = (key, why = None))]
    pub(crate) fn send_dead(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        why: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        errands::run(py);
        let key = key_of(key)?;
        let send = |dead| aside(py, dead, |dead| self.inner.send_dead(&key, dead));
        let sent = match why {
            Some(why) => handed_over(why, tensor_of(&self.engine, why, &Taking::default())?, send),
            None => send(Value::from_slice::<u8>(&[], Shape::from([0])).map_err(Failure::from)?),
        };
        Ok(sent.map_err(Failure::from)?)
    }

    /// The next value of a key: await it, or call `wait`. It begins then, or by `start`.
    #[pyo3(signature = (key, *, timeout = None))]
    pub(crate) fn recv(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Py<Recv>> {
        self.receive(py, key, timeout, None)
    }

    /// As `recv`, copied to `out`: of the value's type and shape, or plain bytes in a row that are enough.
    #[pyo3(signature = (key, out, *, timeout = None))]
    pub(crate) fn recv_into(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Py<Recv>> {
        self.receive(py, key, timeout, Some(Into::of(out, self.engine.clone())?))
    }

    /// Ends the step with an error everywhere.
    #[pyo3(signature = (reason = "the program said so"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> Outcome<()> {
        not_forked()?;
        let status = Status::of(catalogue::STEP_ABORTED, reason);
        ending::detach_briefly(py, || self.inner.abort(status));
        Ok(())
    }

    /// Ends the step here: what it holds is dropped.
    fn finish(&self, py: Python<'_>) -> Outcome<()> {
        not_forked()?;
        ending::detach_briefly(py, || self.inner.finish());
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        if value.is_none() {
            ending::detach_briefly(py, || self.inner.finish());
        } else {
            let status = status_of(value);
            ending::detach_briefly(py, || self.inner.abort(status));
        }
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("rendez._waits")?
            .getattr("at_once")?
            .call1((slf,))
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        kind: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        trace: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().__exit__(py, kind, value, trace);
        py.import("rendez._waits")?
            .getattr("at_once")?
            .call1((py.None(),))
    }

    fn __repr__(&self) -> String {
        format!(
            "<rendez.Step {} of {}>",
            self.inner.id().0,
            self.engine.task()
        )
    }
}

impl Step {
    pub(crate) fn send_taking(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        taking: &Taking,
    ) -> PyResult<()> {
        errands::run(py);
        let key = key_of(key)?;
        let tensor = tensor_of(&self.engine, value, taking)?;
        let send = |tensor| aside(py, tensor, |tensor| self.inner.send(&key, tensor));
        Ok(handed_over(value, tensor, send).map_err(Failure::from)?)
    }

    fn receive(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        into: Option<Into>,
    ) -> PyResult<Py<Recv>> {
        errands::run(py);
        let key = key_of(key)?;
        let mut begins = self.inner.recv(&key);
        if let Some(patience) = arguments::patience(timeout, "timeout")? {
            begins = begins.deadline(patience);
        }
        let about = Subject::Value(key, self.inner.id());
        receive(py, &self.engine, about, begins, into)
    }

    /// The step that is to end in time.
    pub(crate) fn begin(
        engine: Engine,
        id: u64,
        patience: Option<std::time::Duration>,
    ) -> Outcome<Self> {
        let inner = engine.step(rendez::StepId(id));
        if let Some(patience) = patience {
            inner.deadline(patience)?;
        }
        Ok(Self { engine, inner })
    }
}

/// A child of `fork` can end no step of its parent's: those that call in vain are told so.
fn not_forked() -> Outcome<()> {
    match forks::is_child() {
        true => Err(Failure(faults::forked())),
        false => Ok(()),
    }
}

/// Sends a tensor. One of a device may have to be copied first, which waits for the work that writes it.
fn aside(
    py: Python<'_>,
    tensor: Value,
    send: impl FnOnce(Value) -> Result<(), Status> + Send,
) -> Result<(), Status> {
    match tensor.is_device() {
        true => ending::detach_briefly(py, || send(tensor)),
        false => send(tensor),
    }
}
