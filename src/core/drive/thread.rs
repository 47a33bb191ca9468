//! The thread of a shard: pinned, turning, and asleep when its policy lets it.
//!
//! It knows when to turn, not what a turn does. `busy` never sleeps; `adaptive` spins a while first; `park` sleeps
//! as soon as there is nothing to do. A shard whose core is shared gives the core away every so many empty turns. An
//! application thread that waits as the leader behaves as the shard's own would.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::baton::{BatonGuard, KEPT, SLEEPS, WANTED};
use super::{Drive, Running, Seat};
use crate::fabric::doorbell::Doorbell;
use crate::ground::Nanos;
use crate::shard::{Progress, Shard};
use crate::sync::Ordering;

/// How a shard waits for work.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum PollPolicy {
    /// Spin for a while ([`Running::spin`]), then sleep until the doorbell rings.
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

    /// Nanoseconds of empty turns before sleep, or none: of time and not of turns, for a turn over sixty peers is ten
    /// times as long as one over two.
    fn patience_ns(self, spin: Duration) -> Option<u64> {
        match self {
            Self::Adaptive => Some(u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX)),
            Self::Busy => None,
            Self::Park => Some(0),
        }
    }
}

/// Empty turns between two looks at the time, and two yields of a shared core.
pub(super) const TURNS_PER_LOOK: u32 = 64;

/// The longest sleep: a bound on how late anything unforeseen is noticed. In this crate's tests nothing is unforeseen:
/// a ring that is lost is seen there.
const SLEEP_MAX: Duration = Duration::from_millis(if cfg!(test) { 600_000 } else { 100 });

/// How often the thread looks whether callers still turn the shard: it takes over after two looks at the latest.
const WATCH: Duration = Duration::from_micros(100);

/// The same while callers come and go so densely that a look each 100 µs would cost one in a hundred of them its core.
const WATCH_DENSE: Duration = Duration::from_micros(500);

/// Rounds between two looks that are dense.
const DENSE: u64 = 32;

/// Empty turns between two looks at whether another thread ran on this core.
const TURNS_PER_WATCH: u32 = 1024;

/// Whether the core is shared with another thread, seen from within: a stretch of empty turns that takes as long as a
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
    /// This thread is a shard's, or turns one.
    static IS_SHARD: Cell<bool> = const { Cell::new(false) };
}

/// True on the thread of a shard, of whatever engine, and on one that turns a shard just now: a caller that waits here
/// stops that shard.
#[inline]
#[must_use]
pub fn is_shard_thread() -> bool {
    IS_SHARD.get()
}

/// As long as this lives, its thread is a shard's; then it is again what it was before.
pub(super) struct Inside(bool);

impl Inside {
    #[inline]
    pub(super) fn enter() -> Self {
        Self(IS_SHARD.replace(true))
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        IS_SHARD.set(self.0);
    }
}

/// How long empty turns go on before the thread that turns the shard sleeps.
pub(super) struct Patience {
    patience_ns: Option<u64>,
    watch: Watch,
    empty: u32,
    idle_since: Nanos,
}

/// What an empty turn is followed by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Idle {
    /// The next.
    Turn,
    /// A look at what else there is, now and then, and then the next.
    Look,
    /// Sleep.
    Sleep,
}

impl Patience {
    pub(super) fn new(running: &Running) -> Self {
        Self {
            patience_ns: running.policy.patience_ns(running.spin),
            watch: Watch {
                is_shared: running.is_shared,
                ..Watch::default()
            },
            empty: 0,
            idle_since: Nanos::ZERO,
        }
    }

    /// Something was done, or slept.
    #[inline]
    pub(super) const fn busy(&mut self) {
        self.watch.interrupt();
        self.empty = 0;
    }

    /// A turn was empty.
    #[inline]
    pub(super) fn idle(&mut self, shard: &Shard) -> Idle {
        self.empty = self.empty.wrapping_add(1);
        // No pause: no other thread runs on this core, and a pause costs as much as a message takes to arrive.
        if !self.empty.is_multiple_of(TURNS_PER_LOOK) {
            return Idle::Turn;
        }
        if self.watch.is_shared {
            std::thread::yield_now();
        }
        let now = shard.clock.stamp();
        if self.empty == TURNS_PER_LOOK {
            self.idle_since = now;
        }
        if self.empty.is_multiple_of(TURNS_PER_WATCH) {
            self.watch.look(now);
        }
        // Time that another thread ran on a shared core counts too: a thread that wants the core gets it.
        match self.patience_ns {
            Some(patience_ns) if now - self.idle_since >= patience_ns => Idle::Sleep,
            _ => Idle::Look,
        }
    }
}

/// Sleeps with the shard until the doorbell rings, a port's own descriptor is readable, a timer is due, or `most` is
/// over. The doorbell is armed before the last look, so that a thread that posts after that look sees it armed and
/// rings; before `must_wait` too, which says whether what is waited for is still to come.
pub(super) fn sleep(
    shard: &mut Shard,
    doorbell: &Doorbell,
    most: Option<Duration>,
    must_wait: impl FnOnce() -> bool,
) {
    doorbell.arm();
    if must_wait() && shard.arm() {
        let patience = patience(shard, most);
        // An error of the wait only shortens it: the loop looks again.
        let _ = doorbell.wait_beside(shard.wake_fds(), Some(patience));
    }
    doorbell.disarm();
    shard.disarm();
}

/// How long a shard may sleep from now on.
pub(super) fn patience(shard: &Shard, most: Option<Duration>) -> Nanos {
    let now = shard.clock.stamp();
    let most = most.map_or(SLEEP_MAX, |most| most.min(SLEEP_MAX));
    let until = shard.next_timer().min(now.after(most));
    Nanos(until - now)
}

/// Why the thread lets the shard go.
enum Home {
    /// It has ended.
    Over,
    /// A caller wants to turn it.
    Wanted,
    /// There is nothing to do.
    Idle,
}

impl Drive {
    /// The life of a shard's thread: turns it until it stops, or panics, which ends its engine. What is left of it
    /// comes back: its connections end with it.
    pub fn run(&self, shard: Shard) -> Option<Shard> {
        let _inside = Inside::enter();
        // Its ports' own descriptors, to wait for while others have the ports.
        let fds: Result<Vec<OwnedFd>, _> =
            shard.wake_fds().map(|fd| fd.try_clone_to_owned()).collect();
        let _ = self.thread.set(std::thread::current());
        // No other thread takes it before this.
        let mut held = self.baton.take_home()?;
        held.with(|seat| seat.shard = Some(shard));
        let fds = fds.ok().filter(|_| self.is_shared());
        let mut patience = Patience::new(&self.running);
        loop {
            let home = held.with(|seat| self.at_home(seat, fds.is_some(), &mut patience));
            patience.busy();
            held = match (home, &fds) {
                (Home::Wanted, Some(_)) => match held.lay_down() {
                    Ok(_) => self.watch(),
                    Err(held) => held,
                },
                (Home::Idle, Some(fds)) => self.sleep_beside(held, fds),
                (Home::Over, _) | (_, None) => {
                    self.baton.keep(true);
                    return held.with(|seat| seat.shard.take());
                }
            };
        }
    }

    /// Turns the shard as its own thread, until it lets it go.
    fn at_home(&self, seat: &mut Seat, is_shared: bool, patience: &mut Patience) -> Home {
        let Some(shard) = seat.shard.as_mut().filter(|_| !seat.is_over) else {
            return Home::Over;
        };
        let turning = AssertUnwindSafe(|| {
            shard.come_home();
            self.turns(shard, is_shared, patience)
        });
        catch_unwind(turning).unwrap_or_else(|panic| {
            shard.die(panic);
            Home::Over
        })
    }

    fn turns(&self, shard: &mut Shard, is_shared: bool, patience: &mut Patience) -> Home {
        // While it has tasks that are bound to it, or is about to end, no other thread may take the shard.
        let mut is_kept = self.baton.is(KEPT);
        loop {
            let progress = shard.turn();
            if is_shared {
                let is_bound = shard.has_bound_tasks() || shard.is_leaving();
                if is_bound != is_kept {
                    is_kept = is_bound;
                    self.baton.keep(is_kept);
                }
                if !is_kept && self.baton.is(WANTED) && progress != Progress::Stopped {
                    return Home::Wanted;
                }
            }
            match progress {
                Progress::Stopped => return Home::Over,
                Progress::Busy => patience.busy(),
                Progress::Idle => match patience.idle(shard) {
                    Idle::Turn | Idle::Look => {}
                    Idle::Sleep if is_shared && !is_kept => return Home::Idle,
                    Idle::Sleep => {
                        sleep(shard, &self.doorbell, None, || true);
                        patience.busy();
                    }
                },
            }
        }
    }

    /// Sleeps without the shard, with the doorbell armed: a caller that takes it meanwhile wakes this thread.
    fn sleep_beside<'a>(
        &'a self,
        mut held: BatonGuard<'a, Seat>,
        fds: &[OwnedFd],
    ) -> BatonGuard<'a, Seat> {
        let most = held.with(|seat| {
            // An earlier ring, or a caller that took the shard, is no reason to wake.
            self.doorbell.disarm();
            self.doorbell.arm();
            let most = seat.arm();
            seat.is_asleep = most.is_some();
            if !seat.is_asleep {
                self.doorbell.disarm();
                seat.inside(Shard::disarm);
            }
            most
        });
        let Some(most) = most else {
            return held;
        };
        let rounds = self.baton.rounds();
        // From here on its doorbell belongs to any caller that takes the shard; callers ring this one.
        self.home.disarm();
        self.home.arm();
        held = match held.lay_down() {
            Ok(_) => {
                let (_, home) = self.home.fds();
                let fds = fds.iter().map(AsFd::as_fd).chain([home]);
                // An error of the wait only shortens it.
                let _ = self.doorbell.wait_beside(fds, Some(most));
                self.home.disarm();
                let is_driven = self.baton.rounds() != rounds && !self.baton.is(KEPT);
                match self.baton.take_home() {
                    Some(held) if !is_driven => held,
                    Some(held) => match held.lay_down() {
                        Ok(_) => return self.watch(),
                        Err(held) => held,
                    },
                    None => return self.watch(),
                }
            }
            Err(held) => {
                self.home.disarm();
                held
            }
        };
        self.awake(&mut held);
        held
    }

    /// The thread has the shard again, after a sleep or a watch.
    fn awake(&self, held: &mut BatonGuard<'_, Seat>) {
        self.is_summoned.store(false, Ordering::Release);
        held.with(|seat| {
            let was_asleep = std::mem::take(&mut seat.is_asleep);
            let Some(shard) = &mut seat.shard else {
                return;
            };
            if was_asleep {
                self.doorbell.disarm();
                shard.disarm();
            }
            shard.resume(true);
        });
    }

    /// Callers turn the shard: waits until none does, or this thread is asked to.
    fn watch(&self) -> BatonGuard<'_, Seat> {
        let mut last = self.baton.rounds();
        loop {
            let rounds = self.baton.rounds();
            let is_dense = rounds - last >= DENSE;
            last = rounds;
            if self.baton.is(SLEEPS) {
                // The thread that sleeps with the shard wakes this one when it is done with it.
                std::thread::park();
            } else {
                std::thread::park_timeout(if is_dense { WATCH_DENSE } else { WATCH });
            }
            let is_summoned = self.is_summoned.swap(false, Ordering::AcqRel);
            if is_summoned || self.baton.is(KEPT) || self.baton.rounds() == rounds {
                if let Some(mut held) = self.baton.take_home() {
                    self.awake(&mut held);
                    return held;
                }
                if is_summoned {
                    self.is_summoned.store(true, Ordering::Release);
                }
            }
        }
    }
}
