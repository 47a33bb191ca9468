//! DLPack, both ways: how libraries of arrays lend each other memory. The structures are those of `dlpack.h` 1.x.
//!
//! What Python gets can be told that it is read only since version 1.0; to a consumer that speaks an older one only
//! memory that it may write to is given.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use rendez::{MemoryKind, Shape, TensorMeta};

use super::device_id::DeviceId;
use super::dtypes;
use super::errands;
use super::errors::{Outcome, argument};

/// The processor's memory; and memory of the processor's that a GPU can reach.
const CPU: i32 = 1;
const CUDA_HOST: i32 = 3;
const ROCM_HOST: i32 = 11;
/// Memory of a CUDA device; and memory that the driver moves between one and the processor.
const CUDA: i32 = 2;
const CUDA_MANAGED: i32 = 13;
/// The numbers of each kind of memory that devices have: the first is written, all are read.
const DEVICES: &[(MemoryKind, &[i32])] = &[(MemoryKind::Cuda, &[CUDA, CUDA_MANAGED])];
/// A device that DLPack has no number for.
const EXTENSION: i32 = 12;

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

const OLD: &CStr = c"dltensor";
const OLD_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

/// Where memory lies.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) index: i32,
}

impl Device {
    pub(crate) const PROCESSOR: Self = Self {
        kind: CPU,
        index: 0,
    };

    /// The processor reads it.
    pub(crate) const fn is_host(self) -> bool {
        matches!(self.kind, CPU | CUDA_HOST | ROCM_HOST)
    }

    /// Where a value lies: on a device, or in the processor's memory.
    pub(crate) fn of(device: Option<DeviceId>) -> Self {
        let Some(device) = device else {
            return Self::PROCESSOR;
        };
        let known = DEVICES.iter().find(|(kind, _)| *kind == device.kind);
        Self {
            kind: known.map_or(EXTENSION, |(_, numbers)| numbers[0]),
            index: device.number.cast_signed(),
        }
    }

    /// The kind of device that reads it where it lies.
    pub(crate) fn memory_kind(self) -> Option<MemoryKind> {
        let mut kinds = DEVICES.iter();
        let found = kinds.find(|(_, numbers)| numbers.contains(&self.kind));
        found.map(|(kind, _)| *kind)
    }

    /// As Python writes it.
    pub(crate) const fn pair(self) -> (i32, i32) {
        (self.kind, self.index)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DataType {
    kind: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    rank: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
pub(crate) struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
pub(crate) struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// What a capsule of ours keeps: the memory, and the numbers that the structure points to.
struct Context {
    _keep: Box<dyn Send>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// What is lent, and how.
pub(crate) struct Lending {
    pub(crate) meta: TensorMeta,
    pub(crate) device: Device,
    pub(crate) data: *const u8,
    /// Keeps `data` where it is.
    pub(crate) keep: Box<dyn Send>,
    pub(crate) is_read_only: bool,
    pub(crate) is_copied: bool,
}

impl Lending {
    /// The capsule that a consumer takes, who knows the protocol up to this version.
    pub(crate) fn capsule(
        self,
        py: Python<'_>,
        max_version: Option<(u32, u32)>,
    ) -> PyResult<Bound<'_, PyCapsule>> {
        let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
        if self.is_read_only && !is_versioned {
            return Err(PyBufferError::new_err(
                "the tensor is read only, and DLPack before 1.0 cannot say so: take `tensor.writable()`, or a copy",
            ));
        }
        let (kind, bits) = dtypes::dlpack_of(self.meta.dtype).ok_or_else(|| {
            PyBufferError::new_err("DLPack has no strings: see `tensor.strings()`")
        })?;
        // One without elements may have any other dimensions.
        let dims = self.meta.shape.dims().map(i64::try_from);
        let dims = dims.collect::<Result<Vec<_>, _>>().map_err(|_| {
            let shape = self.meta.shape;
            PyBufferError::new_err(format!("DLPack has no dimensions as long as {shape}"))
        })?;
        let mut context = Box::new(Context {
            strides: row_major(&dims),
            shape: dims,
            _keep: self.keep,
        });
        let tensor = DlTensor {
            data: self.data.cast_mut().cast(),
            device: self.device,
            rank: context.shape.len() as i32,
            dtype: DataType {
                kind,
                bits,
                lanes: 1,
            },
            shape: context.shape.as_mut_ptr(),
            strides: context.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let context = Box::into_raw(context).cast();
        let read_only = if self.is_read_only { READ_ONLY } else { 0 };
        let copied = if self.is_copied { IS_COPIED } else { 0 };
        if is_versioned {
            let managed = Box::new(Versioned {
                major: 1,
                minor: 0,
                context,
                deleter: Some(free_versioned),
                flags: read_only | copied,
                tensor,
            });
            give(py, Box::into_raw(managed), VERSIONED, drop_versioned)
        } else {
            let managed = Box::new(Managed {
                tensor,
                context,
                deleter: Some(free_managed),
            });
            give(py, Box::into_raw(managed), OLD, drop_managed)
        }
    }
}

fn give<'py, T>(
    py: Python<'py>,
    managed: *mut T,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut pyo3::ffi::PyObject),
) -> PyResult<Bound<'py, PyCapsule>> {
    let pointer = NonNull::new(managed.cast::<c_void>())
        .ok_or_else(|| PyBufferError::new_err("there is no memory"))?;
    // SAFETY: the pointer is that of a box which the consumer's deleter frees, or, as long as the capsule has this
    // name, its destructor; both may run on any thread, for all that they free is `Send`.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, name, Some(destructor)) }
}

fn row_major(dims: &[i64]) -> Vec<i64> {
    let mut strides = vec![1_i64; dims.len()];
    for at in (1..dims.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(dims[at].max(1));
    }
    strides
}

unsafe extern "C" fn free_managed(managed: *mut Managed) {
    // SAFETY: DLPack calls the deleter once, with what `capsule` made by `Box::into_raw`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `capsule` made it by `Box::into_raw`, and nothing else frees it.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

unsafe extern "C" fn free_versioned(managed: *mut Versioned) {
    // SAFETY: DLPack calls the deleter once, with what `capsule` made by `Box::into_raw`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `capsule` made it by `Box::into_raw`, and nothing else frees it.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

unsafe extern "C" fn drop_managed(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls a destructor with its capsule, and with the lock.
    let pointer = unsafe { unclaimed(capsule, OLD) };
    if !pointer.is_null() {
        // SAFETY: under this name the capsule holds what `capsule` made, and no consumer took it.
        unsafe { free_managed(pointer.cast()) }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls a destructor with its capsule, and with the lock.
    let pointer = unsafe { unclaimed(capsule, VERSIONED) };
    if !pointer.is_null() {
        // SAFETY: under this name the capsule holds what `capsule` made, and no consumer took it.
        unsafe { free_versioned(pointer.cast()) }
    }
}

/// What a capsule holds, if no consumer took it: one that does renames the capsule.
///
/// # Safety
/// `capsule` is a capsule, and the caller has the interpreter's lock.
unsafe fn unclaimed(capsule: *mut pyo3::ffi::PyObject, name: &CStr) -> *mut c_void {
    // SAFETY: the caller's contract is this function's.
    if unsafe { pyo3::ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: it is a capsule of that name.
    unsafe { pyo3::ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) }
}

/// Another library's memory, until it is dropped.
pub(crate) enum Borrowed {
    Old(NonNull<Managed>),
    New(NonNull<Versioned>),
}

// SAFETY: what a producer lends may be used and given back on any thread: DLPack's deleter has no thread of its own.
unsafe impl Send for Borrowed {}

impl Borrowed {
    fn tensor(&self) -> &DlTensor {
        match self {
            // SAFETY: the producer's structure lives until its deleter is called, which is in `drop`.
            Self::Old(managed) => unsafe { &managed.as_ref().tensor },
            // SAFETY: as above.
            Self::New(managed) => unsafe { &managed.as_ref().tensor },
        }
    }

    fn is_read_only(&self) -> bool {
        match self {
            Self::Old(_) => false,
            // SAFETY: as in `tensor`.
            Self::New(managed) => unsafe { managed.as_ref().flags & READ_ONLY != 0 },
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        match *self {
            Self::Old(managed) => {
                // SAFETY: as in `tensor`.
                if let Some(deleter) = unsafe { managed.as_ref().deleter } {
                    // SAFETY: the consumer calls it once, when it reads the memory no more: now.
                    unsafe { deleter(managed.as_ptr()) }
                }
            }
            Self::New(managed) => {
                // SAFETY: as in `tensor`.
                if let Some(deleter) = unsafe { managed.as_ref().deleter } {
                    // SAFETY: the consumer calls it once, when it reads the memory no more: now.
                    unsafe { deleter(managed.as_ptr()) }
                }
            }
        }
    }
}

/// Memory that was lent, and what it holds.
pub(crate) struct Imported {
    pub(crate) meta: TensorMeta,
    pub(crate) device: Device,
    pub(crate) data: *mut u8,
    pub(crate) is_read_only: bool,
    pub(crate) keep: Borrowed,
}

/// The device that an object says it lies on. `None` if it says nothing.
pub(crate) fn device_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    let Ok(device) = object.call_method0("__dlpack_device__") else {
        return Ok(None);
    };
    let (kind, index): (i32, i32) = device.extract()?;
    Ok(Some(Device { kind, index }))
}

/// Takes what an object lends by DLPack; memory of a device for this stream, which waits for the object's work.
pub(crate) fn take(object: &Bound<'_, PyAny>, stream: Option<u64>) -> PyResult<Imported> {
    let py = object.py();
    let wanted = PyDict::new(py);
    if let Some(stream) = stream {
        wanted.set_item("stream", stream)?;
    }
    wanted.set_item("max_version", (1, 0))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&wanted)) {
        // A producer from before 1.0.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            wanted.del_item("max_version")?;
            object.call_method("__dlpack__", (), Some(&wanted))?
        }
        capsule => capsule?,
    };
    let capsule = capsule.cast_into::<PyCapsule>()?;
    let keep = claim(&capsule)?;
    Ok(describe(keep)?)
}

fn claim(capsule: &Bound<'_, PyCapsule>) -> PyResult<Borrowed> {
    let claimed = |name: &CStr| -> PyResult<()> {
        // SAFETY: it is a capsule, the name lives for ever, and this thread has the interpreter's lock.
        match unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(capsule.py())),
        }
    };
    if capsule.is_valid_checked(Some(VERSIONED)) {
        let pointer = capsule
            .pointer_checked(Some(VERSIONED))?
            .cast::<Versioned>();
        // SAFETY: a capsule of that name holds such a structure; its beginning is the same in every version.
        let major = unsafe { pointer.as_ref().major };
        if major != 1 {
            return Err(PyBufferError::new_err(format!(
                "DLPack {major} is not known here"
            )));
        }
        claimed(VERSIONED_USED)?;
        return Ok(Borrowed::New(pointer));
    }
    let pointer = capsule.pointer_checked(Some(OLD))?.cast::<Managed>();
    claimed(OLD_USED)?;
    Ok(Borrowed::Old(pointer))
}

fn describe(keep: Borrowed) -> Outcome<Imported> {
    let tensor = keep.tensor();
    let rank = usize::try_from(tensor.rank).unwrap_or(usize::MAX);
    let most = rendez_c::RANK_MAX;
    if rank > most {
        return Err(argument(format!(
            "the tensor has {rank} dimensions, over {most}"
        )));
    }
    let dims = numbers(tensor.shape, rank)?;
    let strides = match tensor.strides.is_null() {
        true => None,
        false => Some(numbers(tensor.strides, rank)?),
    };
    let mut sizes = Vec::new();
    for dim in dims {
        let size = u64::try_from(*dim);
        sizes.push(size.map_err(|_| argument(format!("a dimension of {dim} is none")))?);
    }
    let DataType { kind, bits, lanes } = tensor.dtype;
    let shape = Shape::new(&sizes).map_err(|error| argument(error.to_string()))?;
    let meta = TensorMeta::new(dtypes::of_dlpack(kind, bits, lanes)?, shape)
        .map_err(|error| argument(error.to_string()))?;
    if let Some(strides) = strides
        && !is_row_major(dims, strides)
    {
        return Err(not_contiguous());
    }
    let offset = usize::try_from(tensor.byte_offset).unwrap_or(usize::MAX);
    Ok(Imported {
        meta,
        device: tensor.device,
        data: tensor.data.cast::<u8>().wrapping_add(offset),
        is_read_only: keep.is_read_only(),
        keep,
    })
}

/// The numbers of a producer's structure.
fn numbers<'a>(start: *const i64, count: usize) -> Outcome<&'a [i64]> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(argument(
            "the tensor has dimensions, and does not say which",
        ));
    }
    // SAFETY: not null, and by DLPack's contract as many numbers as the tensor has dimensions, which live as long as
    // the producer's structure; the caller keeps that.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// True if elements follow each other, the last dimension fastest.
pub(crate) fn is_row_major(dims: &[i64], strides: &[i64]) -> bool {
    if dims.contains(&0) {
        return true;
    }
    let wanted = row_major(dims);
    let pairs = dims.iter().zip(strides.iter().zip(&wanted));
    pairs
        .into_iter()
        .all(|(dim, (has, wants))| *dim == 1 || has == wants)
}

pub(crate) fn not_contiguous() -> super::errors::Failure {
    argument(
        "the elements do not follow each other in memory: to send them, pass `numpy.ascontiguousarray(x)` or \
         `x.contiguous()`; to fill them, receive without `out`, and assign: `x[...] = got.numpy()`",
    )
}

/// Drops memory of Python's, when the interpreter's lock is there: a producer's deleter may want it.
pub(crate) fn drop_later(keep: impl Send + 'static) {
    errands::leave(move |_| drop(keep));
}
