//! The pool: threads that carry functions out.
//!
//! A thread of it that waits for a call of its own does not count as long as it waits: another takes its place, up to a
//! bound. So calls that call on, as deep as that bound, do not use all threads up (PyTorch issue 26362).

use rendez::ground::{Locked, Unpoisoned};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// Threads beyond the pool's size that may be there while others of it wait.
const EXTRA_THREADS: usize = 256;
/// How long a thread beyond the pool's size stays without work.
const LINGER: Duration = Duration::from_millis(500);

/// Threads and what they have to do.
pub(crate) struct Pool {
    name: String,
    size: usize,
    state: Mutex<State>,
    work: Condvar,
    /// The system gives no thread.
    #[cfg(test)]
    pub(super) is_starved: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    waiting: usize,
    is_closed: bool,
}

std::thread_local! {
    /// The pool that this thread is of.
    static OWN: RefCell<Weak<Pool>> = const { RefCell::new(Weak::new()) };
}

/// Figures of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PoolFigures {
    pub(crate) size: usize,
    pub(crate) threads: usize,
    pub(crate) idle: usize,
    /// Their functions wait for calls of their own.
    pub(crate) waiting: usize,
    pub(crate) queued: usize,
}

impl PoolFigures {
    /// Threads that carry a function out.
    pub(crate) const fn busy(&self) -> usize {
        self.threads.saturating_sub(self.idle + self.waiting)
    }
}

impl Pool {
    pub(crate) fn new(name: &str, size: usize) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            size: size.max(1),
            state: Mutex::default(),
            work: Condvar::new(),
            #[cfg(test)]
            is_starved: false.into(),
        })
    }

    /// Does `job` on a thread of the pool. Dropped if the pool is closed.
    pub(crate) fn push(self: &Arc<Self>, job: Job) {
        let mut state = self.state.locked();
        if state.is_closed {
            return;
        }
        state.jobs.push_back(job);
        self.staff(state);
    }

    /// As [`Pool::push`]; false if there is no thread, and the system gives none: then `job` is dropped.
    pub(crate) fn offer(self: &Arc<Self>, job: Job) -> bool {
        let state = self.state.locked();
        if state.threads > 0 || state.is_closed {
            drop(state);
            self.push(job);
            return true;
        }
        self.start(state, Some(job))
    }

    /// Wakes a thread, or starts one, if there is work for it.
    fn staff(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        if state.idle >= state.jobs.len() {
            drop(state);
            self.work.notify_one();
            return;
        }
        let most = self.size + state.waiting.min(EXTRA_THREADS);
        if state.threads >= most {
            drop(state);
            self.work.notify_one();
            return;
        }
        // If it fails, the others do the work.
        self.start(state, None);
        self.work.notify_one();
    }

    /// Starts a thread, which does `first` before all else. False if the system gives none: then that is dropped.
    fn start(self: &Arc<Self>, mut state: MutexGuard<'_, State>, first: Option<Job>) -> bool {
        let pool = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("rpc-{}", self.name));
        #[cfg(test)]
        let thread = match self.is_starved.load(std::sync::atomic::Ordering::Relaxed) {
            true => thread.stack_size(1 << 60),
            false => thread,
        };
        // Under the lock, which the thread waits for: a thread that is counted is there, and does what is left to it.
        let started = thread.spawn(move || pool.run(first));
        state.threads += usize::from(started.is_ok());
        drop(state);
        if let Err(error) = &started {
            tracing::warn!(%error, "cannot start a thread for remote calls");
        }
        started.is_ok()
    }

    fn run(self: Arc<Self>, mut first: Option<Job>) {
        OWN.with(|own| *own.borrow_mut() = Arc::downgrade(&self));
        let mut state = self.state.locked();
        loop {
            if let Some(job) = first.take().or_else(|| state.jobs.pop_front()) {
                drop(state);
                // Jobs catch the panics of functions themselves; those of observers end here.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                    tracing::error!(
                        "an observer of remote calls panicked: its call gets no answer"
                    );
                }
                state = self.state.locked();
                continue;
            }
            if state.is_closed || state.threads - state.waiting.min(state.threads) > self.size {
                break;
            }
            state.idle += 1;
            let waited = self.work.wait_timeout(state, LINGER);
            state = waited.unpoisoned().0;
            state.idle -= 1;
        }
        state.threads -= 1;
    }

    /// Does `wait`, which blocks; if this thread is of a pool, another takes its place meanwhile.
    pub(crate) fn blocking<R>(wait: impl FnOnce() -> R) -> R {
        let Some(pool) = OWN.with(|own| own.borrow().upgrade()) else {
            return wait();
        };
        let mut state = pool.state.locked();
        state.waiting += 1;
        match state.jobs.is_empty() {
            true => drop(state),
            false => pool.staff(state),
        }
        let result = wait();
        pool.state.locked().waiting -= 1;
        result
    }

    pub(crate) fn figures(&self) -> PoolFigures {
        let state = self.state.locked();
        PoolFigures {
            size: self.size,
            threads: state.threads,
            idle: state.idle,
            waiting: state.waiting,
            queued: state.jobs.len(),
        }
    }

    /// Nothing more is done: what has begun ends, what has not is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.state.locked();
        state.is_closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        // What they hold is not ours: its drop may panic.
        for job in jobs {
            super::panics::contained("a call that is not begun", || drop(job));
        }
        self.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("it is not dropped in silence");
        }
    }

    #[test]
    fn a_job_that_panics_when_it_is_dropped_costs_nothing_else() {
        let pool = Pool::new("closing", 1);
        let bomb = Bomb;
        pool.state
            .locked()
            .jobs
            .push_back(Box::new(move || drop(bomb)));
        pool.close();
        assert!(pool.state.locked().jobs.is_empty());
    }
}
