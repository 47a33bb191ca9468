//! A peer's segment, mapped read-only.
//!
//! Knows nothing of the peer, nor whether it may be trusted: it relies on nothing except seals.
//!
//! A descriptor from a peer is an allegation. Two properties are checked before it is mapped and hold for ever after,
//! because seals cannot be taken off: the file cannot get shorter (an access past its end would be a fault, and kill
//! us), and no process can write to it by a new mapping or a `write`. What is *not* guaranteed: the peer's own mapping
//! stays writable, so a peer that breaks the protocol can change bytes while we read them. See
//! [`MappedSegment::slice`].
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::MemoryError;
use super::arena::PagedFile;
use crate::ground::Region;

/// A peer's segment, mapped for reading. Unmapped when the last `Arc` of it goes; tensors leased from it hold one.
#[derive(Debug)]
pub struct MappedSegment {
    /// For private mappings of its pages.
    file: PagedFile,
    base: NonNull<u8>,
    /// What the peer claims, and the file holds: the range that may be read.
    len: usize,
    /// What is mapped: `len` rounded up to the file's pages.
    mapped_len: usize,
}

impl MappedSegment {
    /// Maps `expected_len` bytes of a peer's descriptor, and keeps it.
    ///
    /// # Errors
    /// [`MemoryError::Unsealed`] unless it is sealed against shrinking and against new writers;
    /// [`MemoryError::Short`] if it holds less than `expected_len`, or that is zero; [`MemoryError::System`].
    pub fn open(fd: impl Into<Arc<OwnedFd>>, expected_len: u64) -> Result<Self, MemoryError> {
        Self::open_if(fd, expected_len, true)
    }

    /// As [`MappedSegment::open`]; with debug assertions and `must_be_sealed` false it maps whatever it is given, so
    /// that a simulation can show what the seals are for.
    ///
    /// # Errors
    /// As [`MappedSegment::open`].
    pub fn open_if(
        fd: impl Into<Arc<OwnedFd>>,
        expected_len: u64,
        must_be_sealed: bool,
    ) -> Result<Self, MemoryError> {
        let fd = fd.into();
        let must_be_sealed = must_be_sealed || !cfg!(debug_assertions);
        // A file that cannot be sealed at all (not a memfd) answers EINVAL: it has no seals.
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        let is_sealed = seals.contains(SealFlags::SHRINK)
            && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        if must_be_sealed && !is_sealed && !mutant!("seals_unchecked") {
            return Err(MemoryError::Unsealed {
                seals: seals.bits(),
            });
        }
        // Only now the size: before the seal was seen it could still change.
        let stat = rustix::fs::fstat(&fd).map_err(|errno| MemoryError::system("fstat", errno))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let short = MemoryError::Short {
            claimed: expected_len,
            size,
        };
        if expected_len == 0 || size < expected_len {
            return Err(short);
        }
        let len = usize::try_from(expected_len).map_err(|_| short)?;
        // Huge pages are mapped and unmapped whole; their size is the file's block size.
        let page = usize::try_from(stat.st_blksize).unwrap_or(0).max(4096);
        let mapped_len = len.checked_next_multiple_of(page).ok_or(short)?;
        let file = PagedFile::new(fd)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing Rust knows of. It is read-only,
        // the file has at least `len` bytes, and its seal keeps it so; only `len` bytes are ever read.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                mapped_len,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file.fd,
                0,
            )
        }
        .map_err(|errno| MemoryError::system("mmap", errno))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(MemoryError::System {
            call: "mmap",
            errno: 0,
        })?;
        Ok(Self {
            file,
            base,
            len,
            mapped_len,
        })
    }

    /// The file that it was mapped from.
    pub(super) const fn paged(&self) -> &PagedFile {
        &self.file
    }

    /// The length that was claimed and found, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no segment is empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The bytes of `region`: a peer's claim, checked against the mapping. The caller chose this segment by the
    /// region's arena and segment numbers; its generation is the peer's affair.
    ///
    /// A peer that keeps the protocol leaves these bytes alone for as long as they are leased. One that does not may
    /// change them while they are read: the reader then sees old bytes or new ones, or a mixture. It never sees
    /// anything that is not a valid value, because only types of which every bit pattern is valid are ever read
    /// ([`Element`](super::Element)), and no check done on the bytes once is relied upon later.
    ///
    /// # Errors
    /// [`MemoryError::Outside`].
    #[inline]
    pub fn slice(&self, region: Region) -> Result<&[u8], MemoryError> {
        let outside = MemoryError::Outside {
            offset: region.offset,
            len: region.len,
            segment_len: self.len as u64,
        };
        let end = region.offset.checked_add(region.len).ok_or(outside)?;
        if end > self.len as u64 && !mutant!("region_bounds_unchecked") {
            return Err(outside);
        }
        // SAFETY: `offset ≤ end ≤ len`, so the pointer stays within the mapping or one past its end.
        let start = unsafe { self.base.as_ptr().add(region.offset as usize) };
        // SAFETY: `start .. start + len` lies in the mapping, which is readable, zero-filled where never written, and
        // mapped as long as `&self` lives. No code in this process writes to it: it is mapped read-only. What another
        // process does to it is the caveat above.
        Ok(unsafe { slice::from_raw_parts(start, region.len as usize) })
    }
}

impl Drop for MappedSegment {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping made in `open`, unmapped once; slices borrow `self`, and leased
        // tensors hold an `Arc` of it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_len) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

// SAFETY: not automatic because of `base`. The mapping belongs to the process, not to a thread.
unsafe impl Send for MappedSegment {}

// SAFETY: as above; all that a shared one gives is shared slices of memory that no code in this process writes to.
unsafe impl Sync for MappedSegment {}

#[cfg(test)]
mod tests;
