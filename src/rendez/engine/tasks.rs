//! The ends of in-shard tasks, and of an engine whose shard panicked: their waiters are told.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Engine, Inner};
use crate::drive::{Drive, wait_aside};
use crate::ground::{Status, faults};
use crate::mail::forks;
use crate::mail::wait::{Awaited, WaitCell};
use crate::shard::{Call, TaskWaker};

/// The end of an in-shard task: await it, or call [`TaskEnd::wait`]. See [`Engine::task_ended`].
#[derive(Debug)]
#[must_use = "it says nothing until it is awaited or waited for"]
pub struct TaskEnd {
    cell: Arc<WaitCell<()>>,
    /// Of the task's shard.
    drive: Option<Arc<Drive>>,
}

impl TaskEnd {
    /// Blocks this thread until the task has ended, or `patience` has run out: then it is `None`. Never call it in the
    /// task's own shard, which would wait for itself.
    ///
    /// What it gives holds the status of a task that failed; see [`Engine::task_failed`].
    #[must_use]
    pub fn wait(self, patience: Duration) -> Option<Result<(), Status>> {
        match self.drive {
            Some(drive) => drive.wait(&self.cell, Some(patience)),
            None => wait_aside(&*self.cell, Some(patience)),
        }
    }
}

impl Future for TaskEnd {
    type Output = Result<(), Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.cell.poll(context.waker()) {
            Poll::Pending if forks::is_child() => Poll::Ready(Err(faults::forked())),
            polled => polled,
        }
    }
}

impl Engine {
    /// The status that a task failed with: `TASK_PANICKED` if it panicked, and what the engine ended with if that ended
    /// under it. `None` as long as it runs, and if it ended in good order.
    ///
    /// A panic ends the task that panicked, and nothing else: it is dropped, what it waits for is cancelled, here and
    /// at peers, and its shard goes on. A receiver of a value that *it* should have sent learns of its end by this, and
    /// may abort the step.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rendez::engine::{Config, Engine};
    /// use rendez::ground::catalogue;
    /// use rendez::shard::{Task, TaskContext, TaskEvent};
    ///
    /// struct Clumsy;
    ///
    /// impl Task for Clumsy {
    ///     fn handle(&mut self, _: TaskEvent, _: &mut TaskContext<'_>) {
    ///         panic!("dropped a plate");
    ///     }
    /// }
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # (config.shards, config.share_cores, config.control) = (1, true, false);
    /// let engine = Engine::start(config)?;
    /// let task = engine.spawn(0, Box::new(Clumsy))?;
    /// let end = engine.task_ended(&task).wait(Duration::from_secs(10));
    /// let status = end.expect("it ends at once").unwrap_err();
    /// assert_eq!(status.reason(), catalogue::TASK_PANICKED);
    /// assert_eq!(engine.task_failed(&task), Some(status));
    /// # Ok::<(), rendez::ground::Status>(())
    /// ```
    #[must_use]
    pub fn task_failed(&self, task: &TaskWaker) -> Option<Status> {
        task.seat().end()?.err()
    }

    /// Wakes a task of shard `index`, as its waker does. One that [roams](crate::shard::Task::roams) runs in this
    /// thread if no other thread turns the shard: what it sends has left when this returns. It hears no peer here.
    pub fn wake(&self, index: usize, task: &TaskWaker) {
        match self.inner.drives.get(index) {
            Some(drive) if task.is_of(&self.inner.mailboxes[index]) => drive.wake(task),
            _ => task.wake(),
        }
    }

    /// As [`Engine::wake`], for a thread that waits next, or to which an answer does not matter: the shard's own thread
    /// is not asked to listen for one. It does so within a millisecond if no other thread turns the shard before.
    pub fn nudge(&self, index: usize, task: &TaskWaker) {
        match self.inner.drives.get(index) {
            Some(drive) if task.is_of(&self.inner.mailboxes[index]) => drop(drive.nudge(task)),
            _ => task.wake(),
        }
    }

    /// Wakes a task of shard `index`, and waits for what it brings: [`Engine::wake`] and [`Engine::wait_for`] at once,
    /// which is cheaper.
    pub fn wake_and_wait<A: Awaited>(
        &self,
        index: usize,
        task: &TaskWaker,
        awaited: &A,
        patience: Option<Duration>,
    ) -> Option<A::Outcome> {
        match self.inner.drives.get(index) {
            Some(drive) if task.is_of(&self.inner.mailboxes[index]) => {
                drive.wake_and_wait(task, awaited, patience)
            }
            _ => {
                task.wake();
                self.wait_for(index, awaited, patience)
            }
        }
    }

    /// Waits for something that a task of shard `index` brings, or another thread does. This thread turns the shard
    /// meanwhile if no other does and [`Config::drive`](super::Config::drive) lets it, and runs tasks that roam.
    /// `None` if `patience` ran out first, or the shard ended, and in a child of `fork`.
    pub fn wait_for<A: Awaited>(
        &self,
        index: usize,
        awaited: &A,
        patience: Option<Duration>,
    ) -> Option<A::Outcome> {
        match self.inner.drives.get(index) {
            Some(drive) => drive.wait_for(awaited, patience),
            None => wait_aside(awaited, patience),
        }
    }

    /// Waits for the end of a task: in good order, or with the status of [`Engine::task_failed`].
    pub fn task_ended(&self, task: &TaskWaker) -> TaskEnd {
        let shards = self.inner.mailboxes.iter().zip(&self.inner.drives);
        let of_task = shards.filter(|(mailbox, _)| task.is_of(mailbox));
        TaskEnd {
            cell: task.seat().watch(),
            drive: of_task.map(|(_, drive)| Arc::clone(drive)).next(),
        }
    }
}

impl Inner {
    /// A shard panicked: the engine ends with `status`, unless it has already. Called by that shard; the others end by
    /// themselves, and peers are told by them and by the control plane. Returns what all hear.
    pub(super) fn fail(&self, status: &Status) -> Status {
        if self.failed.set(status.clone()).is_ok() {
            tracing::error!(task = %self.task, %status, "a shard panicked: the engine ends");
            for mailbox in &self.mailboxes {
                mailbox.call(Call::Fail {
                    status: status.clone(),
                });
            }
            self.say_goodbye(&status.to_string());
        }
        self.failed.get().unwrap_or(status).clone()
    }
}

#[cfg(test)]
mod tests;
