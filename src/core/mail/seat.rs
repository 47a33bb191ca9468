//! Seats: how threads outside a shard see one of its tasks: whether it was woken, and how it ended.
//!
//! Knows a task by its number in the shard, and nothing of what it does.

use std::sync::{Arc, OnceLock};

use super::wait::WaitCell;
use crate::ground::Status;
use crate::sync::{AtomicBool, AtomicU32, Ordering, SegQueue};

/// Where a task sits in its shard, and whether it was woken.
#[derive(Debug)]
pub struct Seat {
    task: AtomicU32,
    is_rung: AtomicBool,
    /// Any thread that turns the shard may run it.
    roams: AtomicBool,
    /// How the task ended.
    end: OnceLock<Result<(), Status>>,
    /// The waiters for that.
    waiting: SegQueue<Arc<WaitCell<()>>>,
}

/// Not seated yet, or no more.
const NOWHERE: u32 = u32::MAX;

impl Default for Seat {
    fn default() -> Self {
        Self {
            task: AtomicU32::new(NOWHERE),
            is_rung: AtomicBool::new(false),
            roams: AtomicBool::new(false),
            end: OnceLock::new(),
            waiting: SegQueue::new(),
        }
    }
}

impl Seat {
    /// Asks that the task be called. True if the shard must be told: this is the first ring since the task was last
    /// called for one.
    pub(crate) fn ring(&self) -> bool {
        // Pairs with the swap in `answer`: it reads what this one wrote, so it sees all that came before.
        !self.is_rung.swap(true, Ordering::AcqRel)
    }

    /// How the task ended, if it has.
    pub fn end(&self) -> Option<Result<(), Status>> {
        self.end.get().cloned()
    }

    /// The task has ended. The first end stays.
    pub(crate) fn ends(&self, end: Result<(), Status>) {
        let _ = self.end.set(end);
        self.tell();
    }

    /// Where its end will be told.
    pub fn watch(&self) -> Arc<WaitCell<()>> {
        // Waiters that have gone since leave their place.
        for _ in 0..self.waiting.len() {
            if let Some(cell) = self.waiting.pop()
                && Arc::strong_count(&cell) > 1
            {
                self.waiting.push(cell);
            }
        }
        let cell = Arc::new(WaitCell::default());
        self.waiting.push(Arc::clone(&cell));
        // It may have ended between: of an end and a watch at the same time, one sees the other.
        self.tell();
        cell
    }

    fn tell(&self) {
        let Some(end) = self.end.get() else { return };
        while let Some(cell) = self.waiting.pop() {
            cell.complete(end.clone());
        }
    }

    /// The task sits here, for as long as it runs. The thread that turns the shard alone asks for it.
    pub(crate) fn sit(&self, task: u32, roams: bool) {
        self.task.store(task, Ordering::Relaxed);
        self.roams.store(roams, Ordering::Relaxed);
    }

    /// The task has ended, and its place in the shard may be another's: a wake from here on calls none.
    pub(crate) fn leave(&self) {
        self.task.store(NOWHERE, Ordering::Relaxed);
    }

    /// True if a task sits here that any thread may run. For the thread that turns the shard.
    pub(crate) fn roams(&self) -> bool {
        self.roams.load(Ordering::Relaxed)
    }

    /// The task to call. Wakes from here on want another call.
    pub(crate) fn answer(&self) -> u32 {
        self.is_rung.swap(false, Ordering::AcqRel);
        self.task.load(Ordering::Relaxed)
    }
}
