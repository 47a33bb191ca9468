//! Home: what only a shard's own thread does, when other threads turn it too.
//!
//! Tasks are started, and run, on the thread where they were pinned, those that roam apart. A caller that turns the
//! shard sets such calls of the mailbox aside, in order, for the thread.

use super::ids::TaskId;
use super::{Call, Shard, TaskEvent};
use crate::ground::Status;
use crate::mail::mailbox::refuse;
use crate::mail::seat::Seat;

impl Shard {
    /// From now on its own thread turns it: what was left for that is done.
    pub(crate) fn come_home(&mut self) {
        self.is_home = true;
        // One by one: if it panics, the others are answered.
        while !self.for_home.is_empty() {
            let call = self.for_home.remove(0);
            self.handle_call(call);
        }
    }

    /// From now on a caller turns it, or its own thread again. The clock is read anew, as it was not read for a while;
    /// what is due by it is done in the next turn.
    #[inline]
    pub(crate) fn resume(&mut self, is_home: bool) {
        self.is_home = is_home;
        self.core.now = self.clock.stamp();
        self.is_due = self.core.now >= self.core.next_timer;
    }

    /// The shard has ended: what was left for its thread is answered.
    pub(super) fn refuse_for_home(&mut self, status: &Status) {
        while let Some(call) = self.for_home.pop() {
            refuse(call, status);
        }
    }

    /// The call, unless it must wait until the shard is turned by its own thread.
    pub(super) fn unless_for_home(&mut self, call: Call) -> Option<Call> {
        let is_of_tasks = match &call {
            Call::Spawn { task, .. } => !task.roams(),
            Call::Wake { seat } => !seat.roams(),
            _ => false,
        };
        // A task that is to begin before the end hears of both, in that order.
        let is_end = matches!(call, Call::Stop { .. } | Call::Fail { .. });
        if self.is_home || !(is_of_tasks || is_end && !self.for_home.is_empty()) {
            return Some(call);
        }
        self.for_home.push(call);
        None
    }

    /// True if there are tasks that only its own thread may run.
    #[inline]
    pub(crate) const fn has_bound_tasks(&self) -> bool {
        self.bound > 0
    }

    /// A caller wakes a task that roams. What follows for peers is posted, and no more is done: no peer is heard.
    /// False if the task is bound to the shard's own thread, or is not there yet.
    pub(crate) fn wake_roaming(&mut self, seat: &Seat) -> bool {
        if !seat.roams() {
            return false;
        }
        let task = TaskId::from_number(seat.answer());
        self.call_task(task, TaskEvent::Woken);
        if self.core.has_output() {
            self.transmit();
        }
        if self.has_posted {
            self.flush();
        }
        true
    }

    /// True if it is about to end.
    #[inline]
    pub(crate) const fn is_leaving(&self) -> bool {
        self.stopping.is_some()
    }

    /// True if what is next is its own thread's.
    #[inline]
    pub(crate) const fn wants_home(&self) -> bool {
        self.is_leaving() || !self.for_home.is_empty()
    }
}
