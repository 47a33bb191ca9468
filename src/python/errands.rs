//! Errands: what needs the interpreter's lock and comes up on a thread that must not wait for it, as a shard's.
//!
//! They are left in a queue, and run by the main thread between two instructions of Python's, or before by whichever
//! thread calls rendez next. At the interpreter's exit what is left stays undone: its memory goes with the process.
//!
//! So they only drop what Python lent. A thread that holds a lock of the program's may run them, and the main thread
//! may wait and run none: what the program gave to be called, and lines for `logging`, are [`tell`]ed instead, to a
//! thread of the package's that does nothing else.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam::queue::SegQueue;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rendez::ground::Locked;
use rendez::mail::forks;

use super::ending::Away;
use super::wakes::{Queue, Wakes};

type Errand = Box<dyn FnOnce(Python<'_>) + Send>;

/// What is to be called, and with what.
pub(crate) type Call = (Py<PyAny>, Py<PyTuple>);
type Told = Box<dyn FnOnce(Python<'_>) -> PyResult<Call> + Send>;

static QUEUE: SegQueue<Errand> = SegQueue::new();
static TOLD: SegQueue<Told> = SegQueue::new();
/// What the thread that calls waits on. One that begins in a child of `fork` has its own.
static LISTENER: Mutex<Option<Arc<Queue>>> = Mutex::new(None);
/// The main thread has been asked to run them, and has not begun to.
static IS_CALLED: AtomicBool = AtomicBool::new(false);
/// The interpreter is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Leaves an errand, from any thread, with the interpreter's lock or without. It must not fail, and not wait.
pub(crate) fn leave(errand: impl FnOnce(Python<'_>) + Send + 'static) {
    if forks::is_child() {
        // What it holds is a copy of the parent's, and goes with this process.
        std::mem::forget(errand);
        return;
    }
    QUEUE.push(Box::new(errand));
    if IS_ENDING.load(Ordering::Acquire) || IS_CALLED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: may be called by any thread at any time. After the exit nothing is called here: `end` was before it.
    let is_up = unsafe { pyo3::ffi::Py_IsInitialized() } != 0;
    // SAFETY: it may be called by any thread, with the lock or without; `run_pending` takes no argument.
    let is_taken = is_up
        && unsafe { pyo3::ffi::Py_AddPendingCall(Some(run_pending), std::ptr::null_mut()) } == 0;
    if !is_taken {
        // The interpreter's own queue is full: the next call of ours runs them.
        IS_CALLED.store(false, Ordering::Release);
    }
}

extern "C" fn run_pending(_: *mut c_void) -> c_int {
    // Only here, and before the queue is looked at: a thread that leaves an errand later asks again. It is an exchange,
    // and no store, to come after the exchange of each thread that did not ask: what that thread left is seen below.
    IS_CALLED.swap(false, Ordering::AcqRel);
    // It is called with the lock; an interpreter that is ending does not let it be taken again.
    Python::try_attach(run);
    0
}

/// Runs what there is. In a child of `fork` nothing: what is queued there is its parent's, in whatever state the queue
/// was.
pub(crate) fn run(py: Python<'_>) {
    if QUEUE.is_empty() || forks::is_child() {
        return;
    }
    let Some(_away) = Away::begin() else { return };
    // Not more than there are now: an errand may leave another.
    for _ in 0..QUEUE.len() {
        let Some(errand) = QUEUE.pop() else { return };
        errand(py);
    }
}

/// No more of them are run.
pub(crate) fn end(py: Python<'_>) {
    run(py);
    IS_ENDING.store(true, Ordering::Release);
}

/// Has the package's thread call what `told` says, from any thread. It must not fail, and not wait.
pub(crate) fn tell(told: impl FnOnce(Python<'_>) -> PyResult<Call> + Send + 'static) {
    if forks::is_child() {
        std::mem::forget(told);
        return;
    }
    TOLD.push(Box::new(told));
    if let Some(queue) = &*LISTENER.locked() {
        queue.ring(0);
    }
}

/// The call of a hook, which takes nothing.
pub(crate) fn call_of(py: Python<'_>, hook: &Py<PyAny>) -> PyResult<Call> {
    Ok((hook.clone_ref(py), PyTuple::empty(py).unbind()))
}

/// From now on `wakes` hears of each that is told; what was told before, too.
#[pyfunction]
#[pyo3(name = "_listen")]
pub(crate) fn listen(wakes: &Wakes) {
    let mut listener = LISTENER.locked();
    *listener = Some(Arc::clone(&wakes.queue));
    wakes.queue.ring(0);
}

/// What is to be called next, and with what; None if nothing is.
#[pyfunction]
#[pyo3(name = "_next_told")]
pub(crate) fn next_told(py: Python<'_>) -> PyResult<Option<Call>> {
    if forks::is_child() {
        return Ok(None);
    }
    let Some(_away) = Away::begin() else {
        return Ok(None);
    };
    TOLD.pop().map(|told| told(py)).transpose()
}

/// Runs what was left to be done with the interpreter's lock: memory that is no longer read goes back.
#[pyfunction]
#[pyo3(name = "_run_errands")]
pub(crate) fn run_errands(py: Python<'_>) {
    run(py);
}
