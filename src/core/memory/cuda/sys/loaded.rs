//! The table, filled at run time from a library: one binary for hosts with and without it.
//!
//! Knows how symbols are looked up; not what they do.
#![allow(unsafe_code)]

use super::CudaLoadError;
use super::table::{CudaTable, for_each_function};
use super::types::*;

macro_rules! load {
    ($($field:ident: $symbol:ident($($argument:ty),*);)*) => {
        /// The functions of the library of this name or path. It is never unloaded.
        ///
        /// # Safety
        /// The library is a CUDA driver, or keeps the contract of one: what it runs when it is loaded leaves this
        /// process sound, and its functions do what their manual pages say.
        ///
        /// # Errors
        /// [`CudaLoadError`] where there is none, or it lacks a function.
        pub unsafe fn load(name: &str) -> Result<CudaTable, CudaLoadError> {
            use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
            // SAFETY: the caller vouches for what the library runs when it is loaded.
            let library = unsafe { libloading::Library::new(name) };
            let library = library.map_err(|error| CudaLoadError::Library {
                library: name.to_owned(),
                why: error.to_string(),
            })?;
            let table = CudaTable {
                $($field: {
                    // SAFETY: the symbol is a function of this signature, as the caller vouches for the library and
                    // `layout.rs` for the signature.
                    let symbol = unsafe {
                        // SAFETY: a type only: its caller upholds the contract of its manual page.
                        library.get::<unsafe extern "C" fn($($argument),*) -> CUresult>(
                            concat!(stringify!($symbol), "\0").as_bytes(),
                        )
                    };
                    *symbol.map_err(|_| CudaLoadError::Symbol {
                        library: name.to_owned(),
                        symbol: stringify!($symbol),
                    })?
                },)*
            };
            // Never unloaded: the table is for as long as the process lives, and the driver keeps threads of its own.
            std::mem::forget(library);
            Ok(table)
        }
    };
}

for_each_function!(load);
