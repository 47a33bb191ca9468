//! Step and incarnation numbers: the two scopes a key lives in.
//!
//! They are numbers and nothing more: how a step is opened and ended is the rendezvous' business.
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use rendez::ground::{Incarnation, StepId};
//!
//! assert_eq!(StepId(7).to_string(), "7");
//! assert_eq!(Incarnation(7890).to_string(), "0000000000001ed2");
//! ```

use std::fmt;

#[cfg(test)]
mod tests;

/// A step: the scope of keys, aborts and clean-up. Any 64-bit number; masters draw 57 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct StepId(pub u64);

impl StepId {
    /// True for the steps in which layers above send messages of their own, and again where one is lost: remote calls,
    /// and tasks that join a cluster.
    pub(crate) const fn is_of_layer(self) -> bool {
        self.0 >> 63 == 1
    }
}

/// One life of a task. A restarted process has the same name and another incarnation.
///
/// Zero is never drawn: in a key it means "whichever incarnation the source has when it says hello".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// "Whichever is current": what a key made without an incarnation carries.
    pub const CURRENT: Self = Self(0);

    /// True for [`Incarnation::CURRENT`].
    #[must_use]
    pub const fn is_current(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Sixteen lower-case hex digits, zero padded, as in the text form of a key.
impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
