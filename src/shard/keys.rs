//! The shard's keys: each (source, destination, edge) it has met, under a small dense number.
//!
//! It knows names, not values. The number is exact: two keys alive never share one, because a look-up compares
//! names and not only their hash. Numbers of keys that nothing refers to any more are given out again when the
//! table is full.

use crate::ground::{Incarnation, Key};
use crate::rendezvous::KeyId;

/// Whose business a key is, seen from one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// Both ends are here.
    Local,
    /// The source is here; the destination is that peer.
    Out { peer: u32 },
    /// The destination is here; the source is that peer.
    In { peer: u32 },
    /// Neither end is here.
    Foreign,
}

/// A key and what the shard knows of it.
#[derive(Debug)]
pub(crate) struct KeyEntry {
    pub(crate) key: Key,
    pub(crate) route: Route,
    /// The shard of this process that owns it.
    pub(crate) owner: u16,
    /// The link it travels by; `NO_LINK` while the peer is not connected.
    pub(crate) link: u32,
    /// The number the owner gave it, when another shard owns it and has told.
    pub(crate) owner_id: Option<KeyId>,
    /// Somebody outside the shard holds the number: it is never given to another key.
    pub(crate) is_pinned: bool,
    /// How often it was prepared and not released: as long as that is not zero it is kept likewise.
    pub(crate) prepared: u32,
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
}

impl Keys {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            index: vec![(0, 0); 64],
            free: Vec::new(),
            count: 0,
            limit,
        }
    }

    /// The number of `key`, if it has one.
    #[inline]
    pub(crate) fn find(&self, key: &Key) -> Option<KeyId> {
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
                && let Some(Some(entry)) = self.entries.get(number as usize - 1)
                && is_same(&entry.key, key)
            {
                return Some(KeyId(number - 1));
            }
            at = (at + 1) & mask;
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count >= self.limit
    }

    /// Gives a new key a number; the caller has looked, and there is room.
    pub(crate) fn insert(&mut self, entry: KeyEntry) -> KeyId {
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

    /// Takes every key away that is neither pinned nor prepared and that `in_use` does not name. Returns how many went.
    pub(crate) fn sweep(&mut self, in_use: impl Fn(KeyId) -> bool) -> usize {
        let before = self.count;
        for number in 0..self.entries.len() {
            let goes = self.entries[number].as_ref().is_some_and(|entry| {
                !entry.is_pinned && entry.prepared == 0 && !in_use(KeyId(number as u32))
            });
            if goes {
                self.entries[number] = None;
                self.free.push(number as u32);
                self.count -= 1;
            }
        }
        self.rebuild(self.index.len());
        before - self.count
    }

    #[inline]
    pub(crate) fn at(&self, id: KeyId) -> Option<&KeyEntry> {
        self.entries.get(id.0 as usize)?.as_ref()
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

#[inline]
fn is_same(a: &Key, b: &Key) -> bool {
    a.hash() == b.hash()
        && a.edge() == b.edge()
        && a.source() == b.source()
        && a.destination() == b.destination()
}
