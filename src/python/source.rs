//! Memory of Python's that holds a value: who lends it, what it holds, and whether it may change.
//!
//! By the buffer protocol or by DLPack; of both, only memory whose elements follow each other. What lies on a device is
//! only offered here: `device.rs` takes it.
#![allow(unsafe_code)]

use std::ffi::CStr;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rendez::{DType, Shape, TensorMeta};

use super::device::Offer;
use super::dlpack::{self, Borrowed, drop_later, not_contiguous};
use super::dtypes;
use super::errors::{Outcome, argument};

/// Memory of Python's, kept where it is.
pub(crate) struct Source {
    pub(crate) meta: TensorMeta,
    data: *mut u8,
    len: usize,
    pub(crate) is_read_only: bool,
    /// Nothing can change it: neither this program nor Python.
    pub(crate) is_immutable: bool,
    keep: Option<Keep>,
}

enum Keep {
    Buffer(Buffer),
    Dlpack(Borrowed),
}

// SAFETY: the memory is plain bytes, which stay where they are until `keep` is dropped; that happens with the
// interpreter's lock, wherever the source is.
unsafe impl Send for Source {}

// SAFETY: through a shared source the bytes are only read; what keeps them is touched when it is dropped, uniquely.
unsafe impl Sync for Source {}

/// What an object lends.
pub(crate) enum Lent<'py> {
    /// Memory of the processor's.
    Here(Source),
    /// Memory of a device's, if it is asked for.
    OnDevice(Offer<'py>),
}

impl<'py> Lent<'py> {
    /// What an object lends. `None` if it lends nothing.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        // SAFETY: it is an object, and this thread has the interpreter's lock.
        let has_buffer = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0;
        if has_buffer {
            return match Source::of_buffer(object) {
                Ok(source) => Ok(Some(Self::Here(source))),
                Err(error) => match Self::without_buffer(object)? {
                    Some(lent) => Ok(Some(lent)),
                    None => Err(untyped(object, &error).unwrap_or(error)),
                },
            };
        }
        if object.hasattr("__dlpack__")? {
            return match Self::on_device(object)? {
                Some(lent) => Ok(Some(lent)),
                None => Source::of_dlpack(object).map(|source| Some(Self::Here(source))),
            };
        }
        let interface = object.getattr_opt("__cuda_array_interface__")?;
        Ok(interface.map(|interface| Self::OnDevice(Offer::Array(object.clone(), interface))))
    }

    /// What an object lends whose buffers cannot be had: CuPy's and JAX's arrays have the protocol, and refuse it for
    /// memory of a device; NumPy refuses it for types that others have added to it, as `bfloat16`.
    fn without_buffer(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        if object.hasattr("__dlpack__")?
            && let Some(lent) = Self::on_device(object)?
        {
            return Ok(Some(lent));
        }
        let Some(raw) = brain_floats(object) else {
            return Ok(None);
        };
        let source = Source::of_buffer(&raw).and_then(|it| it.recast(DType::BF16))?;
        Ok(Some(Self::Here(source)))
    }

    /// What an object that has DLPack lends of a device's memory. `None` if it lies in the processor's.
    fn on_device(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let device = dlpack::device_of(object)?.filter(|device| !device.is_host());
        Ok(device.map(|device| Self::OnDevice(Offer::Dlpack(object.clone(), device))))
    }
}

impl Source {
    /// Memory of the processor's that an object lends. `None` if it lends nothing.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        match Lent::of(object)? {
            None => Ok(None),
            Some(Lent::Here(source)) => Ok(Some(source)),
            Some(Lent::OnDevice(offer)) => Err(offer.refusal().into()),
        }
    }

    fn of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let taken = dlpack::take(object, None)?;
        if !taken.device.is_host() {
            return Err(Offer::Dlpack(object.clone(), taken.device).refusal().into());
        }
        Ok(Self {
            meta: taken.meta,
            data: taken.data,
            len: bytes_of(taken.meta)?,
            is_read_only: taken.is_read_only,
            is_immutable: false,
            keep: Some(Keep::Dlpack(taken.keep)),
        })
    }

    fn of_buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Buffer::of(object)?;
        if !buffer.is_row_major() {
            return Err(not_contiguous().into());
        }
        let shape = Shape::new(&buffer.dims()?).map_err(|error| argument(error.to_string()))?;
        let view = &buffer.0;
        let dtype = dtypes::of_format(buffer.format(), view.itemsize.unsigned_abs())?;
        if dtype == DType::U8 && view.ndim == 1 && view.len == 8 && is_of_time(object) {
            return Err(
                argument("a date or a time of NumPy's has no type here: pass its number").into(),
            );
        }
        let meta = TensorMeta::new(dtype, shape).map_err(|error| argument(error.to_string()))?;
        let (len, has) = (bytes_of(meta)?, view.len.unsigned_abs());
        if len != has {
            return Err(
                argument(format!("the buffer has {has} bytes, its shape takes {len}")).into(),
            );
        }
        Ok(Self {
            meta,
            data: view.buf.cast(),
            len,
            is_read_only: view.readonly != 0,
            is_immutable: object.is_exact_instance_of::<PyBytes>(),
            keep: Some(Keep::Buffer(buffer)),
        })
    }

    /// The same bytes as elements of another type.
    fn recast(mut self, dtype: DType) -> PyResult<Self> {
        self.meta =
            TensorMeta::new(dtype, self.meta.shape).map_err(|error| argument(error.to_string()))?;
        Ok(self)
    }

    /// Its bytes. Python may change them meanwhile, as it may under any library that reads without its lock: then what
    /// is read is some of the one and some of the other.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the lender of the memory says that it is `len` bytes, checked against the shape; they stay until
        // `keep` is dropped, with `self`. They are plain bytes of which every value is one.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }

    /// Its bytes, to be written. `None` if it is read only.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_read_only {
            return None;
        }
        if self.len == 0 {
            return Some(&mut []);
        }
        // SAFETY: as in `bytes`; who lends it says that it may be written. This is the only slice of it here.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data, self.len) })
    }
}

impl Source {
    /// Its lender has the memory back when this returns. Dropped, it is left to an errand: the interpreter's lock may
    /// not be here then.
    pub(crate) fn release(mut self, _py: Python<'_>) {
        drop(self.keep.take());
    }
}

impl AsRef<[u8]> for Source {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(keep) = self.keep.take() {
            match keep {
                Keep::Buffer(buffer) => drop_later(buffer),
                Keep::Dlpack(borrowed) => drop_later(borrowed),
            }
        }
    }
}

/// A view that an object has filled in. Exporters may point into it, so it stays where it is. (PyO3's own refuses
/// values without dimensions.)
struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: a view may be read and released on any thread; it is released with the interpreter's lock.
unsafe impl Send for Buffer {}

impl Buffer {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: it is an object, the view is room for one, and this thread has the interpreter's lock.
        match unsafe {
            ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO)
        } {
            0 => Ok(Self(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    fn is_row_major(&self) -> bool {
        // SAFETY: the view was filled in by its exporter.
        self.0.suboffsets.is_null()
            && unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.0, b'C' as _) } != 0
    }

    fn dims(&self) -> Outcome<Vec<u64>> {
        let (rank, most) = (self.0.ndim.unsigned_abs() as usize, rendez_c::RANK_MAX);
        if rank > most {
            return Err(argument(format!(
                "the buffer has {rank} dimensions, over {most}"
            )));
        }
        if rank == 0 {
            return Ok(Vec::new());
        }
        if self.0.shape.is_null() {
            return Err(argument(
                "the buffer has dimensions, and does not say which",
            ));
        }
        // SAFETY: not null, and by the protocol a number for each dimension, which lives as long as the view.
        let dims = unsafe { std::slice::from_raw_parts(self.0.shape, rank) };
        Ok(dims.iter().map(|dim| dim.unsigned_abs() as u64).collect())
    }

    fn format(&self) -> &CStr {
        if self.0.format.is_null() {
            return c"B";
        }
        // SAFETY: not null, and by the protocol a text that lives as long as the view.
        unsafe { CStr::from_ptr(self.0.format) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Without the interpreter it is lost, as the interpreter's memory is.
        Python::try_attach(|_| {
            // SAFETY: the view was filled in, is released once, and this thread has the interpreter's lock.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
        });
    }
}

/// Whether it is a date or a time of NumPy's: alone it lends its bytes without a type, which an array of them refuses.
fn is_of_time(object: &Bound<'_, PyAny>) -> bool {
    let kind = object
        .getattr("dtype")
        .and_then(|dtype| dtype.getattr("kind")?.extract::<char>());
    matches!(kind, Ok('m' | 'M'))
}

/// Why an array is not taken that lends no buffer because its elements have no type here: it says only that such
/// buffers have no format.
fn untyped(object: &Bound<'_, PyAny>, error: &PyErr) -> Option<PyErr> {
    let py = object.py();
    if !error.is_instance_of::<PyValueError>(py) && !error.is_instance_of::<PyBufferError>(py) {
        return None;
    }
    let dtype = object.getattr("dtype").ok()?;
    if error.value(py).hasattr("reason").ok()? || dtypes::dtype_of(&dtype).is_ok() {
        return None;
    }
    let bits = match dtype.getattr("itemsize").ok()?.extract().ok()? {
        size @ (1_usize | 2 | 4 | 8) => 8 * size,
        _ => 8,
    };
    let message = format!(
        "elements of dtype `{dtype}` are not taken: rendez has no such type; send their bits, \
         `x.view(numpy.uint{bits})`"
    );
    Some(argument(message).into())
}

/// An array of NumPy's of `bfloat16`, as one of plain 16-bit numbers.
fn brain_floats<'py>(object: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let dtype = object.getattr("dtype").ok()?;
    let name: String = dtype.getattr("name").ok()?.extract().ok()?;
    (name == "bfloat16").then(|| object.call_method1("view", ("uint16",)).ok())?
}

fn bytes_of(meta: TensorMeta) -> Outcome<usize> {
    let size = meta.size().and_then(|size| usize::try_from(size).ok());
    size.filter(|size| isize::try_from(*size).is_ok())
        .ok_or_else(|| argument("the value is longer than memory can be"))
}
