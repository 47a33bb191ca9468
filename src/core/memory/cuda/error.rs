//! What the driver's codes mean.
//!
//! Knows the codes that this engine can meet; any other is told as its number.

use super::sys::*;
use crate::ground::MemoryKind;
use crate::memory::{DriverFault, MemoryError};

/// The outcome of a call.
pub(super) const fn check(call: &'static str, code: CUresult) -> Result<(), MemoryError> {
    match code {
        CUDA_SUCCESS => Ok(()),
        _ => Err(MemoryError::Driver {
            kind: MemoryKind::Cuda,
            call,
            code,
            name: name(code),
            fault: fault(code),
        }),
    }
}

const fn fault(code: CUresult) -> DriverFault {
    match code {
        CUDA_ERROR_OUT_OF_MEMORY => DriverFault::Memory,
        CUDA_ERROR_DEINITIALIZED
        | CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUDA_ERROR_LAUNCH_FAILED => DriverFault::Lost,
        CUDA_ERROR_NOT_SUPPORTED
        | CUDA_ERROR_NOT_PERMITTED
        | CUDA_ERROR_NO_DEVICE
        | CUDA_ERROR_NOT_FOUND => DriverFault::Unsupported,
        CUDA_ERROR_INVALID_VALUE
        | CUDA_ERROR_INVALID_DEVICE
        | CUDA_ERROR_INVALID_CONTEXT
        | CUDA_ERROR_INVALID_HANDLE => DriverFault::Argument,
        _ => DriverFault::Other,
    }
}

const fn name(code: CUresult) -> &'static str {
    match code {
        CUDA_ERROR_INVALID_VALUE => "invalid value",
        CUDA_ERROR_OUT_OF_MEMORY => "out of memory",
        CUDA_ERROR_NOT_INITIALIZED => "not initialized",
        CUDA_ERROR_DEINITIALIZED => "the driver is shutting down",
        CUDA_ERROR_NO_DEVICE => "no device",
        CUDA_ERROR_INVALID_DEVICE => "invalid device ordinal",
        CUDA_ERROR_INVALID_CONTEXT => "invalid device context",
        CUDA_ERROR_ECC_UNCORRECTABLE => "uncorrectable ECC error",
        CUDA_ERROR_INVALID_HANDLE => "invalid resource handle",
        CUDA_ERROR_NOT_FOUND => "not found",
        CUDA_ERROR_NOT_READY => "not ready",
        CUDA_ERROR_ILLEGAL_ADDRESS => "an illegal memory access was encountered",
        CUDA_ERROR_CONTEXT_IS_DESTROYED => "context is destroyed",
        CUDA_ERROR_LAUNCH_FAILED => "unspecified launch failure",
        CUDA_ERROR_NOT_PERMITTED => "operation not permitted",
        CUDA_ERROR_NOT_SUPPORTED => "operation not supported",
        _ => "see the driver's manual",
    }
}
