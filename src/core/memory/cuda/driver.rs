//! The driver as an accelerator: devices found, memory mapped, work queued.
//!
//! Knows the table of functions, and calls each as its manual page asks.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::check;
use super::mapping::prop;
use super::sys::*;
use crate::ground::MemoryKind;
use crate::memory::{
    Accelerator, DeviceInfo, DevicePtr, DeviceRange, DeviceUuid, HostMemory, MemoryError,
};

/// What is loaded where no library is named: the driver, with the number of its binary interface.
const LIBRARY: &str = "libcuda.so.1";
/// More devices than a machine has.
const DEVICES_MAX: c_int = 64;

/// A CUDA driver that was found, and its devices.
#[derive(Debug)]
pub struct CudaDriver {
    pub(super) table: CudaTable,
    devices: Vec<CudaDevice>,
    infos: Vec<DeviceInfo>,
    unreleased: AtomicU64,
}

#[derive(Debug)]
pub(super) struct CudaDevice {
    pub(super) handle: CUdevice,
    /// Its primary context, once it was needed: a pointer, as its address.
    context: OnceLock<usize>,
}

impl CudaDriver {
    /// The machine's driver, or the library of that name or path: one that this process's own settings name, and that
    /// keeps the contract of a driver.
    ///
    /// # Errors
    /// [`CudaLoadError`] as text where there is no library; [`MemoryError::Driver`] as text where the library finds no
    /// driver, or no device.
    pub fn open(library: Option<&str>) -> Result<Self, OpenError> {
        // SAFETY: the library is the machine's driver, or one that the settings of this process name as such.
        let table = unsafe { load(library.unwrap_or(LIBRARY)) }?;
        Ok(Self::over(table)?)
    }

    fn over(table: CudaTable) -> Result<Self, MemoryError> {
        // SAFETY: it takes no flag but zero, and may be called again.
        check("cuInit", unsafe { (table.init)(0) })?;
        let mut count = 0;
        // SAFETY: the place is valid for the answer.
        let code = unsafe { (table.device_count)(&raw mut count) };
        check("cuDeviceGetCount", code)?;
        let mut driver = Self {
            table,
            devices: Vec::new(),
            infos: Vec::new(),
            unreleased: AtomicU64::new(0),
        };
        for ordinal in 0..count.min(DEVICES_MAX) {
            driver.add(ordinal)?;
        }
        for owner in 0..driver.devices.len() {
            driver.infos[owner].readers = driver.readers(owner)?;
        }
        Ok(driver)
    }

    fn add(&mut self, ordinal: c_int) -> Result<(), MemoryError> {
        let table = &self.table;
        let mut handle = 0;
        // SAFETY: the place is valid for the answer.
        let code = unsafe { (table.device_get)(&raw mut handle, ordinal) };
        check("cuDeviceGet", code)?;
        let mut uuid = CUuuid::default();
        // SAFETY: as above.
        let code = unsafe { (table.device_uuid)(&raw mut uuid, handle) };
        check("cuDeviceGetUuid_v2", code)?;
        let mut name = [0_u8; 96];
        let len = name.len() as c_int - 1;
        // SAFETY: the array has room for so many bytes, and one more that stays zero.
        let code = unsafe { (table.device_name)(name.as_mut_ptr().cast::<c_char>(), len, handle) };
        check("cuDeviceGetName", code)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
        let mut bytes = 0_usize;
        // SAFETY: as above.
        let code = unsafe { (table.device_memory)(&raw mut bytes, handle) };
        check("cuDeviceTotalMem_v2", code)?;
        let has_vmm = self.has(
            handle,
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        )?;
        let exports = self.has(
            handle,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        )?;
        let has_words = self.has(handle, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?;
        self.infos.push(DeviceInfo {
            number: self.devices.len() as u32,
            uuid: DeviceUuid(uuid.bytes),
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            bytes: bytes as u64,
            exports: has_vmm && exports,
            has_words,
            readers: 0,
        });
        self.devices.push(CudaDevice {
            handle,
            context: OnceLock::new(),
        });
        Ok(())
    }

    /// Which devices' work reads a device's memory in place.
    fn readers(&self, owner: usize) -> Result<u64, MemoryError> {
        let mut readers = 0;
        for (number, reader) in self.devices.iter().enumerate() {
            if number == owner {
                continue;
            }
            let mut can = 0;
            let (reader, owner) = (reader.handle, self.devices[owner].handle);
            // SAFETY: the place is valid for the answer.
            let code = unsafe { (self.table.device_reaches)(&raw mut can, reader, owner) };
            check("cuDeviceCanAccessPeer", code)?;
            readers |= u64::from(can != 0) << number;
        }
        Ok(readers)
    }

    /// What lets other devices' work read memory of a device.
    pub(super) fn readers_of(&self, device: &CudaDevice) -> Vec<CUmemAccessDesc> {
        let owner = self.devices.iter().zip(&self.infos);
        let mut owner = owner.filter(|(one, _)| one.handle == device.handle);
        let readers = owner.next().map_or(0, |(_, info)| info.readers);
        let others = self.devices.iter().enumerate();
        let others = others.filter(|(number, _)| readers >> number & 1 == 1);
        let description = |(_, other): (usize, &CudaDevice)| CUmemAccessDesc {
            location: CUmemLocation {
                kind: CU_MEM_LOCATION_TYPE_DEVICE,
                id: other.handle,
            },
            flags: CU_MEM_ACCESS_FLAGS_PROT_READ,
        };
        others.map(description).collect()
    }

    fn has(&self, device: CUdevice, attribute: c_int) -> Result<bool, MemoryError> {
        let mut value = 0;
        // SAFETY: the place is valid for the answer.
        let code = unsafe { (self.table.device_attribute)(&raw mut value, attribute, device) };
        check("cuDeviceGetAttribute", code)?;
        Ok(value != 0)
    }

    fn device(&self, number: u32) -> Result<&CudaDevice, MemoryError> {
        self.devices
            .get(number as usize)
            .ok_or(MemoryError::Ordinal {
                kind: MemoryKind::Cuda,
                device: number,
                count: self.devices.len() as u32,
            })
    }

    /// A device's primary context, which stays retained from its first use on.
    fn context(&self, device: &CudaDevice) -> Result<usize, MemoryError> {
        if let Some(context) = device.context.get() {
            return Ok(*context);
        }
        let mut context = ptr::null_mut();
        // SAFETY: the device is one of the driver's, and the place valid for the answer.
        let code = unsafe { (self.table.context_retain)(&raw mut context, device.handle) };
        check("cuDevicePrimaryCtxRetain", code)?;
        if device.context.set(context.expose_provenance()).is_err() {
            // Another thread was first, and its count is enough.
            // SAFETY: it gives up the count that was just taken.
            let code = unsafe { (self.table.context_release)(device.handle) };
            self.note(code);
        }
        Ok(context.addr())
    }

    /// The device of a context, which is alive.
    fn device_of_context(&self, context: CUcontext) -> Result<CUdevice, MemoryError> {
        // SAFETY: the context is alive, as the caller vouches.
        check("cuCtxPushCurrent_v2", unsafe {
            (self.table.context_push)(context)
        })?;
        let mut device = 0;
        // SAFETY: a context is current, and the place valid for the answer.
        let code = unsafe { (self.table.context_device)(&raw mut device) };
        // SAFETY: the context on top is the one that was pushed; the answer is not wanted.
        self.note(unsafe { (self.table.context_pop)(ptr::null_mut()) });
        check("cuCtxGetDevice", code)?;
        Ok(device)
    }

    /// Does something with a device's context current on this thread, and leaves the thread's own as it was.
    fn within<T>(
        &self,
        number: u32,
        work: impl FnOnce(&CudaDevice) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let device = self.device(number)?;
        let context = ptr::with_exposed_provenance_mut(self.context(device)?);
        // SAFETY: the context is retained for as long as `self` lives.
        check("cuCtxPushCurrent_v2", unsafe {
            (self.table.context_push)(context)
        })?;
        let done = work(device);
        // A pop that fails leaves our context below what comes next, and makes no call wrong: each pushes its own.
        // SAFETY: the context on top is the one that was pushed; the answer is not wanted.
        self.note(unsafe { (self.table.context_pop)(ptr::null_mut()) });
        done
    }

    /// Counts what the driver would not take back.
    pub(super) fn note(&self, code: CUresult) {
        if code != CUDA_SUCCESS && code != CUDA_ERROR_DEINITIALIZED {
            self.unreleased.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn stream_of(stream: u64) -> CUstream {
    ptr::with_exposed_provenance_mut(stream as usize)
}

// SAFETY: reservations of the driver are disjoint; each range is one reservation with one mapping, until `release`.
// Every call's failure is told before anything else is done, and what came before it is undone.
unsafe impl Accelerator for CudaDriver {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Cuda
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.infos
    }

    fn allocate(&self, number: u32, len: usize) -> Result<(DeviceRange, OwnedFd), MemoryError> {
        self.within(number, |device| {
            let prop = prop(device.handle);
            let len = self.whole(&prop, len)?;
            let mut handle = 0;
            // SAFETY: both places are valid.
            let code = unsafe { (self.table.create)(&raw mut handle, len, &raw const prop, 0) };
            check("cuMemCreate", code)?;
            let made = self.export(handle).and_then(|fd| {
                let flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                Ok((self.map(device, handle, len, flags)?, fd))
            });
            self.drop_handle(handle);
            let (address, fd) = made?;
            let range = DeviceRange {
                device: number,
                address,
                len,
            };
            Ok((range, fd))
        })
    }

    fn import(
        &self,
        number: u32,
        fd: BorrowedFd<'_>,
        len: usize,
    ) -> Result<DeviceRange, MemoryError> {
        self.within(number, |device| {
            let len = self.whole(&prop(device.handle), len)?;
            let mut handle = 0;
            let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            let descriptor = ptr::without_provenance_mut(fd.as_raw_fd() as usize);
            // SAFETY: for this kind of handle the descriptor stands in the place of the pointer, and is open.
            let code = unsafe { (self.table.import)(&raw mut handle, descriptor, kind) };
            check("cuMemImportFromShareableHandle", code)?;
            let mut found = prop(-1);
            // SAFETY: the handle was just imported, and the place is valid for the answer.
            let code = unsafe { (self.table.properties)(&raw mut found, handle) };
            let mapped = check("cuMemGetAllocationPropertiesFromHandle", code).and_then(|()| {
                if found.location.id != device.handle {
                    return Err(MemoryError::OtherDevice {
                        kind: MemoryKind::Cuda,
                        device: number,
                    });
                }
                // A length beyond the memory's own is refused by the driver.
                self.map(device, handle, len, CU_MEM_ACCESS_FLAGS_PROT_READ)
            });
            self.drop_handle(handle);
            Ok(DeviceRange {
                device: number,
                address: mapped?,
                len,
            })
        })
    }

    unsafe fn release(&self, range: DeviceRange) {
        let done = self.within(range.device, |_| {
            self.unmap(range.address, range.len);
            Ok(())
        });
        if done.is_err() {
            self.unreleased.fetch_add(1, Ordering::Relaxed);
        }
    }

    unsafe fn register(
        &self,
        device: u32,
        host: *mut u8,
        len: usize,
    ) -> Result<u64, (MemoryError, HostMemory)> {
        let mut memory = HostMemory::Free;
        let registered = self.within(device, |_| {
            let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
            // SAFETY: the caller keeps these bytes mapped until `unregister`.
            let code = unsafe { (self.table.host_register)(host.cast(), len, flags) };
            check("cuMemHostRegister_v2", code)?;
            let mut at = 0;
            // SAFETY: the memory was just registered, and the place is valid for the answer.
            let code = unsafe { (self.table.host_pointer)(&raw mut at, host.cast(), 0) };
            if let Err(error) = check("cuMemHostGetDevicePointer_v2", code) {
                // SAFETY: it was just registered, and shown to none.
                let code = unsafe { (self.table.host_unregister)(host.cast()) };
                self.note(code);
                if code != CUDA_SUCCESS {
                    memory = HostMemory::Held;
                }
                return Err(error);
            }
            Ok(at)
        });
        registered.map_err(|error| (error, memory))
    }

    unsafe fn unregister(&self, device: u32, host: *mut u8) -> HostMemory {
        let done = self.within(device, |_| {
            // SAFETY: it was registered, and no work touches it any more, as the caller vouches.
            let code = unsafe { (self.table.host_unregister)(host.cast()) };
            check("cuMemHostUnregister", code)
        });
        if done.is_ok() {
            return HostMemory::Free;
        }
        self.unreleased.fetch_add(1, Ordering::Relaxed);
        HostMemory::Held
    }

    fn make_stream(&self, device: u32) -> Result<u64, MemoryError> {
        self.within(device, |_| {
            let mut stream = ptr::null_mut();
            let flags: c_uint = CU_STREAM_NON_BLOCKING;
            // SAFETY: the place is valid for the answer.
            let code = unsafe { (self.table.stream_create)(&raw mut stream, flags) };
            check("cuStreamCreate", code)?;
            Ok(stream.expose_provenance() as u64)
        })
    }

    unsafe fn end_stream(&self, device: u32, stream: u64) {
        let done = self.within(device, |_| {
            // SAFETY: the stream is ours and ended once, as the caller vouches.
            let code = unsafe { (self.table.stream_destroy)(stream_of(stream)) };
            check("cuStreamDestroy_v2", code)
        });
        if done.is_err() {
            self.unreleased.fetch_add(1, Ordering::Relaxed);
        }
    }

    unsafe fn device_of(&self, stream: u64) -> Result<Option<u32>, MemoryError> {
        if stream <= CU_STREAM_PER_THREAD.max(CU_STREAM_LEGACY) {
            return Ok(None);
        }
        let mut context = ptr::null_mut();
        // SAFETY: the driver knows the stream, as the caller vouches; the place is valid for the answer.
        let code = unsafe { (self.table.stream_context)(stream_of(stream), &raw mut context) };
        check("cuStreamGetCtx", code)?;
        let handle = self.device_of_context(context)?;
        let number = self.devices.iter().position(|one| one.handle == handle);
        // That device's primary context is retained, and no other's: with one process for each card, none may hold
        // memory of all of them.
        match number {
            Some(number) if self.context(&self.devices[number])? == context.addr() => {
                Ok(Some(number as u32))
            }
            _ => Err(MemoryError::Context {
                kind: MemoryKind::Cuda,
            }),
        }
    }

    unsafe fn write_word(
        &self,
        device: u32,
        stream: u64,
        at: u64,
        value: u64,
    ) -> Result<(), MemoryError> {
        self.within(device, |_| {
            let flags = CU_STREAM_WRITE_VALUE_DEFAULT;
            // SAFETY: stream and word are as the caller vouches.
            let code = unsafe { (self.table.stream_write)(stream_of(stream), at, value, flags) };
            check("cuStreamWriteValue64_v2", code)
        })
    }

    unsafe fn await_word(
        &self,
        device: u32,
        stream: u64,
        at: u64,
        value: u64,
    ) -> Result<(), MemoryError> {
        self.within(device, |_| {
            let flags = CU_STREAM_WAIT_VALUE_GEQ;
            // SAFETY: stream and word are as the caller vouches.
            let code = unsafe { (self.table.stream_wait)(stream_of(stream), at, value, flags) };
            check("cuStreamWaitValue64_v2", code)
        })
    }

    unsafe fn to_host(
        &self,
        device: u32,
        stream: u64,
        to: *mut u8,
        from: u64,
        len: usize,
    ) -> Result<(), MemoryError> {
        self.within(device, |_| {
            // SAFETY: stream and both sides are as the caller vouches.
            let code = unsafe { (self.table.to_host)(to.cast(), from, len, stream_of(stream)) };
            check("cuMemcpyDtoHAsync_v2", code)
        })
    }

    unsafe fn to_device(
        &self,
        device: u32,
        stream: u64,
        to: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), MemoryError> {
        self.within(device, |_| {
            // SAFETY: stream and both sides are as the caller vouches.
            let code = unsafe { (self.table.to_device)(to, from.cast(), len, stream_of(stream)) };
            check("cuMemcpyHtoDAsync_v2", code)
        })
    }

    unsafe fn copy(
        &self,
        device: u32,
        stream: u64,
        to: u64,
        from: DevicePtr,
    ) -> Result<(), MemoryError> {
        let source = self.context(self.device(from.device)?)?;
        let (address, len) = (from.address, from.size as usize);
        self.within(device, |target| {
            let stream = stream_of(stream);
            if device == from.device {
                // SAFETY: stream and both sides are as the caller vouches.
                let code = unsafe { (self.table.on_device)(to, address, len, stream) };
                return check("cuMemcpyDtoDAsync_v2", code);
            }
            let target = ptr::with_exposed_provenance_mut(self.context(target)?);
            let source = ptr::with_exposed_provenance_mut(source);
            let call = self.table.between_devices;
            // SAFETY: as above, and each side is of the context that is given with it.
            let code = unsafe { call(to, target, address, source, len, stream) };
            check("cuMemcpyPeerAsync", code)
        })
    }

    unsafe fn synchronize(&self, device: u32, stream: u64) -> Result<(), MemoryError> {
        self.within(device, |_| {
            // SAFETY: the driver knows the stream, as the caller vouches.
            let code = unsafe { (self.table.stream_synchronize)(stream_of(stream)) };
            check("cuStreamSynchronize", code)
        })
    }

    fn extent(&self, address: u64) -> Result<DeviceRange, MemoryError> {
        let (mut device, mut start, mut len) = (0 as c_int, 0_u64, 0_usize);
        let table = &self.table;
        let what = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the answer is an ordinal, and the place valid for one; any address may be asked about.
        let code = unsafe { (table.pointer_attribute)((&raw mut device).cast(), what, address) };
        if code == CUDA_ERROR_INVALID_VALUE {
            let kind = MemoryKind::Cuda;
            return Err(MemoryError::Pointer { kind, address });
        }
        check("cuPointerGetAttribute", code)?;
        let what = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
        // SAFETY: as above; the answer is an address.
        let code = unsafe { (table.pointer_attribute)((&raw mut start).cast(), what, address) };
        check("cuPointerGetAttribute", code)?;
        let what = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
        // SAFETY: as above; the answer is a size.
        let code = unsafe { (table.pointer_attribute)((&raw mut len).cast(), what, address) };
        check("cuPointerGetAttribute", code)?;
        let number = self.devices.iter().position(|one| one.handle == device);
        let number = number.ok_or(MemoryError::Context {
            kind: MemoryKind::Cuda,
        })?;
        Ok(DeviceRange {
            device: number as u32,
            address: start,
            len,
        })
    }

    fn keep(&self, count: u64) {
        self.unreleased.fetch_add(count, Ordering::Relaxed);
    }

    fn unreleased(&self) -> u64 {
        self.unreleased.load(Ordering::Relaxed)
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        for device in &self.devices {
            if device.context.get().is_some() {
                // SAFETY: it gives up the one count that `context` took.
                let _ = unsafe { (self.table.context_release)(device.handle) };
            }
        }
    }
}

/// Why there is no driver.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No library, or not the right one.
    #[error(transparent)]
    Load(#[from] CudaLoadError),
    /// The library is there, and finds no driver or no device.
    #[error(transparent)]
    Driver(#[from] MemoryError),
}
