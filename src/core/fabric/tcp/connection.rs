//! One connection: frames, and one-sided writes emulated by chunks, over a byte stream.
//!
//! Knows what it was lent and a [`Pipe`]; not the other connections of its port, nor when it is looked at. So a test
//! drives two of them through any fragmentation.
//!
//! The stream is the frames of `queue_pair.rs`, one behind the other, each followed by its body unless that lies in the
//! tail; `WIRE.md` has the page. A write goes out in chunks (at most `limits::STREAM_CHUNK_MAX`), whose bytes are sent
//! straight from the tensor and received straight into the landing; between two chunks everything else has its turn.
//!
//! The side that closes says so by BYE, behind all that was posted. That cannot stand in the middle of a chunk, so a
//! connection that is closed *leaves*: it sends what it promised and BYE, for a bounded time, and then gives back what
//! it holds.

use super::reader::{Piece, Reader};
use super::socket::{Pipe, Stop};
use super::writer::Writer;
use crate::fabric::landings::Inbound;
use crate::fabric::queue_pair::{ANSWER, BYE, Left, fabric_frame};
use crate::fabric::ring::PostError;
use crate::fabric::writes::Outbound;
use crate::fabric::{
    Arrival, BODY_MAX, Caps, DownReason, FABRIC_KIND_MIN, Landing, PostRefusal, QpId, Write,
};
use crate::ground::limits::{FRAME_BYTES, STREAM_RECEIVE_BYTES};
use crate::ground::{Nanos, Region};
use crate::memory::Buffer;
use crate::wire::Frame;
use crate::wire::frame::INLINE_BODY_MAX;

/// Bytes sent to one connection, and received from one, after which a look is over; and bytes sent in one poll, to all
/// connections together, after which no more of chunks is sent. The last call may bring it a chunk further: a chunk is
/// offered to the system whole, since it takes a megabyte in one call a third faster than in four.
pub(super) const BYTES_PER_LOOK: usize = 256 << 10;

/// Bytes received ahead while a landing is open: those that turn out to be a chunk's are copied, so they are few.
const AHEAD_OF_WRITES: usize = 4 << 10;

/// Sends without room in a row before the system is asked to say when there is some: a reader that is merely behind
/// makes room within microseconds.
const TRIES: u32 = 32;

/// A queue pair over a stream.
#[derive(Debug)]
pub(super) struct Connection {
    reader: Reader,
    writer: Writer,
    inbound: Inbound,
    outbound: Outbound,
    chunk_max: usize,
    caps: Caps,
    /// Sends in a row that found no room.
    blocked: u32,
    /// Bytes were received that only a further look gives.
    is_pending: bool,
    /// The pipe may have something, whatever the system will say.
    has_unread: bool,
    /// The pipe has taken bytes that did not go out yet.
    has_unsent: bool,
    /// Why nothing can be sent any more; what the peer sent before is still received.
    broken: Option<DownReason>,
    /// Closed on this side: until when it may take to say so. What comes meanwhile is dropped.
    leaving: Option<Nanos>,
    has_said_bye: bool,
    down: Option<DownReason>,
}

/// What a look at a stream brought.
#[derive(Debug)]
pub(super) struct StreamRead {
    /// Pieces: arrivals at most.
    pub(super) given: usize,
    /// Bytes came.
    pub(super) any: bool,
    /// Why the connection must go down.
    pub(super) down: Option<DownReason>,
}

impl Connection {
    /// One that writes in chunks of at most `chunk_max` bytes.
    pub(super) fn new(caps: Caps, send_bytes: usize, chunk_max: usize) -> Self {
        Self {
            reader: Reader::new(),
            writer: Writer::new(send_bytes),
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            chunk_max,
            caps: Caps {
                body_max: caps.body_max.min(BODY_MAX),
                one_sided: false,
                read_domain: caps.read_domain,
            },
            blocked: 0,
            is_pending: false,
            has_unread: false,
            has_unsent: false,
            broken: None,
            leaving: None,
            has_said_bye: false,
            down: None,
        }
    }

    pub(super) const fn caps(&self) -> Caps {
        self.caps
    }

    pub(super) const fn is_open(&self) -> bool {
        self.down.is_none() && self.leaving.is_none()
    }

    #[inline]
    pub(super) fn post_send(&mut self, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal> {
        if !self.caps.takes(frame, body) {
            return Err(PostRefusal::Malformed);
        }
        self.writer.post(frame, body)
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

    /// True if the landing was open; its Quiet comes with the next [`Connection::work`].
    pub(super) fn close_landing(&mut self, landing: Landing) -> bool {
        self.inbound.close(landing)
    }

    /// Closed on this side: says so until `until` at the latest.
    pub(super) fn leave(&mut self, until: Nanos) {
        self.leaving = Some(until);
    }

    /// Nothing is sent or received any more; [`Connection::work`] gives back what is held, and then Down.
    pub(super) fn go_down(&mut self, reason: DownReason) {
        if self.down.is_none() {
            self.down = Some(reason);
        }
    }

    /// The system says that the pipe has something, and may not be asked again before it is received.
    pub(super) const fn note_unread(&mut self) {
        self.has_unread = true;
    }

    /// Receives from `pipe` and gives what came, at most `budget` arrivals.
    pub(super) fn receive<P: Pipe, S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        budget: usize,
        pipe: &mut P,
        sink: &mut S,
    ) -> StreamRead {
        let mut given = 0;
        let mut bytes = 0;
        let down = self
            .take(qp, budget, pipe, sink, (&mut given, &mut bytes))
            .err();
        (self.has_unread, self.has_unsent) = (pipe.has_unread(), pipe.has_unsent());
        StreamRead {
            given,
            any: bytes > 0,
            down,
        }
    }

    fn take<P: Pipe, S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        budget: usize,
        pipe: &mut P,
        sink: &mut S,
        (given, bytes): (&mut usize, &mut usize),
    ) -> Result<(), DownReason> {
        let mut is_dry = false;
        loop {
            while *given < budget && self.hear(qp, sink)? {
                *given += 1;
            }
            self.is_pending = !self.reader.is_empty() && *given == budget;
            if *given == budget || is_dry || *bytes >= BYTES_PER_LOOK {
                return Ok(());
            }
            match self.fill(qp, pipe, sink, given)? {
                Ok((count, dry)) => {
                    *bytes += count;
                    is_dry = dry;
                }
                Err(Stop::NotNow) => return Ok(()),
                Err(Stop::Over(reason)) => return Err(self.broken.unwrap_or(reason)),
            }
        }
    }

    /// One receive: bytes of a chunk straight into its landing, everything else into the reader. How many came, and
    /// whether the system had no more.
    #[allow(clippy::type_complexity)] // Two ways to end: the peer broke a rule, or there is nothing to receive.
    fn fill<P: Pipe, S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        pipe: &mut P,
        sink: &mut S,
        given: &mut usize,
    ) -> Result<Result<(usize, bool), Stop>, DownReason> {
        let left = self.reader.chunk_left();
        if left > 0
            && let Some(target) = self.inbound.target(left)?
        {
            // And no further than the next head: bytes of the next chunk have a better place than the buffer.
            let head = self.reader.room(FRAME_BYTES);
            let asked = left + head.len();
            let count = match pipe.receive([target, head]) {
                Ok(count) => count,
                Err(stop) => return Ok(Err(stop)),
            };
            let passed = count.min(left);
            self.reader.passed_by(passed);
            self.reader.received(count - passed);
            self.inbound.advance(qp, passed, sink)?;
            *given += usize::from(passed == left);
            return Ok(Ok((count, count < asked)));
        }
        let ahead = if self.inbound.has_landings() {
            AHEAD_OF_WRITES
        } else {
            usize::MAX
        };
        let room = self.reader.room(ahead);
        let asked = room.len();
        Ok(pipe.receive([room, &mut []]).map(|count| {
            self.reader.received(count);
            (count, count < asked)
        }))
    }

    /// Gives one piece of what was received; false if there is none.
    #[inline]
    fn hear<S: FnMut(Arrival<'_>)>(&mut self, qp: QpId, sink: &mut S) -> Result<bool, DownReason> {
        let Self {
            reader,
            inbound,
            outbound,
            ..
        } = self;
        let Some(piece) = reader.next()? else {
            return Ok(false);
        };
        match piece {
            Piece::Frame { frame, body } => match frame.kind() {
                ANSWER => outbound.answer(qp, &frame, sink)?,
                BYE => return Err(DownReason::PeerClosed),
                FABRIC_KIND_MIN.. => return Err(DownReason::Corrupt),
                _ => {
                    let tail = frame.tail();
                    let body = if frame.body_is_inline() {
                        &tail[..frame.body_len() as usize]
                    } else {
                        body
                    };
                    sink(Arrival::Frame {
                        qp,
                        frame: &frame,
                        body,
                    });
                }
            },
            Piece::Chunk { frame, len } => {
                inbound.begin_chunk(&frame, len)?;
                if len <= INLINE_BODY_MAX {
                    land(inbound, qp, &frame.tail()[..len], sink)?;
                }
            }
            Piece::Bytes(bytes) => land(inbound, qp, bytes, sink)?,
        }
        Ok(true)
    }

    /// Sends answers, frames and chunks as far as they go, and no more of chunks once `room` bytes have gone; how many
    /// went.
    pub(super) fn push<P: Pipe>(&mut self, pipe: &mut P, room: usize) -> usize {
        // Behind a chunk that is under way everything waits.
        if room == 0 && self.writer.has_gap() {
            return 0;
        }
        self.send(pipe, room)
    }

    /// Sends answers and frames as far as they go, and of chunks what they stand behind.
    pub(super) fn flush<P: Pipe>(&mut self, pipe: &mut P) {
        self.send(pipe, 0);
    }

    fn send<P: Pipe>(&mut self, pipe: &mut P, room: usize) -> usize {
        let mut pushed = 0;
        while self.broken.is_none() && pushed < BYTES_PER_LOOK {
            self.gather(pushed < room);
            if self.writer.is_empty() && !self.has_unsent {
                break;
            }
            let chunk: &[u8] = if self.writer.has_gap() {
                self.outbound.chunk_bytes()
            } else {
                &[]
            };
            let parts = self.writer.parts(chunk);
            let whole: usize = parts.iter().map(|part| part.len()).sum();
            let sent = pipe.send(parts);
            self.has_unsent = pipe.has_unsent();
            match sent {
                Ok(count) => {
                    self.blocked = 0;
                    pushed += count;
                    let of_chunk = self.writer.advance(count);
                    if of_chunk > 0 {
                        self.outbound.chunk_sent(of_chunk);
                    }
                    if count < whole || self.has_unsent {
                        break;
                    }
                }
                Err(Stop::NotNow) => {
                    self.blocked += 1;
                    break;
                }
                Err(Stop::Over(reason)) => self.broken = Some(reason),
            }
        }
        pushed
    }

    /// Puts what waits for room into the writer: answers, then the head of the next chunk; or BYE.
    fn gather(&mut self, with_chunks: bool) {
        let Self {
            writer,
            inbound,
            outbound,
            chunk_max,
            ..
        } = self;
        if self.leaving.is_some() {
            let bye = fabric_frame(BYE, 0);
            let is_due = !self.has_said_bye && !writer.has_gap();
            self.has_said_bye |= is_due && writer.post(&bye, [&[], &[]]).is_ok();
            return;
        }
        // Full is told by a break, and a writer knows no other refusal.
        let _ = inbound
            .push_answers(|answer| writer.post(answer, [&[], &[]]).map_err(|_| PostError::Full));
        if with_chunks
            && !writer.has_gap()
            && outbound.is_sending()
            && writer.has_room(FRAME_BYTES)
            && let Some((head, len)) = outbound.begin_chunk(*chunk_max)
            && writer.post(&head, [&[], &[]]).is_ok()
        {
            writer.open_gap(len);
        }
    }

    /// Does what is not receiving: sends, gives back what is over, goes down. At most `budget` arrivals, and chunks as
    /// far as `room` goes, which is less by what was sent. Returns arrivals given, true if anything was sent, and
    /// whether something is left.
    pub(super) fn work<P: Pipe, S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        now: Nanos,
        (budget, room): (usize, &mut usize),
        pipe: &mut P,
        sink: &mut S,
    ) -> (usize, bool, Left) {
        let mut pushed = 0;
        if self.down.is_none() && !self.waits_for_room() {
            pushed = self.push(pipe, *room);
            *room = room.saturating_sub(pushed);
        }
        let moved = pushed > 0;
        if let Some(until) = self.leaving
            && self.down.is_none()
        {
            self.discard(pipe);
            let has_left = self.has_said_bye && self.writer.is_empty() && !self.has_unsent;
            if !has_left && self.broken.is_none() && now < until {
                return (0, moved, Left::Something);
            }
            self.down = Some(DownReason::Closed);
        }
        let mut given = 0;
        let Some(reason) = self.down else {
            given += self.inbound.give_quiet(qp, budget, sink);
            if given < budget {
                given += self.outbound.give_refused(qp, sink);
            }
            let left = if self.is_busy() {
                Left::Something
            } else {
                Left::Nothing
            };
            return (given, moved, left);
        };
        self.inbound.close_all();
        given += self.inbound.give_quiet(qp, budget - given, sink);
        given += self.outbound.flush(qp, budget - given, sink);
        if !self.inbound.quiet.is_empty() || !self.outbound.is_empty() || given == budget {
            return (given, moved, Left::Something);
        }
        sink(Arrival::Down { qp, reason });
        (given + 1, moved, Left::Gone)
    }

    /// Receives and drops what is no longer wanted: a peer that leaves as well would wait for room for ever; and a
    /// socket closed with bytes unread sends a reset, which may overtake our BYE.
    fn discard<P: Pipe>(&mut self, pipe: &mut P) {
        for _ in 0..BYTES_PER_LOOK / STREAM_RECEIVE_BYTES {
            self.reader.clear();
            match pipe.receive([self.reader.room(usize::MAX), &mut []]) {
                Ok(_) => {}
                Err(Stop::NotNow) => return,
                Err(Stop::Over(reason)) => {
                    self.broken = Some(reason);
                    return;
                }
            }
        }
    }

    /// True if something waits that only `work` or another look moves on.
    pub(super) fn is_busy(&self) -> bool {
        self.has_news() || (self.has_output() && !self.waits_for_room())
    }

    /// True if something waits for the owner, whatever the peer does.
    pub(super) fn has_news(&self) -> bool {
        !self.inbound.quiet.is_empty()
            || self.outbound.has_refused()
            || self.must_look()
            || self.down.is_some()
    }

    /// True if the stream must be looked at although the system may have nothing new.
    pub(super) const fn must_look(&self) -> bool {
        self.is_open() && (self.is_pending || self.has_unread || self.broken.is_some())
    }

    pub(super) const fn is_leaving(&self) -> bool {
        self.leaving.is_some() && self.down.is_none()
    }

    /// True if there is anything to send.
    pub(super) fn has_output(&self) -> bool {
        self.broken.is_none()
            && (!self.writer.is_empty()
                || self.has_unsent
                || !self.inbound.answers.is_empty()
                || self.outbound.is_sending()
                || self.is_leaving())
    }

    /// True if sending was given up until the system says that there is room.
    pub(super) const fn waits_for_room(&self) -> bool {
        self.blocked >= TRIES
    }

    /// The last send found no room: from here on the system is to say when there is some. False if it did find some.
    pub(super) const fn wait_for_room(&mut self) -> bool {
        if self.blocked > 0 {
            self.blocked = TRIES;
        }
        self.blocked > 0
    }

    /// There is room again.
    pub(super) const fn has_room(&mut self) {
        self.blocked = 0;
    }
}

/// Bytes of a chunk that came by way of the reader.
fn land<S: FnMut(Arrival<'_>)>(
    inbound: &mut Inbound,
    qp: QpId,
    bytes: &[u8],
    sink: &mut S,
) -> Result<(), DownReason> {
    if let Some(target) = inbound.target(bytes.len())? {
        target.copy_from_slice(bytes);
    }
    inbound.advance(qp, bytes.len(), sink)
}

#[cfg(test)]
mod tests;
