//! Tensors as Python holds them: read only, in the engine's memory or in a peer's.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Mutex;

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyTuple};
use rendez::engine::EngineDevices;
use rendez::ground::{Locked, catalogue};
use rendez::memory::TensorBytes;
use rendez::{DType, Engine, Path, Received, Shape, Status, Tensor as Inner, TensorMeta};

use super::buffer::{self, Shown};
use super::convert::{LONG, freed};
use super::device::{Asked, OnDevice, Seen};
use super::device_id::{self, DeviceId};
use super::dlpack::{Device, Lending};
use super::dtypes::dtype_of;
use super::ending;
use super::errors::{Failure, Outcome, argument};
use super::writable::{Room, TensorMut};

/// A tensor that is read only; perhaps in the memory of the task that sent it, or a device's.
#[pyclass(frozen, weakref, module = "rendez")]
pub(crate) struct Tensor {
    inner: Mutex<Option<Inner>>,
    meta: TensorMeta,
    path: Path,
    is_dead: bool,
    /// The device that it lies on.
    device: Option<DeviceId>,
    /// The devices of the engine that it came to.
    devices: Option<EngineDevices>,
    /// What keeps it for those that were told where it lies.
    shown: Mutex<Option<Seen>>,
}

impl Tensor {
    pub(crate) fn new(inner: Inner, path: Path, is_dead: bool) -> Self {
        Self {
            meta: inner.meta(),
            device: match inner.bytes() {
                TensorBytes::Device(place) => Some(DeviceId::of(place)),
                TensorBytes::Host(_) => None,
            },
            inner: Mutex::new(Some(inner)),
            path,
            is_dead,
            devices: None,
            shown: Mutex::new(None),
        }
    }

    pub(crate) fn received(received: Received, engine: impl FnOnce() -> Engine) -> Self {
        Self::new(received.tensor, received.path, received.is_dead).of(engine)
    }

    /// The engine that it came to lends it, if it lies on a device.
    pub(crate) fn of(mut self, engine: impl FnOnce() -> Engine) -> Self {
        if self.device.is_some() {
            self.devices = engine().devices().ok();
        }
        self
    }

    /// An engine's devices lend it.
    pub(crate) fn lent_by(mut self, devices: Option<EngineDevices>) -> Self {
        self.devices = devices;
        self
    }

    /// It, if it lies on a device.
    fn on_device(&self) -> Outcome<Option<OnDevice>> {
        if self.device.is_none() {
            return Ok(None);
        }
        let tensor = self.inner()?;
        let devices = self.devices.clone().ok_or_else(|| {
            let message =
                "a value of a device that no engine with devices received is lent to no library";
            Failure(Status::of(catalogue::TENSOR_DEVICE, message))
        })?;
        Ok(Some(OnDevice { tensor, devices }))
    }

    /// Another of the same bytes.
    fn like(&self, inner: Inner) -> Self {
        Self {
            devices: self.devices.clone(),
            ..Self::new(inner, self.path, self.is_dead)
        }
    }

    /// Another handle of it.
    pub(crate) fn inner(&self) -> Outcome<Inner> {
        let inner = self.inner.locked();
        inner.clone().ok_or_else(freed)
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        dims_of(py, self.meta)
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.meta.shape.rank()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.meta.dtype.name()
    }

    #[getter]
    fn nbytes(&self) -> Outcome<usize> {
        Ok(self.inner()?.size())
    }

    /// The way it came: `local`, `inline`, `lease` (read in place) or `copy`.
    #[getter]
    fn path(&self) -> &'static str {
        self.path.name()
    }

    /// Where it lies: `cpu`, or `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        device_id::name_of(self.device)
    }

    /// Itself, or a copy in the processor's memory of what lies on a device.
    fn cpu<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (this, py) = (slf.get(), slf.py());
        match this.on_device()? {
            None => Ok(slf.clone()),
            Some(tensor) => {
                let copied = Self::new(tensor.to_host(py)?, Path::Copy, this.is_dead);
                Bound::new(py, copied)
            }
        }
    }

    /// It says that no value will come.
    #[getter]
    fn dead(&self) -> bool {
        self.is_dead
    }

    /// The same bytes under another shape.
    fn reshape(&self, shape: Vec<u64>) -> Outcome<Self> {
        let shape = Shape::new(&shape).map_err(|error| argument(error.to_string()))?;
        Ok(self.like(self.inner()?.reshaped(shape)?))
    }

    /// The same bytes as elements of another type of the same size.
    fn recast(&self, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dtype = dtype_of(dtype)?;
        if dtype.size() != self.meta.dtype.size() {
            return Err(argument(format!("{} cannot be seen as {dtype}", self.meta.dtype)).into());
        }
        let meta = TensorMeta {
            dtype,
            shape: self.meta.shape,
        };
        Ok(self.like(self.inner()?.recast(meta).map_err(Failure::from)?))
    }

    /// A copy of it that may be written; of a tensor that owns its pages, only the pages that are written to.
    fn writable(&self, py: Python<'_>, engine: &super::engine::Engine) -> Outcome<TensorMut> {
        let inner = self.inner()?;
        if let Ok(private) = inner.map_private() {
            return Ok(TensorMut::new(Room::Private(private)));
        }
        let dims: Vec<u64> = self.meta.shape.dims().collect();
        let mut builder = engine.running()?.tensor(self.meta.dtype, &dims)?;
        let bytes = inner.host()?;
        ending::detach_briefly(py, || builder.bytes_mut().copy_from_slice(bytes));
        Ok(TensorMut::new(Room::Builder(builder)))
    }

    /// Gives the memory back, to its sender if it lies there. Views of it stay valid until they are gone.
    fn release(&self) {
        let inner = self.inner.locked().take();
        drop(inner);
        let shown = self.shown.locked().take();
        drop(shown);
    }

    /// A view as an array of NumPy's, which is not writable.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("rendez._views")?
            .getattr("numpy")?
            .call1((slf,))
    }

    /// As a tensor of PyTorch's, which may be written; no write reaches the sender. `private` maps the pages of a value
    /// that owns its pages, and else copies.
    #[pyo3(signature = (*, writable = "private"))]
    fn torch<'py>(slf: &Bound<'py, Self>, writable: &str) -> PyResult<Bound<'py, PyAny>> {
        let how = match writable {
            "private" => slf.get().private(slf.py())?,
            "copy" => None,
            _ => {
                return Err(argument(format!(
                    "writable={writable:?}: it is \"private\" or \"copy\""
                ))
                .into());
            }
        };
        let torch = slf.py().import("torch")?;
        match how {
            Some(private) => torch.call_method1("from_dlpack", (private,)),
            None => slf
                .py()
                .import("rendez._views")?
                .getattr("torch_copy")?
                .call1((torch, slf)),
        }
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let views = slf.py().import("rendez._views")?;
        views.getattr("array")?.call1((slf, dtype, copy))
    }

    /// The elements as numbers of Python's, in lists as the shape has them.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("rendez._views")?
            .getattr("tolist")?
            .call1((slf,))
    }

    /// The only element, as a number of Python's.
    fn item<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("rendez._views")?
            .getattr("item")?
            .call1((slf,))
    }

    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let inner = self.inner()?;
        let bytes = inner.host().map_err(Failure::from)?;
        if bytes.len() < LONG {
            return Ok(PyBytes::new(py, bytes));
        }
        let len = bytes.len();
        // SAFETY: this thread has the interpreter's lock. Without a text the new object has room for `len` bytes, fewer
        // than `isize::MAX` as all slices have.
        let made = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), len.cast_signed()) };
        // SAFETY: it is a reference of this function's, or null with an exception set.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?.cast_into::<PyBytes>()?;
        // SAFETY: it is an object of `bytes`, and this thread has the interpreter's lock.
        let start = unsafe { ffi::PyBytes_AsString(made.as_ptr()) };
        // SAFETY: the object has room for `len` bytes there, not yet written. It stays in its place as long as `made`,
        // and nothing else knows of it until this returns.
        let room = unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), len) };
        ending::detach_briefly(py, || room.write_copy_of_slice(bytes));
        Ok(made)
    }

    /// Its strings, in row-major order.
    fn strings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let inner = self.inner()?;
        let strings = inner.strings().map_err(Failure::from)?;
        PyList::new(
            py,
            strings
                .iter()
                .map(|string| PyBytes::new(py, string))
                .collect::<Vec<_>>(),
        )
    }

    fn __float__<'py>(slf: &Bound<'py, Self>) -> PyResult<f64> {
        Self::item(slf)?.extract()
    }

    fn __int__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let int = slf.py().get_type::<pyo3::types::PyInt>();
        int.call1((Self::item(slf)?,))
    }

    fn __bool__(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Self::item(slf)?.is_truthy()
    }

    fn __len__(&self) -> PyResult<usize> {
        length_of(self.meta)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.release();
    }

    /// Pickle and `copy` ask for it.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a Tensor cannot be pickled or copied: take `tensor.numpy().copy()` or `tensor.tobytes()`",
        ))
    }

    fn __repr__(&self) -> String {
        let dead = if self.is_dead { ", dead" } else { "" };
        format!(
            "Tensor({}{}, {}{dead})",
            self.meta.dtype,
            self.meta.shape,
            self.path()
        )
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if let Some(tensor) = self.on_device()? {
            let asked = Asked {
                stream: stream.as_ref(),
                max_version,
                device: dl_device,
                copy,
            };
            return tensor.capsule(py, &asked);
        }
        check_consumer(stream.as_ref(), dl_device)?;
        let inner = Box::new(self.inner()?);
        let bytes = inner.host().map_err(Failure::from)?;
        if copy == Some(true) {
            return copied_capsule(py, self.meta, bytes, max_version);
        }
        let lending = Lending {
            meta: self.meta,
            device: Device::PROCESSOR,
            // A short tensor's bytes lie in the handle, and that in the box.
            data: bytes.as_ptr(),
            keep: inner,
            is_read_only: true,
            is_copied: false,
        };
        lending.capsule(py, max_version)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        Device::of(self.device).pair()
    }

    /// Where it lies on a CUDA device, for libraries that know no DLPack. It keeps its memory until the default stream
    /// is past what is queued when it is released.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.on_device()?.ok_or_else(|| {
            PyAttributeError::new_err(
                "the tensor lies in the processor's memory: it is no CUDA array",
            )
        })?;
        let (said, seen) = tensor.interface(py)?;
        *self.shown.locked() = Some(seen);
        Ok(said)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let inner = Box::new(this.inner()?);
        let bytes = inner.host().map_err(Failure::from)?;
        let shown = Shown {
            meta: this.meta,
            data: bytes.as_ptr(),
            len: bytes.len(),
            keep: inner,
            is_read_only: true,
        };
        // SAFETY: Python passed the view and the flags to this very slot.
        unsafe { buffer::fill(slf.into_any(), view, flags, shown) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python releases what `__getbuffer__` filled in.
        unsafe { buffer::release(view) }
    }
}

impl Tensor {
    /// Its pages, mapped to be written by this process alone; `None` if it owns none.
    fn private(&self, py: Python<'_>) -> PyResult<Option<Py<TensorMut>>> {
        let private = self.inner()?.map_private().ok();
        let room = private.map(|private| TensorMut::new(Room::Private(private)));
        room.map(|room| Py::new(py, room)).transpose()
    }
}

pub(crate) fn dims_of(py: Python<'_>, meta: TensorMeta) -> PyResult<Bound<'_, PyTuple>> {
    let dims: Vec<u64> = meta.shape.dims().collect();
    PyTuple::new(py, dims)
}

pub(crate) fn length_of(meta: TensorMeta) -> PyResult<usize> {
    let first = meta.shape.dims().next();
    let first =
        first.ok_or_else(|| PyTypeError::new_err("a tensor without dimensions has no length"))?;
    Ok(first as usize)
}

/// Refuses a consumer of DLPack that wants another device than the processor.
pub(crate) fn check_consumer(
    stream: Option<&Bound<'_, PyAny>>,
    device: Option<(i32, i32)>,
) -> PyResult<()> {
    if let Some((kind, index)) = device
        && (kind, index) != Device::PROCESSOR.pair()
    {
        return Err(PyBufferError::new_err(format!(
            "the tensor lies in the processor's memory, and cannot be lent to device {kind}:{index}"
        )));
    }
    match stream.is_some_and(|stream| !stream.is_none()) {
        true => Err(PyBufferError::new_err(
            "the processor's memory has no streams",
        )),
        false => Ok(()),
    }
}

/// A copy of its own for a consumer.
pub(crate) fn copied_capsule<'py>(
    py: Python<'py>,
    meta: TensorMeta,
    bytes: &[u8],
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyCapsule>> {
    if meta.dtype == DType::String {
        return Err(PyBufferError::new_err(
            "DLPack has no strings: see `tensor.strings()`",
        ));
    }
    // Sixteen bytes suffice every type's alignment.
    let mut copy = vec![0_u128; bytes.len().div_ceil(16)];
    let start = copy.as_mut_ptr().cast::<u8>();
    // SAFETY: the copy has at least as many bytes, and is new, so they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    let lending = Lending {
        meta,
        device: Device::PROCESSOR,
        data: start,
        keep: Box::new(copy),
        is_read_only: false,
        is_copied: true,
    };
    lending.capsule(py, max_version)
}
