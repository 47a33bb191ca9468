//! Tensors that Python may write: in the engine's memory until they are sent, or a receiver's own copy of a value.
//!
//! Every view of one, a `memoryview`, a NumPy array, a tensor of PyTorch's, holds it: what is sent has no views left
//! through which it could still be written.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use rendez::engine::EngineDevices;
use rendez::ground::{Locked, Unpoisoned, catalogue};
use rendez::{DType, Path, PrivateTensor, Status, Tensor, TensorBuilder, TensorMeta};

use super::buffer::{self, Shown};
use super::convert::freed;
use super::device::Asked;
use super::device_id::{self, DeviceId};
use super::device_room::{self, DeviceRoom, Writers};
use super::dlpack::{Device, Lending};
use super::dtypes::dtype_of;
use super::errors::{Failure, Outcome, argument};
use super::tensor::dims_of;

/// Where the bytes lie.
pub(crate) enum Room {
    /// In the engine's memory, to be sent.
    Builder(TensorBuilder),
    /// In a value's pages, mapped so that only this process sees what it writes.
    Private(PrivateTensor),
    /// In a device's memory, to be sent.
    Device(DeviceRoom),
}

/// Room that views of Python's share, and where its bytes begin.
struct Shared {
    room: UnsafeCell<Room>,
    start: *mut u8,
    /// Who writes it, if it lies on a device.
    writers: Option<Arc<Writers>>,
}

// SAFETY: through a shared room nothing is done but to copy the pointer. Python's views read and write the bytes by it,
// as they do with any memory that threads of Python share. To move the room out, `finish` must be the last that holds
// it.
unsafe impl Sync for Shared {}

// SAFETY: both kinds of rooms may move to other threads, and the pointer is to what they keep.
unsafe impl Send for Shared {}

impl Shared {
    fn new(room: Room) -> Arc<Self> {
        let mut shared = Arc::new(Self {
            room: UnsafeCell::new(room),
            start: std::ptr::null_mut(),
            writers: None,
        });
        // A few bytes lie in the room itself, which stays where it is now.
        if let Some(new) = Arc::get_mut(&mut shared) {
            (new.start, new.writers) = match new.room.get_mut() {
                Room::Builder(builder) => (builder.bytes_mut().as_mut_ptr(), None),
                Room::Private(tensor) => (tensor.bytes_mut().as_mut_ptr(), None),
                // The processor does not read it.
                Room::Device(room) => {
                    let address = room.writers().place().address;
                    let start = std::ptr::without_provenance_mut(address as usize);
                    (start, Some(Arc::clone(room.writers())))
                }
            };
        }
        shared
    }
}

/// A tensor that may be written, and sent once.
#[pyclass(frozen, weakref, module = "rendez")]
pub(crate) struct TensorMut {
    room: Mutex<Option<Arc<Shared>>>,
    /// What was written, if a send of it was refused: to be sent again.
    refused: Mutex<Option<Tensor>>,
    /// Those of its engine, if it lies on one: also when its room is gone, as a send was refused.
    devices: Option<EngineDevices>,
    /// The one that it lies on, or lay on until it was sent.
    device: Option<DeviceId>,
    meta: TensorMeta,
}

impl TensorMut {
    pub(crate) fn new(room: Room) -> Self {
        let meta = match &room {
            Room::Builder(builder) => builder.meta(),
            Room::Private(tensor) => tensor.meta(),
            Room::Device(room) => room.meta(),
        };
        let writers = match &room {
            Room::Device(room) => Some(room.writers()),
            Room::Builder(_) | Room::Private(_) => None,
        };
        let devices = writers.map(|writers| writers.devices().clone());
        let device = writers.map(|writers| DeviceId::of(writers.place()));
        Self {
            room: Mutex::new(Some(Shared::new(room))),
            refused: Mutex::new(None),
            devices,
            device,
            meta,
        }
    }

    fn shared(&self) -> Outcome<Arc<Shared>> {
        let room = self.room.locked();
        room.clone().ok_or_else(freed)
    }

    /// Who writes it, if it lies on a device.
    fn writers(&self) -> Outcome<Option<Arc<Writers>>> {
        Ok(self.shared()?.writers.clone())
    }

    fn len(&self) -> usize {
        self.meta.size().unwrap_or(0) as usize
    }

    /// The tensor, written no more. It stays as it is if there are views of it.
    pub(crate) fn finish(&self) -> Outcome<Tensor> {
        if let Some(tensor) = self.take_refused() {
            return Ok(tensor);
        }
        let mut held = self.room.locked();
        let room = held.take().ok_or_else(freed)?;
        match Arc::try_unwrap(room) {
            Ok(shared) => finished(shared.room.into_inner(), self.meta),
            Err(room) => {
                *held = Some(room);
                let message = "there are views of the tensor (a NumPy array, a memoryview, a torch.Tensor), which \
                               could still write to it: `del` them before it is sent";
                Err(Failure(Status::of(catalogue::PYTHON_VIEWS, message)))
            }
        }
    }

    /// The send of what `finish` gave was refused: it can be sent again, and is written no more.
    pub(crate) fn put_back(&self, tensor: Tensor) {
        let mut refused = self.refused.locked();
        *refused = Some(tensor);
    }

    fn take_refused(&self) -> Option<Tensor> {
        let refused = self.refused.lock();
        refused.unpoisoned().take()
    }
}

/// Has a tensor used, which is its sender's again if that fails: `value` is what it was made of.
pub(crate) fn handed_over<T, E>(
    value: &Bound<'_, PyAny>,
    tensor: Tensor,
    hand_over: impl FnOnce(Tensor) -> Result<T, E>,
) -> Result<T, E> {
    let room = value.cast::<TensorMut>().ok();
    let kept = room.map(|room| (room, tensor.clone()));
    let outcome = hand_over(tensor);
    if let (Err(_), Some((room, tensor))) = (&outcome, kept) {
        room.get().put_back(tensor);
    }
    outcome
}

fn finished(room: Room, meta: TensorMeta) -> Outcome<Tensor> {
    let tensor = match room {
        Room::Builder(builder) => builder.finish(),
        Room::Private(mut tensor) => {
            if tensor.meta().dtype == DType::Bool {
                // Pages where all is as it should be stay shared.
                for byte in tensor.bytes_mut().iter_mut().filter(|byte| **byte > 1) {
                    *byte = 1;
                }
            }
            Tensor::from_foreign(tensor.meta(), tensor, drop)?
        }
        Room::Device(room) => room.finish()?,
    };
    match tensor.meta() == meta {
        true => Ok(tensor),
        false => Ok(tensor.recast(meta)?),
    }
}

#[pymethods]
impl TensorMut {
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
    fn nbytes(&self) -> usize {
        self.len()
    }

    /// Where it lies: `cpu`, or `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        device_id::name_of(self.device)
    }

    /// The same room as elements of another type of the same size; both must be gone before either is sent. Not of
    /// truth values, and not as such: when they are sent, every byte of theirs becomes 0 or 1.
    fn recast(&self, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dtype = dtype_of(dtype)?;
        let is_of_truth = dtype == DType::Bool || self.meta.dtype == DType::Bool;
        if dtype.size() != self.meta.dtype.size() || is_of_truth {
            return Err(argument(format!("{} cannot be seen as {dtype}", self.meta.dtype)).into());
        }
        let meta = TensorMeta::new(dtype, self.meta.shape);
        Ok(Self {
            room: Mutex::new(Some(self.shared()?)),
            refused: Mutex::new(None),
            devices: self.devices.clone(),
            device: self.device,
            meta: meta.map_err(|error| argument(error.to_string()))?,
        })
    }

    /// The tensor, written no more: it may be sent any number of times.
    fn freeze(&self) -> Outcome<super::tensor::Tensor> {
        let inner = self.finish()?;
        Ok(super::tensor::Tensor::new(inner, Path::Local, false).lent_by(self.devices.clone()))
    }

    /// Gives the memory back. Views of it stay valid until they are gone.
    fn release(&self) {
        let room = self.room.locked().take();
        drop((room, self.take_refused()));
    }

    /// A view as an array of NumPy's, which may be written.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("rendez._views")?
            .getattr("numpy")?
            .call1((slf,))
    }

    /// A view as a tensor of PyTorch's.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("torch")?
            .call_method1("from_dlpack", (slf,))
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

    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("rendez._views")?
            .getattr("tolist")?
            .call1((slf,))
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

    fn __len__(&self) -> PyResult<usize> {
        super::tensor::length_of(self.meta)
    }

    fn __repr__(&self) -> String {
        format!("TensorMut({}{})", self.meta.dtype, self.meta.shape)
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
        if let Some(writers) = self.writers()? {
            let asked = Asked {
                stream: stream.as_ref(),
                max_version,
                device: dl_device,
                copy,
            };
            return device_room::lend(py, &writers, self.meta, self.shared()?, &asked);
        }
        super::tensor::check_consumer(stream.as_ref(), dl_device)?;
        if copy == Some(true) {
            let shared = self.shared()?;
            // SAFETY: the room has so many bytes, which stay while `shared` does.
            let bytes = unsafe { std::slice::from_raw_parts(shared.start, self.len()) };
            return super::tensor::copied_capsule(py, self.meta, bytes, max_version);
        }
        let shared = self.shared()?;
        let lending = Lending {
            meta: self.meta,
            device: Device::PROCESSOR,
            data: shared.start,
            keep: Box::new(shared),
            is_read_only: false,
            is_copied: false,
        };
        lending.capsule(py, max_version)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        Device::of(self.device).pair()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let shared = this.shared()?;
        if shared.writers.is_some() {
            let message = "the tensor lies on a device, and the processor does not write there: take it by DLPack";
            return Err(Failure(Status::of(catalogue::TENSOR_DEVICE, message)).into());
        }
        let shown = Shown {
            meta: this.meta,
            data: shared.start,
            len: this.len(),
            keep: Box::new(shared),
            is_read_only: false,
        };
        // SAFETY: Python passed the view and the flags to this very slot.
        unsafe { buffer::fill(slf.into_any(), view, flags, shown) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python releases what `__getbuffer__` filled in.
        unsafe { buffer::release(view) }
    }
}
