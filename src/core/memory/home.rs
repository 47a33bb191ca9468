//! Home and handle: nodes that are given out, counted, dropped anywhere, and come home exactly once.
//!
//! Knows nothing of what a node stands for; blocks of an arena (`block.rs`) and leases (`lease.rs`) both live by it.
//!
//! One owner gives nodes out as [`Handle`]s. Handles are cloned and dropped on any thread; the last one pushes the
//! node on the owner's return list. Counting the nodes that are out costs no atomic while the owner lives: it
//! alone gives out and it alone takes home, so it counts in a plain integer.
//!
//! The owner may leave first. It then writes down how many nodes are still out (`orphans`), puts what must outlive
//! them (`estate`: the memory and the nodes themselves) into the home, and closes the return list. From then on a
//! last handle finds the list closed and counts `orphans` down instead; the handle that reaches zero frees the home,
//! and with it the estate.
//!
//! ```text
//!   owner alive:   last handle ── push ──▶ return list ── take_all ──▶ owner's free lists
//!   owner gone:    last handle ── push refused ──▶ orphans − 1 ── zero? ──▶ drop(home, estate)
//! ```
//!
//! `orphans` starts with one more than the nodes that are out, for the leaving owner itself: it takes that one off,
//! together with the nodes the closing swap still caught, so that exactly one side sees zero.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use super::returns::{Linked, ListClosed, ReturnList, Taken};
use crate::sync::{AtomicU32, AtomicUsize, Ordering, UnsafeCell};

/// A node that belongs to a [`Home`] and counts its handles.
///
/// # Safety
/// `handles` and `home` must always give the same counter and the same home, and the home must be the one whose
/// owner gives the node out. The node must stay where it is, and valid, until its home is freed: it lies in the
/// estate, or in what the owner moves there when it leaves.
pub(crate) unsafe trait Node: Linked {
    /// What must outlive every handle once the owner is gone.
    type Estate: Send;

    /// How many handles to the node there are; zero while it is at home or on its way.
    fn handles(&self) -> &AtomicU32;

    /// Where it goes.
    fn home(&self) -> NonNull<Home<Self>>;
}

/// Where nodes come home to. Lives in its own heap allocation until the owner and every node are gone.
pub(crate) struct Home<N: Node> {
    returns: ReturnList<N>,
    orphans: AtomicUsize,
    estate: UnsafeCell<Option<N::Estate>>,
    /// What the owner says of all its nodes.
    mark: u64,
}

impl<N: Node> Home<N> {
    /// What the owner said of all its nodes.
    pub(crate) const fn mark(&self) -> u64 {
        self.mark
    }
}

/// The owner's end of a home: gives nodes out and takes them back.
pub(crate) struct Owner<N: Node> {
    home: NonNull<Home<N>>,
    out: usize,
    estate: Option<N::Estate>,
}

impl<N: Node> Owner<N> {
    /// A home whose nodes lie in the estate that `build` makes for it, and which says `mark` of all of them.
    pub(crate) fn new<E>(
        mark: u64,
        build: impl FnOnce(NonNull<Home<N>>) -> Result<N::Estate, E>,
    ) -> Result<Self, E> {
        let home = Box::new(Home {
            returns: ReturnList::new(),
            orphans: AtomicUsize::new(0),
            estate: UnsafeCell::new(None),
            mark,
        });
        let mut owner = Self {
            home: NonNull::from(Box::leak(home)),
            out: 0,
            estate: None,
        };
        owner.estate = Some(build(owner.home)?);
        Ok(owner)
    }

    /// What outlives the nodes.
    #[inline]
    pub(crate) fn estate(&self) -> &N::Estate {
        // `None` only while `new` builds it and while `drop` hands it over.
        self.estate.as_ref().expect("an owner has its estate")
    }

    /// What outlives the nodes, to be added to.
    #[inline]
    pub(crate) fn estate_mut(&mut self) -> &mut N::Estate {
        self.estate.as_mut().expect("an owner has its estate")
    }

    /// The home, to be told to nodes made later.
    pub(crate) const fn home(&self) -> NonNull<Home<N>> {
        self.home
    }

    /// Gives `node` out as its only handle.
    ///
    /// # Safety
    /// `node` is live, belongs to this home, and is at home: no handle to it exists and it lies on no list.
    #[inline]
    pub(crate) unsafe fn give_out(&mut self, node: NonNull<N>) -> Handle<N> {
        // SAFETY: the caller vouches that the node is live; a shared reference is all that is made.
        let reference = unsafe { node.as_ref() };
        // Relaxed: no other thread has this node; whatever hands the handle over publishes it.
        reference.handles().store(1, Ordering::Relaxed);
        self.out += 1;
        Handle { node }
    }

    /// Takes home everything whose last handle was dropped; the caller must iterate it to the end.
    #[inline]
    pub(crate) fn take_all(&mut self) -> Taken<N> {
        // SAFETY: the owner keeps the home alive until its own `drop`.
        let home = unsafe { self.home.as_ref() };
        home.returns.take_all()
    }

    /// Notes that one node of `take_all` is at home again.
    #[inline]
    pub(crate) fn took_home(&mut self) {
        self.out -= 1;
    }

    /// The node that came home last and was not taken, as a number to compare; zero for none.
    #[inline]
    pub(crate) fn latest(&self) -> usize {
        // SAFETY: the owner keeps the home alive until its own `drop`.
        unsafe { self.home.as_ref() }.returns.latest()
    }

    /// How many nodes are given out and not taken home yet.
    pub(crate) const fn out(&self) -> usize {
        self.out
    }
}

impl<N: Node> Drop for Owner<N> {
    fn drop(&mut self) {
        let home = self.home;
        let estate = self.estate.take();
        let caught = {
            // SAFETY: the owner's own share in `orphans` below keeps the home alive until it is taken off.
            let reference = unsafe { home.as_ref() };
            reference.estate.with_mut(|place| {
                // SAFETY: `place` is valid and no other thread reads or writes it: only the thread that brings
                // `orphans` to zero does, which cannot happen before our share is taken off below.
                unsafe { *place = estate };
            });
            // Relaxed: published by the Release of `close`, and read only by pushers that it refused.
            reference.orphans.store(self.out + 1, Ordering::Relaxed);
            reference.returns.close().count()
        };
        // SAFETY: `caught` nodes came home before the list closed and one share is the owner's: no other thread counted
        // one down, and this owner touches the home no more.
        unsafe { settle(home, caught + 1) };
    }
}

// SAFETY: not automatic because of the raw pointer to the home. The home is atomics and an estate that is `Send`;
// the owner is the only one to take from the list, and moving it to another thread moves that role with it.
unsafe impl<N: Node> Send for Owner<N> {}

impl<N: Node> core::fmt::Debug for Owner<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Owner")
            .field("out", &self.out)
            .finish_non_exhaustive()
    }
}

/// One handle to a node that is out. The last one dropped sends the node home, from whatever thread.
pub(crate) struct Handle<N: Node> {
    node: NonNull<N>,
}

impl<N: Node> Handle<N> {
    /// The node.
    #[inline]
    pub(crate) fn node(&self) -> &N {
        // SAFETY: while a handle exists its node is out, so neither the owner nor the home's end frees it; only
        // shared references to it are ever made.
        unsafe { self.node.as_ref() }
    }
}

impl<N: Node> Clone for Handle<N> {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: a new handle is made from an existing one, which keeps the node out all the while.
        let before = self.node().handles().fetch_add(1, Ordering::Relaxed);
        // Two thousand million handles are a leak in a loop; the counter must not wrap to "free".
        assert!(before < u32::MAX / 2, "too many handles to one tensor");
        Self { node: self.node }
    }
}

impl<N: Node> Drop for Handle<N> {
    #[inline]
    fn drop(&mut self) {
        let handles = self.node().handles();
        // The last holder needs no read-modify-write: no other thread can clone a handle that only we hold. Acquire:
        // pairs with the Release below, so that every other handle's reads are over.
        if handles.load(Ordering::Acquire) == 1 {
            // Relaxed: published by the push. Zero says "at home or on its way".
            handles.store(0, Ordering::Relaxed);
        } else if handles.fetch_sub(1, Ordering::AcqRel) != 1 {
            // Release pairs with the Acquire above and the Acquire half here: our reads are over.
            return;
        }
        let home = self.node().home();
        // SAFETY: this was the last handle, so the node is ours alone, belongs to that home, and is live until it
        // has been given back; this handle is never used again.
        unsafe { give_back(home, self.node) };
    }
}

// SAFETY: not automatic because of the raw pointer. A handle only gives `&N`, and `N: Sync` where handles are used;
// dropping on another thread is what the return list is for.
unsafe impl<N: Node + Sync> Send for Handle<N> {}

// SAFETY: as above: a shared handle gives `&N` and can be cloned, and the counter is atomic.
unsafe impl<N: Node + Sync> Sync for Handle<N> {}

impl<N: Node> core::fmt::Debug for Handle<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// Sends a node home, or counts it off if the owner has left.
///
/// # Safety
/// `node` belongs to `home`, the caller held its last handle, and touches neither afterwards.
#[inline]
unsafe fn give_back<N: Node>(home: NonNull<Home<N>>, node: NonNull<N>) {
    let refused = {
        // SAFETY: the node is out, so the home is alive: the owner lives, or `orphans` still counts this node. After a
        // successful push it may be freed at any moment; the reference is not used after that, and the list it
        // leads to is one atomic word.
        let returns = unsafe { &(*home.as_ptr()).returns };
        // SAFETY: the caller holds the node's last handle and forgets it; nodes stay live until their home is freed.
        let pushed = unsafe { returns.push(node) };
        // Reads the closed head again, with Acquire: the owner's `orphans` and estate are visible from here on.
        pushed == Err(ListClosed) && returns.was_closed()
    };
    if refused {
        // SAFETY: the list was closed, so `orphans` counts this node, and it is counted off once: here.
        unsafe { settle(home, 1) };
    }
}

/// Takes `shares` off `orphans` and frees the home if they were the last.
///
/// # Safety
/// The list is closed, the caller holds `shares` of `orphans`, and touches the home no more.
unsafe fn settle<N: Node>(home: NonNull<Home<N>>, shares: usize) {
    let before = {
        // SAFETY: the caller's shares keep the home alive.
        let reference = unsafe { home.as_ref() };
        // Release: what we did with our nodes is over; Acquire: so is what all the others did, before we free it.
        reference.orphans.fetch_sub(shares, Ordering::AcqRel)
    };
    if before == shares {
        // SAFETY: the home came from `Box::leak` in `Owner::new`; no share is left, so no other thread can reach it.
        drop(unsafe { Box::from_raw(home.as_ptr()) });
    }
}
