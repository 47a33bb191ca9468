//! The CUDA driver's library as it is: its structs, its numbers, and a table of its functions filled at run time.
//!
//! Knows the binary interface; not what its callers do with it. It is cudarc's interface in small. cudarc itself cannot
//! be used here: its `driver::sys` panics where the library or one function is missing, looks for the library under
//! names of its own choice only, and has calls return a Rust `enum`, for which a number that a newer driver returns is
//! undefined behaviour. `layout.rs` holds this table against cudarc's declarations.

#[cfg(test)]
mod layout;
mod loaded;
mod table;
mod types;

pub use loaded::load;
pub use table::{CudaTable, SYMBOLS};
pub use types::*;

/// Why there is no table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaLoadError {
    /// The machine has no such library; what its loader said.
    #[error("{library} cannot be loaded: {why}")]
    Library {
        /// Its name or path.
        library: String,
        /// What the loader said.
        why: String,
    },
    /// The library is too old: it lacks a function.
    #[error("{library} lacks {symbol}: it is older than CUDA 11.7")]
    Symbol {
        /// Its name or path.
        library: String,
        /// The function.
        symbol: &'static str,
    },
}
