//! Wakers of in-shard tasks: how any thread gets a task called that waits for something of its own.
//!
//! It knows no events and no queues: what a task is woken for lies where its owner has put it, before the wake. Wakes
//! that come before the task was called for the first of them are one.

use std::sync::Arc;

use crate::shard::call::Call;
use crate::shard::mailbox::Mailbox;
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// Wakes one in-shard task from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TaskWaker {
    mailbox: Arc<Mailbox>,
    seat: Arc<Seat>,
}

/// Where a task sits in its shard, and whether it was woken.
#[derive(Debug)]
pub(crate) struct Seat {
    task: AtomicU32,
    is_rung: AtomicBool,
}

/// Not seated yet.
const NOWHERE: u32 = u32::MAX;

impl TaskWaker {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        let seat = Seat {
            task: AtomicU32::new(NOWHERE),
            is_rung: AtomicBool::new(false),
        };
        Self {
            mailbox,
            seat: Arc::new(seat),
        }
    }

    pub(crate) const fn seat(&self) -> &Arc<Seat> {
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
    /// The task sits here, for as long as it runs. The shard's own thread alone asks for it.
    pub(crate) fn sit(&self, task: u32) {
        self.task.store(task, Ordering::Relaxed);
    }

    /// Whom to call. Wakes from here on want another call.
    pub(crate) fn answer(&self) -> u32 {
        self.is_rung.swap(false, Ordering::AcqRel);
        self.task.load(Ordering::Relaxed)
    }
}
