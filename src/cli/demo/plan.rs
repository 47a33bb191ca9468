//! What both sides of a demonstration must agree on: the names of keys, the batches, and what a result holds.
//!
//! Knows files of weights and keys; nothing of processes and shards. Each side computes the plan from its own reading
//! of the file, and the consumer's fingerprint tells the producer whether they read the same.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use crate::error::CliError;
use crate::weights::{Entry, Weights};
use rendez::ground::hash::{FNV_BASIS, fnv1a_after};
use rendez::ground::limits::EDGE_NAME_BYTES_MAX;
use rendez::ground::{Key, Status, StepId};
use rendez::trace::Path;

/// The job of the task that has the file's tensors.
pub(super) const PRODUCER: &str = "producer";
/// The job of the task that needs them.
pub(super) const CONSUMER: &str = "consumer";

/// The step in which tensors are handed over.
pub(super) const TENSORS: StepId = StepId(1);
/// The step in which the two agree on what comes next. Apart from the tensors', so that no name of theirs can collide.
pub(super) const TALK: StepId = StepId(2);

/// Bytes of a batch: both sides hold one in memory, however large the file. A single tensor may be more.
const BATCH_BYTES: u64 = 64 << 20;
/// Tensors of a batch: each is a key that a shard knows for good.
const BATCH_TENSORS: usize = 4096;

/// Rounds over a batch: with a dozen tensors, enough for twelve hand-overs beyond the 99.9th percentile.
pub(super) const ROUNDS_MAX: u64 = 1000;
/// The least, for large files: a first one, told apart because its keys are new and its caches cold, and a median of
/// three.
pub(super) const ROUNDS_MIN: u64 = 4;
/// Time for the rounds of all batches together, as far as the least number of rounds allows.
const ROUNDS_TIME: Duration = Duration::from_millis(400);

/// The batches of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) batches: Vec<Range<usize>>,
    pub(super) fingerprint: u64,
}

impl Plan {
    pub(super) fn of(weights: &Weights) -> Self {
        let entries = weights.entries();
        let mut batches = Vec::new();
        let (mut start, mut bytes) = (0, 0u64);
        for (index, entry) in entries.iter().enumerate() {
            if index > start
                && (bytes.saturating_add(entry.len) > BATCH_BYTES || index - start == BATCH_TENSORS)
            {
                batches.push(start..index);
                (start, bytes) = (index, 0);
            }
            bytes = bytes.saturating_add(entry.len);
        }
        if start < entries.len() {
            batches.push(start..entries.len());
        }
        Self {
            batches,
            fingerprint: fingerprint(entries),
        }
    }
}

/// A batch's share of the time for rounds.
pub(super) fn rounds_time(batch: &[Entry], weights: &Weights) -> Duration {
    let bytes: u64 = batch.iter().map(|entry| entry.len).sum();
    ROUNDS_TIME.mul_f64((bytes as f64 / weights.total_bytes().max(1) as f64).clamp(0.0, 1.0))
}

/// The key of a tensor: its name is the edge. A name that cannot be one (nothing, a semicolon, too long) is replaced by
/// its number behind a `#`, and so is one that begins with that sign: no two tensors share a key.
pub(super) fn tensor_key(index: usize, name: &str) -> Result<Key, CliError> {
    let is_edge = (1..=EDGE_NAME_BYTES_MAX).contains(&name.len())
        && !name.contains(';')
        && !name.starts_with('#');
    let edge = if is_edge {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(format!("#{index}"))
    };
    key(PRODUCER, CONSUMER, &edge)
}

/// A key of the two tasks' own.
pub(super) fn key(source: &str, destination: &str, edge: &str) -> Result<Key, CliError> {
    Key::between(source, destination, edge).map_err(|error| CliError::from(Status::from(error)))
}

/// FNV-1a over names, types, shapes and places: whether two readings of a file found the same tensors.
fn fingerprint(entries: &[Entry]) -> u64 {
    let mut hash = FNV_BASIS;
    let mut mix = |bytes: &[u8]| hash = fnv1a_after(hash, bytes.iter().copied());
    for entry in entries {
        mix(entry.name.as_bytes());
        mix(entry.meta.dtype.name().as_bytes());
        entry
            .meta
            .shape
            .dims()
            .for_each(|dim| mix(&dim.to_le_bytes()));
        mix(&entry.offset.to_le_bytes());
        mix(&entry.len.to_le_bytes());
    }
    hash
}

/// What the consumer found in a batch, as it travels: a row of numbers.
///
/// ```text
/// | verdict | began | ended | received, path | received, path | …   a pair for each tensor of each round
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Findings {
    /// The first tensor of the batch whose bytes differ, and where; `None` if all are as in the file.
    pub(super) differs: Option<(usize, u64)>,
    /// When the measured rounds began and ended, in nanoseconds of the machine's clock.
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    /// When each tensor was received, and the way it came, round by round.
    pub(super) received: Vec<(u64, Path)>,
}

impl Findings {
    /// Numbers before the pairs.
    const HEAD: usize = 4;

    pub(super) fn numbers(&self) -> Vec<u64> {
        let (index, at) = self
            .differs
            .map_or((0, 0), |(index, at)| (index as u64 + 1, at));
        let mut numbers = Vec::with_capacity(Self::HEAD + 2 * self.received.len());
        numbers.extend([index, at, self.began_ns, self.ended_ns]);
        numbers.extend(
            self.received
                .iter()
                .flat_map(|(at, path)| [*at, *path as u64]),
        );
        numbers
    }

    /// `None` for numbers that no consumer writes.
    pub(super) fn parse(numbers: &[u64]) -> Option<Self> {
        let (&[index, at, began_ns, ended_ns], pairs) =
            numbers.split_first_chunk::<{ Self::HEAD }>()?;
        let (pairs, rest) = pairs.as_chunks::<2>();
        if !rest.is_empty() {
            return None;
        }
        let received = pairs
            .iter()
            .map(|[at, path]| Some((*at, path_of(*path)?)))
            .collect::<Option<_>>()?;
        let differs = index.checked_sub(1).map(|index| (index as usize, at));
        Some(Self {
            differs,
            began_ns,
            ended_ns,
            received,
        })
    }
}

fn path_of(number: u64) -> Option<Path> {
    [Path::Local, Path::Inline, Path::Lease, Path::Copy]
        .into_iter()
        .find(|path| *path as u64 == number)
}

/// Nanoseconds on the one clock that both processes read.
#[inline]
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The monotonic clock counts from the machine's start: neither part is negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_edges_have_keys_of_their_own() {
        let long = "x".repeat(EDGE_NAME_BYTES_MAX + 1);
        for (index, name) in ["", "a;b", "#1", &long].into_iter().enumerate() {
            assert_eq!(tensor_key(index, name).unwrap().edge(), format!("#{index}"));
        }
        assert_eq!(
            tensor_key(0, "layer.0/weight").unwrap().edge(),
            "layer.0/weight"
        );
    }

    #[test]
    fn findings_travel_whole() {
        let found = Findings {
            differs: Some((3, 17)),
            began_ns: 1,
            ended_ns: 2,
            received: vec![(5, Path::Lease), (6, Path::Inline), (7, Path::Copy)],
        };
        let numbers = found.numbers();
        assert_eq!(Findings::parse(&numbers), Some(found));
        assert_eq!(Findings::parse(&numbers[..numbers.len() - 1]), None);
        assert_eq!(Findings::parse(&[0, 0, 0]), None);
        assert_eq!(Findings::parse(&[0, 0, 0, 0, 1, 9]), None);
    }

    #[test]
    fn batches_cover_the_file_and_readings_can_be_compared() {
        let weights = Weights::built_in().unwrap();
        let plan = Plan::of(&weights);
        assert_eq!(plan.batches.len(), 1);
        assert_eq!(plan.batches[0], 0..weights.entries().len());
        let mut entries = weights.entries().to_vec();
        entries[3].offset += 1;
        assert_ne!(fingerprint(&entries), plan.fingerprint);
    }
}
