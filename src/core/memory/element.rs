//! Which Rust types are elements of tensors, and the casts between elements and bytes.
//!
//! Knows nothing of tensors, nor of where bytes come from: they may be a peer's, and may change while they are read.
//!
//! That is why the list is short and closed. Of every type here *every* bit pattern is a valid value, and none has
//! padding: whatever bytes come, reading them as elements is sound, without a look at them. `bool` is not among
//! them, since a byte of 2 is no `bool`; its elements are [`Bool8`].
//!
//! Bytes are little-endian, the machine's own order: rendez runs on nothing else.
#![allow(unsafe_code)]

use std::{mem, slice};

use half::{bf16, f16};
use num_complex::Complex;

use super::TensorError;
use super::inline::Inline;
use crate::ground::DType;

#[cfg(not(target_endian = "little"))]
compile_error!("tensors cross machines as their bytes lie in memory, which must be little-endian");

/// A type that tensors hold elements of. Sealed: its safety argument stands in this file.
pub trait Element: sealed::Plain + Copy + Send + Sync + 'static {
    /// The data type it is the element of.
    const DTYPE: DType;
}

/// An element of [`DType::Bool`]: made from a `bool`, 0 or 1. Of what others wrote, as a peer, every byte but zero is
/// true.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool8(u8);

impl Bool8 {
    /// What is true.
    pub const TRUE: Self = Self(1);
    /// What is false.
    pub const FALSE: Self = Self(0);

    /// The truth value.
    #[inline]
    #[must_use]
    pub const fn is_true(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool8 {
    fn from(value: bool) -> Self {
        Self(u8::from(value))
    }
}

impl From<Bool8> for bool {
    fn from(value: Bool8) -> Self {
        value.is_true()
    }
}

/// By truth: every non-zero byte is the same `true`.
impl PartialEq for Bool8 {
    fn eq(&self, other: &Self) -> bool {
        self.is_true() == other.is_true()
    }
}

impl Eq for Bool8 {}

impl std::fmt::Debug for Bool8 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.is_true().fmt(f)
    }
}

mod sealed {
    /// # Safety
    /// The type has no padding and no interior mutability, and every bit pattern of its size is a valid value.
    pub unsafe trait Plain {}
}

macro_rules! elements {
    ($($type:ty => $dtype:ident;)*) => {$(
        // SAFETY: primitive integers and floats have no padding and no invalid bit patterns, NaNs included; `f16` and
        // `bf16` are `repr(transparent)` over `u16`, `Bool8` over `u8`; `Complex<T>` is `repr(C)` with two fields of
        // the same type, hence as free of padding as they are. None of them has interior mutability.
        unsafe impl sealed::Plain for $type {}

        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }

        // The wire's size and the machine's must agree, or every cast below would be wrong.
        const _: () = assert!(matches!(DType::$dtype.size(), Some(size) if size == mem::size_of::<$type>()));
        // Few elements lie in a tensor's handle.
        const _: () = assert!(mem::align_of::<$type>() <= mem::align_of::<Inline>());
    )*};
}

elements! {
    Bool8 => Bool;
    i8 => I8;
    u8 => U8;
    i16 => I16;
    u16 => U16;
    i32 => I32;
    u32 => U32;
    i64 => I64;
    u64 => U64;
    f16 => F16;
    bf16 => BF16;
    f32 => F32;
    f64 => F64;
    Complex<f32> => C64;
    Complex<f64> => C128;
}

/// The bytes of `elements`.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    let len = mem::size_of_val(elements);
    // SAFETY: the pointer and length cover exactly the slice, which stays borrowed; `Plain` types have no padding, so
    // all of its bytes are initialised; bytes need no alignment.
    unsafe { slice::from_raw_parts(elements.as_ptr().cast::<u8>(), len) }
}

/// Where the first byte lies that is no truth value, if any.
pub(crate) fn not_bool(bytes: &[u8]) -> Option<usize> {
    // All of them together first, which takes whole registers at a time.
    let all = bytes.iter().fold(0, |all, byte| all | byte);
    (all > 1).then(|| bytes.iter().position(|byte| *byte > 1))?
}

/// Makes truth values of `bytes`: 1 of whatever is not zero.
pub(crate) fn to_bools(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = u8::from(*byte != 0);
    }
}

/// `bytes` as elements.
///
/// # Errors
/// [`TensorError::Misaligned`]; [`TensorError::Size`] if they are not a whole number of elements.
#[inline]
pub(crate) fn elements_of<T: Element>(bytes: &[u8]) -> Result<&[T], TensorError> {
    let count = check::<T>(bytes)?;
    // SAFETY: `check` found the pointer aligned and the length `count` elements exactly; of a `Plain` type every bit
    // pattern is a value; the result borrows `bytes`.
    Ok(unsafe { slice::from_raw_parts(bytes.as_ptr().cast::<T>(), count) })
}

/// `bytes` as elements that can be written.
///
/// # Errors
/// As [`elements_of`].
#[inline]
pub(crate) fn elements_of_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T], TensorError> {
    let count = check::<T>(bytes)?;
    // SAFETY: as in `elements_of`; the borrow is unique, and because `Plain` types have no padding, bytes written
    // through it are initialised bytes.
    Ok(unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<T>(), count) })
}

/// How many elements of `T` lie in `bytes`.
#[inline]
fn check<T: Element>(bytes: &[u8]) -> Result<usize, TensorError> {
    if !bytes.as_ptr().cast::<T>().is_aligned() {
        return Err(TensorError::Misaligned {
            align: mem::align_of::<T>(),
        });
    }
    let count = bytes.len() / mem::size_of::<T>();
    if count * mem::size_of::<T>() != bytes.len() {
        let expected = (count * mem::size_of::<T>()) as u64;
        return Err(TensorError::Size {
            expected,
            actual: bytes.len() as u64,
        });
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
