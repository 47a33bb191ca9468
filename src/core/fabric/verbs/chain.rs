//! The requests of one doorbell, linked as the library reads them, each with its piece of memory.
//!
//! Knows how they are linked; not what they ask for. They are linked once, when the chain is made: a request that is
//! added is written where the library reads it, and nothing copies it again.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use super::sys;

/// Requests of one chain.
pub(super) const CHAIN_MAX: usize = 32;

/// A request as the library knows it.
pub(super) trait ChainRequest: Copy {
    /// One that asks for nothing, of one piece.
    fn empty(piece: *mut sys::ibv_sge) -> Self;
    /// The request behind it.
    fn next(&mut self) -> &mut *mut Self;
}

/// Up to [`CHAIN_MAX`] requests that wait for one doorbell.
#[derive(Debug)]
pub(super) struct Chain<R> {
    /// A box's: the pointers in it stay right as long as nothing else is made of it than these.
    links: NonNull<Links<R>>,
    len: usize,
}

#[derive(Debug)]
struct Links<R> {
    requests: [R; CHAIN_MAX],
    pieces: [sys::ibv_sge; CHAIN_MAX],
}

impl<R: ChainRequest> Chain<R> {
    pub(super) fn new() -> Self {
        let links = Box::new(Links {
            requests: [R::empty(ptr::null_mut()); CHAIN_MAX],
            pieces: [sys::ibv_sge::default(); CHAIN_MAX],
        });
        let chain = Self {
            links: NonNull::from(Box::leak(links)),
            len: 0,
        };
        for index in 0..CHAIN_MAX {
            let mut request = R::empty(chain.piece(index));
            *request.next() = chain.request(index + 1);
            // SAFETY: it lies in the links, which only the chain reaches.
            unsafe { chain.request(index).write(request) };
        }
        chain
    }

    /// Requests that wait.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Forgets those that wait.
    #[inline]
    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// One request more, to be written: it holds what an earlier one left, and names the piece beside it.
    ///
    /// # Panics
    /// On a chain that is full.
    #[inline]
    pub(super) fn add(&mut self) -> (&mut R, &mut sys::ibv_sge) {
        let index = self.len;
        assert!(index < CHAIN_MAX, "the caller posts a full chain");
        self.len = index + 1;
        // SAFETY: it lies in the links, which only the chain reaches, and `self` is borrowed as long as both.
        let piece = unsafe { &mut *self.piece(index) };
        // SAFETY: as its piece, and the two do not overlap.
        (unsafe { &mut *self.request(index) }, piece)
    }

    /// Gives the first of those that wait to `post`, and forgets them. The last has none behind it meanwhile.
    ///
    /// # Errors
    /// What `post` says, and how many requests lie before the one that it calls bad.
    #[inline]
    pub(super) fn post(
        &mut self,
        post: impl FnOnce(*mut R, *mut *mut R) -> i32,
    ) -> Result<(), (usize, i32)> {
        let count = std::mem::take(&mut self.len);
        let Some(last) = count.checked_sub(1) else {
            return Ok(());
        };
        // SAFETY: it lies in the links, which only the chain reaches.
        unsafe { *(*self.request(last)).next() = ptr::null_mut() };
        let mut bad = ptr::null_mut();
        let errno = post(self.request(0), &raw mut bad);
        // SAFETY: as above; the library keeps nothing of a chain when it returns.
        unsafe { *(*self.request(last)).next() = self.request(count) };
        if errno == 0 {
            return Ok(());
        }
        let refused = (0..count).find(|&index| ptr::eq(self.request(index), bad));
        Err((refused.unwrap_or(0), errno))
    }

    /// Where a request lies.
    #[inline]
    const fn request(&self, index: usize) -> *mut R {
        // SAFETY: the links live as long as `self`, and this only computes an address.
        let first = unsafe { &raw mut (*self.links.as_ptr()).requests };
        first.cast::<R>().wrapping_add(index)
    }

    /// Where its piece lies.
    #[inline]
    const fn piece(&self, index: usize) -> *mut sys::ibv_sge {
        // SAFETY: as for a request.
        let first = unsafe { &raw mut (*self.links.as_ptr()).pieces };
        first.cast::<sys::ibv_sge>().wrapping_add(index)
    }
}

impl<R> Drop for Chain<R> {
    fn drop(&mut self) {
        // SAFETY: it was a box's, and is dropped once; the library keeps nothing of a chain between two posts.
        drop(unsafe { Box::from_raw(self.links.as_ptr()) });
    }
}

// SAFETY: not automatic because of the pointers, all of which point into the links that the chain alone holds. A
// request owns nothing, and its other pointers are only handed to the library.
unsafe impl<R: ChainRequest> Send for Chain<R> {}
