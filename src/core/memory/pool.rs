//! A pool: one arena and its allocator, in the hands of one owner.
//!
//! Knows nothing of the holders of its blocks. It never looks into the memory it gives out, and trusts nothing there.
//!
//! Small blocks (to 64 KiB) come from spans of one size (`spans.rs`); larger ones are runs of pages (`pages.rs`),
//! cut to the page. What was dropped comes home through the return list (`home.rs`): at every [`Pool::reclaim`], and
//! by itself when a free list runs dry. Only then does the arena grow, by a segment at a time, up to `bytes_max`.
//! A block lies in one segment, and segments stay, with every page that was touched (`memfd.rs`): half of `bytes_max`
//! is left to one, the last, so that however long the blocks before were, one of half of the arena fits when nothing is
//! in use.
//!
//! Blocks may outlive the pool: segments and headers stay until the last handle is gone.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::account::Account;
use super::arena::HostSegment;
use super::block::{Block, Estate, LARGE, Place};
use super::classes::{SMALL_MAX, class_of};
use super::home::{Handle, Owner};
use super::pages::{PAGE_BYTES, PageIndex, Pages};
use super::spans::{Spans, pages_min, pages_of};
use super::{
    Arena, ArenaConfig, ArenaId, ArenaSegment, Buffer, DeviceBlock, DevicePtr, House,
    HugePagesReport, INLINE_MAX, Memfd, MemoryError, PoolStats, Tensor, TensorBuilder, TensorError,
    tensor,
};
use crate::ground::{Region, TensorMeta, limits};

/// The most segments of an arena: what a region's segment number can say.
pub const SEGMENTS_MAX: usize = 1 << 16;
/// Headers of large blocks made at a time: 16 KiB of them.
const HEADERS: usize = 256;

/// An arena and its allocator. Owned by one shard; may move between threads, but is never shared.
#[derive(Debug)]
pub struct Pool<A: Arena = Memfd> {
    owner: Owner<Block>,
    house: House,
    arena: A,
    id: ArenaId,
    config: ArenaConfig,
    /// The estate keeps them too, for blocks that outlive the pool.
    segments: Vec<Arc<A::Segment>>,
    pages: Pages,
    /// The first page of each segment.
    firsts: Vec<PageIndex>,
    spans: Spans,
    /// Headers of large blocks that stand for none now.
    spare: *mut Block,
    generation: u32,
    account: Account,
}

impl<A: Arena> Pool<A> {
    /// A pool of an arena's memory with its first segment.
    ///
    /// # Errors
    /// [`MemoryError::Unfit`] if `bytes_max` holds not even a page; others from the arena.
    pub fn over(
        house: House,
        arena: A,
        id: ArenaId,
        config: ArenaConfig,
    ) -> Result<Self, MemoryError> {
        let owner = Owner::new(house.mark(), |_| Ok::<_, MemoryError>(Estate::default()))?;
        let mut pool = Self {
            owner,
            house,
            arena,
            id,
            config,
            segments: Vec::new(),
            pages: Pages::new(),
            firsts: Vec::new(),
            spans: Spans::new(),
            spare: ptr::null_mut(),
            generation: 0,
            account: Account::default(),
        };
        pool.check_fits(1)?;
        pool.grow(1)?;
        Ok(pool)
    }

    /// The engine it belongs to.
    #[must_use]
    pub const fn house(&self) -> House {
        self.house
    }

    /// Memory of a device's arena for a tensor of `len` bytes.
    ///
    /// # Errors
    /// As [`Pool::buffer`].
    pub fn device_block(&mut self, len: usize) -> Result<DeviceBlock, MemoryError> {
        let block = self.block(len)?;
        // SAFETY: `block` took it from a free list, or made it, just now.
        let handle = unsafe { self.give_out(block) };
        let at = usize::from(handle.node().region(len).segment);
        let place = DevicePtr {
            kind: self.segments[at].kind(),
            device: self.segments[at].device(),
            address: handle.node().base().addr() as u64,
            size: len as u64,
        };
        Ok(DeviceBlock::new(place, handle))
    }

    /// A block of `len` bytes or more, which is at home.
    #[inline(always)]
    fn block(&mut self, len: usize) -> Result<NonNull<Block>, MemoryError> {
        if len > SMALL_MAX {
            return self.large(len);
        }
        let class = class_of(len);
        match self.spans.take(class) {
            Some(block) => Ok(block),
            None => self.refill(class),
        }
    }

    /// The handle to a block that is at home.
    ///
    /// # Safety
    /// The block is this pool's and came off a free list just now: no handle to it exists, and it lies on no list.
    #[inline]
    unsafe fn give_out(&mut self, block: NonNull<Block>) -> Handle<Block> {
        self.generation = self.generation.wrapping_add(1);
        // SAFETY: the header lies in the owner's estate, which outlives this call.
        let header = unsafe { block.as_ref() };
        header.begin(self.generation);
        self.account.give_out(header.size());
        // SAFETY: the header lives, belongs to this pool's home and is at home, as the caller vouches.
        unsafe { self.owner.give_out(block) }
    }
}

impl<A: Arena<Segment: HostSegment>> Pool<A> {
    /// A buffer of `len` bytes, 64-byte aligned, with whatever content.
    ///
    /// # Errors
    /// [`MemoryError::Full`] if there is no room now, [`MemoryError::Unfit`] if there never is;
    /// [`MemoryError::System`] and [`MemoryError::Map`] if the arena had to grow and could not.
    #[inline(always)]
    pub fn buffer(&mut self, len: usize) -> Result<Buffer, MemoryError> {
        let block = self.block(len)?;
        // SAFETY: `block` took it from a free list, or made it, just now.
        let handle = unsafe { self.give_out(block) };
        Ok(Buffer::new(handle, len))
    }

    /// Room for a tensor, to be written in place. Up to [`INLINE_MAX`] bytes lie in the handle and take no block.
    ///
    /// # Errors
    /// As [`Pool::buffer`]; [`MemoryError::Tensor`] if `meta` is of strings or of no possible size.
    #[inline]
    pub fn builder(&mut self, meta: TensorMeta) -> Result<TensorBuilder, MemoryError> {
        let len = tensor::byte_len(meta)?.ok_or(TensorError::Strings)? as usize;
        if len <= INLINE_MAX {
            return Ok(TensorBuilder::inline(meta, len));
        }
        Ok(TensorBuilder::on(meta, self.buffer(len)?))
    }

    /// As [`Pool::builder`], for a tensor whose bytes own whole pages: it begins a page, no other block lies in its
    /// pages, and behind its end they are zero. Its receivers may map them to themselves ([`Tensor::map_private`]). It
    /// takes a page at least, and on reserved huge pages a huge one.
    ///
    /// # Errors
    /// As [`Pool::builder`].
    pub fn paged_builder(&mut self, meta: TensorMeta) -> Result<TensorBuilder, MemoryError> {
        let len = tensor::byte_len(meta)?.ok_or(TensorError::Strings)? as usize;
        if len == 0 {
            return Ok(TensorBuilder::inline(meta, len));
        }
        let block = self.paged(len)?;
        // SAFETY: `paged` made it just now.
        let handle = unsafe { self.give_out(block) };
        Ok(TensorBuilder::on(meta, Buffer::new(handle, len)))
    }

    /// A tensor with a copy of `bytes`, as they come from a frame.
    ///
    /// # Errors
    /// As [`Pool::buffer`]; [`MemoryError::Tensor`] if `bytes` are not as many as `meta` takes.
    #[inline]
    pub fn tensor_from(&mut self, meta: TensorMeta, bytes: &[u8]) -> Result<Tensor, MemoryError> {
        tensor::check_len(meta, bytes.len())?;
        if bytes.len() <= INLINE_MAX {
            return Ok(Tensor::of_inline(meta, bytes));
        }
        Ok(self.buffer_of(bytes)?.finish(meta))
    }

    /// A block with a copy of `bytes`.
    ///
    /// # Errors
    /// As [`Pool::buffer`].
    #[inline(always)]
    pub(crate) fn buffer_of(&mut self, bytes: &[u8]) -> Result<Buffer, MemoryError> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// A block that owns whole pages of its segment, zero behind its first `len` bytes.
    fn paged(&mut self, len: usize) -> Result<NonNull<Block>, MemoryError> {
        self.reclaim();
        let mut step = 1;
        loop {
            let count = self.pages_for(len, step)?;
            let run = count + step - 1;
            self.check_fits(run)?;
            let first = self
                .find_pages(run)
                .inspect_err(|_| self.account.refused += 1)?;
            let at = self.segment_of(first);
            let Some(file) = self.segments[at].paged() else {
                self.pages.give(first);
                return Err(MemoryError::Unpaged);
            };
            let (page_bytes, paged) = (file.page_bytes, ptr::from_ref(file));
            let needed = u32::try_from(page_bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
            if needed > step {
                // The segment is one of larger pages: there the run must begin where they do. Grows every time.
                self.pages.give(first);
                step = needed;
                continue;
            }
            let skip = (first - self.firsts[at]).next_multiple_of(step) - (first - self.firsts[at]);
            let page = self.pages.cut(first, skip, count);
            let place = self.place_of(page, u64::from(count) * PAGE_BYTES as u64);
            let padding = if mutant!("padding_shown") {
                0
            } else {
                len.next_multiple_of(page_bytes) - len
            };
            // SAFETY: the block is at home and no handle to it exists. It lies in its segment's mapping, which is
            // writable (`HostSegment`), and is whole pages long: `padding` bytes behind its first `len` are its own.
            unsafe { place.base.wrapping_add(len).write_bytes(0, padding) };
            return Ok(self.settle_large(Place { paged, ..place }));
        }
    }
}

impl<A: Arena> Pool<A> {
    /// Takes home every block whose last handle was dropped, on whatever thread, and tells how many.
    #[inline]
    pub fn reclaim(&mut self) -> usize {
        let mut count = 0;
        for block in self.owner.take_all() {
            // SAFETY: the header lies in the owner's estate, which outlives this call.
            let block = unsafe { block.as_ref() };
            self.owner.took_home();
            self.account.take_home(block.size());
            if block.span() == LARGE {
                self.free_large(block);
            } else {
                self.spans.give(block);
            }
            count += 1;
        }
        count
    }

    /// The arena's number.
    #[must_use]
    pub const fn id(&self) -> ArenaId {
        self.id
    }

    /// Every segment, by its number; more may come as the arena grows.
    #[must_use]
    pub fn segments(&self) -> &[Arc<A::Segment>] {
        &self.segments
    }

    /// The account.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let segments = self.segments();
        PoolStats {
            blocks: self.owner.out() as u64,
            in_use_bytes: self.account.in_use,
            peak_bytes: self.account.peak,
            free_bytes: self.account.mapped - self.account.in_use,
            mapped_bytes: self.account.mapped,
            limit_bytes: self.config.bytes_max,
            segments: segments.len() as u32,
            refused: self.account.refused,
            huge_pages: segments
                .last()
                .map_or(HugePagesReport::Off, |segment| segment.huge_pages()),
        }
    }

    /// A block of a class whose free lists are dry.
    #[cold]
    fn refill(&mut self, class: usize) -> Result<NonNull<Block>, MemoryError> {
        if self.reclaim() > 0
            && let Some(block) = self.spans.take(class)
        {
            return Ok(block);
        }
        self.check_fits(pages_min(class))?;
        // When the arena is nearly full, a span of a single block still serves.
        let (count, page) = match self.find_pages(pages_of(class)) {
            Ok(page) => (pages_of(class), page),
            Err(_) => (
                pages_min(class),
                self.find_pages(pages_min(class))
                    .inspect_err(|_| self.account.refused += 1)?,
            ),
        };
        let place = self.place_of(page, 0);
        let (home, arena) = (self.owner.home(), self.id.0);
        let estate = self.owner.estate_mut();
        let len = count as usize * PAGE_BYTES;
        self.spans.open(class, place, len, |count| {
            estate.headers(home, arena, count)
        });
        Ok(self
            .spans
            .take(class)
            .expect("a span just opened has a free block"))
    }

    /// A block of a run of pages. By itself, so that the way of small blocks is short; `free_large` too.
    #[inline(never)]
    fn large(&mut self, len: usize) -> Result<NonNull<Block>, MemoryError> {
        let count = self.pages_for(len, 1)?;
        // First what came home: the pages written last are the ones that caches still hold.
        self.reclaim();
        self.check_fits(count)?;
        let page = self
            .find_pages(count)
            .inspect_err(|_| self.account.refused += 1)?;
        let place = self.place_of(page, u64::from(count) * PAGE_BYTES as u64);
        Ok(self.settle_large(place))
    }

    /// Pages for `len` bytes, in multiples of `step`.
    fn pages_for(&self, len: usize, step: u32) -> Result<u32, MemoryError> {
        let count = u32::try_from(len.div_ceil(PAGE_BYTES)).ok();
        let count = count.and_then(|count| count.checked_next_multiple_of(step));
        // Room for the pages before it, too.
        let count = count.filter(|count| count.checked_add(step).is_some());
        count.ok_or(MemoryError::Unfit {
            asked: len as u64,
            limit: self.config.bytes_max,
        })
    }

    fn settle_large(&mut self, place: Place) -> NonNull<Block> {
        let block = self.spare_header();
        // SAFETY: the header lies in the owner's estate, which outlives this call.
        unsafe { block.as_ref() }.settle(place);
        block
    }

    #[inline(never)]
    fn free_large(&mut self, block: &Block) {
        let Region {
            segment, offset, ..
        } = block.region(0);
        let page = self.firsts[usize::from(segment)] + (offset as usize / PAGE_BYTES) as PageIndex;
        self.pages.give(page);
        block.set_next(self.spare);
        self.spare = ptr::from_ref(block).cast_mut();
    }

    /// A header that stands for no block.
    fn spare_header(&mut self) -> NonNull<Block> {
        if self.spare.is_null() {
            let home = self.owner.home();
            let headers = self.owner.estate_mut().headers(home, self.id.0, HEADERS);
            // SAFETY: headers just made in the owner's estate, which outlives this call.
            for block in unsafe { headers.as_ref() } {
                block.set_next(self.spare);
                self.spare = ptr::from_ref(block).cast_mut();
            }
        }
        let block = NonNull::new(self.spare).expect("headers were just made if there were none");
        // SAFETY: the header lies in the owner's estate, which outlives this call.
        self.spare = unsafe { block.as_ref() }.next();
        block
    }

    /// A run of pages: a free one, one that idle spans give back, or one of a new segment.
    fn find_pages(&mut self, count: u32) -> Result<PageIndex, MemoryError> {
        if let Some(page) = self.pages.take(count) {
            return Ok(page);
        }
        let Self { spans, pages, .. } = self;
        spans.close_idle(|page| {
            pages.give(page);
        });
        if let Some(page) = self.pages.take(count) {
            return Ok(page);
        }
        self.grow(count)?;
        self.pages.take(count).ok_or_else(|| self.full(count))
    }

    /// Adds a segment in which `count` pages fit.
    #[cold]
    fn grow(&mut self, count: u32) -> Result<(), MemoryError> {
        let needed = u64::from(count) * PAGE_BYTES as u64;
        let room = self.room();
        if needed > room {
            return Err(self.full(count));
        }
        let index = u16::try_from(self.firsts.len());
        let index = index.map_err(|_| MemoryError::Segments {
            limit: SEGMENTS_MAX as u32,
        })?;
        let usual = (self.config.segment_bytes as u64).next_multiple_of(PAGE_BYTES as u64);
        let least = usual.max(needed).min(room);
        // Past half of `bytes_max` it is the last, of all that is left. Peers take none longer than a terabyte.
        let is_last = self.account.mapped + least > self.config.bytes_max / 2;
        let left = room.min(limits::SEGMENT_BYTES_MAX);
        // Peers take so many segments and no more: the longer an arena grows, the longer they are.
        let longer = match usize::from(index) < limits::ARENA_USUAL_SEGMENTS {
            true => least,
            false => least.max((self.account.mapped / 4).next_multiple_of(PAGE_BYTES as u64)),
        };
        let len = if is_last {
            left.max(least)
        } else {
            longer.min(room)
        };
        let mut segment = self.arena.allocate(index, len as usize, room);
        // The system, or the device, may have less.
        if segment.is_err() && len > least {
            segment = self.arena.allocate(index, least as usize, room);
        }
        let mut shorter = least;
        while segment.as_ref().is_err_and(MemoryError::is_of_room) && shorter > needed {
            shorter = (shorter / 2)
                .max(needed)
                .next_multiple_of(PAGE_BYTES as u64);
            segment = self.arena.allocate(index, shorter as usize, room);
        }
        let segment = segment?;
        let size = segment.size();
        let pages = u32::try_from(size / PAGE_BYTES).ok();
        let first = pages.and_then(|pages| self.pages.add(pages));
        let first = first.ok_or(MemoryError::Unfit {
            asked: needed,
            limit: self.config.bytes_max,
        })?;
        self.account.mapped += size as u64;
        self.firsts.push(first);
        let segment = Arc::new(segment);
        self.segments.push(Arc::clone(&segment));
        self.owner.estate_mut().segments.push(segment);
        Ok(())
    }

    /// What it may still grow by.
    const fn room(&self) -> u64 {
        (self.config.bytes_max - self.account.mapped) / PAGE_BYTES as u64 * PAGE_BYTES as u64
    }

    /// Refuses what an empty arena could not hold either.
    fn check_fits(&self, pages: u32) -> Result<(), MemoryError> {
        let asked = u64::from(pages) * PAGE_BYTES as u64;
        if asked > self.config.bytes_max {
            return Err(MemoryError::Unfit {
                asked,
                limit: self.config.bytes_max,
            });
        }
        Ok(())
    }

    #[cold]
    fn full(&self, pages: u32) -> MemoryError {
        let free = u64::from(self.pages.longest()) * PAGE_BYTES as u64;
        MemoryError::Full {
            asked: u64::from(pages) * PAGE_BYTES as u64,
            in_use: self.account.in_use,
            longest: free.max(self.room()),
            limit: self.config.bytes_max,
        }
    }

    /// The place of a large block of `size` bytes that starts at `page`.
    fn place_of(&self, page: PageIndex, size: u64) -> Place {
        let index = self.segment_of(page);
        let offset = (page - self.firsts[index]) as usize * PAGE_BYTES;
        let segment = &self.segments()[index];
        debug_assert!(
            offset as u64 + size <= segment.size() as u64,
            "pages lie in their segment"
        );
        let base = segment.base().wrapping_add(offset);
        Place {
            base,
            offset: offset as u64,
            size,
            // Numbers of segments are as many (`grow`).
            segment: index as u16,
            span: LARGE,
            page,
            paged: ptr::null(),
        }
    }

    /// The segment that `page` lies in.
    fn segment_of(&self, page: PageIndex) -> usize {
        self.firsts.partition_point(|&first| first <= page) - 1
    }
}

// SAFETY: not automatic because of the pointer to headers (`spare`). They lie in the estate of `owner`,
// which moves with the pool; handles elsewhere touch only their atomics. An arena is `Send`, and segments are shared.
unsafe impl<A: Arena> Send for Pool<A> {}

#[cfg(test)]
mod tests;
