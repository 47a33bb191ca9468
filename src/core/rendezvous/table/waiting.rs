//! Who waits at one rendezvous point: they come, they leave, and the oldest takes a value.
//!
//! Does not know what a value is, nor why a waiter leaves.

use super::super::names::{Origin, WaiterId, is_timed};
use super::super::refusal::Refusal;
use super::super::slab::NONE;
use super::Table;
use crate::ground::Nanos;

impl<V, W: Copy> Table<V, W> {
    /// Adds a waiter behind all others.
    pub(super) fn join(
        &mut self,
        now: Nanos,
        at: u32,
        tag: W,
        deadline: Nanos,
    ) -> Result<WaiterId, Refusal> {
        let record = self.records.at_mut(at);
        let waiter = self.waiters.admit(record.waiters(), tag, now)?;
        if record.is_idle() && !is_timed(deadline) {
            return Ok(record.seat(at, waiter));
        }
        let before = record.surplus();
        let id = record.change(|_, list| self.waiters.push(list, at, waiter, deadline));
        // What stood there for no waiter is no more parked.
        self.room.count(0, before, record.surplus());
        Ok(id)
    }

    /// As [`Table::wait`], behind others.
    #[inline(never)]
    pub(super) fn wait_behind(&mut self, now: Nanos, at: u32, tag: W) -> Option<(WaiterId, u32)> {
        let record = self.records.at_mut(at);
        if record.is_grace() || record.has_items() {
            return None;
        }
        let others = record.waiters();
        let ordinal = record.next_ordinal().wrapping_add(others);
        let waiter = self.waiters.admit(others, tag, now).ok()?;
        let id = record.change(|_, list| self.waiters.push(list, at, waiter, Nanos::NEVER));
        Some((id, ordinal))
    }

    /// Takes a waiter out: the one at that place among the listed, or the oldest.
    #[inline(never)]
    pub(super) fn leave(&mut self, at: u32, listed: Option<u32>) -> Option<W> {
        let record = self.records.at_mut(at);
        let before = record.surplus();
        let seated = match listed {
            Some(_) => None,
            None => record.unseat(),
        };
        let tag = match seated {
            Some(tag) => {
                self.waiters.dismiss();
                tag
            }
            None => {
                let index = listed.unwrap_or_else(|| record.listed().head());
                if index == NONE {
                    return None;
                }
                record.change(|_, list| self.waiters.remove(list, index))
            }
        };
        self.room.count(0, before, record.surplus());
        Some(tag)
    }

    /// The oldest waiter, if a value goes to it at once: the value has that ordinal then, which is not below the next.
    #[inline]
    pub(super) fn meet(&mut self, at: u32, ordinal: u32) -> Option<W> {
        let record = self.records.at_mut(at);
        if let Some(waiter) = record.meet(ordinal) {
            self.waiters.dismiss();
            return Some(waiter);
        }
        if !record.is_awaited() || record.has_items() {
            return None;
        }
        record.give(ordinal);
        Some(record.change(|_, list| self.waiters.remove(list, list.head())))
    }

    /// As [`Table::claim`], of a point whose record is known, and where the first waiter may stand in the list.
    #[inline(never)]
    pub(super) fn claim_listed(&mut self, at: u32, ordinal: u32) -> Option<(W, Origin)> {
        let waiter = self.meet(at, ordinal)?;
        Some((waiter, self.records.origin(at, ordinal)))
    }
}
