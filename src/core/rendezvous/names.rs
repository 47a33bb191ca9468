//! The types of the table's interface: what it is asked, and what it answers.
//!
//! Plain data; nothing here decides anything.

use crate::ground::key::FrameIter;
use crate::ground::{Nanos, StepId, limits};

/// An interned (source, destination, edge) of this shard. Exact: two keys alive never share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KeyId(pub u32);

/// A rendezvous point, in full: where one sender and one receiver meet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Slot {
    /// The step.
    pub step: StepId,
    /// Source, destination and edge.
    pub key: KeyId,
    /// The loop frame and iteration.
    pub at: FrameIter,
}

/// Names a waiter of this table. One that has ended is recognised and never mistaken for its successor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaiterId {
    place: u32,
    generation: u32,
}

impl WaiterId {
    /// Set in the place of a waiter that lies in a record, whose number the rest is. No slab has so many places.
    pub(super) const SEAT: u32 = 1 << 31;

    #[inline]
    pub(crate) const fn new(place: u32, generation: u32) -> Self {
        Self { place, generation }
    }

    pub(super) const fn place(self) -> u32 {
        self.place
    }
}

/// Where a value lay that was handed over: a receiver that does not read it gives it back there, by
/// [`give_back`](super::Table::give_back). A place that has ended since is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    pub(super) record: u32,
    pub(super) ordinal: u32,
    /// How many places there had been when it was handed over.
    pub(super) births: u64,
}

impl Origin {
    /// Of what never lay in a table.
    pub(crate) const NOWHERE: Self = Self {
        record: u32::MAX,
        ordinal: 0,
        births: 0,
    };

    /// The ordinal of the value.
    #[must_use]
    pub const fn ordinal(&self) -> u32 {
        self.ordinal
    }
}

/// The bounds of a table, each a setting of the same name. The defaults stand in [`limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Rendezvous points remembered at once.
    pub records: u32,
    /// Values and offers parked, over all keys. Those that a receiver waits for do not count: they go to their waiters,
    /// whose number is bounded. When waiters leave, what they leave behind counts, beyond this bound if it must.
    pub values: u32,
    /// Waiters, over all keys.
    pub waiters: u32,
    /// Waiters of one rendezvous point.
    pub waiters_per_key: u32,
    /// Bytes of all parked values.
    pub parked_bytes: u64,
    /// Bytes of the parked values of one step.
    pub parked_bytes_per_step: u64,
    /// Steps alive through local use.
    pub steps: u32,
    /// Ended steps remembered; the oldest is forgotten first.
    pub tombstones: u32,
    /// Steps that only peers have spoken of.
    pub grace_steps: u32,
    /// How long such a step waits for its first local use, in nanoseconds.
    pub grace_ttl_ns: u64,
    /// Mixed into the hash of slots, so that a peer cannot choose numbers that collide. Draw it per shard.
    pub hash_seed: u64,
    /// The ordinal of a slot's first value, the same at all tasks: 0, but in a simulation, where the numbers soon begin
    /// anew.
    pub first_ordinal: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records: limits::TABLE_RECORDS,
            values: limits::TABLE_VALUES,
            waiters: limits::TABLE_WAITERS,
            waiters_per_key: limits::WAITERS_PER_KEY,
            parked_bytes: limits::PARKED_BYTES,
            parked_bytes_per_step: limits::PARKED_BYTES_PER_STEP,
            steps: limits::STEPS,
            tombstones: limits::TOMBSTONES,
            grace_steps: limits::GRACE_STEPS,
            grace_ttl_ns: limits::GRACE_TTL_NS,
            hash_seed: 0,
            first_ordinal: 0,
        }
    }
}

/// What became of a local value. `ordinal` counts the values of a slot; after 2^32 it begins anew.
#[derive(PartialEq, Eq, Debug)]
pub enum Sent<V, W> {
    /// The oldest waiter takes it.
    Matched {
        /// The waiter.
        waiter: W,
        /// The value, back.
        value: V,
        /// Where it goes back if it is not read.
        from: Origin,
    },
    /// It waits for a receive.
    Parked {
        /// Its ordinal.
        ordinal: u32,
    },
}

/// What became of a receive.
#[derive(PartialEq, Eq, Debug)]
pub enum ReceiveOutcome<V> {
    /// The oldest value.
    Ready {
        /// The value.
        value: V,
        /// Where it goes back if it is not read.
        from: Origin,
    },
    /// Nothing is here for it: if the source is a peer, ask it for `ordinal`.
    Waiting {
        /// The waiter.
        id: WaiterId,
        /// The ordinal that will be its turn.
        ordinal: u32,
    },
    /// A peer's offer is here for it: fetch its bytes, then [`supply`](super::Table::supply) them.
    Fetch {
        /// The waiter.
        id: WaiterId,
        /// The offer.
        token: u64,
    },
    /// What it will get is here or being fetched, behind an older offer that is being fetched: nothing to ask for.
    Behind {
        /// The waiter.
        id: WaiterId,
    },
}

/// The ordinal that the next value of a slot gets, whose way is clear.
#[derive(Debug)]
pub struct NextOrdinal<'a>(pub(super) &'a mut u32);

impl NextOrdinal<'_> {
    /// Which it is.
    #[inline(always)]
    #[must_use]
    pub const fn get(&self) -> u32 {
        *self.0
    }

    /// The value has left with it.
    #[inline(always)]
    pub const fn give(self) {
        *self.0 = self.0.wrapping_add(1);
    }
}

/// What a peer pushes.
#[derive(PartialEq, Eq, Debug)]
pub enum Arrived<V> {
    /// A value with its bytes.
    Value(V),
    /// A place in the queue whose bytes must be fetched first, by this token.
    Offer(u64),
}

/// What became of a pushed value or offer.
#[derive(PartialEq, Eq, Debug)]
pub enum PushOutcome<V, W> {
    /// The oldest waiter takes the value.
    Matched {
        /// The waiter.
        waiter: W,
        /// The value, back.
        value: V,
        /// Where it goes back if it is not read.
        from: Origin,
    },
    /// It waits for a receive, or for an older offer that is still being fetched.
    Parked,
    /// The offer is wanted by a waiter already: fetch it.
    Wanted {
        /// The offer.
        token: u64,
    },
    /// Its ordinal was here before: the item, back.
    Duplicate(Arrived<V>),
}

/// What to do after an offer was withdrawn.
#[derive(PartialEq, Eq, Debug)]
pub enum Withdrawn<V, W> {
    /// A value stood behind the offer: it goes to this waiter, and back to where it lay if it is not read.
    Matched(W, V, Origin),
    /// The next offer is wanted now: fetch it.
    Wanted(u64),
    /// A waiter has nothing to expect any more: ask the peer for this ordinal.
    Ask(u32),
}

/// A place among the values of a slot, given by [`pass`](super::Table::pass) and valid in the same breath only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an ordinal was given: push the value with it, or park it"]
pub struct QueuePosition(pub(super) Origin);

impl QueuePosition {
    /// The ordinal of the value.
    #[must_use]
    pub const fn ordinal(&self) -> u32 {
        self.0.ordinal
    }
}

/// Where a value goes whose destination is elsewhere. Each has taken the slot's next ordinal.
#[derive(PartialEq, Eq, Debug)]
pub enum Pass<W> {
    /// The oldest request of the peer takes it.
    Waiter {
        /// The request.
        waiter: W,
        /// The value's ordinal.
        ordinal: u32,
    },
    /// Nothing is queued ahead: push it to the peer with the ticket's ordinal, or park it.
    Clear(QueuePosition),
    /// Values are parked ahead: park it.
    Behind(QueuePosition),
}

/// What became of a peer's request.
#[derive(PartialEq, Eq, Debug)]
pub enum Requested<V> {
    /// That ordinal left already: nothing to do.
    AlreadySent,
    /// The oldest parked value. Its ordinal is never above the one asked for.
    Ready {
        /// The value.
        value: V,
        /// Its ordinal.
        ordinal: u32,
    },
    /// The request waits for a value.
    Waiting {
        /// The request, for cancel.
        id: WaiterId,
    },
}

/// A waiter or an item that ended with a step, or with a peer. Values go back whole, so their owner can free them.
#[derive(PartialEq, Eq, Debug)]
pub enum Ended<V, W> {
    /// A receive or a peer's request: it will not be answered by the table.
    Waiter(Slot, W),
    /// A parked value.
    Value(Slot, V),
    /// An offer; `fetching` if it was wanted. Supplying it now hands the bytes back.
    Offer {
        /// Where it stood.
        slot: Slot,
        /// The offer.
        token: u64,
        /// True if the caller was told to fetch it.
        fetching: bool,
    },
}

/// What time has ended.
#[derive(PartialEq, Eq, Debug)]
pub enum Expired<V, W> {
    /// A waiter's deadline passed: it is unlinked.
    Waiter(Slot, W),
    /// A step that only peers spoke of was never used here: this was pushed or asked for in it.
    Unclaimed(Ended<V, W>),
}

/// How full a table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Rendezvous points remembered.
    pub records: u32,
    /// Values and offers parked: those without a waiter.
    pub values: u32,
    /// Receives and requests waiting.
    pub waiters: u32,
    /// Bytes of the parked values.
    pub parked_bytes: u64,
    /// Bytes that left the table and are still kept for receivers, by [`Table::hold`](super::Table::hold).
    pub held_bytes: u64,
    /// Steps alive through local use.
    pub steps: u32,
    /// Steps that only peers have spoken of.
    pub grace_steps: u32,
    /// Ended steps remembered.
    pub tombstones: u32,
    /// Rendezvous points the index can take before it doubles.
    pub index_capacity: u32,
}

/// What is pending at a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PendingKind {
    /// Receives or requests, for a value.
    Waiting,
    /// Values, for a receive.
    Parked,
    /// A peer's offers that are not wanted yet.
    Offered,
    /// A peer's offers, of which the first is being fetched.
    Fetching,
}

/// One slot at which something is pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending {
    /// Where.
    pub slot: Slot,
    /// What, by the front of the queue.
    pub kind: PendingKind,
    /// How many of them.
    pub count: u32,
    /// Since when the oldest.
    pub since: Nanos,
    /// Bytes of the parked values.
    pub bytes: u64,
}

/// True if a waiter is given up at a time of its own.
pub(super) const fn is_timed(deadline: Nanos) -> bool {
    deadline.0 != Nanos::NEVER.0
}
