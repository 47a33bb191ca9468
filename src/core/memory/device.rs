//! Memory of devices: named and kept here, never read.
//!
//! Knows no driver. The owner of such memory implements [`DeviceMemory`], and frees it when the last tensor is gone.

use std::fmt::Debug;

use super::House;
use crate::ground::{MemoryKind, Region};

/// Where a tensor's bytes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorBytes<'a> {
    /// In memory that this process reads.
    Host(&'a [u8]),
    /// In a device's memory.
    Device(DevicePtr),
}

/// A stretch of a device's memory, as this process names it. It keeps nothing: the tensor does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DevicePtr {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The device, by its number among those of its kind in this process.
    pub device: u32,
    /// Where it starts, in the device's address space as this process sees it.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
}

/// Memory of a device, kept by the tensors over it. Dropped once, on whatever thread lets go last: its `Drop` frees
/// the memory or tells its owner, and must not block, for that thread may be a shard's.
pub trait DeviceMemory: Debug + Send + Sync {
    /// Where it lies. Always the same answer.
    fn place(&self) -> DevicePtr;

    /// When its bytes are those of the tensor. The engine passes the tensor on without waiting: a user of the bytes
    /// looks here first, or orders its own work behind the event.
    fn readiness(&self) -> Readiness<'_> {
        Readiness::Ready
    }

    /// What peers call it, if it lies in an arena of this process that they can import.
    fn region(&self) -> Option<Region> {
        None
    }

    /// The engine whose arena that is: memory with a region and without this is shown to no peer.
    fn house(&self) -> Option<House> {
        None
    }
}

/// When the bytes of a tensor are there: a device may still be writing them when the tensor is made.
#[derive(Clone, Copy, Debug)]
pub enum Readiness<'a> {
    /// They are there. Always so in the host's memory.
    Ready,
    /// They are there when this event is over.
    After(&'a dyn DeviceEvent),
}

impl Readiness<'_> {
    /// True if the bytes are there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Ready => true,
            Self::After(event) => event.is_over(),
        }
    }
}

/// What a device records behind the work that writes a tensor, as a `cudaEvent_t`.
pub trait DeviceEvent: Debug + Send + Sync {
    /// True if that work is done, and ever after. Never waits.
    fn is_over(&self) -> bool;

    /// True if the work will never be done, unless it is: the device has failed, or the process that it is of is gone.
    fn is_lost(&self) -> bool {
        false
    }

    /// The event as its driver names it, to order other work of the device behind it.
    fn handle(&self) -> u64;
}
