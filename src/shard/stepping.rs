//! Steps: how one ends here, by whose word, and who is told.
//!
//! The table fixes the first status; this file carries it to waiters, peers and neighbours.

use super::core::Core;
use super::faults;
use super::value::{Value, Waiter};
use crate::ground::{Status, StepId};
use crate::rendezvous::{self, Refusal, Slot};

impl Core {
    /// A step ends with `status`: everything that waits in it hears so, everything parked in it goes.
    pub(crate) fn abort(&mut self, step: StepId, status: &Status) -> bool {
        let mut ended = Vec::new();
        let is_first = self
            .table
            .abort(self.now, step, status, &mut |end| ended.push(end));
        let status = self.table.status_of(step).unwrap_or_else(|| status.clone());
        self.end_step(step, ended, &status, is_first);
        is_first
    }

    /// A step is done.
    pub(crate) fn finish(&mut self, step: StepId) {
        let mut ended = Vec::new();
        self.table
            .finish(self.now, step, &mut |end| ended.push(end));
        let status = self
            .table
            .status_of(step)
            .unwrap_or_else(|| faults::step_finished(step));
        self.end_step(step, ended, &status, false);
    }

    pub(super) fn end_step(
        &mut self,
        step: StepId,
        ended: Vec<rendezvous::Ended<Value, Waiter>>,
        status: &Status,
        is_told: bool,
    ) {
        self.end_all(ended, status);
        self.end_guests(step, status);
        self.deadlines.remove(&step);
        self.drop_early(|early| early.slot.step == step);
        for link in 0..self.links.len() as u32 {
            let entry = &mut self.links[link as usize];
            entry.parked.retain(|slot| slot.step != step);
            if is_told {
                entry.channel.abort(step, status);
            } else {
                entry.channel.drop_offers(step);
            }
            for ticket in entry.channel.demands(|demand| demand.point.step == step) {
                entry.channel.cancel(ticket);
            }
            self.weigh(link);
            self.touch(link);
        }
        for peer in &mut self.peers {
            peer.parked.retain(|slot| slot.step != step);
        }
    }

    /// A waiter's time is up, or a step that only peers spoke of was never used.
    pub(crate) fn expire(&mut self) -> usize {
        let mut expired = Vec::new();
        self.table.expire(self.now, &mut |end| expired.push(end));
        let count = expired.len() + self.expire_guests() + self.expire_steps();
        for end in expired {
            match end {
                rendezvous::Expired::Waiter(slot, waiter) => {
                    if !matches!(waiter, Waiter::Asked(_)) {
                        self.missed(slot);
                    }
                    self.complete(
                        waiter,
                        Err(faults::deadline(self.key_of(slot).as_ref(), slot.step)),
                    );
                    self.settle_demands(slot);
                }
                rendezvous::Expired::Unclaimed(end) => {
                    if let rendezvous::Ended::Waiter(slot, _) | rendezvous::Ended::Value(slot, _) =
                        &end
                    {
                        let step = slot.step;
                        self.drop_early(|early| early.slot.step == step);
                    }
                    self.end_all(vec![end], &faults::step_unclaimed());
                }
            }
        }
        count
    }

    /// There is no memory for a value that came: whoever waits hears so; the peer is not to blame.
    #[cold]
    pub(super) fn no_room(&mut self, link: u32, slot: Slot, lines: u32, status: &Status) {
        self.return_lines(link, lines);
        self.stats.dropped += 1;
        self.fail_step(slot.step, status);
    }

    /// A step ends by a failure of this shard.
    pub(crate) fn fail_step(&mut self, step: StepId, status: &Status) {
        self.observer.step_ended(step, status);
        if self.abort(step, status) {
            self.tell_neighbours(step, status);
        }
    }

    /// A value was dropped because a limit is reached: its step cannot be whole any more, and both sides hear why.
    #[cold]
    pub(super) fn refused_arrival(&mut self, slot: Slot, refusal: Refusal) {
        if !matches!(
            refusal,
            Refusal::Aborted | Refusal::Finished | Refusal::Unclaimed | Refusal::Stale
        ) {
            let status = self.refused(refusal, slot);
            self.fail_step(slot.step, &status);
        }
    }
}
