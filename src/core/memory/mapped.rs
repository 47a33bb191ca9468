//! A peer's segment, mapped read-only: by the host, or, of a device's memory, by the device.
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
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::SealFlags;

use super::arena::PagedFile;
use super::mapping::{MapAccess, Mapping};
use super::{DevicePtr, MemoryError, PeerDeviceMemory};
use crate::ground::{MemoryKind, Region};

/// A peer's segment, mapped for reading. Unmapped when the last `Arc` of it goes; tensors leased from it hold one.
#[derive(Debug)]
pub struct MappedSegment {
    memory: Memory,
    /// The process that it is of is gone.
    is_orphaned: AtomicBool,
}

#[derive(Debug)]
enum Memory {
    Host(HostMapping),
    Device(PeerDeviceMemory),
    /// It could not be imported: what lies there is asked for, or refused.
    Refused(MemoryError),
}

/// Memory of the host.
#[derive(Debug)]
struct HostMapping {
    /// For private mappings of its pages.
    file: PagedFile,
    /// To the end of a page of the file's, for reading. Slices borrow it, and leased tensors hold an `Arc` of it.
    mapping: Mapping,
    /// What the peer claims, and the file holds: the range that may be read.
    len: usize,
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
        // The file has at least `len` bytes, and its seal keeps it so; only `len` bytes are ever read.
        let mapping = Mapping::new(
            &file.fd,
            0,
            mapped_len,
            MapAccess::Read,
            "a segment of a peer",
        )?;
        Ok(Self::of(Memory::Host(HostMapping { file, mapping, len })))
    }

    const fn of(memory: Memory) -> Self {
        Self {
            memory,
            is_orphaned: AtomicBool::new(false),
        }
    }

    /// A peer's segment of a device, as this process has imported it.
    #[must_use]
    pub const fn on_device(memory: PeerDeviceMemory) -> Self {
        Self::of(Memory::Device(memory))
    }

    /// A segment that could not be imported: no tensor is leased from it, and offers of what lies there are not kept
    /// waiting for it.
    #[must_use]
    pub const fn refused(error: MemoryError) -> Self {
        Self::of(Memory::Refused(error))
    }

    /// Says that the process that it is of is gone: what its devices had not done will never be done.
    pub fn orphan(&self) {
        self.is_orphaned.store(true, Ordering::Release);
    }

    pub(super) fn is_orphaned(&self) -> bool {
        self.is_orphaned.load(Ordering::Acquire)
    }

    /// The file that it was mapped from.
    pub(super) const fn paged(&self) -> Option<&PagedFile> {
        match &self.memory {
            Memory::Host(host) => Some(&host.file),
            Memory::Device(_) | Memory::Refused(_) => None,
        }
    }

    /// The length that was claimed and found, in bytes, as far as the host can read it.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of the host's only")]
    pub const fn len(&self) -> usize {
        match &self.memory {
            Memory::Host(host) => host.len,
            Memory::Device(_) | Memory::Refused(_) => 0,
        }
    }

    /// Where a region of a device's memory lies.
    ///
    /// # Errors
    /// [`MemoryError::Outside`] if the claim leaves the segment; [`MemoryError::Kind`] if it is no memory of a device;
    /// why it could not be imported, if it was not.
    pub(crate) fn place(&self, region: Region) -> Result<DevicePtr, MemoryError> {
        match &self.memory {
            Memory::Device(memory) => memory.place(region),
            Memory::Host(_) => Err(MemoryError::Kind { kind: region.kind }),
            Memory::Refused(error) => Err(*error),
        }
    }

    /// As [`MappedSegment::place`], by numbers.
    pub(super) fn place_at(&self, offset: u64, len: u64) -> Result<DevicePtr, MemoryError> {
        let kind = match &self.memory {
            Memory::Device(memory) => memory.kind(),
            Memory::Host(_) | Memory::Refused(_) => MemoryKind::Host,
        };
        self.place(Region {
            kind,
            offset,
            len,
            ..Region::default()
        })
    }

    /// A word of it, by its number, that the peer and its devices may change at any time.
    pub(super) fn word(&self, number: usize) -> Option<&AtomicU64> {
        let Memory::Host(host) = &self.memory else {
            return None;
        };
        if number >= host.len / 8 {
            return None;
        }
        // SAFETY: the word lies in the mapping, as was just seen.
        let word = unsafe { host.mapping.base().cast::<AtomicU64>().add(number) };
        // SAFETY: pages are aligned for it; the mapping is readable as long as `self` lives, and initialised. This
        // process only loads from it, also where a peer claims that a value lies among these words (`slice`).
        Some(unsafe { &*word })
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
    /// [`MemoryError::Outside`]; [`MemoryError::Kind`] if it is a device's memory.
    #[inline]
    pub fn slice(&self, region: Region) -> Result<&[u8], MemoryError> {
        match &self.memory {
            Memory::Host(host) => host.slice(region),
            Memory::Device(_) => Err(MemoryError::Kind { kind: region.kind }),
            Memory::Refused(error) => Err(*error),
        }
    }
}

impl HostMapping {
    #[inline]
    fn slice(&self, region: Region) -> Result<&[u8], MemoryError> {
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
        let start = unsafe { self.mapping.base().add(region.offset as usize) };
        // SAFETY: `start .. start + len` lies in the mapping, which is readable, zero-filled where never written, and
        // mapped as long as `&self` lives. No code in this process writes to it: it is mapped read-only. What another
        // process does to it is the caveat above.
        Ok(unsafe { slice::from_raw_parts(start, region.len as usize) })
    }
}

#[cfg(test)]
mod tests;
