//! A byte stream's reading half: bytes in, cut anywhere; frames, bodies and the bytes of chunks out.
//!
//! Knows no socket and no landing. Every byte is a claim of the peer: what a correct peer never sends is
//! [`DownReason::Corrupt`], and nothing makes the buffer grow.
//!
//! ```text
//!  buffer   ├─ given ─┼──── not yet given ────┼──── room ────┤
//!           0       start                    end
//! ```
//!
//! The bytes of a chunk need not pass through the buffer: while [`Reader::chunk_left`] says that some are to come and
//! the buffer is empty, the socket's reader may put them where they belong and say so by [`Reader::passed_by`].

use crate::fabric::queue_pair::CHUNK;
use crate::fabric::{BODY_MAX, DownReason, FABRIC_KIND_MIN};
use crate::ground::limits::{FRAME_BYTES, STREAM_CHUNK_MAX, STREAM_RECEIVE_BYTES};
use crate::wire::Frame;

/// The half that reads.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    chunk_left: usize,
}

/// What the bytes say.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// A frame, whole. A body that is not in its tail lies here.
    Frame { frame: Frame, body: &'a [u8] },
    /// The head of a chunk; so many bytes follow, unless they lie in its tail.
    Chunk { frame: Frame, len: usize },
    /// Bytes of the chunk.
    Bytes(&'a [u8]),
}

impl Reader {
    pub(super) fn new() -> Self {
        Self {
            // Untouched zero pages take no memory yet: an idle peer costs a page or two.
            buffer: vec![0; STREAM_RECEIVE_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            chunk_left: 0,
        }
    }

    /// The next piece, or `None` until more bytes have come.
    ///
    /// # Errors
    /// The peer broke the rules.
    pub(super) fn next(&mut self) -> Result<Option<Piece<'_>>, DownReason> {
        if self.start == self.end {
            return Ok(None);
        }
        if self.chunk_left > 0 {
            let len = self.chunk_left.min(self.end - self.start);
            self.chunk_left -= len;
            return Ok(Some(Piece::Bytes(self.give(len))));
        }
        let Some(head) = self.buffer[self.start..self.end].first_chunk::<FRAME_BYTES>() else {
            return Ok(None);
        };
        let frame = Frame::from_bytes(head);
        let beside = judge(&frame)?;
        if frame.kind() == CHUNK {
            self.give(FRAME_BYTES);
            self.chunk_left = beside;
            let len = frame.body_len() as usize;
            return Ok(Some(Piece::Chunk { frame, len }));
        }
        if self.end - self.start < FRAME_BYTES + beside {
            return Ok(None);
        }
        let body = &self.give(FRAME_BYTES + beside)[FRAME_BYTES..];
        Ok(Some(Piece::Frame { frame, body }))
    }

    fn give(&mut self, len: usize) -> &[u8] {
        let from = self.start;
        self.start += len;
        &self.buffer[from..self.start]
    }

    /// Where to receive at most `ahead` bytes, never nothing: everything that can be given was.
    pub(super) fn room(&mut self, ahead: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.buffer.len() - self.start < FRAME_BYTES + BODY_MAX {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let len = ahead.max(1).min(self.buffer.len() - self.end);
        &mut self.buffer[self.end..][..len]
    }

    /// So many bytes were received into [`Reader::room`].
    pub(super) fn received(&mut self, len: usize) {
        self.end += len;
        debug_assert!(self.end <= self.buffer.len());
    }

    /// Forgets what was received: it is no longer wanted.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Bytes of the chunk under way that were neither given nor passed by.
    pub(super) const fn chunk_left(&self) -> usize {
        self.chunk_left
    }

    /// So many bytes of the chunk went where they belong without touching the buffer.
    pub(super) fn passed_by(&mut self, len: usize) {
        debug_assert!(len <= self.chunk_left && self.is_empty());
        self.chunk_left -= len;
    }

    /// True if everything received was given.
    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Whether a frame may stand in a stream; the bytes that follow it.
fn judge(frame: &Frame) -> Result<usize, DownReason> {
    let len = frame.body_len() as usize;
    let len_max = match frame.kind() {
        0..FABRIC_KIND_MIN => BODY_MAX,
        CHUNK => STREAM_CHUNK_MAX,
        _ => 0,
    };
    if len > len_max || frame.stamp() != 0 {
        return Err(DownReason::Corrupt);
    }
    Ok(if frame.body_is_inline() { 0 } else { len })
}

const _: () = assert!(STREAM_RECEIVE_BYTES >= FRAME_BYTES + BODY_MAX);
