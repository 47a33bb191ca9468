//! Inbox: how other threads reach the executor's task of one shard.
//!
//! It knows what is ordered and not how it is carried out. An order that will not be carried out any more is dropped,
//! and what it holds says so to its waiter.

use std::sync::{Arc, OnceLock};

use super::plan::Plan;
use super::run::Outcome;
use crate::kernel::Value;
use rendez::ground::{Status, StepId, faults};
use rendez::shard::TaskWaker;
use rendez::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering, SegQueue};

/// Something for a shard's task to do.
pub(super) enum Order {
    /// Begin a run.
    Begin {
        plan: Arc<Plan>,
        step: StepId,
        args: Vec<Value>,
        state: Arc<RunState>,
        done: Done,
    },
    /// End a run.
    Cancel {
        state: Arc<RunState>,
        status: Status,
    },
    /// A kernel was called elsewhere for a run.
    Computed {
        run: u32,
        ticket: u32,
        outcome: Result<Vec<Value>, Status>,
    },
    /// A plan is gone.
    Forget { plan: u64 },
    /// No further orders will come.
    Close,
}

/// Orders for one shard.
#[derive(Debug)]
pub(super) struct Inbox {
    orders: SegQueue<Order>,
    is_closed: AtomicBool,
    waker: OnceLock<TaskWaker>,
}

/// What the handle of a run and the shard that runs it have in common.
#[derive(Debug)]
pub(super) struct RunState {
    /// Its number in the shard; only the shard asks.
    pub(super) run: AtomicU32,
    /// It has failed: what is still to be computed for it need not be.
    pub(super) is_over: AtomicBool,
}

/// The callback for a run's outcome, called once. Dropped uncalled, it says that the task stops.
pub(super) struct Done {
    tell: Option<Box<dyn FnOnce(Outcome) + Send>>,
    running: Arc<AtomicUsize>,
}

impl Inbox {
    pub(super) const fn new() -> Self {
        Self {
            orders: SegQueue::new(),
            is_closed: AtomicBool::new(false),
            waker: OnceLock::new(),
        }
    }

    /// The task to wake; set once, before anything is ordered.
    pub(super) fn wakes(&self, waker: TaskWaker) {
        // A second waker is never set: there is one task for each inbox.
        let _ = self.waker.set(waker);
    }

    pub(super) fn push(&self, order: Order) {
        self.orders.push(order);
        // Sequentially consistent with the store in `close`: of a push and a close at the same time, one sees the
        // other.
        if self.is_closed.load(Ordering::SeqCst) {
            return self.close();
        }
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    pub(super) fn next(&self) -> Option<Order> {
        self.orders.pop()
    }

    /// No order is carried out any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        while self.orders.pop().is_some() {}
    }
}

impl RunState {
    /// It has not begun.
    pub(super) const NEW: u32 = u32::MAX;

    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            run: AtomicU32::new(Self::NEW),
            is_over: AtomicBool::new(false),
        })
    }
}

impl Done {
    /// Counts a run among those under way.
    pub(super) fn new(
        tell: impl FnOnce(Outcome) + Send + 'static,
        running: &Arc<AtomicUsize>,
    ) -> Self {
        running.fetch_add(1, Ordering::AcqRel);
        Self {
            tell: Some(Box::new(tell)),
            running: Arc::clone(running),
        }
    }

    /// Tells the outcome; the run is under way no more.
    pub(super) fn tell(mut self, outcome: Outcome) {
        self.tell_once(outcome);
    }

    fn tell_once(&mut self, outcome: Outcome) {
        if let Some(tell) = self.tell.take() {
            self.running.fetch_sub(1, Ordering::AcqRel);
            tell(outcome);
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        self.tell_once(Err(faults::shutdown()));
    }
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Begin { .. } => "Begin",
            Self::Cancel { .. } => "Cancel",
            Self::Computed { .. } => "Computed",
            Self::Forget { .. } => "Forget",
            Self::Close => "Close",
        })
    }
}
