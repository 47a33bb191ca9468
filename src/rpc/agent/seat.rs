//! Seats: an engine has one agent of a group at a time, for both would hear the messages of one worker.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use rendez::engine::Engine;
use rendez::ground::{Locked, StepId, catalogue};

use crate::error::Error;

/// The seats that are taken in this process: a life of an engine, and the step of a group.
static TAKEN: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

fn taken() -> MutexGuard<'static, BTreeSet<(u64, u64)>> {
    TAKEN.locked()
}

/// A seat; dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Seat(u64, u64);

impl Seat {
    /// Takes the seat of a group's worker at `engine`.
    pub(crate) fn take(engine: &Engine, group: &str, step: StepId) -> Result<Self, Error> {
        let place = (engine.incarnation().0, step.0);
        if !taken().insert(place) {
            let message = format!(
                "RPC is already initialized: this engine runs a worker of the group '{group}'; shut that down first, \
                 or give the other group another name"
            );
            return Err(Error::of(catalogue::RPC_GROUP, message));
        }
        Ok(Self(place.0, place.1))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        taken().remove(&(self.0, self.1));
    }
}
