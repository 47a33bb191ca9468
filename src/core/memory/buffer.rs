//! A buffer: a block of an arena with exactly one holder, which may write to it.
//!
//! Knows its block, and nothing of where it is posted: a fabric that writes into it *moves* it and keeps it.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::slice;

use super::block::Block;
use super::home::Handle;
use super::{Tensor, TensorError};
use crate::ground::{Region, TensorMeta};

/// Unique, writable memory of an arena, 64-byte aligned. Dropped on any thread, it goes home to its pool.
///
/// Its bytes are whatever was there before; those of a fresh segment are zero. Bytes are written straight into the
/// shared pages, so that a peer of the same machine reads them where they were written.
pub struct Buffer {
    base: *mut u8,
    len: usize,
    block: Handle<Block>,
}

/// A buffer that is not the tensor it should become, with the reason: the buffer comes back.
#[derive(Debug)]
pub struct Misfit {
    /// The buffer, as it was.
    pub buffer: Buffer,
    /// Why it is not that tensor.
    pub error: TensorError,
}

impl Buffer {
    /// A buffer over the first `len` bytes of a block just given out.
    #[inline]
    pub(crate) fn new(block: Handle<Block>, len: usize) -> Self {
        debug_assert!(
            len as u64 <= block.node().size(),
            "a buffer lies within its block"
        );
        Self {
            base: block.node().base(),
            len,
            block,
        }
    }

    /// Makes it the tensor that `meta` describes, without a copy. A buffer longer than the tensor keeps its tail to
    /// itself; for strings, cut it to their encoded length first.
    ///
    /// # Errors
    /// [`Misfit`] hands the buffer back if it is too short.
    pub fn into_tensor(self, meta: TensorMeta) -> Result<Tensor, Misfit> {
        let fits = super::tensor::byte_len(meta).and_then(|size| match size {
            Some(size) if size > self.len as u64 => Err(TensorError::Size {
                expected: size,
                actual: self.len as u64,
            }),
            Some(size) => Ok(size as usize),
            None => Ok(self.len),
        });
        match fits {
            Ok(len) => Ok(Tensor::of_block(meta, self.base, len, self.block)),
            Err(error) => Err(Misfit {
                buffer: self,
                error,
            }),
        }
    }

    /// Cuts it to its first `len` bytes; does nothing if it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// What others call it: to post it, or to tell a peer where to write.
    #[must_use]
    pub fn region(&self) -> Region {
        self.block.node().region(self.len)
    }

    /// The tensor of `meta`, whose length the caller made this buffer for.
    #[inline]
    pub(crate) fn finish(self, meta: TensorMeta) -> Tensor {
        Tensor::of_block(meta, self.base, self.len, self.block)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `base` is the block's start and `len` at most its size; the handle keeps the block out, so its memory
        // is mapped and given to no other owner; it was zeroed by the kernel, so it is initialised.
        unsafe { slice::from_raw_parts(self.base, self.len) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; a buffer's handle is its block's only one and is borrowed uniquely, so no other code
        // in this process reads these bytes meanwhile. Another process' read-only view is no alias that Rust could know
        // of.
        unsafe { slice::from_raw_parts_mut(self.base, self.len) }
    }
}

// SAFETY: not automatic because of `base`, which points into memory that belongs to this buffer alone; the handle is
// `Send`.
unsafe impl Send for Buffer {}

// SAFETY: as above; a shared buffer gives only shared slices.
unsafe impl Sync for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("region", &self.region())
            .finish()
    }
}
