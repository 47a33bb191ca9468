//! Expiry: what ends because its time is over, and when to look next.
//!
//! It keeps no times itself: a wait's is in the table, a blocked send's in the queue, an absent peer's with the peer, a
//! step's in `deadlines.rs`.

use super::core::Core;
use super::keys::Route;
use super::peers::PeerState;
use super::value::Waiter;
use crate::ground::{FrameIter, Nanos, Status, StepId, faults};
use crate::rendezvous::{self, KeyId, Slot};

impl Core {
    /// When the next link wants to be called, and the table.
    pub(crate) fn find_next_timer(&mut self) -> Nanos {
        let table = self.table.poll_timeout();
        let blocked_sends = self.send_queue.next_deadline();
        self.links
            .poll_timeout()
            .min(table.unwrap_or(Nanos::NEVER))
            .min(self.peers.next_end())
            .min(self.transfers.next_try())
            .min(self.deadlines.next())
            .min(blocked_sends.unwrap_or(Nanos::NEVER))
    }

    /// A waiter's time is up, or a step that only peers spoke of was never used.
    pub(crate) fn expire(&mut self) -> usize {
        let mut expired = Vec::new();
        let unclaimed = self.table.stats().grace_steps;
        self.table.expire(self.now, &mut |end| expired.push(end));
        let count = expired.len() + self.expire_blocked_sends() + self.expire_steps();
        for end in expired {
            match end {
                rendezvous::Expired::Waiter(slot, waiter) => {
                    if !matches!(waiter, Waiter::Asked(_)) {
                        self.missed(slot);
                    }
                    let key = self.key_of(slot);
                    let status = faults::deadline(key.as_ref(), slot.step, self.absence(slot));
                    self.complete(waiter, Err(status));
                    self.settle_demands(slot);
                }
                rendezvous::Expired::Unclaimed(end) => {
                    self.end_all(vec![end], &faults::step_unclaimed());
                }
            }
        }
        if self.table.stats().grace_steps < unclaimed {
            self.drop_early_of_ended();
        }
        count
    }

    /// Ends the wait of sends whose time is over.
    fn expire_blocked_sends(&mut self) -> usize {
        let mut count = 0;
        while let Some(blocked) = self.send_queue.expire_one(self.now) {
            let status = match self.key_of(blocked.slot) {
                Some(key) => faults::send_deadline(&key, blocked.slot.step),
                None => faults::deadline(None, blocked.slot.step, None),
            };
            blocked.fail(&status);
            count += 1;
        }
        count
    }

    /// Where the value was to come from a peer that is not there: that it is not, and why.
    fn absence(&self, slot: Slot) -> Option<String> {
        let Route::In { peer } = self.keys.at(slot.key)?.way.route else {
            return None;
        };
        let peer = self.peers.at(peer)?;
        let is_up = matches!(peer.state(), PeerState::Up { .. });
        (!is_up).then(|| {
            let why = self.observer.why_absent(&peer.task);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            format!("{} is not connected{why}", peer.task)
        })
    }

    /// Peers that were not there in time: what waits for them fails `Unavailable`.
    pub(crate) fn give_up_awaited(&mut self) {
        for at in self.peers.due(self.now) {
            let peer = &self.peers[at];
            match peer.state() {
                PeerState::Awaited { until } if until <= self.now => {
                    let why = self.observer.why_absent(&peer.task);
                    let timeout_ns = self.settings.connect_timeout_ns;
                    let status = faults::connect_deadline(&peer.task, timeout_ns, why.as_deref());
                    self.give_up(at, &status);
                }
                PeerState::Away { until } if until <= self.now => {
                    let status = peer.away.clone().unwrap_or_else(faults::shutdown);
                    self.peer_lost(at, &status);
                }
                _ => {}
            }
        }
    }

    /// The step is to end by then, if it has not ended before. The earliest of several counts.
    pub(crate) fn end_by(&mut self, step: StepId, deadline: Nanos) -> Result<(), Status> {
        let slot = Slot {
            step,
            key: KeyId(0),
            at: FrameIter::default(),
        };
        // It counts among the steps alive, so there are no more deadlines than those.
        self.table
            .open_step(self.now, step)
            .map_err(|refusal| self.refused(refusal, slot))?;
        self.deadlines.set(step, deadline);
        self.next_timer = self.next_timer.min(deadline);
        Ok(())
    }

    /// Ends the steps whose time is over.
    fn expire_steps(&mut self) -> usize {
        let due = self.deadlines.due(self.now);
        for &step in &due {
            self.deadlines.forget(step);
            self.missed_in(step);
            self.fail_step(step, &faults::step_deadline(step));
        }
        due.len()
    }
}
