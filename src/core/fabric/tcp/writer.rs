//! A byte stream's writing half: frames in, whole; bytes out, as many at a time as the socket takes.
//!
//! Knows no socket. Its buffer has a fixed size, and a caller that finds no room in it is told so. A chunk's bytes are
//! not copied into it: they have a *gap*, a place in the order of bytes, and come from the tensor itself.
//!
//! ```text
//!  buffer   ├─ sent ─┼── frames, chunk's head ──┼── frames ──┼── room ──┤
//!           0      head                        gap          tail
//!                                               └─ here the chunk's bytes go out
//! ```
//!
//! One gap is open at a time, and what is posted meanwhile goes out behind it: so a frame waits for one chunk at most.

use crate::fabric::PostRefusal;
use crate::ground::limits::FRAME_BYTES;
use crate::wire::Frame;

/// The half that writes.
#[derive(Debug)]
pub(super) struct Writer {
    buffer: Box<[u8]>,
    head: usize,
    tail: usize,
    gap: Option<Gap>,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    /// In front of which byte of the buffer; never before `head`.
    at: usize,
    /// The chunk's bytes that did not go out yet; never zero.
    left: usize,
}

impl Writer {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            buffer: vec![0; bytes].into_boxed_slice(),
            head: 0,
            tail: 0,
            gap: None,
        }
    }

    /// Takes a frame and its body, which lies in the frame's tail if it is short.
    ///
    /// # Errors
    /// [`PostRefusal::Full`]; nothing was taken.
    #[inline]
    pub(super) fn post(&mut self, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal> {
        let mut frame = *frame;
        frame.words[0] &= !0xffff_ffff;
        let mut beside = body;
        if frame.body_is_inline() {
            if !body[0].is_empty() || !body[1].is_empty() {
                frame.set_tail(body);
            }
            beside = [&[], &[]];
        }
        let len = FRAME_BYTES + beside[0].len() + beside[1].len();
        if !self.has_room(len) {
            return Err(PostRefusal::Full);
        }
        for part in [&frame.to_bytes()[..], beside[0], beside[1]] {
            self.buffer[self.tail..][..part.len()].copy_from_slice(part);
            self.tail += part.len();
        }
        Ok(())
    }

    /// True if `len` bytes fit.
    #[inline]
    pub(super) fn has_room(&mut self, len: usize) -> bool {
        if self.tail + len > self.buffer.len() && self.head >= self.buffer.len() / 2 {
            // At most once for each half of the buffer that went out, so a byte is moved once at most.
            self.buffer.copy_within(self.head..self.tail, 0);
            self.tail -= self.head;
            if let Some(gap) = &mut self.gap {
                gap.at -= self.head;
            }
            self.head = 0;
        }
        self.tail + len <= self.buffer.len()
    }

    /// From here on the next `len` bytes come from elsewhere. No other gap may be open.
    pub(super) fn open_gap(&mut self, len: usize) {
        debug_assert!(self.gap.is_none());
        self.gap = (len > 0).then_some(Gap {
            at: self.tail,
            left: len,
        });
    }

    pub(super) const fn has_gap(&self) -> bool {
        self.gap.is_some()
    }

    /// Everything that may go out, in order; `chunk` is what belongs in the gap.
    pub(super) fn parts<'a>(&'a self, chunk: &'a [u8]) -> [&'a [u8]; 3] {
        match self.gap {
            Some(gap) => {
                debug_assert_eq!(chunk.len(), gap.left);
                let (before, after) = (self.head..gap.at, gap.at..self.tail);
                [&self.buffer[before], chunk, &self.buffer[after]]
            }
            None => [&self.buffer[self.head..self.tail], &[], &[]],
        }
    }

    /// `len` bytes of these went out; returns how many of them were the chunk's.
    pub(super) fn advance(&mut self, len: usize) -> usize {
        let Some(gap) = &mut self.gap else {
            self.sent(len);
            return 0;
        };
        let before = len.min(gap.at - self.head);
        let of_chunk = (len - before).min(gap.left);
        gap.left -= of_chunk;
        if gap.left == 0 {
            self.gap = None;
        }
        self.sent(len - of_chunk);
        of_chunk
    }

    fn sent(&mut self, len: usize) {
        self.head += len;
        debug_assert!(self.head <= self.tail);
        if self.head == self.tail {
            // From the start again: the same lines of the cache, and the fewest pages.
            (self.head, self.tail) = (0, 0);
            if let Some(gap) = &mut self.gap {
                gap.at = 0;
            }
        }
    }

    /// True if nothing is to go out.
    pub(super) const fn is_empty(&self) -> bool {
        self.head == self.tail && self.gap.is_none()
    }
}
