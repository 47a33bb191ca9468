//! The host's arena: segments that other processes can map, but neither resize nor write.
//!
//! Knows nothing of blocks: how a segment is cut up is the pool's business (`pool.rs`).
//!
//! A segment is a memfd. The order of the steps makes it safe to share, and no other order works:
//!
//! 1. create it, give it its length, map it shared and writable: our own mapping;
//! 2. seal it: `SHRINK` (a peer that maps it can never meet a fault because the file got shorter), `GROW`,
//!    `FUTURE_WRITE` (no process, ours included, can map it writable or write to it from now on; the mapping of step
//!    1 stays writable) and `SEAL` (no process can add `WRITE`, which would fail as long as step 1's mapping exists).
//!
//! `FUTURE_WRITE` also keeps everyone from punching holes, ourselves included: pages that were touched go back to the
//! system with the whole segment only. Without that seal a peer could wipe what it reads.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::arena::{Arena, ArenaSegment, Export, HostSegment, PagedFile};
use super::mapping::{MapAccess, Mapping};
use super::{ArenaId, House, MappedSegment, MemoryError, Pool, files};
use crate::ground::MemoryKind;

/// The host's memory, by sealed files in memory.
#[derive(Clone, Copy, Debug)]
pub struct Memfd {
    /// Whether segments use huge pages.
    pub huge_pages: HugePages,
    /// Whether a peer's must be sealed. Without debug assertions they must: see [`MappedSegment::open_if`].
    pub must_be_sealed: bool,
}

impl Default for Memfd {
    fn default() -> Self {
        Self {
            huge_pages: HugePages::default(),
            must_be_sealed: true,
        }
    }
}

impl Arena for Memfd {
    type Segment = Segment;
    type Import = MappedSegment;

    fn allocate(&mut self, index: u16, len: usize, len_max: u64) -> Result<Segment, MemoryError> {
        Segment::create(index, len, len_max, self.huge_pages)
    }

    fn import(&self, export: Export) -> Result<MappedSegment, MemoryError> {
        if export.kind != MemoryKind::Host {
            return Err(MemoryError::Kind { kind: export.kind });
        }
        MappedSegment::open_if(export.fd, export.len, self.must_be_sealed)
    }
}

/// How an arena gets its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaConfig {
    /// Bytes of a usual segment; a larger buffer gets a segment of its own. Rounded up to whole pages. After 64 of
    /// them a segment is at least a quarter of what there is. Once such segments would take more than half of
    /// `bytes_max`, the next is of all that is left.
    pub segment_bytes: usize,
    /// The most bytes the arena maps, over all its segments. What was used once stays the arena's, for later buffers,
    /// until the last of them is gone: none of it goes back to the system before.
    pub bytes_max: u64,
    /// Whether to use huge pages.
    pub huge_pages: HugePages,
}

/// 64 MiB segments, four GiB at most, huge pages where there are some.
impl Default for ArenaConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            bytes_max: 4 << 30,
            huge_pages: HugePages::Auto,
        }
    }
}

/// Whether an arena uses huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// Reserved huge pages if the machine has them; otherwise normal pages with the advice to merge them.
    #[default]
    Auto,
    /// Normal pages.
    Off,
    /// Reserved huge pages, or [`MemoryError::HugePages`].
    Require,
}

/// Which pages a segment got, and why not better ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HugePagesReport {
    /// Reserved huge pages of so many bytes each.
    Reserved {
        /// Bytes of one page.
        page_bytes: u64,
    },
    /// Normal pages; the kernel took the advice to merge them and may do so.
    Advised {
        /// Why there are no reserved ones: the error number of the mapping.
        errno: i32,
    },
    /// Normal pages; this system does not merge pages of shared memory (`shmem_enabled`).
    Unavailable {
        /// Why there are no reserved ones: the error number of the mapping.
        errno: i32,
    },
    /// Normal pages, as configured.
    Off,
}

/// One segment: writable by us, sealed against all other processes.
#[derive(Debug)]
pub struct Segment {
    file: PagedFile,
    mapping: Mapping,
    index: u16,
    report: HugePagesReport,
}

impl Segment {
    /// Segment `index` of at least `len` bytes, at most `len_max` (a huge page may be larger than `len` is).
    pub(crate) fn create(
        index: u16,
        len: usize,
        len_max: u64,
        huge: HugePages,
    ) -> Result<Self, MemoryError> {
        let refused = match huge {
            HugePages::Off => None,
            HugePages::Auto | HugePages::Require => {
                match Self::on_huge_pages(index, len, len_max) {
                    Ok(segment) => return Ok(segment),
                    Err(error) if huge == HugePages::Require => {
                        return Err(match error.refused() {
                            // No huge page would help against `ulimit -f`.
                            Some((call, errno)) if errno != Errno::FBIG.raw_os_error() => {
                                MemoryError::HugePages { call, errno }
                            }
                            _ => error,
                        });
                    }
                    Err(error) => Some(error.refused().map_or(0, |(_, errno)| errno)),
                }
            }
        };
        let fd = files::create(NAME, MemfdFlags::empty())?;
        let mut segment = Self::map(fd, index, len, HugePagesReport::Off)?;
        if let Some(errno) = refused {
            segment.report = segment.advise(errno);
        }
        segment.seal()?;
        Ok(segment)
    }

    /// The segment's number within its arena.
    #[must_use]
    pub const fn index(&self) -> u16 {
        self.index
    }

    /// Its length in bytes, whole pages.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no segment is empty")]
    pub const fn len(&self) -> usize {
        self.mapping.len()
    }

    /// True if it lies on reserved huge pages.
    #[must_use]
    pub const fn is_huge(&self) -> bool {
        matches!(self.report, HugePagesReport::Reserved { .. })
    }

    /// The descriptor, to be sent to peers of the read domain.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd.as_fd()
    }

    fn on_huge_pages(index: u16, len: usize, len_max: u64) -> Result<Self, MemoryError> {
        let fd = files::create(NAME, MemfdFlags::HUGETLB)?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| MemoryError::system("fstat", errno))?;
        let page_bytes = u64::try_from(stat.st_blksize).unwrap_or(0).max(1);
        let len = len.next_multiple_of(usize::try_from(page_bytes).unwrap_or(1));
        if len as u64 > len_max {
            return Err(MemoryError::Unfit {
                asked: len as u64,
                limit: len_max,
            });
        }
        // The mapping reserves all of its huge pages at once: where they lack, this fails and nothing faults later.
        let segment = Self::map(fd, index, len, HugePagesReport::Reserved { page_bytes })?;
        segment.seal()?;
        Ok(segment)
    }

    fn map(
        fd: OwnedFd,
        index: u16,
        len: usize,
        report: HugePagesReport,
    ) -> Result<Self, MemoryError> {
        files::set_len(&fd, len as u64)?;
        let file = PagedFile::new(Arc::new(fd))?;
        let mapping = Mapping::new(&file.fd, 0, len, MapAccess::Write, "a segment of an arena")?;
        Ok(Self {
            file,
            mapping,
            index,
            report,
        })
    }

    /// Asks the kernel to merge pages, and says whether it will listen.
    fn advise(&self, errno: i32) -> HugePagesReport {
        // SAFETY: the range is exactly our own mapping; this advice changes no content.
        let advised =
            unsafe { rustix::mm::madvise(self.base().cast(), self.len(), Advice::LinuxHugepage) };
        if advised.is_ok() && merges_shared_memory() {
            HugePagesReport::Advised { errno }
        } else {
            HugePagesReport::Unavailable { errno }
        }
    }

    fn seal(&self) -> Result<(), MemoryError> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        match rustix::fs::fcntl_add_seals(&self.file.fd, seals) {
            Ok(()) => Ok(()),
            // An unknown seal is an invalid argument; so were kernels before 5.1.
            Err(Errno::INVAL) => Err(MemoryError::Kernel),
            Err(errno) => Err(MemoryError::system("fcntl(F_ADD_SEALS)", errno)),
        }
    }
}

// SAFETY: the mapping of `map` is the whole of the file, which its seals keep as long as it is, until the drop. Every
// holder of pointers into it holds an `Arc` of the segment, or a block whose home keeps one.
unsafe impl ArenaSegment for Segment {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    fn size(&self) -> usize {
        self.len()
    }

    fn export(&self) -> Export {
        Export {
            kind: MemoryKind::Host,
            fd: Arc::clone(&self.file.fd),
            len: self.len() as u64,
        }
    }

    fn paged(&self) -> Option<&PagedFile> {
        Some(&self.file)
    }

    fn huge_pages(&self) -> HugePagesReport {
        self.report
    }
}

// SAFETY: the mapping is readable and writable, and zeroed by the kernel; the segment itself never looks through it.
unsafe impl HostSegment for Segment {}

const NAME: &CStr = c"rendez-arena";

/// Whether the kernel's setting lets pages of shared memory be merged after advice; the advice itself never fails.
fn merges_shared_memory() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .is_ok_and(|setting| !setting.contains("[never]") && !setting.contains("[deny]"))
}

impl Pool {
    /// A pool of the host's memory with its first segment, of no engine that has other arenas.
    ///
    /// # Errors
    /// [`MemoryError::Unfit`] if `bytes_max` holds not even a page; [`MemoryError::HugePages`], [`MemoryError::Kernel`]
    /// and [`MemoryError::System`] and [`MemoryError::Map`] from the system.
    pub fn new(id: ArenaId, config: ArenaConfig) -> Result<Self, MemoryError> {
        Self::of(House::new(), id, config)
    }

    /// The same of an engine that has others.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn of(house: House, id: ArenaId, config: ArenaConfig) -> Result<Self, MemoryError> {
        let arena = Memfd {
            huge_pages: config.huge_pages,
            ..Memfd::default()
        };
        Self::over(house, arena, id, config)
    }
}

#[cfg(test)]
mod tests;
