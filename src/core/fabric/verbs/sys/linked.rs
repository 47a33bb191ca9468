//! The table, filled at build time from rdma-sys: for packagers that build against rdma-core.
//!
//! Knows that the crate's functions and ours are the same symbols, and nothing of what they do.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use super::table::{IS_FORK_INITIALIZED, IsForkInitialized, VerbsTable, for_each_verb};
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
            static TABLE: OnceLock<VerbsTable> = OnceLock::new();
            TABLE.get_or_init(|| VerbsTable {
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
                is_fork_initialized: is_fork_initialized(),
                forks: std::sync::Once::new(),
            })
        }
    };
}

/// Not linked: headers and libraries that lack it are built against too.
fn is_fork_initialized() -> Option<IsForkInitialized> {
    // SAFETY: `dlsym(3)`: the name ends with a zero; looking a symbol up runs no code of a library that is linked.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, IS_FORK_INITIALIZED.as_ptr()) };
    // SAFETY: where there is the symbol it is a function of this signature (an enum of C is one), and null is `None`.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<IsForkInitialized>>(symbol) }
}

for_each_verb!(linked);
