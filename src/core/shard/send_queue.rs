//! Send queue: sends that wait for room in the shard, in the order in which they came.
//!
//! It knows which sends wait, at which slot and in which step; `admission.rs` knows what room there is and which may
//! go. It is bounded by the permits of waiting sends, and empty in a shard that keeps up.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ground::{Nanos, Status, StepId};
use crate::mail::pending_send::{Permit, SendCell};
use crate::rendezvous::{KeyId, Refusal, Slot};

/// A send that waits.
#[derive(Debug)]
pub(crate) struct BlockedSend {
    pub(crate) slot: Slot,
    pub(crate) is_dead: bool,
    pub(crate) bytes: u64,
    pub(crate) deadline: Nanos,
    /// When it began to wait.
    pub(crate) since: Nanos,
    pub(crate) cell: Arc<SendCell>,
    /// The bound it met last.
    pub(crate) refusal: Refusal,
    /// Its place among the waiting sends; none if its sender was already told that it was taken.
    pub(crate) permit: Option<Permit>,
}

/// A slot, in an order of no meaning.
pub(crate) type Place = (StepId, u32, u64, u64);

/// All sends that wait. The number of each is its turn.
///
/// The oldest of a step is its head. While it waits, none of its step may go by room.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    blocked_sends: BTreeMap<u64, BlockedSend>,
    next: u64,
    slots: BTreeMap<Place, BTreeSet<u64>>,
    steps: BTreeMap<StepId, BTreeSet<u64>>,
    /// The heads that wait for the shard's room, or behind one that does.
    shut: BTreeSet<u64>,
    /// Those to look at: something changed that they may have waited for.
    due: BTreeSet<u64>,
    /// Those whose wait has an end.
    deadlines: BTreeSet<(Nanos, u64)>,
    /// How many wait at each key.
    keys: BTreeMap<KeyId, u32>,
    /// Slots at which a receiver began to wait for a value that stands here.
    pub(crate) wanted: Vec<Slot>,
    /// A peer has credit again, or is there.
    pub(crate) is_stirred: bool,
    /// How many sends were looked at.
    #[cfg(test)]
    pub(crate) looks: std::cell::Cell<u64>,
}

pub(crate) const fn place(slot: &Slot) -> Place {
    (slot.step, slot.key.0, slot.at.frame, slot.at.iter)
}

impl BlockedSend {
    /// A send whose sender was told that it was taken: there is no end to its wait.
    pub(crate) const fn new(
        slot: Slot,
        is_dead: bool,
        bytes: u64,
        cell: Arc<SendCell>,
        refusal: Refusal,
        now: Nanos,
    ) -> Self {
        Self {
            slot,
            is_dead,
            bytes,
            deadline: Nanos::NEVER,
            since: now,
            cell,
            refusal,
            permit: None,
        }
    }

    /// The same, of a sender that waits for the outcome until `deadline`.
    pub(crate) fn until(self, deadline: Nanos, permit: Permit) -> Self {
        Self {
            deadline,
            permit: Some(permit),
            ..self
        }
    }

    /// True if its sender hears what becomes of it.
    pub(crate) const fn is_heard(&self) -> bool {
        self.permit.is_some()
    }

    /// Ends its wait with a failure. The tensor stays where its sender finds it.
    pub(crate) fn fail(self, status: &Status) {
        self.cell.outcome.complete(Err(status.clone()));
    }
}

impl SendQueue {
    /// True if no send waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.blocked_sends.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.blocked_sends.len()
    }

    /// True if a send waits at the slot: a later one there may not go first.
    pub(crate) fn has_slot(&self, slot: &Slot) -> bool {
        self.slots.contains_key(&place(slot))
    }

    /// The bound that the oldest of a step met.
    pub(crate) fn bound_of(&self, step: StepId) -> Option<Refusal> {
        let first = self.steps.get(&step)?.first()?;
        self.blocked_sends.get(first).map(|blocked| blocked.refusal)
    }

    /// True if a send waits for a bound of the whole shard: no later one may go first.
    pub(crate) fn is_shut(&self) -> bool {
        !self.shut.is_empty()
    }

    /// True if a send waits for a bound of the whole shard, and came before this one.
    pub(crate) fn is_shut_before(&self, turn: u64) -> bool {
        self.shut.first().is_some_and(|&first| first < turn)
    }

    /// Lets a send wait. True if it is its step's head and waits for room in it.
    pub(crate) fn enter(&mut self, blocked: BlockedSend) -> bool {
        let turn = self.next;
        self.next += 1;
        blocked.cell.outcome.sit(turn);
        let (slot, step) = (place(&blocked.slot), blocked.slot.step);
        let refusal = blocked.refusal;
        self.slots.entry(slot).or_default().insert(turn);
        self.steps.entry(step).or_default().insert(turn);
        *self.keys.entry(blocked.slot.key).or_default() += 1;
        if blocked.deadline != Nanos::NEVER {
            self.deadlines.insert((blocked.deadline, turn));
        }
        self.blocked_sends.insert(turn, blocked);
        self.refuse(turn, refusal)
    }

    /// It was looked at, and met this bound. True if it is its step's head and waits for room in it.
    pub(crate) fn refuse(&mut self, turn: u64, refusal: Refusal) -> bool {
        let Some(blocked) = self.blocked_sends.get_mut(&turn) else {
            return false;
        };
        blocked.refusal = refusal;
        let step = blocked.slot.step;
        if self.head_of(step) != Some(turn) {
            return false;
        }
        let waits_in_step = refusal == Refusal::ParkedBytesOfStep;
        if waits_in_step {
            self.unshut(turn);
        } else {
            self.shut.insert(turn);
        }
        waits_in_step
    }

    /// A head that may have room in its step stands behind one that needs the shard's.
    pub(crate) fn stand_behind(&mut self, head: u64) {
        self.shut.insert(head);
    }

    /// One that no longer waits for the shard's room; if it was the first, the next is due.
    fn unshut(&mut self, turn: u64) {
        if self.shut.remove(&turn)
            && let Some(&first) = self.shut.first()
            && first > turn
        {
            self.due.insert(first);
        }
    }

    /// True if a send waits at the key.
    pub(crate) fn has_key(&self, key: KeyId) -> bool {
        self.keys.contains_key(&key)
    }

    /// Takes a send out.
    pub(crate) fn leave(&mut self, turn: u64) -> Option<BlockedSend> {
        let blocked = self.blocked_sends.remove(&turn)?;
        if let Some(count) = self.keys.get_mut(&blocked.slot.key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&blocked.slot.key);
            }
        }
        self.deadlines.remove(&(blocked.deadline, turn));
        self.due.remove(&turn);
        self.unshut(turn);
        // What is the first now was behind this one, and has not been looked at as the first.
        let slot = place(&blocked.slot);
        let next_of_slot = succeed(&mut self.slots, slot, turn);
        let next_of_step = succeed(&mut self.steps, blocked.slot.step, turn);
        self.due
            .extend(next_of_slot.into_iter().chain(next_of_step));
        if self.blocked_sends.is_empty() {
            // Flags raised for the waiting sends end with them.
            self.wanted.clear();
            self.is_stirred = false;
        }
        Some(blocked)
    }

    pub(crate) fn at(&self, turn: u64) -> Option<&BlockedSend> {
        self.blocked_sends.get(&turn)
    }

    /// The oldest at a slot.
    pub(crate) fn first_at(&self, slot: &Slot) -> Option<u64> {
        self.slots.get(&place(slot))?.first().copied()
    }

    /// The oldest of a step.
    pub(crate) fn head_of(&self, step: StepId) -> Option<u64> {
        self.steps.get(&step)?.first().copied()
    }

    /// The oldest of those that wait for the shard's room.
    pub(crate) fn first_shut(&self) -> Option<(u64, &BlockedSend)> {
        let &turn = self.shut.first()?;
        Some((turn, self.blocked_sends.get(&turn)?))
    }

    /// Something changed that this one may have waited for.
    pub(crate) fn make_due(&mut self, turn: u64) {
        self.due.insert(turn);
    }

    /// Something changed that any of them may have waited for.
    pub(crate) fn make_all_due(&mut self) {
        self.due.extend(self.blocked_sends.keys());
    }

    /// True if one is to be looked at.
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The oldest of those to look at, which is looked at now.
    pub(crate) fn next_due(&mut self) -> Option<(u64, &BlockedSend)> {
        let turn = self.due.pop_first()?;
        self.look();
        Some((turn, self.blocked_sends.get(&turn)?))
    }

    fn look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    /// All waiting sends, oldest first.
    pub(crate) fn blocked_sends(&self) -> impl Iterator<Item = (u64, &BlockedSend)> {
        self.blocked_sends.iter().map(|(&turn, blocked)| {
            self.look();
            (turn, blocked)
        })
    }

    /// Each send that `goes` picks ends with `status`.
    pub(crate) fn fail(&mut self, status: &Status, goes: impl Fn(&BlockedSend) -> bool) {
        let turns: Vec<_> = self
            .blocked_sends()
            .filter(|(_, blocked)| goes(blocked))
            .map(|(turn, _)| turn)
            .collect();
        self.fail_all(turns, status);
    }

    /// Each send of a step ends with `status`.
    pub(crate) fn fail_step(&mut self, step: StepId, status: &Status) {
        let turns = self.steps.get(&step).cloned().unwrap_or_default();
        self.fail_all(turns, status);
    }

    fn fail_all(&mut self, turns: impl IntoIterator<Item = u64>, status: &Status) {
        for turn in turns {
            if let Some(blocked) = self.leave(turn) {
                blocked.fail(status);
            }
        }
    }

    /// When the first of them gives up.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Takes out the first one that gives up by `now`.
    pub(crate) fn expire_one(&mut self, now: Nanos) -> Option<BlockedSend> {
        let &(_, turn) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.look();
        self.leave(turn)
    }
}

/// A turn leaves the list of its kind. The one that is the first in its place, if it was the first.
fn succeed<K: Ord>(lists: &mut BTreeMap<K, BTreeSet<u64>>, of: K, turn: u64) -> Option<u64> {
    let Entry::Occupied(mut list) = lists.entry(of) else {
        return None;
    };
    let was_first = list.get().first() == Some(&turn);
    list.get_mut().remove(&turn);
    let next = list.get().first().copied();
    if next.is_none() {
        list.remove();
    }
    next.filter(|_| was_first)
}
