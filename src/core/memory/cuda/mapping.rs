//! Memory as the driver maps it: handles, ranges of addresses, and who may touch what lies there.
//!
//! Knows the calls for virtual memory; `driver.rs` says when each is made.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr;

use super::driver::{CudaDevice, CudaDriver};
use super::error::check;
use super::sys::*;
use crate::memory::MemoryError;

impl CudaDriver {
    pub(super) fn whole(
        &self,
        prop: &CUmemAllocationProp,
        len: usize,
    ) -> Result<usize, MemoryError> {
        let mut unit = 0_usize;
        // SAFETY: both places are valid.
        let code = unsafe {
            (self.table.granularity)(&raw mut unit, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        };
        check("cuMemGetAllocationGranularity", code)?;
        let whole = len.checked_next_multiple_of(unit.max(1));
        whole.filter(|whole| *whole > 0).ok_or(MemoryError::Unfit {
            asked: len as u64,
            limit: usize::MAX as u64,
        })
    }

    /// Maps all of a handle's memory for the work of its device. The handle stays.
    pub(super) fn map(
        &self,
        device: &CudaDevice,
        handle: CUmemGenericAllocationHandle,
        len: usize,
        flags: u32,
    ) -> Result<CUdeviceptr, MemoryError> {
        let mut address = 0;
        // SAFETY: the place is valid for the answer.
        let code = unsafe { (self.table.reserve)(&raw mut address, len, 0, 0, 0) };
        check("cuMemAddressReserve", code)?;
        // SAFETY: the range was just reserved, and nothing is mapped there.
        let code = unsafe { (self.table.map)(address, len, 0, handle, 0) };
        if let Err(error) = check("cuMemMap", code) {
            // SAFETY: the range was just reserved, and nothing is mapped there.
            self.note(unsafe { (self.table.free)(address, len) });
            return Err(error);
        }
        let access = CUmemAccessDesc {
            location: CUmemLocation {
                kind: CU_MEM_LOCATION_TYPE_DEVICE,
                id: device.handle,
            },
            flags,
        };
        // SAFETY: the range is mapped, and one description is given.
        let code = unsafe { (self.table.set_access)(address, len, &raw const access, 1) };
        if let Err(error) = check("cuMemSetAccess", code) {
            self.unmap(address, len);
            return Err(error);
        }
        let readers = self.readers_of(device);
        if !readers.is_empty() {
            // Where the others may not read it in place after all, copies go another way: nothing is lost by it.
            // SAFETY: the range is mapped, and so many descriptions are given.
            let _ =
                unsafe { (self.table.set_access)(address, len, readers.as_ptr(), readers.len()) };
        }
        Ok(address)
    }

    pub(super) fn unmap(&self, address: CUdeviceptr, len: usize) {
        // SAFETY: the range is a whole mapping of ours, and its last user is gone: `release` asks that of its callers,
        // and `map` has shown it to none.
        let code = unsafe { (self.table.unmap)(address, len) };
        if code != CUDA_SUCCESS {
            return self.note(code);
        }
        // SAFETY: the range is a whole reservation of ours, and nothing is mapped there.
        self.note(unsafe { (self.table.free)(address, len) });
    }

    pub(super) fn drop_handle(&self, handle: CUmemGenericAllocationHandle) {
        // SAFETY: the handle is ours and released once; what is mapped of it stays.
        self.note(unsafe { (self.table.release)(handle) });
    }

    pub(super) fn export(
        &self,
        handle: CUmemGenericAllocationHandle,
    ) -> Result<OwnedFd, MemoryError> {
        let mut fd: c_int = -1;
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: for this kind of handle the answer is a descriptor, and the place is valid for one.
        let code = unsafe { (self.table.export)((&raw mut fd).cast(), handle, kind, 0) };
        check("cuMemExportToShareableHandle", code)?;
        if fd < 0 {
            return Err(MemoryError::system(
                "cuMemExportToShareableHandle",
                rustix::io::Errno::BADF,
            ));
        }
        // SAFETY: the driver has made this descriptor for us to own.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

pub(super) const fn prop(device: CUdevice) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation {
            kind: CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        win32: ptr::null_mut(),
        flags: CUmemAllocationFlags {
            compression: 0,
            gpu_direct_rdma: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
