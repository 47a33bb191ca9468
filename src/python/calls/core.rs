//! What an agent of Python's, its functions, its calls and its references share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyWeakrefReference};
use rendez::ground::{Locked, Unpoisoned, catalogue, faults};
use rendez::mail::forks;
use rendez::{Engine, Status};
use rendez_rpc::{Agent, Context, Signature, ValueError, WeakAgent};

use crate::errors::{Failure, Outcome};

/// See the module.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: Engine,
    /// The same, as Python has it; it is not kept by that.
    pub(crate) python_engine: Py<PyWeakrefReference>,
    pub(crate) name: String,
    /// Whether what others have pickled is read here, and whether this worker pickles.
    pub(crate) allows_pickle: bool,
    /// How long a call may take that says nothing else; zero for no limit.
    pub(crate) timeout: Duration,
    /// Functions that this worker alone has, by name.
    pub(crate) functions: Py<PyDict>,
    /// The signatures of other workers' functions, as far as they were asked for.
    signatures: Mutex<HashMap<String, Arc<[Signature]>>>,
    /// The agent, once it has met the others.
    weak: OnceLock<WeakAgent>,
    /// The same before that, while a call is carried out: see [`Core::lent_by`].
    lent: Mutex<Option<WeakAgent>>,
    is_given_up: AtomicBool,
    /// The agent, until it is shut down.
    own: Mutex<Option<Agent>>,
}

impl Core {
    pub(crate) fn new(
        (engine, python_engine): (Engine, Py<PyWeakrefReference>),
        name: String,
        allows_pickle: bool,
        timeout: Duration,
        functions: Py<PyDict>,
    ) -> Self {
        Self {
            engine,
            python_engine,
            name,
            allows_pickle,
            timeout,
            functions,
            signatures: Mutex::default(),
            weak: OnceLock::new(),
            lent: Mutex::default(),
            is_given_up: AtomicBool::new(false),
            own: Mutex::new(None),
        }
    }

    /// The agent that `call` is made at, to be kept while it is carried out: another worker may call while this one
    /// still waits for the last to come. `None` once it has begun.
    pub(crate) fn lent_by(&self, call: &Context) -> Option<Agent> {
        if self.weak.get().is_some() {
            return None;
        }
        let mut lent = self.lent.locked();
        let agent = lent.as_ref().and_then(WeakAgent::upgrade);
        let agent = agent.unwrap_or_else(|| call.agent());
        *lent = Some(agent.downgrade());
        Some(agent)
    }

    /// The agent has begun.
    pub(crate) fn begin(&self, agent: Agent) {
        let _ = self.weak.set(agent.downgrade());
        *self.own.locked() = Some(agent);
        if self.is_given_up.load(Ordering::SeqCst) {
            self.leave();
        }
    }

    /// The wait for the agent was interrupted: it leaves as soon as it has begun.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
        self.leave();
    }

    fn leave(&self) {
        if let Some(agent) = self.take() {
            agent.shutdown_local();
        }
    }

    /// The agent, to end it; the first caller gets it.
    pub(crate) fn take(&self) -> Option<Agent> {
        self.own.locked().take()
    }

    /// The agent has left its group. Its functions may be methods of what has the agent: nothing else frees the two.
    pub(crate) fn drop_functions(&self, py: Python<'_>) {
        self.functions.bind(py).clear();
    }

    /// The signatures of the functions of a worker that was asked for them before.
    pub(crate) fn known(&self, worker: &str) -> Option<Arc<[Signature]>> {
        let all = self.signatures.lock();
        let all = all.unpoisoned();
        all.get(worker).cloned()
    }

    /// A worker has told the signatures of its functions.
    pub(crate) fn learn(&self, worker: &str, signatures: &Arc<[Signature]>) {
        let there = self.agent().map(|agent| agent.workers());
        let mut all = self.signatures.locked();
        all.insert(worker.to_owned(), Arc::clone(signatures));
        // Workers leave a group that has no size, and others come with other names.
        if let Ok(there) = there
            && all.len() > there.len()
        {
            all.retain(|name, _| there.iter().any(|worker| worker.name == *name));
        }
    }

    /// What is known of other workers' functions may have changed.
    pub(crate) fn forget(&self, worker: &str) {
        let mut all = self.signatures.locked();
        all.remove(worker);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.own.locked().is_none()
    }

    /// The agent, to call with.
    pub(crate) fn agent(&self) -> Outcome<Agent> {
        if forks::is_child() {
            return Err(Failure(faults::forked()));
        }
        let lent = || {
            let lent = self.lent.locked();
            let lent = lent.as_ref().and_then(WeakAgent::upgrade);
            lent.or_else(|| Context::current().map(|call| call.agent()))
        };
        let agent = match self.weak.get() {
            Some(weak) => weak.upgrade(),
            None => lent(),
        };
        agent.ok_or_else(|| Failure(shut_down(&self.name)))
    }
}

pub(crate) fn shut_down(name: &str) -> Status {
    Status::of(
        catalogue::RPC_SHUTDOWN,
        format!("the agent of worker '{name}' is shut down: begin another"),
    )
}

/// A value that cannot travel, as Python sees it.
pub(crate) fn failed(error: ValueError) -> PyErr {
    Failure(Status::of(error.reason(), error.to_string())).into()
}

/// A function of the package's, looked up once.
pub(crate) struct Helper {
    module: &'static str,
    name: &'static str,
    found: PyOnceLock<Py<PyAny>>,
}

impl Helper {
    pub(crate) const fn new(module: &'static str, name: &'static str) -> Self {
        Self {
            module,
            name,
            found: PyOnceLock::new(),
        }
    }

    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        self.found.import(py, self.module, self.name)
    }
}
