//! The return list: how nodes dropped on any thread come home to the one thread that gives them out.
//!
//! Knows nothing of blocks, leases or tensors: only of nodes that carry a link.
//!
//! A Treiber stack (R. K. Treiber, "Systems Programming: Coping with Parallelism", 1986) with many pushers and
//! one taker, and the taker only ever takes *everything* with one swap. That is why the stack's usual trouble is
//! absent: no thread pops a single node, so none compares against a head that may have gone and come back (ABA). It is
//! never full and never allocates, because the links live in the nodes.
//!
//! ```text
//!   head ──▶ node ──▶ node ──▶ null          open: pushers link in front
//!   head ──▶ CLOSED                          closed: the taker is gone, a push is refused
//! ```
//!
//! `CLOSED` is what lets the taker leave before its nodes do: the swap that closes the list takes all that came
//! home, and every later push is told so instead of being lost (see `home.rs`).
#![allow(unsafe_code)]

use core::ptr::{self, NonNull};

use crate::sync::{AtomicPtr, Ordering};

/// Something that can lie in a [`ReturnList`].
///
/// # Safety
/// `link` must always give the same field of the node, and only the return list may touch that field from the moment
/// the node is pushed until a [`Taken`] yields it.
pub(crate) unsafe trait Linked: Sized {
    /// The node's link.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The list. Any thread pushes, only its owner takes.
///
/// It is one atomic word and nothing else. That matters: the owner may free the list the moment a push has
/// succeeded, while the pusher is still returning, and a reference to memory that is all atomic may dangle then.
#[derive(Debug)]
pub(crate) struct ReturnList<N> {
    head: AtomicPtr<N>,
}

/// A push was refused because the list is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListClosed;

impl<N: Linked> ReturnList<N> {
    /// An open, empty list.
    pub(crate) fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Puts `node` on the list; after success the caller may not touch it, nor the list, any more.
    ///
    /// # Safety
    /// `node` points to a live node that only the caller has access to, and that stays live until it has been
    /// taken or, if this fails, until the caller lets go of it.
    pub(crate) unsafe fn push(&self, node: NonNull<N>) -> Result<(), ListClosed> {
        // Relaxed: the value is only a guess for the exchange below, and nothing it points to is read.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == Self::closed() {
                return Err(ListClosed);
            }
            // SAFETY: the caller vouches that `node` is live and that no other thread has access to it.
            let reference = unsafe { node.as_ref() };
            reference.link().store(head, Ordering::Relaxed);
            // Release: pairs with the Acquire swap in `take_all` and `close`, so that the taker sees the link and
            // everything that was done with the node's memory before it was dropped.
            match self.head.compare_exchange_weak(
                head,
                node.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Takes every node that has come home. For the owner alone, and not after [`ReturnList::close`].
    #[inline]
    pub(crate) fn take_all(&self) -> Taken<N> {
        // An empty list is the usual case in a poll loop; a plain load leaves the line shared, a swap would not.
        if self.head.load(Ordering::Relaxed).is_null() {
            return Taken {
                next: ptr::null_mut(),
            };
        }
        // Acquire: pairs with the Release in `push`.
        Taken {
            next: self.head.swap(ptr::null_mut(), Ordering::Acquire),
        }
    }

    /// The address of the last node that came home and was not taken; zero for none. It says nothing of the node.
    #[inline]
    pub(crate) fn latest(&self) -> usize {
        self.head.load(Ordering::Relaxed).addr()
    }

    /// Takes every node that has come home and refuses all that come later.
    ///
    /// Release as well as Acquire: what the owner wrote before it left (how many nodes are still out, what must
    /// outlive them) is seen by every pusher that is refused, through its Acquire in `was_closed`.
    pub(crate) fn close(&self) -> Taken<N> {
        Taken {
            next: self.head.swap(Self::closed(), Ordering::AcqRel),
        }
    }

    /// Synchronises a refused pusher with the owner that closed the list.
    pub(crate) fn was_closed(&self) -> bool {
        // Acquire: pairs with the Release in `close`. Nothing is stored after a close, so this reads its value.
        self.head.load(Ordering::Acquire) == Self::closed()
    }

    /// A head that is no node: nodes hold pointers, so none lies at address one.
    fn closed() -> *mut N {
        ptr::without_provenance_mut(1)
    }
}

/// Nodes taken off a return list, last returned first. What is not iterated stays out for ever.
#[derive(Debug)]
pub(crate) struct Taken<N> {
    next: *mut N,
}

impl<N: Linked> Iterator for Taken<N> {
    type Item = NonNull<N>;

    #[inline]
    fn next(&mut self) -> Option<NonNull<N>> {
        let node = NonNull::new(self.next)?;
        // SAFETY: the node was pushed by its only holder and taken by the swap that made this iterator, so it is
        // live (the pusher's promise) and ours alone; its link was written before the push published it.
        let reference = unsafe { node.as_ref() };
        self.next = reference.link().load(Ordering::Relaxed);
        Some(node)
    }
}
