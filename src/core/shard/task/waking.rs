//! Wakers of in-shard tasks: how any thread gets a task called that waits for something of its own.
//!
//! It knows no events and no queues: what a task is woken for lies where its owner has put it, before the wake. Wakes
//! that come before the task was called for the first of them are one.

use std::sync::{Arc, OnceLock};

use crate::ground::Status;
use crate::shard::call::Call;
use crate::shard::ids::TaskId;
use crate::shard::mailbox::Mailbox;
use crate::shard::wait::WaitCell;
use crate::sync::{AtomicBool, AtomicU32, Ordering, SegQueue};

/// Wakes one in-shard task from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TaskWaker {
    mailbox: Arc<Mailbox>,
    seat: Arc<Seat>,
}

/// Where a task sits in its shard, and whether it was woken.
#[derive(Debug)]
pub struct Seat {
    task: AtomicU32,
    is_rung: AtomicBool,
    /// How the task ended.
    end: OnceLock<Result<(), Status>>,
    /// Who waits for that.
    waiting: SegQueue<Arc<WaitCell<()>>>,
}

/// Not seated yet.
const NOWHERE: u32 = u32::MAX;

impl TaskWaker {
    /// A waker of a task that has no seat yet.
    pub fn new(mailbox: Arc<Mailbox>) -> Self {
        let seat = Seat {
            task: AtomicU32::new(NOWHERE),
            is_rung: AtomicBool::new(false),
            end: OnceLock::new(),
            waiting: SegQueue::new(),
        };
        Self {
            mailbox,
            seat: Arc::new(seat),
        }
    }

    /// True if that is its shard's mailbox.
    pub fn is_of(&self, mailbox: &Arc<Mailbox>) -> bool {
        Arc::ptr_eq(&self.mailbox, mailbox)
    }

    /// The seat that it wakes.
    pub const fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// The task hears [`Woken`](super::TaskEvent::Woken), once for all wakes before it, and sees all that was written
    /// before any of them. Nothing happens once the task or its shard has ended.
    pub fn wake(&self) {
        // Pairs with the swap in `answer`: it reads what this one wrote, so it sees all that came before.
        if !self.seat.is_rung.swap(true, Ordering::AcqRel) {
            let seat = Arc::clone(&self.seat);
            self.mailbox.call(Call::Wake { seat });
        }
    }
}

impl Seat {
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
        // Those who have gone since leave their place.
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

    /// The task sits here, for as long as it runs. The shard's own thread alone asks for it.
    pub(crate) fn sit(&self, task: TaskId) {
        self.task.store(task.number(), Ordering::Relaxed);
    }

    /// Whom to call. Wakes from here on want another call.
    pub(crate) fn answer(&self) -> TaskId {
        self.is_rung.swap(false, Ordering::AcqRel);
        TaskId::from_number(self.task.load(Ordering::Relaxed))
    }
}
