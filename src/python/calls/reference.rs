//! References to values that live at their owners, and the values of this worker that others refer to.

use std::sync::{Arc, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use rendez::Status;
use rendez::ground::catalogue;
use rendez_rpc::{Error, Pending, PendingLocal, RRef as Inner, Signature};

use super::answer::{FETCH, METHOD};
use super::body::Body;
use super::call::{Call, Under, in_slices, timeout_of};
use super::core::Core;
use super::plain::Taken;
use super::{agent, serve};
use crate::errands;
use crate::errors::{Failure, Outcome, raise};

/// What a function has left here, or raised. It is dropped with the interpreter's lock, wherever it ends.
#[derive(Debug)]
pub(crate) struct Object {
    value: Option<Result<Py<PyAny>, PyErr>>,
    /// Why nothing was called: it is made an exception where there is an interpreter.
    why_none: Option<Status>,
    core: Weak<Core>,
}

impl Object {
    /// Of a function that was not called.
    pub(crate) fn none(core: &Arc<Core>, why: Status) -> Self {
        Self {
            value: None,
            why_none: Some(why),
            core: Arc::downgrade(core),
        }
    }

    pub(crate) fn new(core: &Arc<Core>, value: Result<Py<PyAny>, PyErr>) -> Self {
        Self {
            value: Some(value),
            why_none: None,
            core: Arc::downgrade(core),
        }
    }

    pub(crate) fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match (&self.value, &self.why_none) {
            (Some(Ok(value)), _) => Ok(value.clone_ref(py)),
            (Some(Err(error)), _) => Err(error.clone_ref(py)),
            (None, Some(why)) => Err(raise(py, why)),
            (None, None) => Ok(py.None()),
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // It may be a shard's thread that drops it, or one that turns a shard now.
        let Some(value) = self.value.take() else {
            return;
        };
        errands::leave(move |_| drop(value));
        // The main thread may wait for something else: then a thread of the pool runs the errand.
        if let Some(Ok(agent)) = self.core.upgrade().map(|core| core.agent()) {
            agent.offload(|| {
                serve::with_python(errands::run);
            });
        }
    }
}

/// A reference to a value that lives at its owner: this worker or another.
#[pyclass(frozen, weakref, module = "rendez.rpc", name = "RRef")]
pub(crate) struct RRef {
    pub(crate) inner: Inner<Object>,
    pub(crate) core: Arc<Core>,
    /// What made the value, if that is no function of Python's.
    made_by: Option<Signature>,
}

impl RRef {
    pub(crate) fn new(core: &Arc<Core>, inner: Inner<Object>) -> Self {
        Self {
            inner,
            core: Arc::clone(core),
            made_by: None,
        }
    }

    /// One to a value that a function of this signature makes.
    pub(crate) fn typed(core: &Arc<Core>, inner: Inner<Object>, made_by: Signature) -> Self {
        Self {
            made_by: Some(made_by),
            ..Self::new(core, inner)
        }
    }

    /// Fails if the value is no object of Python's: such a one has no methods, and is not lent.
    fn is_object(&self) -> Outcome<()> {
        match &self.made_by {
            None => Ok(()),
            Some(made_by) => Err(Failure(Status::of(
                catalogue::RPC_REFERENCE,
                format!(
                    "{made_by} made the value, which is called by its signature: copy it with `to_here`"
                ),
            ))),
        }
    }

    /// The value at its owner, for the owner's program.
    fn own_value(&self, py: Python<'_>, timeout: Duration) -> PyResult<Py<PyAny>> {
        self.is_object()?;
        let kept = kept_here(py, &self.inner, timeout, || py.check_signals())?;
        kept.value(py).or_else(|error| {
            let errors = py.import("rendez.rpc._errors")?;
            let about = (&self.core.name, error.value(py));
            Err(PyErr::from_value(errors.getattr("kept")?.call1(about)?))
        })
    }

    /// Calls what needs this reference alone, as its method or its value.
    fn start(&self, py: Python<'_>, body: Body, timeout: Option<f64>) -> PyResult<Py<Call>> {
        let agent = self.core.agent()?;
        let owner = self.owner()?;
        let timeout = timeout_of(&self.core, timeout)?;
        let pending: Pending<Body> = agent
            .rpc_async_within(&owner, serve::CALL, (body,), timeout)
            .map_err(|error| super::call::raise(py, &error, Some(&owner)))?;
        Call::begin(py, &self.core, owner, Under::Python(pending))
    }
}

#[pymethods]
impl RRef {
    /// A reference to a value of this worker's own.
    #[new]
    fn keep(agent: &agent::Agent, value: Py<PyAny>) -> Outcome<Self> {
        let core = &agent.core;
        let inner = Inner::to_object(&core.agent()?, Object::new(core, Ok(value)));
        Ok(Self::new(core, inner))
    }

    /// The name of the worker where the value lives.
    #[getter]
    fn owner(&self) -> Outcome<String> {
        if self.is_owner() {
            return Ok(self.core.name.clone());
        }
        let name = self.inner.owner_name();
        name.map_err(|error| Failure(error.status().clone()))
    }

    /// The number of that worker.
    #[getter]
    fn owner_id(&self) -> u16 {
        self.inner.owner().0
    }

    #[getter]
    fn is_owner(&self) -> bool {
        self.inner.is_owner()
    }

    /// True if the owner has confirmed that it knows this reference.
    #[getter]
    fn confirmed(&self) -> bool {
        self.inner.confirmed_by_owner()
    }

    /// The value, at its owner: the very object. Waits until it is there.
    fn local_value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.core.agent()?;
        self.own_value(py, self.core.timeout)
    }

    /// Waits for a copy of the value; at its owner, for the value.
    #[pyo3(signature = (*, timeout = None))]
    fn to_here(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        if this.is_owner() && this.made_by.is_none() {
            this.core.agent()?;
            let timeout = timeout_of(&this.core, timeout)?;
            return this.own_value(py, timeout);
        }
        let call = Self::to_here_async(slf, timeout)?;
        call.call_method0(py, "wait")
    }

    /// Asks for a copy of the value, to be awaited or waited for.
    #[pyo3(signature = (*, timeout = None))]
    fn to_here_async(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Py<Call>> {
        let (py, this) = (slf.py(), slf.get());
        if let Some(signature) = &this.made_by {
            this.core.agent()?;
            let timeout = timeout_of(&this.core, timeout)?;
            let pending = this.inner.fetch_by_signature(signature, timeout);
            let pending = pending.map_err(|error| super::call::raise(py, &error, None))?;
            let under = Under::Typed(pending, signature.result().clone());
            return Call::begin(py, &this.core, this.owner()?, under);
        }
        let mut body = Body::default();
        body.byte(FETCH);
        body.text("");
        body.reference(this.inner.clone());
        this.start(py, body, timeout)
    }

    /// Its methods, called where it lives: each waits for its result.
    #[pyo3(signature = (*, timeout = None))]
    fn rpc_sync<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        proxy(slf, "sync", timeout)
    }

    /// The same; each is a call to be awaited or waited for.
    #[pyo3(signature = (*, timeout = None))]
    fn rpc_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        proxy(slf, "asynchronous", timeout)
    }

    /// The same; each leaves its result there, and gives a reference to it.
    #[pyo3(signature = (*, timeout = None))]
    fn remote<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        proxy(slf, "remote", timeout)
    }

    /// Calls a method of the value, where it lives.
    #[pyo3(signature = (name, args, kwargs, timeout))]
    fn _call(
        slf: &Bound<'_, Self>,
        name: &str,
        args: &Bound<'_, PyAny>,
        kwargs: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Py<Call>> {
        let (py, this) = (slf.py(), slf.get());
        let (body, taken) = this.method(py, name, args, kwargs)?;
        let call = this.start(py, body, timeout)?;
        taken.keep();
        Ok(call)
    }

    /// The same, and leaves the result there.
    #[pyo3(signature = (name, args, kwargs, timeout))]
    fn _remote(
        slf: &Bound<'_, Self>,
        name: &str,
        args: &Bound<'_, PyAny>,
        kwargs: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let (py, this) = (slf.py(), slf.get());
        let body = this.method(py, name, args, kwargs)?;
        let timeout = timeout_of(&this.core, timeout)?;
        agent::remote(py, &this.core, &this.owner()?, body, timeout)
    }

    #[classmethod]
    fn __class_getitem__(
        cls: &Bound<'_, pyo3::types::PyType>,
        _of: &Bound<'_, PyAny>,
    ) -> Py<PyAny> {
        cls.clone().into_any().unbind()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(crate::errors::argument(
            "a reference travels with the calls of its agent, and cannot be pickled otherwise",
        )
        .into())
    }

    fn __repr__(&self) -> String {
        format!("<rendez.rpc.{:?}>", self.inner)
    }
}

/// The value of a reference at its owner. Waits until it is there, for at most `timeout`; in between `look` says
/// whether it is still wanted.
pub(crate) fn value_here(
    py: Python<'_>,
    reference: &Inner<Object>,
    timeout: Duration,
    look: impl Fn() -> PyResult<()>,
) -> PyResult<Py<PyAny>> {
    kept_here(py, reference, timeout, look)?.value(py)
}

fn kept_here(
    py: Python<'_>,
    reference: &Inner<Object>,
    timeout: Duration,
    look: impl Fn() -> PyResult<()>,
) -> PyResult<Arc<Object>> {
    let failed = |error: Error| super::call::raise(py, &error, None);
    let pending = reference.local_value_async(timeout).map_err(failed)?;
    in_slices(py, pending, PendingLocal::wait_for, look)?.map_err(failed)
}

fn proxy<'py>(
    reference: &Bound<'py, RRef>,
    kind: &str,
    timeout: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    let proxies = reference.py().import("rendez.rpc._proxies")?;
    proxies.getattr(kind)?.call1((reference, timeout))
}

impl RRef {
    fn method(
        &self,
        py: Python<'_>,
        name: &str,
        args: &Bound<'_, PyAny>,
        kwargs: &Bound<'_, PyAny>,
    ) -> PyResult<(Body, Taken)> {
        self.is_object()?;
        let mut body = Body::default();
        body.byte(METHOD);
        body.text(name);
        body.reference(self.inner.clone());
        super::answer::write_arguments(py, &self.core, body, args, kwargs)
    }
}
