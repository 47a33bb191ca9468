//! Spans: runs of pages cut into small blocks of one size, and their headers.
//!
//! Knows nothing of segments or limits: `pool.rs` finds the pages and says where they lie.
//!
//! Each class keeps a list of its spans that have a free block; each span keeps its free blocks on a list of their
//! own, last in first out, so that a block that is still in the cache goes out next. A span whose blocks are all home
//! keeps its pages until another span lacks pages; then it becomes dormant: the pages go back, the headers stay for the
//! next span of the class, so that opening and closing spans in turn costs no heap.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use super::block::{Block, Place};
use super::classes::{self, CLASSES, size_of};
use super::pages::PAGE_BYTES;

/// No span.
const NONE: u32 = u32::MAX;

/// Every span of a pool.
#[derive(Debug)]
pub(crate) struct Spans {
    spans: Vec<Span>,
    classes: [Class; CLASSES],
    /// Spans with pages of which every block is home.
    idle: usize,
}

/// A class' spans: those with a free block, and those without pages.
#[derive(Clone, Copy, Debug)]
struct Class {
    partial: u32,
    dormant: u32,
}

#[derive(Debug)]
struct Span {
    headers: NonNull<[Block]>,
    /// Free blocks, linked through their headers.
    free: *mut Block,
    /// Blocks that are out.
    used: u32,
    /// Blocks it is cut into; none while it is dormant.
    count: u32,
    page: u32,
    class: usize,
    /// Neighbours among the class' spans with a free block; `next` also links the dormant ones.
    prev: u32,
    next: u32,
}

impl Spans {
    /// No spans.
    pub(crate) const fn new() -> Self {
        Self {
            spans: Vec::new(),
            classes: [Class {
                partial: NONE,
                dormant: NONE,
            }; CLASSES],
            idle: 0,
        }
    }

    /// A free block of `class`.
    #[inline]
    pub(crate) fn take(&mut self, class: usize) -> Option<NonNull<Block>> {
        let index = self.classes[class].partial;
        let span = self.spans.get_mut(index as usize)?;
        let block = NonNull::new(span.free)?;
        // SAFETY: headers live as long as the pool, whose owner's estate holds them; only shared references are made.
        span.free = unsafe { block.as_ref() }.next();
        if span.used == 0 {
            self.idle -= 1;
        }
        span.used += 1;
        if span.free.is_null() {
            self.unlink(index);
        }
        Some(block)
    }

    /// A block of a span is home.
    #[inline]
    pub(crate) fn give(&mut self, block: &Block) {
        let index = block.span();
        let span = &mut self.spans[index as usize];
        let was_full = span.free.is_null();
        block.set_next(span.free);
        span.free = ptr::from_ref(block).cast_mut();
        span.used -= 1;
        if span.used == 0 {
            self.idle += 1;
        }
        if was_full {
            self.link(index);
        }
    }

    /// Opens a span of `class` over `len` bytes at `start`. `headers` makes headers if no dormant span has some.
    pub(crate) fn open(
        &mut self,
        class: usize,
        start: Place,
        len: usize,
        headers: impl FnOnce(usize) -> NonNull<[Block]>,
    ) {
        let index = self.wake(class, headers);
        let span = &mut self.spans[index as usize];
        span.page = start.page;
        span.count = (len / size_of(class)) as u32;
        debug_assert!(
            span.count > 0 && span.count as usize <= span.headers.len(),
            "a span has a block and headers"
        );
        // SAFETY: headers live as long as the pool; shared references are all that is ever made to them.
        let blocks = unsafe { span.headers.as_ref() };
        // From the last to the first, so that the first goes out first.
        for (at, block) in blocks.iter().enumerate().take(span.count as usize).rev() {
            let by = at * size_of(class);
            let size = size_of(class) as u64;
            let base = start.base.wrapping_add(by);
            block.settle(Place {
                base,
                offset: start.offset + by as u64,
                size,
                span: index,
                ..start
            });
            block.set_next(span.free);
            span.free = ptr::from_ref(block).cast_mut();
        }
        self.idle += 1;
        self.link(index);
    }

    /// Makes every idle span dormant; `release` gets the first page of each.
    pub(crate) fn close_idle(&mut self, mut release: impl FnMut(u32)) {
        if self.idle == 0 {
            return;
        }
        for index in 0..self.spans.len() as u32 {
            let span = &self.spans[index as usize];
            if span.count == 0 || span.used != 0 {
                continue;
            }
            self.unlink(index);
            let span = &mut self.spans[index as usize];
            span.free = ptr::null_mut();
            span.count = 0;
            span.next = self.classes[span.class].dormant;
            self.classes[span.class].dormant = index;
            release(span.page);
        }
        self.idle = 0;
    }

    /// A span without pages: a dormant one of the class, or a new one.
    fn wake(&mut self, class: usize, headers: impl FnOnce(usize) -> NonNull<[Block]>) -> u32 {
        let index = self.classes[class].dormant;
        if index != NONE {
            self.classes[class].dormant = self.spans[index as usize].next;
            return index;
        }
        let headers = headers(pages_of(class) as usize * PAGE_BYTES / size_of(class));
        let (free, page) = (ptr::null_mut(), 0);
        self.spans.push(Span {
            headers,
            free,
            used: 0,
            count: 0,
            page,
            class,
            prev: NONE,
            next: NONE,
        });
        (self.spans.len() - 1) as u32
    }

    fn link(&mut self, index: u32) {
        let class = self.spans[index as usize].class;
        let head = self.classes[class].partial;
        if head != NONE {
            self.spans[head as usize].prev = index;
        }
        let span = &mut self.spans[index as usize];
        span.prev = NONE;
        span.next = head;
        self.classes[class].partial = index;
    }

    fn unlink(&mut self, index: u32) {
        let Span {
            prev, next, class, ..
        } = self.spans[index as usize];
        if next != NONE {
            self.spans[next as usize].prev = prev;
        }
        if prev == NONE {
            self.classes[class].partial = next;
        } else {
            self.spans[prev as usize].next = next;
        }
    }
}

// SAFETY: not automatic because of the pointers to headers, which live in the same pool's estate and move with it.
unsafe impl Send for Spans {}

/// Pages of a usual span of `class`: 64 KiB, and eight blocks at least, so that opening one pays for many blocks.
pub(crate) const fn pages_of(class: usize) -> u32 {
    let bytes = 8 * classes::size_of(class);
    let bytes = if bytes < 64 << 10 { 64 << 10 } else { bytes };
    (bytes.div_ceil(PAGE_BYTES)) as u32
}

/// Pages of the smallest span of `class`: one block.
pub(crate) const fn pages_min(class: usize) -> u32 {
    classes::size_of(class).div_ceil(PAGE_BYTES) as u32
}
