//! The names of keys: what the hashes in events stand for, in a table of fixed size.
//!
//! A name lies in one of a few places from where its hash points. If all of these are taken, the name recorded longest
//! ago makes room, so the names of hundreds of live keys stay, and an old one does not stay for ever.

use std::sync::atomic::{AtomicU64, Ordering};

/// Names at most: a task has a few hundred live keys in a shard, and a table that is a quarter full loses none.
const NAMES: usize = 4096;
/// Places where a name may lie.
const PLACES: usize = 16;
/// Of a name: its hash, its length and turn, and its bytes.
const NAME_WORDS: usize = 32;
/// Longer names are cut off.
const NAME_BYTES: usize = (NAME_WORDS - 2) * 8;
/// The low bits of the second word are the length, the others the turn: which saying of a name it was.
const LEN_BITS: u32 = 16;

/// Words of the table.
pub(super) const WORDS: usize = NAMES * NAME_WORDS;

const _: () = assert!(NAME_BYTES < 1 << LEN_BITS && NAMES.is_power_of_two());

/// Where a name of this hash may lie, as words of the table.
fn places(hash: u64) -> impl Iterator<Item = usize> {
    // The hash of a key is well mixed in its low bits, that of a peer's name in all of them.
    let first = hash as usize % NAMES;
    (first..first + PLACES).map(|place| place % NAMES * NAME_WORDS)
}

/// Remembers the name that a hash stands for, the `turn`-th that is said. One thread writes.
pub(super) fn put(table: &[AtomicU64], hash: u64, text: &str, turn: u64) {
    let load = |at: usize| table.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
    let own = places(hash).find(|at| load(*at) == hash);
    // A free place says turn zero, and is taken first.
    let oldest = || places(hash).min_by_key(|at| load(at + 1) >> LEN_BITS);
    let Some(at) = own.or_else(oldest) else {
        return;
    };
    let Some(words) = table.get(at..at + NAME_WORDS) else {
        return;
    };
    let bytes = &text.as_bytes()[..text.len().min(NAME_BYTES)];
    words[0].store(0, Ordering::Relaxed);
    words[1].store(turn << LEN_BITS | bytes.len() as u64, Ordering::Relaxed);
    for (word, eight) in words[2..].iter().zip(bytes.chunks(8)) {
        let mut le = [0; 8];
        le[..eight.len()].copy_from_slice(eight);
        word.store(u64::from_le_bytes(le), Ordering::Relaxed);
    }
    // Last, so that a reader finds no name under another's hash.
    words[0].store(hash, Ordering::Release);
}

/// What a hash stands for, if the table, which is a claim, still says so.
pub(super) fn find(table: &[u64], hash: u64) -> Option<String> {
    if hash == 0 {
        return None;
    }
    let at = places(hash).find(|at| table.get(*at) == Some(&hash))?;
    let len = *table.get(at + 1)? as usize & ((1 << LEN_BITS) - 1);
    let words = table.get(at + 2..at + NAME_WORDS)?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let bytes = bytes.get(..len.min(NAME_BYTES))?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}
