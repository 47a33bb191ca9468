//! The shard's keys: each (source, destination, edge) it has met, under a small dense number.
//!
//! It knows names, not values. The number is exact: two keys alive never share one, because a look-up compares
//! names and not only their hash. A number whose key was forgotten is given out again.
//!
//! A hand goes round over the keys, as in CLOCK: it clears each key's use mark, and stops at one that was not marked
//! since it last came by. Whether that one may be forgotten is decided in `forgetting.rs`.

use super::ids::{LinkId, PeerId};
use crate::ground::{Incarnation, Key};
use crate::rendezvous::KeyId;

/// Whose business a key is, seen from one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// Both ends are here.
    Local,
    /// The source is here; the destination is that peer.
    Out { peer: PeerId },
    /// The destination is here; the source is that peer.
    In { peer: PeerId },
    /// Neither end is here.
    Foreign,
}

/// What a send or a receive must know of its key: one look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyLook {
    pub(crate) route: Route,
    /// The shard of this process that owns the key.
    pub(crate) owner: u16,
    /// The link it travels by; `NO_LINK` while the peer is not connected.
    pub(crate) link: LinkId,
}

/// A key and what the shard knows of it.
#[derive(Debug)]
pub(crate) struct KeyEntry {
    pub(crate) key: Key,
    pub(crate) way: KeyLook,
    /// The number the owner gave it, when another shard owns it and has told.
    pub(crate) owner_id: Option<KeyId>,
    /// How often the owner has told its number: as often it takes note of it.
    pub(crate) told: u32,
    /// Notes with the whole key under way to its owner, which answers each with its number.
    pub(crate) asked: u32,
    /// How often neighbours were told our number and have not let go of it: while that is not zero the key is kept.
    pub(crate) pins: u32,
    /// How often it was prepared and not released: as long as that is not zero it is kept likewise.
    pub(crate) prepared: u32,
    /// Which of all keys that this shard has met: tells apart those that had the same number.
    pub(crate) serial: u32,
    /// Used since the hand came by.
    pub(crate) is_used: bool,
}

impl KeyEntry {
    /// A key that was not met before.
    pub(crate) const fn new(key: Key, route: Route, owner: u16, link: LinkId) -> Self {
        Self {
            key,
            way: KeyLook { route, owner, link },
            owner_id: None,
            told: 0,
            asked: 0,
            pins: 0,
            prepared: 0,
            serial: 0,
            is_used: true,
        }
    }

    /// The peer at the other end, if it is one.
    pub(crate) const fn peer(&self) -> Option<PeerId> {
        match self.way.route {
            Route::Out { peer } | Route::In { peer } => Some(peer),
            Route::Local | Route::Foreign => None,
        }
    }
}

/// Every key of a shard.
#[derive(Debug)]
pub(crate) struct Keys {
    entries: Vec<Option<KeyEntry>>,
    /// Open addressing over `entries`: the upper half of the hash, and the number plus one.
    index: Vec<(u32, u32)>,
    free: Vec<u32>,
    count: usize,
    limit: usize,
    /// Where the hand is.
    hand: usize,
    /// Keys met so far; it wraps.
    met: u32,
}

impl Keys {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            index: vec![(0, 0); 64],
            free: Vec::new(),
            count: 0,
            limit,
            hand: 0,
            met: 0,
        }
    }

    /// The number of `key`, if it has one.
    #[inline]
    pub(crate) fn find(&mut self, key: &Key) -> Option<KeyId> {
        let hash = key.hash();
        let tag = (hash >> 32) as u32;
        let mask = self.index.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let (found, number) = self.index[at];
            if number == 0 {
                return None;
            }
            if found == tag
                && let Some(Some(entry)) = self.entries.get_mut(number as usize - 1)
                && entry.key.is_of_route(key)
            {
                entry.is_used = true;
                return Some(KeyId(number - 1));
            }
            at = (at + 1) & mask;
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count >= self.limit
    }

    /// Gives a new key a number; the caller has looked, and there is room.
    pub(crate) fn insert(&mut self, mut entry: KeyEntry) -> KeyId {
        self.met = self.met.wrapping_add(1);
        entry.serial = self.met;
        if (self.count + 1) * 2 > self.index.len() {
            self.grow();
        }
        let hash = entry.key.hash();
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = Some(entry);
                number
            }
            None => {
                self.entries.push(Some(entry));
                (self.entries.len() - 1) as u32
            }
        };
        self.count += 1;
        self.place(hash, number);
        KeyId(number)
    }

    /// Forgets a key. Its number goes to another.
    pub(crate) fn remove(&mut self, id: KeyId) -> Option<KeyEntry> {
        let entry = self.entries.get_mut(id.0 as usize)?.take()?;
        self.unplace(entry.key.hash(), id.0);
        self.free.push(id.0);
        self.count -= 1;
        Some(entry)
    }

    /// Moves the hand on by one place. The key there, if it was not used since the hand last came by.
    pub(crate) fn step_hand(&mut self) -> Option<KeyId> {
        let at = self.hand;
        self.hand = if at + 1 < self.entries.len() {
            at + 1
        } else {
            0
        };
        let entry = self.entries.get_mut(at)?.as_mut()?;
        let was_used = std::mem::replace(&mut entry.is_used, false);
        (!was_used).then_some(KeyId(at as u32))
    }

    /// How many keys there are.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// The numbers given out so far, in use or not.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.entries.len() as u32).map(KeyId)
    }

    #[inline]
    pub(crate) fn at(&self, id: KeyId) -> Option<&KeyEntry> {
        self.entries.get(id.0 as usize)?.as_ref()
    }

    /// The way of a key, if the number is of this one still, and of no other.
    #[inline]
    pub(crate) fn way(&self, id: KeyId, serial: u32) -> Option<KeyLook> {
        match self.entries.get(id.0 as usize) {
            Some(Some(entry)) if entry.serial == serial => Some(entry.way),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, id: KeyId) -> Option<&mut KeyEntry> {
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut KeyEntry> {
        self.entries.iter_mut().filter_map(Option::as_mut)
    }

    /// What crosses the wire for a key: source, destination and edge, joined by `;`.
    pub(crate) fn text(&self, id: KeyId) -> Box<str> {
        self.at(id).map_or_else(Box::default, |entry| {
            let key = &entry.key;
            let mut text = key.source().to_string();
            text.push(';');
            text.push_str(&key.destination().to_string());
            text.push(';');
            text.push_str(key.edge());
            text.into()
        })
    }

    fn place(&mut self, hash: u64, number: u32) {
        let mask = self.index.len() - 1;
        let mut at = hash as usize & mask;
        while self.index[at].1 != 0 {
            at = (at + 1) & mask;
        }
        self.index[at] = ((hash >> 32) as u32, number + 1);
    }

    /// Takes a number out of the index, and closes the hole.
    fn unplace(&mut self, hash: u64, number: u32) {
        let mask = self.index.len() - 1;
        let mut hole = hash as usize & mask;
        while self.index[hole].1 != number + 1 {
            if self.index[hole].1 == 0 {
                debug_assert!(false, "removed what was never indexed");
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (tag, other) = self.index[at];
            if other == 0 {
                break;
            }
            let key = self.entries.get(other as usize - 1);
            let home = key
                .and_then(Option::as_ref)
                .map_or(at, |entry| entry.key.hash() as usize & mask);
            // An entry may fill the hole only if its own place is not behind the hole.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.index[hole] = (tag, other);
                hole = at;
            }
        }
        self.index[hole] = (0, 0);
    }

    fn grow(&mut self) {
        self.rebuild(self.index.len() * 2);
    }

    fn rebuild(&mut self, len: usize) {
        self.index = vec![(0, 0); len];
        for number in 0..self.entries.len() {
            if let Some(hash) = self.entries[number].as_ref().map(|entry| entry.key.hash()) {
                self.place(hash, number as u32);
            }
        }
    }
}

/// The key that a text of three fields names: `None` if it names none.
pub(crate) fn parse(text: &str) -> Option<Key> {
    let mut fields = text.split(';');
    let source = crate::ground::DeviceName::parse_full(fields.next()?).ok()?;
    let destination = crate::ground::DeviceName::parse_full(fields.next()?).ok()?;
    let edge = fields.next()?;
    if fields.next().is_some() {
        return None;
    }
    Key::new(
        &source,
        Incarnation::CURRENT,
        &destination,
        edge,
        crate::ground::FrameIter::default(),
    )
    .ok()
}

#[cfg(test)]
mod tests;
