//! Landings of one queue pair, and the frame whose body is still coming. No unsafe.
//!
//! Knows what was opened here and what the peer was told of it; not messages or queues. An immediate is an allegation:
//! it names a landing that is open, of which the peer was told, or the queue pair goes down.
//!
//! ```text
//!  open ──▶ due ──▶ told ──▶ Landed, at the immediate
//!            │        └─ close ─▶ closing ──▶ Quiet, at the peer's word, or Landed if the write was faster
//!            └─ close ─▶ Quiet: the peer never knew
//! ```

use std::collections::VecDeque;

use super::message::{Grant, VerbsMalformed, immediate};
use crate::fabric::{LANDINGS_MAX, Landing};
use crate::ground::limits::BODY_MAX;
use crate::memory::Buffer;
use crate::wire::Frame;

/// What the peer may write to, and what it has said.
#[derive(Debug)]
pub(super) struct IncomingWrites {
    landings: Vec<Option<Open>>,
    /// Landings that the peer is to be told of, oldest first; some may be closed since.
    due: VecDeque<Landing>,
    /// The frame whose body is still coming, and what came of it.
    frame: Option<Frame>,
    body: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    generation: u32,
    buffer: Buffer,
    address: u64,
    rkey: u32,
    is_told: bool,
    is_closing: bool,
    /// How long the write is that ends with the next immediate, where the peer has said so.
    total: Option<u64>,
}

/// What came of a closed landing.
#[derive(Debug)]
pub(super) enum ClosedLanding {
    /// There is no such landing, or it is closing already.
    Nothing,
    /// The peer must say that it is quiet.
    Ask,
    /// It is: the peer never heard of it.
    Quiet(Buffer),
}

impl IncomingWrites {
    pub(super) fn new() -> Self {
        Self {
            landings: Vec::new(),
            due: VecDeque::new(),
            frame: None,
            body: Vec::with_capacity(BODY_MAX),
        }
    }

    /// Opens a landing; `address` and `rkey` are what the device calls its buffer.
    pub(super) fn open(
        &mut self,
        landing: Landing,
        buffer: Buffer,
        (address, rkey): (u64, u32),
    ) -> Result<(), Buffer> {
        if landing.index >= LANDINGS_MAX {
            return Err(buffer);
        }
        let index = landing.index as usize;
        if self.landings.len() <= index {
            self.landings.resize_with(index + 1, || None);
        }
        if self.landings[index].is_some() {
            return Err(buffer);
        }
        self.landings[index] = Some(Open {
            generation: landing.generation,
            buffer,
            address,
            rkey,
            is_told: false,
            is_closing: false,
            total: None,
        });
        self.due.push_back(landing);
        Ok(())
    }

    pub(super) fn close(&mut self, landing: Landing) -> ClosedLanding {
        let Some(open) = self.find(landing) else {
            return ClosedLanding::Nothing;
        };
        if open.is_told {
            return if std::mem::replace(&mut open.is_closing, true) {
                ClosedLanding::Nothing
            } else {
                ClosedLanding::Ask
            };
        }
        self.due.retain(|&due| due != landing);
        self.take(landing)
            .map_or(ClosedLanding::Nothing, ClosedLanding::Quiet)
    }

    /// Landings that the peer is to be told of.
    #[inline]
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }

    /// The grants of the oldest `count` of them, which count as told from here on.
    pub(super) fn tell(&mut self, count: usize) -> impl ExactSizeIterator<Item = Grant> {
        let count = count.min(self.due.len());
        for at in 0..count {
            let landing = self.due[at];
            if let Some(open) = self.find(landing) {
                open.is_told = true;
            }
        }
        let Self { landings, due, .. } = self;
        due.drain(..count).map(|landing| {
            let open = landings[landing.index as usize]
                .as_ref()
                .expect("what is due is open: closing takes it off");
            Grant {
                landing,
                region: open.buffer.region(),
                address: open.address,
                rkey: open.rkey,
            }
        })
    }

    /// True if the landing is open and its owner wants it to be written.
    pub(super) fn is_open(&mut self, landing: Landing) -> bool {
        self.find(landing).is_some_and(|open| !open.is_closing)
    }

    /// The peer says that nothing will come to a closed landing.
    pub(super) fn quiet(&mut self, landing: Landing) -> Result<Option<Buffer>, VerbsMalformed> {
        match self.find(landing) {
            // The write was faster than our word.
            None => Ok(None),
            Some(open) if open.is_closing => Ok(self.take(landing)),
            Some(_) => Err(VerbsMalformed),
        }
    }

    /// The peer says how long the write is that ends with the next immediate.
    pub(super) fn total(&mut self, landing: Landing, len: u64) -> Result<(), VerbsMalformed> {
        let open = self
            .find(landing)
            .filter(|open| open.is_told)
            .ok_or(VerbsMalformed)?;
        if len > open.buffer.len() as u64 {
            return Err(VerbsMalformed);
        }
        open.total = Some(len);
        Ok(())
    }

    /// A write ended, whose last piece was `len` bytes.
    #[inline]
    pub(super) fn landed(
        &mut self,
        told: u32,
        len: u32,
    ) -> Result<(Landing, u64, Buffer), VerbsMalformed> {
        let index = told & 0xffff;
        let open = self
            .landings
            .get(index as usize)
            .and_then(Option::as_ref)
            .ok_or(VerbsMalformed)?;
        let landing = Landing {
            index,
            generation: open.generation,
        };
        let len = open.total.unwrap_or_else(|| len.into());
        if !open.is_told || immediate(landing) != told || len > open.buffer.len() as u64 {
            return Err(VerbsMalformed);
        }
        let buffer = self.take(landing).ok_or(VerbsMalformed)?;
        Ok((landing, len, buffer))
    }

    /// A frame whose body comes in further messages.
    pub(super) fn begin(&mut self, frame: Frame, body: &[u8]) -> Result<(), VerbsMalformed> {
        if self.frame.is_some() || frame.body_len() as usize > BODY_MAX {
            return Err(VerbsMalformed);
        }
        self.body.clear();
        self.body.extend_from_slice(body);
        self.frame = Some(frame);
        Ok(())
    }

    /// True as long as a frame's body is coming.
    #[inline]
    pub(super) const fn is_in_frame(&self) -> bool {
        self.frame.is_some()
    }

    /// More of its body; the whole, once it is.
    pub(super) fn further(
        &mut self,
        body: &[u8],
    ) -> Result<Option<(Frame, &[u8])>, VerbsMalformed> {
        let frame = self.frame.ok_or(VerbsMalformed)?;
        let len = frame.body_len() as usize;
        if self.body.len() + body.len() > len {
            return Err(VerbsMalformed);
        }
        self.body.extend_from_slice(body);
        if self.body.len() < len {
            return Ok(None);
        }
        self.frame = None;
        Ok(Some((frame, &self.body)))
    }

    /// Everything that is open, once nothing can come any more.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (Landing, Buffer)> {
        self.due.clear();
        self.landings
            .iter_mut()
            .enumerate()
            .filter_map(|(index, place)| {
                let open = place.take()?;
                let landing = Landing {
                    index: index as u32,
                    generation: open.generation,
                };
                Some((landing, open.buffer))
            })
    }

    fn find(&mut self, landing: Landing) -> Option<&mut Open> {
        let open = self.landings.get_mut(landing.index as usize)?.as_mut()?;
        (open.generation == landing.generation).then_some(open)
    }

    fn take(&mut self, landing: Landing) -> Option<Buffer> {
        self.find(landing)?;
        self.landings[landing.index as usize]
            .take()
            .map(|open| open.buffer)
    }
}
