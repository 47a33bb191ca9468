//! CUDA, by its driver: loaded at run time, so that one binary serves machines with and without it.
//!
//! Knows the driver's calls and what they mean to [`Accelerator`]; nothing above `memory` knows that there is such a
//! thing. The calls that each operation makes:
//!
//! | operation | calls |
//! |---|---|
//! | `allocate` | granularity, `cuMemCreate`, `cuMemExportToShareableHandle`, then as a mapping, `cuMemRelease` |
//! | `import` | granularity, `cuMemImportFromShareableHandle`, properties, then as a mapping, `cuMemRelease` |
//! | a mapping | `cuMemAddressReserve`, `cuMemMap`, `cuMemSetAccess`; once more for devices that read it in place |
//! | `release` | `cuMemUnmap`, `cuMemAddressFree` |
//! | `write_word`, `await_word`, a copy | the one call; between two devices `cuMemcpyPeerAsync` |
//!
//! each between a push and a pop of the device's primary context, which is retained when a device is first used. Memory
//! of a mapping outlives its handle, so a handle is released as soon as it is mapped and exported: what is left to give
//! back is one range, also when a peer imports it or a process dies.

mod driver;
mod error;
mod mapping;
pub mod sys;

use std::sync::Arc;

use super::Accelerator;
pub use driver::{CudaDriver, OpenError};

/// The driver as one of those that [`accelerator::open`](super::accelerator::open) tries.
pub(super) fn open(library: Option<&str>) -> Result<Arc<dyn Accelerator>, String> {
    let driver = CudaDriver::open(library).map_err(|error| error.to_string())?;
    Ok(Arc::new(driver))
}

#[cfg(test)]
mod tests;
