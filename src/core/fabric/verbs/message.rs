//! What travels on a queue pair: messages of frames, grants and the fabric's own words. Pure.
//!
//! Knows bytes and where they stand; not queue pairs, memory or time. Everything parsed here is a peer's claim.
//!
//! ```text
//!  first     0     frame, 64 bytes; its stamp is ours        64   body, if it is longer than the tail   grants
//!  further   0     stamp, then the length in 4 bytes          8   more of the body
//!
//!  stamp     bits 0..16   receive entries consumed so far, modulo 2¹⁶      a grant, 48 bytes, six words
//!            bits 16..24  grants at the message's end                       0  index, generation of the landing
//!            bit  24      a further message of the frame before             1  arena, segment, generation of its block
//!                                                                            2  offset in the segment  3  length, kind
//!  own words, as frames of kinds 0xf3 and above, name a landing             4  address   5  key
//!  in word 2 and a length in word 3
//! ```
//!
//! A **grant** tells the peer that a landing is open, and where. It rides with the next frame, so that the request that
//! names the landing brings it along; nothing is sent for it alone but to a port that has nothing else to say.

use crate::fabric::{FABRIC_KIND_MIN, Landing};
use crate::ground::Region;
use crate::ground::limits::{FRAME_BYTES, INLINE_MAX, VERBS_SLOT_BYTES};
use crate::wire::{Frame, INLINE_BODY_MAX};

/// Bytes of a body that lie in the first message: the longest usual one.
pub(super) const FIRST_MAX: usize = INLINE_MAX;
/// Bytes of a further message's head.
const FURTHER_HEAD: usize = 8;
/// Bytes of a body that lie in each further message.
pub(super) const FURTHER_MAX: usize = VERBS_SLOT_BYTES - FURTHER_HEAD;
/// Bytes of a grant.
pub(super) const GRANT_BYTES: usize = 48;

/// Nothing but the stamp and grants.
const CREDIT: u8 = FABRIC_KIND_MIN + 3;
/// Is this landing open? Answered by its grant, which is on its way, or by `NONE`.
const ASK: u8 = FABRIC_KIND_MIN + 4;
/// It is not.
const NONE: u8 = FABRIC_KIND_MIN + 5;
/// This landing is closed: begin no more of it, and say so.
const CLOSE: u8 = FABRIC_KIND_MIN + 6;
/// Nothing of ours is under way to this landing, and nothing will be.
const QUIET: u8 = FABRIC_KIND_MIN + 7;
/// The write that ends with the next immediate is so long altogether.
const TOTAL: u8 = FABRIC_KIND_MIN + 8;
/// The last message.
const BYE: u8 = FABRIC_KIND_MIN + 9;
/// The first message, where the way is to be proved before it is used.
const CHECK: u8 = FABRIC_KIND_MIN + 10;

/// The fabric's own words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Credit,
    Ask(Landing),
    None(Landing),
    Close(Landing),
    Quiet(Landing),
    Total(Landing, u64),
    Bye,
    Check,
}

/// A landing as its owner tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grant {
    pub(super) landing: Landing,
    pub(super) region: Region,
    pub(super) address: u64,
    pub(super) rkey: u32,
}

/// The fabric's four bytes of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeaderStamp {
    pub(super) consumed: u16,
    pub(super) grants: u8,
    pub(super) is_further: bool,
}

/// A message, cut into its parts.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum VerbsMessage<'a> {
    /// A frame and as much of its body as the message holds, its tail too.
    First { frame: Frame, body: &'a [u8] },
    /// More of a body.
    Further { body: &'a [u8] },
}

/// A message that no peer of ours would send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VerbsMalformed;

impl Word {
    pub(super) fn frame(self) -> Frame {
        let (kind, landing, len) = match self {
            Self::Credit => (CREDIT, None, 0),
            Self::Ask(landing) => (ASK, Some(landing), 0),
            Self::None(landing) => (NONE, Some(landing), 0),
            Self::Close(landing) => (CLOSE, Some(landing), 0),
            Self::Quiet(landing) => (QUIET, Some(landing), 0),
            Self::Total(landing, len) => (TOTAL, Some(landing), len),
            Self::Bye => (BYE, None, 0),
            Self::Check => (CHECK, None, 0),
        };
        let mut frame = Frame::default();
        frame.words[0] = u64::from(kind) << 32;
        frame.words[2] = landing.map_or(0, landing_word);
        frame.words[3] = len;
        frame
    }

    /// The word that a frame of the fabric's own kinds says.
    pub(super) const fn parse(frame: &Frame) -> Result<Self, VerbsMalformed> {
        let landing = landing_of(frame.words[2]);
        if frame.body_len() != 0 {
            return Err(VerbsMalformed);
        }
        Ok(match frame.kind() {
            CREDIT => Self::Credit,
            ASK => Self::Ask(landing),
            NONE => Self::None(landing),
            CLOSE => Self::Close(landing),
            QUIET => Self::Quiet(landing),
            TOTAL => Self::Total(landing, frame.words[3]),
            BYE => Self::Bye,
            CHECK => Self::Check,
            _ => return Err(VerbsMalformed),
        })
    }
}

impl HeaderStamp {
    const fn word(self) -> u32 {
        self.consumed as u32 | (self.grants as u32) << 16 | (self.is_further as u32) << 24
    }

    const fn parse(word: u32) -> Result<Self, VerbsMalformed> {
        if word >> 25 != 0 {
            return Err(VerbsMalformed);
        }
        Ok(Self {
            consumed: word as u16,
            grants: (word >> 16) as u8,
            is_further: word >> 24 == 1,
        })
    }
}

/// How many bytes of a body of `len` lie in the first message.
#[inline]
pub(super) const fn first_len(len: usize) -> usize {
    if len <= INLINE_BODY_MAX {
        0
    } else if len < FIRST_MAX {
        len
    } else {
        FIRST_MAX
    }
}

/// How many messages a frame with a body of `len` takes.
#[inline]
pub(super) const fn messages(len: usize) -> usize {
    if len <= FIRST_MAX {
        1
    } else {
        1 + (len - FIRST_MAX).div_ceil(FURTHER_MAX)
    }
}

/// How many grants fit behind so many bytes of body.
#[inline]
pub(super) const fn grants_max(first_len: usize) -> usize {
    (VERBS_SLOT_BYTES - FRAME_BYTES - first_len) / GRANT_BYTES
}

/// Writes a first message into `slot`; returns its length. Of the body as much as [`first_len`] says.
#[inline]
pub(super) fn write_first(
    slot: &mut [u8],
    frame: &Frame,
    body: [&[u8]; 2],
    consumed: u16,
    grants: impl ExactSizeIterator<Item = Grant>,
) -> usize {
    let stamp = HeaderStamp {
        consumed,
        grants: grants.len() as u8,
        is_further: false,
    };
    let mut frame = *frame;
    frame.words[0] = frame.words[0] & !0xffff_ffff | u64::from(stamp.word());
    if body[0].len() + body[1].len() > 0 && frame.body_is_inline() {
        frame.set_tail(body);
    }
    slot[..FRAME_BYTES].copy_from_slice(&frame.to_bytes());
    let len = first_len(frame.body_len() as usize);
    let mut at = FRAME_BYTES + len;
    if len > 0 {
        gather(&mut slot[FRAME_BYTES..at], body, 0);
    }
    for grant in grants {
        for (word, place) in grant
            .words()
            .into_iter()
            .zip(slot[at..].chunks_exact_mut(8))
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        at += GRANT_BYTES;
    }
    at
}

/// Writes a further message with the bytes of `body` from `start` on; returns its length, and where the next starts.
pub(super) fn write_further(
    slot: &mut [u8],
    body: [&[u8]; 2],
    start: usize,
    consumed: u16,
) -> (usize, usize) {
    let len = (body[0].len() + body[1].len() - start).min(FURTHER_MAX);
    let stamp = HeaderStamp {
        consumed,
        grants: 0,
        is_further: true,
    };
    slot[..4].copy_from_slice(&stamp.word().to_le_bytes());
    slot[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    gather(&mut slot[FURTHER_HEAD..FURTHER_HEAD + len], body, start);
    (FURTHER_HEAD + len, start + len)
}

/// Cuts a received message into its parts, and gives its grants to `granted`.
#[inline]
pub(super) fn parse<'a>(
    bytes: &'a [u8],
    mut granted: impl FnMut(Grant),
) -> Result<(HeaderStamp, VerbsMessage<'a>), VerbsMalformed> {
    let (&word, _) = bytes.split_first_chunk::<4>().ok_or(VerbsMalformed)?;
    let stamp = HeaderStamp::parse(u32::from_le_bytes(word))?;
    if stamp.is_further {
        let (head, body) = bytes
            .split_first_chunk::<FURTHER_HEAD>()
            .ok_or(VerbsMalformed)?;
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let fits = stamp.grants == 0 && len == body.len() && len > 0;
        return fits
            .then_some((stamp, VerbsMessage::Further { body }))
            .ok_or(VerbsMalformed);
    }
    let (head, rest) = bytes
        .split_first_chunk::<FRAME_BYTES>()
        .ok_or(VerbsMalformed)?;
    let mut frame = Frame::from_bytes(head);
    frame.words[0] &= !0xffff_ffff;
    let len = frame.body_len() as usize;
    let first = first_len(len);
    if rest.len() != first + usize::from(stamp.grants) * GRANT_BYTES {
        return Err(VerbsMalformed);
    }
    let (mut body, grants) = rest.split_at(first);
    if frame.body_is_inline() {
        body = &head[FRAME_BYTES - INLINE_BODY_MAX..][..len];
    }
    if !grants.is_empty() {
        for grant in grants.chunks_exact(GRANT_BYTES) {
            granted(Grant::parse(grant)?);
        }
    }
    Ok((stamp, VerbsMessage::First { frame, body }))
}

impl Grant {
    fn words(&self) -> [u64; 6] {
        [
            landing_word(self.landing),
            u64::from(self.region.arena)
                | u64::from(self.region.segment) << 16
                | u64::from(self.region.generation) << 32,
            self.region.offset,
            self.region.len_and_kind(),
            self.address,
            self.rkey.into(),
        ]
    }

    #[inline(never)]
    fn parse(bytes: &[u8]) -> Result<Self, VerbsMalformed> {
        let mut words = [0; 6];
        for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut le = [0; 8];
            le.copy_from_slice(eight);
            *word = u64::from_le_bytes(le);
        }
        let (len, kind, owns_pages) = Region::split_len(words[3]).ok_or(VerbsMalformed)?;
        let grant = Self {
            landing: landing_of(words[0]),
            region: Region {
                arena: words[1] as u16,
                segment: (words[1] >> 16) as u16,
                generation: (words[1] >> 32) as u32,
                offset: words[2],
                len,
                kind,
                owns_pages,
            },
            address: words[4],
            rkey: u32::try_from(words[5]).map_err(|_| VerbsMalformed)?,
        };
        // Sums of these are made later, and must not pass the end of all numbers.
        let ends = [grant.address, grant.region.offset].map(|at| at.checked_add(grant.region.len));
        ends.iter()
            .all(Option::is_some)
            .then_some(grant)
            .ok_or(VerbsMalformed)
    }

    /// Where `region`, as the poster of a write names it, lies at the peer; `None` unless it is of this landing.
    pub(super) fn locate(&self, region: &Region, len: u64) -> Option<u64> {
        let own = &self.region;
        let is_same = (own.kind, own.arena, own.segment, own.generation)
            == (region.kind, region.arena, region.segment, region.generation);
        let start = region.offset.checked_sub(own.offset)?;
        let fits = is_same && start.checked_add(len)? <= own.len;
        (fits || mutant!("verbs_regions_unchecked")).then(|| self.address + start)
    }
}

/// The immediate of a write's end: the landing's index, and as much of its generation as fits.
#[inline]
pub(super) const fn immediate(landing: Landing) -> u32 {
    landing.index & 0xffff | landing.generation << 16
}

const fn landing_word(landing: Landing) -> u64 {
    landing.index as u64 | (landing.generation as u64) << 32
}

const fn landing_of(word: u64) -> Landing {
    Landing {
        index: word as u32,
        generation: (word >> 32) as u32,
    }
}

/// Copies what both slices hold together, from `start` on, until `to` is full.
#[inline(never)]
fn gather(to: &mut [u8], from: [&[u8]; 2], start: usize) {
    let split = from[0].len().saturating_sub(start).min(to.len());
    let (one, other) = to.split_at_mut(split);
    one.copy_from_slice(&from[0][from[0].len().min(start)..][..split]);
    let start = start.saturating_sub(from[0].len());
    other.copy_from_slice(&from[1][start..][..other.len()]);
}

#[cfg(test)]
mod tests;
