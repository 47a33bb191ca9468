//! Ending: abort, finish, deadlines and lost peers. Everything that was taken in comes out here, once.
//!
//! Does not know why a step ends or a peer is lost; it keeps the first status and hands everything back.

use super::names::{Ended, Expired, KeyId, Slot};
use super::queues::Kind;
use super::refusal::Refusal;
use super::steps::{NONE, State};
use super::table::Table;
use crate::ground::{Code, Nanos, Status, StepId, catalogue};

impl<V, W: Copy> Table<V, W> {
    /// Ends a step with `status`: the first one wins, here and for all who come later. Everything that waits or is
    /// parked comes through `out`. An unknown step becomes a tombstone. False if the step had ended before.
    pub fn abort(
        &mut self,
        now: Nanos,
        step: StepId,
        status: &Status,
        out: &mut impl FnMut(Ended<V, W>),
    ) -> bool {
        self.end(now, step, State::Aborted(status.clone()), out)
    }

    /// Cleans a step up: as [`Table::abort`], with `Cleanup <step>`. Of a step that was aborted the status stays.
    pub fn finish(&mut self, now: Nanos, step: StepId, out: &mut impl FnMut(Ended<V, W>)) -> bool {
        self.end(now, step, State::Finished, out)
    }

    /// True for a step that ended, as long as its tombstone stands.
    #[must_use]
    pub fn has_ended(&self, step: StepId) -> bool {
        let number = self.steps.find(step);
        number.is_some_and(|number| self.steps.step(number).state.refusal().is_some())
    }

    /// The status of a step that ended, as long as its tombstone stands. Makes text: for the edge.
    #[must_use]
    pub fn status_of(&self, step: StepId) -> Option<Status> {
        let number = self.steps.find(step)?;
        match &self.steps.step(number).state {
            State::Aborted(status) => Some(status.clone()),
            state => {
                let slot = Slot {
                    step,
                    key: KeyId(0),
                    at: Default::default(),
                };
                state
                    .refusal()
                    .map(|refusal| refusal.status(slot, &self.limits))
            }
        }
    }

    /// The status of a refusal, with the step's own if it was aborted. Makes text: for the edge.
    #[must_use]
    pub fn refusal_status(&self, refusal: Refusal, slot: Slot) -> Status {
        let ended = match refusal {
            Refusal::Aborted | Refusal::Finished | Refusal::Unclaimed | Refusal::Stale => {
                self.status_of(slot.step)
            }
            _ => None,
        };
        ended.unwrap_or_else(|| refusal.status(slot, &self.limits))
    }

    /// When to call [`Table::expire`] again, if nothing else happens. Never later than the earliest deadline.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let waiter = self.timers.next();
        let grace = self
            .steps
            .oldest_grace()
            .map(|(_, since)| since + self.limits.grace_ttl_ns);
        match (waiter, grace) {
            (Some(waiter), Some(grace)) => Some(waiter.min(grace)),
            (waiter, grace) => waiter.or(grace),
        }
    }

    /// Ends the waiters whose deadline is not after `now`, and the grace steps whose time is over: those leave a
    /// tombstone, so that a user who comes too late is told, and does not wait for values that were dropped.
    pub fn expire(&mut self, now: Nanos, out: &mut impl FnMut(Expired<V, W>)) {
        while let Some(index) = self.timers.pop(now) {
            if mutant!("deadline_ignored") {
                continue;
            }
            let (at, tag) = self.remove_waiter(index);
            out(Expired::Waiter(self.records[at as usize].slot(), tag));
        }
        while let Some((step, since)) = self.steps.oldest_grace() {
            if since + self.limits.grace_ttl_ns > now {
                break;
            }
            self.end(now, step, State::Unclaimed, &mut |ended| {
                out(Expired::Unclaimed(ended))
            });
        }
    }

    /// A peer is lost: everything of the keys for which `lost` says yes ends, in all steps, and their ordinals start
    /// again. Values of keys that the peer would have produced go as well: the caller decides by the key.
    pub fn fail_keys(
        &mut self,
        mut lost: impl FnMut(KeyId) -> bool,
        out: &mut impl FnMut(Ended<V, W>),
    ) {
        for number in self.steps.numbers() {
            let mut before = NONE;
            let mut at = self.steps.step(number).records;
            while at != NONE {
                let record = &self.records[at as usize];
                let next = record.sibling;
                if lost(record.slot().key) {
                    if before == NONE {
                        self.steps.step_mut(number).records = next;
                    } else {
                        self.records[before as usize].sibling = next;
                    }
                    self.end_record(at, out);
                } else {
                    before = at;
                }
                at = next;
            }
        }
    }

    fn end(
        &mut self,
        now: Nanos,
        step: StepId,
        epitaph: State,
        out: &mut impl FnMut(Ended<V, W>),
    ) -> bool {
        if let Some(number) = self.steps.find(step) {
            let mut at = std::mem::replace(&mut self.steps.step_mut(number).records, NONE);
            while at != NONE {
                let next = self.records[at as usize].sibling;
                self.end_record(at, out);
                at = next;
            }
        }
        self.steps.bury(now, step, epitaph, &self.limits)
    }

    fn end_record(&mut self, at: u32, out: &mut impl FnMut(Ended<V, W>)) {
        let slot = self.records[at as usize].slot();
        while let Some(waiter) = self.pop_waiter(at) {
            if !mutant!("deferred_receives_not_aborted") {
                out(Ended::Waiter(slot, waiter));
            }
        }
        while let Some(item) = self.pop_item(at) {
            let fetching = item.kind == Kind::Fetching;
            if let Some(token) = item.token() {
                out(Ended::Offer {
                    slot,
                    token,
                    fetching,
                });
            } else if let Some(value) = item.into_value() {
                out(Ended::Value(slot, value));
            }
        }
        self.release_record(at);
    }
}

/// The status of a waiter whose deadline passed.
#[must_use]
pub fn deadline_status() -> Status {
    Status::new(
        Code::DeadlineExceeded,
        catalogue::DEADLINE,
        "Timed out waiting for notification",
    )
}
