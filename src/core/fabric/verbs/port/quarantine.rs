//! Quarantine: keeps, and counts, what a queue pair that cannot be destroyed may still touch, until it can be. No
//! unsafe.
//!
//! Knows queue pairs whose peers were told of their end. Only destruction proves that a device no longer works on
//! memory (`link.rs`); so the landings, the sources and the slots of such a queue pair stay, its place is not used
//! again, and its destruction is tried again and again. What is still here when the port goes is left to the end of the
//! process.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::VerbsPort;
use crate::fabric::verbs::link::{Tools, VerbsLink};
use crate::fabric::verbs::slots::Slots;
use crate::ground::Nanos;
use crate::ground::limits::VERBS_DRAIN_NS;

/// A queue pair whose end is not proved.
#[derive(Debug)]
pub(super) struct Kept {
    index: u16,
    link: Box<VerbsLink>,
    again_at: Nanos,
}

impl VerbsPort {
    /// Takes a queue pair in that could not be destroyed.
    #[cold]
    pub(super) fn keep(&mut self, index: u16, link: Box<VerbsLink>) {
        self.stats.quarantined += 1;
        let again_at = self.again_at();
        self.quarantine.push(Kept {
            index,
            link,
            again_at,
        });
    }

    /// Tries those again whose time has come.
    #[cold]
    pub(super) fn try_again(&mut self) {
        let again_at = self.again_at();
        for at in (0..self.quarantine.len()).rev() {
            let kept = &mut self.quarantine[at];
            if self.now < kept.again_at {
                continue;
            }
            kept.again_at = again_at;
            if kept.link.destroy().is_err() {
                continue;
            }
            let Kept { index, link, .. } = self.quarantine.swap_remove(at);
            self.stats.quarantined -= 1;
            link.end_proved(&mut Tools {
                stage: &mut self.stage,
                stats: &mut self.stats,
                given: &mut self.given,
            });
            self.free.push(index);
        }
    }

    fn again_at(&self) -> Nanos {
        self.now.after(Duration::from_nanos(VERBS_DRAIN_NS))
    }
}

impl Drop for VerbsPort {
    fn drop(&mut self) {
        let kept = mem::take(&mut self.quarantine).into_iter();
        let placed = mem::take(&mut self.places).into_iter();
        let links = kept.map(|kept| kept.link);
        let links = links.chain(placed.filter_map(|place| place.link));
        let mut is_left = false;
        for mut link in links {
            if link.destroy().is_err() {
                mem::forget(link);
                is_left = true;
            }
        }
        if is_left {
            // What it may touch, still registered: arenas, slots and copies. And what it is on.
            self.memory.iter().map(Arc::clone).for_each(mem::forget);
            self.slabs.iter().for_each(Slots::leave);
            self.stage.leave();
            self.receive.leave();
            self.completions.leave();
            mem::forget(Arc::clone(&self.domain));
        }
    }
}
