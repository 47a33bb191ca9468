//! Tests that the driver's types and functions are declared as cudarc declares them, which come from `cuda.h`.
#![allow(unsafe_code)]

use std::mem::{align_of, offset_of, size_of};

use cudarc::driver::sys as theirs;

use super::*;

#[test]
fn structs_are_laid_out_as_cudarcs() {
    macro_rules! same {
        ($($ours:ty, $theirs:ty;)*) => {$(
            let ours = (size_of::<$ours>(), align_of::<$ours>());
            assert_eq!(ours, (size_of::<$theirs>(), align_of::<$theirs>()), stringify!($ours));
        )*};
    }
    same! {
        CUresult, theirs::CUresult;
        CUdevice, theirs::CUdevice;
        CUcontext, theirs::CUcontext;
        CUstream, theirs::CUstream;
        CUdeviceptr, theirs::CUdeviceptr;
        CUmemGenericAllocationHandle, theirs::CUmemGenericAllocationHandle;
        CUuuid, theirs::CUuuid;
        CUmemLocation, theirs::CUmemLocation;
        CUmemAllocationProp, theirs::CUmemAllocationProp;
        CUmemAccessDesc, theirs::CUmemAccessDesc;
    }
    type Theirs = theirs::CUmemAllocationProp;
    let ours = [
        offset_of!(CUmemAllocationProp, kind),
        offset_of!(CUmemAllocationProp, handle_types),
        offset_of!(CUmemAllocationProp, location),
        offset_of!(CUmemAllocationProp, win32),
        offset_of!(CUmemAllocationProp, flags),
        offset_of!(CUmemAccessDesc, flags),
        offset_of!(CUmemLocation, id),
    ];
    let theirs = [
        offset_of!(Theirs, type_),
        offset_of!(Theirs, requestedHandleTypes),
        offset_of!(Theirs, location),
        offset_of!(Theirs, win32HandleMetaData),
        offset_of!(Theirs, allocFlags),
        offset_of!(theirs::CUmemAccessDesc, flags),
        offset_of!(theirs::CUmemLocation, id),
    ];
    assert_eq!(ours, theirs);
}

#[test]
fn numbers_are_cudarcs() {
    use theirs::CUdevice_attribute as Attribute;
    use theirs::CUresult as Code;
    let codes = [
        (CUDA_SUCCESS, Code::CUDA_SUCCESS),
        (CUDA_ERROR_INVALID_VALUE, Code::CUDA_ERROR_INVALID_VALUE),
        (CUDA_ERROR_OUT_OF_MEMORY, Code::CUDA_ERROR_OUT_OF_MEMORY),
        (CUDA_ERROR_NOT_INITIALIZED, Code::CUDA_ERROR_NOT_INITIALIZED),
        (CUDA_ERROR_DEINITIALIZED, Code::CUDA_ERROR_DEINITIALIZED),
        (CUDA_ERROR_NO_DEVICE, Code::CUDA_ERROR_NO_DEVICE),
        (CUDA_ERROR_INVALID_DEVICE, Code::CUDA_ERROR_INVALID_DEVICE),
        (CUDA_ERROR_INVALID_CONTEXT, Code::CUDA_ERROR_INVALID_CONTEXT),
        (
            CUDA_ERROR_ECC_UNCORRECTABLE,
            Code::CUDA_ERROR_ECC_UNCORRECTABLE,
        ),
        (CUDA_ERROR_INVALID_HANDLE, Code::CUDA_ERROR_INVALID_HANDLE),
        (CUDA_ERROR_NOT_FOUND, Code::CUDA_ERROR_NOT_FOUND),
        (CUDA_ERROR_NOT_READY, Code::CUDA_ERROR_NOT_READY),
        (CUDA_ERROR_ILLEGAL_ADDRESS, Code::CUDA_ERROR_ILLEGAL_ADDRESS),
        (
            CUDA_ERROR_CONTEXT_IS_DESTROYED,
            Code::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        ),
        (CUDA_ERROR_LAUNCH_FAILED, Code::CUDA_ERROR_LAUNCH_FAILED),
        (CUDA_ERROR_NOT_PERMITTED, Code::CUDA_ERROR_NOT_PERMITTED),
        (CUDA_ERROR_NOT_SUPPORTED, Code::CUDA_ERROR_NOT_SUPPORTED),
    ];
    for (ours, theirs) in codes {
        assert_eq!(ours, theirs as u32, "{theirs:?}");
    }
    let attributes = [
        (
            CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
            Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
        ),
        (
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        ),
        (
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ),
    ];
    for (ours, theirs) in attributes {
        assert_eq!(ours, theirs as i32, "{theirs:?}");
    }
    assert_eq!(
        CU_MEMHOSTREGISTER_PORTABLE,
        theirs::CU_MEMHOSTREGISTER_PORTABLE
    );
    assert_eq!(
        CU_MEMHOSTREGISTER_DEVICEMAP,
        theirs::CU_MEMHOSTREGISTER_DEVICEMAP
    );
}

/// The sizes of a function's arguments.
macro_rules! sizes {
    ($name:ident: $($argument:ident),*) => {
        fn $name<$($argument,)* R>(_: unsafe fn($($argument),*) -> R) -> Vec<usize> {
            vec![$(size_of::<$argument>()),*]
        }
    };
}

sizes!(one: A);
sizes!(two: A, B);
sizes!(three: A, B, C);
sizes!(four: A, B, C, D);
sizes!(five: A, B, C, D, E);
sizes!(six: A, B, C, D, E, F);

#[test]
fn functions_take_what_cudarcs_take() {
    let theirs = [
        ("cuInit", one(theirs::cuInit)),
        ("cuDeviceGetCount", one(theirs::cuDeviceGetCount)),
        ("cuDeviceGet", two(theirs::cuDeviceGet)),
        ("cuDeviceGetUuid_v2", two(theirs::cuDeviceGetUuid_v2)),
        ("cuDeviceGetName", three(theirs::cuDeviceGetName)),
        ("cuDeviceTotalMem_v2", two(theirs::cuDeviceTotalMem_v2)),
        (
            "cuDeviceCanAccessPeer",
            three(theirs::cuDeviceCanAccessPeer),
        ),
        ("cuDeviceGetAttribute", three(theirs::cuDeviceGetAttribute)),
        (
            "cuDevicePrimaryCtxRetain",
            two(theirs::cuDevicePrimaryCtxRetain),
        ),
        (
            "cuDevicePrimaryCtxRelease_v2",
            one(theirs::cuDevicePrimaryCtxRelease_v2),
        ),
        ("cuCtxPushCurrent_v2", one(theirs::cuCtxPushCurrent_v2)),
        ("cuCtxPopCurrent_v2", one(theirs::cuCtxPopCurrent_v2)),
        ("cuCtxGetDevice", one(theirs::cuCtxGetDevice)),
        (
            "cuMemGetAllocationGranularity",
            three(theirs::cuMemGetAllocationGranularity),
        ),
        ("cuMemCreate", four(theirs::cuMemCreate)),
        ("cuMemRelease", one(theirs::cuMemRelease)),
        ("cuMemAddressReserve", five(theirs::cuMemAddressReserve)),
        ("cuMemAddressFree", two(theirs::cuMemAddressFree)),
        ("cuMemMap", five(theirs::cuMemMap)),
        ("cuMemUnmap", two(theirs::cuMemUnmap)),
        ("cuMemSetAccess", four(theirs::cuMemSetAccess)),
        (
            "cuMemExportToShareableHandle",
            four(theirs::cuMemExportToShareableHandle),
        ),
        (
            "cuMemImportFromShareableHandle",
            three(theirs::cuMemImportFromShareableHandle),
        ),
        (
            "cuMemGetAllocationPropertiesFromHandle",
            two(theirs::cuMemGetAllocationPropertiesFromHandle),
        ),
        ("cuMemHostRegister_v2", three(theirs::cuMemHostRegister_v2)),
        ("cuMemHostUnregister", one(theirs::cuMemHostUnregister)),
        (
            "cuMemHostGetDevicePointer_v2",
            three(theirs::cuMemHostGetDevicePointer_v2),
        ),
        (
            "cuPointerGetAttribute",
            three(theirs::cuPointerGetAttribute),
        ),
        ("cuStreamCreate", two(theirs::cuStreamCreate)),
        ("cuStreamDestroy_v2", one(theirs::cuStreamDestroy_v2)),
        ("cuStreamSynchronize", one(theirs::cuStreamSynchronize)),
        ("cuStreamGetCtx", two(theirs::cuStreamGetCtx)),
        (
            "cuStreamWriteValue64_v2",
            four(theirs::cuStreamWriteValue64_v2),
        ),
        (
            "cuStreamWaitValue64_v2",
            four(theirs::cuStreamWaitValue64_v2),
        ),
        ("cuMemcpyHtoDAsync_v2", four(theirs::cuMemcpyHtoDAsync_v2)),
        ("cuMemcpyDtoHAsync_v2", four(theirs::cuMemcpyDtoHAsync_v2)),
        ("cuMemcpyDtoDAsync_v2", four(theirs::cuMemcpyDtoDAsync_v2)),
        ("cuMemcpyPeerAsync", six(theirs::cuMemcpyPeerAsync)),
    ];
    assert_eq!(theirs.len(), SYMBOLS.len());
    for ((name, theirs), (symbol, ours)) in theirs.iter().zip(SYMBOLS) {
        assert_eq!((name, theirs.as_slice()), (symbol, *ours));
    }
}
