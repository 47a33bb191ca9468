//! Events: what happens in a world, for a program that is played beside the world's own.

use super::{Job, Share, World};
use crate::id::WorkerId;
use crate::message::Target;
use crate::node::Ending;

/// The function that is over at once: what it brings is an [`Event::Served`].
const MESSAGE: &str = "message";

/// What has happened to a worker.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// It carries a function out, which [`World::finish_job`] ends, or a message has come.
    Served {
        /// The worker, by its place.
        at: usize,
        /// The caller.
        from: WorkerId,
        /// The call.
        job: Job,
    },
    /// A call of its own has ended.
    Ended {
        /// The worker.
        at: usize,
        /// The call.
        job: u64,
        /// How.
        ending: Ending<Job>,
    },
    /// Another is there.
    Up {
        /// The worker.
        at: usize,
        /// The other.
        of: WorkerId,
    },
    /// Another is gone.
    Down {
        /// The worker.
        at: usize,
        /// The other.
        of: WorkerId,
    },
    /// It begins a life, its first or another.
    Begun {
        /// The worker.
        at: usize,
    },
    /// It has died, or left.
    Gone {
        /// The worker.
        at: usize,
    },
}

pub(super) fn is_message(target: &Target) -> bool {
    matches!(target, Target::Function(name) if &**name == MESSAGE)
}

impl World {
    pub(super) fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(events) = &mut self.events {
            events.push_back(event());
        }
    }

    /// Worker `at` sends another a message: a call that is over as soon as it has come, and has no deadline.
    pub fn message(&mut self, at: usize, to: usize) -> u64 {
        self.call(at, to, Target::Function(MESSAGE.into()), None, &[])
    }

    /// Ends that call, if worker `at` carries it out; its answer carries `shares`.
    pub fn finish_job(&mut self, at: usize, job: u64, shares: &[Share]) -> bool {
        let mut running = self.actors[at].running.iter();
        let which = running.position(|(_, _, _, runs, _)| runs.0 == job);
        which.map(|which| self.finish(at, which, shares)).is_some()
    }
}
