//! A proof: what is known of the way to a peer before anything is sent on it, for another thread to look at.
//!
//! Knows three facts; not how they are found. No unsafe.

use crate::sync::{AtomicU32, Ordering};

/// What is known of a way. It works once both facts are there: the device acknowledged our word, and the peer's came.
#[derive(Debug, Default)]
pub struct Proof(AtomicU32);

impl Proof {
    /// Our word was acknowledged.
    pub(super) const REACHED: u32 = 1;
    /// The peer's word came.
    pub(super) const HEARD: u32 = 2;
    /// The queue pair went down.
    pub(super) const FAILED: u32 = 4;

    /// True once both directions work.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::REACHED | Self::HEARD
    }

    /// True once they never will: the queue pair went down.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::FAILED != 0
    }

    /// In words, for a refusal.
    #[must_use]
    pub fn missing(&self) -> &'static str {
        match self.0.load(Ordering::Acquire) {
            0 => "neither direction carries anything",
            Self::REACHED => "the peer is reached, but nothing comes from it",
            Self::HEARD => "the peer is heard, but does not acknowledge",
            facts if facts & Self::FAILED != 0 => "the queue pair went down",
            _ => "nothing is missing",
        }
    }

    pub(super) fn has_heard(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::HEARD != 0
    }

    /// Pairs with the loads above: a thread that sees a fact sees what led to it.
    pub(super) fn note(&self, fact: u32) {
        self.0.fetch_or(fact, Ordering::AcqRel);
    }
}
