//! A stretch of an arena, as numbers: what a region is called inside its process and on the wire.
//!
//! In our hands it names memory we own. From a peer it is a *claim*, and worth nothing before it is checked.
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use rendez::ground::Region;
//!
//! let region = Region { arena: 1, segment: 0, generation: 3, offset: 4096, len: 64 };
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
    /// Its length in bytes.
    pub len: u64,
}

/// What kind of memory bytes lie in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of the machine, which its processor reads.
    #[default]
    Host = 0,
    /// Memory of a CUDA device.
    Cuda = 1,
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Cuda => "CUDA",
        })
    }
}
