//! The hot frame: one cache line of fixed layout, little-endian, that every fabric carries as it is.
//!
//! ```text
//!  byte  0      4    5     6     7     8      12        16    24     32    40       44      46     48      64
//!        stamp  kind flags dtype rank  slot   body_len  step  frame  iter  ordinal  frames  lines  tail
//!        └─ the fabric's            └─ whose: key,      └─ the rendezvous point     └─ credit      └─ body, if
//!           (0 elsewhere)              request, offer                                  returned       ≤ 16 bytes
//! ```
//!
//! A body of up to [`INLINE_BODY_MAX`] bytes lies in the frame's own tail; a longer one travels beside the frame,
//! by whatever means the fabric has, and arrives with it.

use crate::ground::limits::FRAME_BYTES;

/// The longest body that lies in the frame itself.
pub const INLINE_BODY_MAX: usize = 16;

/// Words of a frame.
pub const FRAME_WORDS: usize = FRAME_BYTES / 8;

/// A frame as eight little-endian words. Any 64 bytes are a `Frame`; whether they mean something is `Message::parse`'s to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(64))]
pub struct Frame {
    /// The words, in host order: word `i` holds bytes `8 i` to `8 i + 7`, the lowest byte first.
    pub words: [u64; FRAME_WORDS],
}

impl Frame {
    /// The fabric's stamp: the low half of word 0.
    #[inline]
    #[must_use]
    pub const fn stamp(&self) -> u32 {
        self.words[0] as u32
    }

    /// Length of the body in bytes, wherever it lies.
    #[inline]
    #[must_use]
    pub const fn body_len(&self) -> u32 {
        (self.words[1] >> 32) as u32
    }

    /// True if the body lies in the frame's tail.
    #[inline]
    #[must_use]
    pub const fn body_is_inline(&self) -> bool {
        self.body_len() as usize <= INLINE_BODY_MAX
    }

    /// The tail's sixteen bytes, of which the first [`Frame::body_len`] are the body when it is inline.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> [u8; INLINE_BODY_MAX] {
        let mut tail = [0; INLINE_BODY_MAX];
        tail[..8].copy_from_slice(&self.words[6].to_le_bytes());
        tail[8..].copy_from_slice(&self.words[7].to_le_bytes());
        tail
    }
}

const _: () = assert!(size_of::<Frame>() == FRAME_BYTES);
