//! Index: from a 32-bit tag to a record number, by open addressing.
//!
//! It does not know what it indexes: the caller compares, and the caller hashes.
//!
//! An entry is eight bytes, so a cache line holds eight: the tag above, the number plus one below, and zero is free.
//! The place of an entry follows from its tag alone, so growing and removing never touch what is indexed. Linear
//! probing at half load; removal shifts the run behind it back, so there are no tombstones to skip and a table that has
//! been busy for a year probes as fast as a new one (Knuth, TAOCP 3, 6.4, algorithm R).

/// Tag to number, growing by doubling.
#[derive(Debug)]
pub(super) struct Index {
    entries: Vec<u64>,
    mask: usize,
    len: usize,
}

/// Entries of an empty index: one page, so that a small table stays in the first-level cache.
const ENTRIES_MIN: usize = 512;

impl Index {
    pub(super) fn new() -> Self {
        Self {
            entries: vec![0; ENTRIES_MIN],
            mask: ENTRIES_MIN - 1,
            len: 0,
        }
    }

    /// The number with this tag for which `is` says yes.
    #[inline]
    pub(super) fn find(&self, tag: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = tag as usize & self.mask;
        loop {
            let entry = self.entries[at];
            if entry == 0 {
                return None;
            }
            if tag_of(entry) == tag && is(number_of(entry)) {
                return Some(number_of(entry));
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Reads the line where the search for a tag begins.
    #[inline]
    pub(super) fn warm(&self, tag: u32) -> u32 {
        self.entries[tag as usize & self.mask] as u32
    }

    /// Adds `number`, which must not be here yet.
    pub(super) fn insert(&mut self, tag: u32, number: u32) {
        if (self.len + 1) * 2 > self.entries.len() {
            self.grow();
        }
        self.place(entry_of(tag, number));
        self.len += 1;
    }

    /// Removes `number`, if it is here.
    pub(super) fn remove(&mut self, tag: u32, number: u32) {
        let wanted = entry_of(tag, number);
        let mut hole = tag as usize & self.mask;
        while self.entries[hole] != wanted {
            if self.entries[hole] == 0 {
                debug_assert!(false, "removed what was never indexed");
                return;
            }
            hole = (hole + 1) & self.mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let entry = self.entries[at];
            if entry == 0 {
                break;
            }
            // An entry may fill the hole only if its own place is not behind the hole.
            let home = tag_of(entry) as usize & self.mask;
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(hole) & self.mask {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = 0;
        self.len -= 1;
    }

    /// How many entries there is room for before it grows.
    pub(super) fn capacity(&self) -> usize {
        self.entries.len() / 2
    }

    fn place(&mut self, entry: u64) {
        let mut at = tag_of(entry) as usize & self.mask;
        while self.entries[at] != 0 {
            at = (at + 1) & self.mask;
        }
        self.entries[at] = entry;
    }

    #[cold]
    fn grow(&mut self) {
        let doubled = vec![0; self.entries.len() * 2];
        let old = std::mem::replace(&mut self.entries, doubled);
        self.mask = self.entries.len() - 1;
        for entry in old.into_iter().filter(|&entry| entry != 0) {
            self.place(entry);
        }
    }
}

const fn entry_of(tag: u32, number: u32) -> u64 {
    (tag as u64) << 32 | (number as u64 + 1)
}

const fn tag_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

const fn number_of(entry: u64) -> u32 {
    (entry as u32).wrapping_sub(1)
}

/// Multiplies to 128 bits and folds the halves: each input bit reaches each output bit, for one multiplication
/// (the mixer of wyhash, Wang Yi, "Modern non-cryptographic hash function", 2019).
#[inline]
pub(super) const fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    (wide >> 64) as u64 ^ wide as u64
}

#[cfg(test)]
mod tests;
