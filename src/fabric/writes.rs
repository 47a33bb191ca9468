//! Writes: one-sided writes of this side, sent as chunks and ended by the peer's answers (see `queue_pair.rs`).
//!
//! Knows the sources it was lent and what of them was sent; nothing of landings here.

use std::collections::VecDeque;

use super::lane::MemoryLane;
use super::queue_pair::{CHUNK, DONE, REFUSED, fabric_frame, place_word, sequence_of};
use super::ring::{Lane, PostError, Producer, Reserve};
use super::{Arrival, DownReason, Outcome, QpId, WRITES_MAX, Write};
use crate::wire::Frame;

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

    pub(super) fn push_chunks(&mut self, tx: &mut Producer<MemoryLane>) -> Result<bool, PostError> {
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
            let rest = &outgoing.write.source.bytes()[outgoing.sent..];
            let chunk = &rest[..rest.len().min(chunk_max)];
            match tx.post(&outgoing.frame(chunk.len()), [chunk, &[]], reserve) {
                Ok(()) => any = true,
                Err(PostError::Full) => break,
                Err(error) => return Err(error),
            }
            // A header counts as a line, so that a queue of empty writes is bounded per poll as well.
            pushed += chunk.len() + 64;
            outgoing.sent += chunk.len();
            if chunk.len() == rest.len() {
                self.sending += 1;
            }
        }
        Ok(any)
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
        // Refused comes after the first chunk; nothing is answered before it was begun.
        let begun = |outgoing: &mut Outgoing| {
            outgoing.sequence == sequence_of(frame) && (is_sent || outgoing.sent > 0)
        };
        let Some(Outgoing { write, .. }) = self.writes.pop_front_if(begun) else {
            return Err(DownReason::Corrupt);
        };
        self.sending = self.sending.saturating_sub(1);
        sink(Arrival::Wrote {
            qp,
            token: write.token,
            source: write.source,
            outcome,
        });
        Ok(())
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
    fn frame(&self, len: usize) -> Frame {
        let mut frame = fabric_frame(CHUNK, self.sequence);
        frame.words[1] |= (len as u64) << 32;
        frame.words[2] =
            u64::from(self.write.landing.index) | u64::from(self.write.landing.generation) << 32;
        frame.words[3] = self.write.region.offset;
        frame.words[4] = self.write.source.bytes().len() as u64;
        frame.words[5] = place_word(&self.write.region);
        frame
    }
}
