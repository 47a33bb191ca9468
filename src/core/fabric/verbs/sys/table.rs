//! The functions of libibverbs that are used, as a table: the code above does not depend on how it is filled.
//!
//! Knows names and signatures. It is filled by `loaded.rs` at run time, by `linked.rs` at build time, or by a test with
//! functions of its own.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::types::*;

/// One row for each function: its field in [`VerbsTable`], its symbol, its signature.
macro_rules! for_each_verb {
    ($then:ident) => {
        $then! {
            fork_init: ibv_fork_init() -> c_int;
            get_device_list: ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
            free_device_list: ibv_free_device_list(*mut *mut ibv_device) -> ();
            get_device_name: ibv_get_device_name(*mut ibv_device) -> *const c_char;
            open_device: ibv_open_device(*mut ibv_device) -> *mut ibv_context;
            close_device: ibv_close_device(*mut ibv_context) -> c_int;
            query_device: ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
            query_port: ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
            query_gid_table: _ibv_query_gid_table(
                *mut ibv_context, *mut ibv_gid_entry, usize, u32, usize
            ) -> isize;
            get_async_event: ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
            ack_async_event: ibv_ack_async_event(*mut ibv_async_event) -> ();
            alloc_pd: ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
            dealloc_pd: ibv_dealloc_pd(*mut ibv_pd) -> c_int;
            reg_mr: ibv_reg_mr_iova2(
                *mut ibv_pd, *mut c_void, usize, u64, c_uint
            ) -> *mut ibv_mr;
            dereg_mr: ibv_dereg_mr(*mut ibv_mr) -> c_int;
            create_comp_channel: ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
            destroy_comp_channel: ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
            create_cq: ibv_create_cq(
                *mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int
            ) -> *mut ibv_cq;
            destroy_cq: ibv_destroy_cq(*mut ibv_cq) -> c_int;
            get_cq_event: ibv_get_cq_event(
                *mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void
            ) -> c_int;
            ack_cq_events: ibv_ack_cq_events(*mut ibv_cq, c_uint) -> ();
            create_srq: ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
            destroy_srq: ibv_destroy_srq(*mut ibv_srq) -> c_int;
            create_qp: ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
            modify_qp: ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
            destroy_qp: ibv_destroy_qp(*mut ibv_qp) -> c_int;
        }
    };
}

macro_rules! table {
    ($($field:ident: $symbol:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of libibverbs that are used. Each keeps the contract of its manual page: the code that fills a
        /// table promises that, and the wrappers above rely on it.
        pub struct VerbsTable {
            $(#[doc = concat!("`", stringify!($symbol), "`")]
            // SAFETY: a type only: its caller upholds the contract of its manual page.
            pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// `ibv_is_fork_initialized`: older libraries lack it.
            pub is_fork_initialized: Option<IsForkInitialized>,
            /// Done once the library was prepared for forks.
            pub forks: std::sync::Once,
        }

        /// Every symbol that a library must have, in the order of the table.
        pub const SYMBOLS: &[&str] = &[$(stringify!($symbol),)*];
    };
}

for_each_verb!(table);

/// `ibv_is_fork_initialized`
// SAFETY: a type only: its caller upholds the contract of its manual page.
pub type IsForkInitialized = unsafe extern "C" fn() -> c_uint;

#[allow(dead_code)] // No code fills a table if neither feature is on.
pub(super) const IS_FORK_INITIALIZED: &std::ffi::CStr = c"ibv_is_fork_initialized";

#[allow(unused_imports)] // No code fills a table if neither feature is on.
pub(super) use for_each_verb;

impl std::fmt::Debug for VerbsTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsTable").finish_non_exhaustive()
    }
}
