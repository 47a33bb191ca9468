//! A queue pair over two lanes: frames, and one-sided writes emulated by chunk frames of the fabric's own.
//!
//! Knows its two rings and what it was lent; not the other queue pairs of its port, nor when it is polled.
//!
//! ```text
//!  word 0            word 1              word 2                word 3        word 4    word 5            tail
//!  kind CHUNK  0xf0  sequence, body_len  landing, generation   range start   total     arena, segment,   body if ≤ 16
//!                                                                                      generation
//!  kind ANSWER 0xf1  sequence            0 done, 1 refused
//!  kind BYE    0xf2
//! ```
//!
//! Writes of a queue pair are numbered, and each is sent as chunks in order; the receiver knows how far each is, so a
//! chunk need not say it. The receiver copies chunks straight from the ring into the landing, which it holds, and answers
//! each write once: done when the last byte is in, or refused at the first chunk that has no landing to go to. A writer
//! that reads "refused" sends no more of that write. Answers come in the order of the writes.
//!
//! Chunks take at most half of the ring, so that small frames never wait behind a large write; the last free slot is kept
//! for BYE, so that a close can always be told.

use std::collections::VecDeque;

use super::doorbell::PeerWake;
use super::lane::MemoryLane;
use super::link::Endpoint;
use super::ring::{Body, Consumer, Lane, PostError, Producer, Reserve, body_max};
use super::{
    Arrival, BODY_MAX, Caps, DownReason, FABRIC_KIND_MIN, LANDINGS_MAX, Landing, Outcome, QpId,
    Refusal, WRITES_MAX, Write,
};
use crate::ground::Region;
use crate::memory::Buffer;
use crate::wire::Frame;
use crate::wire::frame::INLINE_BODY_MAX;

const CHUNK: u8 = FABRIC_KIND_MIN;
const ANSWER: u8 = FABRIC_KIND_MIN + 1;
const BYE: u8 = FABRIC_KIND_MIN + 2;

const DONE: u64 = 0;
const REFUSED: u64 = 1;

/// Chunk bytes one queue pair sends per poll: 1 µs of copying, so that a large write does not hold the loop up.
const CHUNKS_PER_POLL: usize = 32 << 10;

/// The longest chunk: half a first-level cache, so that the receiver copies while the sender fills the next.
const CHUNK_MAX: usize = 16 << 10;

/// What a frame or an answer leaves free: the slot for BYE.
const FOR_BYE: Reserve = Reserve {
    slots: 1,
    payload: 0,
};

const NONE: Reserve = Reserve {
    slots: 0,
    payload: 0,
};

#[derive(Debug)]
pub(super) struct QueuePair {
    tx: Producer<MemoryLane>,
    rx: Consumer<MemoryLane>,
    caps: Caps,
    pub(super) wake: PeerWake,
    inbound: Inbound,
    outbound: Outbound,
    /// Set once the queue pair is going down: from then on it only gives back what it holds.
    down: Option<DownReason>,
}

/// What is left to do for a queue pair apart from its ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// Nothing.
    Nothing,
    /// Something; look again.
    Something,
    /// It gave back everything, including its Down: to be forgotten.
    Gone,
}

impl QueuePair {
    pub(super) fn new(
        endpoint: Endpoint,
        wake: PeerWake,
        body_limit: usize,
        read_domain: bool,
    ) -> Self {
        let body_max = body_limit
            .min(BODY_MAX)
            .min(body_max(u64::from(endpoint.geometry.payload_bytes)));
        Self {
            tx: Producer::new(endpoint.tx),
            rx: Consumer::new(endpoint.rx),
            caps: Caps {
                body_max,
                one_sided: false,
                read_domain,
            },
            wake,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            down: None,
        }
    }

    pub(super) const fn caps(&self) -> Caps {
        self.caps
    }

    pub(super) const fn is_open(&self) -> bool {
        self.down.is_none()
    }

    pub(super) fn post_send(&mut self, frame: &Frame, body: [&[u8]; 2]) -> Result<(), Refusal> {
        let len = body[0].len() + body[1].len();
        let told = frame.body_len() as usize;
        let agrees = len == told || (len == 0 && told <= INLINE_BODY_MAX);
        if kind(frame) >= FABRIC_KIND_MIN || !agrees || told > self.caps.body_max {
            return Err(Refusal::Malformed);
        }
        self.tx
            .post(frame, body, FOR_BYE)
            .map_err(|error| match error {
                PostError::Full => Refusal::Full,
                PostError::Corrupt => {
                    self.go_down(DownReason::Corrupt);
                    Refusal::Closed
                }
            })
    }

    pub(super) fn post_write(&mut self, write: Write) -> Result<(), Write> {
        self.outbound.post(write)
    }

    pub(super) fn open_landing(
        &mut self,
        landing: Landing,
        buffer: Buffer,
    ) -> Result<Region, Buffer> {
        self.inbound.open(landing, buffer)
    }

    /// True if the landing was open; its Quiet comes with the next [`QueuePair::work`].
    pub(super) fn close_landing(&mut self, landing: Landing) -> bool {
        self.inbound.close(landing)
    }

    /// Starts going down: no more is sent or received; [`QueuePair::work`] gives back what is held, and then Down.
    pub(super) fn go_down(&mut self, reason: DownReason) {
        if self.down.is_none() {
            self.down = Some(reason);
            if reason != DownReason::PeerClosed {
                // Refused only by a peer whose progress is corrupt: it is not to be reached anyway.
                let _ = self.tx.post(&fabric_frame(BYE, 0), [&[], &[]], NONE);
            }
        }
    }

    /// Takes up to `budget` frames from the ring; returns how many.
    ///
    /// # Errors
    /// Why the queue pair must go down; what came before was given to `sink`.
    #[inline]
    pub(super) fn receive<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        budget: usize,
        scratch: &mut [u8],
        sink: &mut S,
    ) -> (usize, Option<DownReason>) {
        let Self {
            rx,
            inbound,
            outbound,
            caps,
            ..
        } = self;
        for count in 0..budget {
            let taken = rx.take(|frame, body| match kind(frame) {
                0..FABRIC_KIND_MIN => {
                    if let Some(body) = body.in_tail() {
                        // It lies in the private copy of the frame already.
                        sink(Arrival::Frame { qp, frame, body });
                        return Ok(());
                    }
                    let Some(bytes) = scratch
                        .get_mut(..body.len())
                        .filter(|bytes| bytes.len() <= caps.body_max)
                    else {
                        return Err(DownReason::Corrupt);
                    };
                    body.copy_to(bytes);
                    sink(Arrival::Frame {
                        qp,
                        frame,
                        body: bytes,
                    });
                    Ok(())
                }
                CHUNK => inbound.chunk(qp, frame, &body, sink),
                ANSWER => outbound.answer(qp, frame, sink),
                BYE => Err(DownReason::PeerClosed),
                _ => Err(DownReason::Corrupt),
            });
            match taken {
                Ok(Some(Ok(()))) => {}
                Ok(None) => return (count, None),
                Ok(Some(Err(reason))) => return (count, Some(reason)),
                Err(_) => return (count, Some(DownReason::Corrupt)),
            }
        }
        (budget, None)
    }

    /// True if something waits in the ring.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.rx.is_ready()
    }

    /// Progress the peer was told, in slots.
    pub(super) const fn told(&self) -> u64 {
        self.rx.told().slots
    }

    /// Tells the peer what it was not told yet; true if there was any.
    pub(super) fn settle(&mut self) -> bool {
        self.rx.is_unsettled() && self.rx.settle()
    }

    /// Does what is not receiving: gives back closed landings, sends answers and chunks, goes down. At most `budget`
    /// arrivals. Returns arrivals given, true if frames were posted, and whether something is left.
    pub(super) fn work<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        budget: usize,
        sink: &mut S,
    ) -> (usize, bool, Left) {
        let mut given = self.inbound.give_quiet(qp, budget, sink);
        let mut posted = false;
        if self.down.is_none() {
            posted = self.push();
        }
        let Some(reason) = self.down else {
            return (
                given,
                posted,
                if self.is_busy() {
                    Left::Something
                } else {
                    Left::Nothing
                },
            );
        };
        self.inbound.close_all();
        given += self.inbound.give_quiet(qp, budget - given, sink);
        given += self.outbound.flush(qp, budget - given, sink);
        if !self.inbound.quiet.is_empty() || !self.outbound.writes.is_empty() || given == budget {
            return (given, posted, Left::Something);
        }
        sink(Arrival::Down { qp, reason });
        (given + 1, posted, Left::Gone)
    }

    /// Sends answers and chunks as far as there is room; true if any went.
    pub(super) fn push(&mut self) -> bool {
        let pushed = match self.inbound.push_answers(&mut self.tx) {
            Ok(answers) => self
                .outbound
                .push_chunks(&mut self.tx)
                .map(|chunks| answers || chunks),
            Err(error) => Err(error),
        };
        pushed.unwrap_or_else(|_| {
            self.go_down(DownReason::Corrupt);
            false
        })
    }

    /// True if something waits that only `work` moves on.
    pub(super) fn is_busy(&self) -> bool {
        self.has_news() || !self.inbound.answers.is_empty() || self.outbound.is_sending()
    }

    /// True if something waits to be given to the owner, whatever the peer does.
    pub(super) fn has_news(&self) -> bool {
        !self.inbound.quiet.is_empty() || self.down.is_some()
    }

    /// The lanes, to spoil: sending, receiving.
    #[cfg(test)]
    pub(super) fn lanes(&self) -> (&MemoryLane, &MemoryLane) {
        (self.tx.lane(), self.rx.lane())
    }
}

const fn kind(frame: &Frame) -> u8 {
    (frame.words[0] >> 32) as u8
}

fn fabric_frame(kind: u8, sequence: u32) -> Frame {
    let mut frame = Frame::default();
    frame.words[0] = u64::from(kind) << 32;
    frame.words[1] = u64::from(sequence);
    frame
}

const fn sequence_of(frame: &Frame) -> u32 {
    frame.words[1] as u32
}

/// Landings open here, and the peer's writes into them.
#[derive(Debug, Default)]
struct Inbound {
    landings: Vec<Option<OpenLanding>>,
    /// Closed landings on their way back.
    quiet: VecDeque<(Landing, Buffer)>,
    /// The write whose chunks are coming.
    current: Option<Incoming>,
    /// The number of the next write.
    sequence: u32,
    /// Answers that found no room yet. A peer has no more than [`WRITES_MAX`] writes unanswered.
    answers: VecDeque<(u32, u64)>,
}

#[derive(Debug)]
struct OpenLanding {
    generation: u32,
    buffer: Buffer,
}

#[derive(Clone, Copy, Debug)]
struct Incoming {
    sequence: u32,
    landing: Landing,
    /// Where in the buffer the written range starts.
    start: usize,
    total: usize,
    received: usize,
    is_refused: bool,
}

impl Inbound {
    fn open(&mut self, landing: Landing, buffer: Buffer) -> Result<Region, Buffer> {
        if landing.index >= LANDINGS_MAX {
            return Err(buffer);
        }
        let index = landing.index as usize;
        if self.landings.len() <= index {
            self.landings.resize_with(index + 1, || None);
        }
        let place = &mut self.landings[index];
        if place.is_some() {
            return Err(buffer);
        }
        let region = buffer.region();
        *place = Some(OpenLanding {
            generation: landing.generation,
            buffer,
        });
        Ok(region)
    }

    fn close(&mut self, landing: Landing) -> bool {
        let taken = self.take(landing);
        let is_open = taken.is_some();
        self.quiet.extend(taken.map(|buffer| (landing, buffer)));
        is_open
    }

    fn close_all(&mut self) {
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

    fn find(&mut self, landing: Landing) -> Option<&mut Buffer> {
        let open = self.landings.get_mut(landing.index as usize)?.as_mut()?;
        (open.generation == landing.generation).then_some(&mut open.buffer)
    }

    fn take(&mut self, landing: Landing) -> Option<Buffer> {
        self.find(landing)?;
        self.landings[landing.index as usize]
            .take()
            .map(|open| open.buffer)
    }

    fn give_quiet<S: FnMut(Arrival<'_>)>(
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

    /// A chunk of a write. Everything in the frame is an allegation.
    fn chunk<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        frame: &Frame,
        body: &Body<'_, MemoryLane>,
        sink: &mut S,
    ) -> Result<(), DownReason> {
        let mut write = match self.current.take() {
            Some(write) if write.sequence == sequence_of(frame) => write,
            Some(write) if !write.is_refused => return Err(DownReason::Corrupt),
            _ => self.begin(frame)?,
        };
        let rest = write.total - write.received;
        if body.len() > rest || (body.is_empty() && rest > 0) {
            return Err(DownReason::Corrupt);
        }
        if !write.is_refused {
            let at = write.start + write.received;
            // The landing may have been closed since the last chunk; its range was checked when the write began.
            match self.find(write.landing) {
                Some(buffer) => body.copy_to(&mut buffer[at..at + body.len()]),
                None => {
                    write.is_refused = true;
                    self.answer(write.sequence, REFUSED)?;
                }
            }
        }
        write.received += body.len();
        if write.received < write.total {
            self.current = Some(write);
        } else if !write.is_refused {
            self.answer(write.sequence, DONE)?;
            if let Some(buffer) = self.take(write.landing) {
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
        let start = self.find(landing).and_then(|buffer| {
            let open = buffer.region();
            let start = usize::try_from(frame.words[3].checked_sub(open.offset)?).ok()?;
            let fits = start.checked_add(total)? <= buffer.len();
            (fits && frame.words[5] == place_word(&open)).then_some(start)
        });
        let write = Incoming {
            sequence: sequence_of(frame),
            landing,
            start: start.unwrap_or(0),
            total,
            received: 0,
            is_refused: start.is_none(),
        };
        if write.is_refused {
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

    fn push_answers(&mut self, tx: &mut Producer<MemoryLane>) -> Result<bool, PostError> {
        let mut any = false;
        while let Some(&(sequence, outcome)) = self.answers.front() {
            let mut frame = fabric_frame(ANSWER, sequence);
            frame.words[2] = outcome;
            match tx.post(&frame, [&[], &[]], FOR_BYE) {
                Ok(()) => any = true,
                Err(PostError::Full) => break,
                Err(error) => return Err(error),
            }
            self.answers.pop_front();
        }
        Ok(any)
    }
}

/// A region's arena, segment and generation in one word.
const fn place_word(region: &Region) -> u64 {
    region.arena as u64 | (region.segment as u64) << 16 | (region.generation as u64) << 32
}

/// Our writes to the peer, in order: some wait for their answer, one is being sent, the rest wait.
#[derive(Debug, Default)]
struct Outbound {
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
    fn post(&mut self, write: Write) -> Result<(), Write> {
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

    fn is_sending(&self) -> bool {
        self.sending < self.writes.len()
    }

    fn push_chunks(&mut self, tx: &mut Producer<MemoryLane>) -> Result<bool, PostError> {
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
    fn answer<S: FnMut(Arrival<'_>)>(
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

    fn flush<S: FnMut(Arrival<'_>)>(&mut self, qp: QpId, budget: usize, sink: &mut S) -> usize {
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
