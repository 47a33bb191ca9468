//! The virtual memory management calls, host registrations, and access to bytes.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::io::{pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags};

use crate::Outcome;
use crate::calls::{State, call, put};
use crate::code::{
    ALREADY_REGISTERED, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_REGISTERED,
    NOT_SUPPORTED, OUT_OF_MEMORY,
};

/// Memory comes in multiples of this.
pub(crate) const GRANULARITY: usize = 2 << 20;
const NAME: &str = "played-cuda-";
const POSIX_FD: u32 = 1;

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: u32,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Prop {
    kind: u32,
    handles: u32,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Access {
    location: Location,
    flags: u32,
}

struct Allocation {
    file: Arc<OwnedFd>,
    size: usize,
    device: usize,
    exports: bool,
}

struct Mapping {
    size: usize,
    file: Arc<OwnedFd>,
    offset: usize,
    device: usize,
    /// What each device may do there: 1 read, 3 read and write.
    access: BTreeMap<usize, u32>,
}

struct Registered {
    size: usize,
    is_read_only: bool,
}

/// All memory of this process that the driver knows.
#[derive(Default)]
pub(crate) struct Memory {
    allocations: BTreeMap<u64, Allocation>,
    reserved: BTreeMap<u64, usize>,
    /// What `cuMemAlloc` gave.
    taken: BTreeMap<u64, usize>,
    mapped: BTreeMap<u64, Mapping>,
    registered: BTreeMap<u64, Registered>,
    next: u64,
    pub(crate) limit: Option<usize>,
}

impl Memory {
    /// Bytes of the allocations whose handles were not released.
    pub(crate) fn used(&self) -> usize {
        self.allocations.values().map(|one| one.size).sum()
    }

    /// Handles, reservations, mappings and registrations that are there.
    pub(crate) fn held(&self) -> [usize; 4] {
        [
            self.allocations.len(),
            self.reserved.len(),
            self.mapped.len(),
            self.registered.len(),
        ]
    }

    fn mapping(&self, at: u64, len: usize) -> Option<(&Mapping, u64)> {
        let (base, mapping) = self.mapped.range(..=at).next_back()?;
        let within = at - base;
        (within + len as u64 <= mapping.size as u64).then_some((mapping, within))
    }

    fn host(&self, at: u64, len: usize) -> Option<&Registered> {
        let (base, registered) = self.registered.range(..=at).next_back()?;
        (at - base + len as u64 <= registered.size as u64).then_some(registered)
    }

    /// The device and the extent of the mapping that an address lies in.
    pub(crate) fn of(&self, at: u64) -> Option<(usize, u64, usize)> {
        let (mapping, within) = self.mapping(at, 1)?;
        Some((mapping.device, at - within, mapping.size))
    }

    /// True if work of `device` may touch these bytes.
    pub(crate) fn may(&self, device: usize, at: u64, len: usize, writes: bool) -> bool {
        let need = if writes { 3 } else { 1 };
        match self.mapping(at, len) {
            Some((mapping, _)) => mapping
                .access
                .get(&device)
                .is_some_and(|have| have & need == need),
            None => self
                .host(at, len)
                .is_some_and(|host| !writes || !host.is_read_only),
        }
    }

    /// Reads bytes of a device's memory.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Outcome {
        let (mapping, within) = self.mapping(at, bytes.len()).ok_or(INVALID_VALUE)?;
        let mut done = 0;
        while done < bytes.len() {
            let from = mapping.offset as u64 + within + done as u64;
            match pread(&mapping.file, &mut bytes[done..], from) {
                Ok(count) if count > 0 => done += count,
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }

    /// Writes bytes of a device's memory.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Outcome {
        let (mapping, within) = self.mapping(at, bytes.len()).ok_or(INVALID_VALUE)?;
        let mut done = 0;
        while done < bytes.len() {
            let to = mapping.offset as u64 + within + done as u64;
            match pwrite(&mapping.file, &bytes[done..], to) {
                Ok(count) if count > 0 => done += count,
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }

    /// A word, in a device's memory or in the host's that is registered.
    pub(crate) fn word(&self, at: u64) -> Option<u64> {
        if self.mapping(at, 8).is_some() {
            let mut bytes = [0; 8];
            self.read(at, &mut bytes).ok()?;
            return Some(u64::from_ne_bytes(bytes));
        }
        self.host(at, 8)?;
        // SAFETY: the word lies in memory that the caller registered, and keeps mapped until it is taken back.
        let word = unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(at as usize) };
        Some(word.load(Ordering::Acquire))
    }

    pub(crate) fn put_word(&self, at: u64, value: u64) -> Outcome {
        if self.mapping(at, 8).is_some() {
            return self.write(at, &value.to_ne_bytes());
        }
        self.host(at, 8).ok_or(INVALID_VALUE)?;
        // SAFETY: as above, and registered for writing: `may` was asked.
        let word = unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(at as usize) };
        word.store(value, Ordering::Release);
        Ok(())
    }

    /// Memory as `cuMemAlloc` gives it: no descriptor, and no other device's.
    pub(crate) fn take(&mut self, device: usize, seed: u8, size: usize) -> Result<u64, u32> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let file = new_file(seed, size)?;
        let base = reserve(size)?;
        let mapping = Mapping {
            size,
            file: Arc::new(file),
            offset: 0,
            device,
            access: BTreeMap::from([(device, 3)]),
        };
        self.taken.insert(base, size);
        self.mapped.insert(base, mapping);
        Ok(base)
    }

    pub(crate) fn give_back(&mut self, base: u64) -> Outcome {
        let size = self.taken.remove(&base).ok_or(INVALID_VALUE)?;
        self.mapped.remove(&base);
        unreserve(base, size)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        0xA000 + self.next
    }
}

/// A file that is memory of the device of that seed.
fn new_file(seed: u8, size: usize) -> Result<OwnedFd, u32> {
    let name = format!("{NAME}{seed:02x}");
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).map_err(|_| OUT_OF_MEMORY)?;
    rustix::fs::ftruncate(&file, size as u64).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file)
}

/// Addresses that nothing may touch.
fn reserve(size: usize) -> Result<u64, u32> {
    // SAFETY: a new mapping at an address of the kernel's choice, which nothing may touch.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            size,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    Ok(base.map_err(|_| OUT_OF_MEMORY)?.addr() as u64)
}

fn unreserve(base: u64, size: usize) -> Outcome {
    // SAFETY: exactly the mapping that `reserve` made, which nothing has ever touched.
    let unmapped =
        unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(base as usize), size) };
    unmapped.map_err(|_| INVALID_VALUE)
}

/// The device that `prop` names, if it is of a kind that is played.
///
/// # Safety
/// `prop` is null or points to one.
unsafe fn device_of(state: &mut State, prop: *const Prop) -> Result<(usize, Prop), u32> {
    // SAFETY: null or valid, as the caller vouches.
    let prop = unsafe { prop.as_ref() }.copied().ok_or(INVALID_VALUE)?;
    if prop.kind != 1 || prop.location.kind != 1 {
        return Err(INVALID_VALUE);
    }
    state.devices.at(prop.location.id)?;
    if !state.devices.can("vmm") {
        return Err(NOT_SUPPORTED);
    }
    Ok((prop.location.id as usize, prop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    prop: *const Prop,
    _: u32,
) -> u32 {
    call("cuMemGetAllocationGranularity", |state| {
        // SAFETY: both are valid, as every caller of the driver vouches.
        unsafe { device_of(state, prop) }?;
        // SAFETY: as above.
        unsafe { put(bytes, GRANULARITY) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    prop: *const Prop,
    flags: c_ulonglong,
) -> u32 {
    call("cuMemCreate", |state| {
        // SAFETY: as above.
        let (device, prop) = unsafe { device_of(state, prop) }?;
        if size == 0 || !size.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let used = state.memory.used();
        if state.memory.limit.is_some_and(|limit| used + size > limit) {
            return Err(OUT_OF_MEMORY);
        }
        let file = new_file(state.devices.all[device].seed, size)?;
        let number = state.memory.number();
        let allocation = Allocation {
            file: Arc::new(file),
            size,
            device,
            exports: prop.handles & POSIX_FD != 0,
        };
        state.memory.allocations.insert(number, allocation);
        // SAFETY: as above.
        unsafe { put(handle, number) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: u64) -> u32 {
    call("cuMemRelease", |state| {
        let gone = state.memory.allocations.remove(&handle);
        gone.map(drop).ok_or(INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    size: usize,
    _: usize,
    _: u64,
    flags: c_ulonglong,
) -> u32 {
    call("cuMemAddressReserve", |state| {
        if size == 0 || !size.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let base = reserve(size)?;
        state.memory.reserved.insert(base, size);
        // SAFETY: valid for a write, as every caller vouches.
        unsafe { put(address, base) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: u64, size: usize) -> u32 {
    call("cuMemAddressFree", |state| {
        let is_mapped = state.memory.of(address).is_some();
        if state.memory.reserved.get(&address) != Some(&size) || is_mapped {
            return Err(INVALID_VALUE);
        }
        state.memory.reserved.remove(&address);
        unreserve(address, size)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(
    address: u64,
    size: usize,
    offset: usize,
    handle: u64,
    flags: c_ulonglong,
) -> u32 {
    call("cuMemMap", |state| {
        let memory = &mut state.memory;
        let allocation = memory.allocations.get(&handle).ok_or(INVALID_VALUE)?;
        let reserved = memory.reserved.range(..=address).next_back();
        let fits = reserved.is_some_and(|(base, len)| address - base + size as u64 <= *len as u64);
        if !fits || size == 0 || offset + size > allocation.size || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mapping = Mapping {
            size,
            file: Arc::clone(&allocation.file),
            offset,
            device: allocation.device,
            access: BTreeMap::new(),
        };
        memory.mapped.insert(address, mapping);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(address: u64, size: usize) -> u32 {
    call("cuMemUnmap", |state| {
        let is_it = |mapping: &Mapping| mapping.size == size;
        if !state.memory.mapped.get(&address).is_some_and(is_it) {
            return Err(INVALID_VALUE);
        }
        state.memory.mapped.remove(&address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(
    address: u64,
    size: usize,
    access: *const Access,
    count: usize,
) -> u32 {
    call("cuMemSetAccess", |state| {
        if access.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and so many descriptions, as every caller vouches.
        let all = unsafe { std::slice::from_raw_parts(access, count) };
        let owner = state.memory.of(address).map(|(device, ..)| device);
        for access in all {
            state.devices.at(access.location.id)?;
            let is_far = owner != Some(access.location.id as usize);
            if access.flags == 1 && !state.devices.can("readonly")
                || is_far && !state.devices.can("peers")
            {
                return Err(NOT_SUPPORTED);
            }
        }
        let mapping = state.memory.mapped.get_mut(&address);
        let mapping = mapping.filter(|mapping| mapping.size == size);
        let mapping = mapping.ok_or(INVALID_VALUE)?;
        for access in all {
            mapping
                .access
                .insert(access.location.id as usize, access.flags);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemExportToShareableHandle(
    out: *mut c_void,
    handle: u64,
    kind: u32,
    _: c_ulonglong,
) -> u32 {
    call("cuMemExportToShareableHandle", |state| {
        if kind != POSIX_FD || !state.devices.can("descriptors") {
            return Err(NOT_SUPPORTED);
        }
        let allocation = state.memory.allocations.get(&handle).ok_or(INVALID_VALUE)?;
        if !allocation.exports {
            return Err(INVALID_VALUE);
        }
        let copy = allocation.file.try_clone().map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: for this kind of handle the caller gives room for a descriptor.
        unsafe { put(out.cast::<c_int>(), copy.into_raw_fd()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut u64,
    descriptor: *mut c_void,
    kind: u32,
) -> u32 {
    call("cuMemImportFromShareableHandle", |state| {
        let fd = c_int::try_from(descriptor.addr()).map_err(|_| INVALID_VALUE)?;
        if kind != POSIX_FD || fd < 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller gives a descriptor that is open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let link = link.map_err(|_| INVALID_HANDLE)?;
        let link = link.to_string_lossy().into_owned();
        let seed = link.split(NAME).nth(1).and_then(|rest| rest.get(..2));
        let seed = seed.and_then(|seed| u8::from_str_radix(seed, 16).ok());
        let seed = seed.ok_or(INVALID_VALUE)?;
        let device = state.devices.all.iter().position(|one| one.seed == seed);
        let device = device.ok_or(INVALID_DEVICE)?;
        let file = fd.try_clone_to_owned().map_err(|_| OUT_OF_MEMORY)?;
        let size = rustix::fs::fstat(&file)
            .map_err(|_| INVALID_HANDLE)?
            .st_size as usize;
        let number = state.memory.number();
        let allocation = Allocation {
            file: Arc::new(file),
            size,
            device,
            exports: true,
        };
        state.memory.allocations.insert(number, allocation);
        // SAFETY: valid for a write, as every caller vouches.
        unsafe { put(handle, number) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(prop: *mut Prop, handle: u64) -> u32 {
    call("cuMemGetAllocationPropertiesFromHandle", |state| {
        let allocation = state.memory.allocations.get(&handle).ok_or(INVALID_VALUE)?;
        let answer = Prop {
            kind: 1,
            handles: POSIX_FD,
            location: Location {
                kind: 1,
                id: allocation.device as c_int,
            },
            win32: ptr::null_mut(),
            flags: [0; 8],
        };
        // SAFETY: as above.
        unsafe { put(prop, answer) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(host: *mut c_void, size: usize, flags: c_uint) -> u32 {
    call("cuMemHostRegister_v2", |state| {
        state.devices.current()?;
        let at = host.expose_provenance() as u64;
        if at == 0 || size == 0 {
            return Err(INVALID_VALUE);
        }
        if state.memory.host(at, 1).is_some() {
            return Err(ALREADY_REGISTERED);
        }
        let is_read_only = flags & 8 != 0;
        state
            .memory
            .registered
            .insert(at, Registered { size, is_read_only });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(host: *mut c_void) -> u32 {
    call("cuMemHostUnregister", |state| {
        let gone = state.memory.registered.remove(&(host.addr() as u64));
        gone.map(drop).ok_or(NOT_REGISTERED)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    device: *mut u64,
    host: *mut c_void,
    _: c_uint,
) -> u32 {
    call("cuMemHostGetDevicePointer_v2", |state| {
        let at = host.addr() as u64;
        state.memory.host(at, 1).ok_or(NOT_REGISTERED)?;
        // SAFETY: as above.
        unsafe { put(device, at) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(out: *mut c_void, what: u32, address: u64) -> u32 {
    call("cuPointerGetAttribute", |state| {
        let (device, base, size) = state.memory.of(address).ok_or(INVALID_VALUE)?;
        match what {
            // SAFETY: each attribute's answer is of the type that is written, as every caller vouches.
            9 => unsafe { put(out.cast::<c_int>(), device as c_int) },
            // SAFETY: as above.
            11 => unsafe { put(out.cast::<u64>(), base) },
            // SAFETY: as above.
            12 => unsafe { put(out.cast::<usize>(), size) },
            _ => Err(INVALID_VALUE),
        }
    })
}
