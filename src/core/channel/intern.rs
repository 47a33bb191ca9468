//! Interning: a key's text crosses a connection once; after that a number stands for it.
//!
//! It does not know keys' texts, only the shard's own key ids and what stands for them on the wire. Each direction
//! has its own table: the sender of frames gives the numbers, the receiver learns them. Both are bounded; the least
//! recently used number is given to another key with its next generation. Both start empty with every connection.

use super::keyed::Counts;
use super::rules::{Rule, Rules};
use crate::ground::limits::INTERNED_KEYS;
use crate::rendezvous::KeyId;
use crate::wire::Ticket;

#[cfg(test)]
mod tests;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u32,
    generation: u32,
    newer: u32,
    older: u32,
}

/// The numbers we give to keys.
#[derive(Debug)]
pub(crate) struct Given {
    /// By key id: its slot. Key ids are small dense numbers.
    by_key: Vec<u32>,
    slots: Vec<Slot>,
    newest: u32,
    oldest: u32,
    /// How many of the slots stand for no key: they are the oldest ones.
    free: usize,
    limit: usize,
}

impl Given {
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, INTERNED_KEYS);
        Self {
            by_key: Vec::new(),
            slots: Vec::new(),
            newest: NONE,
            oldest: NONE,
            free: 0,
            limit,
        }
    }

    /// The number of `key`, if it has one. Using it makes it the newest.
    #[inline]
    pub(crate) fn number(&mut self, key: KeyId) -> Option<Ticket> {
        let index = *self.by_key.get(key.0 as usize)?;
        let slot = self.slots.get(index as usize)?;
        let ticket = Ticket {
            index,
            generation: slot.generation,
        };
        if self.newest != index {
            self.unlink(index);
            self.link_newest(index);
        }
        Some(ticket)
    }

    /// Gives `key` a number: a new one, or the next generation of one that is free or was used least recently.
    pub(crate) fn give(&mut self, key: KeyId) -> Ticket {
        let index = if self.free == 0 && self.slots.len() < self.limit {
            self.slots.push(Slot {
                key: key.0,
                generation: 0,
                newer: NONE,
                older: NONE,
            });
            (self.slots.len() - 1) as u32
        } else {
            let index = self.oldest;
            self.unlink(index);
            let slot = &mut self.slots[index as usize];
            match self.by_key.get_mut(slot.key as usize) {
                Some(former) => *former = NONE,
                None => self.free -= 1,
            }
            slot.key = key.0;
            slot.generation = (slot.generation + 1) & ((1 << Ticket::GENERATION_BITS) - 1);
            index
        };
        self.link_newest(index);
        let at = key.0 as usize;
        if self.by_key.len() <= at {
            self.by_key.resize(at + 1, NONE);
        }
        self.by_key[at] = index;
        Ticket {
            index,
            generation: self.slots[index as usize].generation,
        }
    }

    /// Takes the number of `key` back, if it has one: the next key gets it.
    pub(crate) fn take_back(&mut self, key: KeyId) -> Option<Ticket> {
        let index = std::mem::replace(self.by_key.get_mut(key.0 as usize)?, NONE);
        let slot = self.slots.get_mut(index as usize)?;
        slot.key = NONE;
        let generation = slot.generation;
        self.unlink(index);
        self.link_oldest(index);
        self.free += 1;
        Some(Ticket { index, generation })
    }

    /// Forgets every number: a new connection begins.
    pub(crate) fn clear(&mut self) {
        self.free = 0;
        self.by_key.clear();
        self.slots.clear();
        self.newest = NONE;
        self.oldest = NONE;
    }

    fn unlink(&mut self, index: u32) {
        let Slot { newer, older, .. } = self.slots[index as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    fn link_oldest(&mut self, index: u32) {
        let former = self.oldest;
        let slot = &mut self.slots[index as usize];
        slot.older = NONE;
        slot.newer = former;
        match former {
            NONE => self.newest = index,
            former => self.slots[former as usize].older = index,
        }
        self.oldest = index;
    }

    fn link_newest(&mut self, index: u32) {
        let former = self.newest;
        let slot = &mut self.slots[index as usize];
        slot.newer = NONE;
        slot.older = former;
        match former {
            NONE => self.oldest = index,
            former => self.slots[former as usize].newer = index,
        }
        self.newest = index;
    }
}

/// The numbers the peer gave.
#[derive(Debug)]
pub(crate) struct Learned {
    slots: Vec<(u32, Option<KeyId>)>,
    /// How many numbers each key has.
    counts: Counts,
    rules: Rules,
}

impl Learned {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            slots: Vec::new(),
            counts: Counts::default(),
            rules,
        }
    }

    /// The key of a number; `None` if the peer never gave it, or gave it to another key since.
    #[inline]
    pub(crate) fn key(&self, number: Ticket) -> Option<KeyId> {
        let (generation, key) = self.slots.get(number.index as usize)?;
        if *generation == number.generation || !self.rules.on(Rule::Interning) {
            *key
        } else {
            None
        }
    }

    /// Learns a number. `Err` if it is beyond the bound both sides know. Returns the key it stood for before.
    pub(crate) fn learn(&mut self, number: Ticket, key: KeyId) -> Result<Option<KeyId>, ()> {
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
    pub(crate) fn unlearn(&mut self, number: Ticket) {
        if let Some((generation, key)) = self.slots.get_mut(number.index as usize)
            && *generation == number.generation
            && let Some(key) = key.take()
        {
            self.counts.take(key);
        }
    }

    /// True if the peer may call `key` by a number.
    pub(crate) fn has(&self, key: KeyId) -> bool {
        self.counts.has(key)
    }

    /// Forgets every number.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.counts.clear();
    }
}
