//! Events: what this shard's tasks are still to be told, in order.
//!
//! It does not know what an event says. Most turns bring one: that lies apart, and is written once, where it stays
//! until its task is called (`delivery.rs`). Only those behind it are moved into a queue and out of it.

use std::collections::VecDeque;

use super::TaskEvent;
use super::ids::{Id, TaskId};
use crate::rendezvous::Origin;

/// Whose an event is, and where what it brings comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventHead {
    pub(crate) task: TaskId,
    /// The trace of what it brings.
    pub(crate) trace: u16,
    /// The shard in whose table a value that it brings lay, and where.
    pub(crate) shard: u16,
    pub(crate) from: Origin,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Events {
    first: Option<TaskEvent>,
    /// Whose the first is.
    head: EventHead,
    /// Those behind the first, or all that are left when that is taken.
    rest: VecDeque<(EventHead, Option<TaskEvent>)>,
}

impl Events {
    /// None, with room for so many.
    pub(super) fn new(room: usize) -> Self {
        Self {
            first: None,
            head: EventHead {
                task: TaskId::of_row(0),
                trace: 0,
                shard: 0,
                from: Origin::NOWHERE,
            },
            rest: VecDeque::with_capacity(room),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[inline]
    pub(super) fn push(&mut self, head: EventHead, event: TaskEvent) {
        // There is none to drop.
        std::mem::forget(self.place(head).replace(event));
    }

    /// Where the next event is to be put, which is that head's; it is empty.
    #[inline(always)]
    pub(super) fn place(&mut self, head: EventHead) -> &mut Option<TaskEvent> {
        if self.is_empty() {
            self.head = head;
            &mut self.first
        } else {
            self.queued(head)
        }
    }

    #[inline(never)]
    fn queued(&mut self, head: EventHead) -> &mut Option<TaskEvent> {
        self.rest.push_back((head, None));
        let last = self.rest.len() - 1;
        &mut self.rest[last].1
    }

    /// Whose the next is.
    #[inline(always)]
    pub(super) fn front(&self) -> Option<EventHead> {
        match self.first {
            Some(_) => Some(self.head),
            None => self.rest.front().map(|(head, _)| *head),
        }
    }

    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<TaskEvent> {
        if self.first.is_some() {
            return self.first.take();
        }
        self.rest.pop_front()?.1
    }
}
