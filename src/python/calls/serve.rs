//! Calls that come: found, carried out on a thread of the agent's pool, and answered.

use std::convert::Infallible;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rendez::Status;
use rendez::ground::catalogue;
use rendez_rpc::{Context, Functions};

use super::answer::{self, FETCH, IMPORTED, METHOD, NAMED};
use super::body::{Body, Reader};
use super::call::limit_of;
use super::core::{Core, Helper, failed, shut_down};
use super::promise::{Later, Outcome};
use super::reference::{Object, value_here};
use super::{agent, exit};
use crate::errands;
use crate::errors::Failure;

/// The function of the agent whose result travels.
pub(crate) const CALL: &str = "rendez.python.call";
/// The one whose result stays.
pub(crate) const KEEP: &str = "rendez.python.keep";

/// The functions by which workers of Python's call each other.
pub(crate) fn functions(core: &Arc<Core>) -> Functions {
    let (calls, keeps) = (Arc::clone(core), Arc::clone(core));
    Functions::new()
        .add_async(CALL, move |body: Body| call(&calls, body).end())
        .add_object_async(KEEP, move |body: Body| {
            let kept = keep(&keeps, body).end();
            // What was raised lies in the object, as Python has it.
            async move { Ok::<_, Infallible>(kept.await) }
        })
}

const SERVE: &str = "rendez.rpc._serve";
static IS_COROUTINE: Helper = Helper::new("inspect", "iscoroutine");
static APPLY: Helper = Helper::new(SERVE, "apply");
static FIND: Helper = Helper::new(SERVE, "find");
static IMPORT: Helper = Helper::new(SERVE, "imported");
static METHOD_OF: Helper = Helper::new(SERVE, "method");
static IN_LOOP: Helper = Helper::new(SERVE, "in_loop");

/// A call that was begun.
pub(crate) enum Begun<T> {
    Ended(T),
    /// The function was a coroutine's.
    Later(Later<T>),
}

impl<T: Send + 'static> Begun<T> {
    pub(crate) async fn end(self) -> T {
        match self {
            Self::Ended(ended) => ended,
            Self::Later(later) => later.await,
        }
    }
}

/// The call that is carried out, as the function sees it.
#[pyclass(frozen, module = "rendez.rpc", name = "Served")]
pub(crate) struct Served {
    core: Arc<Core>,
    _lent: Option<rendez_rpc::Agent>,
    context: Context,
    function: String,
}

#[pymethods]
impl Served {
    /// The agent that carries it out, for calls of one's own.
    #[getter]
    fn agent(&self) -> agent::Agent {
        agent::Agent::of(&self.core)
    }

    /// The name of the worker that called.
    #[getter]
    fn caller(&self) -> String {
        self.context.caller_name()
    }

    #[getter]
    fn function(&self) -> &str {
        &self.function
    }

    /// True once the caller has given the call up, or its time is over.
    #[getter]
    fn cancelled(&self) -> bool {
        self.context.is_cancelled()
    }

    /// For how many seconds the caller still waits; None for ever.
    #[getter]
    fn time_left(&self) -> Option<f64> {
        self.context.time_left().map(|left| left.as_secs_f64())
    }
}

/// Carries a call out, whose result travels.
fn call(core: &Arc<Core>, body: Body) -> Begun<Body> {
    let its = Arc::clone(core);
    let made = move |py: Python<'_>, outcome: Outcome<'_>| {
        let body = outcome.and_then(|value| answer::value(&its, &value));
        body.unwrap_or_else(|error| answer::raised(py, &its, &error))
    };
    begin(|py| run(py, core, body), made)
        .unwrap_or_else(|| Begun::Ended(answer::fault(&shut_down(&core.name))))
}

/// Carries a call out, whose result stays.
fn keep(core: &Arc<Core>, body: Body) -> Begun<Object> {
    let its = Arc::clone(core);
    let made =
        move |_: Python<'_>, outcome: Outcome<'_>| Object::new(&its, outcome.map(Bound::unbind));
    begin(|py| run(py, core, body), made)
        .unwrap_or_else(|| Begun::Ended(Object::none(core, shut_down(&core.name))))
}

/// Calls a function by `run`; `made` makes the call's end of what it returned or raised. A coroutine is handed over to
/// the loop, and holds no thread. `None` if the interpreter is about to end.
pub(crate) fn begin<T: Send + 'static>(
    run: impl for<'py> FnOnce(Python<'py>) -> PyResult<Run<'py>>,
    made: impl for<'py> Fn(Python<'py>, Outcome<'py>) -> T + Clone + Send + Sync + 'static,
) -> Option<Begun<T>> {
    with_python(|py| {
        let begun = || -> PyResult<Begun<T>> {
            let (served, outcome) = run(py)?;
            let is_later = IS_COROUTINE.get(py)?.call1((&outcome,))?.is_truthy()?;
            match is_later {
                true => Later::begin(py, served, &outcome, made.clone()).map(Begun::Later),
                false => Ok(Begun::Ended(made(py, Ok(outcome)))),
            }
        };
        begun().unwrap_or_else(|error| Begun::Ended(made(py, Err(error))))
    })
}

/// Does `work` with the interpreter's lock, unless the interpreter is about to end.
pub(crate) fn with_python<R>(work: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _active = exit::enter()?;
    Python::try_attach(|py| {
        let done = work(py);
        errands::run(py);
        done
    })
}

fn current() -> PyResult<Context> {
    Context::current()
        .ok_or_else(|| crate::errors::argument("no call is carried out in this thread").into())
}

impl Served {
    /// The call that this thread carries out.
    pub(crate) fn current<'py>(
        py: Python<'py>,
        core: &Arc<Core>,
        function: &str,
    ) -> PyResult<Bound<'py, Self>> {
        let context = current()?;
        let served = Self {
            core: Arc::clone(core),
            _lent: core.lent_by(&context),
            context,
            function: function.to_owned(),
        };
        Bound::new(py, served)
    }
}

/// Whether this thread carries a call of that agent's out, by itself or as the one of all coroutines.
pub(crate) fn is_carried_out(py: Python<'_>, core: &Arc<Core>) -> PyResult<bool> {
    if let Some(call) = Context::current() {
        return Ok(core
            .agent()
            .is_ok_and(|agent| agent.worker() == call.agent().worker()));
    }
    let served = IN_LOOP.get(py)?.call0()?;
    let served = served.cast::<Served>();
    Ok(served.is_ok_and(|served| Arc::ptr_eq(&served.get().core, core)))
}

/// The call, and what its function returned.
pub(crate) type Run<'py> = (Bound<'py, Served>, Bound<'py, PyAny>);

fn run<'py>(py: Python<'py>, core: &Arc<Core>, body: Body) -> PyResult<Run<'py>> {
    let caller = current()?.caller_name();
    let mut reader = body.read();
    let kind = reader.byte().map_err(failed)?;
    let name = reader.text().map_err(failed)?;
    let served = Served::current(py, core, &name)?;
    if kind == FETCH {
        let value = referred(py, &mut reader)?;
        reader.end().map_err(failed)?;
        return Ok((served, value));
    }
    let function = find(py, core, kind, &name, &mut reader)?;
    let both = answer::read(py, core, &mut reader, &caller)?;
    reader.end().map_err(failed)?;
    let (args, kwargs) = both.extract::<(Bound<'_, PyTuple>, Bound<'_, PyDict>)>()?;
    let outcome = APPLY.get(py)?.call1((&served, function, args, kwargs))?;
    Ok((served, outcome))
}

/// What is called, if it may be.
fn find<'py>(
    py: Python<'py>,
    core: &Arc<Core>,
    kind: u8,
    name: &str,
    reader: &mut Reader,
) -> PyResult<Bound<'py, PyAny>> {
    let here = &core.name;
    match kind {
        NAMED => FIND.get(py)?.call1((core.functions.bind(py), name, here)),
        IMPORTED if !core.allows_pickle => Err(answer::refused(
            py,
            format!(
                "worker '{here}' does not allow pickle, and so no function that is not registered: register `{name}` \
                 there with `@rendez.rpc.function`"
            ),
        )),
        IMPORTED => IMPORT.get(py)?.call1((name, here)),
        METHOD => {
            let object = referred(py, reader)?;
            let about = (object, name, core.allows_pickle, here);
            METHOD_OF.get(py)?.call1(about)
        }
        other => Err(answer::unknown(format!(
            "there is no call of the kind {other}"
        ))),
    }
}

/// The value of the reference that comes next. It is waited for as long as the caller waits.
fn referred<'py>(py: Python<'py>, reader: &mut Reader) -> PyResult<Bound<'py, PyAny>> {
    let reference = reader.reference().map_err(failed)?;
    let call = current()?;
    let look = || match call.is_cancelled() || exit::is_ending() {
        true => Err(unwanted()),
        false => Ok(()),
    };
    let value = value_here(py, &reference, limit_of(call.time_left()), look)?;
    Ok(value.into_bound(py))
}

/// Of a call whose caller waits no more, or cannot be answered.
fn unwanted() -> PyErr {
    let message = "its caller waits for it no more";
    Failure(Status::of(catalogue::RPC_CANCELLED, message)).into()
}
