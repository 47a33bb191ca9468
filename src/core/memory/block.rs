//! Block headers: the private record of each stretch of an arena that can be given out.
//!
//! Knows nothing of how blocks are chosen (`pool.rs`) nor of what lies in them (`buffer.rs`, `tensor.rs`).
//!
//! Headers lie in this process' own heap, never in the arena: what other processes can map holds nothing that we
//! rely on. A header stays where it is until the home is freed; the block it stands for may change, but only while it
//! is at home. Its fields are atomics only so that the owner can write them through a shared reference: every access
//! but those of `handles` and `link` is relaxed, a plain load or store, and ordered by the hand-over of the handle.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::arena::{ArenaSegment, House, PagedFile};
use super::home::{Home, Node};
use super::returns::Linked;
use crate::ground::{MemoryKind, Region};
use crate::sync::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A header. One cache line, so that handles of neighbouring blocks, dropped on other cores, do not meet in it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    handles: AtomicU32,
    generation: AtomicU32,
    /// The next header: of the return list while it comes home, of a free list of the owner's while it is there.
    link: AtomicPtr<Self>,
    home: NonNull<Home<Self>>,
    base: AtomicPtr<u8>,
    offset: AtomicU64,
    size: AtomicU64,
    /// Its segment's file, if it owns whole pages of it; else null.
    paged: AtomicPtr<PagedFile>,
    /// The span it belongs to, or [`LARGE`].
    span: AtomicU32,
    segment: AtomicU16,
    arena: u16,
}

/// In place of a span: the block is a run of pages by itself.
pub(crate) const LARGE: u32 = u32::MAX;

const _: () = assert!(size_of::<Block>() == 64);

/// Where a block lies, as the owner tells its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) base: *mut u8,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) segment: u16,
    pub(crate) span: u32,
    pub(crate) page: u32,
    /// Its segment's file, which outlives it in the same estate, if no other block will share its pages; else null.
    pub(crate) paged: *const PagedFile,
}

impl Block {
    fn new(home: NonNull<Home<Self>>, arena: u16) -> Self {
        Self {
            handles: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            link: AtomicPtr::new(ptr::null_mut()),
            home,
            base: AtomicPtr::new(ptr::null_mut()),
            offset: AtomicU64::new(0),
            size: AtomicU64::new(0),
            paged: AtomicPtr::new(ptr::null_mut()),
            span: AtomicU32::new(LARGE),
            segment: AtomicU16::new(0),
            arena,
        }
    }

    /// Binds the header to a place. For the owner, while the block is at home.
    pub(crate) fn settle(&self, place: Place) {
        self.base.store(place.base, Ordering::Relaxed);
        self.offset.store(place.offset, Ordering::Relaxed);
        self.size.store(place.size, Ordering::Relaxed);
        self.paged.store(place.paged.cast_mut(), Ordering::Relaxed);
        self.segment.store(place.segment, Ordering::Relaxed);
        self.span.store(place.span, Ordering::Relaxed);
    }

    /// Begins a new generation. For the owner, when it gives the block out.
    #[inline]
    pub(crate) fn begin(&self, generation: u32) {
        self.generation.store(generation, Ordering::Relaxed);
    }

    /// Sets the next header of the owner's free list. For the owner, while the block is at home.
    #[inline]
    pub(crate) fn set_next(&self, next: *mut Self) {
        self.link.store(next, Ordering::Relaxed);
    }

    /// The next header of the owner's free list.
    #[inline]
    pub(crate) fn next(&self) -> *mut Self {
        self.link.load(Ordering::Relaxed)
    }

    /// Where its bytes start.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.load(Ordering::Relaxed)
    }

    /// Its bytes.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Its span, or [`LARGE`].
    #[inline]
    pub(crate) fn span(&self) -> u32 {
        self.span.load(Ordering::Relaxed)
    }

    /// Its segment's file, and where in it its pages start, if it owns them.
    pub(crate) fn pages(&self) -> Option<(&PagedFile, u64)> {
        // SAFETY: null, or the file of a segment of the estate that this header lies in (`Place::paged`), which drops
        // none before the header, and only shares them.
        let file = unsafe { self.paged.load(Ordering::Relaxed).as_ref() }?;
        Some((file, self.offset.load(Ordering::Relaxed)))
    }

    /// The engine that its arena belongs to.
    pub(crate) fn house(&self) -> House {
        // SAFETY: a home is freed after the last of its nodes has come home, and with it this header; so it is live as
        // long as the header is. It is only shared, and what is read of it never changes.
        House::of(unsafe { self.home.as_ref() }.mark())
    }

    /// Its first `len` bytes as others name them.
    pub(crate) fn region(&self, len: usize) -> Region {
        Region {
            arena: self.arena,
            segment: self.segment.load(Ordering::Relaxed),
            generation: self.generation.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            len: len as u64,
            kind: MemoryKind::Host,
            owns_pages: !self.paged.load(Ordering::Relaxed).is_null(),
        }
    }
}

// SAFETY: `link` gives that field; the owner touches it only between taking the block home and giving it out.
unsafe impl Linked for Block {
    #[inline]
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

// SAFETY: both give their fields, the home being fixed at birth to the one whose owner made the header. The header lies
// in a `Slab` of that owner's estate, which never removes one, and is freed with the home.
unsafe impl Node for Block {
    type Estate = Estate;

    #[inline]
    fn handles(&self) -> &AtomicU32 {
        &self.handles
    }

    #[inline]
    fn home(&self) -> NonNull<Home<Self>> {
        self.home
    }
}

// SAFETY: not automatic because of `home`, which is read only by the last handle, as `Node` demands.
unsafe impl Send for Block {}

// SAFETY: as above; all that changes is atomic.
unsafe impl Sync for Block {}

/// What an arena's blocks need for as long as one of them is out: their memory and their headers.
#[derive(Debug, Default)]
pub(crate) struct Estate {
    pub(crate) segments: Vec<Arc<dyn ArenaSegment>>,
    slabs: Vec<Slab>,
}

impl Estate {
    /// New headers, which stay where they are as long as the estate lives.
    pub(crate) fn headers(
        &mut self,
        home: NonNull<Home<Block>>,
        arena: u16,
        count: usize,
    ) -> NonNull<[Block]> {
        let blocks: Box<[Block]> = (0..count).map(|_| Block::new(home, arena)).collect();
        let slab = Slab(NonNull::from(Box::leak(blocks)));
        let blocks = slab.0;
        self.slabs.push(slab);
        blocks
    }
}

/// Headers in one allocation. Not a `Box`: handles point into it while it is moved, and a `Box` forbids that.
#[derive(Debug)]
struct Slab(NonNull<[Block]>);

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::leak` in `headers` and is dropped once, with its estate: when neither the owner
        // nor a handle is left.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: not automatic because of the pointer, which owns its blocks as a `Box` would; `Block` is `Send` and `Sync`.
unsafe impl Send for Slab {}
