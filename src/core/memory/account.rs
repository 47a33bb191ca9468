//! A pool's account: what it mapped, what is out, and the most that ever was.
//!
//! Plain counters of the pool's owner; nothing here is shared.

use super::HugePagesReport;

/// The state of a pool, at one moment. Sizes are of whole blocks, as rounded up, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolStats {
    /// Blocks given out and not taken home yet.
    pub blocks: u64,
    /// Their bytes.
    pub in_use_bytes: u64,
    /// The most bytes that ever were in use at one time.
    pub peak_bytes: u64,
    /// Bytes mapped and not in use.
    pub free_bytes: u64,
    /// Bytes of all segments.
    pub mapped_bytes: u64,
    /// The most bytes the arena may map.
    pub limit_bytes: u64,
    /// Segments.
    pub segments: u32,
    /// Requests refused because the arena was full.
    pub refused: u64,
    /// Which pages the newest segment got.
    pub huge_pages: HugePagesReport,
}

/// The counters behind [`PoolStats`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) in_use: u64,
    pub(crate) peak: u64,
    pub(crate) mapped: u64,
    pub(crate) refused: u64,
}

impl Account {
    /// A block of `size` bytes goes out.
    #[inline]
    pub(crate) fn give_out(&mut self, size: u64) {
        self.in_use += size;
        self.peak = self.peak.max(self.in_use);
    }

    /// A block of `size` bytes is home.
    #[inline]
    pub(crate) const fn take_home(&mut self, size: u64) {
        self.in_use -= size;
    }
}
