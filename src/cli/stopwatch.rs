//! A stopwatch for loops that take tens of nanoseconds: the engine's own clock, read as ticks of its counter.
//!
//! Knows nothing of what is measured. Every measured loop of the command uses this one, rendez's own and the raw
//! references alike, so that a ratio of two of its figures has one clock in it. Processes of one machine share the
//! ticks, with a time-stamp counter and without one: what one stamps another may subtract.
//!
//! The counter is read without a fence. A fence would order the read against the loads around it and cost as much as
//! the round trip it should measure; without one a stamp is off by the few nanoseconds of the core's own reordering,
//! which average out over a chain of stamps, where each ends one interval and starts the next.

use std::time::Duration;

use rendez::trace::Clock;

/// A clock that is cheap to read and monotonic on one core.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    clock: Clock,
    /// Nanoseconds per tick as a fixed-point number with 32 fractional bits.
    rate: u64,
}

/// A reading of the stopwatch, in its own ticks. Only differences mean anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stamp(pub u64);

impl Stopwatch {
    /// The stopwatch of this machine. The first in a process measures the counter's rate for a few milliseconds.
    #[must_use]
    pub fn calibrated() -> Self {
        Self::of(Clock::system())
    }

    fn of(clock: Clock) -> Self {
        let rate = clock.scale().rate;
        Self { clock, rate }
    }

    /// Reads the clock.
    #[inline(always)]
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.clock.ticks())
    }

    /// Nanoseconds from `start` to `end`; zero if the clock went back, as it may by a little between cores.
    #[inline(always)]
    #[must_use]
    pub const fn nanos(&self, start: Stamp, end: Stamp) -> u64 {
        self.scaled(start, end, 0)
    }

    /// Picoseconds from `start` to `end`: for what is divided by a batch's size afterwards.
    #[must_use]
    pub const fn picos(&self, start: Stamp, end: Stamp) -> u64 {
        self.scaled(start, end, 1)
    }

    /// Ticks that `duration` takes: what a loop compares with, so that it need not convert.
    #[must_use]
    pub fn ticks(&self, duration: Duration) -> u64 {
        let nanos = duration.as_nanos();
        let ticks = (nanos << 32).checked_div(u128::from(self.rate));
        u64::try_from(ticks.unwrap_or(nanos)).unwrap_or(u64::MAX)
    }

    #[inline(always)]
    const fn scaled(&self, start: Stamp, end: Stamp, thousands: u32) -> u64 {
        let ticks = end.0.saturating_sub(start.0) as u128 * 1_000u128.pow(thousands);
        ((ticks * self.rate as u128) >> 32) as u64
    }
}

#[cfg(test)]
mod tests;
