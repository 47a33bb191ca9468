//! Events: what a recorder's ring holds.
//!
//! It knows their meaning, and not how they lie in memory.

use super::Way;
use crate::ground::Traceparent;

listed! {
    /// What happened, in an event.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    #[non_exhaustive]
    pub enum What {
        /// A value went to the fabric; `a` is how long it was queued, `b` matched, `c` posted.
        Sent = 1 => "sent",
        /// A value reached its receiver; `a` is how long it was landed, `b` woken, `c` on the wire (all ones if
        /// unknown).
        Took = 2 => "took",
        /// A receive with a deadline began; `a` is how long it may take.
        Waits = 3 => "receive begins",
        /// A receive's deadline passed; `a` is since when it waited.
        Missed = 4 => "deadline missed",
        /// A value parks here: its way is not clear, or no receiver waits for it. `a` is its size.
        Parked = 5 => "parked",
        /// A value is on offer here, its bytes are elsewhere. `a` is its size.
        Offered = 6 => "on offer",
        /// Its bytes are asked for. `a` is their number.
        Fetched = 7 => "fetching",
        /// A step ended by a failure or an abort.
        Ended = 8 => "step ended",
        /// A peer is up; `a` is its number.
        PeerUp = 9 => "peer up",
        /// A peer is away or lost; `a` is its number.
        PeerDown = 10 => "peer down",
        /// A step belongs to a trace of its caller's: see [`Event::traceparent`].
        Traced = 11 => "traced",
    }
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub what: What,
    /// When, in nanoseconds of the shard's clock.
    pub at: u64,
    /// The way of the value.
    pub way: Way,
    /// The size class of the value.
    pub class: u8,
    /// The step.
    pub step: u64,
    /// The hash of the key's names; zero where there is none.
    pub key: u64,
    /// Loop frame and iteration, their low halves.
    pub frame_iter: (u32, u32),
    /// Which value of the key.
    pub ordinal: u32,
    /// See [`What`].
    pub a: u32,
    /// See [`What`].
    pub b: u32,
    /// See [`What`].
    pub c: u32,
}

impl Event {
    /// A step belongs to that trace, which takes the place of key, loop frame and figures.
    #[must_use]
    pub const fn traced(at: u64, step: u64, trace: &Traceparent) -> Self {
        let (trace_id, parent_id) = (trace.trace_id(), trace.parent_id());
        Self {
            what: What::Traced,
            at,
            way: Way::Local,
            class: 0,
            step,
            key: (trace_id >> 64) as u64,
            frame_iter: ((trace_id >> 32) as u32, trace_id as u32),
            ordinal: 0,
            a: (parent_id >> 32) as u32,
            b: parent_id as u32,
            c: trace.flags() as u32,
        }
    }

    /// The trace that such an event tells of; `None` for another event, and for one that says nonsense.
    #[must_use]
    pub fn traceparent(&self) -> Option<Traceparent> {
        let (middle, low) = self.frame_iter;
        let trace_id = u128::from(self.key) << 64 | u128::from(middle) << 32 | u128::from(low);
        let parent_id = u64::from(self.a) << 32 | u64::from(self.b);
        let trace = Traceparent::new(trace_id, parent_id, self.c as u8);
        trace.filter(|_| self.what == What::Traced)
    }
}
