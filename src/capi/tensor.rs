//! Tensors as C sees them: in the engine's memory, to be written; in C's own, with a hook; or received.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::{ptr, slice};

use rendez::{
    DType, Engine, PrivateTensor, Received, Shape, Status, Tensor, TensorBuilder, TensorMeta,
};

use super::engine::CEngine;
use super::status::{CStatus, answer, answer_new, argument, free, put, read, write};

/// The most dimensions that a shape has.
pub const RANK_MAX: usize = 8;
/// So many bytes the engine keeps in a tensor's handle.
const SMALL: usize = rendez::memory::INLINE_MAX;

/// The type and the shape of a tensor.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Meta {
    /// The type of its elements: 1 bool, 2 i8, 3 u8, 4 i16, 5 u16, 6 i32, 7 u32, 8 i64, 9 u64, 10 f16, 11 bf16, 12 f32,
    /// 13 f64, 14 and 15 complex of two f32 and two f64. 16, strings, are received only: see `tensor_data`.
    pub dtype: u32,
    /// How many dimensions it has: 0 for a scalar, at most RENDEZ_RANK_MAX.
    pub rank: u32,
    /// The dimensions, outermost first; those behind `rank` are ignored, and 0 when they are given to C.
    pub dims: [u64; RANK_MAX],
}

/// A value that was received.
#[derive(Debug)]
#[repr(C)]
pub struct Value {
    /// The tensor, the caller's to free; NULL where there is a status.
    pub tensor: *mut CTensor,
    /// The way it came: 0 within this process, 1 in a frame, 2 read in place in its sender's memory, 3 copied.
    pub path: u32,
    /// It says that no value will come.
    pub is_dead: bool,
}

impl Value {
    pub(crate) const NONE: Self = Self {
        tensor: std::ptr::null_mut(),
        path: 0,
        is_dead: false,
    };

    pub(crate) fn of(received: Received) -> Self {
        let (path, is_dead) = (received.path as u32, received.is_dead);
        let tensor = Box::into_raw(Box::new(CTensor::Done(received.tensor)));
        Self {
            tensor,
            path,
            is_dead,
        }
    }
}

/// A tensor. One in the engine's memory may be written until it is sent, or given to a function from which on it is
/// not; all others are read only.
#[derive(Debug)]
pub enum CTensor {
    /// It may be written.
    #[doc(hidden)]
    Written(Option<TensorBuilder>),
    /// It may be written, and has no memory but its handle.
    #[doc(hidden)]
    Small(Small),
    /// It may be read.
    #[doc(hidden)]
    Done(Tensor),
}

/// So few bytes that the engine keeps them in a tensor's handle. They are written here, as C's are aligned to 64.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Small {
    bytes: [u8; SMALL],
    builder: Option<TensorBuilder>,
}

impl Small {
    fn take(&mut self) -> Option<TensorBuilder> {
        let mut builder = self.builder.take()?;
        let to = builder.bytes_mut();
        to.copy_from_slice(self.bytes.get(..to.len())?);
        Some(builder)
    }
}

/// The tensor, which is written no more. Threads may share one that was not written any more before.
///
/// # Safety
/// `tensor` is null, or points to one that nothing frees before the call ends, nor uses at all if it is still written.
pub(crate) unsafe fn finished<'a>(tensor: *mut CTensor) -> Result<&'a Tensor, Status> {
    // SAFETY: by the caller's contract nothing frees it, and what is done is changed by no function.
    if let CTensor::Done(tensor) = unsafe { read(tensor, "tensor") }? {
        return Ok(tensor);
    }
    // SAFETY: it is still written, so by the caller's contract this call alone uses it.
    unsafe { write(tensor, "tensor") }?.finish()
}

impl CTensor {
    fn written(mut builder: TensorBuilder) -> Self {
        let within = ptr::from_ref(&builder).addr();
        let start = builder.bytes_mut().as_ptr().addr();
        match (within..within + size_of::<TensorBuilder>()).contains(&start) {
            true => Self::Small(Small {
                bytes: [0; SMALL],
                builder: Some(builder),
            }),
            false => Self::Written(Some(builder)),
        }
    }

    /// Where it is written, for as long as the handle does not move. `None` if it is written no more.
    pub(crate) fn writable(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Written(Some(builder)) => Some(builder.bytes_mut()),
            Self::Small(Small {
                bytes,
                builder: Some(builder),
            }) => bytes.get_mut(..builder.bytes_mut().len()),
            _ => None,
        }
    }

    /// It is written no more.
    pub(crate) fn finish(&mut self) -> Result<&Tensor, Status> {
        let builder = match self {
            Self::Written(builder) => builder.take(),
            Self::Small(small) => small.take(),
            Self::Done(tensor) => return Ok(tensor),
        };
        let builder = builder.ok_or_else(|| argument("the tensor was being finished"))?;
        *self = Self::Done(builder.finish());
        match self {
            Self::Done(tensor) => Ok(tensor),
            Self::Written(_) | Self::Small(_) => Err(argument("the tensor was being finished")),
        }
    }

    /// Takes the tensor of a handle, which is gone then.
    ///
    /// # Safety
    /// It is null, or came from `answer_new` and is not used again.
    pub(crate) unsafe fn take(handle: *mut Self) -> Result<Tensor, Status> {
        if handle.is_null() {
            return Err(argument("`tensor` is NULL"));
        }
        // SAFETY: not null, and by the caller's contract from `Box::into_raw`, and the last use of it.
        let mut owned = unsafe { Box::from_raw(handle) };
        owned.finish().cloned()
    }
}

impl Meta {
    pub(crate) fn of(meta: TensorMeta) -> Self {
        let mut dims = [0; RANK_MAX];
        for (to, from) in dims.iter_mut().zip(meta.shape.dims()) {
            *to = from;
        }
        Self {
            dtype: meta.dtype as u32,
            rank: meta.shape.rank() as u32,
            dims,
        }
    }

    fn dims(&self) -> Result<&[u64], Status> {
        let dims = self.dims.get(..self.rank as usize);
        dims.ok_or_else(|| argument(format!("rank {} is over {RANK_MAX}", self.rank)))
    }

    fn dtype(&self) -> Result<DType, Status> {
        match u8::try_from(self.dtype).ok().and_then(DType::from_wire) {
            None => Err(argument(format!("dtype {} is none", self.dtype))),
            Some(DType::String) => Err(argument("strings can be received only")),
            Some(dtype) => Ok(dtype),
        }
    }

    pub(crate) fn tensor_meta(&self) -> Result<TensorMeta, Status> {
        let shape = Shape::new(self.dims()?).map_err(|error| argument(error.to_string()))?;
        TensorMeta::new(self.dtype()?, shape).map_err(|error| argument(error.to_string()))
    }
}

/// Memory of C's, and what gives it back.
struct Lent {
    data: *const u8,
    size: usize,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    context: *mut c_void,
}

// SAFETY: the header says that the memory may be read from any thread until it is released, and that the hook may be
// called on any thread: so both may move.
unsafe impl Send for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        if self.size == 0 {
            return &[];
        }
        // SAFETY: the header says that `data` is `size` bytes that nothing changes or frees until the hook is called,
        // which is when `self` is dropped. A null pointer with a size was refused before.
        unsafe { slice::from_raw_parts(self.data, self.size) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the header says that the hook takes this context, on any thread, once; a value is dropped once.
            unsafe { release(self.context) }
        }
    }
}

pub(crate) unsafe extern "C" fn tensor_new(
    engine: *const CEngine,
    meta: *const Meta,
    tensor: *mut *mut CTensor,
    data: *mut *mut c_void,
) -> *mut CStatus {
    // SAFETY: the header's contract is that of `new`.
    answer(|| unsafe { new(engine, meta, tensor, data, Engine::tensor) })
}

pub(crate) unsafe extern "C" fn tensor_new_paged(
    engine: *const CEngine,
    meta: *const Meta,
    tensor: *mut *mut CTensor,
    data: *mut *mut c_void,
) -> *mut CStatus {
    // SAFETY: the header's contract is that of `new`.
    answer(|| unsafe { new(engine, meta, tensor, data, Engine::paged_tensor) })
}

/// Makes a tensor in the engine's memory, by `build`, and gives C its handle and where it is written.
///
/// # Safety
/// `engine` and `meta` are as for [`read`], `tensor` and `data` as for [`put`].
unsafe fn new(
    engine: *const CEngine,
    meta: *const Meta,
    tensor: *mut *mut CTensor,
    data: *mut *mut c_void,
    build: fn(&Engine, DType, &[u64]) -> Result<TensorBuilder, Status>,
) -> Result<(), Status> {
    // SAFETY: the caller's contract is that of `put`.
    unsafe { put(data, ptr::null_mut(), "data") }?;
    // SAFETY: as above.
    unsafe { put(tensor, ptr::null_mut(), "tensor") }?;
    // SAFETY: the caller's contract is that of `read`.
    let engine = unsafe { read(engine, "engine") }?;
    // SAFETY: as above.
    let meta = unsafe { read(meta, "meta") }?;
    let builder = build(engine.engine(), meta.dtype()?, meta.dims()?)?;
    let mut made = Box::new(CTensor::written(builder));
    let Some(bytes) = made.writable() else {
        return Err(argument("a tensor that was just made is written"));
    };
    // The bytes stay where they are for as long as the handle does, also when they lie in it.
    let start = bytes.as_mut_ptr();
    // SAFETY: the caller's contract is that of `put`.
    unsafe { put(data, start.cast(), "data") }?;
    // SAFETY: as above.
    unsafe { put(tensor, Box::into_raw(made), "tensor") }
}

/// A tensor's bytes, to be written to by their holder alone.
#[derive(Debug)]
pub struct CMapping(#[allow(dead_code, reason = "kept, and dropped")] PrivateTensor);

pub(crate) unsafe extern "C" fn tensor_map(
    tensor: *mut CTensor,
    mapping: *mut *mut CMapping,
    data: *mut *mut c_void,
    size: *mut usize,
) -> *mut CStatus {
    let make = || {
        if data.is_null() || size.is_null() {
            return Err(argument("`data` or `size` is NULL"));
        }
        // SAFETY: the header's contract is that of `finished`.
        let mut mapped = unsafe { finished(tensor) }?.map_private()?;
        let bytes = mapped.bytes_mut();
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the header's contract is that of `put`.
        unsafe { put(size, len, "size") }?;
        // SAFETY: as above.
        unsafe { put(data, start.cast(), "data") }?;
        Ok(CMapping(mapped))
    };
    // SAFETY: the header's contract is that of `answer_new`. The bytes are a mapping of its own, and do not move.
    unsafe { answer_new(mapping, "mapping", make) }
}

pub(crate) unsafe extern "C" fn mapping_free(mapping: *mut CMapping) {
    // SAFETY: the header's contract is that of `free`: it came from `answer_new`.
    unsafe { free(mapping) }
}

pub(crate) unsafe extern "C" fn tensor_lend(
    meta: *const Meta,
    data: *const c_void,
    size: usize,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    context: *mut c_void,
    tensor: *mut *mut CTensor,
) -> *mut CStatus {
    // Whatever comes of it, the memory is released once: when this is dropped.
    let lent = Lent {
        data: data.cast(),
        size,
        release,
        context,
    };
    let make = move || {
        // SAFETY: the header's contract is that of `read`.
        let meta = unsafe { read(meta, "meta") }?.tensor_meta()?;
        if data.is_null() && size > 0 {
            return Err(argument("`data` is NULL, and `size` is not 0"));
        }
        if isize::try_from(size).is_err() {
            return Err(argument(format!(
                "`size` is {size}, over what memory there is"
            )));
        }
        let made = Tensor::from_foreign(meta, lent, drop)?;
        Ok(CTensor::Done(made))
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(tensor, "tensor", make) }
}

pub(crate) unsafe extern "C" fn tensor_clone(
    tensor: *mut CTensor,
    clone: *mut *mut CTensor,
) -> *mut CStatus {
    let make = || {
        // SAFETY: the header's contract is that of `finished`.
        let tensor = unsafe { finished(tensor) }?.clone();
        Ok(CTensor::Done(tensor))
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(clone, "clone", make) }
}

pub(crate) unsafe extern "C" fn tensor_meta(
    tensor: *const CTensor,
    meta: *mut Meta,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let of = match unsafe { read(tensor, "tensor") }? {
            CTensor::Done(tensor) => tensor.meta(),
            CTensor::Written(builder) | CTensor::Small(Small { builder, .. }) => match builder {
                Some(builder) => builder.meta(),
                None => return Err(argument("the tensor was being finished")),
            },
        };
        // SAFETY: the header's contract is that of `put`.
        unsafe { put(meta, Meta::of(of), "meta") }
    })
}

pub(crate) unsafe extern "C" fn tensor_data(
    tensor: *const CTensor,
    data: *mut *const c_void,
    size: *mut usize,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let CTensor::Done(tensor) = unsafe { read(tensor, "tensor") }? else {
            return Err(argument(
                "the tensor is being written: its data came with it",
            ));
        };
        let bytes = tensor.host()?;
        // SAFETY: the header's contract is that of `put`.
        unsafe { put(size, bytes.len(), "size") }?;
        // SAFETY: as above.
        unsafe { put(data, bytes.as_ptr().cast(), "data") }
    })
}

pub(crate) unsafe extern "C" fn tensor_free(tensor: *mut CTensor) {
    // SAFETY: the header's contract is that of `free`: it came from `answer_new`.
    unsafe { free(tensor) }
}
