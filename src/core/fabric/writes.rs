//! Writes: one-sided writes of this side, sent as chunks and ended by the peer's answers (see `queue_pair.rs`).
//!
//! Knows the sources it was lent and what of them was sent; nothing of landings here. A ring takes a chunk at once. A
//! byte stream takes its head, and then its bytes as they fit: until the last of them has gone the source stays here,
//! even if the peer says meanwhile that it does not want them.

use std::collections::VecDeque;

use super::lane::MemoryLane;
use super::queue_pair::{CHUNK, DONE, REFUSED, fabric_frame, sequence_of};
use super::ring::{PostError, Reserve, RingMemory, RingProducer};
use super::{Arrival, DownReason, Outcome, QpId, WRITES_MAX, Write};
use crate::wire::Frame;
use crate::wire::frame::INLINE_BODY_MAX;

/// Chunk bytes one queue pair sends per poll: 1 µs of copying, so that a large write does not hold the loop up.
const CHUNKS_PER_POLL: usize = 32 << 10;

/// The longest chunk: half a first-level cache, so that the receiver copies while the sender fills the next.
const CHUNK_MAX: usize = 16 << 10;

/// Our writes to the peer, in order: some wait for their answer, one is being sent, the rest wait.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    writes: VecDeque<Outgoing>,
    /// The first write that is not sent completely; all before it wait for answers.
    sending: usize,
    sequence: u32,
}

#[derive(Debug)]
struct Outgoing {
    write: Write,
    sequence: u32,
    sent: usize,
    /// Up to where the heads of chunks have promised bytes; more than `sent` only on a stream.
    promised: usize,
    /// The peer refused it while bytes were still promised.
    is_refused: bool,
}

impl Outbound {
    pub(super) fn post(&mut self, write: Write) -> Result<(), Write> {
        if self.writes.len() >= WRITES_MAX {
            return Err(write);
        }
        self.writes.push_back(Outgoing {
            write,
            sequence: self.sequence,
            sent: 0,
            promised: 0,
            is_refused: false,
        });
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending < self.writes.len()
    }

    pub(super) fn push_chunks(
        &mut self,
        tx: &mut RingProducer<MemoryLane>,
    ) -> Result<bool, PostError> {
        let payload = tx.lane().payload_len();
        let reserve = Reserve {
            slots: tx.lane().slot_count() / 2,
            payload: payload / 2,
        };
        let chunk_max = CHUNK_MAX.min(payload as usize / 8);
        let mut pushed = 0;
        let mut any = false;
        while pushed < CHUNKS_PER_POLL {
            let Some(outgoing) = self.writes.get_mut(self.sending) else {
                break;
            };
            let rest = &outgoing.bytes()[outgoing.sent..];
            let chunk = &rest[..rest.len().min(chunk_max)];
            match tx.post(&outgoing.frame(chunk.len()), [chunk, &[]], reserve) {
                Ok(()) => any = true,
                Err(PostError::Full) => break,
                Err(error) => return Err(error),
            }
            // A header counts as a line, so that a queue of empty writes is bounded per poll as well.
            pushed += chunk.len() + 64;
            let (len, is_last) = (chunk.len(), chunk.len() == rest.len());
            outgoing.sent += len;
            outgoing.promised = outgoing.sent;
            if is_last {
                self.sending += 1;
            }
        }
        Ok(any)
    }

    /// The head of a stream's next chunk, of up to `len_max` bytes, and how many bytes it promises. Up to sixteen lie
    /// in the frame's tail already. To be called only when all that was promised before is sent.
    pub(super) fn begin_chunk(&mut self, len_max: usize) -> Option<(Frame, usize)> {
        // The answer to what follows a refused write would come before that was given back.
        if self.writes.front().is_some_and(|of| of.is_refused) {
            return None;
        }
        let outgoing = self.writes.get_mut(self.sending)?;
        let rest = &outgoing.bytes()[outgoing.sent..];
        let chunk = &rest[..rest.len().min(len_max)];
        let len = chunk.len();
        let mut frame = outgoing.frame(len);
        if len <= INLINE_BODY_MAX {
            frame.set_tail([chunk, &[]]);
        }
        outgoing.promised = outgoing.sent + len;
        if len <= INLINE_BODY_MAX {
            self.chunk_sent(len);
            return Some((frame, 0));
        }
        Some((frame, len))
    }

    /// The promised bytes that are not sent.
    pub(super) fn chunk_bytes(&self) -> &[u8] {
        self.writes
            .get(self.sending)
            .map_or(&[], |of| &of.bytes()[of.sent..of.promised])
    }

    /// So many of them went.
    pub(super) fn chunk_sent(&mut self, len: usize) {
        if let Some(outgoing) = self.writes.get_mut(self.sending) {
            outgoing.sent += len;
            if outgoing.sent == outgoing.write.source.size() {
                self.sending += 1;
            }
        }
    }

    /// True if the oldest write was refused and nothing of it is promised any more.
    pub(super) fn has_refused(&self) -> bool {
        self.writes
            .front()
            .is_some_and(|of| of.is_refused && of.sent == of.promised)
    }

    /// Gives such a write back.
    pub(super) fn give_refused<S: FnMut(Arrival<'_>)>(&mut self, qp: QpId, sink: &mut S) -> usize {
        if !self.has_refused() {
            return 0;
        }
        self.pop(qp, Outcome::Refused, sink);
        1
    }

    /// The peer's answer to the oldest write that has none.
    pub(super) fn answer<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        frame: &Frame,
        sink: &mut S,
    ) -> Result<(), DownReason> {
        let is_sent = self.sending > 0;
        let outcome = match frame.words[2] {
            DONE if is_sent => Outcome::Done,
            REFUSED => Outcome::Refused,
            _ => return Err(DownReason::Corrupt),
        };
        // Refused comes after the first chunk, and once; nothing is answered before it was begun.
        let Some(oldest) = self.writes.front_mut().filter(|of| {
            of.sequence == sequence_of(frame) && (is_sent || of.promised > 0) && !of.is_refused
        }) else {
            return Err(DownReason::Corrupt);
        };
        if oldest.sent < oldest.promised {
            oldest.is_refused = true;
        } else {
            self.pop(qp, outcome, sink);
        }
        Ok(())
    }

    fn pop<S: FnMut(Arrival<'_>)>(&mut self, qp: QpId, outcome: Outcome, sink: &mut S) {
        if let Some(Outgoing { write, .. }) = self.writes.pop_front() {
            self.sending = self.sending.saturating_sub(1);
            sink(Arrival::Wrote {
                qp,
                token: write.token,
                source: write.source,
                outcome,
            });
        }
    }

    pub(super) fn flush<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        let count = budget.min(self.writes.len());
        for Outgoing { write, .. } in self.writes.drain(..count) {
            sink(Arrival::Wrote {
                qp,
                token: write.token,
                source: write.source,
                outcome: Outcome::Flushed,
            });
        }
        self.sending = 0;
        count
    }
}

impl Outgoing {
    /// What is sent: no write of memory that the host cannot read was taken.
    fn bytes(&self) -> &[u8] {
        self.write.source.host().unwrap_or_default()
    }

    fn frame(&self, len: usize) -> Frame {
        let mut frame = fabric_frame(CHUNK, self.sequence);
        frame.words[1] |= (len as u64) << 32;
        frame.words[2] =
            u64::from(self.write.landing.index) | u64::from(self.write.landing.generation) << 32;
        frame.words[3] = self.write.region.offset;
        frame.words[4] = self.write.source.size() as u64;
        frame.words[5] = self.write.region.place();
        frame
    }
}

#[cfg(test)]
mod tests;
