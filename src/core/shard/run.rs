//! The thread of a shard: pinned, turning, and asleep when its policy lets it.
//!
//! It knows when to turn, not what a turn does. `busy` never sleeps; `adaptive` spins a while first; `park` sleeps
//! as soon as there is nothing to do. A shard whose core is shared gives the core away every so many empty turns.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::{Progress, Shard};
use crate::fabric::doorbell::Doorbell;
use crate::ground::Nanos;

/// How a shard waits for work.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum PollPolicy {
    /// Spin for a while, then sleep until somebody rings.
    #[default]
    Adaptive = 0,
    /// Spin for ever: dedicated cores and benches.
    Busy = 1,
    /// Sleep as soon as there is nothing to do: an idle engine uses no processor time.
    Park = 2,
}

impl PollPolicy {
    /// True if peers must ring this shard's doorbell.
    #[must_use]
    pub const fn may_sleep(self) -> bool {
        !matches!(self, Self::Busy)
    }

    /// Nanoseconds of empty turns before sleep, or none. `adaptive` spins for half a millisecond, twenty times what a
    /// sleep costs to end: of time and not of turns, for a turn over sixty peers is ten times as long as one over two.
    const fn patience_ns(self) -> Option<u64> {
        match self {
            Self::Adaptive => Some(500_000),
            Self::Busy => None,
            Self::Park => Some(0),
        }
    }
}

/// What the thread needs beside the shard.
#[derive(Debug)]
pub struct Running {
    /// How it waits for work.
    pub policy: PollPolicy,
    /// What wakes it.
    pub doorbell: Arc<Doorbell>,
    /// Other threads of ours run on this core: yield it.
    pub is_shared: bool,
}

/// Empty turns between two looks at the time, and two yields of a shared core.
const TURNS_PER_LOOK: u32 = 64;

/// The longest sleep: a bound on how late anything unforeseen is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Empty turns between two looks at whether somebody else ran on this core.
const TURNS_PER_WATCH: u32 = 1024;

/// Whether the core is shared with anybody, seen from within: a stretch of empty turns that takes as long as a
/// scheduler's slice was not spent here.
#[derive(Debug, Default)]
struct Watch {
    last: Nanos,
    stolen: u32,
    is_shared: bool,
}

impl Watch {
    /// A thousand empty turns take some tens of microseconds; a slice of another thread at least one millisecond.
    const STOLEN_NS: u64 = 1_000_000;
    /// So many stolen slices are no accident of the host.
    const STOLEN_MAX: u32 = 64;

    fn look(&mut self, now: Nanos) {
        if self.last != Nanos::ZERO && now - self.last > Self::STOLEN_NS && !self.is_shared {
            self.stolen += 1;
            if self.stolen == Self::STOLEN_MAX {
                self.is_shared = true;
                tracing::warn!(
                    "this shard's core is shared with another thread: the shard yields it from now on"
                );
            }
        }
        self.last = now;
    }

    /// What came between two looks was work or sleep, not theft.
    const fn interrupt(&mut self) {
        self.last = Nanos::ZERO;
    }
}

std::thread_local! {
    /// This thread is a shard's.
    static IS_SHARD: Cell<bool> = const { Cell::new(false) };
}

/// True on the thread of a shard, of whatever engine: a caller that waits here stops that shard.
pub fn is_shard_thread() -> bool {
    IS_SHARD.get()
}

/// Turns the shard until it stops, or panics: then its engine has ended.
pub fn run(mut shard: Shard, running: &Running) -> Shard {
    IS_SHARD.set(true);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| turn(&mut shard, running))) {
        shard.die(panic);
    }
    shard
}

fn turn(shard: &mut Shard, running: &Running) {
    let patience_ns = running.policy.patience_ns();
    let mut watch = Watch {
        is_shared: running.is_shared,
        ..Watch::default()
    };
    let mut empty = 0u32;
    let mut idle_since = Nanos::ZERO;
    loop {
        match shard.turn() {
            Progress::Busy => {
                watch.interrupt();
                empty = 0;
            }
            Progress::Stopped => return,
            Progress::Idle => {
                empty = empty.wrapping_add(1);
                // No pause: on this core nobody else runs, and a pause costs as much as a message takes to come.
                if !empty.is_multiple_of(TURNS_PER_LOOK) {
                    continue;
                }
                if watch.is_shared {
                    std::thread::yield_now();
                }
                let now = shard.clock.stamp();
                if empty == TURNS_PER_LOOK {
                    idle_since = now;
                }
                if empty.is_multiple_of(TURNS_PER_WATCH) {
                    watch.look(now);
                }
                // Time that a shared core was somebody else's counts too: who wants it gets it.
                if patience_ns.is_some_and(|patience_ns| now - idle_since >= patience_ns) {
                    sleep(shard, &running.doorbell);
                    watch.interrupt();
                    empty = 0;
                }
            }
        }
    }
}

/// Sleeps until somebody rings, a port's own descriptor is readable, or a timer is due. The doorbell is armed before
/// the last look, so that whoever posts after that look sees it armed and rings.
fn sleep(shard: &mut Shard, doorbell: &Doorbell) {
    doorbell.arm();
    if shard.arm() {
        let now = shard.clock.stamp();
        let until = shard.next_timer().min(now.after(SLEEP_MAX));
        // An error of the wait only shortens it: the loop looks again.
        let _ = doorbell.wait_beside(shard.wake_fds(), Some(Nanos(until - now)));
    }
    doorbell.disarm();
    shard.disarm();
}
