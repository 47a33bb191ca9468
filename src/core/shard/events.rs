//! Events: what this shard's tasks are still to be told, in order, and how they are told.
//!
//! It does not know what an event says. Most turns bring one: that lies apart, and is written once, where it stays
//! until its task is called. Only those behind it are moved into a queue and out of it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::core::{Core, EventHead};
use super::ids::{Id, TaskId};
use super::{EVENTS_PER_TURN, Shard, TaskContext, TaskEvent};
use crate::rendezvous::Origin;

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

impl Shard {
    pub(super) fn deliver(&mut self) -> usize {
        let mut done = 0;
        if !self.again.is_empty() {
            // Two lists that change places, so that neither is made anew in each turn.
            std::mem::swap(&mut self.again, &mut self.called);
            for at in 0..self.called.len() {
                self.call_task(self.called[at], TaskEvent::Again);
                done += 1;
            }
            self.called.clear();
        }
        while done < EVENTS_PER_TURN {
            let Some(head) = self.core.events.front() else {
                break;
            };
            self.tell_next(head.task, head.trace);
            done += 1;
        }
        done
    }

    #[inline]
    pub(super) fn call_task(&mut self, task: TaskId, event: TaskEvent) {
        self.call_with(task, |_| Some(event));
    }

    /// Calls a task with an event that is moved once, from where `take` finds it to the task.
    #[inline(always)]
    pub(super) fn call_with(
        &mut self,
        task: TaskId,
        take: impl FnOnce(&mut Core) -> Option<TaskEvent>,
    ) {
        let Some(mut body) = self.tasks.at_mut(task).and_then(Option::take) else {
            drop(take(&mut self.core));
            return;
        };
        self.let_go = self.core.leases.latest();
        // A task that panics has left nothing of the shard half done: what it calls of it does not panic.
        let called = catch_unwind(AssertUnwindSafe(|| {
            if let Some(event) = take(&mut self.core) {
                body.handle(event, &mut TaskContext { shard: self, task });
            }
        }));
        match called {
            Ok(()) if self.finished.is_empty() => self.tasks[task] = Some(body),
            Ok(()) => self.end_task(task, body),
            Err(panic) => self.task_panicked(task, body, panic),
        }
    }
}
