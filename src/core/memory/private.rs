//! Private mappings: a tensor's pages, mapped so that what is written to them stays with the writer.
//!
//! Knows pages and descriptors, and nothing of where the bytes came from. A page is copied by the kernel when it is
//! first written to; until then it is the owner's own.
//!
//! The mapping keeps the tensor, so a lease does not end and a block does not go home while it lives: pages that were
//! not written to hold the tensor's bytes for as long as they can be read.
//!
//! # What a peer can do
//!
//! That a region owns its pages is the peer's claim, and no safety rests on it. A peer that lies shows the holder of
//! the mapping up to a page of other bytes of the peer's own segment, behind the tensor, which this process can read
//! anyway, and which are not part of any slice given out here. That the mapping lies within the segment, and the
//! segment cannot get shorter, was checked when the segment was mapped and when the lease was made. As with every
//! lease, a peer that breaks the protocol can change bytes that were not written to here while they are read; see
//! [`MappedSegment::slice`](super::MappedSegment::slice).
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::slice;

use super::arena::PagedFile;
use super::element::{self, Element};
use super::mapping::{MapAccess, Mapping};
use super::tensor::check_dtype;
use super::{MemoryError, Tensor, TensorError};
use crate::ground::TensorMeta;

/// A tensor's bytes, to be written to by their holder alone: neither the tensor nor any other reader sees it.
///
/// They begin a page, so they are aligned for every element. To send what was written, make a tensor of it by
/// [`Tensor::from_foreign`].
#[derive(Debug)]
pub struct PrivateTensor {
    /// Whole pages; none for an empty tensor. It goes before the tensor: fields are dropped in this order.
    mapping: Option<Mapping>,
    /// Keeps the lease, or the block: those pages that were not written to are its own.
    tensor: Tensor,
}

impl Tensor {
    /// Maps its bytes to the caller, who may write to them: a page that is written to is copied first, and no other
    /// reader ever sees the writes. The tensor, and with it a lease, is kept until the mapping is dropped.
    ///
    /// ```
    /// # extern crate rendez_core as rendez;
    /// use rendez::ground::{DType, Shape, TensorMeta};
    /// use rendez::memory::{ArenaConfig, ArenaId, Pool};
    ///
    /// let mut pool = Pool::new(ArenaId(0), ArenaConfig::default())?;
    /// let tensor = pool.paged_builder(TensorMeta::new(DType::U8, Shape::from([5000]))?)?.finish();
    /// let mut mine = tensor.map_private()?;
    /// mine.bytes_mut().fill(7);
    /// assert_eq!((mine.bytes()[4999], tensor.host()?[4999]), (7, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryError::Unpaged`] (`TENSOR_PAGES`) unless the bytes own whole pages, by
    /// [`Pool::paged_builder`](super::Pool::paged_builder), and are read in place: what came by a copy, as a short
    /// value or one from another machine does, lies among others. [`MemoryError::System`] if the system refuses.
    pub fn map_private(&self) -> Result<PrivateTensor, MemoryError> {
        let Some(len) = std::num::NonZeroUsize::new(self.size()) else {
            return Ok(PrivateTensor {
                mapping: None,
                tensor: self.clone(),
            });
        };
        let (file, offset) = self.pages().ok_or(MemoryError::Unpaged)?;
        if offset % file.page_bytes as u64 != 0 {
            // The peer says that it begins a page. It does not.
            return Err(MemoryError::Unpaged);
        }
        let mapped = len.get().next_multiple_of(file.page_bytes);
        // The region ends within the file, whose seals keep it from getting shorter: our own segment by its block, a
        // peer's as `slice` checked when the lease was made. So every page of the mapping has a byte of the file, and
        // can be touched. No write goes to the file.
        let mapping = Mapping::new(
            &file.fd,
            offset,
            mapped,
            MapAccess::Copy,
            "a tensor's own pages",
        )?;
        Ok(PrivateTensor {
            mapping: Some(mapping),
            tensor: self.clone(),
        })
    }

    /// The file that its pages lie in, and where in it they start.
    fn pages(&self) -> Option<(&PagedFile, u64)> {
        if let Some(pages) = self.block().and_then(|block| block.pages()) {
            return Some(pages);
        }
        let (segment, offset) = self.lease()?.pages()?;
        Some((segment.paged()?, offset))
    }
}

impl PrivateTensor {
    /// Its type and shape.
    #[must_use]
    pub const fn meta(&self) -> TensorMeta {
        self.tensor.meta()
    }

    const fn base(&self) -> *mut u8 {
        match &self.mapping {
            Some(mapping) => mapping.base(),
            None => NonNull::<u128>::dangling().as_ptr().cast(),
        }
    }

    /// Its bytes, in row-major order of the elements.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: `base` starts a mapping of at least as many bytes as the tensor is long, or dangles for none; it is
        // readable, initialised by the file and by what was written, and lives as long as `self`. In this process only
        // `bytes_mut` writes there, which borrows uniquely; what a peer can do is the head of this file.
        unsafe { slice::from_raw_parts(self.base(), self.tensor.size()) }
    }

    /// The same, to be written to.
    #[must_use]
    pub const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the mapping is writable and borrowed uniquely.
        unsafe { slice::from_raw_parts_mut(self.base(), self.tensor.size()) }
    }

    /// Its elements.
    ///
    /// # Errors
    /// [`TensorError::Dtype`] if they are not `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        check_dtype::<T>(self.meta())?;
        element::elements_of(self.bytes())
    }

    /// Its elements, to be written to.
    ///
    /// # Errors
    /// As [`PrivateTensor::as_slice`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        check_dtype::<T>(self.meta())?;
        element::elements_of_mut(self.bytes_mut())
    }
}

impl AsRef<[u8]> for PrivateTensor {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

#[cfg(test)]
mod tests;
