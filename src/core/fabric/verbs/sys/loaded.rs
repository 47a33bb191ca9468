//! The table, filled at run time from whatever libibverbs the machine has: one binary for hosts with and without it.
//!
//! Knows the library's name and how symbols are looked up; not what they do.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use super::VerbsLoadError;
use super::table::{IS_FORK_INITIALIZED, IsForkInitialized, VerbsTable, for_each_verb};
use super::types::*;

/// The library's name, with the number of its binary interface: what rdma-core has installed since 2005.
const LIBRARY: &str = "libibverbs.so.1";

/// The library's functions. It is looked for once; what was found then, or was not, stays so.
pub(super) fn table() -> Result<&'static VerbsTable, VerbsLoadError> {
    static TABLE: OnceLock<Result<VerbsTable, VerbsLoadError>> = OnceLock::new();
    TABLE.get_or_init(load).as_ref().map_err(Clone::clone)
}

macro_rules! load {
    ($($field:ident: $symbol:ident($($argument:ty),*) -> $result:ty;)*) => {
        fn load() -> Result<VerbsTable, VerbsLoadError> {
            use std::ffi::{c_char, c_int, c_uint, c_void};
            // SAFETY: loading runs the initialisers of libibverbs and of what it needs. They take no arguments, touch
            // no memory of ours, and are run in every program that links the library in the usual way.
            let library = unsafe { libloading::Library::new(LIBRARY) };
            let library = library.map_err(|error| VerbsLoadError::Library(error.to_string()))?;
            let table = VerbsTable {
                $($field: {
                    // SAFETY: the symbol is a function, and of this signature in every version of `libibverbs.so.1`:
                    // `tests/verbs/layout.rs` holds both against rdma-core's own headers.
                    let symbol = unsafe {
                        // SAFETY: a type only: its caller upholds the contract of its manual page.
                        library.get::<unsafe extern "C" fn($($argument),*) -> $result>(
                            concat!(stringify!($symbol), "\0").as_bytes(),
                        )
                    };
                    *symbol.map_err(|_| VerbsLoadError::Symbol(stringify!($symbol)))?
                },)*
                is_fork_initialized: {
                    let name = IS_FORK_INITIALIZED.to_bytes_with_nul();
                    // SAFETY: where there is the symbol it is a function of this signature: an enum of C is one.
                    let symbol = unsafe { library.get::<IsForkInitialized>(name) };
                    symbol.ok().map(|symbol| *symbol)
                },
                forks: std::sync::Once::new(),
            };
            // Never unloaded: the table is for as long as the process lives, and providers keep state of their own.
            std::mem::forget(library);
            Ok(table)
        }
    };
}

for_each_verb!(load);
