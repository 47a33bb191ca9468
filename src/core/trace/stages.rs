//! Stages: where the time of a hand-over goes, measured from within, on few values and without a lock.
//!
//! A value that is timed carries the number of its *trace*, a small record of this shard, through table and events;
//! the others carry zero, and cost one count and one look. One value in so many is timed on the fastest ways, every
//! one that an application thread sends or a socket carries, unless it answers a request: an answer has no stamp. In
//! other frames that says when they were posted ([`Push::put_stamp`](crate::wire::message::Push::put_stamp)).
//!
//! Without the feature `stages` all of this compiles to nothing: its cost is measured against that.

use std::sync::Arc;

use super::carrier::{Carrier, Path};
use super::clock::{Clock, Scale};
use super::recorder::{self, CLASSES, Event, Head, Recorder, Stage, Way, What, cell_of, class_of};
use super::stamps::{self, Waking};
use crate::ground::{FrameIter, Nanos, StepId, Traceparent};
use crate::memory::{MemoryError, Words};

/// False in a build without them.
pub const ON: bool = cfg!(feature = "stages");

/// Traces at once. One that is overtaken by so many others is not timed after all.
const TRACES: usize = 256;
/// No stamp of a peer tells of more: what lies further apart is a comparison that went wrong.
const WIRE_MAX_NS: u64 = 60_000_000_000;

/// How a peer's counter compares with our clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerClock {
    /// How its ticks become our stamps.
    pub scale: Scale,
    /// By how much that may be wrong; zero for a peer that shares our counter.
    pub error_ns: u64,
}

/// A value that is timed.
#[derive(Clone, Copy, Debug, Default)]
struct Trace {
    id: u16,
    way: Way,
    class: u8,
    /// Stages behind it: as many readings of the clock lie between its beginning and `last`.
    readings: u8,
    /// When the stage before ended.
    last: Nanos,
    /// When it set out or, here from a peer, when its frame was posted.
    begun: Nanos,
    /// How long before `begun` it set out, at a peer; `None` if unknown.
    before: Option<u64>,
    queued: u64,
    matched: u64,
    posted: u64,
    /// `None` if unknown.
    wire: Option<u64>,
    landed: u64,
    step: u64,
    key: u64,
    frame_iter: (u32, u32),
    ordinal: u32,
}

/// The stages of one shard. See the module.
#[derive(Debug)]
pub struct Stages {
    clock: Clock,
    recorder: Option<Arc<Recorder>>,
    /// Values until the next that is timed; stands still at zero where none are.
    left: u32,
    sampling: u32,
    /// The trace of the value that is being sent.
    sending: u16,
    /// The trace of the value that is being handed over.
    handing: u16,
    next: u16,
    traces: Box<[Trace; TRACES]>,
    /// What a reading of the clock costs: it falls into every stage, and is taken out of it.
    clock_ns: u64,
    events: u64,
    carriers: Vec<Carrier>,
    /// By port: everything it carries is timed.
    slow_ports: u32,
    own: Scale,
    /// By peer.
    peers: Vec<Option<PeerClock>>,
}

/// Where the recorder of a shard is to lie, and how large its ring is.
#[derive(Debug)]
pub struct RecorderPlace {
    /// A new file; without one, memory that goes with the process.
    pub file: Option<std::fs::File>,
    /// Bytes of the recorder's ring.
    pub ring_bytes: usize,
}

impl Stages {
    /// The stages of a shard, whose ports are such carriers. `head` needs neither its costs nor its scale filled in.
    ///
    /// # Errors
    /// [`MemoryError`] if there is no room for the recorder.
    pub fn new(
        clock: Clock,
        carriers: Vec<Carrier>,
        place: RecorderPlace,
        mut head: Head,
    ) -> Result<Self, MemoryError> {
        let (own, sampling, clock_ns) = (clock.scale(), head.sampling, clock.cost_ns());
        let is_on = ON && sampling > 0;
        let slow = |slow, (at, carrier): (usize, &Carrier)| match carrier {
            Carrier::Tcp if is_on => slow | 1 << at.min(31),
            _ => slow,
        };
        let recorder = if is_on {
            let count = recorder::words_for(place.ring_bytes);
            let words = match place.file {
                Some(file) => Words::in_file(file, count)?,
                None => Words::anonymous(count)?,
            };
            (head.clock_ns, head.scale) = (clock_ns as u32, own);
            Some(Arc::new(Recorder::new(words, place.ring_bytes, &head)))
        } else {
            None
        };
        Ok(Self {
            left: if is_on { sampling } else { 0 },
            sampling,
            sending: 0,
            handing: 0,
            next: 0,
            traces: Box::new([Trace::default(); TRACES]),
            clock_ns,
            events: 0,
            slow_ports: carriers.iter().enumerate().fold(0, slow),
            carriers,
            own,
            peers: Vec::new(),
            recorder,
            clock,
        })
    }

    /// For readers outside.
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.clone()
    }

    /// How a peer's counter compares with ours, from here on.
    pub(crate) fn compare(&mut self, peer: usize, clock: Option<PeerClock>) {
        if self.peers.len() <= peer {
            self.peers.resize(peer + 1, None);
        }
        self.peers[peer] = clock;
    }

    // ───────────────────────────────────────────── sender ─────────────────────────────────────────────

    /// A task of the shard sends: one in so many is timed.
    #[inline]
    pub(crate) fn count(&mut self) {
        if ON && self.left > 0 {
            self.left -= 1;
            if self.left == 0 {
                self.left = self.sampling;
                self.sending = self.begin(Nanos::ZERO);
            }
        }
    }

    /// True if the next value that a task of the shard sends is timed.
    pub(crate) const fn is_next(&self) -> bool {
        ON && self.left == 1
    }

    /// True if the value that is being sent is timed.
    pub(crate) const fn is_sending(&self) -> bool {
        ON && self.sending != 0
    }

    /// True if the value that is being sent is timed, or would be by this port.
    pub(crate) const fn is_timing(&self, port: usize) -> bool {
        self.is_sending() || ON && self.slow_ports >> port & 1 != 0
    }

    /// An application thread's value was taken; it began to queue then.
    #[inline]
    pub(crate) fn took(&mut self, queued_at: Nanos) {
        if ON && queued_at != Nanos::ZERO && self.sampling > 0 {
            self.sending = self.begin(queued_at);
        }
    }

    /// The trace of the value that is being sent, which is its own from here on.
    pub(crate) const fn take_sending(&mut self) -> u16 {
        if ON {
            std::mem::replace(&mut self.sending, 0)
        } else {
            0
        }
    }

    /// As it was, or a new one if this port's values are all timed.
    #[inline]
    pub(crate) fn or_begin(&mut self, trace: u16, port: usize) -> u16 {
        if ON && trace == 0 && self.slow_ports >> port & 1 != 0 {
            self.begin(Nanos::ZERO)
        } else {
            trace
        }
    }

    #[cold]
    fn begin(&mut self, queued_at: Nanos) -> u16 {
        let last = self.clock.stamp();
        let is_queued = queued_at != Nanos::ZERO;
        let begun = if is_queued { queued_at } else { last };
        self.open(Trace {
            readings: u8::from(is_queued),
            queued: if is_queued {
                self.less_clock(queued_at, last)
            } else {
                0
            },
            begun,
            before: Some(0),
            last,
            ..Trace::default()
        })
    }

    fn open(&mut self, trace: Trace) -> u16 {
        // The low byte is the place, the high one which use of it; zero belongs to no entry.
        self.next = self.next.wrapping_add(1);
        if self.next == 0 {
            self.next = 1;
        }
        let id = self.next;
        self.traces[usize::from(id) % TRACES] = Trace { id, ..trace };
        id
    }

    #[inline]
    fn trace(&mut self, id: u16) -> Option<&mut Trace> {
        let trace = &mut self.traces[usize::from(id) % TRACES];
        (trace.id == id && id != 0).then_some(trace)
    }

    /// From then until now, without the reading that is in between.
    const fn less_clock(&self, then: Nanos, now: Nanos) -> u64 {
        now.0.saturating_sub(then.0).saturating_sub(self.clock_ns)
    }

    /// From its beginning until `end`, which ends a stage, without the readings in between. Measured at both ends and
    /// not the sum of the stages: what one of them leaves out shows.
    fn whole(&self, trace: &Trace, end: Nanos) -> Option<u64> {
        let readings = self.clock_ns * (u64::from(trace.readings) + 1);
        let since = end.0.saturating_sub(trace.begun.0);
        Some(trace.before? + since.saturating_sub(readings))
    }

    /// Its way is clear.
    #[cold]
    pub(crate) fn matched(&mut self, id: u16) {
        let now = self.clock.stamp();
        let then = self.trace(id).map_or(now, |trace| trace.last);
        let matched = self.less_clock(then, now);
        if let Some(trace) = self.trace(id) {
            trace.matched = trace.matched.saturating_add(matched);
            trace.readings = trace.readings.saturating_add(1);
            trace.last = now;
        }
    }

    /// Its frame goes to the fabric now: the stamp it carries, never zero.
    #[cold]
    pub(crate) fn stamp(&mut self, id: u16) -> u64 {
        let ticks = self.clock.ticks();
        let now = self.own.stamp(ticks);
        let Some(trace) = self.trace(id).copied() else {
            return stamps::stamp(ticks, None);
        };
        let posted = self.less_clock(trace.last, now);
        let before = self.whole(&trace, now);
        if let Some(trace) = self.trace(id) {
            trace.posted = posted;
            trace.last = now;
        }
        stamps::stamp(ticks, before)
    }

    /// It went to the fabric when it was stamped, or was queued for it.
    #[cold]
    pub(crate) fn sent(&mut self, id: u16, port: usize, path: Path, subject: &TimedValue) {
        let Some(trace) = self.trace(id).copied() else {
            return;
        };
        let way = self.way(port, path);
        let (posted, posted_at) = (trace.posted, trace.last);
        let class = class_of(subject.bytes);
        if trace.queued > 0 {
            self.record(Stage::Queued, way, class, trace.queued);
        }
        self.record(Stage::Matched, way, class, trace.matched);
        self.record(Stage::Posted, way, class, posted);
        self.write(&Event {
            what: What::Sent,
            at: posted_at.0,
            way,
            class: class as u8,
            step: subject.step.0,
            key: subject.key,
            frame_iter: (subject.at.frame as u32, subject.at.iter as u32),
            ordinal: subject.ordinal,
            a: short(trace.queued),
            b: short(trace.matched),
            c: short(posted),
        });
        if let Some(trace) = self.trace(id) {
            trace.id = 0;
        }
    }

    // ──────────────────────────────────────────── receiver ────────────────────────────────────────────

    /// A frame that says when it was posted has arrived.
    #[cold]
    pub(crate) fn arrived(
        &mut self,
        stamp: u64,
        peer: usize,
        port: usize,
        path: Path,
        subject: &TimedValue,
    ) -> u16 {
        if !ON || self.recorder.is_none() {
            return 0;
        }
        let now = self.clock.ticks();
        let last = self.own.stamp(now);
        let way = self.way(port, path);
        let known = self.peers.get(peer).copied().flatten();
        // A peer reached through shared memory shares our counter.
        let is_near = self.carriers.get(port) == Some(&Carrier::Shm);
        let posted = match known {
            // A comparison is seconds old, and what it says of another counter is near that one's now.
            Some(PeerClock { scale, error_ns }) if error_ns > 0 => {
                Some(scale.stamp(stamps::ticks_of(stamp, scale.ticks)))
            }
            None if !is_near => None,
            _ => Some(self.own.stamp(stamps::ticks_of(stamp, now))),
        };
        // A comparison is as good as its error: what would have come before it was sent took no time that shows.
        let posted = posted.map(|posted| posted.min(last));
        let wire = posted.map(|posted| self.less_clock(posted, last));
        let wire = wire.filter(|wire| *wire <= WIRE_MAX_NS);
        self.open(Trace {
            way,
            class: class_of(subject.bytes) as u8,
            readings: 1,
            last,
            begun: posted.unwrap_or(last),
            before: wire.and_then(|_| stamps::before_of(stamp)),
            wire,
            step: subject.step.0,
            key: subject.key,
            frame_iter: (subject.at.frame as u32, subject.at.iter as u32),
            ordinal: subject.ordinal,
            ..Trace::default()
        })
    }

    /// The value is for this very task.
    #[cold]
    pub(crate) fn is_here(&mut self, id: u16, subject: &TimedValue) {
        if let Some(trace) = self.trace(id) {
            trace.way = Way::Local;
            trace.class = class_of(subject.bytes) as u8;
            trace.step = subject.step.0;
            trace.key = subject.key;
        }
    }

    /// A value has met its receiver, which is told next.
    #[inline]
    pub(crate) fn meets(&mut self, id: u16) {
        if ON && id != 0 {
            self.meet(id);
        }
    }

    #[cold]
    fn meet(&mut self, id: u16) {
        let now = self.clock.stamp();
        let Some(then) = self.trace(id).map(|trace| trace.last) else {
            return;
        };
        let landed = self.less_clock(then, now);
        if let Some(trace) = self.trace(id) {
            if trace.way == Way::Local {
                trace.matched = trace.matched.saturating_add(landed);
            } else {
                trace.landed = landed;
            }
            trace.readings = trace.readings.saturating_add(1);
            trace.last = now;
            self.handing = id;
        }
    }

    /// The trace of the value that is being handed over, for its event.
    #[inline]
    pub(crate) const fn take_handing(&mut self) -> u16 {
        if ON {
            std::mem::replace(&mut self.handing, 0)
        } else {
            0
        }
    }

    /// Its receiver, a task, is called now.
    #[cold]
    pub(crate) fn wakes(&self) -> Nanos {
        self.clock.stamp()
    }

    /// Its receiver, a task, was called then: all that is known of it is written down, when its answer has left.
    #[cold]
    pub(crate) fn woke(&mut self, id: u16, at: Nanos) {
        let Some(trace) = self.trace(id).copied() else {
            return;
        };
        let woken = self.less_clock(trace.last, at);
        let (way, class) = (trace.way, usize::from(trace.class));
        self.record(Stage::Woken, way, class, woken);
        if let (Some(whole), Some(recorder)) = (self.whole(&trace, at), &self.recorder) {
            recorder.record(cell_of(Stage::Whole, way, class), whole);
        }
        self.finish(&trace, woken, at);
    }

    /// Its receiver, a thread, is about to be woken: what it needs to say how long that took; never zero.
    #[cold]
    pub(crate) fn hands_to_thread(&mut self, id: u16) -> u64 {
        let Some(trace) = self.trace(id).copied() else {
            return 0;
        };
        self.finish(&trace, 0, trace.last);
        let so_far = self.whole_until_met(&trace);
        let place = place_of(trace.way, usize::from(trace.class));
        stamps::waking(place, so_far, trace.last)
    }

    /// From its beginning until it met its receiver.
    fn whole_until_met(&self, trace: &Trace) -> Option<u64> {
        // The reading at its end is counted among its stages.
        let until = Trace {
            readings: trace.readings.saturating_sub(1),
            ..*trace
        };
        self.whole(&until, trace.last)
    }

    fn finish(&mut self, trace: &Trace, woken: u64, at: Nanos) {
        let (way, class) = (trace.way, usize::from(trace.class));
        if way == Way::Local {
            if trace.queued > 0 {
                self.record(Stage::Queued, way, class, trace.queued);
            }
            self.record(Stage::Matched, way, class, trace.matched);
        } else {
            if let Some(wire) = trace.wire {
                self.record(Stage::Wire, way, class, wire);
            }
            self.record(Stage::Landed, way, class, trace.landed);
        }
        self.write(&Event {
            what: What::Took,
            at: at.0,
            way,
            class: trace.class,
            step: trace.step,
            key: trace.key,
            frame_iter: trace.frame_iter,
            ordinal: trace.ordinal,
            a: short(if way == Way::Local {
                trace.matched
            } else {
                trace.landed
            }),
            b: short(woken),
            c: trace.wire.map_or(u32::MAX, short),
        });
        if let Some(trace) = self.trace(trace.id) {
            trace.id = 0;
        }
    }

    // ──────────────────────────────────────────── what is rare ────────────────────────────────────────────

    /// Something rare happened to a value: it is kept for later inspection.
    #[cold]
    pub(crate) fn note(&mut self, what: What, subject: &TimedValue, a: u64) {
        if ON && self.recorder.is_some() {
            let at = self.clock.stamp().0;
            self.write(&Event {
                what,
                at,
                way: Way::Local,
                class: class_of(subject.bytes) as u8,
                step: subject.step.0,
                key: subject.key,
                frame_iter: (subject.at.frame as u32, subject.at.iter as u32),
                ordinal: 0,
                a: u32::try_from(a).unwrap_or(u32::MAX),
                // Microseconds: a wait may be longer than 32 bits of nanoseconds.
                b: u32::try_from(a / 1000).unwrap_or(u32::MAX),
                c: 0,
            });
        }
    }

    /// A step belongs to a trace of its caller's: later inspection finds it there.
    #[cold]
    pub(crate) fn traced(&mut self, step: StepId, trace: &Traceparent) {
        if ON && self.recorder.is_some() {
            let at = self.clock.stamp().0;
            self.write(&Event::traced(at, step.0, trace));
        }
    }

    /// A name for later inspection.
    #[cold]
    pub(crate) fn name(&self, hash: u64, text: &str) {
        if ON && let Some(recorder) = &self.recorder {
            recorder.name(hash, text);
        }
    }

    /// True if what is rare is kept.
    #[inline]
    pub(crate) const fn is_on(&self) -> bool {
        ON && self.sampling > 0
    }

    fn way(&self, port: usize, path: Path) -> Way {
        let carrier = self.carriers.get(port).copied().unwrap_or(Carrier::Shm);
        carrier.way(path)
    }

    fn record(&self, stage: Stage, way: Way, class: usize, nanos: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.record(cell_of(stage, way, class), nanos);
        }
    }

    fn write(&mut self, event: &Event) {
        if let Some(recorder) = &self.recorder {
            recorder.event(self.events, event);
            self.events += 1;
        }
    }
}

/// Whose value is timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedValue {
    pub(crate) step: StepId,
    pub(crate) at: FrameIter,
    /// The hash of the key's names.
    pub(crate) key: u64,
    pub(crate) ordinal: u32,
    pub(crate) bytes: u64,
}

/// A time as an event has room for it: four seconds and a bit stand for all that is longer, and all ones for none.
fn short(nanos: u64) -> u32 {
    u32::try_from(nanos).map_or(u32::MAX - 1, |nanos| nanos.min(u32::MAX - 1))
}

/// Way and size class, as a word for a thread names them.
const fn place_of(way: Way, class: usize) -> usize {
    way as usize * CLASSES.len() + class
}

const _: () = assert!(Way::ALL.len() * CLASSES.len() <= stamps::PLACES);

/// Records the last of a value's times: a thread has it now, and this was said of it.
pub fn woke_thread(recorder: &Recorder, word: u64, now: Nanos) {
    let waking = Waking::of(word, now);
    let class = waking.place % CLASSES.len();
    if let Some(way) = Way::from_wire((waking.place / CLASSES.len()) as u8) {
        let woken = waking.woken_ns.saturating_sub(recorder.clock_ns());
        recorder.record(cell_of(Stage::Woken, way, class), woken);
        if let Some(so_far) = waking.so_far_ns {
            recorder.record(cell_of(Stage::Whole, way, class), so_far + woken);
        }
    }
}

#[cfg(test)]
mod tests;
