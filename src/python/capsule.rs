//! The engine for other extensions: the table of the C library as the capsule `rendez._C_API`, and a capsule with the
//! C library's handle of an engine of Python's, so that one process has one engine.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rendez::Engine;
use rendez_c::CEngine;
use rendez_c::api::{API_VERSION, rendez_get_api};

use super::ending;

/// What the table's capsule is called: where it is imported from.
const TABLE: &CStr = c"rendez._C_API";
/// What an engine's capsule is called.
const ENGINE: &CStr = c"rendez.engine";

/// Adds the capsule with the table, a `const rendez_api *`, to the module.
pub(crate) fn add_table(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let table = rendez_get_api(API_VERSION).cast_mut().cast::<c_void>();
    let table =
        NonNull::new(table).ok_or_else(|| PySystemError::new_err("the table of C is missing"))?;
    // SAFETY: the table lives as long as this module's code, which is never unloaded, and nothing is to be freed.
    let capsule = unsafe { PyCapsule::new_with_pointer(module.py(), table, TABLE) }?;
    let name = TABLE.to_string_lossy();
    module.add(name.trim_start_matches("rendez."), capsule)
}

/// A capsule with the C library's handle of an engine: a `rendez_engine *`, which the capsule keeps and frees.
pub(crate) fn engine(py: Python<'_>, engine: Engine) -> PyResult<Bound<'_, PyCapsule>> {
    let handle = Box::into_raw(Box::new(CEngine::of(engine)));
    let pointer = NonNull::new(handle.cast::<c_void>())
        .ok_or_else(|| PySystemError::new_err("there is no memory"))?;
    // SAFETY: the handle lives until the capsule's destructor frees it, on whatever thread: it is `Send`.
    let made =
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, ENGINE, Some(free)) };
    if made.is_err() {
        // SAFETY: it was made here, and no capsule has it.
        drop(unsafe { Box::from_raw(handle) });
    }
    made
}

unsafe extern "C" fn free(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls a destructor with its capsule, whose name is this.
    let handle = unsafe { pyo3::ffi::PyCapsule_GetPointer(capsule, ENGINE.as_ptr()) };
    if handle.is_null() {
        return;
    }
    let handle = handle.cast::<CEngine>();
    // SAFETY: `engine` put it there by `Box::into_raw`, and it is freed below.
    let used = unsafe { &*handle };
    // Its callbacks have to end, and may want the interpreter's lock meanwhile.
    Python::try_attach(|py| ending::detach(py, || used.end_callbacks()));
    // SAFETY: as above, and a destructor runs once.
    let mut handle = Some(unsafe { Box::from_raw(handle) });
    Python::try_attach(|py| ending::detach(py, || drop(handle.take())));
    // Where the interpreter has ended they could not: what is left goes with the process.
    std::mem::forget(handle);
}
