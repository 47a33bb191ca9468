//! Stages: where the time of a hand-over goes, measured from within, on few values and without a lock.
//!
//! A value that is timed carries the number of its *trace*, a small record of this shard, through table and events;
//! the others carry zero, and cost one count and one look. One value in so many is timed on the fastest ways, every
//! one that an application thread sends or a socket carries. Across shards a stamp in the frame says when it was
//! posted ([`Push::put_stamp`](crate::wire::message::Push::put_stamp)).
//!
//! Without the feature `stages` all of this is nothing: what it costs is measured against that.

use std::sync::Arc;

use super::clock::{Clock, Scale};
use super::recorder::{self, Event, Head, Recorder, Stage, Way, What, cell_of, class_of};
use crate::fabric::AnyPort;
use crate::ground::Nanos;
use crate::memory::{MemoryError, Words};
use crate::rendezvous::Slot;

/// False in a build without them.
pub(crate) const ON: bool = cfg!(feature = "stages");

/// Traces at once. One that is overtaken by so many others is not timed after all.
const TRACES: usize = 256;
/// Readings of which the quickest is what a reading costs.
const READINGS: usize = 256;
/// No stamp of a peer tells of more: what lies further apart is a comparison that went wrong.
const WIRE_MAX_NS: u64 = 60_000_000_000;

/// What carries a link's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carrier {
    Shm,
    Tcp,
    Verbs,
}

impl Carrier {
    pub(crate) fn of(port: &AnyPort) -> Self {
        match port {
            AnyPort::Loopback(_) | AnyPort::Shm(_) => Self::Shm,
            AnyPort::Tcp(_) => Self::Tcp,
            AnyPort::Verbs(_) => Self::Verbs,
            AnyPort::Faulty(inner) => Self::of(inner.inner()),
        }
    }

    /// The way of a value that it carries in a frame, or else by a lease or a copy.
    pub(crate) const fn way(self, path: super::Path) -> Way {
        use super::Path;
        match (self, path) {
            (_, Path::Local) => Way::Local,
            (Self::Shm, Path::Inline) => Way::ShmInline,
            (Self::Shm, Path::Lease) => Way::ShmLease,
            (Self::Shm, Path::Copy) => Way::ShmCopy,
            (Self::Tcp, Path::Inline) => Way::TcpInline,
            (Self::Tcp, Path::Lease | Path::Copy) => Way::TcpCopy,
            (Self::Verbs, Path::Inline) => Way::VerbsInline,
            (Self::Verbs, Path::Lease | Path::Copy) => Way::VerbsCopy,
        }
    }
}

/// How a peer's counter compares with our clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerClock {
    /// How its ticks become our stamps.
    pub scale: Scale,
    /// By how much that may be wrong; zero for who shares our counter.
    pub error_ns: u64,
}

/// A value that is timed.
#[derive(Clone, Copy, Debug, Default)]
struct Trace {
    id: u16,
    way: Way,
    class: u8,
    /// When the stage before ended.
    last: Nanos,
    queued: u32,
    matched: u32,
    /// All ones if nobody can say.
    wire: u32,
    landed: u32,
    step: u64,
    key: u64,
    frame_iter: (u32, u32),
    ordinal: u32,
}

/// The stages of one shard. See the module.
#[derive(Debug)]
pub(crate) struct Stages {
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
pub(crate) struct Place {
    /// A new file; without one, memory that goes with the process.
    pub(crate) file: Option<std::fs::File>,
    pub(crate) ring_bytes: usize,
}

impl Stages {
    /// The stages of a shard. `head` needs neither its costs nor its scale filled in.
    ///
    /// # Errors
    /// [`MemoryError`] if there is no room for the recorder.
    pub(crate) fn new(
        clock: Clock,
        ports: &[AnyPort],
        place: Place,
        head: Head,
    ) -> Result<Self, MemoryError> {
        let (own, sampling) = (clock.scale(), head.sampling);
        let clock_ns = cost_of(&clock);
        let carriers: Vec<_> = ports.iter().map(Carrier::of).collect();
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
            let head = Head {
                clock_ns: clock_ns as u32,
                scale: own,
                ..head
            };
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
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.clone()
    }

    /// How a peer's counter compares with ours, from here on.
    pub(crate) fn compare(&mut self, peer: u32, clock: Option<PeerClock>) {
        let at = peer as usize;
        if self.peers.len() <= at {
            self.peers.resize(at + 1, None);
        }
        self.peers[at] = clock;
    }

    // ───────────────────────────────────────────── who sends ─────────────────────────────────────────────

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

    /// An application thread's value was taken; it began to queue then.
    #[inline]
    pub(crate) fn took(&mut self, queued_at: Nanos) {
        if ON && queued_at != Nanos::ZERO && self.sampling > 0 {
            self.sending = self.begin(queued_at);
        }
    }

    /// The trace of the value that is being sent, which is its own from here on.
    #[inline]
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
        let queued = if queued_at == Nanos::ZERO {
            0
        } else {
            self.less_clock(queued_at, last)
        };
        self.open(Trace {
            last,
            queued,
            wire: u32::MAX,
            ..Trace::default()
        })
    }

    fn open(&mut self, trace: Trace) -> u16 {
        // The low byte is the place, the high one which use of it; zero is nobody's.
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
    fn less_clock(&self, then: Nanos, now: Nanos) -> u32 {
        let nanos = now.0.saturating_sub(then.0).saturating_sub(self.clock_ns);
        u32::try_from(nanos).unwrap_or(u32::MAX - 1)
    }

    /// Its way is clear.
    #[cold]
    pub(crate) fn matched(&mut self, id: u16) {
        let now = self.clock.stamp();
        let Some(then) = self.trace(id).map(|trace| trace.last) else {
            return;
        };
        let matched = self.less_clock(then, now);
        if let Some(trace) = self.trace(id) {
            trace.matched = trace.matched.saturating_add(matched);
            trace.last = now;
        }
    }

    /// Its frame goes to the fabric now: the stamp it carries, never zero.
    #[cold]
    pub(crate) fn stamp(&mut self) -> u64 {
        self.clock.ticks().max(1)
    }

    /// It went to the fabric at `stamp`, or was queued for it.
    #[cold]
    pub(crate) fn sent(
        &mut self,
        id: u16,
        stamp: u64,
        port: usize,
        path: super::Path,
        subject: &Subject,
    ) {
        let posted_at = self.own.stamp(stamp);
        let Some(trace) = self.trace(id).copied() else {
            return;
        };
        let way = self.way(port, path);
        let posted = self.less_clock(trace.last, posted_at);
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
            step: subject.slot.step.0,
            key: subject.key,
            frame_iter: (subject.slot.at.frame as u32, subject.slot.at.iter as u32),
            ordinal: subject.ordinal,
            a: trace.queued,
            b: trace.matched,
            c: posted,
        });
        if let Some(trace) = self.trace(id) {
            trace.id = 0;
        }
    }

    // ──────────────────────────────────────────── who receives ────────────────────────────────────────────

    /// A frame that says when it was posted has arrived.
    #[cold]
    pub(crate) fn arrived(
        &mut self,
        stamp: u64,
        peer: u32,
        port: usize,
        path: super::Path,
        subject: &Subject,
    ) -> u16 {
        if !ON || self.recorder.is_none() {
            return 0;
        }
        let last = self.clock.stamp();
        let way = self.way(port, path);
        let known = self.peers.get(peer as usize).copied().flatten();
        // Who is reached through shared memory counts with the same counter.
        let is_near = self.carriers.get(port) == Some(&Carrier::Shm);
        let scale = known
            .map(|clock| clock.scale)
            .or_else(|| is_near.then_some(self.own));
        let posted = scale.map(|scale| scale.stamp(stamp));
        // A comparison is as good as its error: what would have come before it was sent took no time that shows.
        let wire = posted.map_or(u32::MAX, |posted| self.less_clock(posted, last));
        let wire = if u64::from(wire) > WIRE_MAX_NS {
            u32::MAX
        } else {
            wire
        };
        self.open(Trace {
            way,
            class: class_of(subject.bytes) as u8,
            last,
            wire,
            step: subject.slot.step.0,
            key: subject.key,
            frame_iter: (subject.slot.at.frame as u32, subject.slot.at.iter as u32),
            ordinal: subject.ordinal,
            ..Trace::default()
        })
    }

    /// The value is for this very task.
    #[cold]
    pub(crate) fn is_here(&mut self, id: u16, subject: &Subject) {
        if let Some(trace) = self.trace(id) {
            trace.way = Way::Local;
            trace.class = class_of(subject.bytes) as u8;
            trace.step = subject.slot.step.0;
            trace.key = subject.key;
        }
    }

    /// A value has met its receiver, who hears of it next.
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
                trace.matched = landed;
            } else {
                trace.landed = landed;
            }
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
        self.record(Stage::Woken, trace.way, usize::from(trace.class), woken);
        self.finish(&trace, woken, at);
    }

    /// Its receiver, a thread, is about to be woken: what it needs to say how long that took; never zero.
    #[cold]
    pub(crate) fn hands_to_thread(&mut self, id: u16) -> u64 {
        let Some(trace) = self.trace(id).copied() else {
            return 0;
        };
        self.finish(&trace, 0, trace.last);
        let cell = cell_of(Stage::Woken, trace.way, usize::from(trace.class)) as u64;
        cell << MOMENT_BITS | (trace.last.0 & ((1 << MOMENT_BITS) - 1)).max(1)
    }

    fn finish(&mut self, trace: &Trace, woken: u32, at: Nanos) {
        let (way, class) = (trace.way, usize::from(trace.class));
        if way == Way::Local {
            if trace.queued > 0 {
                self.record(Stage::Queued, way, class, trace.queued);
            }
            self.record(Stage::Matched, way, class, trace.matched);
        } else {
            if trace.wire != u32::MAX {
                self.record(Stage::Wire, way, class, trace.wire);
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
            a: if way == Way::Local {
                trace.matched
            } else {
                trace.landed
            },
            b: woken,
            c: trace.wire,
        });
        if let Some(trace) = self.trace(trace.id) {
            trace.id = 0;
        }
    }

    // ──────────────────────────────────────────── what is rare ────────────────────────────────────────────

    /// Something rare happened to a value: it is kept for whoever looks back.
    #[cold]
    pub(crate) fn note(&mut self, what: What, slot: Slot, key: u64, bytes: u64, a: u64) {
        if ON && self.recorder.is_some() {
            let at = self.clock.stamp().0;
            self.write(&Event {
                what,
                at,
                way: Way::Local,
                class: class_of(bytes) as u8,
                step: slot.step.0,
                key,
                frame_iter: (slot.at.frame as u32, slot.at.iter as u32),
                ordinal: 0,
                a: u32::try_from(a).unwrap_or(u32::MAX),
                // Microseconds: a wait may be longer than 32 bits of nanoseconds.
                b: u32::try_from(a / 1000).unwrap_or(u32::MAX),
                c: 0,
            });
        }
    }

    /// A name for whoever looks back.
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

    fn way(&self, port: usize, path: super::Path) -> Way {
        let carrier = self.carriers.get(port).copied().unwrap_or(Carrier::Shm);
        carrier.way(path)
    }

    fn record(&self, stage: Stage, way: Way, class: usize, nanos: u32) {
        if let Some(recorder) = &self.recorder {
            recorder.record(cell_of(stage, way, class), u64::from(nanos));
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
pub(crate) struct Subject {
    pub(crate) slot: Slot,
    /// The hash of the key's names.
    pub(crate) key: u64,
    pub(crate) ordinal: u32,
    pub(crate) bytes: u64,
}

/// A cell and a moment in one word, for a thread that is being woken.
const MOMENT_BITS: u32 = 56;

/// The cell and the moment of such a word.
pub(crate) const fn waking_of(word: u64) -> (usize, Nanos) {
    (
        (word >> MOMENT_BITS) as usize,
        Nanos(word & ((1 << MOMENT_BITS) - 1)),
    )
}

const _: () = assert!(recorder::CELLS <= 1 << (u64::BITS - MOMENT_BITS));

/// The quickest of many readings one after the other.
fn cost_of(clock: &Clock) -> u64 {
    let mut least = u64::MAX;
    let mut last = clock.stamp();
    for _ in 0..READINGS {
        let now = clock.stamp();
        least = least.min(now.0.saturating_sub(last.0));
        last = now;
    }
    if least == u64::MAX { 0 } else { least }
}

#[cfg(test)]
mod tests;
