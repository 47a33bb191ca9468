//! What an event loop of Python's waits on: one eventfd for all that is awaited in it, and which of it can go on.
//!
//! A shard that has an outcome pushes a number and writes to the eventfd, unless that was written to already; the loop
//! wakes once and takes all the numbers there are.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use crossbeam::queue::SegQueue;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::ending;
use super::linger::Linger;
use super::{arguments, errands};
use rendez::ground::Locked;

/// The numbers of what can go on, and the eventfd that says that there are some.
#[derive(Debug)]
pub(crate) struct Queue {
    fd: OwnedFd,
    ready: SegQueue<u64>,
    is_rung: AtomicBool,
}

impl Queue {
    /// Something can go on: from any thread.
    pub(crate) fn ring(&self, token: u64) {
        self.ready.push(token);
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            // It fails only where the count is full, and then the loop wakes anyway.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    fn drain(&self) -> Vec<u64> {
        let mut count = [0; 8];
        // There may be nothing in it.
        let _ = rustix::io::read(&self.fd, &mut count);
        self.is_rung.swap(false, Ordering::AcqRel);
        std::iter::from_fn(|| self.ready.pop()).collect()
    }
}

/// All that wait for one operation, as the engine wakes them: queues, and the numbers that they know it by.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    listeners: Mutex<Vec<(Arc<Queue>, u64)>>,
}

impl Bell {
    /// A queue wants to hear.
    pub(crate) fn hang(&self, queue: &Arc<Queue>, number: u64) {
        let mut listeners = self.listeners.locked();
        let is_known =
            |(known, its): &(Arc<Queue>, u64)| *its == number && Arc::ptr_eq(known, queue);
        if !listeners.iter().any(is_known) {
            listeners.push((Arc::clone(queue), number));
        }
    }

    /// Something happened: all of them look.
    pub(crate) fn ring(&self) {
        for (queue, number) in &*self.listeners.locked() {
            queue.ring(*number);
        }
    }

    /// It is over: all of them look, for the last time.
    pub(crate) fn ring_and_forget(&self) {
        for (queue, number) in std::mem::take(&mut *self.listeners.locked()) {
            queue.ring(number);
        }
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// What one event loop, or one thread, waits on.
#[pyclass(frozen, module = "rendez._rendez")]
#[derive(Debug)]
pub(crate) struct Wakes {
    pub(crate) queue: Arc<Queue>,
    pub(crate) linger: Linger,
}

#[pymethods]
impl Wakes {
    #[new]
    fn new() -> PyResult<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let fd = eventfd(0, flags)
            .map_err(|errno| PyOSError::new_err((errno.raw_os_error(), errno.to_string())))?;
        let queue = Arc::new(Queue {
            fd,
            ready: SegQueue::new(),
            is_rung: AtomicBool::new(false),
        });
        Ok(Self {
            queue,
            linger: Linger::default(),
        })
    }

    fn fileno(&self) -> i32 {
        self.queue.fd.as_raw_fd()
    }

    fn drain(&self, py: Python<'_>) -> Vec<u64> {
        errands::run(py);
        self.queue.drain()
    }

    fn ring(&self, token: u64) {
        self.queue.ring(token);
    }

    /// For how many nanoseconds the next await may linger.
    fn _patience(&self) -> u64 {
        self.linger.patience()
    }

    /// Sleeps until there is something to drain, without the interpreter's lock.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = arguments::patience(timeout, "timeout")?;
        let patience = patience.map(|time: Duration| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        ending::detach(py, || {
            let mut fds = [PollFd::from_borrowed_fd(
                self.queue.fd.as_fd(),
                PollFlags::IN,
            )];
            // An interrupted wait is a short one.
            let _ = poll(&mut fds, patience.as_ref());
        });
        Ok(())
    }
}
