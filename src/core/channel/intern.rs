//! Interning: a key's text crosses a connection once; after that a number stands for it.
//!
//! It does not know keys' texts, only the shard's own key ids and what stands for them on the wire. Each direction
//! has its own table: the sender of frames gives the numbers, the receiver learns them. Both are bounded, and start
//! empty with every connection. When the numbers are used up, a hand goes round them: one that was used since it last
//! came by is passed over, once, and the next is given to another key with its next generation.

use super::keyed::Counts;
use super::rules::{Rule, Rules};
use crate::ground::limits::INTERNED_KEYS;
use crate::rendezvous::KeyId;
use crate::wire::Ticket;

#[cfg(test)]
mod tests;

/// A key without a number: no ticket of so few slots packs to it.
const NONE: u32 = u32::MAX;
const _: () = assert!(INTERNED_KEYS < 1 << Ticket::INDEX_BITS);

/// What stands for a key.
#[derive(Clone, Copy, Debug)]
struct Number {
    /// A packed ticket, or `NONE`.
    packed: u32,
    is_used: bool,
}

impl Number {
    const NONE: Self = Self {
        packed: NONE,
        is_used: false,
    };
}

/// The numbers we give to keys.
#[derive(Debug)]
pub(super) struct Given {
    /// By key id. Key ids are small dense numbers.
    by_key: Vec<Number>,
    /// By a number's index: the key it was last given to, and its generation.
    slots: Vec<(KeyId, u32)>,
    /// Indexes that were taken back.
    free: Vec<u32>,
    hand: usize,
    limit: usize,
}

impl Given {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            by_key: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            hand: 0,
            limit: limit.clamp(1, INTERNED_KEYS),
        }
    }

    /// The number of `key`, if it has one, which counts as a use.
    #[inline]
    pub(super) fn number(&mut self, key: KeyId) -> Option<Ticket> {
        let number = self.by_key.get_mut(key.0 as usize)?;
        if number.packed == NONE {
            return None;
        }
        number.is_used = true;
        Some(Ticket::unpack(number.packed))
    }

    /// Gives `key`, which has none, a number: one that was taken back, a new one, or one of another key.
    pub(super) fn give(&mut self, key: KeyId) -> Ticket {
        let is_reused = self.slots.len() >= self.limit;
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None if is_reused => self.pass_hand(),
            None => self.slots.len(),
        };
        let generation = match self.slots.get_mut(index) {
            Some((of, generation)) => {
                *of = key;
                *generation = (*generation + 1) & ((1 << Ticket::GENERATION_BITS) - 1);
                *generation
            }
            None => {
                self.slots.push((key, 0));
                0
            }
        };
        let number = Ticket {
            index: index as u32,
            generation,
        };
        let at = key.0 as usize;
        if self.by_key.len() <= at {
            self.by_key.resize(at + 1, Number::NONE);
        }
        self.by_key[at] = Number {
            packed: number.packed(),
            is_used: false,
        };
        number
    }

    /// Takes the next number that was not used since the hand last came by from its key. To be called while every
    /// number is a key's.
    fn pass_hand(&mut self) -> usize {
        loop {
            let index = self.hand;
            self.hand = (index + 1) % self.slots.len();
            let key = self.slots[index].0;
            let number = &mut self.by_key[key.0 as usize];
            if !std::mem::take(&mut number.is_used) {
                *number = Number::NONE;
                return index;
            }
        }
    }

    /// Takes the number of `key` back, if it has one: the next key gets it.
    pub(super) fn take_back(&mut self, key: KeyId) -> Option<Ticket> {
        let number = std::mem::replace(self.by_key.get_mut(key.0 as usize)?, Number::NONE);
        if number.packed == NONE {
            return None;
        }
        let ticket = Ticket::unpack(number.packed);
        self.free.push(ticket.index);
        Some(ticket)
    }

    /// Forgets every number: a new connection begins.
    pub(super) fn clear(&mut self) {
        self.by_key.clear();
        self.slots.clear();
        self.free.clear();
        self.hand = 0;
    }
}

/// The numbers the peer gave.
#[derive(Debug)]
pub(super) struct Learned {
    slots: Vec<(u32, Option<KeyId>)>,
    /// How many numbers each key has.
    counts: Counts,
    rules: Rules,
}

impl Learned {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            slots: Vec::new(),
            counts: Counts::default(),
            rules,
        }
    }

    /// The key of a number; `None` if the peer never gave it, or gave it to another key since.
    #[inline]
    pub(super) fn key(&self, number: Ticket) -> Option<KeyId> {
        let (generation, key) = self.slots.get(number.index as usize)?;
        if *generation == number.generation || !self.rules.on(Rule::Interning) {
            *key
        } else {
            None
        }
    }

    /// Learns a number. `Err` if it is beyond the bound both sides know. Returns the key it stood for before.
    pub(super) fn learn(&mut self, number: Ticket, key: KeyId) -> Result<Option<KeyId>, ()> {
        let at = number.index as usize;
        if at >= INTERNED_KEYS {
            return Err(());
        }
        if self.slots.len() <= at {
            self.slots.resize(at + 1, (0, None));
        }
        let former = self.slots[at].1;
        self.slots[at] = (number.generation, Some(key));
        if let Some(former) = former {
            self.counts.take(former);
        }
        self.counts.add(key);
        Ok(former)
    }

    /// The peer took a number back. One that it has given to another key since stays that one's.
    pub(super) fn unlearn(&mut self, number: Ticket) {
        if let Some((generation, key)) = self.slots.get_mut(number.index as usize)
            && *generation == number.generation
            && let Some(key) = key.take()
        {
            self.counts.take(key);
        }
    }

    /// True if the peer may call `key` by a number.
    pub(super) fn has(&self, key: KeyId) -> bool {
        self.counts.has(key)
    }

    /// Forgets every number.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.counts.clear();
    }
}
