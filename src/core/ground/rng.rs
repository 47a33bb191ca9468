//! A small seeded generator for simulations, probes and jitter. Not for secrets.
//!
//! `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014):
//! one 64-bit word of state, every seed good, and the same sequence on every machine.
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use rendez::ground::rng::Rng;
//!
//! let (mut one, mut other) = (Rng::new(7), Rng::new(7));
//! assert_eq!(one.next_u64(), other.next_u64());
//! assert!(one.below(6) < 6);
//! ```

use super::hash::mix;

#[cfg(test)]
mod tests;

/// A deterministic generator: the same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for `seed`; all seeds are good ones.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; zero when `bound` is zero. Bias below 2⁻³² for bounds under 2³².
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        (wide >> 64) as u64
    }

    /// True once in `n` draws on average; never when `n` is zero.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }
}
