//! How a request of an application thread reaches a shard: directly if no thread turns the shard just now, else by the
//! mailbox.
//!
//! It knows which shard; which thread turns it is the business of [`crate::drive`].

use std::sync::Arc;
use std::time::Duration;

use super::{Engine, Inner};
use crate::drive::{Drive, Driver, wait_aside};
use crate::ground::{Key, Status, StepId};
use crate::mail::forks;
use crate::mail::mailbox::Command;
use crate::mail::wait::WaitCell;
use crate::shard::{Call, Mailbox};

/// One shard, as this thread reaches it.
#[derive(Clone, Copy)]
pub(super) struct Reach<'a> {
    pub(super) mailbox: &'a Arc<Mailbox>,
    /// `None` in a simulation, which turns its shards itself.
    pub(super) drive: Option<&'a Drive>,
}

impl Inner {
    /// The shard that owns a key.
    #[inline]
    pub(super) fn reach(&self, key: &Key) -> Reach<'_> {
        self.reach_shard(key.shard_of(self.mailboxes.len() as u32) as usize)
    }

    /// A step's home shard.
    pub(super) fn reach_home(&self, step: StepId) -> Reach<'_> {
        self.reach_shard((step.0 % self.mailboxes.len() as u64) as usize)
    }

    #[inline]
    pub(super) fn reach_shard(&self, shard: usize) -> Reach<'_> {
        Reach {
            mailbox: &self.mailboxes[shard],
            drive: self.drives.get(shard).map(Arc::as_ref),
        }
    }

    /// Every shard.
    pub(super) fn reach_all(&self) -> impl Iterator<Item = Reach<'_>> {
        (0..self.mailboxes.len()).map(|shard| self.reach_shard(shard))
    }
}

impl<'a> Reach<'a> {
    /// Has the shard do something, now if no thread turns it.
    pub(super) fn call(self, call: Call) {
        self.mailbox.call(call);
        self.look_again();
    }

    /// Puts a command in.
    ///
    /// # Errors
    /// The command, if there is no room or the shard has ended.
    #[allow(clippy::result_large_err)] // As `Mailbox::command`.
    pub(super) fn command(self, command: Command) -> Result<(), Command> {
        match self.drive {
            Some(drive) => drive.command(command),
            None => self.mailbox.command(command),
        }
    }

    /// Waits for what the shard brings. `None` if `patience` ran out first.
    pub(super) fn wait<T>(
        self,
        cell: &WaitCell<T>,
        patience: Option<Duration>,
    ) -> Option<Result<T, Status>> {
        match self.drive {
            Some(drive) => drive.wait(cell, patience),
            None => wait_aside(cell, patience),
        }
    }

    /// Something was put into the mailbox: it is handled now if no thread turns the shard, else by its holder.
    pub(super) fn look_again(self) {
        if let Some(drive) = self.drive {
            drive.look_again();
        }
    }

    /// A future is polled: one turn, if no other thread turns the shard.
    pub(super) fn progress(self) {
        if let Some(drive) = self.drive {
            drive.progress();
        }
    }

    /// A future waits: a thread must turn its shard.
    pub(super) fn summon(self) {
        if let Some(drive) = self.drive {
            drive.summon();
        }
    }
}

impl Engine {
    /// Which threads turn the shards that have no in-shard tasks.
    #[must_use]
    pub fn driver(&self) -> Driver {
        let config = &self.inner.config;
        config.drive.with(config.poll)
    }

    /// Turns once each shard that no other thread turns just now: for an engine with `drive = "caller"`, whose threads
    /// neither send nor wait for a while, so that peers are answered, deadlines are kept and futures go on. True if
    /// something was done.
    ///
    /// ```
    /// use rendez::drive::Driver;
    /// use rendez::engine::{Config, Engine};
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # (config.shards, config.share_cores, config.control) = (1, true, false);
    /// config.drive = Driver::Caller;
    /// let engine = Engine::start(config)?;
    /// while engine.progress() {}
    /// # Ok::<(), rendez::ground::Status>(())
    /// ```
    #[allow(clippy::must_use_candidate)] // Callers often do not care whether there was anything to do.
    pub fn progress(&self) -> bool {
        if forks::is_child() {
            return false;
        }
        let mut done = false;
        for drive in &self.inner.drives {
            done |= drive.progress();
        }
        done
    }
}
