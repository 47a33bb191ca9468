//! Time as a number: nanoseconds since an origin that only the clock's owner knows.
//!
//! Pure floors get it as an argument; nothing on this floor can read a clock.
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use std::time::Duration;
//!
//! use rendez::ground::Nanos;
//!
//! let deadline = Nanos(5).after(Duration::from_nanos(10));
//! assert_eq!(deadline, Nanos(15));
//! assert_eq!(Nanos(20).since(deadline), Duration::from_nanos(5));
//! ```

use std::ops::{Add, Sub};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// A point in time, in nanoseconds since the origin of the clock that stamped it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than every deadline: "never".
    pub const NEVER: Self = Self(u64::MAX);

    /// The point `duration` later; saturates at [`Nanos::NEVER`].
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<u64> for Nanos {
    type Output = Self;
    fn add(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub for Nanos {
    type Output = u64;
    fn sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
