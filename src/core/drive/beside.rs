//! Beside: the other shards of an engine that has no threads. A thread that waits for one shard also turns those that
//! no other thread turns: what it waits for may depend on what another shard has still to send. A thread that leaves a
//! shard wakes those that sleep with others, so that one of them turns it.
//!
//! It knows which shards those are; not what their turns do.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::baton::{BESIDE, SLEEPS};
use super::thread::patience;
use super::{Drive, Turn};
use crate::fabric::doorbell::DoorbellError;
use crate::ground::Nanos;
use crate::shard::{Progress, Shard};

/// Turns of a leader between two looks at the shards beside its own: of one that finds nothing, and of one that finds
/// something each time.
pub(super) const TURNS_BESIDE: u32 = 64;

/// What a drive knows of the others, once the engine has made all of them.
#[derive(Debug, Default)]
pub(super) struct Beside {
    others: OnceLock<Box<[Weak<Drive>]>>,
    /// What this shard's ports wait for, for a thread that sleeps with another.
    fds: OnceLock<Box<[OwnedFd]>>,
}

impl Beside {
    /// Copies the descriptors of a shard that others are to wait for.
    ///
    /// # Errors
    /// [`DoorbellError::Os`] when the kernel gives no more descriptors.
    pub(super) fn keep_fds(&self, shard: &Shard) -> Result<(), DoorbellError> {
        let copies = (shard.wake_fds()).map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
        let fds: Result<Box<[_]>, _> = copies.collect();
        let fds = fds.map_err(|errno| DoorbellError::Os("fcntl(F_DUPFD_CLOEXEC)", errno))?;
        let _ = self.fds.set(fds);
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = Arc<Drive>> {
        (self.others.get().into_iter().flatten()).filter_map(Weak::upgrade)
    }
}

impl Drive {
    /// Makes the shards of an engine without threads known to each other.
    pub fn join(drives: &[Arc<Self>]) {
        for (at, drive) in drives.iter().enumerate() {
            let others = drives.iter().enumerate().filter(|&(other, _)| other != at);
            let others = others.map(|(_, other)| Arc::downgrade(other)).collect();
            let _ = drive.beside.others.set(others);
        }
    }

    /// The shard, for a thread that turns another shard of the engine, if no thread holds it.
    fn enter_beside(&self, call: u64) -> Option<Turn<'_>> {
        let mut held = self.baton.take(call)?;
        held.with(|seat| self.begin(seat));
        Some(Turn {
            drive: self,
            held: Some(held),
            is_beside: true,
        })
    }

    /// One turn of each shard beside this one that no other thread turns. True if something was done.
    #[cold]
    pub(super) fn turn_beside(&self) -> bool {
        let mut is_busy = false;
        for other in self.beside.others() {
            if let Some(mut turn) = other.enter_beside(0) {
                is_busy |= turn.turn() == Progress::Busy;
            }
        }
        is_busy
    }

    /// No thread turns this shard any more: those that sleep with others of the engine do. Threads that do so
    /// themselves call none: two of them would wake each other for ever.
    #[cold]
    pub(super) fn call_beside(&self) {
        self.baton.calls_beside();
        for other in self.beside.others() {
            if other.baton.is(SLEEPS) {
                other.doorbell.ring();
            }
        }
    }

    /// Sleeps with the shard, as [`super::thread::sleep`], and with those beside it that no other thread turns.
    pub(super) fn sleep_with_all(
        &self,
        shard: &mut Shard,
        most: Option<Duration>,
        must_wait: impl FnOnce() -> bool,
    ) {
        self.doorbell.arm();
        let others: Vec<_> = self.beside.others().collect();
        // Who lays down one that is not free rings the doorbell, which is armed.
        let mut turns: Vec<_> = (others.iter())
            .filter_map(|other| other.enter_beside(BESIDE))
            .collect();
        // Between the tries another thread may have left one that it turned beside its own, and then its own: it called
        // no thread to the first.
        let is_left = others.iter().any(|other| other.baton.is_free());
        let sleeps = !is_left && must_wait() && shard.arm();
        let mut most = sleeps.then(|| patience(shard, most));
        for turn in &mut turns {
            most = turn.arm().zip(most).map(|(one, other)| one.min(other));
        }
        if most.is_some() {
            let fds = turns.iter().flat_map(|turn| {
                let (_, bell) = turn.drive.doorbell.fds();
                let ports = turn.drive.beside.fds.get().into_iter().flatten();
                ports.map(AsFd::as_fd).chain([bell])
            });
            // An error of the wait only shortens it: the loop looks again.
            let _ = (self.doorbell).wait_beside(shard.wake_fds().chain(fds), most);
        }
        self.doorbell.disarm();
        shard.disarm();
        for turn in &mut turns {
            turn.disarm();
            turn.turn();
        }
    }
}

impl Turn<'_> {
    /// The shard's doorbell is armed. How long it may sleep, if it has nothing to do.
    fn arm(&mut self) -> Option<Nanos> {
        self.drive.doorbell.arm();
        let armed = self.with(|seat| match &seat.shard {
            Some(_) => seat.arm(),
            None => Some(Nanos::NEVER),
        });
        armed.flatten()
    }

    fn disarm(&mut self) {
        self.drive.doorbell.disarm();
        self.with(|seat| seat.shard.as_mut().map(Shard::disarm));
    }
}
