//! The interpreter's exit: calls that are carried out end before it, as a thread that comes back to an interpreter that
//! is gone would take the process with it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use rendez::mail::forks;

use super::core::Core;
use crate::errands;

/// Calls that are carried out with the interpreter's lock.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// No more of them begin.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// The agents of this process.
static AGENTS: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

/// How often signals are looked at.
const SLICE: Duration = Duration::from_millis(10);

/// A call that is carried out.
pub(crate) struct Active;

/// A call is about to be carried out; `None` if the interpreter is about to end.
pub(crate) fn enter() -> Option<Active> {
    ACTIVE.fetch_add(1, Ordering::SeqCst);
    let active = Active;
    (!IS_ENDING.load(Ordering::SeqCst)).then_some(active)
}

/// Whether the interpreter is about to end.
pub(super) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::SeqCst)
}

impl Drop for Active {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An agent is there.
pub(crate) fn add(core: &Arc<Core>) {
    let mut agents = AGENTS.lock().unwrap_or_else(PoisonError::into_inner);
    agents.retain(|core| core.strong_count() > 0);
    agents.push(Arc::downgrade(core));
}

/// Ends all agents, and waits until nothing that was called runs any more.
#[pyfunction]
#[pyo3(name = "_end_calls")]
pub(crate) fn end_calls(py: Python<'_>) -> PyResult<()> {
    IS_ENDING.store(true, Ordering::SeqCst);
    if forks::is_child() {
        return Ok(());
    }
    let agents = std::mem::take(&mut *AGENTS.lock().unwrap_or_else(PoisonError::into_inner));
    for core in agents.iter().filter_map(Weak::upgrade) {
        if let Some(agent) = core.take() {
            py.detach(|| agent.shutdown_local());
        }
    }
    while ACTIVE.load(Ordering::SeqCst) > 0 {
        py.detach(|| std::thread::sleep(SLICE));
        errands::run(py);
        py.check_signals()?;
    }
    Ok(())
}
