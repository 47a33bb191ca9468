//! A stopwatch for loops that take tens of nanoseconds: the time-stamp counter, calibrated; [`Instant`] elsewhere.
//!
//! Knows nothing of what is measured. Every measured loop of the command uses this one, rendez's own and the raw
//! references alike, so that a ratio of two of its figures has one clock in it.
//!
//! The counter is read without a fence. A fence would order the read against the loads around it and cost as much as
//! the round trip it should measure; without one a stamp is off by the few nanoseconds of the core's own reordering,
//! which average out over a chain of stamps, where each ends one interval and starts the next.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

/// How long the counter is compared with the system's clock. The clock is read to about 50 ns at either end, so the
/// rate is right to 100 ns in 20 ms: five parts in a million, far below what the histogram keeps.
const CALIBRATION: Duration = Duration::from_millis(20);

/// A clock that is cheap to read and monotonic on one core.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    origin: Instant,
    /// Nanoseconds per tick as a fixed-point number with 32 fractional bits; `None` where the counter is no clock.
    scale: Option<u64>,
}

/// A reading of the stopwatch, in its own ticks. Only differences mean anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stamp(pub u64);

impl Stopwatch {
    /// A stopwatch; takes 20 ms to calibrate where the counter can be used.
    #[must_use]
    pub fn calibrated() -> Self {
        let origin = Instant::now();
        let scale = counter_is_a_clock().then(calibrate).flatten();
        Self { origin, scale }
    }

    /// Reads the clock.
    #[inline(always)]
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        match self.scale {
            Some(_) => Stamp(counter()),
            None => Stamp(self.origin.elapsed().as_nanos() as u64),
        }
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
        let ticks = match self.scale {
            Some(scale) => (nanos << 32) / u128::from(scale),
            None => nanos,
        };
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Ticks a second; `None` where the system's clock is used.
    #[must_use]
    pub fn frequency_hz(&self) -> Option<u64> {
        self.scale
            .map(|scale| (1_000_000_000u64 << 32).checked_div(scale).unwrap_or(0))
            .filter(|hertz| *hertz > 0)
    }

    /// What is read, in words.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        match self.scale {
            Some(_) => "tsc",
            None => "clock_gettime",
        }
    }

    #[inline(always)]
    const fn scaled(&self, start: Stamp, end: Stamp, thousands: u32) -> u64 {
        let ticks = end.0.saturating_sub(start.0) as u128 * 1_000u128.pow(thousands);
        match self.scale {
            Some(scale) => ((ticks * scale as u128) >> 32) as u64,
            None => ticks as u64,
        }
    }
}

/// True if the kernel says that the counter ticks at one rate and never stops.
fn counter_is_a_clock() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info
        .lines()
        .find(|line| line.starts_with("flags"))
        .unwrap_or_default();
    ["constant_tsc", "nonstop_tsc"]
        .iter()
        .all(|wanted| flags.split_whitespace().any(|flag| flag == *wanted))
}

/// Nanoseconds per tick, 32 fractional bits; `None` if the counter does not behave.
fn calibrate() -> Option<u64> {
    let (start, start_ticks) = paired();
    while start.elapsed() < CALIBRATION {
        std::hint::spin_loop();
    }
    let (end, end_ticks) = paired();
    let ticks = u128::from(end_ticks.checked_sub(start_ticks)?);
    let scale = ((end - start).as_nanos() << 32).checked_div(ticks)?;
    // From 10 MHz to 40 GHz; anything else is an emulator's idea of a counter.
    u64::try_from(scale)
        .ok()
        .filter(|scale| (107_374_182..=429_496_729_600).contains(scale))
}

/// Both clocks at one moment: of eight tries, the one in which least time passed around the reading.
fn paired() -> (Instant, u64) {
    let mut best = (Duration::MAX, Instant::now(), 0);
    for _ in 0..8 {
        let before = Instant::now();
        let ticks = counter();
        let gap = before.elapsed();
        if gap < best.0 {
            best = (gap, before + gap / 2, ticks);
        }
    }
    (best.1, best.2)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: RDTSC needs a processor that has it, and every x86-64 one does. It reads no memory. A kernel that forbids
    // it to user space (CR4.TSD, `PR_SET_TSC`) ends the process with a signal, which is no unsoundness.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn counter() -> u64 {
    0
}

#[cfg(test)]
mod tests;
