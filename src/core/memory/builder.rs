//! A tensor being written, in the memory where it will be read.
//!
//! Knows its buffer; finishing it moves no byte.

use super::element::{self, Element};
use super::inline::Inline;
use super::tensor::check_dtype;
use super::{Buffer, Tensor, TensorError, strings};
use crate::ground::{DType, Region, Shape, TensorMeta};

/// Room for a tensor's elements, unique and writable; its bytes are whatever was there before.
#[derive(Debug)]
pub struct TensorBuilder {
    meta: TensorMeta,
    room: Room,
}

enum Room {
    Inline(Inline, usize),
    Block(Buffer),
}

impl TensorBuilder {
    #[inline]
    pub(crate) fn inline(meta: TensorMeta, len: usize) -> Self {
        Self {
            meta,
            room: Room::Inline(Inline::default(), len),
        }
    }

    #[inline]
    pub(crate) const fn on(meta: TensorMeta, buffer: Buffer) -> Self {
        Self {
            meta,
            room: Room::Block(buffer),
        }
    }

    /// The finished tensor. Of truth values every byte that is not zero becomes 1.
    #[inline]
    #[must_use]
    pub fn finish(mut self) -> Tensor {
        if self.meta.dtype == DType::Bool {
            element::to_bools(self.bytes_mut());
        }
        match self.room {
            Room::Inline(bytes, len) => Tensor::of_array(self.meta, bytes, len),
            Room::Block(buffer) => buffer.finish(self.meta),
        }
    }

    /// The tensor of byte strings, which are encoded into its bytes: those must be as many as
    /// [`encoded_len`](strings::encoded_len) says, of whatever type.
    ///
    /// # Errors
    /// [`TensorError::Elements`] unless there is one string for each element of `shape`; [`TensorError::Size`] for
    /// another number of bytes.
    pub fn finish_strings<S: AsRef<[u8]>>(
        mut self,
        items: impl IntoIterator<Item = S, IntoIter: Clone>,
        shape: Shape,
    ) -> Result<Tensor, TensorError> {
        let items = items.into_iter();
        strings::check_count(shape, items.clone().count())?;
        let (expected, bytes) = (strings::encoded_len(items.clone()), self.bytes_mut());
        if expected != bytes.len() {
            return Err(TensorError::Size {
                expected: expected as u64,
                actual: bytes.len() as u64,
            });
        }
        strings::encode(items, bytes);
        self.meta = TensorMeta {
            dtype: DType::String,
            shape,
        };
        Ok(self.finish())
    }

    /// Its bytes, in row-major order of the elements.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.room {
            Room::Inline(bytes, len) => &mut bytes.0[..*len],
            Room::Block(buffer) => buffer,
        }
    }

    /// Its elements.
    ///
    /// # Errors
    /// [`TensorError::Dtype`] if they are not `T`.
    #[inline]
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        check_dtype::<T>(self.meta)?;
        element::elements_of_mut(self.bytes_mut())
    }

    /// Its type and shape.
    #[must_use]
    pub const fn meta(&self) -> TensorMeta {
        self.meta
    }

    /// What others call its memory; `None` if it lies in the handle.
    #[must_use]
    pub fn region(&self) -> Option<Region> {
        match &self.room {
            Room::Inline(..) => None,
            Room::Block(buffer) => Some(buffer.region()),
        }
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inline(_, len) => write!(f, "Inline({len})"),
            Self::Block(buffer) => buffer.fmt(f),
        }
    }
}
