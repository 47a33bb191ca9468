//! The frame ring: one producer, one consumer, one cache line per small message, no index bouncing between them.
//!
//! Knows frames and bytes only: not which peer it is, where the memory came from, nor what a frame means. The memory is
//! behind [`RingMemory`], so that loom checks this very code over its own memory (`tests/loom_rings.rs`).
//!
//! ```text
//!            position p ──► slot p mod N, two lines each                   the consumer's line, written rarely
//!  frames    │ p-1 │  p  │ p+1 │ ...                                       │ slots done │ payload done │
//!              ▲     └ word 0, low half: the stamp p+1; stored last (Release), looked at alone (Acquire)
//!              └ consumed; holds an old stamp until the producer comes round
//!
//!  payload   │ piece │ piece │   skipped   │      what a body has over 80 bytes; pieces start on lines, never wrap
//! ```
//!
//! * A slot is full when its stamp says so. Zeroed memory is never full, and a slot of the lap before holds the stamp
//!   N less. So a consumer that waits reads one line, and a producer with room reads none that the consumer writes.
//! * The first 16 bytes of a body lie in the frame's tail, the next 64 beside the frame in the slot, and the rest in
//!   the payload ring: so 64 bytes of elements with their one dimension take two cache lines, and move no cursor. None
//!   of these places is ever looked at for a stamp.
//! * Where a body lies is not said: both ends compute the same cursor from the same lengths. A length is an
//!   allegation, checked against the ring's bound before it moves the cursor. A producer that lies about lengths puts
//!   its own bodies out of place; it cannot make the consumer read outside the payload ring.
//! * The consumer tells its progress every quarter ring, or when asked to ([`RingConsumer::settle`], called when it
//!   went idle). The producer looks at it only when its last view says "full".
//!
//! After the single-producer queues of Lamport ("Specifying concurrent program modules", 1983) and FastForward
//! (Giacomoni et al., PPoPP 2008: full and empty are told by the slot, not by shared indices).
#![allow(unsafe_code)]

use crate::wire::frame::{FRAME_WORDS, Frame, INLINE_BODY_MAX};

/// Pieces of the payload ring start and end on cache lines, so that two bodies never share one.
pub const PIECE_ALIGN: u64 = 64;

/// Bytes of a body that lie in its slot, beside the frame.
pub const SIDE: usize = 64;

/// The longest piece of the payload ring whose lines are asked for ahead: more of them at once gained nothing.
const OWNED_MAX: u64 = 512;

/// The longest body that lies in its slot, and takes nothing of the payload ring.
const IN_SLOT_MAX: usize = INLINE_BODY_MAX + SIDE;

/// The frame's word 0 without the stamp.
const STAMP_MASK: u64 = 0xffff_ffff;

/// How far a consumer has come: everything before these positions may be overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingProgress {
    /// Slots consumed since the ring began.
    pub slots: u64,
    /// The payload cursor: bytes consumed or skipped since the ring began.
    pub payload: u64,
}

/// One direction's memory: slots, payload ring and the consumer's line, shared by both ends.
///
/// The memory starts zeroed. Words are accessed atomically; payload bytes are plain, and the ring guarantees that
/// a piece has one user at a time as long as *both* ends run this code. What a lane whose far end may be hostile does
/// about that is the lane's to say (see `lane.rs`).
pub trait RingMemory {
    /// Slots: a power of two.
    fn slot_count(&self) -> u64;
    /// Bytes of the payload ring: a power of two, at least [`PIECE_ALIGN`].
    fn payload_len(&self) -> u64;
    /// Word 0 of a slot, Acquire. `slot` is below [`RingMemory::slot_count`].
    fn peek(&self, slot: u64) -> u64;
    /// Words 1 to 7 of a slot into `frame`, Relaxed.
    fn load(&self, slot: u64, frame: &mut Frame);
    /// Words 1 to 7 of `frame` into a slot, Relaxed.
    fn fill(&self, slot: u64, frame: &Frame);
    /// Word 0 of a slot, Release.
    fn publish(&self, slot: u64, word: u64);
    /// Fills and publishes a slot whose word 0 says `stale` now. A lane may write the line as a whole, stale stamp and
    /// all, before it publishes: the consumer polls this very line, and would take it away between single words.
    #[inline]
    fn put(&self, slot: u64, frame: &Frame, stale: u64, word: u64) {
        let _ = stale;
        self.fill(slot, frame);
        self.publish(slot, word);
    }
    /// The consumer's progress, Acquire. A claim.
    fn progress(&self) -> RingProgress;
    /// Tells the consumer's progress, Release.
    fn set_progress(&self, progress: RingProgress);
    /// Copies `bytes` into the second line of a slot, from its byte `at` on.
    ///
    /// # Safety
    /// `slot` is below [`RingMemory::slot_count`] and `at + bytes.len()` at most [`SIDE`]; the caller is the ring's one
    /// producer, and by the progress that the consumer last told, it no longer reads that slot.
    unsafe fn write_side(&self, slot: u64, at: usize, bytes: &[u8]);
    /// Copies the beginning of the second line of a slot into `bytes`.
    ///
    /// # Safety
    /// `slot` is below [`RingMemory::slot_count`] and `bytes.len()` at most [`SIDE`]; the caller is the ring's one
    /// consumer, which saw the slot's frame published and has not yet told that it is done with it.
    unsafe fn read_side(&self, slot: u64, bytes: &mut [u8]);
    /// Asks for the lines that the next body of the same length will be written to: the second line of `slot`, and
    /// `len` bytes of the payload ring at `at`. The consumer has read them a lap ago, and to take them from its cache
    /// while the body is written is what a post waits for longest. It changes nothing.
    fn own(&self, slot: u64, at: u64, len: u64) {
        let _ = (slot, at, len);
    }
    /// Copies `bytes` into the payload ring at `at`.
    ///
    /// # Safety
    /// `at + bytes.len()` is at most [`RingMemory::payload_len`]; the caller is the ring's one producer, and by the
    /// progress that the consumer last told, it no longer reads that piece.
    unsafe fn write(&self, at: u64, bytes: &[u8]);
    /// Copies from the payload ring at `at` into `bytes`.
    ///
    /// # Safety
    /// `at + bytes.len()` is at most [`RingMemory::payload_len`]; the caller is the ring's one consumer, which saw the
    /// piece's frame published and has not yet told that it is done with it.
    unsafe fn read(&self, at: u64, bytes: &mut [u8]);
}

/// The far end broke the ring's rules: a stamp, a length or a progress that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;

/// Why a frame was not posted. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// No room now.
    Full,
    /// The consumer's progress cannot be true.
    Corrupt,
}

/// Room that a post must leave free, for others that matter more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserve {
    /// Slots to leave free.
    pub slots: u64,
    /// Payload bytes to leave free.
    pub payload: u64,
}

/// Where a body of `len` bytes goes when the cursor stands at `cursor`: its offset, and the cursor after it.
#[inline]
const fn place(cursor: u64, len: u64, payload_len: u64) -> (u64, u64) {
    let size = len.next_multiple_of(PIECE_ALIGN);
    let offset = cursor & (payload_len - 1);
    if offset + size <= payload_len {
        (offset, cursor + size)
    } else {
        (0, cursor + (payload_len - offset) + size)
    }
}

/// The stamp of position `position`. Never that of the lap before: the ring is shorter than 2³² slots.
#[inline]
const fn stamp(position: u64) -> u64 {
    (position + 1) & STAMP_MASK
}

/// The longest body a ring takes: with a quarter of the payload ring a piece fits however the cursor stands, since
/// what is skipped and what is placed together stay below one half, and the consumer tells each quarter it frees.
#[must_use]
pub const fn body_max(payload_len: u64) -> usize {
    IN_SLOT_MAX + (payload_len / 4) as usize
}

/// The sending end.
#[derive(Debug)]
pub struct RingProducer<L> {
    lane: L,
    /// Position of the next slot to fill.
    head: u64,
    /// Payload cursor of the next body.
    cursor: u64,
    /// The consumer's progress when last looked at: older than the truth, never ahead of it.
    seen: RingProgress,
}

impl<L: RingMemory> RingProducer<L> {
    /// The producer of a fresh lane. A lane has one.
    pub const fn new(lane: L) -> Self {
        Self {
            lane,
            head: 0,
            cursor: 0,
            seen: RingProgress {
                slots: 0,
                payload: 0,
            },
        }
    }

    /// Posts `frame` with the body that its length names, gathered from two slices; leaves `reserve` free.
    ///
    /// A body of up to 16 bytes goes into the frame's tail, or is already there when both slices are empty; of a longer
    /// one the tail, which means nothing then, takes the beginning. The slices' lengths must add up to the frame's body
    /// length, and that be at most [`body_max`]: the port checks.
    ///
    /// # Errors
    /// [`PostError`]; nothing was taken.
    #[inline(always)]
    pub fn post(
        &mut self,
        frame: &Frame,
        body: [&[u8]; 2],
        reserve: Reserve,
    ) -> Result<(), PostError> {
        let len = body[0].len() + body[1].len();
        debug_assert!(len == frame.body_len() as usize || (len == 0 && frame.body_is_inline()));
        if len > INLINE_BODY_MAX {
            self.post_beside(frame, body, reserve)
        } else {
            self.post_in_tail(frame, body, reserve)
        }
    }

    /// Posts a frame whose body, if it has one, fits its tail. Apart, so that what posts the others is short.
    #[inline(never)]
    fn post_in_tail(
        &mut self,
        frame: &Frame,
        body: [&[u8]; 2],
        reserve: Reserve,
    ) -> Result<(), PostError> {
        if body[0].is_empty() && body[1].is_empty() {
            self.post_short(frame, reserve)
        } else {
            self.post_short(&with_tail(frame, split_tail(body).0), reserve)
        }
    }

    /// As [`RingProducer::post`], of a frame whose body, if it has one, lies in its tail.
    ///
    /// # Errors
    /// As [`RingProducer::post`].
    #[inline(always)]
    pub fn post_short(&mut self, frame: &Frame, reserve: Reserve) -> Result<(), PostError> {
        self.make_room(self.cursor, reserve)?;
        self.put(frame);
        Ok(())
    }

    /// Posts a frame whose body is longer than its tail.
    #[inline(always)]
    fn post_beside(
        &mut self,
        frame: &Frame,
        body: [&[u8]; 2],
        reserve: Reserve,
    ) -> Result<(), PostError> {
        let len = body[0].len() + body[1].len();
        assert!(
            len <= body_max(self.lane.payload_len()),
            "the port checks lengths"
        );
        let piece = len.saturating_sub(IN_SLOT_MAX) as u64;
        let (offset, cursor) = place(self.cursor, piece, self.lane.payload_len());
        self.make_room(cursor, reserve)?;
        let slot = self.head & (self.lane.slot_count() - 1);
        let (tail, [first, rest]) = split_tail(body);
        // SAFETY: the slot is masked, and `make_room` compared it and the end of the piece with the consumer's told
        // progress: both are either never used or already given up. `place` keeps the piece within the payload ring,
        // and it is as long as what the tail and the slot leave of the body. `&mut self` makes this the only producer.
        unsafe { self.write_beside(slot, offset, 0, first) };
        if !rest.is_empty() {
            // SAFETY: as above; this part starts where the first ended.
            unsafe { self.write_beside(slot, offset, first.len(), rest) };
        }
        self.put(&with_tail(frame, tail));
        self.cursor = cursor;
        if piece <= OWNED_MAX {
            let (offset, _) = place(cursor, piece, self.lane.payload_len());
            let slot = self.head & (self.lane.slot_count() - 1);
            self.lane.own(slot, offset, piece);
        }
        Ok(())
    }

    /// Writes a part of the body, `at` bytes behind what is in the tail.
    ///
    /// # Safety
    /// `slot` is below the slot count. What the part has beyond [`SIDE`] ends within the piece at `offset`, and that
    /// within the payload ring. The caller is the ring's one producer, and by the progress that the consumer last told,
    /// it no longer reads the slot nor the piece.
    #[inline(always)]
    unsafe fn write_beside(&mut self, slot: u64, offset: u64, at: usize, part: &[u8]) {
        let (side, rest) = part.split_at(part.len().min(SIDE.saturating_sub(at)));
        if !side.is_empty() {
            // SAFETY: `at` and `side` together are at most `SIDE`; the rest is the contract.
            unsafe { self.lane.write_side(slot, at, side) };
        }
        if !rest.is_empty() {
            let at = offset + (at + side.len() - SIDE) as u64;
            // SAFETY: the contract.
            unsafe { self.lane.write(at, rest) };
        }
    }

    /// Writes the next slot; there is room.
    #[inline(always)]
    pub(super) fn put(&mut self, frame: &Frame) {
        let slot = self.head & (self.lane.slot_count() - 1);
        let word = (frame.words[0] & !STAMP_MASK) | stamp(self.head);
        let stale = self
            .head
            .checked_sub(self.lane.slot_count())
            .map_or(0, stamp);
        self.lane.put(slot, frame, stale, word);
        self.head += 1;
    }

    /// Looks whether there is room for a slot, and for a payload that ends at `cursor`.
    #[inline(always)]
    fn make_room(&mut self, cursor: u64, reserve: Reserve) -> Result<(), PostError> {
        if self.has_room(cursor, reserve) {
            return Ok(());
        }
        self.look()?;
        if self.has_room(cursor, reserve) {
            Ok(())
        } else {
            Err(PostError::Full)
        }
    }

    /// The lane.
    pub const fn lane(&self) -> &L {
        &self.lane
    }

    #[inline]
    fn has_room(&self, cursor: u64, reserve: Reserve) -> bool {
        self.head - self.seen.slots + reserve.slots < self.lane.slot_count()
            && cursor - self.seen.payload + reserve.payload <= self.lane.payload_len()
    }

    /// Reads the consumer's line: the only time the producer does. Progress must not go back, nor ahead of us.
    #[cold]
    fn look(&mut self) -> Result<(), PostError> {
        let told = self.lane.progress();
        let slots = self.seen.slots <= told.slots && told.slots <= self.head;
        let payload = self.seen.payload <= told.payload && told.payload <= self.cursor;
        if !(slots && payload) {
            return Err(PostError::Corrupt);
        }
        self.seen = told;
        Ok(())
    }
}

/// `frame` with that tail.
#[inline(always)]
const fn with_tail(frame: &Frame, tail: [u64; 2]) -> Frame {
    let mut framed = *frame;
    [framed.words[6], framed.words[7]] = tail;
    framed
}

/// The words of a body's tail, zeros behind it if it is shorter, and what lies beside it.
#[inline(always)]
fn split_tail([first, second]: [&[u8]; 2]) -> ([u64; 2], [&[u8]; 2]) {
    // One dimension and the first elements, as nearly every long body begins.
    if let (Ok(dim), Some((elements, rest))) = (first.try_into(), second.split_first_chunk()) {
        let tail = [dim, *elements].map(u64::from_le_bytes);
        return (tail, [rest, &[]]);
    }
    gather_tail(first, second)
}

#[inline(never)]
fn gather_tail<'a>(first: &'a [u8], second: &'a [u8]) -> ([u64; 2], [&'a [u8]; 2]) {
    let (head, first) = first.split_at(INLINE_BODY_MAX.min(first.len()));
    let (next, second) = second.split_at((INLINE_BODY_MAX - head.len()).min(second.len()));
    let mut tail = [0; INLINE_BODY_MAX];
    tail[..head.len()].copy_from_slice(head);
    tail[head.len()..head.len() + next.len()].copy_from_slice(next);
    let tail = u128::from_le_bytes(tail);
    ([tail as u64, (tail >> 64) as u64], [first, second])
}

/// The receiving end.
#[derive(Debug)]
pub struct RingConsumer<L> {
    lane: L,
    /// Position of the next slot to take.
    tail: u64,
    /// Payload cursor of the next body.
    cursor: u64,
    /// What the producer was told.
    told: RingProgress,
    /// It was told in passing, since [`RingConsumer::take_told`] was asked.
    has_told: bool,
}

impl<L: RingMemory> RingConsumer<L> {
    /// The consumer of a fresh lane. A lane has one.
    pub const fn new(lane: L) -> Self {
        Self {
            lane,
            tail: 0,
            cursor: 0,
            told: RingProgress {
                slots: 0,
                payload: 0,
            },
            has_told: false,
        }
    }

    /// True if a frame waits (or the ring is corrupt, which [`RingConsumer::take`] will say).
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let word = self.lane.peek(self.tail & (self.lane.slot_count() - 1));
        word & STAMP_MASK != self.stale()
    }

    /// Takes the next frame, if there is one: a private copy of it, and its body still in the ring.
    ///
    /// # Errors
    /// [`Corrupt`] when the slot holds neither the next stamp nor the last lap's, or a length over the ring's bound.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Option<TakenFrame<'_, L>>, Corrupt> {
        let slot = self.tail & (self.lane.slot_count() - 1);
        let word = self.lane.peek(slot);
        if word & STAMP_MASK != stamp(self.tail) {
            return if word & STAMP_MASK == self.stale() {
                Ok(None)
            } else {
                Err(Corrupt)
            };
        }
        let mut frame = Frame::default();
        frame.words[0] = word & !STAMP_MASK;
        self.lane.load(slot, &mut frame);
        let len = frame.body_len() as usize;
        let mut offset = 0;
        if len > INLINE_BODY_MAX {
            if len > body_max(self.lane.payload_len()) {
                return Err(Corrupt);
            }
            let piece = len.saturating_sub(IN_SLOT_MAX) as u64;
            (offset, self.cursor) = place(self.cursor, piece, self.lane.payload_len());
        }
        self.tail += 1;
        let tail = frame.tail();
        if len > INLINE_BODY_MAX {
            (frame.words[6], frame.words[7]) = (0, 0);
        }
        Ok(Some(TakenFrame {
            consumer: self,
            frame,
            tail,
            slot,
            offset,
            len,
        }))
    }

    /// Tells the producer what was taken, each quarter ring.
    #[inline(always)]
    fn settle_each_quarter(&mut self) {
        let is_quarter = self.tail - self.told.slots >= self.lane.slot_count() / 4
            || self.cursor - self.told.payload >= self.lane.payload_len() / 4;
        if is_quarter {
            self.settle();
            self.has_told = true;
        }
    }

    /// Tells the producer all progress not told yet; true if there was any. For when the ring went quiet.
    pub fn settle(&mut self) -> bool {
        let progress = RingProgress {
            slots: self.tail,
            payload: self.cursor,
        };
        let news = progress != self.told;
        if news {
            self.lane.set_progress(progress);
            self.told = progress;
        }
        news
    }

    /// True if the producer has not been told all.
    #[inline]
    #[must_use]
    pub const fn is_unsettled(&self) -> bool {
        self.told.slots != self.tail
    }

    /// True if the producer was told in passing since this was asked last: a quarter ring was taken.
    #[inline]
    pub(super) const fn take_told(&mut self) -> bool {
        std::mem::replace(&mut self.has_told, false)
    }

    /// The lane.
    pub const fn lane(&self) -> &L {
        &self.lane
    }

    /// What the next slot holds while it is empty: the stamp of the lap before, or zero in the first lap.
    #[inline]
    fn stale(&self) -> u64 {
        let count = self.lane.slot_count();
        if self.tail < count {
            0
        } else {
            stamp(self.tail - count)
        }
    }
}

/// A frame that was taken: a private copy, and its body, whose bytes may be in shared memory and are only ever copied
/// out. Dropped, it is done with, and the producer may be told so.
#[derive(Debug)]
pub struct TakenFrame<'a, L: RingMemory> {
    consumer: &'a mut RingConsumer<L>,
    frame: Frame,
    tail: [u8; INLINE_BODY_MAX],
    slot: u64,
    offset: u64,
    len: usize,
}

impl<L: RingMemory> Drop for TakenFrame<'_, L> {
    #[inline(always)]
    fn drop(&mut self) {
        self.consumer.settle_each_quarter();
    }
}

impl<L: RingMemory> TakenFrame<'_, L> {
    /// The frame, without its stamp; of a body that is longer than its tail, the tail says nothing.
    #[inline]
    #[must_use]
    pub const fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The body's length in bytes: what the frame says, checked.
    #[must_use]
    pub const fn body_len(&self) -> usize {
        self.len
    }

    /// The body, where it lies in the frame's tail.
    #[inline]
    #[must_use]
    pub fn body_in_tail(&self) -> Option<&[u8]> {
        if self.len <= INLINE_BODY_MAX {
            self.tail.get(..self.len)
        } else {
            None
        }
    }

    /// Copies the body out.
    ///
    /// # Panics
    /// If `bytes` is not as long as the body.
    #[inline]
    pub fn copy_body_to(&self, bytes: &mut [u8]) {
        assert!(bytes.len() == self.len, "a body is copied whole");
        if self.len <= INLINE_BODY_MAX {
            bytes.copy_from_slice(&self.tail[..self.len]);
        } else {
            let (first, rest) = bytes.split_at_mut(INLINE_BODY_MAX);
            first.copy_from_slice(&self.tail);
            let (side, piece) = rest.split_at_mut(rest.len().min(SIDE));
            // SAFETY: `take` masked the slot, and `side` is at most `SIDE` long. This borrows the one consumer mutably
            // since `take` has seen the frame's stamp with Acquire: no other call can tell its progress, which is
            // told no sooner than this is dropped.
            unsafe { self.consumer.lane.read_side(self.slot, side) };
            if !piece.is_empty() {
                // SAFETY: as above; `take` checked the length against `body_max` and `place` kept the piece within the
                // ring.
                unsafe { self.consumer.lane.read(self.offset, piece) };
            }
        }
    }
}

const _: () = assert!(FRAME_WORDS == 8 && body_max(4096) > INLINE_BODY_MAX);

#[cfg(test)]
mod tests;
