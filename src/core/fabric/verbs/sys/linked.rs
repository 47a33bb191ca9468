//! The table, filled at build time from rdma-sys: for packagers that build against rdma-core.
//!
//! Knows that the crate's functions and ours are the same symbols, and nothing of what they do.
#![allow(unsafe_code)]

use super::table::{VerbsTable, for_each_verb};
use super::types::*;

/// The crate's functions, and the one that its choice of names leaves out.
mod symbols {
    pub(super) use rdma_sys::*;

    // SAFETY: a function of libibverbs, which the crate links; nothing is called by this declaration, and the signature
    // stands in the table.
    unsafe extern "C" {
        pub(super) fn _ibv_query_gid_table();
    }
}

macro_rules! linked {
    ($($field:ident: $symbol:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The library's functions.
        pub(super) fn table() -> &'static VerbsTable {
            use std::ffi::{c_char, c_int, c_uint, c_void};
            static TABLE: VerbsTable = VerbsTable {
                $($field: {
                    let symbol = symbols::$symbol as *const ();
                    // SAFETY: a function's pointer, made a function's pointer again. Both signatures are the same
                    // header's, theirs by bindgen and ours by hand; `tests/verbs/layout.rs` compares the structs they
                    // point to, and integers and pointers are passed alike whatever they are called.
                    unsafe {
                        std::mem::transmute::<
                            *const (),
                            // SAFETY: a type only: its caller upholds the contract of its manual page.
                            unsafe extern "C" fn($($argument),*) -> $result,
                        >(symbol)
                    }
                },)*
            };
            &TABLE
        }
    };
}

for_each_verb!(linked);
