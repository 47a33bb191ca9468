//! Queues: a record's values and its waiters, first in, first out, both ways.
//!
//! Knows links and counts; who may join a queue, and why, is decided by its callers. The values of a queue are the
//! one in the record, which is always the oldest, and then the nodes; a queue that runs empty begins in the record
//! again. So the usual queue, of one, costs no node.

use super::names::{KeyId, Slot, WaiterId, is_timed};
use super::refusal::Refusal;
use super::steps::NONE;
use super::table::Table;
use crate::ground::key::FrameIter;
use crate::ground::{Nanos, StepId};

/// Set in a record's scope while its step is in grace: a local use must open the step first.
pub(super) const GRACE: u32 = 1 << 31;

/// A rendezvous point that was used. The first line is all that matching reads; the first value follows it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Record<V> {
    step: StepId,
    at: FrameIter,
    key: KeyId,
    /// The ordinal that the next value gets, or that a peer is expected to give it.
    pub(super) next_ordinal: u32,
    pub(super) more_head: u32,
    pub(super) more_tail: u32,
    /// Values and offers queued, with the first.
    pub(super) items: u32,
    pub(super) waiters_head: u32,
    waiters_tail: u32,
    pub(super) waiters: u32,
    /// The number of its step, and [`GRACE`]; all ones when free.
    pub(super) scope: u32,
    /// The next record of its step, or of the free list.
    pub(super) sibling: u32,
    pub(super) first: Item<V>,
    /// Which of all records that ever were it is, counted from 1.
    pub(super) born: u64,
}

const _: () = assert!(std::mem::offset_of!(Record<u64>, first) == 64);
// A value of fourteen words, which a tensor's handle is with what travels with it, makes four lines of it.
const _: () = assert!(size_of::<Record<[u64; 14]>>() == 256);

/// A place in the queue of values. Not an enum with the value inside: moving one of those copies its tag and padding
/// along, in pieces that the processor cannot forward from the stores just made. The value lies between the other
/// fields so that reading those loads all of its lines.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Item<V> {
    /// Bytes of a value, or the token of an offer.
    measure: u64,
    pub(super) since: Nanos,
    value: Option<V>,
    pub(super) ordinal: u32,
    pub(super) kind: Kind,
}

/// What stands at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Nothing.
    Empty,
    Value,
    /// Its bytes are with the peer.
    Offer,
    /// Someone wants it: its bytes are on their way.
    Fetching,
}

/// A place in the queue of values behind the first, or a free one.
#[derive(Debug)]
pub(super) struct Node<V> {
    item: Item<V>,
    pub(super) next: u32,
}

/// A receive, or a peer's request.
#[derive(Debug)]
pub(super) struct Waiter<W> {
    pub(super) tag: W,
    pub(super) since: Nanos,
    pub(super) ordinal: u32,
    /// Its record; none when free.
    pub(super) record: u32,
    pub(super) next: u32,
    prev: u32,
    generation: u32,
    timed: bool,
}

impl<V> Item<V> {
    const EMPTY: Self = Self {
        measure: 0,
        since: Nanos::ZERO,
        ordinal: 0,
        kind: Kind::Empty,
        value: None,
    };

    /// A value, and the bytes it keeps occupied.
    pub(super) const fn value(value: V, bytes: u64, since: Nanos, ordinal: u32) -> Self {
        Self {
            measure: bytes,
            since,
            ordinal,
            kind: Kind::Value,
            value: Some(value),
        }
    }

    /// An offer, `wanted` already or not.
    pub(super) const fn offer(token: u64, wanted: bool, since: Nanos, ordinal: u32) -> Self {
        let kind = if wanted { Kind::Fetching } else { Kind::Offer };
        Self {
            measure: token,
            since,
            ordinal,
            kind,
            value: None,
        }
    }

    /// Bytes that it keeps occupied here.
    #[inline]
    pub(super) const fn bytes(&self) -> u64 {
        if matches!(self.kind, Kind::Value) {
            self.measure
        } else {
            0
        }
    }

    /// The token, if it is an offer.
    pub(super) const fn token(&self) -> Option<u64> {
        if matches!(self.kind, Kind::Offer | Kind::Fetching) {
            Some(self.measure)
        } else {
            None
        }
    }

    /// The value, if it is one.
    pub(super) fn into_value(self) -> Option<V> {
        self.value
    }

    /// The bytes of an offer have come.
    pub(super) fn supply(&mut self, value: V, bytes: u64, now: Nanos) {
        *self = Self::value(value, bytes, now, self.ordinal);
    }

    /// Wants an offer: its token, if nobody did before.
    pub(super) fn want(&mut self) -> Option<u64> {
        if self.kind != Kind::Offer {
            return None;
        }
        self.kind = Kind::Fetching;
        Some(self.measure)
    }
}

impl<V> Record<V> {
    pub(super) fn new(slot: &Slot, scope: u32, sibling: u32, born: u64) -> Self {
        Self {
            step: slot.step,
            at: slot.at,
            key: slot.key,
            next_ordinal: 0,
            more_head: NONE,
            more_tail: NONE,
            items: 0,
            waiters_head: NONE,
            waiters_tail: NONE,
            waiters: 0,
            scope,
            sibling,
            first: Item::EMPTY,
            born,
        }
    }

    #[inline]
    pub(super) fn is(&self, slot: &Slot) -> bool {
        self.step == slot.step && self.key == slot.key && self.at == slot.at
    }

    /// Reads a word of each of its lines, but for the middle ones of a value longer than a line.
    #[inline]
    pub(super) const fn warm(&self) -> u32 {
        self.waiters_head ^ self.first.measure as u32 ^ self.first.ordinal
    }

    pub(super) const fn slot(&self) -> Slot {
        Slot {
            step: self.step,
            key: self.key,
            at: self.at,
        }
    }
}

impl<V, W: Copy> Table<V, W> {
    /// Checks that a value may be parked.
    #[inline]
    pub(super) fn may_park(&self, at: u32, bytes: u64) -> Result<(), Refusal> {
        self.may_keep(self.records[at as usize].scope & !GRACE, bytes)
    }

    /// Checks that a value or an offer may stand in its queue until what is before it has come: it has a waiter.
    #[inline]
    pub(super) fn may_stand(&self, at: u32, bytes: u64) -> Result<(), Refusal> {
        let most = u64::from(self.limits.values) + u64::from(self.limits.waiters);
        if u64::from(self.item_count) >= most {
            // Waiters that left have left so many behind.
            return Err(Refusal::Values);
        }
        self.may_occupy(self.records[at as usize].scope & !GRACE, bytes)
    }

    /// The queue of values becomes one longer: one more is parked, unless it has a waiter.
    #[inline]
    pub(super) fn lengthen(&mut self, at: u32) {
        let record = &mut self.records[at as usize];
        record.items += 1;
        self.item_count += 1;
        self.value_count += u32::from(record.items > record.waiters);
    }

    /// The queue of values becomes one shorter.
    #[inline]
    fn shorten(&mut self, at: u32) {
        let record = &mut self.records[at as usize];
        self.value_count -= u32::from(record.items > record.waiters);
        self.item_count -= 1;
        record.items -= 1;
    }

    /// Adds a value to the end of its queue, which takes it.
    #[inline]
    pub(super) fn push_value(&mut self, at: u32, value: V, bytes: u64, now: Nanos, ordinal: u32) {
        let record = &mut self.records[at as usize];
        if record.items > 0 {
            return self.push_item(at, Item::value(value, bytes, now, ordinal));
        }
        let first = &mut record.first;
        first.measure = bytes;
        first.since = now;
        first.ordinal = ordinal;
        first.kind = Kind::Value;
        first.value = Some(value);
        self.lengthen(at);
        self.charge(at, bytes);
    }

    /// Adds to the end of the queue of values.
    #[inline(never)]
    pub(super) fn push_item(&mut self, at: u32, item: Item<V>) {
        self.charge(at, item.bytes());
        self.lengthen(at);
        let record = &mut self.records[at as usize];
        if record.items == 1 {
            record.first = item;
            return;
        }
        let node = self.new_node(item, NONE);
        let record = &mut self.records[at as usize];
        let tail = std::mem::replace(&mut record.more_tail, node);
        if tail == NONE {
            record.more_head = node;
        } else {
            self.nodes[tail as usize].next = node;
        }
    }

    /// What stands at the front of the queue of values.
    #[inline]
    pub(super) fn front_kind(&self, at: u32) -> Kind {
        let kind = self.records[at as usize].first.kind;
        if kind == Kind::Empty {
            self.front(at).map_or(kind, |item| item.kind)
        } else {
            kind
        }
    }

    /// Takes the front of the queue if it is a value: with its ordinal and bytes.
    #[inline]
    pub(super) fn pop_value(&mut self, at: u32) -> Option<(V, u32, u64)> {
        let record = &mut self.records[at as usize];
        let first = &mut record.first;
        if first.kind != Kind::Value {
            return self.pop_more_value(at);
        }
        first.kind = Kind::Empty;
        let (bytes, ordinal) = (first.measure, first.ordinal);
        let value = first.value.take()?;
        self.shorten(at);
        self.discharge(at, bytes);
        Some((value, ordinal, bytes))
    }

    /// Takes the front of the queue of values, whatever it is.
    pub(super) fn pop_item(&mut self, at: u32) -> Option<Item<V>> {
        let record = &mut self.records[at as usize];
        if record.items == 0 {
            return None;
        }
        let item = if record.first.kind == Kind::Empty {
            let node = record.more_head;
            self.remove_node(at, NONE, node)
        } else {
            std::mem::replace(&mut record.first, Item::EMPTY)
        };
        self.shorten(at);
        self.discharge(at, item.bytes());
        Some(item)
    }

    /// The front of the queue of values.
    #[inline]
    pub(super) fn front(&self, at: u32) -> Option<&Item<V>> {
        self.item_at(at, 0)
    }

    /// The item at a position from the front. A walk, bounded by the waiters of a key.
    pub(super) fn item_at(&self, at: u32, position: u32) -> Option<&Item<V>> {
        let (node, first) = self.place_of(at, position)?;
        if first {
            self.records.get(at as usize).map(|record| &record.first)
        } else {
            self.nodes.get(node as usize).map(|node| &node.item)
        }
    }

    pub(super) fn item_at_mut(&mut self, at: u32, position: u32) -> Option<&mut Item<V>> {
        let (node, first) = self.place_of(at, position)?;
        if first {
            self.records
                .get_mut(at as usize)
                .map(|record| &mut record.first)
        } else {
            self.nodes.get_mut(node as usize).map(|node| &mut node.item)
        }
    }

    /// The queue of values, from the front.
    pub(super) fn items(&self, at: u32) -> impl Iterator<Item = &Item<V>> {
        let record = &self.records[at as usize];
        let mut node = record.more_head;
        let more = std::iter::from_fn(move || {
            let Node { item, next } = self.nodes.get(node as usize)?;
            node = *next;
            Some(item)
        });
        let first = (record.first.kind != Kind::Empty).then_some(&record.first);
        first.into_iter().chain(more)
    }

    /// The position of an offer.
    pub(super) fn position_of(&self, at: u32, token: u64) -> Option<u32> {
        self.items(at)
            .position(|item| item.token() == Some(token))
            .and_then(|position| u32::try_from(position).ok())
    }

    /// Takes the item at a position out of the queue.
    pub(super) fn remove_item(&mut self, at: u32, position: u32) -> Option<Item<V>> {
        if position == 0 {
            return self.pop_item(at);
        }
        let (node, _) = self.place_of(at, position)?;
        let (before, before_is_first) = self.place_of(at, position - 1)?;
        let item = self.remove_node(at, if before_is_first { NONE } else { before }, node);
        self.shorten(at);
        self.discharge(at, item.bytes());
        Some(item)
    }

    /// Counts the bytes of a value that is parked, on the shard and on its step.
    #[inline]
    pub(super) fn charge(&mut self, at: u32, bytes: u64) {
        if bytes > 0 {
            self.parked_bytes += bytes;
            self.steps
                .step_mut(self.records[at as usize].scope & !GRACE)
                .bytes += bytes;
        }
    }

    #[inline]
    fn discharge(&mut self, at: u32, bytes: u64) {
        if bytes > 0 {
            self.parked_bytes -= bytes;
            self.steps
                .step_mut(self.records[at as usize].scope & !GRACE)
                .bytes -= bytes;
        }
    }

    /// The node at a position, or that it is the item in the record.
    #[inline]
    pub(super) fn place_of(&self, at: u32, position: u32) -> Option<(u32, bool)> {
        let record = &self.records[at as usize];
        if position >= record.items {
            return None;
        }
        let mut left = position;
        if record.first.kind != Kind::Empty {
            if left == 0 {
                return Some((NONE, true));
            }
            left -= 1;
        }
        let mut node = record.more_head;
        for _ in 0..left {
            node = self.nodes[node as usize].next;
        }
        Some((node, false))
    }

    #[inline(never)]
    fn pop_more_value(&mut self, at: u32) -> Option<(V, u32, u64)> {
        if self.front_kind(at) != Kind::Value {
            return None;
        }
        let item = self.pop_item(at)?;
        let (ordinal, bytes) = (item.ordinal, item.bytes());
        item.into_value().map(|value| (value, ordinal, bytes))
    }

    pub(super) fn new_node(&mut self, item: Item<V>, next: u32) -> u32 {
        let node = Node { item, next };
        if self.free_node == NONE {
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        let at = self.free_node;
        self.free_node = self.nodes[at as usize].next;
        self.nodes[at as usize] = node;
        at
    }

    /// Unlinks and frees a node; `before` is the node before it, or none if it is the head.
    fn remove_node(&mut self, at: u32, before: u32, node: u32) -> Item<V> {
        let entry = &mut self.nodes[node as usize];
        let item = std::mem::replace(&mut entry.item, Item::EMPTY);
        let next = std::mem::replace(&mut entry.next, self.free_node);
        self.free_node = node;
        let record = &mut self.records[at as usize];
        if before == NONE {
            record.more_head = next;
        }
        if next == NONE {
            record.more_tail = before;
        }
        if before != NONE {
            self.nodes[before as usize].next = next;
        }
        item
    }

    /// Adds to the end of the queue of waiters.
    #[inline]
    pub(super) fn push_waiter(
        &mut self,
        now: Nanos,
        at: u32,
        tag: W,
        deadline: Nanos,
        ordinal: u32,
    ) -> Result<WaiterId, Refusal> {
        if self.records[at as usize].waiters >= self.limits.waiters_per_key {
            return Err(Refusal::WaitersOfKey);
        }
        if self.waiter_count >= self.limits.waiters {
            return Err(Refusal::Waiters);
        }
        self.waiter_count += 1;
        let record = &mut self.records[at as usize];
        let tail = record.waiters_tail;
        let timed = is_timed(deadline);
        let new = Waiter {
            tag,
            since: now,
            ordinal,
            record: at,
            next: NONE,
            prev: tail,
            generation: 0,
            timed,
        };
        let index = self.free_waiter;
        let generation = if index == NONE {
            self.waiters.push(new);
            0
        } else {
            let entry = &mut self.waiters[index as usize];
            self.free_waiter = entry.next;
            let generation = entry.generation;
            *entry = Waiter { generation, ..new };
            generation
        };
        let index = if index == NONE {
            self.waiters.len() as u32 - 1
        } else {
            index
        };
        let record = &mut self.records[at as usize];
        // What stood there for nobody is no more parked.
        self.value_count -= u32::from(record.items > record.waiters);
        record.waiters += 1;
        record.waiters_tail = index;
        if tail == NONE {
            record.waiters_head = index;
        } else {
            self.waiters[tail as usize].next = index;
        }
        if timed {
            self.timers.set(index, deadline);
        }
        Ok(WaiterId { index, generation })
    }

    /// Takes the oldest waiter.
    #[inline]
    pub(super) fn pop_waiter(&mut self, at: u32) -> Option<W> {
        let record = &self.records[at as usize];
        if record.waiters == 0 {
            None
        } else {
            Some(self.remove_waiter(record.waiters_head).1)
        }
    }

    /// The waiter of this name, if it still waits.
    pub(super) fn live_waiter(&self, id: WaiterId) -> Option<u32> {
        let waiter = self.waiters.get(id.index as usize)?;
        (waiter.generation == id.generation && waiter.record != NONE).then_some(id.index)
    }

    /// The name of a waiter.
    pub(super) fn waiter_id(&self, index: u32) -> WaiterId {
        WaiterId {
            index,
            generation: self.waiters[index as usize].generation,
        }
    }

    /// Unlinks and frees a waiter, wherever it stands; gives its record and its tag.
    #[inline]
    pub(super) fn remove_waiter(&mut self, index: u32) -> (u32, W) {
        let waiter = &mut self.waiters[index as usize];
        let (at, tag, timed) = (waiter.record, waiter.tag, waiter.timed);
        let (prev, next) = (waiter.prev, waiter.next);
        waiter.record = NONE;
        waiter.generation = waiter.generation.wrapping_add(1);
        waiter.next = self.free_waiter;
        self.free_waiter = index;
        self.waiter_count -= 1;
        let record = &mut self.records[at as usize];
        record.waiters -= 1;
        self.value_count += u32::from(record.items > record.waiters);
        if prev == NONE {
            record.waiters_head = next;
        }
        if next == NONE {
            record.waiters_tail = prev;
        } else {
            self.waiters[next as usize].prev = prev;
        }
        if prev != NONE {
            self.waiters[prev as usize].next = next;
        }
        if timed {
            self.timers.clear(index);
        }
        (at, tag)
    }
}
