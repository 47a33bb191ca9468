//! Ending: how an engine stops in good order, whichever thread stops it or drops its last handle.
//!
//! It knows what is to be waited for, and in which order; not what a shard does before it stops.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use super::{Crew, Inner, PARTING, recording};
use crate::control::PeerGone;
use crate::drive::{finish_all, is_shard_thread};
use crate::ground::{Locked, Unpoisoned};
use crate::mail::forks;
use crate::shard::Call;

/// What the last handle gives to what is on its way.
const DROPPED: Duration = Duration::from_millis(100);

/// How much longer than its deadline an end is waited for: peers are told, and threads end.
const GRACE: Duration = Duration::from_secs(1);

/// Whether all that is to stop has.
#[derive(Debug)]
pub(crate) struct Ended {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    /// That thread sees to it.
    Ending(ThreadId),
    Ended,
}

impl Ended {
    pub(super) fn new(is_so: bool) -> Self {
        let state = if is_so { State::Ended } else { State::Running };
        Self {
            state: Mutex::new(state),
            told: Condvar::new(),
        }
    }

    fn tell(&self, state: State) {
        *self.state.locked() = state;
        self.told.notify_all();
    }

    /// Not on the thread that sees to the end: what it ends may hold the last handle.
    fn wait(&self, patience: Duration) {
        let own = State::Ending(std::thread::current().id());
        let state = self.state.locked();
        // In time or not, there is no more to do.
        drop(self.told.wait_timeout_while(state, patience, |state| {
            *state != State::Ended && *state != own
        }));
    }
}

impl Inner {
    /// Stops, and waits for the end. Not on the thread of a shard, which cannot wait for its own.
    pub(crate) fn stop(&self, deadline: Duration) {
        if forks::is_child() {
            return;
        }
        let Some(crew) = self.begin_stop(deadline) else {
            if mutant!("second_shutdown_returns") {
                return;
            }
            return self.ended.wait(deadline.saturating_add(GRACE));
        };
        self.end(crew);
    }

    /// The last handle of a user's was dropped.
    pub(super) fn lose_users(self: &Arc<Self>) {
        if forks::is_child() {
            return;
        }
        if is_shard_thread() {
            return self.stop_aside();
        }
        self.stop(DROPPED);
    }

    /// Tells the shards to stop. `None` if that was done before.
    fn begin_stop(&self, deadline: Duration) -> Option<Crew> {
        let mut crew = self.crew.locked().take()?;
        crew.metrics = self.metrics.locked().take();
        if let Some(server) = &crew.metrics {
            server.end_soon();
        }
        let until = self.clock.deadline(deadline);
        for mailbox in &self.mailboxes {
            mailbox.call(Call::Stop { deadline: until });
        }
        Some(crew)
    }

    /// The last handle was dropped within a turn: what is left is waited for by a thread of its own, for the turn must
    /// end first.
    fn stop_aside(self: &Arc<Self>) {
        let Some(crew) = self.begin_stop(DROPPED) else {
            return;
        };
        let inner = Arc::clone(self);
        let thread = std::thread::Builder::new().name("rendez-stop".into());
        if let Err(error) = thread.spawn(move || inner.end(crew)) {
            tracing::warn!(%error, "cannot start a thread to stop the engine: it ends without a goodbye to its peers");
            self.clean_up();
            self.ended.tell(State::Ended);
        }
    }

    /// Waits for what was told to stop, and ends the rest.
    fn end(&self, crew: Crew) {
        self.ended.tell(State::Ending(std::thread::current().id()));
        self.finish(crew);
        self.clean_up();
        self.ended.tell(State::Ended);
    }

    /// Waits until all shards have stopped, says goodbye to their peers, and ends the rest.
    fn finish(&self, crew: Crew) {
        let Crew {
            threads,
            done,
            stay,
            metrics,
        } = crew;
        // Nothing is ever said: it ends when all of them have.
        let _ = done.recv();
        drop(metrics);
        // Those without a thread; their connections end below, when their peers know why.
        let has_threads = !threads.is_empty();
        let shards = self.drives.iter().filter(|_| !has_threads);
        let shards = finish_all(shards.map(Arc::as_ref));
        self.say_goodbye("the task ends");
        drop(shards);
        drop(stay);
        for thread in threads {
            // A panic of a shard was told by the panic hook; there is nothing left to stop.
            let _ = thread.join();
        }
        self.wiring.transports().stop();
        self.wiring.devices().stop();
    }

    /// Tells all peers that this task has left, and why; its connections end.
    pub(super) fn say_goodbye(&self, reason: &str) {
        self.part_locally(reason);
        if let Some(control) = self.control.get() {
            control.stop(reason, PARTING);
        }
    }

    /// The engines of this process that we are connected with have no other to tell them.
    fn part_locally(&self, reason: &str) {
        if mutant!("local_peers_untold") {
            return;
        }
        let reason = reason.to_owned();
        let status = PeerGone::Said { reason }.status(&self.task.to_string());
        for local in self.locals() {
            local.call_all(|| Call::PeerLost {
                task: self.task.clone(),
                status: status.clone(),
            });
        }
    }

    fn clean_up(&self) {
        recording::release_keeper(self);
        recording::clear(self);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // It has ended: its users' last handle was dropped before.
        if forks::is_child() {
            self.forget();
        }
    }
}

impl Inner {
    /// In a child of `fork`: what would wait for threads that are not here, ring the parent's doorbells or touch its
    /// devices when it is dropped is left as it is. The process's end takes it.
    fn forget(&mut self) {
        fn inside<T>(mutex: &mut Mutex<Option<T>>) -> Option<T> {
            mutex.get_mut().unpoisoned().take()
        }
        std::mem::forget(self.control.take());
        std::mem::forget(inside(&mut self.crew));
        std::mem::forget(inside(&mut self.metrics));
        std::mem::forget(inside(&mut self.dumping));
        std::mem::forget(inside(&mut self.clock_keeper));
        std::mem::forget(Arc::clone(&self.wiring));
        std::mem::forget(self.mailboxes.clone());
        std::mem::forget(self.doorbells.clone());
        std::mem::forget(self.drives.clone());
    }
}

#[cfg(test)]
mod tests;
