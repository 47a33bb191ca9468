//! Value: what a tensor carries, so that one that is not what was meant is known by looking at it.
//!
//! Knows bytes and numbers; no engine. Six words say what the value is, the last of them a checksum over the others
//! and over everything that follows, which differs in every value.

use super::scope::{Kind, mixed};

const MAGIC: u64 = 0x6e65_6d65_7369_7331;
const LABEL_WORDS: usize = 6;
/// The last of them.
const CHECKSUM_WORD: usize = LABEL_WORDS - 1;

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label {
    /// The step's number, which says the lives of both.
    pub(super) step: u64,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) kind: Kind,
    pub(super) ordinal: u32,
}

/// Writes the value of that label over `bytes`, which has whole words, at least six. Returns the checksum.
pub(super) fn fill(bytes: &mut [u8], label: &Label) -> u64 {
    let words = bytes.len() / 8;
    let head = head(label, words);
    let seed = head.iter().fold(0, |seed, word| mixed(seed ^ word));
    let mut sum = Sum::default();
    for (at, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        let word = match at {
            CHECKSUM_WORD => continue,
            at if at < head.len() => head[at],
            at => mixed(seed.wrapping_add(at as u64)),
        };
        sum.add(word);
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes[CHECKSUM_WORD * 8..][..8].copy_from_slice(&sum.0.to_le_bytes());
    sum.0
}

/// What those bytes say they are, with their checksum; `None` if they are not a value, or not a whole one.
pub(super) fn read(bytes: &[u8]) -> Option<(Label, u64)> {
    let mut words = bytes.chunks_exact(8).map(|chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let mut sum = Sum::default();
    let mut carried = [0; LABEL_WORDS];
    for (at, word) in carried.iter_mut().enumerate() {
        *word = words.next()?;
        if at != CHECKSUM_WORD {
            sum.add(*word);
        }
    }
    words.for_each(|word| sum.add(word));
    let [magic, step, who, ordinal, len, carried_sum] = carried;
    let kind = Kind::SENT
        .into_iter()
        .chain([Kind::Flood])
        .find(|kind| *kind as u64 == who & 0xff)?;
    let label = Label {
        step,
        from: (who >> 40) as u32,
        to: ((who >> 8) & 0xffff_ffff) as u32,
        kind,
        ordinal: u32::try_from(ordinal).ok()?,
    };
    let is_whole = magic == MAGIC && len * 8 == bytes.len() as u64 && carried_sum == sum.0;
    is_whole.then_some((label, sum.0))
}

fn head(label: &Label, words: usize) -> [u64; LABEL_WORDS - 1] {
    [
        MAGIC,
        label.step,
        (u64::from(label.from) << 40) | (u64::from(label.to) << 8) | label.kind as u64,
        u64::from(label.ordinal),
        words as u64,
    ]
}

/// A hash that sees the place of each word: proof against accidents, not against attackers.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    const fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: Label = Label {
        step: 77,
        from: 1,
        to: 2,
        kind: Kind::Middle,
        ordinal: 3,
    };

    #[test]
    fn a_value_says_what_it_is() {
        let mut bytes = vec![0; 800];
        let sum = fill(&mut bytes, &LABEL);
        assert_eq!(read(&bytes), Some((LABEL, sum)));
    }

    #[test]
    fn no_byte_can_change_unseen() {
        let mut bytes = vec![0; 800];
        fill(&mut bytes, &LABEL);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(read(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
        assert_eq!(read(&bytes[..792]), None, "a value that was cut");
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn half_of_another_value_is_seen() {
        let (mut one, mut other) = (vec![0; 800], vec![0; 800]);
        fill(&mut one, &LABEL);
        let label = Label {
            ordinal: 4,
            ..LABEL
        };
        fill(&mut other, &label);
        one[400..].copy_from_slice(&other[400..]);
        assert_eq!(read(&one), None);
    }
}
