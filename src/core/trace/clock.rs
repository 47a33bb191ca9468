//! The clock: the one place below floor 5 that reads time.
//!
//! It knows nothing of shards. On x86-64 with an invariant time-stamp counter a stamp is one `rdtsc` and one
//! multiplication; elsewhere it is the monotonic clock of the system; in a simulation it is a number that the
//! simulation moves. All clocks of a process share one origin.
#![allow(unsafe_code)]

use std::sync::OnceLock;
#[cfg(any(test, feature = "testing"))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};

use crate::ground::Nanos;

/// Readings of which the quickest is what a reading costs.
const READINGS: usize = 256;

/// A source of stamps. Cheap to clone; all clones agree.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    #[cfg(target_arch = "x86_64")]
    Tsc {
        origin: u64,
        /// Nanoseconds per tick, in 2⁻³² units.
        scale: u64,
    },
    Monotonic(Instant),
    #[cfg(any(test, feature = "testing"))]
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The clock of this process. The first call measures the counter's rate for a few milliseconds.
    #[must_use]
    pub fn system() -> Self {
        static SYSTEM: OnceLock<Clock> = OnceLock::new();
        SYSTEM
            .get_or_init(|| Self(measure().unwrap_or_else(|| Source::Monotonic(Instant::now()))))
            .clone()
    }

    /// A clock that shows what `now` holds.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub const fn simulated(now: Arc<AtomicU64>) -> Self {
        Self(Source::Virtual(now))
    }

    /// True if a simulation moves it.
    #[must_use]
    pub const fn is_simulated(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        return matches!(self.0, Source::Virtual(_));
        #[cfg(not(any(test, feature = "testing")))]
        false
    }

    /// Nanoseconds since this clock's origin.
    #[inline]
    #[must_use]
    pub fn stamp(&self) -> Nanos {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Source::Tsc { origin, scale } => {
                let ticks = ticks().wrapping_sub(*origin);
                Nanos(((u128::from(ticks) * u128::from(*scale)) >> 32) as u64)
            }
            Source::Monotonic(origin) => {
                Nanos(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
            }
            #[cfg(any(test, feature = "testing"))]
            Source::Virtual(now) => Nanos(now.load(Ordering::Relaxed)),
        }
    }

    /// The counter under the stamps. Processes of one machine share it, whatever their origins: stamps of two processes
    /// differ by how far each measured the counter's rate, and ticks do not.
    #[inline]
    #[must_use]
    pub fn ticks(&self) -> u64 {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Source::Tsc { .. } => ticks(),
            Source::Monotonic(_) => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                (now.tv_sec as u64)
                    .wrapping_mul(1_000_000_000)
                    .wrapping_add(now.tv_nsec as u64)
            }
            #[cfg(any(test, feature = "testing"))]
            Source::Virtual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// How ticks become stamps.
    #[must_use]
    pub fn scale(&self) -> Scale {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Source::Tsc { origin, scale } => Scale {
                ticks: *origin,
                nanos: 0,
                rate: *scale,
            },
            // Both are looked at one after the other: as exact as the difference needs to be.
            Source::Monotonic(_) => Scale {
                ticks: self.ticks(),
                nanos: self.stamp().0,
                rate: 1 << 32,
            },
            #[cfg(any(test, feature = "testing"))]
            Source::Virtual(_) => Scale {
                ticks: 0,
                nanos: 0,
                rate: 1 << 32,
            },
        }
    }

    /// What a stamp costs: the quickest of many readings one after the other.
    pub(crate) fn cost_ns(&self) -> u64 {
        let mut last = self.stamp();
        let mut cost = || {
            let before = std::mem::replace(&mut last, self.stamp());
            last.0.saturating_sub(before.0)
        };
        (0..READINGS).map(|_| cost()).min().unwrap_or(0)
    }

    /// The deadline `patience` from now; never, if that is too far to count.
    #[must_use]
    pub fn deadline(&self, patience: Duration) -> Nanos {
        self.stamp().after(patience)
    }
}

/// How a counter's ticks become stamps: one moment on both, and the rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// The counter at that moment.
    pub ticks: u64,
    /// The stamp at that moment.
    pub nanos: u64,
    /// Nanoseconds per tick, in 2⁻³² units.
    pub rate: u64,
}

impl Scale {
    /// The stamp of `ticks`, which may lie before the moment; zero for what was before the origin.
    #[inline]
    #[must_use]
    pub fn stamp(&self, ticks: u64) -> Nanos {
        let since = i128::from(ticks.wrapping_sub(self.ticks).cast_signed());
        let nanos = i128::from(self.nanos) + ((since * i128::from(self.rate)) >> 32);
        Nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: `rdtsc` has no memory operands and no preconditions but the instruction's existence, which every
    // x86-64 processor guarantees; a kernel that forbids it (CR4.TSD) would fault, and Linux never sets that bit
    // unless the process asks for it with prctl(PR_SET_TSC), which nothing here does.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The counter's rate against the system's clock: `None` where the counter is not steady.
#[cfg(target_arch = "x86_64")]
fn measure() -> Option<Source> {
    let steady = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
        text.lines()
            .find(|line| line.starts_with("flags"))
            .is_some_and(|flags| flags.contains(" constant_tsc") && flags.contains(" nonstop_tsc"))
    });
    if !steady {
        return None;
    }
    // 5 ms, of which each end is known to some 20 ns: a rate true to about 2 · 10⁻⁶.
    let (began, origin) = paired(|| (ticks(), Instant::now(), ticks()));
    while began.elapsed() < Duration::from_millis(5) {
        std::hint::spin_loop();
    }
    let (ended, end) = paired(|| (ticks(), Instant::now(), ticks()));
    let nanos = ended.duration_since(began).as_nanos();
    let scale = (nanos << 32).checked_div(u128::from(end.wrapping_sub(origin)))?;
    Some(Source::Tsc {
        origin,
        scale: u64::try_from(scale).ok()?,
    })
}

/// One moment on both clocks. `look` reads the counter, the system's clock, and the counter again; of some tries the
/// one counts in which least passed in between. A thread that is interrupted between the two readings would else
/// believe a wrong rate, and end all its deadlines too early or too late.
#[cfg(target_arch = "x86_64")]
fn paired(mut look: impl FnMut() -> (u64, Instant, u64)) -> (Instant, u64) {
    const TRIES: usize = 16;
    let (mut best, mut least) = (look(), u64::MAX);
    for _ in 0..TRIES {
        let (before, now, after) = look();
        let between = after.wrapping_sub(before);
        if between < least {
            (best, least) = ((before, now, after), between);
        }
    }
    let (before, now, after) = best;
    (now, before.wrapping_add(after.wrapping_sub(before) / 2))
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<Source> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
