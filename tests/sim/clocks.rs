//! Clocks: what each task takes for the time. Knows numbers only.
//!
//! A task's clock never goes back. It begins anywhere, runs up to twice too fast or too slow, and leaps forward when
//! the machine was suspended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rendez::ground::rng::Rng;
use rendez::trace::Clock;

/// The clock of one task.
#[derive(Debug)]
pub struct NodeClock {
    shown: Arc<AtomicU64>,
    /// What it is ahead of the world.
    ahead: u64,
    /// Of its own for 1024 of the world's.
    rate: u64,
}

/// A clock that is right.
const TRUE_RATE: u64 = 1024;

impl NodeClock {
    /// A clock that is right, or not.
    pub fn new(rng: &mut Rng, is_skewed: bool) -> Self {
        let (ahead, rate) = if is_skewed {
            // Up to a century, and between half and twice the speed.
            (rng.below(1 << 61), 512 + rng.below(1536))
        } else {
            (0, TRUE_RATE)
        };
        let clock = Self {
            shown: Arc::default(),
            ahead,
            rate,
        };
        clock.show(1);
        clock
    }

    /// As the shards of the task read it.
    pub fn clock(&self) -> Clock {
        Clock::simulated(Arc::clone(&self.shown))
    }

    /// What it shows.
    pub fn now(&self) -> u64 {
        self.shown.load(Ordering::Relaxed)
    }

    /// The world's time is `now`.
    pub fn show(&self, now: u64) {
        self.shown.store(self.at(now), Ordering::Relaxed);
    }

    /// What it will show when the world's time is `now`, unless it leaps.
    pub fn at(&self, now: u64) -> u64 {
        self.ahead + (u128::from(now) * u128::from(self.rate) / u128::from(TRUE_RATE)) as u64
    }

    /// The world's time when it shows `local` for the first time; the greatest number for never.
    pub fn when(&self, local: u64) -> u64 {
        if local == u64::MAX {
            return u64::MAX;
        }
        let own = u128::from(local.saturating_sub(self.ahead)) * u128::from(TRUE_RATE);
        own.div_ceil(u128::from(self.rate)) as u64
    }

    /// The machine was suspended, and it went on.
    pub fn leap(&mut self, by: u64) {
        self.ahead += by;
    }
}
