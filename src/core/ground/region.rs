//! A stretch of an arena, as numbers: what a region is called inside its process and on the wire.
//!
//! In our hands it names memory we own. From a peer it is a *claim*, and worth nothing before it is checked.
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use rendez::ground::Region;
//!
//! let region = Region { arena: 1, generation: 3, offset: 4096, len: 64, ..Region::default() };
//! assert_eq!(region, Region { len: 64, ..region });
//! ```

#[cfg(test)]
mod tests;

/// A stretch of bytes in one segment of one arena.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Region {
    /// The arena: unique within its task.
    pub arena: u16,
    /// The segment within the arena.
    pub segment: u16,
    /// The generation of the block: counts up each time the block is given out again.
    pub generation: u32,
    /// Where the region starts, in bytes from the start of the segment.
    pub offset: u64,
    /// Its length in bytes, below 2⁵⁶.
    pub len: u64,
    /// What kind of memory it lies in.
    pub kind: MemoryKind,
    /// True if it begins a page of its segment and no other block lies in its pages, which are zero behind its end.
    pub owns_pages: bool,
}

/// Bits of a length where it shares a word with a kind.
const LEN_BITS: u32 = 56;
/// The bit beside a kind that says [`Region::owns_pages`].
const OWNS_PAGES: u8 = 0x80;

impl Region {
    /// Length, kind and [`Region::owns_pages`] in one word, as they travel: the latter two in the highest eight bits.
    #[inline]
    #[must_use]
    pub const fn len_and_kind(&self) -> u64 {
        debug_assert!(self.len >> LEN_BITS == 0, "no memory is so long");
        let owns_pages = if self.owns_pages { OWNS_PAGES } else { 0 };
        self.len & ((1 << LEN_BITS) - 1) | ((self.kind as u8 | owns_pages) as u64) << LEN_BITS
    }

    /// Arena, segment and generation in one word.
    #[inline]
    pub(crate) const fn place(&self) -> u64 {
        self.arena as u64 | (self.segment as u64) << 16 | (self.generation as u64) << 32
    }

    /// As it travels: [`Region::place`], the offset, and [`Region::len_and_kind`].
    #[inline]
    pub(crate) const fn words(&self) -> [u64; 3] {
        [self.place(), self.offset, self.len_and_kind()]
    }

    /// The region of such words; `None` for a kind of memory that this version does not know.
    #[inline]
    pub(crate) const fn of_words([place, offset, len]: [u64; 3]) -> Option<Self> {
        let Some((len, kind, owns_pages)) = Self::split_len(len) else {
            return None;
        };
        Some(Self {
            arena: place as u16,
            segment: (place >> 16) as u16,
            generation: (place >> 32) as u32,
            offset,
            len,
            kind,
            owns_pages,
        })
    }

    /// The three again; `None` for a kind that this version does not know.
    #[inline]
    #[must_use]
    pub const fn split_len(word: u64) -> Option<(u64, MemoryKind, bool)> {
        let byte = (word >> LEN_BITS) as u8;
        let owns_pages = byte & OWNS_PAGES != 0;
        match MemoryKind::from_wire(byte & !OWNS_PAGES) {
            Some(kind) => Some((word & ((1 << LEN_BITS) - 1), kind, owns_pages)),
            None => None,
        }
    }
}

listed! {
    /// What kind of memory bytes lie in. Numbers are part of the wire format and never reused.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[repr(u8)]
    #[non_exhaustive]
    pub enum MemoryKind {
        /// Memory of the machine, which its processor reads.
        #[default]
        Host = 0 => "host",
        /// Memory of a CUDA device.
        Cuda = 1 => "CUDA",
    }
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
