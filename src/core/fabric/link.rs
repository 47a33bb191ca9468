//! Links: the shared memory in which two processes have their channels, made by one and opened by the other.
//!
//! Knows a memfd and its layout; the control plane passes the descriptor on.
//!
//! ```text
//!  page 0    header: magic, version, slots, payload_bytes, channels
//!  then      channel 0: lane maker → opener, lane opener → maker; channel 1: ...
//! ```
//!
//! The memfd is sealed against shrinking, growing and further seals before any other process sees it, and an opener
//! checks seals and size before it maps: a file that shrinks beneath a mapping would be a fault instead of an error. So
//! would a hole in a file of huge pages, which are not there to be given anew: such a file is refused. In a file of
//! ordinary pages a hole reads as zeroes, which a ring takes as it takes all that a peer writes.
//! Pages are sparse: an unused channel costs addresses, no memory.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::descriptors::has_huge_pages;
use super::lane::{Backing, Geometry, MemoryLane};
use crate::ground::faults::more_descriptors;
use crate::memory::files;

/// Spells `rendezSH` in a hex dump.
const MAGIC: u64 = u64::from_le_bytes(*b"rendezSH");
/// Raised when the layout of a lane changes: a slot has two lines since 2.
const VERSION: u64 = 2;
const HEADER_BYTES: usize = 4096;
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Channels of one link at most: 64 shards to 64 shards.
pub const CHANNELS_MAX: u32 = 4096;

/// The measures of a link. Both sides know them before they meet: the hello carries them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Frames in flight in each direction of a channel.
    pub slots: u32,
    /// Bytes of bodies in flight in each direction of a channel.
    pub payload_bytes: u32,
    /// Channels.
    pub channels: u32,
}

impl LinkConfig {
    const fn geometry(&self) -> Geometry {
        Geometry {
            slots: self.slots,
            payload_bytes: self.payload_bytes,
        }
    }

    const fn is_valid(&self) -> bool {
        self.geometry().is_valid() && self.channels >= 1 && self.channels <= CHANNELS_MAX
    }

    /// Bytes of the memfd.
    const fn len(&self) -> usize {
        HEADER_BYTES + 2 * self.channels as usize * self.geometry().lane_bytes()
    }

    const fn words(&self) -> [u64; 5] {
        [
            MAGIC,
            VERSION,
            self.slots as u64,
            self.payload_bytes as u64,
            self.channels as u64,
        ]
    }
}

impl Default for LinkConfig {
    /// 256 frames: four times the credits of a busy channel; 256 KiB: sixteen bodies of the longest kind.
    fn default() -> Self {
        Self {
            slots: 256,
            payload_bytes: 256 << 10,
            channels: 1,
        }
    }
}

/// Why a link could not be made or opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The measures are out of bounds.
    #[error("the link's slots, payload or channels are out of bounds")]
    Config,
    /// A system call failed.
    #[error("{call}: {errno}{mend}", call = .0, errno = .1, mend = more_descriptors(.1.raw_os_error()))]
    Os(&'static str, Errno),
    /// The descriptor is no memfd, or lacks a seal.
    #[error("the link's descriptor is not sealed against shrinking, growing and sealing")]
    Unsealed,
    /// The descriptor is of huge pages, which the peer could take away again.
    #[error("the link's descriptor is of huge pages")]
    HugePages,
    /// The descriptor's size is not what the measures need.
    #[error("the link's descriptor is shorter than the sizes of the link need")]
    Short,
    /// The header says something else than what was agreed.
    #[error("the link's header is not what was agreed")]
    Header,
}

impl LinkError {
    /// The stable reason, as a status carries it.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Config => "LINK_CONFIG",
            Self::Os(..) => "LINK_OS",
            Self::Unsealed | Self::HugePages => "DESCRIPTOR_UNSEALED",
            Self::Short => "DESCRIPTOR_SHORT",
            Self::Header => "RING_CORRUPT",
        }
    }
}

/// Which end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The side that made it.
    Maker,
    /// The side that opened it.
    Opener,
}

/// One process's mapping of a link.
#[derive(Debug)]
pub struct LinkMapping {
    config: LinkConfig,
    memory: OwnedFd,
    backing: Arc<Backing>,
    /// Ends given out already: a lane with two producers would be no ring. Bit 0 the maker's, bit 1 the opener's.
    taken: Vec<u8>,
}

impl LinkMapping {
    /// Makes a link: one sealed memfd with all channels.
    ///
    /// # Errors
    /// [`LinkError::Config`] for measures out of bounds, [`LinkError::Os`] when the kernel refuses.
    pub fn create(config: LinkConfig) -> Result<Self, LinkError> {
        if !config.is_valid() {
            return Err(LinkError::Config);
        }
        let memory = files::create_of(c"rendez-link", config.len())
            .map_err(|(call, errno)| LinkError::Os(call, errno))?;
        fcntl_add_seals(&memory, SEALS)
            .map_err(|errno| LinkError::Os("fcntl(F_ADD_SEALS)", errno))?;
        let backing = map(&memory, config.len())?;
        for (index, word) in config.words().into_iter().enumerate() {
            backing.word(index * 8).store(word, Ordering::Relaxed);
        }
        Ok(Self {
            config,
            memory,
            backing,
            taken: vec![0; config.channels as usize],
        })
    }

    /// Opens a link that a peer made, with the measures that were agreed.
    ///
    /// # Errors
    /// [`LinkError`] says what is wrong with the descriptor; nothing stays mapped then.
    pub fn open(memory: OwnedFd, expected: LinkConfig) -> Result<Self, LinkError> {
        if !expected.is_valid() {
            return Err(LinkError::Config);
        }
        // F_GET_SEALS fails on anything that is no memfd.
        let seals = fcntl_get_seals(&memory).map_err(|_| LinkError::Unsealed)?;
        if !seals.contains(SEALS) {
            return Err(LinkError::Unsealed);
        }
        if has_huge_pages(&memory).map_err(|errno| LinkError::Os("fstatfs", errno))? {
            return Err(LinkError::HugePages);
        }
        let stat = fstat(&memory).map_err(|errno| LinkError::Os("fstat", errno))?;
        if stat.st_size < expected.len() as i64 {
            return Err(LinkError::Short);
        }
        let backing = map(&memory, expected.len())?;
        for (index, word) in expected.words().into_iter().enumerate() {
            if backing.word(index * 8).load(Ordering::Relaxed) != word {
                return Err(LinkError::Header);
            }
        }
        Ok(Self {
            config: expected,
            memory,
            backing,
            taken: vec![0; expected.channels as usize],
        })
    }

    /// One end of a channel; each is given out once.
    pub fn endpoint(&mut self, channel: u32, side: Side) -> Option<Endpoint> {
        let taken = self.taken.get_mut(channel as usize)?;
        let bit = 1 << side as u8;
        if *taken & bit != 0 {
            return None;
        }
        *taken |= bit;
        let geometry = self.config.geometry();
        let start = HEADER_BYTES + 2 * channel as usize * geometry.lane_bytes();
        Some(Endpoint::new(&self.backing, start, geometry, side))
    }

    /// The descriptor to send to the peer.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Bytes of its memory.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.config.len() as u64
    }

    /// The measures.
    #[must_use]
    pub const fn config(&self) -> LinkConfig {
        self.config
    }
}

/// The call, and what may keep it from giving memory.
const MAPPING: &str = "mmap of its rings (limits: ulimit -v, vm.max_map_count)";

fn map(memory: &OwnedFd, len: usize) -> Result<Arc<Backing>, LinkError> {
    // SAFETY: a null hint lets the kernel choose unused addresses, so no memory of ours is replaced; what the mapping
    // holds is only touched in the ways that `lane.rs` argues for.
    let base = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            memory,
            0,
        )
    };
    let call = |errno| match errno {
        Errno::NOMEM => MAPPING,
        _ => "mmap of its rings",
    };
    let base = base.map_err(|errno| LinkError::Os(call(errno), errno))?;
    let base = NonNull::new(base.cast()).ok_or(LinkError::Os(MAPPING, Errno::NOMEM))?;
    // SAFETY: mapped above with this length, readable, writable and shared; only the backing knows the address.
    // Callers have sealed the file, or checked the seal, against shrinking.
    Ok(unsafe { Backing::mapping(base, len) })
}

/// One end of a channel: a lane to send on, a lane to receive on. Taken by a port's `attach`.
#[derive(Debug)]
pub struct Endpoint {
    pub(super) tx: MemoryLane,
    pub(super) rx: MemoryLane,
    pub(super) geometry: Geometry,
}

impl Endpoint {
    /// Two fresh lanes of this process's heap, crossed: for loopback.
    pub(super) fn heap_pair(geometry: Geometry) -> (Self, Self) {
        let backing = Backing::heap(2 * geometry.lane_bytes());
        (
            Self::new(&backing, 0, geometry, Side::Maker),
            Self::new(&backing, 0, geometry, Side::Opener),
        )
    }

    fn new(backing: &Arc<Backing>, start: usize, geometry: Geometry, side: Side) -> Self {
        let first = MemoryLane::new(backing, start, geometry);
        let second = MemoryLane::new(backing, start + geometry.lane_bytes(), geometry);
        match side {
            Side::Maker => Self {
                tx: first,
                rx: second,
                geometry,
            },
            Side::Opener => Self {
                tx: second,
                rx: first,
                geometry,
            },
        }
    }
}

#[cfg(test)]
mod tests;
