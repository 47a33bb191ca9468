//! The agent as Python holds it: one worker of a group, on an engine.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyWeakrefMethods, PyWeakrefReference};
use rendez::Status;
use rendez::ground::{catalogue, faults};
use rendez::mail::forks;
use rendez_rpc::{Agent as Inner, Error, Pending, Signature, WorkerInfo};

use super::answer::{self, IMPORTED};
use super::body::Body;
use super::call::{Call, Limit, Under, in_slices, limit_of, raise, timeout_of};
use super::core::{Core, Helper};
use super::plain::Taken;
use super::reference::{Object, RRef};
use super::setup::Meeting;
use super::{exit, serve, typed};
use crate::ending;
use crate::engine::Engine;
use crate::errors::{self, Failure};
use crate::patience::patiently;
use crate::{arguments, errands};

/// One worker of a group.
#[pyclass(frozen, weakref, module = "rendez.rpc")]
pub(crate) struct Agent {
    pub(crate) core: Arc<Core>,
    /// It leaves the group when this is gone.
    is_own: bool,
}

impl Agent {
    /// Another handle of it.
    pub(crate) fn of(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            is_own: false,
        }
    }

    /// What is called: of which kind, and its name.
    fn body(
        &self,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<(Body, Taken)> {
        let (py, core) = (function.py(), &self.core);
        static NAMED: Helper = Helper::new("rendez.rpc._functions", "named");
        let named = NAMED.get(py)?.call1((function,))?;
        let (kind, name) = named.extract::<(u8, String)>()?;
        if kind == IMPORTED && !core.allows_pickle {
            return Err(answer::refused(
                py,
                format!(
                    "`{name}` is not registered, and can be called only where pickle is allowed, which it is not at \
                     worker '{}': register it with `@rendez.rpc.function`",
                    core.name
                ),
            ));
        }
        let mut body = Body::default();
        body.byte(kind);
        body.text(&name);
        let kwargs = kwargs.map_or_else(|| PyDict::new(py), Clone::clone);
        answer::write_arguments(py, core, body, args.as_any(), kwargs.as_any())
    }

    /// The signature of what is called by its name alone, where the worker is none of Python's and has told one. It is
    /// asked once, until `limit`. A worker of Python's is called as by the function, with the same results and
    /// exceptions. With fewer arguments than the signature has, the call is refused as one of no worker of Python's.
    fn signature(
        &self,
        to: &str,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        limit: &Limit,
    ) -> PyResult<Option<Signature>> {
        let has_names = kwargs.is_some_and(|kwargs| !kwargs.is_empty());
        let Ok(name) = function.extract::<String>() else {
            return Ok(None);
        };
        if has_names {
            return Ok(None);
        }
        let all = match self.core.known(to) {
            Some(all) => all,
            None => self.ask_signatures(function.py(), to, limit)?,
        };
        if all.iter().any(|one| one.name() == serve::CALL) {
            return Ok(None);
        }
        let found = all.iter().find(|one| one.name() == name);
        Ok(found
            .filter(|one| one.arguments().len() <= args.len())
            .cloned())
    }

    /// Asks the worker `to` for the signatures of its functions, until `limit`; signals are heard meanwhile.
    fn ask_signatures(
        &self,
        py: Python<'_>,
        to: &str,
        limit: &Limit,
    ) -> PyResult<Arc<[Signature]>> {
        let failed = |error: Error| raise(py, &error, Some(to));
        let asked = self.core.agent()?.signatures_async(to, limit.left());
        let asked = asked.map_err(failed)?;
        let texts = in_slices(py, asked, Pending::wait_for, || py.check_signals())?;
        let texts = texts.map_err(failed)?;
        let all = texts.iter().filter_map(|text| Signature::parse(text));
        let all: Arc<[Signature]> = all.collect();
        self.core.learn(to, &all);
        Ok(all)
    }

    fn info(&self, info: WorkerInfo) -> (String, u16, String) {
        (info.name, info.id.0, info.task.to_string())
    }
}

/// Calls a function at `to`, and leaves the result there.
pub(crate) fn remote(
    py: Python<'_>,
    core: &Arc<Core>,
    to: &str,
    (body, taken): (Body, Taken),
    timeout: Duration,
) -> PyResult<RRef> {
    let agent = core.agent()?;
    let inner = agent.remote_within::<Object>(to, serve::KEEP, (body,), timeout);
    let inner = inner.map_err(|error| raise(py, &error, None))?;
    taken.keep();
    Ok(RRef::new(core, inner))
}

fn raised(py: Python<'_>, error: &Error) -> PyErr {
    errors::raise(py, error.status())
}

#[pymethods]
impl Agent {
    #[new]
    #[pyo3(signature = (engine, name, *, world = None, store = None, size = None, group = "rpc", functions = None,
                        timeout = Some(60.0), init_timeout = Some(60.0), threads = 16, allow_pickle = None,
                        in_order = false, refuse_leaks = false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        engine: &Bound<'_, Engine>,
        name: String,
        world: Option<&Bound<'_, PyAny>>,
        store: Option<&Bound<'_, PyAny>>,
        size: Option<&Bound<'_, PyAny>>,
        group: &str,
        functions: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        init_timeout: Option<f64>,
        threads: usize,
        allow_pickle: Option<bool>,
        in_order: bool,
        refuse_leaks: bool,
    ) -> PyResult<Self> {
        errands::run(py);
        if forks::is_child() {
            return Err(Failure(faults::forked()).into());
        }
        let setup = py.import("rendez.rpc._setup")?;
        let meeting = setup.getattr("meeting")?.call1((world, store, size))?;
        let mut options = meeting.extract::<Meeting>()?.options()?;
        let own = py.import("rendez.rpc._functions")?.getattr("table")?;
        let own = own.call1((functions,))?.cast_into::<PyDict>()?;
        let timeout = limit_of(arguments::patience(timeout, "timeout")?);
        let allows = allow_pickle.unwrap_or_else(|| engine.get().shares_secret());
        let running = engine.get().running()?;
        let weak = PyWeakrefReference::new(engine)?.unbind();
        let engines = (running.clone(), weak);
        let core = Core::new(engines, name.clone(), allows, timeout, own.unbind());
        let core = Arc::new(core);
        options.group = group.to_owned();
        options.timeout = timeout;
        options.init_timeout = limit_of(arguments::patience(init_timeout, "init_timeout")?);
        options.threads = threads;
        options.in_order = in_order;
        options.refuse_leaks = refuse_leaks;
        let functions = typed::functions(py, &core, serve::functions(&core))?;
        let options = options.functions(functions);
        let begun = patiently(
            py,
            {
                let core = Arc::clone(&core);
                move || {
                    core.begin(Inner::init(&running, &name, options)?);
                    Ok::<(), Error>(())
                }
            },
            || core.give_up(),
        )?;
        begun.map_err(|error| raised(py, &error))?;
        exit::add(&core);
        Ok(Self { core, is_own: true })
    }

    /// This worker's name.
    #[getter]
    fn name(&self) -> &str {
        &self.core.name
    }

    /// This worker's number.
    #[getter]
    fn id(&self) -> PyResult<u16> {
        Ok(self.core.agent()?.worker().id.0)
    }

    /// The engine that it runs on.
    #[getter]
    fn engine<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let engine = self.core.python_engine.bind(py).upgrade();
        engine.ok_or_else(|| Failure(faults::shutdown()).into())
    }

    /// Whether pickle is read and written here.
    #[getter]
    fn allow_pickle(&self) -> bool {
        self.core.allows_pickle
    }

    #[getter]
    fn closed(&self) -> bool {
        self.core.is_closed()
    }

    /// All workers of the group.
    #[getter]
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = self.core.agent()?.workers();
        let class = py.import("rendez.rpc._setup")?.getattr("Worker")?;
        let list = PyList::empty(py);
        for info in all {
            list.append(class.call1(self.info(info))?)?;
        }
        Ok(list)
    }

    /// The signatures of the functions that the worker `to` has for programs in all languages.
    fn signatures(&self, py: Python<'_>, to: &str) -> PyResult<Vec<String>> {
        self.core.forget(to);
        let limit = Limit::of(self.core.timeout);
        let all = self.ask_signatures(py, to, &limit)?;
        let all = all.iter().filter(|one| one.name() != serve::CALL);
        Ok(all.map(ToString::to_string).collect())
    }

    /// Takes the worker `to` for one of another language's from now on: for tests of calls by signature.
    fn _take_for_foreign(&self, py: Python<'_>, to: &str) -> PyResult<()> {
        let all = self.ask_signatures(py, to, &Limit::of(self.core.timeout))?;
        let all = all.iter().filter(|one| one.name() != serve::CALL);
        self.core.learn(to, &all.cloned().collect());
        Ok(())
    }

    /// What this worker knows of references: its values that others may use, and its shares of values elsewhere.
    fn references<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let agent = self.core.agent()?;
        let all = ending::detach(py, || agent.references());
        let class = py.import("rendez.rpc._setup")?.getattr("Reference")?;
        let list = PyList::empty(py);
        for one in all.map_err(|error| raise(py, &error, None))? {
            let age = Duration::from_nanos(one.age_ns).as_secs_f64();
            list.append(class.call1((
                one.rref,
                one.owner,
                one.fork,
                one.state,
                one.handles,
                one.carriers,
                one.users,
                age,
            ))?)?;
        }
        Ok(list)
    }

    /// Calls `function` at the worker `to`, and waits for its result.
    #[pyo3(signature = (to, function, /, *args, timeout = None, **kwargs))]
    fn call(
        &self,
        py: Python<'_>,
        to: &str,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        timeout: Option<f64>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let call = self.call_async(py, to, function, args, timeout, kwargs)?;
        call.call_method0(py, "wait")
    }

    /// Calls `function` at the worker `to`, to be awaited or waited for.
    #[pyo3(signature = (to, function, /, *args, timeout = None, **kwargs))]
    fn call_async(
        &self,
        py: Python<'_>,
        to: &str,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        timeout: Option<f64>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        let agent = self.core.agent()?;
        let limit = Limit::of(timeout_of(&self.core, timeout)?);
        let (under, taken) = match self.signature(to, function, args, kwargs, &limit)? {
            Some(signature) => {
                let (arguments, taken) = typed::pack(&self.core, &signature, args)?;
                let started = agent.start_by_signature(to, &signature, arguments, limit.left());
                let under = |pending| Under::Typed(pending, signature.result().clone());
                (started.map(under), taken)
            }
            None => {
                let (body, taken) = self.body(function, args, kwargs)?;
                let started = agent.rpc_async_within(to, serve::CALL, (body,), limit.left());
                (started.map(Under::Python), taken)
            }
        };
        let under = under.map_err(|error| raise(py, &error, None))?;
        taken.keep();
        Call::begin(py, &self.core, to.to_owned(), under)
    }

    /// Calls `function` at the worker `to`, and leaves its result there.
    #[pyo3(signature = (to, function, /, *args, timeout = None, **kwargs))]
    fn remote(
        &self,
        py: Python<'_>,
        to: &str,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        timeout: Option<f64>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<RRef> {
        let agent = self.core.agent()?;
        let limit = Limit::of(timeout_of(&self.core, timeout)?);
        if let Some(signature) = self.signature(to, function, args, kwargs, &limit)? {
            let (arguments, taken) = typed::pack(&self.core, &signature, args)?;
            let inner = agent.remote_by_signature(to, &signature, arguments, limit.left());
            let inner = inner.map_err(|error| raise(py, &error, None))?;
            taken.keep();
            return Ok(RRef::typed(&self.core, inner, signature));
        }
        let body = self.body(function, args, kwargs)?;
        remote(py, &self.core, to, body, limit.left())
    }

    /// What an answer says that is these bytes: for tests of what others may send.
    fn _read(&self, py: Python<'_>, bytes: Vec<u8>) -> PyResult<Py<PyAny>> {
        answer::read_answer(py, &self.core, "another", Body::of_bytes(bytes))
    }

    /// Leaves the group: when all workers want to and all calls are done, or at once.
    #[pyo3(signature = (*, graceful = true, timeout = None))]
    fn shutdown(&self, py: Python<'_>, graceful: bool, timeout: Option<f64>) -> PyResult<()> {
        let timeout = limit_of(arguments::patience(timeout, "timeout")?);
        if forks::is_child() {
            return Err(Failure(faults::forked()).into());
        }
        if graceful && serve::is_carried_out(py, &self.core)? {
            let message = "a function that is carried out cannot shut its own worker down: shutdown waits for it; \
                           use graceful=False, or have another thread do it";
            return Err(Failure(Status::of(catalogue::RPC_SHUTDOWN, message)).into());
        }
        let Some(agent) = self.core.take() else {
            return Ok(());
        };
        if !graceful {
            ending::detach(py, || agent.shutdown_local());
            self.core.drop_functions(py);
            return Ok(());
        }
        let also = agent.clone();
        let left = patiently(
            py,
            move || agent.shutdown(timeout),
            move || also.shutdown_local(),
        );
        // Until then other workers could call them.
        self.core.drop_functions(py);
        left?.map_err(|error| raised(py, &error))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.shutdown(py, kind.is_none(), None)
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waits = slf.py().import("rendez._waits")?;
        waits.getattr("at_once")?.call1((slf,))
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        kind: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        trace: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let exit = slf.getattr("__exit__")?;
        let functools = slf.py().import("functools")?;
        let exit = functools.call_method1("partial", (exit, kind, value, trace))?;
        let waits = slf.py().import("rendez._waits")?;
        waits.getattr("in_thread")?.call1((exit,))
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "running" };
        format!("<rendez.rpc.Agent {} {state}>", self.core.name)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !self.is_own || forks::is_child() {
            return;
        }
        if let Some(agent) = self.core.take() {
            let mut agent = Some(agent);
            // It leaves its group, whose store may take a while to hear of it: threads of Python go on.
            let left = Python::try_attach(|py| ending::detach(py, || drop(agent.take())));
            if left.is_none() {
                // The interpreter has ended, and has ended its agents before.
                std::mem::forget(agent);
            }
        }
    }
}
