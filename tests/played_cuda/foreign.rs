//! The calls by which other libraries take, fill and read memory: an engine makes none of them.

use std::ffi::c_void;
use std::slice;

use crate::calls::{call, put};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, size: usize) -> u32 {
    call("cuMemAlloc_v2", |state| {
        let device = state.devices.current()?;
        let seed = state.devices.all[device].seed;
        let base = state.memory.take(device, seed, size)?;
        // SAFETY: valid for a write, as every caller of the driver vouches.
        unsafe { put(address, base) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    call("cuMemFree_v2", |state| state.memory.give_back(address))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) -> u32 {
    call("cuMemcpyHtoD_v2", |state| {
        state.devices.current()?;
        // SAFETY: the caller vouches for its memory, of so many bytes.
        let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), len) };
        state.memory.write(to, bytes)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) -> u32 {
    call("cuMemcpyDtoH_v2", |state| {
        state.devices.current()?;
        // SAFETY: as above, and no other code touches it meanwhile.
        let bytes = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), len) };
        state.memory.read(from, bytes)
    })
}
