//! A queue pair over two lanes: frames, and one-sided writes emulated by chunk frames of the fabric's own.
//!
//! Knows its two rings and what it was lent; not the other queue pairs of its port, nor when it is polled.
//!
//! ```text
//!  word 0            word 1              word 2                word 3        word 4    word 5            tail
//!  kind CHUNK  0xf0  sequence, body_len  landing, generation   range start   total     arena, segment,  the body's
//!                                                                                      generation       first 16
//!  kind ANSWER 0xf1  sequence            0 done, 1 refused
//!  kind BYE    0xf2
//! ```
//!
//! Writes of a queue pair are numbered, and each is sent as chunks in order; the receiver knows how far each is, so a
//! chunk need not say it. The receiver copies chunks straight from the ring into the landing, which it holds, and
//! answers each write once: done when the last byte is in, or refused at the first chunk that has no landing to go
//! to. A writer that reads "refused" sends no more of that write. Answers come in the order of the writes.
//!
//! A byte stream carries the same frames (`tcp/connection.rs`).
//!
//! Chunks take at most half of the ring, so that small frames never wait behind a large write; the last free slot is
//! kept for BYE, so that a close can always be told.

use super::doorbell::PeerWake;
use super::landings::Inbound;
use super::lane::MemoryLane;
use super::link::Endpoint;
use super::ring::{PostError, Reserve, RingConsumer, RingProducer, TakenFrame, body_max};
use super::writes::Outbound;
use super::{
    Arrival, BODY_MAX, Caps, DownReason, FABRIC_KIND_MIN, Landing, PostRefusal, QpId, Write,
};
use crate::ground::Region;
use crate::memory::Buffer;
use crate::wire::Frame;

pub(super) const CHUNK: u8 = FABRIC_KIND_MIN;
pub(super) const ANSWER: u8 = FABRIC_KIND_MIN + 1;
pub(super) const BYE: u8 = FABRIC_KIND_MIN + 2;

pub(super) const DONE: u64 = 0;
pub(super) const REFUSED: u64 = 1;

/// What a frame or an answer leaves free: the slot for BYE.
pub(super) const FOR_BYE: Reserve = Reserve {
    slots: 1,
    payload: 0,
};

const NONE: Reserve = Reserve {
    slots: 0,
    payload: 0,
};

#[derive(Debug)]
pub(super) struct RingQueuePair {
    tx: RingProducer<MemoryLane>,
    rx: RingConsumer<MemoryLane>,
    caps: Caps,
    pub(super) wake: PeerWake,
    inbound: Inbound,
    outbound: Outbound,
    /// Set once the queue pair is going down: from then on it only gives back what it holds.
    down: Option<DownReason>,
}

/// What a look at a ring brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingTake {
    /// Frames, chunks and answers among them.
    pub(super) frames: usize,
    /// Some were chunks or answers: there may be work besides the ring.
    pub(super) is_of_writes: bool,
    /// The peer was told of our progress.
    pub(super) has_told: bool,
    /// Why the queue pair must go down; what came before was given up.
    pub(super) down: Option<DownReason>,
}

impl RingTake {
    /// True if it brought more than frames for the sink.
    #[inline]
    pub(super) const fn is_rare(&self) -> bool {
        self.is_of_writes | self.has_told | self.down.is_some()
    }
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

impl RingQueuePair {
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
            tx: RingProducer::new(endpoint.tx),
            rx: RingConsumer::new(endpoint.rx),
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

    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        self.down.is_none()
    }

    #[inline]
    pub(super) fn post_send(&mut self, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal> {
        if !self.caps.takes(frame, body) {
            return Err(PostRefusal::Malformed);
        }
        self.tx
            .post(frame, body, FOR_BYE)
            .map_err(|error| self.refused(error))
    }

    /// As [`RingQueuePair::post_send`], of a frame whose body, if it has one, lies in its tail.
    #[inline(always)]
    pub(super) fn post_short(&mut self, frame: &Frame) -> Result<(), PostRefusal> {
        if !self.caps.takes(frame, [&[], &[]]) {
            return Err(PostRefusal::Malformed);
        }
        self.tx
            .post_short(frame, FOR_BYE)
            .map_err(|error| self.refused(error))
    }

    #[cold]
    fn refused(&mut self, error: PostError) -> PostRefusal {
        match error {
            PostError::Full => PostRefusal::Full,
            PostError::Corrupt => {
                self.go_down(DownReason::Corrupt);
                PostRefusal::Closed
            }
        }
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

    /// True if the landing was open; its Quiet comes with the next [`RingQueuePair::work`].
    pub(super) fn close_landing(&mut self, landing: Landing) -> bool {
        self.inbound.close(landing)
    }

    /// Starts going down: no more is sent or received; [`RingQueuePair::work`] gives back what is held, and then Down.
    pub(super) fn go_down(&mut self, reason: DownReason) {
        if self.down.is_none() {
            self.down = Some(reason);
            if reason != DownReason::PeerClosed {
                // Refused only by a peer whose progress is corrupt: it is not to be reached anyway.
                let _ = self.tx.post(&fabric_frame(BYE, 0), [&[], &[]], NONE);
            }
        }
    }

    /// Takes up to `budget` frames from the ring, and gives them to `sink`.
    #[inline(always)]
    pub(super) fn receive<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        budget: usize,
        scratch: &mut Box<[u8]>,
        sink: &mut S,
    ) -> RingTake {
        let mut done = RingTake::default();
        let Self {
            rx,
            inbound,
            outbound,
            caps,
            ..
        } = self;
        while done.frames < budget {
            let taken = match rx.take() {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(_) => {
                    done.down = Some(DownReason::Corrupt);
                    break;
                }
            };
            let heard = if kind(taken.frame()) < FABRIC_KIND_MIN {
                give(qp, &taken, scratch, caps.body_max, sink)
            } else {
                done.is_of_writes = true;
                hear_own(inbound, outbound, qp, &taken, sink)
            };
            drop(taken);
            if let Err(reason) = heard {
                done.down = Some(reason);
                break;
            }
            done.frames += 1;
        }
        done.has_told = self.rx.take_told();
        done
    }

    /// True if something waits in the ring.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.rx.is_ready()
    }

    /// Writes of the peer to what was never granted it.
    pub(super) const fn ungranted(&self) -> u64 {
        self.inbound.ungranted
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
        if !self.inbound.quiet.is_empty() || !self.outbound.is_empty() || given == budget {
            return (given, posted, Left::Something);
        }
        sink(Arrival::Down { qp, reason });
        (given + 1, posted, Left::Gone)
    }

    /// Sends answers and chunks as far as there is room; true if any went.
    pub(super) fn push(&mut self) -> bool {
        let tx = &mut self.tx;
        let post = |answer: &Frame| tx.post(answer, [&[], &[]], FOR_BYE);
        let pushed = match self.inbound.push_answers(post) {
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

/// A frame for the owner, with its body: where that lies in the frame's private copy already, or copied to `scratch`.
#[inline(always)]
fn give<S: FnMut(Arrival<'_>)>(
    qp: QpId,
    taken: &TakenFrame<'_, MemoryLane>,
    scratch: &mut [u8],
    body_max: usize,
    sink: &mut S,
) -> Result<(), DownReason> {
    let frame = taken.frame();
    if let Some(body) = taken.body_in_tail() {
        sink(Arrival::Frame { qp, frame, body });
        return Ok(());
    }
    let Some(body) = scratch
        .get_mut(..taken.body_len())
        .filter(|body| body.len() <= body_max)
    else {
        return Err(DownReason::Corrupt);
    };
    taken.copy_body_to(body);
    sink(Arrival::Frame { qp, frame, body });
    Ok(())
}

/// A frame of the fabric's own. Apart, so that what hears the others is short.
#[inline(never)]
fn hear_own<S: FnMut(Arrival<'_>)>(
    inbound: &mut Inbound,
    outbound: &mut Outbound,
    qp: QpId,
    taken: &TakenFrame<'_, MemoryLane>,
    sink: &mut S,
) -> Result<(), DownReason> {
    match kind(taken.frame()) {
        CHUNK => {
            let len = taken.body_len();
            inbound.begin_chunk(taken.frame(), len)?;
            if let Some(target) = inbound.target(len)? {
                taken.copy_body_to(target);
            }
            inbound.advance(qp, len, sink)
        }
        ANSWER => outbound.answer(qp, taken.frame(), sink),
        BYE => Err(DownReason::PeerClosed),
        _ => Err(DownReason::Corrupt),
    }
}

const fn kind(frame: &Frame) -> u8 {
    (frame.words[0] >> 32) as u8
}

pub(super) fn fabric_frame(kind: u8, sequence: u32) -> Frame {
    let mut frame = Frame::default();
    frame.words[0] = u64::from(kind) << 32;
    frame.words[1] = u64::from(sequence);
    frame
}

pub(super) const fn sequence_of(frame: &Frame) -> u32 {
    frame.words[1] as u32
}
