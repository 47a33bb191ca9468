//! Landings: buffers open for the peer's writes, and the writes that come in as chunks (see `queue_pair.rs`).
//!
//! Knows frames and buffers of one queue pair; nothing of its own writes, nor what brings a chunk's bytes. Every
//! field of a chunk is an allegation: the range is checked once, when a write begins, against a landing that this side
//! opened. Generations come round, so a write holds on to that one opening and not to the landing's name.

use std::collections::VecDeque;

use super::queue_pair::{ANSWER, DONE, REFUSED, fabric_frame, sequence_of};
use super::ring::PostError;
use super::{Arrival, DownReason, LANDINGS_MAX, Landing, QpId, WRITES_MAX};
use crate::ground::Region;
use crate::memory::Buffer;
use crate::wire::Frame;

/// Landings open here, and the peer's writes into them.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    landings: Vec<Option<OpenLanding>>,
    /// By index: the generations first and last opened here. A write to one of them may have crossed its end, and the
    /// place may be open again by then; to any other, none can.
    granted: Vec<Option<(u32, u32)>>,
    /// Writes that named a landing, or a range of it, that was never theirs on this connection.
    pub(super) ungranted: u64,
    /// How many of them are open.
    open: usize,
    /// How many ever were.
    opened: u64,
    /// Closed landings on their way back.
    pub(super) quiet: VecDeque<(Landing, Buffer)>,
    /// The write whose chunks are coming.
    current: Option<Incoming>,
    /// The number of the next write.
    sequence: u32,
    /// Answers that found no room yet. A peer has no more than [`WRITES_MAX`] writes unanswered.
    pub(super) answers: VecDeque<(u32, u64)>,
}

#[derive(Debug)]
struct OpenLanding {
    generation: u32,
    /// The number of this opening, which no other has.
    serial: u64,
    buffer: Buffer,
}

#[derive(Clone, Copy, Debug)]
struct Incoming {
    sequence: u32,
    landing: Landing,
    /// The opening that its range lies in.
    serial: u64,
    /// Where in the buffer the written range starts.
    start: usize,
    total: usize,
    received: usize,
    is_refused: bool,
}

impl Inbound {
    pub(super) fn open(&mut self, landing: Landing, buffer: Buffer) -> Result<Region, Buffer> {
        if landing.index >= LANDINGS_MAX {
            return Err(buffer);
        }
        let index = landing.index as usize;
        if self.landings.len() <= index {
            self.landings.resize_with(index + 1, || None);
            self.granted.resize(index + 1, None);
        }
        let place = &mut self.landings[index];
        if place.is_some() {
            return Err(buffer);
        }
        let region = buffer.region();
        let first = self.granted[index].map_or(landing.generation, |(first, _)| first);
        self.granted[index] = Some((first, landing.generation));
        *place = Some(OpenLanding {
            generation: landing.generation,
            serial: self.opened,
            buffer,
        });
        self.open += 1;
        self.opened += 1;
        Ok(region)
    }

    pub(super) fn close(&mut self, landing: Landing) -> bool {
        let taken = match self.find(landing) {
            Some(_) => self.take(landing.index),
            None => None,
        };
        let is_open = taken.is_some();
        self.quiet.extend(taken.map(|buffer| (landing, buffer)));
        is_open
    }

    pub(super) fn close_all(&mut self) {
        self.open = 0;
        for (index, place) in self.landings.iter_mut().enumerate() {
            if let Some(open) = place.take() {
                let landing = Landing {
                    index: index as u32,
                    generation: open.generation,
                };
                self.quiet.push_back((landing, open.buffer));
            }
        }
    }

    fn find(&mut self, landing: Landing) -> Option<&mut OpenLanding> {
        let open = self.landings.get_mut(landing.index as usize)?.as_mut()?;
        (open.generation == landing.generation).then_some(open)
    }

    /// The buffer that a write began in, if its landing was not closed since.
    fn find_begun(&mut self, write: &Incoming) -> Option<&mut Buffer> {
        let index = write.landing.index as usize;
        let open = self.landings.get_mut(index)?.as_mut()?;
        let is_it = open.serial == write.serial;
        (is_it || mutant!("landing_serial_unchecked")).then_some(&mut open.buffer)
    }

    fn take(&mut self, index: u32) -> Option<Buffer> {
        let open = self.landings.get_mut(index as usize)?.take()?;
        self.open -= 1;
        Some(open.buffer)
    }

    pub(super) fn give_quiet<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        let count = budget.min(self.quiet.len());
        for (landing, buffer) in self.quiet.drain(..count) {
            sink(Arrival::Quiet {
                qp,
                landing,
                buffer,
            });
        }
        count
    }

    /// True if a landing is open: a write may come at any time.
    pub(super) const fn has_landings(&self) -> bool {
        self.open > 0
    }

    /// A chunk's head, of `len` bytes. Everything in the frame is an allegation.
    pub(super) fn begin_chunk(&mut self, frame: &Frame, len: usize) -> Result<(), DownReason> {
        let write = match self.current.take() {
            Some(write) if write.sequence == sequence_of(frame) => write,
            Some(write) if !write.is_refused => return Err(DownReason::Corrupt),
            _ => self.begin(frame)?,
        };
        let rest = write.total - write.received;
        if len > rest || (len == 0 && rest > 0) {
            return Err(DownReason::Corrupt);
        }
        self.current = Some(write);
        Ok(())
    }

    /// Where the next `len` bytes of the chunk go, which are no more than it has left; `None` if they are dropped.
    pub(super) fn target(&mut self, len: usize) -> Result<Option<&mut [u8]>, DownReason> {
        let Some(write) = self.current.filter(|write| !write.is_refused) else {
            return Ok(None);
        };
        // The landing may have been closed since the last bytes; its range was checked when the write began.
        if self.find_begun(&write).is_none() {
            self.answer(write.sequence, REFUSED)?;
            self.current = Some(Incoming {
                is_refused: true,
                ..write
            });
            return Ok(None);
        }
        let at = write.start + write.received;
        let buffer = self.find_begun(&write).ok_or(DownReason::Corrupt)?;
        let target = buffer.get_mut(at..at + len);
        target.ok_or(DownReason::Corrupt).map(Some)
    }

    /// `len` bytes of the chunk are where they belong.
    pub(super) fn advance<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        len: usize,
        sink: &mut S,
    ) -> Result<(), DownReason> {
        let Some(mut write) = self.current.take() else {
            return Err(DownReason::Corrupt);
        };
        write.received += len;
        if write.received < write.total {
            self.current = Some(write);
        } else if !write.is_refused {
            self.answer(write.sequence, DONE)?;
            if self.find_begun(&write).is_some()
                && let Some(buffer) = self.take(write.landing.index)
            {
                sink(Arrival::Landed {
                    qp,
                    landing: write.landing,
                    len: write.total as u64,
                    buffer,
                });
            }
        }
        Ok(())
    }

    /// The first chunk of a write: is there such a landing, and does the range lie in it?
    fn begin(&mut self, frame: &Frame) -> Result<Incoming, DownReason> {
        if sequence_of(frame) != self.sequence {
            return Err(DownReason::Corrupt);
        }
        self.sequence = self.sequence.wrapping_add(1);
        let landing = Landing {
            index: frame.words[2] as u32,
            generation: (frame.words[2] >> 32) as u32,
        };
        let total = usize::try_from(frame.words[4]).map_err(|_| DownReason::Corrupt)?;
        let found = self.find(landing).and_then(|open| {
            let region = open.buffer.region();
            let start = usize::try_from(frame.words[3].checked_sub(region.offset)?).ok()?;
            let fits = start.checked_add(total)? <= open.buffer.len();
            (fits && frame.words[5] == region.place()).then_some((open.serial, start))
        });
        let (serial, start) = found.unwrap_or_default();
        let write = Incoming {
            sequence: sequence_of(frame),
            landing,
            serial,
            start,
            total,
            received: 0,
            is_refused: found.is_none(),
        };
        if write.is_refused {
            let granted = self.granted.get(landing.index as usize).copied().flatten();
            let was_open = granted.is_some_and(|(first, last)| {
                landing.generation.wrapping_sub(first) <= last.wrapping_sub(first)
            });
            if self.find(landing).is_some() || !was_open {
                self.ungranted += 1;
            }
            self.answer(write.sequence, REFUSED)?;
        }
        Ok(write)
    }

    fn answer(&mut self, sequence: u32, outcome: u64) -> Result<(), DownReason> {
        if self.answers.len() >= WRITES_MAX {
            return Err(DownReason::Corrupt);
        }
        self.answers.push_back((sequence, outcome));
        Ok(())
    }

    /// Posts answers as far as there is room; true if any went.
    pub(super) fn push_answers(
        &mut self,
        mut post: impl FnMut(&Frame) -> Result<(), PostError>,
    ) -> Result<bool, PostError> {
        let mut any = false;
        while let Some(&(sequence, outcome)) = self.answers.front() {
            let mut frame = fabric_frame(ANSWER, sequence);
            frame.words[2] = outcome;
            match post(&frame) {
                Ok(()) => any = true,
                Err(PostError::Full) => break,
                Err(error) => return Err(error),
            }
            self.answers.pop_front();
        }
        Ok(any)
    }
}
