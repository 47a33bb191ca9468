//! Accelerators: what the driver of a kind of device does for the engine.
//!
//! All that is above this trait knows no kind of device in particular: arenas (`device_arena.rs`), time (`times.rs`,
//! `stream.rs`), and copies through the host (`staging.rs`). CUDA's driver is `cuda/`; another kind is another
//! implementation, and a line of the list of drivers here.
#![allow(unsafe_code)]

use std::fmt::{self, Debug};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{DevicePtr, MemoryError};
use crate::ground::MemoryKind;

/// A device, as its driver describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Its number among those of its kind in this process. Other processes may number them in another way.
    pub number: u32,
    /// Its identity, the same in every process.
    pub uuid: DeviceUuid,
    /// What it is called.
    pub name: String,
    /// Its memory, in bytes.
    pub bytes: u64,
    /// Its allocations can be exported as descriptors, and imported by other processes.
    pub exports: bool,
    /// Its streams can write words and wait for them. Without this the host waits for streams.
    pub has_words: bool,
    /// Which devices' work reads its memory in place, over the link between the two: a bit for each number.
    pub readers: u64,
}

/// A device's identity, by which processes that number devices in their own ways agree on one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A stretch of a device's address space that an accelerator has mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceRange {
    /// The device.
    pub device: u32,
    /// Where it starts.
    pub address: u64,
    /// Its length in bytes.
    pub len: usize,
}

/// Opens the driver of one kind of device, as [`open`] does; or why there is none, for people.
type OpenDriver = fn(Option<&str>) -> Result<Arc<dyn Accelerator>, String>;

/// The drivers that this build knows, in the order in which they are tried.
const DRIVERS: &[OpenDriver] = &[
    #[cfg(feature = "cuda")]
    super::cuda::open,
];

/// The devices of this machine, by the first driver that is found: the one that is installed, or the library of that
/// name or path.
///
/// # Errors
/// Why there is none, for people.
pub fn open(library: Option<&str>) -> Result<Arc<dyn Accelerator>, String> {
    if DRIVERS.is_empty() {
        return Err("built without the feature `cuda`".into());
    }
    first_with_devices(DRIVERS, library)
}

fn first_with_devices(
    drivers: &[OpenDriver],
    library: Option<&str>,
) -> Result<Arc<dyn Accelerator>, String> {
    let mut refusals = Vec::new();
    for open in drivers {
        match open(library) {
            Ok(driver) if driver.devices().is_empty() => {
                refusals.push("the driver finds no device".to_owned());
            }
            Ok(driver) => return Ok(driver),
            Err(why) => refusals.push(why),
        }
    }
    Err(refusals.join("; "))
}

/// What a refusal by a driver means for its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DriverFault {
    /// The device's memory, or the address space, is full.
    Memory,
    /// The device or its context is gone, and with it all that lay there.
    Lost,
    /// The driver or the device cannot do this.
    Unsupported,
    /// What the call was given is wrong: an ordinal, a pointer, a stream, a handle.
    Argument,
    /// Anything else.
    Other,
}

/// What devices have of memory of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostMemory {
    /// Nothing: it may be unmapped.
    Free,
    /// The driver would not take it back: it must stay mapped until the process ends.
    Held,
}

/// The driver of a kind of device. Calls may take long, and may be made on any thread.
///
/// # Safety
/// A range from `allocate` or `import` is memory of its device until `release`, disjoint from all other such ranges.
/// `register` lets devices reach exactly the bytes that it is given. A call that fails has no effect.
pub unsafe trait Accelerator: Debug + Send + Sync {
    /// The kind of memory that its devices have.
    fn kind(&self) -> MemoryKind;

    /// Its devices, by their numbers.
    fn devices(&self) -> &[DeviceInfo];

    /// The device of this identity, if this process sees it.
    fn find(&self, uuid: DeviceUuid) -> Option<&DeviceInfo> {
        self.devices().iter().find(|device| device.uuid == uuid)
    }

    /// Memory of a device, readable and writable by its work, of at least `len` bytes and whole units of the driver;
    /// and the descriptor by which other processes can import it.
    ///
    /// # Errors
    /// [`MemoryError::Driver`]; [`MemoryError::Ordinal`] if there is no such device.
    fn allocate(&self, device: u32, len: usize) -> Result<(DeviceRange, OwnedFd), MemoryError>;

    /// Another process's memory of a device, to be read by its work and not written. That the descriptor is of memory
    /// of this device and holds `len` bytes is checked.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`].
    fn import(
        &self,
        device: u32,
        fd: BorrowedFd<'_>,
        len: usize,
    ) -> Result<DeviceRange, MemoryError>;

    /// Gives a range back. What the driver refuses to take back stays until the process ends, and is counted.
    ///
    /// # Safety
    /// The range came from `allocate` or `import`, is given back once, and no work that touches it is still to be done.
    unsafe fn release(&self, range: DeviceRange);

    /// Lets the devices read and write memory of the host; where it lies for them.
    ///
    /// # Safety
    /// `len` bytes at `host` are mapped, and stay so until `unregister` says that the devices have let go of them.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`], with what is known of the memory.
    unsafe fn register(
        &self,
        device: u32,
        host: *mut u8,
        len: usize,
    ) -> Result<u64, (MemoryError, HostMemory)>;

    /// Takes memory of the host back from the devices. A refusal is counted as by `release`.
    ///
    /// # Safety
    /// `host` was registered and is taken back once, and no work that touches it is still to be done.
    unsafe fn unregister(&self, device: u32, host: *mut u8) -> HostMemory;

    /// A new stream of a device.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`].
    fn make_stream(&self, device: u32) -> Result<u64, MemoryError>;

    /// Ends a stream. Its work is done all the same.
    ///
    /// # Safety
    /// The stream came from `make_stream`, is ended once, and is not used any more.
    unsafe fn end_stream(&self, device: u32, stream: u64);

    /// Which device a stream is of; `None` for a handle that means a stream of each, as that of work which names none.
    ///
    /// # Safety
    /// The driver knows the stream.
    ///
    /// # Errors
    /// [`MemoryError::Context`] if it is of a context that is none of this accelerator's.
    unsafe fn device_of(&self, stream: u64) -> Result<Option<u32>, MemoryError>;

    /// Queues a write of a word behind all that is queued. All earlier writes of the stream are visible before it.
    ///
    /// # Safety
    /// The driver knows the stream; the word is eight bytes, aligned, of a range or registered, until it is written.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`].
    unsafe fn write_word(
        &self,
        device: u32,
        stream: u64,
        at: u64,
        value: u64,
    ) -> Result<(), MemoryError>;

    /// Lets what is queued next wait until a word is `value` or more.
    ///
    /// # Safety
    /// As `write_word`.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`].
    unsafe fn await_word(
        &self,
        device: u32,
        stream: u64,
        at: u64,
        value: u64,
    ) -> Result<(), MemoryError>;

    /// Queues a copy to the host.
    ///
    /// # Safety
    /// The driver knows the stream; `len` bytes at `from` are of a range, and `len` bytes at `to` registered memory
    /// that no other code touches, until the copy is over.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`].
    unsafe fn to_host(
        &self,
        device: u32,
        stream: u64,
        to: *mut u8,
        from: u64,
        len: usize,
    ) -> Result<(), MemoryError>;

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// As `to_host`, with the two sides exchanged.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`].
    unsafe fn to_device(
        &self,
        device: u32,
        stream: u64,
        to: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), MemoryError>;

    /// Queues a copy from memory of a device, this one or another. The copy engine does it; where neither device
    /// reaches the other's memory the driver takes it through the host.
    ///
    /// # Safety
    /// The driver knows the stream; as many bytes as `from` has are of a range at `to`, which no other work touches,
    /// and `from` is memory of its device, until the copy is over.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`].
    unsafe fn copy(
        &self,
        device: u32,
        stream: u64,
        to: u64,
        from: DevicePtr,
    ) -> Result<(), MemoryError>;

    /// Waits until all that is queued is done.
    ///
    /// # Safety
    /// The driver knows the stream.
    ///
    /// # Errors
    /// As [`Accelerator::allocate`].
    unsafe fn synchronize(&self, device: u32, stream: u64) -> Result<(), MemoryError>;

    /// The allocation that an address of a device lies in, also one that another library made.
    ///
    /// # Errors
    /// [`MemoryError::Pointer`] if it is no memory of a device, or no more.
    fn extent(&self, address: u64) -> Result<DeviceRange, MemoryError>;

    /// Counts registrations that are kept until the process ends, since work may touch them still.
    fn keep(&self, count: u64);

    /// How many ranges and registrations the driver refused to take back, or are kept until the process ends.
    fn unreleased(&self) -> u64;
}

#[cfg(test)]
mod tests;
