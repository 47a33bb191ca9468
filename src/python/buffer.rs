//! The buffer protocol: how Python's own types and NumPy see the memory of tensors.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use rendez::TensorMeta;

use super::dtypes;

/// What a view of a tensor keeps.
struct View {
    _keep: Box<dyn Send>,
    shape: Vec<isize>,
    strides: Vec<isize>,
    format: &'static CStr,
}

/// Memory that is shown.
pub(crate) struct Shown {
    pub(crate) meta: TensorMeta,
    pub(crate) data: *const u8,
    pub(crate) len: usize,
    /// Keeps `data` where it is.
    pub(crate) keep: Box<dyn Send>,
    pub(crate) is_read_only: bool,
}

/// Fills in what Python asked for.
///
/// # Safety
/// `view` is one that Python passed to `__getbuffer__` of `owner`, with these `flags`.
pub(crate) unsafe fn fill(
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    shown: Shown,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no view to fill in"));
    }
    // SAFETY: not null, and by the caller's contract a view that is being filled in.
    let view = unsafe { &mut *view };
    view.obj = std::ptr::null_mut();
    let is_wanted = |flag: c_int| flags & flag == flag;
    if shown.is_read_only && is_wanted(ffi::PyBUF_WRITABLE) {
        return Err(PyBufferError::new_err(
            "the tensor is read only: `tensor.writable()` is one that may be written",
        ));
    }
    let format = dtypes::format_of(shown.meta.dtype).ok_or_else(|| {
        PyBufferError::new_err(format!(
            "the buffer protocol has no type for {}: see `numpy()`, `recast(\"u16\")`, `strings()`, or DLPack",
            shown.meta.dtype
        ))
    })?;
    let size = shown.meta.dtype.size().unwrap_or(1) as isize;
    // One without elements may have any other dimensions.
    let shape = shown.meta.shape.dims().map(isize::try_from);
    let shape = shape.collect::<Result<Vec<_>, _>>().map_err(|_| {
        let shape = shown.meta.shape;
        PyBufferError::new_err(format!(
            "the buffer protocol has no dimensions as long as {shape}"
        ))
    })?;
    let is_in_both_orders = shown.len == 0 || shape.iter().filter(|dim| **dim > 1).count() < 2;
    if is_wanted(ffi::PyBUF_F_CONTIGUOUS) && !is_in_both_orders {
        return Err(PyBufferError::new_err(
            "the tensor's elements lie in C's order, and Fortran's was asked for",
        ));
    }
    let mut strides = vec![size; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(shape[at].max(1));
    }
    let kept = Box::into_raw(Box::new(View {
        _keep: shown.keep,
        shape,
        strides,
        format,
    }));
    // SAFETY: it was made here just now, and lives until `release`.
    let lent = unsafe { &mut *kept };
    view.buf = shown.data.cast_mut().cast::<c_void>();
    view.len = shown.len as isize;
    view.itemsize = size;
    view.readonly = c_int::from(shown.is_read_only);
    view.format = match is_wanted(ffi::PyBUF_FORMAT) {
        true => lent.format.as_ptr().cast_mut(),
        false => std::ptr::null_mut(),
    };
    view.ndim = lent.shape.len() as c_int;
    view.shape = match is_wanted(ffi::PyBUF_ND) {
        true => lent.shape.as_mut_ptr(),
        false => std::ptr::null_mut(),
    };
    view.strides = match is_wanted(ffi::PyBUF_STRIDES) {
        true => lent.strides.as_mut_ptr(),
        false => std::ptr::null_mut(),
    };
    view.suboffsets = std::ptr::null_mut();
    view.internal = kept.cast();
    view.obj = owner.into_ptr();
    Ok(())
}

/// The view is gone.
///
/// # Safety
/// `view` was filled in by [`fill`], and Python passed it to `__releasebuffer__`.
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: the caller's contract is this function's.
    let Some(view) = (unsafe { view.as_mut() }) else {
        return;
    };
    let kept = std::mem::replace(&mut view.internal, std::ptr::null_mut());
    if !kept.is_null() {
        // SAFETY: `fill` made it by `Box::into_raw`, and a view is released once.
        drop(unsafe { Box::from_raw(kept.cast::<View>()) });
    }
}
