//! Events: what this shard's tasks are still to be told, in order.
//!
//! It does not know what an event says. Most turns bring one: that lies apart, and is written once, where it stays
//! until its task is called (`delivery.rs`). Those behind it stand in a queue, where they are written once too.

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
    /// The first, if there is one; else an event that says nothing and holds nothing.
    first: TaskEvent,
    has_first: bool,
    /// Whose the first is.
    head: EventHead,
    /// Those behind the first, or all that are left when that is taken.
    rest: VecDeque<(EventHead, TaskEvent)>,
}

impl Events {
    /// None, with room for so many.
    pub(super) fn new(room: usize) -> Self {
        Self {
            first: TaskEvent::Again,
            has_first: false,
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
        !self.has_first && self.rest.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.has_first) + self.rest.len()
    }

    #[inline]
    pub(super) fn push(&mut self, head: EventHead, event: TaskEvent) {
        // There is none to drop.
        std::mem::forget(std::mem::replace(self.place(head), event));
    }

    /// Where the next event is to be put, which is that head's. What stands there says nothing, and needs no drop.
    #[inline(always)]
    pub(super) fn place(&mut self, head: EventHead) -> &mut TaskEvent {
        if self.is_empty() {
            self.has_first = true;
            self.head = head;
            &mut self.first
        } else {
            self.queued(head)
        }
    }

    #[inline(never)]
    fn queued(&mut self, head: EventHead) -> &mut TaskEvent {
        self.rest.push_back((head, TaskEvent::Again));
        let last = self.rest.len() - 1;
        &mut self.rest[last].1
    }

    /// Whose the next is.
    #[inline(always)]
    pub(super) fn front(&self) -> Option<EventHead> {
        if self.has_first {
            return Some(self.head);
        }
        self.rest.front().map(|(head, _)| *head)
    }

    /// Whether [`Events::front`] is of the one that lies apart.
    #[inline(always)]
    pub(super) const fn has_first(&self) -> bool {
        self.has_first
    }

    /// Takes the event that lies apart.
    #[inline(always)]
    pub(super) fn pop_first(&mut self) -> TaskEvent {
        self.has_first = false;
        std::mem::replace(&mut self.first, TaskEvent::Again)
    }

    /// Takes the event whose head [`Events::front`] gave.
    #[inline]
    pub(super) fn pop(&mut self) -> TaskEvent {
        if self.has_first {
            return self.pop_first();
        }
        let next = self.rest.pop_front();
        next.map_or(TaskEvent::Again, |(_, event)| event)
    }
}
