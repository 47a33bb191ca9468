//! The interpreter's exit: calls that are carried out end before it, as a thread that comes back to an interpreter that
//! is gone would take the process with it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use rendez::ground::Locked;
use rendez::mail::forks;

use super::core::Core;
use crate::errands;

/// Calls of functions, which may use engines to their end.
static CALLS: Gate = Gate::new();
/// Calls of services. Some wait for what only the end of their engine tells them will not come.
pub(crate) static SERVICES: Gate = Gate::new();
/// The agents of this process.
static AGENTS: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

/// How often signals are looked at.
const SLICE: Duration = Duration::from_millis(10);

/// What is carried out with the interpreter's lock on threads that are not the interpreter's.
pub(crate) struct Gate {
    active: AtomicUsize,
    /// No more begins.
    is_shut: AtomicBool,
}

/// A call that is carried out.
pub(crate) struct Active(&'static Gate);

impl Gate {
    const fn new() -> Self {
        Self {
            active: AtomicUsize::new(0),
            is_shut: AtomicBool::new(false),
        }
    }

    /// A call is about to be carried out; `None` if the interpreter is about to end.
    pub(crate) fn enter(&'static self) -> Option<Active> {
        self.active.fetch_add(1, Ordering::SeqCst);
        let active = Active(self);
        (!self.is_shut.load(Ordering::SeqCst)).then_some(active)
    }

    fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }

    fn is_idle(&self) -> bool {
        // In a child of `fork` the threads that carry calls out are not there.
        self.active.load(Ordering::SeqCst) == 0 || forks::is_child()
    }

    fn until_idle(&self, py: Python<'_>) -> PyResult<()> {
        while !self.is_idle() {
            py.detach(|| std::thread::sleep(SLICE));
            errands::run(py);
            py.check_signals()?;
        }
        Ok(())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

/// As [`Gate::enter`], of a function's call.
pub(crate) fn enter() -> Option<Active> {
    CALLS.enter()
}

/// Whether the interpreter is about to end.
pub(super) fn is_ending() -> bool {
    CALLS.is_shut.load(Ordering::SeqCst)
}

/// An agent is there.
pub(crate) fn add(core: &Arc<Core>) {
    let mut agents = AGENTS.locked();
    agents.retain(|core| core.strong_count() > 0);
    agents.push(Arc::downgrade(core));
}

/// Ends all agents, and waits until no function that was called runs any more.
#[pyfunction]
#[pyo3(name = "_end_calls")]
pub(crate) fn end_calls(py: Python<'_>) -> PyResult<()> {
    CALLS.shut();
    if forks::is_child() {
        return Ok(());
    }
    let agents = std::mem::take(&mut *AGENTS.locked());
    for core in agents.iter().filter_map(Weak::upgrade) {
        if let Some(agent) = core.take() {
            py.detach(|| agent.shutdown_local());
        }
    }
    CALLS.until_idle(py)
}

/// Waits until no service runs any more, once engines have ended.
#[pyfunction]
#[pyo3(name = "_end_services")]
pub(crate) fn end_services(py: Python<'_>) -> PyResult<()> {
    SERVICES.shut();
    SERVICES.until_idle(py)
}

/// Whether something that was called runs on a thread that would come back to an interpreter that is gone.
#[pyfunction]
#[pyo3(name = "_is_called")]
pub(crate) fn is_called() -> bool {
    !(CALLS.is_idle() && SERVICES.is_idle())
}
