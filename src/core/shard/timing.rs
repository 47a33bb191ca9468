//! Timing: what the loop tells the stages, and what it counts of its own time.
//!
//! It does not affect a value's way, and does nothing for values that are not timed.

use super::Shard;
use super::core::Core;
use super::ids::{Id, LinkId, TaskId};
use super::keys::Route;
use super::value::Waiter;
use crate::ground::hash::fnv1a;
use crate::ground::{FrameIter, StepId, TaskName};
use crate::rendezvous::Slot;
use crate::trace::Path;
use crate::trace::recorder::What;
use crate::trace::stages::TimedValue;

impl Shard {
    /// Brings a task the next event, which is its.
    #[inline(always)]
    pub(super) fn tell_next(&mut self, task: TaskId, trace: u16) {
        if trace != 0 {
            self.call_timed(task, trace);
        } else {
            self.call_with(task, |core| core.events.pop());
        }
    }

    /// Whose time it was: of `turns` the last did something if `is_busy`, the others found nothing to do.
    #[inline]
    pub(super) fn account(&mut self, nanos: u64, turns: u32, is_busy: bool) {
        let stats = &mut self.core.stats;
        if !is_busy {
            stats.idle_ns += nanos;
            self.empty_ns = nanos / u64::from(turns.max(1));
            return;
        }
        let idle = (self.empty_ns * u64::from(turns.saturating_sub(1))).min(nanos);
        stats.idle_ns += idle;
        stats.busy_ns += nanos - idle;
        stats.longest_turn_ns = stats.longest_turn_ns.max(nanos - idle);
    }

    /// The value that the event brings is timed: until the task is called.
    #[cold]
    fn call_timed(&mut self, task: TaskId, trace: u16) {
        let woke = self.core.stages.wakes();
        self.call_with(task, |core| core.events.pop());
        self.core.stages.woke(trace, woke);
    }
}

impl Core {
    /// A timed value was queued for its link: the frame says when, and so do we.
    #[cold]
    pub(super) fn pushed(
        &mut self,
        (trace, bytes): (u16, u64),
        link: LinkId,
        slot: Slot,
        ordinal: u32,
    ) {
        let stamp = self.stages.stamp(trace);
        let subject = self.subject(slot, ordinal, bytes);
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        entry.channel.stamp_last(stamp);
        let path = if bytes as usize + 8 <= self.settings.inline_max {
            Path::Inline
        } else if entry.channel.reads_in_place() {
            Path::Lease
        } else {
            Path::Copy
        };
        let port = entry.qp.map_or(usize::MAX, |(port, _)| port);
        self.stages.sent(trace, port, path, &subject);
    }

    /// A frame said when it was posted: its value is timed here too.
    #[cold]
    pub(super) fn timed(
        &mut self,
        link: LinkId,
        slot: Slot,
        ordinal: u32,
        len: usize,
        stamp: u64,
        path: Path,
    ) -> u16 {
        let subject = self.subject(slot, ordinal, len as u64);
        let Some(entry) = self.links.at(link) else {
            return 0;
        };
        let port = entry.qp.map_or(usize::MAX, |(port, _)| port);
        self.stages
            .arrived(stamp, entry.peer.row(), port, path, &subject)
    }

    /// Whose value it is, for the stages.
    #[cold]
    pub(crate) fn subject(&self, slot: Slot, ordinal: u32, bytes: u64) -> TimedValue {
        TimedValue {
            step: slot.step,
            at: slot.at,
            key: self.keys.at(slot.key).map_or(0, |entry| entry.key.hash()),
            ordinal,
            bytes,
        }
    }

    /// A step's deadline passed: every receive in it missed it.
    pub(super) fn missed_in(&mut self, step: StepId) {
        let mut slots = Vec::new();
        self.table.waiting_in(step, |slot, _, waiter, _| {
            if !matches!(waiter, Waiter::Asked(_)) {
                slots.push(slot);
            }
        });
        slots.into_iter().for_each(|slot| self.missed(slot));
    }

    /// A peer came or went.
    #[cold]
    pub(super) fn remember_peer(&mut self, what: What, task: &TaskName) {
        if self.stages.is_on() {
            let name = task.to_string();
            // A place among the names of keys, whose hashes are of another kind.
            let hash = fnv1a(name.as_bytes());
            self.stages.name(hash, &name);
            let subject = TimedValue {
                step: StepId(0),
                at: FrameIter::default(),
                key: hash,
                ordinal: 0,
                bytes: 0,
            };
            self.stages.note(what, &subject, 0);
        }
    }

    /// Something rare happened at a slot.
    #[cold]
    pub(crate) fn remember(&mut self, what: What, slot: Slot, bytes: u64, a: u64) {
        if self.stages.is_on() {
            let subject = self.subject(slot, 0, bytes);
            self.stages.note(what, &subject, a);
        }
    }

    /// A receive's deadline passed: what it waited for is counted, and kept for later inspection.
    pub(super) fn missed(&mut self, slot: Slot) {
        let entry = self
            .keys
            .at(slot.key)
            .map(|entry| (entry.way.route, entry.way.link));
        // What stands where a receive waited was on its way to it.
        let is_offered = !self.table.is_clear(&slot);
        let is_up = |link: LinkId| {
            let link = self.links.at(link);
            link.is_some_and(|link| link.channel.is_up())
        };
        let counter = match entry {
            Some((Route::In { .. }, link)) if !is_up(link) => &mut self.stats.missed_unconnected,
            Some((Route::In { .. }, _)) if is_offered => &mut self.stats.missed_fetching,
            Some((Route::In { .. }, _)) => &mut self.stats.missed_unsent,
            _ => &mut self.stats.missed_here,
        };
        *counter += 1;
        self.remember(What::Missed, slot, 0, 0);
        if let Some(key) = self.key_of(slot) {
            self.observer.deadline_missed(slot.step, &key);
        }
    }
}
