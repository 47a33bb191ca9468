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
        // What a kernel did, or the device: the driver refuses all further work of this process.
        CUDA_ERROR_DEINITIALIZED
        | CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUDA_ERROR_CONTAINED
        | CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_LAUNCH_TIMEOUT
        | CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUDA_ERROR_ASSERT
        | CUDA_ERROR_HARDWARE_STACK_ERROR..=CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_TENSOR_MEMORY_LEAK => DriverFault::Lost,
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
        CUDA_ERROR_NVLINK_UNCORRECTABLE => "uncorrectable NVLink error",
        CUDA_ERROR_CONTAINED => "contained error",
        CUDA_ERROR_LAUNCH_TIMEOUT => "the launch timed out and was terminated",
        CUDA_ERROR_CONTEXT_IS_DESTROYED => "context is destroyed",
        CUDA_ERROR_ASSERT => "device-side assert triggered",
        CUDA_ERROR_HARDWARE_STACK_ERROR => "hardware stack error",
        CUDA_ERROR_ILLEGAL_INSTRUCTION => "illegal instruction",
        CUDA_ERROR_MISALIGNED_ADDRESS => "misaligned address",
        CUDA_ERROR_INVALID_ADDRESS_SPACE => {
            "operation not supported on global or shared address space"
        }
        CUDA_ERROR_INVALID_PC => "invalid program counter",
        CUDA_ERROR_TENSOR_MEMORY_LEAK => "tensor memory was not freed",
        CUDA_ERROR_LAUNCH_FAILED => "unspecified launch failure",
        CUDA_ERROR_NOT_PERMITTED => "operation not permitted",
        CUDA_ERROR_NOT_SUPPORTED => "operation not supported",
        _ => "see the driver's manual",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::{Status, catalogue};

    /// What kernels do wrong most often, and what devices fail with: the driver does no more work after it.
    #[test]
    fn what_ends_a_context_is_told_as_a_device_that_is_lost() {
        for code in [
            4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721,
        ] {
            let status = Status::from(check("cuStreamSynchronize", code).unwrap_err());
            assert_eq!(status.reason(), catalogue::DEVICE_LOST, "{status}");
            assert!(!status.to_string().contains("manual"), "{status}");
        }
        // A launch of too many blocks, and memory that is registered already.
        for code in [712, 720] {
            let status = Status::from(check("cuMemHostRegister_v2", code).unwrap_err());
            assert_eq!(status.reason(), catalogue::DEVICE_CALL, "{status}");
        }
    }
}
