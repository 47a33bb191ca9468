//! Sharing: values that stay where they are made, shares of them that are used, handed on, and let go.
//!
//! A share is noted as held once it was used or its owner has confirmed it, and as let go before it is: in between its
//! value must be there.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::history::remote::Remote;
use super::super::history::{Event, Log};
use super::{Caller, Error, Functions, Journal, PATIENCE, answer_of, name};
use rendez::ground::Locked;
use rendez_rpc::RRef;

/// Shares of others that a task takes at a time.
const TAKEN_MAX: usize = 64;
/// How often it looks which of them it has had for long enough.
const TEND_EVERY: Duration = Duration::from_millis(10);

/// A value that says when it is not kept any more.
pub(super) struct Kept {
    value: u64,
    log: Arc<Log>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let value = self.value;
        self.log.add(&Event::Remote(Remote::Freed { value }));
    }
}

/// Shares that others have handed to this task.
#[derive(Default)]
pub(super) struct Shares {
    taken: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    shares: VecDeque<Taken>,
    /// It is over here: one that another task hands over later is let go at once, for no one would do so afterwards.
    is_closed: bool,
}

struct Taken {
    share: RRef<Kept>,
    value: u64,
    until: Instant,
}

/// The functions that make values, use them, and take shares.
pub(super) fn functions(functions: Functions, journal: &Arc<Journal>) -> Functions {
    let (make, uses, take) = (
        Arc::clone(journal),
        Arc::clone(journal),
        Arc::clone(journal),
    );
    functions
        .add_object("make", move |value: u64| {
            make.note(Remote::Made { value });
            let log = Arc::clone(&make.log);
            Ok::<_, Infallible>(Kept { value, log })
        })
        .add(
            "use",
            move |kept: RRef<Kept>, id: u64| -> Result<u64, Error> {
                uses.ran(id);
                Ok(kept.local_value()?.value)
            },
        )
        .add(
            "take",
            move |share: RRef<Kept>, value: u64, id: u64, for_ms: u64| {
                let answer = take.ran(id);
                let at = u32::from(share.owner().0);
                let until = Instant::now() + Duration::from_millis(for_ms);
                let mut taken = take.shares.lock();
                if taken.shares.len() < TAKEN_MAX && !taken.is_closed {
                    take.note(Remote::Holds { value, at });
                    taken.shares.push_back(Taken {
                        share,
                        value,
                        until,
                    });
                }
                answer
            },
        )
}

impl Shares {
    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.taken.locked()
    }

    /// Uses each share that was handed to this task, and lets it go.
    pub(super) fn tend(&self, journal: &Journal, is_over: &AtomicBool) {
        loop {
            let is_end = is_over.load(Ordering::Acquire);
            let mut taken = self.lock();
            let is_due = |one: &Taken| is_end || one.until <= Instant::now();
            let (due, later) = taken.shares.drain(..).partition(is_due);
            (taken.shares, taken.is_closed) = (later, is_end);
            drop(taken);
            let due: VecDeque<Taken> = due;
            for Taken { share, value, .. } in due {
                // A failure is in the history.
                let _ = journal.uses(&share, value);
                journal.lets(share, value);
            }
            if is_end {
                return;
            }
            std::thread::sleep(TEND_EVERY);
        }
    }
}

impl Journal {
    /// Calls a function of the value's owner with a share of it.
    fn uses(&self, share: &RRef<Kept>, value: u64) -> Result<(), Error> {
        let to = u32::from(share.owner().0);
        let call = |id| share.rpc_sync::<u64>("use", (id,));
        self.call(to, "use", call, |_, answer| answer == value)
    }

    fn lets(&self, share: RRef<Kept>, value: u64) {
        self.note(Remote::Lets { value });
        drop(share);
    }
}

impl Caller<'_> {
    /// Has a value made, uses it, hands it on, keeps it for a while, and lets it go.
    pub(super) fn share(&mut self, tasks: u32) -> Result<(), Error> {
        let value = self.journal.number();
        let made = self.agent.remote::<Kept>(&name(self.to), "make", (value,));
        let share = made.inspect_err(|error| {
            let (at, reason) = (self.to, error.reason().to_owned());
            self.journal.note(Remote::Unmade { at, reason });
        })?;
        if self.throw().is_multiple_of(8) {
            // Before it is known to have been made.
            drop(share);
            return Ok(());
        }
        self.journal.uses(&share, value)?;
        let at = self.to;
        self.journal.note(Remote::Holds { value, at });
        let third = self.throw() as u32 % tasks;
        let handed = match third == self.journal.me {
            true => Ok(()),
            false => self.hand(&share, value, third),
        };
        std::thread::sleep(Duration::from_millis(self.throw() % 100));
        let used = self.journal.uses(&share, value);
        self.journal.lets(share, value);
        handed.and(used)
    }

    /// Gives a third task a share, which may be the owner.
    fn hand(&mut self, share: &RRef<Kept>, value: u64, third: u32) -> Result<(), Error> {
        let for_ms = self.throw() % 400;
        let id = self.journal.begins(third, "take", PATIENCE, Duration::ZERO);
        let args = (share.clone(), value, id, for_ms);
        let outcome = self.agent.rpc_sync::<u64>(&name(third), "take", args);
        let outcome = outcome.map(|answer| answer == answer_of(id));
        self.journal.told(id, &outcome);
        outcome.map(drop)
    }
}
