//! Wakers of in-shard tasks: how any thread has a task called that waits for an event of its own.
//!
//! It knows no events and no queues: what a task is woken for lies where its owner has put it, before the wake. Wakes
//! before the task is called count as one.

use std::sync::Arc;

use crate::mail::seat::Seat;
use crate::shard::{Call, Mailbox};

/// Wakes one in-shard task from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TaskWaker {
    mailbox: Arc<Mailbox>,
    seat: Arc<Seat>,
}

impl TaskWaker {
    /// A waker of a task that has no seat yet.
    pub fn new(mailbox: Arc<Mailbox>) -> Self {
        Self {
            mailbox,
            seat: Arc::default(),
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
        if self.seat.ring() {
            self.call();
        }
    }

    /// Tells the shard that the seat was rung.
    pub(crate) fn call(&self) {
        let seat = Arc::clone(&self.seat);
        self.mailbox.call(Call::Wake { seat });
    }
}
