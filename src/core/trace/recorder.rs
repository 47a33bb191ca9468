//! The recorder's memory: histograms of stages, the last events and the names of their keys, as numbers in one mapping.
//!
//! It knows the layout and nothing of how values travel. The shard's thread writes, with relaxed atomics, unordered
//! except that an event's number comes last; any thread may read, in this process, in another, or in the file of a
//! process that is dead. Everything read is a claim: [`Recording::of`] checks the layout, and an event that was being
//! written while [`Recorder::copy`] read it is left out.
//!
//! ```text
//!   head (64 words) │ names: 4096 × 32 words │ cells: one for each stage, way, size │ events: a ring of 8 words each
//! ```

mod event;
mod names;
mod slot;

use std::sync::atomic::{AtomicU64, Ordering};

pub use event::{Event, What};

use super::clock::Scale;
use crate::memory::Words;

/// `rendezRC`, as the first word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rendezRC");
/// The version of the layout.
pub const VERSION: u64 = 2;

const HEAD_WORDS: usize = 64;
/// Where the names begin.
const NAMES_AT: usize = HEAD_WORDS;
/// Where the cells begin.
const CELLS_AT: usize = NAMES_AT + names::WORDS;
/// How many names were said.
const TURNS_AT: usize = 18;
const TASK_AT: usize = 32;
const TASK_BYTES: usize = 256;

listed! {
    /// A stage of a hand-over. Each ends where the next begins.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
    #[repr(u8)]
    pub enum Stage {
        /// From the call of an application thread until the shard took it.
        Queued => "queued",
        /// Until its way was clear: connection, credit, and the values before it. Of a local value, until it met its
        /// receiver.
        Matched => "matched",
        /// Until its frame was made and went to the fabric.
        Posted => "posted",
        /// Until the frame arrived at the receiver's shard.
        Wire => "wire",
        /// Until the value, whole, met its receiver.
        Landed => "landed",
        /// Until the receiver had it.
        Woken => "woken",
        /// All of it, from the call of the sender until the receiver had it: no stage, and measured without them. Of
        /// values whose receiver knows when they set out.
        Whole => "whole",
    }
}

listed! {
    /// The way of a value: what carried it, and how.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
    #[repr(u8)]
    pub enum Way {
        /// Within one task.
        #[default]
        Local = 0 => "local",
        /// In a frame, through shared memory.
        ShmInline = 1 => "shm_inline",
        /// Read in place.
        ShmLease = 2 => "shm_lease",
        /// Copied through shared memory.
        ShmCopy = 3 => "shm_copy",
        /// In a frame, by TCP.
        TcpInline = 4 => "tcp_inline",
        /// Received from a socket into place.
        TcpCopy = 5 => "tcp_copy",
        /// In a frame, by RDMA.
        VerbsInline = 6 => "verbs_inline",
        /// Written into place by RDMA.
        VerbsCopy = 7 => "verbs_copy",
    }
}

/// The upper bounds of the size classes but the last, which has none.
pub const CLASS_MAX: [u64; 4] = [64, 1 << 10, 64 << 10, 1 << 20];
/// The size classes, as labels and reports spell them.
pub const CLASSES: [&str; 5] = ["64B", "1KiB", "64KiB", "1MiB", "more"];

/// The size class of a value.
#[inline]
#[must_use]
pub fn class_of(bytes: u64) -> usize {
    CLASS_MAX.iter().take_while(|max| bytes > **max).count()
}

/// Sub-buckets of each power of two: their middles are within one part in 128, so two significant digits.
const SUB_BITS: u32 = 6;
/// Times up to 2³⁶ ns, 68 s, are told apart.
const TIME_BITS: u32 = 36;
/// Buckets of a histogram.
pub const BUCKETS: usize = ((TIME_BITS - SUB_BITS + 1) << SUB_BITS) as usize;
/// A cell: the sum of what was recorded, and its buckets.
const CELL_WORDS: usize = 1 + BUCKETS;
/// How many cells there are.
pub const CELLS: usize = Stage::ALL.len() * Way::ALL.len() * CLASSES.len();

/// The bucket of a time.
#[inline]
#[must_use]
pub const fn bucket_of(nanos: u64) -> usize {
    let nanos = if nanos >> TIME_BITS == 0 {
        nanos
    } else {
        (1 << TIME_BITS) - 1
    };
    let bits = u64::BITS - nanos.leading_zeros();
    let shift = bits.saturating_sub(SUB_BITS + 1);
    (((shift as u64) << SUB_BITS) + (nanos >> shift)) as usize
}

/// The middle of a bucket, in nanoseconds.
#[must_use]
pub const fn time_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let low = (bucket - (shift << SUB_BITS)) << shift;
    low + ((1 << shift) >> 1)
}

// The largest time has the last bucket, so no time is out of range.
const _: () = assert!(bucket_of(u64::MAX) == BUCKETS - 1);

/// The number of a cell.
#[inline]
#[must_use]
pub const fn cell_of(stage: Stage, way: Way, class: usize) -> usize {
    (stage as usize * Way::ALL.len() + way as usize) * CLASSES.len() + class
}

const EVENT_WORDS: usize = 8;

/// The recorder of one shard, for its writer and for readers of the same process.
#[derive(Debug)]
pub struct Recorder {
    words: Words,
    clock_ns: u64,
    ring_at: usize,
    /// Events in the ring; a power of two, or zero.
    ring: usize,
}

/// Words of a recorder whose ring takes `ring_bytes`.
#[must_use]
pub fn words_for(ring_bytes: usize) -> usize {
    CELLS_AT + CELLS * CELL_WORDS + ring_of(ring_bytes) * EVENT_WORDS
}

const fn ring_of(bytes: usize) -> usize {
    let events = bytes / (EVENT_WORDS * 8);
    if events == 0 { 0 } else { 1 << events.ilog2() }
}

/// What stands in a recorder's head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The task.
    pub task: String,
    /// Its life.
    pub incarnation: u64,
    /// The shard.
    pub shard: u16,
    /// Its process.
    pub pid: u32,
    /// One value in so many is timed on the fastest ways.
    pub sampling: u32,
    /// What one reading of the clock costs, which every stage has been rid of.
    pub clock_ns: u32,
    /// The shard's clock.
    pub scale: Scale,
    /// Which boot of which machine, as a number: recordings of one boot share their counter. Zero if it is not known.
    pub boot: u64,
}

impl Recorder {
    /// Lays a recorder out in `words`, which are new, with a ring of at most `ring_bytes`.
    #[must_use]
    pub fn new(words: Words, ring_bytes: usize, head: &Head) -> Self {
        let ring_at = CELLS_AT + CELLS * CELL_WORDS;
        let room = words.all().len().saturating_sub(ring_at) / EVENT_WORDS;
        let ring = ring_of(ring_bytes.min(room * EVENT_WORDS * 8));
        let recorder = Self {
            words,
            clock_ns: u64::from(head.clock_ns),
            ring_at,
            ring,
        };
        let numbers = [
            (1, VERSION),
            (2, recorder.words.all().len() as u64),
            (3, u64::from(head.shard)),
            (4, head.incarnation),
            (5, head.scale.rate),
            (6, head.scale.ticks),
            (7, head.scale.nanos),
            (8, ring_at as u64),
            (9, ring as u64),
            (11, CELLS_AT as u64),
            (12, CELLS as u64),
            (13, CELL_WORDS as u64),
            (14, u64::from(head.pid)),
            (15, u64::from(head.sampling)),
            (16, u64::from(head.clock_ns)),
            (17, head.boot),
        ];
        for (at, number) in numbers {
            recorder.put(at, number);
        }
        recorder.put_text(TASK_AT, TASK_BYTES, head.task.as_bytes());
        // Last, so that what is being laid out is not taken for a recording.
        recorder.put(0, MAGIC);
        recorder
    }

    #[inline]
    fn put(&self, at: usize, number: u64) {
        if let Some(word) = self.words.all().get(at) {
            word.store(number, Ordering::Relaxed);
        }
    }

    fn put_text(&self, at: usize, room: usize, text: &[u8]) {
        for (index, eight) in text[..text.len().min(room)].chunks(8).enumerate() {
            let mut le = [0; 8];
            le[..eight.len()].copy_from_slice(eight);
            self.put(at + index, u64::from_le_bytes(le));
        }
    }

    /// What a reading of the clock costs: subtracted from each recorded time.
    #[must_use]
    pub const fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    /// Remembers the name that a key's hash stands for; where there is no room, the oldest of its places is forgotten.
    /// Only the shard's thread may.
    pub fn name(&self, hash: u64, text: &str) {
        let all = self.words.all();
        if let (Some(turns), Some(table)) = (all.get(TURNS_AT), all.get(NAMES_AT..CELLS_AT)) {
            let turn = turns.load(Ordering::Relaxed) + 1;
            turns.store(turn, Ordering::Relaxed);
            names::put(table, hash, text, turn);
        }
    }

    /// Records a time. Any thread may.
    #[inline]
    pub fn record(&self, cell: usize, nanos: u64) {
        let at = CELLS_AT + cell * CELL_WORDS;
        let all = self.words.all();
        if let (Some(sum), Some(count)) = (all.get(at), all.get(at + 1 + bucket_of(nanos))) {
            sum.fetch_add(nanos, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds an event to the ring; `number` counts those before it. Only the shard's thread may.
    #[inline]
    pub fn event(&self, number: u64, event: &Event) {
        if self.ring == 0 {
            return;
        }
        let at = self.ring_at + (number as usize & (self.ring - 1)) * EVENT_WORDS;
        let Some(words) = self.words.all().get(at..at + EVENT_WORDS) else {
            return;
        };
        let kind = event.what as u64
            | (event.way as u64) << 8
            | u64::from(event.class) << 16
            | u64::from(event.c) << 32;
        let values = [
            event.at,
            kind,
            event.step,
            event.key,
            u64::from(event.frame_iter.0) << 32 | u64::from(event.frame_iter.1),
            u64::from(event.ordinal),
            u64::from(event.a) << 32 | u64::from(event.b),
        ];
        slot::write(words, &values, number + 1);
        self.put(10, number + 1);
    }

    /// A copy, for readers. An event that is written meanwhile has no number in it, and so is none.
    #[must_use]
    pub fn copy(&self) -> Vec<u64> {
        let all = self.words.all();
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (before, rest) = all.split_at(self.ring_at.min(all.len()));
        let mut copied = Vec::with_capacity(all.len());
        copied.extend(before.iter().map(load));
        let (slots, after) = rest.as_chunks::<EVENT_WORDS>();
        for slot in slots {
            let mut words = [0; EVENT_WORDS];
            if !slot::read(slot, &mut words) {
                words[EVENT_WORDS - 1] = 0;
            }
            copied.extend(words);
        }
        copied.extend(after.iter().map(load));
        copied
    }

    /// The sum and the buckets of a cell that was recorded into; `None` for one that was not.
    #[must_use]
    pub fn cell(&self, cell: usize) -> Option<(u64, Vec<(u64, u64)>)> {
        let at = CELLS_AT + cell * CELL_WORDS;
        let words = self.words.all().get(at..at + CELL_WORDS)?;
        let (sum, buckets) = words.split_first()?;
        let sum = sum.load(Ordering::Relaxed);
        let load = |(bucket, count): (usize, &AtomicU64)| {
            let count = count.load(Ordering::Relaxed);
            (count > 0).then(|| (time_of(bucket), count))
        };
        // A cell that holds nothing but zeros has a sum of zero; one that has no sum is looked through no further.
        let found: Vec<_> = if sum == 0 {
            buckets
                .iter()
                .take(2)
                .enumerate()
                .filter_map(load)
                .collect()
        } else {
            buckets.iter().enumerate().filter_map(load).collect()
        };
        (!found.is_empty()).then_some((sum, found))
    }
}

/// Why bytes are no recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecorded {
    /// Something else.
    #[error("it does not begin like a recording")]
    Foreign,
    /// A recording of another version.
    #[error("it is a recording of version {0}, and this program reads version {VERSION}")]
    Version(u64),
    /// The end is missing, or the layout does not fit.
    #[error("it is damaged or cut off")]
    Damaged,
}

/// A recording that was read.
#[derive(Debug)]
pub struct Recording {
    words: Vec<u64>,
    /// Whose it is.
    pub head: Head,
}

impl Recording {
    /// What `bytes` hold.
    ///
    /// # Errors
    /// [`NotRecorded`].
    pub fn of(bytes: &[u8]) -> Result<Self, NotRecorded> {
        let (eights, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = eights
            .iter()
            .map(|eight| u64::from_le_bytes(*eight))
            .collect();
        let head = Self::head_of(&words)?;
        Ok(Self { words, head })
    }

    /// The head of `words`, if they are what this version writes.
    fn head_of(words: &[u64]) -> Result<Head, NotRecorded> {
        let at = |at: usize| words.get(at).copied();
        if at(0) != Some(MAGIC) {
            return Err(NotRecorded::Foreign);
        }
        match at(1) {
            Some(VERSION) => {}
            other => return Err(other.map_or(NotRecorded::Damaged, NotRecorded::Version)),
        }
        let number = |index: usize| at(index).ok_or(NotRecorded::Damaged);
        let cells_at = CELLS_AT as u64;
        let ring_at = cells_at + (CELLS * CELL_WORDS) as u64;
        let ring = number(9)?;
        let fits = number(2)? == words.len() as u64
            && number(8)? == ring_at
            && number(11)? == cells_at
            && number(12)? == CELLS as u64
            && number(13)? == CELL_WORDS as u64
            && (ring == 0 || ring.is_power_of_two())
            && ring <= (words.len() as u64).saturating_sub(ring_at) / EVENT_WORDS as u64;
        if !fits {
            return Err(NotRecorded::Damaged);
        }
        Ok(Head {
            task: text_at(words, TASK_AT, TASK_BYTES),
            incarnation: number(4)?,
            shard: number(3)? as u16,
            pid: number(14)? as u32,
            sampling: number(15)? as u32,
            clock_ns: number(16)? as u32,
            scale: Scale {
                ticks: number(6)?,
                nanos: number(7)?,
                rate: number(5)?,
            },
            boot: number(17)?,
        })
    }

    /// The events that are whole, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let numbered = self.numbered_events().into_iter();
        numbered.map(|(_, event)| event).collect()
    }

    /// The same, each with its number, by which another copy of this recording has it too.
    #[must_use]
    pub fn numbered_events(&self) -> Vec<(u64, Event)> {
        let ring_at = self.words[8] as usize;
        let ring = &self.words[ring_at..ring_at + self.words[9] as usize * EVENT_WORDS];
        let (events, _) = ring.as_chunks::<EVENT_WORDS>();
        let mut found: Vec<(u64, Event)> = events
            .iter()
            .enumerate()
            .filter_map(|(slot, words)| {
                let what = What::from_wire(words[1] as u8)?;
                let way = Way::from_wire((words[1] >> 8) as u8)?;
                let event = Event {
                    what,
                    at: words[0],
                    way,
                    class: ((words[1] >> 16) as u8).min(CLASSES.len() as u8 - 1),
                    step: words[2],
                    key: words[3],
                    frame_iter: ((words[4] >> 32) as u32, words[4] as u32),
                    ordinal: words[5] as u32,
                    a: (words[6] >> 32) as u32,
                    b: words[6] as u32,
                    c: (words[1] >> 32) as u32,
                };
                let number = words[7].checked_sub(1)?;
                let is_of_slot = number as usize & (events.len() - 1) == slot;
                is_of_slot.then_some((words[7], event))
            })
            .collect();
        found.sort_by_key(|(number, _)| *number);
        found
    }

    /// What the hash of a key stands for, if that is still known.
    #[must_use]
    pub fn name_of(&self, hash: u64) -> Option<String> {
        names::find(self.words.get(NAMES_AT..CELLS_AT)?, hash)
    }
}

fn text_at(words: &[u64], at: usize, room: usize) -> String {
    let end = (at + room.div_ceil(8)).min(words.len());
    let bytes: Vec<u8> = words[at.min(end)..end]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let bytes = &bytes[..bytes.len().min(room)];
    let len = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[cfg(test)]
mod tests;
