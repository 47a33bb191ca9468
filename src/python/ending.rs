//! The interpreter's end, as other threads of Python's meet it: daemons, which nothing stops before.
//!
//! A thread that asks for the interpreter's lock when the interpreter is going down is ended in that very place, and an
//! end that runs through frames of Rust takes the process with it. So none of them may wait for the lock within a call
//! of ours then. The exit waits until all have come back that wait for something without the lock; from there on a
//! call that would wait fails, and one that gives the lock away nevertheless never comes back.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rendez::mail::forks;

/// So long the exit waits for threads that wait, whose engines have ended.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it looks.
const SLICE: Duration = Duration::from_micros(200);

/// How many threads are without the lock within a call, or do what may take it from them.
static AWAY: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the interpreter, once it does.
static ENDS: OnceLock<ThreadId> = OnceLock::new();
/// The exit waits no more.
static IS_GONE: AtomicBool = AtomicBool::new(false);

/// Whether the interpreter is about to end, and this is not the thread that ends it.
pub(crate) fn is_over() -> bool {
    ENDS.get()
        .is_some_and(|ends| *ends != std::thread::current().id())
}

/// Whether the interpreter is about to end, on any thread.
pub(crate) fn has_begun() -> bool {
    ENDS.get().is_some()
}

/// A thread that the exit waits for.
pub(crate) struct Away;

impl Away {
    /// `None` if the exit does not wait for it any more.
    pub(crate) fn begin() -> Option<Self> {
        AWAY.fetch_add(1, Ordering::SeqCst);
        // Either it sees that the end has begun, or the end sees it.
        fence(Ordering::SeqCst);
        let away = Self;
        (!is_over()).then_some(away)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        AWAY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Does what waits without the interpreter's lock.
pub(crate) fn detach<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> R {
    let away = Away::begin();
    let is_late = away.is_none();
    py.detach(|| {
        let done = work();
        if is_late || IS_GONE.load(Ordering::SeqCst) && is_over() {
            stay();
        }
        done
    })
}

/// As [`detach`], of what takes a while and waits for no other thread of Python's: at the end it keeps the lock.
pub(crate) fn detach_briefly<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> R {
    match is_over() {
        true => work(),
        false => detach(py, work),
    }
}

/// This thread goes with the process.
fn stay() -> ! {
    loop {
        std::thread::park();
    }
}

/// From now on no other thread waits for the lock within a call. It is the last that the package does.
#[pyfunction]
#[pyo3(name = "_end_threads")]
pub(crate) fn end_threads(py: Python<'_>) {
    let _ = ENDS.set(std::thread::current().id());
    fence(Ordering::SeqCst);
    // In a child of `fork` the threads that are counted are not there.
    if !forks::is_child() {
        py.detach(|| {
            let until = Instant::now() + PATIENCE;
            while AWAY.load(Ordering::SeqCst) > 0 && Instant::now() < until {
                std::thread::sleep(SLICE);
            }
        });
    }
    IS_GONE.store(true, Ordering::SeqCst);
}
