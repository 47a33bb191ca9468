//! Panics: of a task, which ends that task and nothing else, and of the shard, which ends its engine.
//!
//! Nothing here can tell what was half done when a shard panicked: so it is no longer used, except to tell its waiters.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::ids::TaskId;
use super::owed::fail_dropped;
use super::{Shard, Task, TaskEvent};
use crate::ground::{Nanos, Status, faults};

/// What a panic carries.
pub(crate) type Panic = Box<dyn Any + Send>;

/// How long what is owed to peers may take to leave when another shard has panicked.
const LAST_WORDS: u64 = 50_000_000;

/// Does what may panic, and says what the panic said.
pub(super) fn quietly(what: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(what)).map_err(words)
}

/// What a panic says; what it carries is dropped.
fn words(panic: Panic) -> String {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_else(|| "it says nothing".to_owned());
    // It may be anything, and panic itself.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
    text
}

impl Shard {
    /// A task panicked: it is dropped, and what it waits for, here and of neighbours and peers, is given up.
    #[cold]
    pub(super) fn task_panicked(&mut self, task: TaskId, body: Box<dyn Task>, panic: Panic) {
        let what = words(panic);
        self.finished.clear();
        // One panic is told; that of its drop would be of the same cause.
        let _ = quietly(|| drop(body));
        if !mutant!("panicked_tasks_wait_on") {
            self.core.forget_task(task);
        }
        self.tell_end(task, Err(what));
    }

    /// Tells the waiters for a task's end. Nothing names it any more, and its place is free.
    pub(super) fn tell_end(&mut self, task: TaskId, end: Result<(), String>) {
        let end = end.map_err(|what| {
            let status = faults::task_panicked(self.core.index, task.number(), &what);
            self.core.observer.task_failed(&status);
            status
        });
        if let Some(seat) = self.seats.at_mut(task).and_then(Option::take) {
            self.bound -= usize::from(!seat.roams());
            self.again.retain(|&other| other != task);
            seat.leave();
            self.vacant.push(task);
            seat.ends(end);
        }
    }

    /// The tasks that still run are dropped, each by itself, and have ended so.
    pub(super) fn drop_tasks(&mut self, end: &Result<(), Status>) {
        for task in self.tasks.ids() {
            let body = self.tasks[task].take();
            let dropped = quietly(|| drop(body));
            match (end, dropped) {
                (Ok(()), Err(what)) => self.tell_end(task, Err(what)),
                _ => {
                    if let Some(seat) = self.seats.at_mut(task).and_then(Option::take) {
                        seat.ends(end.clone());
                    }
                }
            }
        }
        self.bound = 0;
    }

    /// Another shard of the engine panicked: everything here ends with `status`, and so does every step for the peers.
    #[cold]
    pub(super) fn fail(&mut self, status: &Status) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(status.clone());
        self.mailbox.close(status);
        for task in self.tasks.ids() {
            self.call_task(task, TaskEvent::Stopping);
        }
        self.drop_tasks(&Err(status.clone()));
        let mut steps = Vec::new();
        self.core.table.each_step(|step| steps.push(step));
        for step in steps {
            self.core.abort(step, status);
        }
        self.core.end_everything(status);
        let until = self.core.now + LAST_WORDS;
        self.stopping = Some(self.stopping.map_or(until, |stopping| stopping.min(until)));
    }

    /// This shard panicked. Its engine ends, and all waiters get one status: those of this shard first.
    #[cold]
    pub(crate) fn die(&mut self, panic: Panic) {
        let status = faults::shard_panicked(self.core.index, &words(panic));
        let observer = Arc::clone(&self.core.observer);
        let status = observer.shard_failed(&status);
        // Each by itself: what panicked once may do so again, and what is dropped here too. A pass takes one out at
        // least.
        while quietly(|| self.mailbox.close(&status)).is_err() {}
        while quietly(|| self.refuse_for_home(&status)).is_err() {}
        let _ = quietly(|| self.core.end_everything(&status));
        let waits = &mut self.core.waits;
        for ticket in waits.outside() {
            if let Some(cell) = waits.remove_outside(ticket) {
                let _ = quietly(|| drop(cell.complete(Err(status.clone()))));
            }
        }
        while quietly(|| self.core.send_queue.fail(&status, |_| true)).is_err() {}
        let _ = quietly(|| self.drop_tasks(&Err(status.clone())));
        fail_dropped(&status);
        self.stopping = Some(Nanos::ZERO);
    }
}
