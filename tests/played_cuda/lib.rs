//! A library in the shape of `libcuda.so.1`, played in memory: for tests.
//!
//! Device memory is a memory file that no process maps: the host faults if it touches a device's address, and only the
//! calls of this library read and write it. An exported descriptor is that file, so another process that has loaded
//! this library can import it. Time is virtual: a stream does its work at once, unless a test holds it; then it does as
//! many operations as it is told. Work that finds its memory gone is counted as a violation.
//!
//! * `calls.rs`: how every call is counted, made to fail, and made to wait.
//! * `devices.rs`: devices, contexts, attributes.
//! * `memory.rs`: the virtual memory management calls, host registrations, and access to bytes; `foreign.rs`: the calls
//!   by which other libraries take and fill memory, for tests of what they lend.
//! * `streams.rs`: streams, events, copies, and words written and awaited.
//! * `control.rs`: what tests call; none of it is in a real driver. `handle.rs` calls it.
//!
//! | variable | means |
//! |---|---|
//! | `PLAYED_CUDA_DEVICES` | the visible devices in their order, each the byte its UUID is made of, in hex: `01,02` |
//! | `PLAYED_CUDA_WITHOUT` | they lack, with commas: `words`, `descriptors`, `vmm`, `readonly`, `peers`, `copies` |

mod calls;
mod control;
mod devices;
mod foreign;
mod handle;
mod memory;
mod streams;

pub use handle::{Held, Played, path};

/// What calls return.
pub(crate) mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NOT_INITIALIZED: u32 = 3;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const INVALID_CONTEXT: u32 = 201;
    pub(crate) const INVALID_HANDLE: u32 = 400;
    pub(crate) const ALREADY_REGISTERED: u32 = 712;
    pub(crate) const NOT_REGISTERED: u32 = 713;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
}

/// The outcome of a call: a code other than success is the failure.
pub(crate) type Outcome = Result<(), u32>;
