//! Arenas: where a pool's memory comes from, and how peers and devices reach it.
//!
//! Knows no blocks and no kind of memory in particular: the host's is `memfd.rs`. Only what differs by the kind is
//! named here: how a segment is allocated ([`Arena::allocate`]), shown to peers ([`ArenaSegment::export`]) and taken
//! from them ([`Arena::import`]). A pool, its pages and its blocks are the same for all. It is compiled for each arena:
//! no block costs a call through a table.
#![allow(unsafe_code)]

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{HugePagesReport, MemoryError};
use crate::ground::MemoryKind;

/// The number of an arena, unique within its task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ArenaId(pub u16);

/// Which engine of this process an arena belongs to: peers know arenas by their numbers, and each engine has numbers of
/// its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct House(u64);

impl House {
    /// One that no other engine of this process has.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        Self(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }

    pub(super) const fn of(mark: u64) -> Self {
        Self(mark)
    }

    pub(super) const fn mark(self) -> u64 {
        self.0
    }
}

/// A source of memory of one kind.
pub trait Arena: Debug + Send {
    /// A stretch of it, of this process.
    type Segment: ArenaSegment;
    /// A stretch of a peer's, as this process uses it.
    type Import;

    /// Segment `index` of at least `len` bytes, at most `len_max`; whole pages of the pool.
    ///
    /// # Errors
    /// [`MemoryError`] from the system or the driver.
    fn allocate(
        &mut self,
        index: u16,
        len: usize,
        len_max: u64,
    ) -> Result<Self::Segment, MemoryError>;

    /// What a peer exports. It is a claim: nothing of it is believed that is not checked here.
    ///
    /// # Errors
    /// [`MemoryError::Kind`] for memory of another kind; others by the kind.
    fn import(&self, export: Export) -> Result<Self::Import, MemoryError>;
}

/// A stretch of an arena's memory. Its drop gives it back to where it came from: when no block of it is out, no peer is
/// told of it any more, and no device works on it.
///
/// # Safety
/// As long as it lives, `size` bytes at `base` are memory of its kind and its device, and its own: they are touched
/// only through the blocks that a pool gives out. A file that [`paged`](Self::paged) gives holds these bytes from its
/// start on, in pages of that size, and cannot get shorter; it is always the same, and lives as long as the segment.
pub unsafe trait ArenaSegment: Debug + Send + Sync + 'static {
    /// What kind of memory it is.
    fn kind(&self) -> MemoryKind;

    /// Which device's, by its number among those of its kind in this process; zero for the host.
    fn device(&self) -> u32 {
        0
    }

    /// Where it starts, as this process and its devices name it. Only a [`HostSegment`]'s may be read and written by
    /// that.
    fn base(&self) -> *mut u8;

    /// Its length in bytes. Always the same answer, as the others.
    fn size(&self) -> usize;

    /// What peers are given to import it.
    fn export(&self) -> Export;

    /// Its file and pages, if it can be mapped privately.
    fn paged(&self) -> Option<&PagedFile> {
        None
    }

    /// Which pages it got.
    fn huge_pages(&self) -> HugePagesReport {
        HugePagesReport::Off
    }
}

/// A segment of memory that the host reads and writes.
///
/// # Safety
/// As long as the segment lives, `size` bytes at `base` are mapped, readable and writable, and hold initialised bytes.
pub unsafe trait HostSegment: ArenaSegment {}

/// A segment as it is sent to a peer, and claimed by one.
#[derive(Clone, Debug)]
pub struct Export {
    /// What kind of memory it is.
    pub kind: MemoryKind,
    /// The descriptor. It takes no other descriptor, of which there may be none left.
    pub fd: Arc<OwnedFd>,
    /// Its length in bytes.
    pub len: u64,
}

/// A file whose pages can be mapped, and their size: what a private mapping needs.
#[derive(Debug)]
pub struct PagedFile {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) page_bytes: usize,
}

impl PagedFile {
    /// Of a file that is memory, shared or of huge pages.
    pub(super) fn new(fd: Arc<OwnedFd>) -> Result<Self, MemoryError> {
        let stat =
            rustix::fs::fstatfs(&fd).map_err(|errno| MemoryError::system("fstatfs", errno))?;
        // Huge pages where they are reserved. `st_blksize` is larger too where the kernel may merge pages.
        let page_bytes = usize::try_from(stat.f_bsize).unwrap_or(0).max(1);
        Ok(Self { fd, page_bytes })
    }
}

#[cfg(test)]
mod tests;
