//! Steps: how one ends here, on whose word, and which shards and peers are told.
//!
//! The table fixes the first status; this file carries it to waiters, peers and neighbours.

use super::core::Core;
use super::ids::{LinkId, PeerId};
use super::peers::PeerState;
use super::value::{Value, Waiter};
use crate::channel::Violation;
use crate::ground::{Incarnation, Nanos, Status, StepId, catalogue, faults};
use crate::rendezvous::{self, Refusal, Slot};

/// How a step ends here.
#[derive(Clone, Copy)]
enum End {
    /// By an abort, of which the peers are told.
    Told,
    /// By an abort, though it had ended before.
    Again,
    /// By its clean-up.
    Finished,
}

impl Core {
    /// A step ends with `status`: everything that waits in it hears so, everything parked in it goes.
    pub(crate) fn abort(&mut self, step: StepId, status: &Status) -> bool {
        let mut ended = Vec::new();
        let is_first = self
            .table
            .abort(self.now, step, status, &mut |end| ended.push(end));
        let status = self.table.status_of(step).unwrap_or_else(|| status.clone());
        let told = match is_first {
            true => End::Told,
            // What it has sent stays on offer for the peers that the clean-up promised it to: they release it
            // themselves.
            false if status.reason() == catalogue::STEP_FINISHED => {
                reached!("finished_then_ended");
                End::Finished
            }
            false => End::Again,
        };
        self.end_step(step, ended, &status, told);
        if is_first && !mutant!("awaited_peers_not_told") {
            self.last_ends.note(step, true);
        }
        is_first
    }

    /// A step is done here. Peers are told before what they have asked for is refused: so they know that it was this.
    pub(crate) fn finish(&mut self, step: StepId) {
        let mut ended = Vec::new();
        let is_first = self
            .table
            .finish(self.now, step, &mut |end| ended.push(end));
        if is_first {
            for link in self.links.iter_mut() {
                link.channel.finish(step);
            }
            self.last_ends.note(step, false);
        }
        let status = self
            .table
            .status_of(step)
            .unwrap_or_else(|| faults::step_finished(step));
        self.end_step(step, ended, &status, End::Finished);
    }

    fn end_step(
        &mut self,
        step: StepId,
        ended: Vec<rendezvous::Ended<Value, Waiter>>,
        status: &Status,
        how: End,
    ) {
        self.end_all(ended, status);
        self.end_blocked_sends(step, status);
        self.deadlines.forget(step);
        self.partings.forget(step);
        self.drop_early(|_, slot| slot.step == step);
        for link in self.links.ids() {
            let entry = &mut self.links[link];
            entry.parked.forget(step);
            match how {
                End::Told => entry.channel.abort(step, status),
                End::Again => entry.channel.drop_offers(step),
                // What was sent arrives: it lies on offer until the peer has it, or ends the step as well.
                End::Finished => {}
            }
            for ticket in entry.channel.demands(|demand| demand.point.step == step) {
                entry.channel.cancel(ticket);
            }
            self.weigh(link);
            self.links.touch(link);
        }
        for peer in self.peers.iter_mut() {
            peer.parked.forget(step);
        }
        // One that hears nothing of step after step does not keep them all.
        let is_silent = |link: &LinkId| self.links[*link].channel.is_overfull();
        if let Some(link) = self.links.ids().find(is_silent) {
            self.violated(link, Violation::Unacknowledged);
        }
    }

    /// How many of the steps that ended here a peer that comes up in that life need not be told of. A life that is
    /// there, or away, hears of each by its links. One that was given up may have missed any since it was met.
    pub(super) fn missed_from(&self, at: PeerId, life: Incarnation) -> u64 {
        let peer = &self.peers[at];
        let met = self.lives_over.ends_at_meeting(life);
        match (peer.state(), met) {
            (PeerState::Up { .. }, _) => self.last_ends.count(),
            (PeerState::Away { .. }, _) if peer.life() == Some(life) => self.last_ends.count(),
            (_, Some(met)) if !mutant!("given_up_lives_not_told") => met,
            _ => peer.ends_before,
        }
    }

    /// The peer is there: it is told which steps ended since so many had, of those whose end is remembered. A step that
    /// was forgotten may have begun again.
    pub(super) fn tell_ends(&mut self, at: PeerId, missed_from: u64) {
        let links = &self.peers[at].links;
        for &(step, is_abort) in self.last_ends.since(missed_from) {
            if !self.table.has_ended(step) {
                continue;
            }
            let status = self.table.status_of(step).filter(|_| is_abort);
            for &link in links {
                let Some(entry) = self.links.at_mut(link) else {
                    continue;
                };
                match &status {
                    Some(status) => entry.channel.abort(step, status),
                    None => entry.channel.finish(step),
                }
                self.links.touch(link);
            }
        }
    }

    /// A peer's shard is done with a step. What it has sent in it is here, or on offer, or is being written because we
    /// asked for it; nothing else comes. The step goes on here: others may have a part in it.
    #[cold]
    pub(crate) fn heard_finish(&mut self, link: LinkId, step: StepId) {
        // It is said again to who asks in such a step: they have asked, or ended, since it was known.
        if self.table.has_ended(step) || self.partings.has(step, link) {
            return;
        }
        self.partings.mark(step, link);
        let mut slots = Vec::new();
        let Self { table, keys, .. } = &*self;
        table.waiting_in(step, |slot, _, waiter, _| {
            let is_of_link = || {
                keys.at(slot.key)
                    .is_some_and(|entry| entry.way.link == link)
            };
            let is_asked = matches!(waiter, Waiter::Asked(_));
            if !is_asked && slots.last() != Some(&slot) && is_of_link() {
                slots.push(slot);
            }
        });
        for slot in slots {
            self.ask_last(link, slot);
        }
    }

    /// Receives that wait for a peer's shard which is done with their step end, unless something is still to come: then
    /// each asks, and the peer's answer ends it.
    #[inline]
    pub(crate) fn ask_last(&mut self, link: LinkId, slot: Slot) {
        if self.partings.has(slot.step, link) {
            self.end_or_ask(link, slot);
        }
    }

    #[cold]
    fn end_or_ask(&mut self, link: LinkId, slot: Slot) {
        if self.table.waiters_at(slot) == 0
            || !self.table.is_clear(&slot)
            || self.early.has(|early| early == slot)
        {
            // What is here goes to its waiter first, and then we are called again.
            return;
        }
        let point = Self::point_of(slot);
        let entry = self.links.at(link);
        let has_asked = entry
            .into_iter()
            .flat_map(|entry| entry.channel.demands_of(slot.key, point))
            .next()
            .is_some();
        if !has_asked {
            return self.fail_waiters(slot, &faults::step_finished(slot.step));
        }
        self.ask_for_waiting(link, slot);
    }

    /// The table has what ends by its time: also a step that only a peer speaks of, where no other timer is set.
    #[inline]
    pub(super) fn watch_table(&mut self) {
        let Some(time) = self.table.poll_timeout() else {
            return;
        };
        if self.next_timer == Nanos::NEVER {
            reached!("the_tables_timer_alone");
        }
        self.next_timer = self.next_timer.min(time);
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
