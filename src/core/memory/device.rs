//! Memory of devices: named and kept here, never read.
//!
//! Knows no driver. Who allocates such memory implements [`DeviceMemory`], and frees it when the last tensor is gone.

use std::fmt::Debug;

use crate::ground::MemoryKind;

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
}
