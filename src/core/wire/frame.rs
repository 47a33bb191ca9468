//! The hot frame: one cache line of fixed layout, little-endian, that every fabric carries as it is.
//!
//! It may not know what a message means; that is `message.rs`.
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

listed! {
    /// What a frame says. Numbers are part of the wire format; 0xF0 and above are the fabrics' own.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    pub enum Kind {
        /// A small value, whole: the body holds its dimensions and its bytes.
        Push = 1,
        /// A large value that waits at its sender, readable in place where a region is named.
        Offer = 2,
        /// A demand for a value, with the landing it may be written to.
        Request = 3,
        /// A demand is taken back.
        Cancel = 4,
        /// The answer to a cancel whose demand had not been served.
        Cancelled = 5,
        /// A demand cannot be served: a status.
        Failed = 6,
        /// An offered value is no longer needed by the receiver.
        Release = 7,
        /// The sender asks for an offered value's memory.
        Recall = 8,
        /// Credit and acknowledgement only.
        Credit = 9,
        /// Gives a key's text a number.
        Intern = 10,
        /// A step ended with a status.
        Abort = 11,
        /// The first frame of every connection.
        Hello = 12,
        // 13 said that the sender leaves: no rendez ever sent it, and the number is not given again.
        /// The sender has done its part of a step: what it has sent in it, it has sent.
        Finish = 14,
        /// The sender is about to leave: the receiver tells which of the values on offer it holds.
        Drain = 15,
        /// An offered value's memory is held by the receiver, which needs no more for it.
        Held = 16,
    }
}

/// The flag bits of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The value is dead.
    pub const DEAD: Self = Self(1);
    /// The frame answers a request and costs no push credit.
    pub const SOLICITED: Self = Self(2);
    /// The body names a region (of an offer) or a landing (of a request).
    pub const REGION: Self = Self(4);
    /// A request names the offer it wants.
    pub const OFFER: Self = Self(8);
    /// The status is derived.
    pub const DERIVED: Self = Self(16);
    /// A push or an offer says when it was posted.
    pub const STAMPED: Self = Self(32);
    /// An offer's bytes lie with its receiver, which lent them: the body names the receiver's own offer.
    pub const LENT: Self = Self(64);
    /// Every flag there is.
    pub const ALL: Self = Self(127);

    /// True if all bits of `other` are set.
    #[inline]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// With the bits of `other` if `on`.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self, on: bool) -> Self {
        if on { Self(self.0 | other.0) } else { self }
    }
}

/// A frame as eight little-endian words. Any 64 bytes are a `Frame`; whether they mean something is
/// [`Message::parse`](super::Message::parse)'s to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(64))]
pub struct Frame {
    /// The words, in host order: word `i` holds bytes `8 i` to `8 i + 7`, the lowest byte first.
    pub words: [u64; FRAME_WORDS],
}

impl Frame {
    /// A frame of 64 wire bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; FRAME_BYTES]) -> Self {
        let mut words = [0; FRAME_WORDS];
        for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut le = [0; 8];
            le.copy_from_slice(eight);
            *word = u64::from_le_bytes(le);
        }
        Self { words }
    }

    /// The frame's 64 wire bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        for (word, eight) in self.words.iter().zip(bytes.chunks_exact_mut(8)) {
            eight.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The fabric's stamp: the low half of word 0.
    #[inline]
    #[must_use]
    pub const fn stamp(&self) -> u32 {
        self.words[0] as u32
    }

    /// The kind's wire number.
    #[inline]
    #[must_use]
    pub const fn kind(&self) -> u8 {
        (self.words[0] >> 32) as u8
    }

    /// The flags.
    #[inline]
    #[must_use]
    pub const fn flags(&self) -> Flags {
        Flags((self.words[0] >> 40) as u8)
    }

    /// The data type's wire number, or a status code's.
    #[inline]
    #[must_use]
    pub const fn dtype(&self) -> u8 {
        (self.words[0] >> 48) as u8
    }

    /// The rank of the value.
    #[inline]
    #[must_use]
    pub const fn rank(&self) -> u8 {
        (self.words[0] >> 56) as u8
    }

    /// The key, request or offer the frame is about, as its kind says.
    #[inline]
    #[must_use]
    pub const fn slot(&self) -> u32 {
        self.words[1] as u32
    }

    /// Length of the body in bytes, wherever it lies.
    #[inline]
    #[must_use]
    pub const fn body_len(&self) -> u32 {
        (self.words[1] >> 32) as u32
    }

    /// The ordinal of the value, or a generation, as the kind says.
    #[inline]
    #[must_use]
    pub const fn ordinal(&self) -> u32 {
        self.words[5] as u32
    }

    /// Cumulative credit returned, modulo 2¹⁶: frames consumed, and lines of values taken.
    #[inline]
    #[must_use]
    pub const fn credit(&self) -> (u16, u16) {
        ((self.words[5] >> 32) as u16, (self.words[5] >> 48) as u16)
    }

    /// Writes the credit fields.
    #[inline]
    pub const fn set_credit(&mut self, frames: u16, lines: u16) {
        self.words[5] =
            (self.words[5] & 0xffff_ffff) | (frames as u64) << 32 | (lines as u64) << 48;
    }

    /// Writes the slot field: after a reconnect a key has another number.
    #[inline]
    pub const fn set_slot(&mut self, slot: u32) {
        self.words[1] = (self.words[1] & !0xffff_ffff) | slot as u64;
    }

    /// Puts `parts`, of at most sixteen bytes together, into the tail.
    #[inline]
    pub fn set_tail(&mut self, parts: [&[u8]; 2]) {
        let mut tail = [0u8; INLINE_BODY_MAX];
        let split = parts[0].len().min(INLINE_BODY_MAX);
        tail[..split].copy_from_slice(&parts[0][..split]);
        let end = (split + parts[1].len()).min(INLINE_BODY_MAX);
        tail[split..end].copy_from_slice(&parts[1][..end - split]);
        let tail = u128::from_le_bytes(tail);
        self.words[6] = tail as u64;
        self.words[7] = (tail >> 64) as u64;
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
        (u128::from(self.words[6]) | u128::from(self.words[7]) << 64).to_le_bytes()
    }
}

const _: () = assert!(size_of::<Frame>() == FRAME_BYTES);
