//! Anteroom: sends that wait for room in the shard, in the order in which they came.
//!
//! It knows which sends wait, at which slot and in which step; `admitting.rs` knows what room there is and which may
//! go. It is bounded by the permits of waiting sends, and empty in a shard that keeps up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::ground::{Nanos, Status, StepId};
use crate::mail::parcel::{Permit, SendCell};
use crate::rendezvous::{KeyId, Refusal, Slot};

/// A send that waits.
#[derive(Debug)]
pub(crate) struct Guest {
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

/// All sends that wait. The number of a guest is its turn.
#[derive(Debug, Default)]
pub(crate) struct Anteroom {
    guests: BTreeMap<u64, Guest>,
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

impl Guest {
    /// Ends its wait with a failure. The tensor stays where its sender finds it.
    pub(crate) fn fail(self, status: &Status) {
        self.cell.outcome.complete(Err(status.clone()));
    }
}

impl Anteroom {
    /// True if no send waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.guests.len()
    }

    /// True if a send waits at the slot: a later one there may not go first.
    pub(crate) fn has_slot(&self, slot: &Slot) -> bool {
        self.slots.contains_key(&place(slot))
    }

    /// The bound that the oldest of a step met.
    pub(crate) fn bound_of(&self, step: StepId) -> Option<Refusal> {
        let first = self.steps.get(&step)?.first()?;
        self.guests.get(first).map(|guest| guest.refusal)
    }

    /// True if a send waits for a bound of the whole shard: no later one may go first.
    pub(crate) fn is_shut(&self) -> bool {
        self.heads()
            .any(|guest| guest.refusal != Refusal::ParkedBytesOfStep)
    }

    /// Lets a send wait.
    pub(crate) fn enter(&mut self, guest: Guest) {
        let turn = self.next;
        self.next += 1;
        guest.cell.outcome.sit(turn);
        let (slot, step) = (place(&guest.slot), guest.slot.step);
        self.slots.entry(slot).or_default().push_back(turn);
        self.steps.entry(step).or_default().insert(turn);
        *self.keys.entry(guest.slot.key).or_default() += 1;
        self.guests.insert(turn, guest);
    }

    /// True if a send waits at the key.
    pub(crate) fn has_key(&self, key: KeyId) -> bool {
        self.keys.contains_key(&key)
    }

    /// Takes a send out.
    pub(crate) fn leave(&mut self, turn: u64) -> Option<Guest> {
        let guest = self.guests.remove(&turn)?;
        if let Some(count) = self.keys.get_mut(&guest.slot.key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&guest.slot.key);
            }
        }
        let at = place(&guest.slot);
        if let Some(turns) = self.slots.get_mut(&at) {
            turns.retain(|&other| other != turn);
            if turns.is_empty() {
                self.slots.remove(&at);
            }
        }
        if let Some(turns) = self.steps.get_mut(&guest.slot.step) {
            turns.remove(&turn);
            if turns.is_empty() {
                self.steps.remove(&guest.slot.step);
            }
        }
        self.is_stale = true;
        if self.guests.is_empty() {
            // Flags raised for the waiting sends end with them.
            self.wanted.clear();
            self.is_stirred = false;
            self.is_stale = false;
        }
        Some(guest)
    }

    pub(crate) fn at(&self, turn: u64) -> Option<&Guest> {
        self.guests.get(&turn)
    }

    pub(crate) fn at_mut(&mut self, turn: u64) -> Option<&mut Guest> {
        self.guests.get_mut(&turn)
    }

    /// The oldest at a slot.
    pub(crate) fn first_at(&self, slot: &Slot) -> Option<u64> {
        self.slots.get(&place(slot))?.front().copied()
    }

    /// The oldest of each step.
    pub(crate) fn heads(&self) -> impl Iterator<Item = &Guest> {
        let turns = self.steps.values().filter_map(BTreeSet::first);
        turns.filter_map(|turn| self.guests.get(turn))
    }

    /// How many steps have a send here.
    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The first whose turn is `from` or later.
    pub(crate) fn from(&self, from: u64) -> Option<(u64, &Guest)> {
        self.guests
            .range(from..)
            .next()
            .map(|(&turn, guest)| (turn, guest))
    }

    /// All waiting sends, oldest first.
    pub(crate) fn guests(&self) -> impl Iterator<Item = (u64, &Guest)> {
        self.guests.iter().map(|(&turn, guest)| (turn, guest))
    }

    /// Each send that `goes` picks ends with `status`.
    pub(crate) fn fail(&mut self, status: &Status, goes: impl Fn(&Guest) -> bool) {
        let turns: Vec<_> = self
            .guests()
            .filter(|(_, guest)| goes(guest))
            .map(|(turn, _)| turn)
            .collect();
        for turn in turns {
            if let Some(guest) = self.leave(turn) {
                guest.fail(status);
            }
        }
    }

    /// When the first of them gives up. A walk over all: for a timer that fired, not for each turn.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.guests.values().map(|guest| guest.deadline).min()
    }
}
