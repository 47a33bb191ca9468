//! A device's arena: segments that an accelerator allocates, with the times of their blocks beside them; and a peer's
//! segment of a device, as this process has it.
//!
//! Knows no driver in particular, and reads no byte.
#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr;
use std::sync::Arc;

use super::arena::{Arena, ArenaSegment, Export};
use super::{Accelerator, DevicePtr, DeviceRange, MemoryError, Times};
use crate::ground::{MemoryKind, Region};

/// The memory of one device.
#[derive(Clone, Debug)]
pub struct DeviceArena {
    accelerator: Arc<dyn Accelerator>,
    device: u32,
}

impl DeviceArena {
    /// Of a device of an accelerator.
    ///
    /// # Errors
    /// [`MemoryError::Ordinal`] if there is no such device; [`MemoryError::Unexportable`] if its memory cannot be
    /// shown to other processes.
    pub fn new(accelerator: &Arc<dyn Accelerator>, device: u32) -> Result<Self, MemoryError> {
        let kind = accelerator.kind();
        let devices = accelerator.devices();
        let info = devices.get(device as usize).ok_or(MemoryError::Ordinal {
            kind,
            device,
            count: devices.len() as u32,
        })?;
        if !info.exports {
            return Err(MemoryError::Unexportable { kind, device });
        }
        Ok(Self {
            accelerator: Arc::clone(accelerator),
            device,
        })
    }

    /// The driver.
    #[must_use]
    pub const fn accelerator(&self) -> &Arc<dyn Accelerator> {
        &self.accelerator
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> u32 {
        self.device
    }
}

impl Arena for DeviceArena {
    type Segment = DeviceSegment;
    type Import = PeerDeviceMemory;

    fn allocate(
        &mut self,
        index: u16,
        len: usize,
        len_max: u64,
    ) -> Result<DeviceSegment, MemoryError> {
        let (range, fd) = self.accelerator.allocate(self.device, len)?;
        // The driver's unit may be larger than what was asked for, and is used as far as the arena's bound lets.
        let len = range
            .len
            .min(usize::try_from(len_max).unwrap_or(usize::MAX))
            / PAGE
            * PAGE;
        let times = Times::new(&self.accelerator, self.device, index, len);
        let times = times.inspect_err(|_| {
            // SAFETY: the range was just allocated, and shown to none.
            unsafe { self.accelerator.release(range) };
        })?;
        Ok(DeviceSegment {
            range,
            fd: Arc::new(fd),
            len,
            index,
            times: Arc::new(times),
            accelerator: Arc::clone(&self.accelerator),
        })
    }

    fn import(&self, export: Export) -> Result<PeerDeviceMemory, MemoryError> {
        if export.kind != self.accelerator.kind() {
            return Err(MemoryError::Kind { kind: export.kind });
        }
        let len = usize::try_from(export.len).unwrap_or(usize::MAX);
        let range = (self.accelerator).import(self.device, export.fd.as_fd(), len)?;
        Ok(PeerDeviceMemory {
            range,
            len,
            accelerator: Arc::clone(&self.accelerator),
        })
    }
}

const PAGE: usize = super::pages::PAGE_BYTES;

/// A segment of a device's arena.
#[derive(Debug)]
pub struct DeviceSegment {
    range: DeviceRange,
    fd: Arc<OwnedFd>,
    len: usize,
    index: u16,
    times: Arc<Times>,
    accelerator: Arc<dyn Accelerator>,
}

impl DeviceSegment {
    /// The segment's number within its arena.
    #[must_use]
    pub const fn index(&self) -> u16 {
        self.index
    }

    /// When the bytes of its blocks are there.
    #[must_use]
    pub const fn times(&self) -> &Arc<Times> {
        &self.times
    }
}

// SAFETY: the range is memory of the device, and the segment's own, until its drop; its addresses are only named.
unsafe impl ArenaSegment for DeviceSegment {
    fn kind(&self) -> MemoryKind {
        self.accelerator.kind()
    }

    fn device(&self) -> u32 {
        self.range.device
    }

    fn base(&self) -> *mut u8 {
        ptr::without_provenance_mut(self.range.address as usize)
    }

    fn size(&self) -> usize {
        self.len
    }

    fn export(&self) -> Export {
        Export {
            kind: self.kind(),
            fd: Arc::clone(&self.fd),
            len: self.len as u64,
        }
    }
}

impl Drop for DeviceSegment {
    fn drop(&mut self) {
        // SAFETY: the range came from `allocate` and is given back once. No block of it is out: blocks whose streams
        // are not past them are kept by the keeper, and keep their pool's estate, and with it this segment.
        unsafe { self.accelerator.release(self.range) };
    }
}

/// A peer's segment of a device's memory, mapped for this process's work to read.
#[derive(Debug)]
pub struct PeerDeviceMemory {
    range: DeviceRange,
    len: usize,
    accelerator: Arc<dyn Accelerator>,
}

impl PeerDeviceMemory {
    pub(super) fn kind(&self) -> MemoryKind {
        self.accelerator.kind()
    }

    /// Where a region of it lies: a peer's claim, checked against the mapping.
    ///
    /// # Errors
    /// [`MemoryError::Outside`]; [`MemoryError::Kind`] if the claim is of another kind of memory.
    pub(crate) fn place(&self, region: Region) -> Result<DevicePtr, MemoryError> {
        if region.kind != self.accelerator.kind() {
            return Err(MemoryError::Kind { kind: region.kind });
        }
        let end = region.offset.checked_add(region.len);
        if end.is_none_or(|end| end > self.len as u64) && !mutant!("device_region_unchecked") {
            return Err(MemoryError::Outside {
                offset: region.offset,
                len: region.len,
                segment_len: self.len as u64,
            });
        }
        Ok(DevicePtr {
            kind: region.kind,
            device: self.range.device,
            address: self.range.address.wrapping_add(region.offset),
            size: region.len,
        })
    }
}

impl Drop for PeerDeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the range came from `import` and is given back once. Tensors over it keep it, and the keeper keeps
        // those that streams still read.
        unsafe { self.accelerator.release(self.range) };
    }
}
