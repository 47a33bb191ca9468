//! Unread: values that were handed over and not read. They go back to where they lay, and to the next waiter there.
//!
//! A receive that is dropped, or cancelled, or whose task ends, loses nothing: its value stands before all that was
//! sent after it, holds no credit any more, and no bound refuses it. It is lost only if its step has ended meanwhile,
//! or its peer was given up.

use super::TaskEvent;
use super::core::Core;
use super::events::EventHead;
use super::ids::{LinkId, NO_LINK, TaskId};
use super::value::{NOT_LENT, Value, Waiter};
use crate::ground::{Status, faults};
use crate::mail::call::ShardMessage;
use crate::mail::stops::Stops;
use crate::mail::wait::WaitCell;
use crate::mail::{Handed, Received};
use crate::rendezvous::{Origin, PushOutcome, Slot};
use crate::trace::Path;

impl Core {
    /// A receive of a task ended; a value came from that shard's table.
    #[inline]
    pub(super) fn tell_received(
        &mut self,
        task: TaskId,
        token: u64,
        trace: u16,
        shard: u16,
        outcome: Result<Handed, Status>,
    ) {
        let (from, outcome) = match outcome {
            Ok(Handed { received, from }) => (from, Ok(received)),
            Err(status) => (Origin::NOWHERE, Err(status)),
        };
        let head = EventHead {
            task,
            trace,
            shard,
            from,
        };
        self.events
            .push(head, TaskEvent::Received { token, outcome });
    }

    /// Brings an application thread its outcome, unless it was cancelled or is gone: then a value comes back.
    pub(super) fn bring_to_thread(
        &mut self,
        cell: &WaitCell<Handed>,
        stops: Option<&Stops>,
        trace: u16,
        outcome: Result<Handed, Status>,
    ) -> Option<Handed> {
        // Looked at with the value in hand: one that was sent after the cancel finds it here.
        if stops.is_some_and(Stops::is_raised) && !mutant!("cancelled_receives_take_values") {
            cell.complete(Err(faults::cancelled()));
            return outcome.ok();
        }
        if trace != 0 {
            cell.wakes(self.waking_of(trace));
        }
        cell.complete(outcome)?.ok()
    }

    /// A value that was handed over goes back to where it lay, or to the next waiter there.
    #[cold]
    pub(super) fn unread(&mut self, unread: Handed) {
        if mutant!("unread_values_lost") {
            return;
        }
        let mut unread = unread;
        loop {
            let Handed { received, from } = unread;
            let Received {
                tensor,
                is_dead,
                path,
            } = received;
            self.stats.returned += 1;
            if path == Path::Lease {
                self.unhold(&tensor);
            }
            // Its credit went back when it was handed over.
            let value = Value {
                tensor,
                is_dead,
                path,
                trace: 0,
                lines: 0,
                link: NO_LINK,
                lent: NOT_LENT,
            };
            let Some(slot) = self.table.slot_of(from) else {
                self.stats.dropped += 1;
                return;
            };
            let bytes = value.parked_bytes();
            let Ok(PushOutcome::Matched {
                waiter,
                value,
                from,
            }) = self.table.give_back(self.now, from, value, bytes)
            else {
                return;
            };
            self.settle_demands(slot);
            let handed = self.handed(value, from);
            match self.bring(waiter, Ok(handed)) {
                Some(again) => unread = again,
                None => return,
            }
        }
    }

    /// Values for several waiters, in their order: what one does not want any more goes to the next, and the rest goes
    /// back.
    pub(super) fn hand_over_in_order(
        &mut self,
        link: LinkId,
        slot: Slot,
        matched: Vec<(Waiter, Value, Origin)>,
    ) {
        let (waiters, values): (Vec<_>, Vec<_>) = matched
            .into_iter()
            .map(|(waiter, value, from)| (waiter, (value, from)))
            .unzip();
        let mut values = values.into_iter();
        let mut unread = None;
        for waiter in waiters {
            let handed = match unread.take() {
                Some(unread) => unread,
                None => match values.next() {
                    Some((value, from)) => self.handed(value, from),
                    None => break,
                },
            };
            unread = self.bring(waiter, Ok(handed));
            if unread.is_some() {
                self.stats.returned += 1;
                self.stats.delivered += 1;
            }
        }
        if let Some(unread) = unread {
            self.unread(unread);
        }
        for (value, from) in values {
            let unread = self.handed(value, from);
            self.unread(unread);
        }
        self.settle_demands_of(link, slot);
    }

    /// A task is gone: what it was about to be brought goes back.
    pub(super) fn give_back_events(&mut self, task: TaskId) {
        let mut unread = Vec::new();
        for _ in 0..self.events.len() {
            let Some(head) = self.events.front() else {
                break;
            };
            let event = self.events.pop();
            if head.task != task {
                self.events.push(head, event);
            } else if let TaskEvent::Received {
                outcome: Ok(received),
                ..
            } = event
            {
                let from = head.from;
                unread.push((head.shard, Handed { received, from }));
            }
        }
        for (shard, handed) in unread {
            if shard == self.index {
                self.unread(handed);
            } else {
                self.neighbour_queues
                    .push(shard, ShardMessage::Unread(handed));
            }
        }
    }
}
