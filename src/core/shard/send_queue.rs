//! Send queue: sends that wait for room in the shard, in the order in which they came.
//!
//! It knows which sends wait, at which slot and in which step; `admission.rs` knows what room there is and which may
//! go. It is bounded by the permits of waiting sends, and empty in a shard that keeps up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    pub(crate) _permit: Option<Permit>,
}

/// A slot, in an order of no meaning.
pub(crate) type Place = (StepId, u32, u64, u64);

/// All sends that wait. The number of each is its turn.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    blocked_sends: BTreeMap<u64, BlockedSend>,
    next: u64,
    slots: BTreeMap<Place, VecDeque<u64>>,
    steps: BTreeMap<StepId, BTreeSet<u64>>,
    /// How many wait at each key.
    keys: BTreeMap<KeyId, u32>,
    /// Slots at which a receiver began to wait for a value that stands here.
    pub(crate) wanted: Vec<Slot>,
    /// A peer has credit again, or is there.
    pub(crate) is_stirred: bool,
    /// A send was admitted although there was no room: the recorded refusals of the others may be out of date.
    pub(crate) is_stale: bool,
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
            _permit: None,
        }
    }

    /// The same, of a sender that waits for the outcome until `deadline`.
    pub(crate) fn until(self, deadline: Nanos, permit: Permit) -> Self {
        Self {
            deadline,
            _permit: Some(permit),
            ..self
        }
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
        self.heads()
            .any(|blocked| blocked.refusal != Refusal::ParkedBytesOfStep)
    }

    /// Lets a send wait.
    pub(crate) fn enter(&mut self, blocked: BlockedSend) {
        let turn = self.next;
        self.next += 1;
        blocked.cell.outcome.sit(turn);
        let (slot, step) = (place(&blocked.slot), blocked.slot.step);
        self.slots.entry(slot).or_default().push_back(turn);
        self.steps.entry(step).or_default().insert(turn);
        *self.keys.entry(blocked.slot.key).or_default() += 1;
        self.blocked_sends.insert(turn, blocked);
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
        let at = place(&blocked.slot);
        if let Some(turns) = self.slots.get_mut(&at) {
            turns.retain(|&other| other != turn);
            if turns.is_empty() {
                self.slots.remove(&at);
            }
        }
        if let Some(turns) = self.steps.get_mut(&blocked.slot.step) {
            turns.remove(&turn);
            if turns.is_empty() {
                self.steps.remove(&blocked.slot.step);
            }
        }
        self.is_stale = true;
        if self.blocked_sends.is_empty() {
            // Flags raised for the waiting sends end with them.
            self.wanted.clear();
            self.is_stirred = false;
            self.is_stale = false;
        }
        Some(blocked)
    }

    pub(crate) fn at(&self, turn: u64) -> Option<&BlockedSend> {
        self.blocked_sends.get(&turn)
    }

    pub(crate) fn at_mut(&mut self, turn: u64) -> Option<&mut BlockedSend> {
        self.blocked_sends.get_mut(&turn)
    }

    /// The oldest at a slot.
    pub(crate) fn first_at(&self, slot: &Slot) -> Option<u64> {
        self.slots.get(&place(slot))?.front().copied()
    }

    /// The oldest of each step.
    pub(crate) fn heads(&self) -> impl Iterator<Item = &BlockedSend> {
        let turns = self.steps.values().filter_map(BTreeSet::first);
        turns.filter_map(|turn| self.blocked_sends.get(turn))
    }

    /// How many steps have a send here.
    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The first whose turn is `from` or later.
    pub(crate) fn from(&self, from: u64) -> Option<(u64, &BlockedSend)> {
        self.blocked_sends
            .range(from..)
            .next()
            .map(|(&turn, blocked)| (turn, blocked))
    }

    /// All waiting sends, oldest first.
    pub(crate) fn blocked_sends(&self) -> impl Iterator<Item = (u64, &BlockedSend)> {
        self.blocked_sends
            .iter()
            .map(|(&turn, blocked)| (turn, blocked))
    }

    /// Each send that `goes` picks ends with `status`.
    pub(crate) fn fail(&mut self, status: &Status, goes: impl Fn(&BlockedSend) -> bool) {
        let turns: Vec<_> = self
            .blocked_sends()
            .filter(|(_, blocked)| goes(blocked))
            .map(|(turn, _)| turn)
            .collect();
        for turn in turns {
            if let Some(blocked) = self.leave(turn) {
                blocked.fail(status);
            }
        }
    }

    /// When the first of them gives up. A walk over all: for a timer that fired, not for each turn.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.blocked_sends
            .values()
            .map(|blocked| blocked.deadline)
            .min()
    }
}
