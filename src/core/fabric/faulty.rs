//! A port that misbehaves, within the fabric's promises, and the same way for the same seed. For simulations.
//!
//! Knows virtual time from `poll` and a seeded generator; wraps any port and is wrapped like one. Not for the hot
//! path: it allocates.
//!
//! What it does lies within what a [`Port`] may do, only more of it: arrivals come late (frames of a queue pair keep
//! their order; landings, writes' ends and quiets overtake them and one another), posts are refused, bytes of a write
//! land late (the buffer holds another pattern till then, and stays with the port), closed landings are scribbled on
//! until they are quiet, connections are reset and lose what was on its way, a side stands still for a while, a queue
//! pair hears nothing for a while, a landing finds no registration.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use super::{
    AnyPort, Arrival, Caps, DownReason, Landing, Outcome, Port, PostRefusal, QpId, RefusedWrite,
    Token, Write,
};
use crate::ground::rng::Rng;
use crate::ground::{Nanos, Region};
use crate::memory::{Buffer, Tensor};
use crate::wire::Frame;

/// What a landing holds while its bytes have not "landed".
const NOT_LANDED: u8 = 0xee;
/// What is written on a closed landing that is not quiet.
const NOT_QUIET: u8 = 0xdd;

/// How much goes wrong. Zero is never, everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Each arrival is held at least so long.
    pub latency_min_ns: u64,
    /// And at most so long.
    pub latency_max_ns: u64,
    /// One post in so many is refused.
    pub refuse_one_in: u64,
    /// In one poll of so many a queue pair is reset.
    pub reset_one_in: u64,
    /// One poll in so many starts a standstill.
    pub pause_one_in: u64,
    /// A standstill lasts at most so long.
    pub pause_max_ns: u64,
    /// One landing in so many is not opened: the fabric has no registration left.
    pub unopened_one_in: u64,
    /// One landing in so many that comes home, and one end of a write, is so much later than the rest.
    pub linger_one_in: u64,
    /// What lingers does so for at most so long.
    pub linger_max_ns: u64,
}

/// What it has done, so that a test can see that it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Posts refused.
    pub refused: u64,
    /// Queue pairs reset from this side.
    pub resets: u64,
    /// Frames lost to resets.
    pub frames_lost: u64,
    /// Standstills.
    pub pauses: u64,
    /// Arrivals held back.
    pub held: u64,
    /// Landings not opened.
    pub unopened: u64,
    /// Landings, and ends of writes, that lingered.
    pub lingered: u64,
}

/// The port.
#[derive(Debug)]
pub struct FaultyPort {
    inner: AnyPort,
    faults: Faults,
    rng: Rng,
    counts: FaultCounts,
    /// Arrivals by when they are due, and then by when they came.
    held: BTreeMap<(u64, u64), Held>,
    /// It refused a post that there was room for, since it was polled or armed last.
    has_pretended: bool,
    order: u64,
    /// When the last frame, and the last of anything, of a queue pair is due.
    last: BTreeMap<QpId, Last>,
    known: BTreeSet<QpId>,
    resetting: BTreeSet<QpId>,
    paused_until: u64,
    /// Queue pairs that hear nothing until then.
    blocked: BTreeMap<QpId, u64>,
    /// No landing is opened before that.
    closed_until: u64,
    /// The time of the last poll.
    now: u64,
    /// Bytes of landings it was lent and has not given back.
    lent: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Last {
    frame: u64,
    any: u64,
}

#[derive(Debug)]
enum Held {
    Frame {
        qp: QpId,
        frame: Frame,
        body: Vec<u8>,
    },
    Landed {
        qp: QpId,
        landing: Landing,
        len: u64,
        buffer: Buffer,
        late: Option<Late>,
    },
    Quiet {
        qp: QpId,
        landing: Landing,
        buffer: Buffer,
        late: Option<Late>,
    },
    Wrote {
        qp: QpId,
        token: Token,
        source: Tensor,
        outcome: Outcome,
    },
    Down {
        qp: QpId,
        reason: DownReason,
    },
}

/// Bytes that reach a buffer later than the rest of the world thinks.
#[derive(Debug)]
struct Late {
    due: u64,
    bytes: Vec<u8>,
}

impl FaultyPort {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: AnyPort, faults: Faults, seed: u64) -> Self {
        assert!(
            faults.latency_min_ns <= faults.latency_max_ns,
            "latencies are a range"
        );
        Self {
            inner,
            faults,
            rng: Rng::new(seed),
            counts: FaultCounts::default(),
            held: BTreeMap::new(),
            has_pretended: false,
            order: 0,
            last: BTreeMap::new(),
            known: BTreeSet::new(),
            resetting: BTreeSet::new(),
            paused_until: 0,
            blocked: BTreeMap::new(),
            closed_until: 0,
            now: 0,
            lent: 0,
        }
    }

    /// The wrapped port.
    pub const fn inner(&self) -> &AnyPort {
        &self.inner
    }

    /// The wrapped port, to connect it further.
    pub const fn inner_mut(&mut self) -> &mut AnyPort {
        &mut self.inner
    }

    /// From now on this much goes wrong; zeroes let a simulation come to rest.
    pub const fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Breaks a connection: some of what is held is lost, and both ends get their Down.
    pub fn reset(&mut self, qp: QpId) {
        self.counts.resets += 1;
        self.resetting.insert(qp);
        self.lose(qp);
        self.inner.close(qp);
    }

    /// Stands still until `until`: neither sends what waits, nor receives.
    pub const fn pause(&mut self, until: Nanos) {
        self.counts.pauses += 1;
        self.paused_until = until.0;
    }

    /// What comes to a queue pair from now on arrives at `until` at the earliest. With both ends blocked nothing
    /// passes; with one of them, one way.
    pub fn block(&mut self, qp: QpId, until: Nanos) {
        self.blocked.insert(qp, until.0);
    }

    /// No landing can be opened before `until`.
    pub const fn open_none(&mut self, until: Nanos) {
        self.closed_until = until.0;
    }

    /// When the next held arrival is due: where a simulation may let time jump to.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        self.held
            .first_key_value()
            .map(|(&(due, _), _)| Nanos(due.max(self.paused_until)))
    }

    /// Bytes of landings it was lent and has not given back: counted here, whatever the owner believes.
    #[must_use]
    pub const fn lent_bytes(&self) -> u64 {
        self.lent
    }

    /// What it has done.
    #[must_use]
    pub const fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Loses the frames of a queue pair from a random one on: what a broken connection does not deliver is a suffix.
    fn lose(&mut self, qp: QpId) {
        let frames: Vec<_> = self
            .held
            .iter()
            .filter_map(|(&key, held)| {
                matches!(held, Held::Frame { qp: of, .. } if *of == qp).then_some(key)
            })
            .collect();
        let kept = self.rng.below(frames.len() as u64 + 1) as usize;
        for key in &frames[kept..] {
            self.held.remove(key);
            self.counts.frames_lost += 1;
        }
    }

    /// Whether something that happens one time in `n` happens now.
    fn strikes(&mut self, n: u64) -> bool {
        self.rng.one_in(n)
    }

    fn latency(&mut self) -> u64 {
        self.faults.latency_min_ns
            + self
                .rng
                .below(self.faults.latency_max_ns - self.faults.latency_min_ns + 1)
    }

    /// Polls the wrapped port and holds what comes. Not generic: a wrapped `FaultyPort` would make its sink's type
    /// endless otherwise.
    fn gather(&mut self, now: Nanos, budget: usize) -> usize {
        let mut arrived = Vec::new();
        let done = self.inner.poll(now, budget, &mut |arrival: Arrival<'_>| {
            arrived.push(match arrival {
                Arrival::Frame { qp, frame, body } => Held::Frame {
                    qp,
                    frame: *frame,
                    body: body.to_vec(),
                },
                Arrival::Landed {
                    qp,
                    landing,
                    len,
                    buffer,
                } => Held::Landed {
                    qp,
                    landing,
                    len,
                    buffer,
                    late: None,
                },
                Arrival::Quiet {
                    qp,
                    landing,
                    buffer,
                } => Held::Quiet {
                    qp,
                    landing,
                    buffer,
                    late: None,
                },
                Arrival::Wrote {
                    qp,
                    token,
                    source,
                    outcome,
                } => Held::Wrote {
                    qp,
                    token,
                    source,
                    outcome,
                },
                Arrival::Down { qp, reason } => Held::Down { qp, reason },
            });
        });
        for held in arrived {
            self.hold(now.0, held);
        }
        done
    }

    fn hold(&mut self, now: u64, mut held: Held) {
        let qp = held.qp();
        self.known.insert(qp);
        self.counts.held += 1;
        let mut due = now + self.latency();
        due = due.max(self.blocked.get(&qp).copied().unwrap_or(0));
        if matches!(
            held,
            Held::Landed { .. } | Held::Quiet { .. } | Held::Wrote { .. }
        ) && self.strikes(self.faults.linger_one_in)
        {
            // Late enough to be after all that ends meanwhile: its step, or its peer.
            self.counts.lingered += 1;
            due += self.rng.below(self.faults.linger_max_ns + 1);
        }
        let mut last = self.last.get(&qp).copied().unwrap_or_default();
        match &mut held {
            Held::Frame { .. } => {
                due = due.max(last.frame);
                last.frame = due;
            }
            Held::Landed { buffer, late, .. } => {
                let bytes = buffer.to_vec();
                buffer.fill(NOT_LANDED);
                *late = Some(Late {
                    due: now + self.rng.below(due - now + 1),
                    bytes,
                });
            }
            Held::Quiet { buffer, late, .. } => {
                let bytes = vec![NOT_QUIET; buffer.len()];
                *late = Some(Late {
                    due: now + self.rng.below(due - now + 1),
                    bytes,
                });
            }
            Held::Wrote { .. } => {}
            Held::Down { reason, .. } => {
                if self.resetting.remove(&qp) {
                    *reason = DownReason::Reset;
                } else if self.faults.reset_one_in > 0 && *reason == DownReason::PeerClosed {
                    // The other side of a reset, perhaps: it loses as well.
                    self.lose(qp);
                }
                due = due.max(last.any);
                self.known.remove(&qp);
                self.blocked.remove(&qp);
            }
        }
        last.any = last.any.max(due);
        if matches!(held, Held::Down { .. }) {
            self.last.remove(&qp);
        } else {
            self.last.insert(qp, last);
        }
        self.order += 1;
        self.held.insert((due, self.order), held);
    }

    /// Lets late bytes reach their buffers.
    fn land(&mut self, now: u64) {
        for held in self.held.values_mut() {
            if let Held::Landed { buffer, late, .. } | Held::Quiet { buffer, late, .. } = held
                && late.as_ref().is_some_and(|late| late.due <= now)
            {
                finish(buffer, late);
            }
        }
    }

    fn is_refused(&mut self, qp: QpId) -> bool {
        self.known.insert(qp);
        let is_refused = self.strikes(self.faults.refuse_one_in);
        self.counts.refused += u64::from(is_refused);
        // One that is down has no room in truth.
        self.has_pretended |= is_refused && self.inner.caps(qp).body_max > 0;
        is_refused
    }

    /// Standstills and resets, by chance.
    fn misbehave(&mut self, now: u64) {
        if self.strikes(self.faults.pause_one_in) {
            let length = self.rng.below(self.faults.pause_max_ns + 1);
            self.pause(Nanos(now + length));
        }
        if !self.known.is_empty() && self.strikes(self.faults.reset_one_in) {
            let at = self.rng.below(self.known.len() as u64) as usize;
            if let Some(&qp) = self.known.iter().nth(at) {
                self.known.remove(&qp);
                // One that is down already has nothing to break.
                if self.inner.caps(qp).body_max > 0 {
                    self.reset(qp);
                }
            }
        }
    }
}

fn finish(buffer: &mut Buffer, late: &mut Option<Late>) {
    if let Some(late) = late.take() {
        buffer.copy_from_slice(&late.bytes);
    }
}

impl Held {
    const fn qp(&self) -> QpId {
        match self {
            Self::Frame { qp, .. }
            | Self::Landed { qp, .. }
            | Self::Quiet { qp, .. }
            | Self::Wrote { qp, .. }
            | Self::Down { qp, .. } => *qp,
        }
    }

    fn lent_bytes(&self) -> u64 {
        match self {
            Self::Landed { buffer, .. } | Self::Quiet { buffer, .. } => buffer.len() as u64,
            _ => 0,
        }
    }

    fn deliver<S: FnMut(Arrival<'_>)>(self, sink: &mut S) {
        match self {
            Self::Frame { qp, frame, body } => sink(Arrival::Frame {
                qp,
                frame: &frame,
                body: &body,
            }),
            Self::Landed {
                qp,
                landing,
                len,
                mut buffer,
                mut late,
            } => {
                finish(&mut buffer, &mut late);
                sink(Arrival::Landed {
                    qp,
                    landing,
                    len,
                    buffer,
                });
            }
            Self::Quiet {
                qp,
                landing,
                mut buffer,
                mut late,
            } => {
                finish(&mut buffer, &mut late);
                sink(Arrival::Quiet {
                    qp,
                    landing,
                    buffer,
                });
            }
            Self::Wrote {
                qp,
                token,
                source,
                outcome,
            } => sink(Arrival::Wrote {
                qp,
                token,
                source,
                outcome,
            }),
            Self::Down { qp, reason } => sink(Arrival::Down { qp, reason }),
        }
    }
}

impl Port for FaultyPort {
    fn caps(&self, qp: QpId) -> Caps {
        self.inner.caps(qp)
    }

    fn post_send(&mut self, qp: QpId, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal> {
        if self.is_refused(qp) {
            return Err(PostRefusal::Full);
        }
        self.inner.post_send(qp, frame, body)
    }

    fn post_write(&mut self, write: Write) -> Result<(), RefusedWrite> {
        if self.is_refused(write.qp) {
            return Err(PostRefusal::Full.of(write));
        }
        self.inner.post_write(write)
    }

    fn open_landing(
        &mut self,
        qp: QpId,
        landing: Landing,
        buffer: Buffer,
    ) -> Result<Region, Buffer> {
        if self.now < self.closed_until || self.strikes(self.faults.unopened_one_in) {
            self.counts.unopened += 1;
            return Err(buffer);
        }
        let len = buffer.len() as u64;
        let opened = self.inner.open_landing(qp, landing, buffer);
        self.lent += if opened.is_ok() { len } else { 0 };
        opened
    }

    fn close_landing(&mut self, qp: QpId, landing: Landing) {
        self.inner.close_landing(qp, landing);
    }

    #[inline(never)]
    fn poll<S: FnMut(Arrival<'_>)>(&mut self, now: Nanos, budget: usize, sink: &mut S) -> usize {
        self.has_pretended = false;
        self.now = now.0;
        if now.0 < self.paused_until {
            return 0;
        }
        self.misbehave(now.0);
        let mut done = self.gather(now, budget);
        self.land(now.0);
        for _ in 0..budget {
            match self.held.first_entry() {
                Some(entry) if entry.key().0 <= now.0 => {
                    let held = entry.remove();
                    self.lent -= held.lent_bytes();
                    held.deliver(sink);
                }
                _ => break,
            }
            done += 1;
        }
        done
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn close(&mut self, qp: QpId) {
        self.inner.close(qp);
    }

    fn arm(&mut self) -> bool {
        // What had room in truth is tried again: the inner port wakes none for it.
        let has_pretended = std::mem::take(&mut self.has_pretended);
        self.inner.arm() && self.held.is_empty() && !has_pretended
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_fd()
    }
}
