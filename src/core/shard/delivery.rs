//! Delivery: tasks are called with what they are to be told.
//!
//! Knows tasks and their events; not what an event says, nor what a task does with it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::core::Core;
use super::ids::TaskId;
use super::{EVENTS_PER_TURN, Shard, TaskContext, TaskEvent};

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
        self.call_with(task, |_| event);
    }

    /// Calls a task with an event that is moved once, from where `take` finds it to the task.
    #[inline(always)]
    pub(super) fn call_with(&mut self, task: TaskId, take: impl FnOnce(&mut Core) -> TaskEvent) {
        let Some(mut body) = self.tasks.at_mut(task).and_then(Option::take) else {
            drop(take(&mut self.core));
            return;
        };
        self.let_go = self.core.leases.latest();
        // A task that panics has left nothing of the shard half done: what it calls of it does not panic.
        let called = catch_unwind(AssertUnwindSafe(|| {
            let event = take(&mut self.core);
            body.handle(event, &mut TaskContext { shard: self, task });
        }));
        match called {
            Ok(()) if self.finished.is_empty() => self.tasks[task] = Some(body),
            Ok(()) => self.end_task(task, body),
            Err(panic) => self.task_panicked(task, body, panic),
        }
    }
}
