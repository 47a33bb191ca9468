//! Times: when the bytes of a device's blocks are there, told in memory that devices, processes and peers all see.
//!
//! Knows words and tickets, and no kind of device. Each segment of a device's arena has such a file beside it, which
//! peers map as they map any segment of the host's, under the arena number that follows the device's
//! ([`Times::arena_of`]):
//!
//! ```text
//!   ┌──────── words, pinned ────────┬──────── stamps: one for each 64 bytes of the device's segment ─────────┐
//!   │ 4096 × u64, a stream writes   │ u64 at (offset of the block ÷ 64): slot << 48 │ ticket, or 0 for ready │
//!   └───────────────────────────────┴────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Who makes a tensor of work that is only queued takes a slot, has the stream write a ticket into its word behind that
//! work, and puts both into the block's stamp before the tensor is sent. A thread that sees the word
//! reach the ticket knows that the bytes are there: one load, in any process, and no call of the driver. Tickets only
//! grow, so a word that was used again says "over" of its earlier uses. A slot is free again when its ticket was
//! reached: a write that is still queued never meets a later one.
//!
//! The last word is no slot: the owner's host writes all ones there when its device has failed. What is not over then
//! never will be, and who looks sees that as it sees the rest, in any process ([`Times::lose`]).
//!
//! What a peer reads here is the owner's word: a claim like the bytes themselves. One that lies makes its reader read
//! bytes too early, or wait until the owner is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;

use super::pinned::Pinned;
use super::stream::Stream;
use super::{Accelerator, DeviceEvent, MappedSegment, MemoryError, Segment};
use crate::ground::limits::DEVICE_MARKS;

/// Looks at a mark before the driver is asked to wait: some hundred microseconds.
const LOOKS: u32 = 1 << 14;

/// Bytes of the words.
pub(super) const WORDS_BYTES: usize = DEVICE_MARKS * 8;
/// Blocks begin at multiples of this.
const UNIT: u64 = 64;
const SLOT_SHIFT: u32 = 48;
const TICKET_MASK: u64 = (1 << SLOT_SHIFT) - 1;
/// Marks that can be out at a time.
pub(super) const SLOTS: usize = DEVICE_MARKS - 1;
/// In the word behind the slots: the device has failed. No ticket is as great.
const LOST: u64 = u64::MAX;

/// The times of one segment of a device's arena.
#[derive(Debug)]
pub struct Times {
    pinned: Pinned,
    has_words: bool,
    free: ArrayQueue<u16>,
    ticket: AtomicU64,
}

impl Times {
    /// For a segment of `len` bytes of a device.
    ///
    /// # Errors
    /// As [`Pinned::new`].
    pub fn new(
        accelerator: &Arc<dyn Accelerator>,
        device: u32,
        index: u16,
        len: usize,
    ) -> Result<Self, MemoryError> {
        let has_words = accelerator
            .devices()
            .get(device as usize)
            .is_some_and(|info| info.has_words);
        let bytes = WORDS_BYTES + len.div_ceil(UNIT as usize) * 8;
        let bytes = bytes.next_multiple_of(super::pages::PAGE_BYTES);
        let pinned = Pinned::new(accelerator, device, index, bytes, WORDS_BYTES)?;
        let free = ArrayQueue::new(SLOTS);
        for slot in 0..SLOTS as u16 {
            // As many as there is room for.
            let _ = free.push(slot);
        }
        Ok(Self {
            pinned,
            has_words,
            free,
            ticket: AtomicU64::new(1),
        })
    }

    /// The number of the arena whose segments tell the times of a device's arena.
    #[must_use]
    pub const fn arena_of(arena: u16) -> u16 {
        arena ^ 1
    }

    /// The segment, to be shown to peers.
    #[must_use]
    pub const fn segment(&self) -> &Arc<Segment> {
        self.pinned.segment()
    }

    /// Bytes of it that are pinned.
    #[must_use]
    pub const fn pinned_bytes(&self) -> usize {
        self.pinned.len()
    }

    /// Marks that can be made now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// True if a stream has not come to some mark yet, or never will.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.free() < SLOTS
    }

    /// Says to this process and its peers that the device has failed: what is not over never will be.
    pub fn lose(&self) {
        self.pinned.put_word(SLOTS, LOST);
    }

    /// True if that was said.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let word = self.pinned.word(SLOTS);
        word.is_some_and(|word| word.load(Ordering::Acquire) == LOST)
    }

    /// A mark behind all that is queued on a stream. Where none can be made (the driver cannot, refuses to, or all are
    /// out) the stream is waited for instead, and `None` says that all of it is done.
    ///
    /// # Errors
    /// [`MemoryError::Driver`] if neither can be done: then nothing is known of the stream's work.
    pub fn mark(self: &Arc<Self>, stream: &Stream) -> Result<Option<Mark>, MemoryError> {
        if self.has_words
            && let Some(mark) = self.take()
        {
            // SAFETY of the word: it is pinned until this `Times` is dropped, which the mark keeps until it is over.
            if stream
                .write_word(self.word_at(mark.slot), mark.ticket)
                .is_ok()
            {
                return Ok(Some(mark));
            }
            // It is not known whether the word will still be written: behind the wait it will not, and the slot is
            // free again. Where the wait fails too the slot is used no more.
            stream.synchronize()?;
            mark.open();
            return Ok(None);
        }
        stream.synchronize().map(|()| None)
    }

    /// A mark that the host brings about, by [`Mark::open`], and one to be put behind a stream's wait for it
    /// ([`Mark::put_behind`]); `None` if all are out, or no stream could wait.
    pub(super) fn gate(self: &Arc<Self>) -> Option<(Mark, Mark)> {
        let gate = if self.has_words { self.take() } else { None }?;
        let passed = self.take();
        if passed.is_none() {
            gate.open();
        }
        passed.map(|passed| (gate, passed))
    }

    fn take(self: &Arc<Self>) -> Option<Mark> {
        let slot = self.free.pop()?;
        // Relaxed: a number that none else gets.
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed) & TICKET_MASK;
        Some(Mark {
            times: Arc::clone(self),
            slot,
            ticket,
        })
    }

    /// Says in the stamp of the block at `offset` when its bytes are there.
    pub(super) fn stamp(&self, offset: u64, mark: Option<&Mark>) {
        let stamp = mark.map_or(0, |mark| u64::from(mark.slot) << SLOT_SHIFT | mark.ticket);
        self.pinned.put_word(stamp_index(offset), stamp);
    }

    /// Where a slot's word lies, for the device.
    pub(super) fn word_at(&self, slot: u16) -> u64 {
        self.pinned.at() + u64::from(slot) * 8
    }
}

const fn stamp_index(offset: u64) -> usize {
    WORDS_BYTES / 8 + (offset / UNIT) as usize
}

/// A place in the work of a stream: it is *over* when the stream has come there.
#[derive(Debug)]
pub struct Mark {
    times: Arc<Times>,
    slot: u16,
    ticket: u64,
}

impl Mark {
    /// Brings it about, from the host.
    pub(super) fn open(&self) {
        self.times
            .pinned
            .put_word(usize::from(self.slot), self.ticket);
    }

    /// Waits until the stream that it marks is there: by looks first, then by the driver, which also hears of a device
    /// that is gone, as no word ever would.
    pub(super) fn wait(&self, stream: &Stream) -> Result<(), MemoryError> {
        for _ in 0..LOOKS {
            if self.is_over() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        stream.synchronize()
    }

    /// Puts it behind all that is queued on a stream, and never waits. `None` if the driver refuses: the words stay
    /// registered until the process ends, for nothing tells when the stream is done with them.
    pub(super) fn put_behind(self, stream: &Stream) -> Option<Self> {
        let word = self.times.word_at(self.slot);
        if stream.write_word(word, self.ticket).is_ok() {
            return Some(self);
        }
        stream.accelerator().keep(1);
        std::mem::forget(Arc::clone(&self.times));
        None
    }

    /// Lets what is queued next on a stream of the same device wait for it.
    pub(super) fn hold_back(&self, stream: &Stream) -> Result<(), MemoryError> {
        stream.await_word(self.times.word_at(self.slot), self.ticket)
    }
}

impl DeviceEvent for Mark {
    fn is_over(&self) -> bool {
        let word = self.times.pinned.word(usize::from(self.slot));
        // Acquire: pairs with the device's write, before which all that it marks is visible.
        word.is_none_or(|word| word.load(Ordering::Acquire) >= self.ticket)
    }

    fn is_lost(&self) -> bool {
        self.times.is_lost()
    }

    fn handle(&self) -> u64 {
        self.times.word_at(self.slot)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A write that is still queued could meet a later one: the slot is lost rather than wrong.
        if self.is_over() {
            // There is room for every slot.
            let _ = self.times.free.push(self.slot);
        }
    }
}

/// What a peer's times say of one of its blocks: zero for bytes that are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stamp(pub(crate) u64);

impl Stamp {
    /// The stamp of the block at `offset` of the peer's segment; an invalid one is as one that is never over.
    pub(crate) fn read(times: &MappedSegment, offset: u64) -> Self {
        let word = times.word(stamp_index(offset));
        Self(word.map_or(u64::MAX, |word| word.load(Ordering::Acquire)))
    }

    /// False for one that names no word of the peer's: nothing would ever bring it about.
    pub(crate) const fn is_recorded(self) -> bool {
        self.0 == 0 || (self.0 >> SLOT_SHIFT) < DEVICE_MARKS as u64 && self.0 & TICKET_MASK != 0
    }

    /// True if the bytes are there, by the peer's word.
    pub(crate) fn is_over(self, times: &MappedSegment) -> bool {
        if self.0 == 0 {
            return true;
        }
        let slot = (self.0 >> SLOT_SHIFT) as usize;
        let word = times.word(slot).filter(|_| slot < DEVICE_MARKS);
        word.is_some_and(|word| word.load(Ordering::Acquire) >= self.0 & TICKET_MASK)
    }
    /// True if the peer says that its device has failed.
    pub(crate) fn is_lost(times: &MappedSegment) -> bool {
        let word = times.word(SLOTS);
        word.is_some_and(|word| word.load(Ordering::Acquire) == LOST)
    }
}
