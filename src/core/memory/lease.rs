//! Leases: tensors over a peer's memory, and the news that they are no longer read.
//!
//! Knows mappings and tokens. What a token stands for, which peer to tell of it and when a lease expires is the shard's
//! business. A lease is never revoked: it ends when its last tensor is dropped.
//!
//! The table is a home (`home.rs`) like a pool's, its nodes are table entries: a leased tensor dropped on any thread
//! sends its entry home, and the shard's next [`Leases::reclaim`] hears its token, once.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use super::home::{Handle, Home, Node, Owner};
use super::returns::Linked;
use super::{MappedSegment, MemoryError, Tensor, tensor};
use crate::ground::{Region, TensorMeta};
use crate::sync::{Arc, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What a lease stands for, to its table's owner.
pub type LeaseToken = u128;

/// A shard's table of leases, all entries made beforehand. May be dropped before the tensors.
#[derive(Debug)]
pub struct Leases {
    owner: Owner<Lease>,
    free: *mut Lease,
    capacity: u32,
}

/// An entry: one lease, with as many handles as there are clones of its tensor.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Lease {
    handles: AtomicU32,
    /// The next entry: of the return list while it comes home, of the free list while it is there.
    link: AtomicPtr<Self>,
    home: NonNull<Home<Self>>,
    /// From `Arc::into_raw` while the entry is out or on its way; null at home. The owner's, and the end's, to touch.
    mapped: AtomicPtr<MappedSegment>,
    /// The low half of its token, and the high one. The owner's to touch.
    token: [AtomicU64; 2],
    /// Where in the segment its bytes start, if the peer says that they own their pages; else [`NO_PAGES`].
    pages_at: AtomicU64,
    /// Of a device's memory, the segment that tells when its bytes are there, kept as `mapped` is; else null.
    times: AtomicPtr<MappedSegment>,
    /// What that segment says of them; zero if they are there.
    stamp: AtomicU64,
    /// Of a device's memory, where its bytes start in the segment.
    offset: AtomicU64,
}

/// No place in a segment.
const NO_PAGES: u64 = u64::MAX;

impl Leases {
    /// A table of `capacity` entries.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        let owner = Owner::new(0, |home| {
            Ok::<_, core::convert::Infallible>(Entries::new(home, capacity))
        });
        let owner = match owner {
            Ok(owner) => owner,
            Err(never) => match never {},
        };
        let mut leases = Self {
            owner,
            free: ptr::null_mut(),
            capacity,
        };
        let Entries(entries) = leases.owner.estate();
        // SAFETY: the entries lie in the owner's estate, which outlives this call.
        for entry in unsafe { entries.as_ref() }.iter().rev() {
            entry.link.store(leases.free, Ordering::Relaxed);
            leases.free = ptr::from_ref(entry).cast_mut();
        }
        leases
    }

    /// A tensor over `region` of a peer's segment. The segment stays mapped as long as a clone of the tensor lives;
    /// `token` comes back from [`Leases::reclaim`] after that.
    ///
    /// # Errors
    /// [`MemoryError::LeasesOut`] if every entry is taken; [`MemoryError::Outside`] if the claim leaves the segment;
    /// [`MemoryError::Tensor`] if the region's length is not what `meta` takes.
    #[inline]
    pub fn make(
        &mut self,
        mapped: Arc<MappedSegment>,
        region: Region,
        meta: TensorMeta,
        token: LeaseToken,
    ) -> Result<Tensor, MemoryError> {
        tensor::check_len(meta, mapped.slice(region)?.len())?;
        let handle = self.enter(mapped, token)?;
        let lease = handle.node();
        if region.owns_pages {
            lease.pages_at.store(region.offset, Ordering::Relaxed);
        }
        // SAFETY: the entry holds one count of this `Arc` until it is home again, and the handle keeps it out.
        let mapped = unsafe { &*lease.mapped.load(Ordering::Relaxed) };
        Ok(Tensor::of_lease(meta, mapped.slice(region)?, handle))
    }

    /// An entry that keeps the segment, given out.
    pub(super) fn enter(
        &mut self,
        mapped: Arc<MappedSegment>,
        token: LeaseToken,
    ) -> Result<Handle<Lease>, MemoryError> {
        let entry = NonNull::new(self.free).ok_or(MemoryError::LeasesOut {
            capacity: self.capacity,
        })?;
        // SAFETY: the entries lie in the owner's estate, which outlives this call; no handle to this one exists, and
        // only shared references are ever made.
        let lease = unsafe { entry.as_ref() };
        self.free = lease.link.load(Ordering::Relaxed);
        lease.put_token(token);
        lease.pages_at.store(NO_PAGES, Ordering::Relaxed);
        let mapped = Arc::into_raw(mapped).cast_mut();
        lease.mapped.store(mapped, Ordering::Relaxed);
        // SAFETY: the entry lives, belongs to this home and came off the free list: it is at home.
        Ok(unsafe { self.owner.give_out(entry) })
    }

    /// Takes home every lease whose last tensor was dropped, on whatever thread: tells `ended` each one's token, and
    /// returns how many there were. The segment is let go before its token is told.
    pub fn reclaim(&mut self, mut ended: impl FnMut(LeaseToken)) -> usize {
        let mut count = 0;
        for entry in self.owner.take_all() {
            // SAFETY: the entries lie in the owner's estate, which outlives this call.
            let lease = unsafe { entry.as_ref() };
            lease.let_go();
            self.owner.took_home();
            lease.link.store(self.free, Ordering::Relaxed);
            self.free = entry.as_ptr();
            count += 1;
            ended(lease.token());
        }
        count
    }

    /// Gives the lease that is out under a token `is_it` says yes to another token: what [`Leases::reclaim`] will
    /// tell. False if there is none. Looks at all that are out.
    pub fn retag(&mut self, is_it: impl Fn(LeaseToken) -> bool, token: LeaseToken) -> bool {
        let found = self.find(is_it);
        if let Some(entry) = found {
            entry.put_token(token);
        }
        found.is_some()
    }

    /// True if a lease is out under a token that `is_it` says yes to. Looks at all that are out.
    #[must_use]
    pub fn has(&self, is_it: impl Fn(LeaseToken) -> bool) -> bool {
        self.find(is_it).is_some()
    }

    /// Tells `look` the token of every lease that is out, or on its way home. Looks at all that are out.
    pub fn each(&self, look: impl FnMut(LeaseToken)) {
        self.entries().map(Lease::token).for_each(look);
    }

    fn find(&self, is_it: impl Fn(LeaseToken) -> bool) -> Option<&Lease> {
        self.entries().find(|entry| is_it(entry.token()))
    }

    fn entries(&self) -> impl Iterator<Item = &Lease> {
        let Entries(entries) = self.owner.estate();
        // SAFETY: the entries lie in the owner's estate, which outlives this borrow of it.
        let entries = unsafe { entries.as_ref() };
        // Only the owner changes it, and it is here: an entry with a mapping is out, or on its way home. So many are,
        // and those in front are given out first: the rest of a long table is not looked at.
        let is_out = |entry: &&Lease| !entry.mapped.load(Ordering::Relaxed).is_null();
        entries.iter().filter(is_out).take(self.owner.out())
    }

    /// The token of the lease that a tensor is of, if it is one of this table.
    #[must_use]
    pub fn token_of(&self, tensor: &Tensor) -> Option<LeaseToken> {
        let lease = tensor.lease()?;
        // Only the owner changes a token, and it is here.
        (lease.home == self.owner.home()).then(|| lease.token())
    }

    /// Gives the lease that a tensor is of another token, if it is one of this table: see [`Leases::retag`].
    pub fn put_token(&self, tensor: &Tensor, token: LeaseToken) {
        if let Some(lease) = tensor.lease()
            && lease.home == self.owner.home()
        {
            lease.put_token(token);
        }
    }

    /// The lease that came home last and is not reclaimed yet, as a number to compare; zero for none.
    #[inline]
    #[must_use]
    pub fn latest(&self) -> usize {
        self.owner.latest()
    }

    /// Leases that are out and not reclaimed.
    #[must_use]
    pub const fn out(&self) -> usize {
        self.owner.out()
    }

    /// The most leases that can be out.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }
}

// SAFETY: not automatic because of `free`, which points into the estate of `owner` and moves with it.
unsafe impl Send for Leases {}

impl Lease {
    /// For the owner, who alone changes it.
    fn token(&self) -> LeaseToken {
        let [low, high] = &self.token;
        let read = |of: &AtomicU64| LeaseToken::from(of.load(Ordering::Relaxed));
        read(high) << 64 | read(low)
    }

    /// As [`Lease::token`].
    fn put_token(&self, token: LeaseToken) {
        let [low, high] = &self.token;
        low.store(token as u64, Ordering::Relaxed);
        high.store((token >> 64) as u64, Ordering::Relaxed);
    }

    /// The segment, and where in it the bytes start, if the peer says that they own their pages.
    pub(super) fn pages(&self) -> Option<(&MappedSegment, u64)> {
        // Relaxed: written before the handle was given out, and left alone while it is out.
        let at = self.pages_at.load(Ordering::Relaxed);
        if at == NO_PAGES {
            return None;
        }
        // SAFETY: null, or from `Arc::into_raw` in `enter`. The caller holds a handle, so the entry is out and keeps
        // its count of the `Arc` for as long as this borrow.
        let mapped = unsafe { self.mapped.load(Ordering::Relaxed).as_ref() }?;
        Some((mapped, at))
    }

    /// Says of a device's memory where its bytes start in the segment, and when they are there. For the owner, before
    /// the handle is shown to others.
    pub(super) fn put_on_device(&self, offset: u64, stamp: u64, times: Arc<MappedSegment>) {
        self.offset.store(offset, Ordering::Relaxed);
        self.stamp.store(stamp, Ordering::Relaxed);
        let times = Arc::into_raw(times).cast_mut();
        self.times.store(times, Ordering::Relaxed);
    }

    /// Of a device's memory: the segment, where in it the bytes start, the stamp, and the times that it speaks of.
    pub(super) fn on_device(&self) -> Option<(&MappedSegment, u64, u64, &MappedSegment)> {
        // SAFETY: null, or from `Arc::into_raw` in `put_on_device`. The caller holds a handle, so the entry is out and
        // keeps its count for as long as this borrow.
        let times = unsafe { self.times.load(Ordering::Relaxed).as_ref() }?;
        // SAFETY: as above, and from `enter`.
        let mapped = unsafe { self.mapped.load(Ordering::Relaxed).as_ref() }?;
        let (offset, stamp) = (&self.offset, &self.stamp);
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Some((mapped, read(offset), read(stamp), times))
    }

    /// Gives up the entry's count of its mapping. The caller has the entry alone: its owner with the entry at home, or
    /// the final drop.
    fn let_go(&self) {
        let mapped = self.mapped.swap(ptr::null_mut(), Ordering::Relaxed);
        if !mapped.is_null() {
            // SAFETY: it came from `Arc::into_raw` in `enter`, and the swap took it out: this count is given up once.
            drop(unsafe { Arc::from_raw(mapped) });
        }
        let times = self.times.swap(ptr::null_mut(), Ordering::Relaxed);
        if !times.is_null() {
            // SAFETY: as above, and from `put_on_device`.
            drop(unsafe { Arc::from_raw(times) });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.let_go();
    }
}

// SAFETY: `link` gives that field; the owner touches it only between taking the entry home and giving it out.
unsafe impl Linked for Lease {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

// SAFETY: both give their fields, the home being fixed at birth to the one whose estate the entry lies in.
unsafe impl Node for Lease {
    type Estate = Entries;

    fn handles(&self) -> &AtomicU32 {
        &self.handles
    }

    fn home(&self) -> NonNull<Home<Self>> {
        self.home
    }
}

// SAFETY: not automatic because of `home`, which is read only by the last handle, as `Node` demands; the mapping is
// `Send` and `Sync`, and its count may be given up on any thread.
unsafe impl Send for Lease {}

// SAFETY: as above; all that changes is atomic.
unsafe impl Sync for Lease {}

/// The entries in one allocation. Not a `Box`: handles point into it while it is moved, and a `Box` forbids that.
#[derive(Debug)]
pub(crate) struct Entries(NonNull<[Lease]>);

impl Entries {
    fn new(home: NonNull<Home<Lease>>, capacity: u32) -> Self {
        let entry = |_| Lease {
            handles: AtomicU32::new(0),
            link: AtomicPtr::new(ptr::null_mut()),
            home,
            mapped: AtomicPtr::new(ptr::null_mut()),
            token: [AtomicU64::new(0), AtomicU64::new(0)],
            pages_at: AtomicU64::new(NO_PAGES),
            times: AtomicPtr::new(ptr::null_mut()),
            stamp: AtomicU64::new(0),
            offset: AtomicU64::new(0),
        };
        let entries: Box<[Lease]> = (0..capacity).map(entry).collect();
        Self(NonNull::from(Box::leak(entries)))
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::leak` in `new` and is dropped once, with the estate: when neither the owner nor a
        // handle is left.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: not automatic because of the pointer, which owns its entries as a `Box` would; `Lease` is `Send` and `Sync`.
unsafe impl Send for Entries {}
