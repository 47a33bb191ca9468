//! Stops: what ends a receive from elsewhere. A stop is raised once and never lowered.
//!
//! It knows no receives and wakes no thread. A shard looks at the stops of a receive in the moment in which it hands a
//! value over, when it has the value already. So a value that was sent after a stop was raised finds it raised,
//! whichever way the value came and whatever else is still on its way to the shard.

use std::sync::Arc;

use crate::sync::{AtomicBool, Ordering};

/// A stop, with those it is under. Clones are one stop.
#[derive(Clone, Debug)]
pub struct Stops(Arc<[Arc<AtomicBool>]>);

impl Default for Stops {
    fn default() -> Self {
        Self::new()
    }
}

impl Stops {
    /// A stop under no other.
    pub fn new() -> Self {
        Self(Arc::new([Arc::new(AtomicBool::new(false))]))
    }

    /// A stop of its own that all of these raise too.
    pub fn child(&self) -> Self {
        let own = std::iter::once(Arc::new(AtomicBool::new(false)));
        Self(self.0.iter().cloned().chain(own).collect())
    }

    /// Raises it: nothing that is sent after this has returned goes to a receive under it. True for the first time.
    pub fn raise(&self) -> bool {
        let own = self.0.last();
        own.is_some_and(|own| !own.swap(true, Ordering::SeqCst))
    }

    /// True once it, or one it is under, was raised.
    pub fn is_raised(&self) -> bool {
        // Sequentially consistent with the swap: a listener that registered before this look and sees nothing is told.
        self.0.iter().any(|stop| stop.load(Ordering::SeqCst))
    }
}
