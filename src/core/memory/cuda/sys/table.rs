//! The functions of the driver that are used, as a table.
//!
//! Knows names and signatures. Newer drivers keep these names with these signatures: `_v2` is part of a name.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use super::types::*;

/// One row for each function: its field in [`CudaTable`], its symbol, its signature.
macro_rules! for_each_function {
    ($then:ident) => {
        $then! {
            init: cuInit(c_uint);
            device_count: cuDeviceGetCount(*mut c_int);
            device_get: cuDeviceGet(*mut CUdevice, c_int);
            device_uuid: cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
            device_name: cuDeviceGetName(*mut c_char, c_int, CUdevice);
            device_memory: cuDeviceTotalMem_v2(*mut usize, CUdevice);
            device_reaches: cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
            device_attribute: cuDeviceGetAttribute(*mut c_int, c_int, CUdevice);
            context_retain: cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
            context_release: cuDevicePrimaryCtxRelease_v2(CUdevice);
            context_push: cuCtxPushCurrent_v2(CUcontext);
            context_pop: cuCtxPopCurrent_v2(*mut CUcontext);
            context_device: cuCtxGetDevice(*mut CUdevice);
            granularity: cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, u32);
            create: cuMemCreate(
                *mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong
            );
            release: cuMemRelease(CUmemGenericAllocationHandle);
            reserve: cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
            free: cuMemAddressFree(CUdeviceptr, usize);
            map: cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
            unmap: cuMemUnmap(CUdeviceptr, usize);
            set_access: cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
            export: cuMemExportToShareableHandle(
                *mut c_void, CUmemGenericAllocationHandle, u32, c_ulonglong
            );
            import: cuMemImportFromShareableHandle(
                *mut CUmemGenericAllocationHandle, *mut c_void, u32
            );
            properties: cuMemGetAllocationPropertiesFromHandle(
                *mut CUmemAllocationProp, CUmemGenericAllocationHandle
            );
            host_register: cuMemHostRegister_v2(*mut c_void, usize, c_uint);
            host_unregister: cuMemHostUnregister(*mut c_void);
            host_pointer: cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
            pointer_attribute: cuPointerGetAttribute(*mut c_void, u32, CUdeviceptr);
            stream_create: cuStreamCreate(*mut CUstream, c_uint);
            stream_destroy: cuStreamDestroy_v2(CUstream);
            stream_synchronize: cuStreamSynchronize(CUstream);
            stream_context: cuStreamGetCtx(CUstream, *mut CUcontext);
            stream_write: cuStreamWriteValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
            stream_wait: cuStreamWaitValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
            to_device: cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
            to_host: cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
            on_device: cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
            between_devices: cuMemcpyPeerAsync(
                CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream
            );
        }
    };
}

macro_rules! table {
    ($($field:ident: $symbol:ident($($argument:ty),*);)*) => {
        /// The functions of the driver that are used, each with the contract of its page in the driver API's manual.
        #[derive(Clone, Copy)]
        pub struct CudaTable {
            $(#[doc = concat!("`", stringify!($symbol), "`")]
            // SAFETY: a type only: its caller upholds the contract of its manual page.
            pub $field: unsafe extern "C" fn($($argument),*) -> CUresult,)*
        }

        /// Every symbol of the table with the sizes of its arguments, in its order.
        pub const SYMBOLS: &[(&str, &[usize])] =
            &[$((stringify!($symbol), &[$(size_of::<$argument>()),*]),)*];
    };
}

for_each_function!(table);

pub(super) use for_each_function;

shown! { CudaTable {} }
