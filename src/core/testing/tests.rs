//! What one or two shards do that are turned by hand, or by threads.

mod admitting;
mod crowds;
mod driving;
mod endings;
mod leases;
mod lies;
mod posting;
mod tasks;
mod teams;
mod threads;

use std::sync::Arc;

use crate::fabric::DownReason;
use crate::ground::device::TaskName;
use crate::ground::{Status, StepId};
use crate::memory::{ArenaConfig, HugePages, Segment};
use crate::shard::Observer;

/// A little memory, which may grow.
const ARENA: ArenaConfig = ArenaConfig {
    segment_bytes: 1 << 20,
    bytes_max: 4 << 20,
    huge_pages: HugePages::Off,
};

/// Ignores everything except a violation, which is a mistake of the test.
struct Deaf;

impl Observer for Deaf {
    fn peer_wanted(&self, _: &TaskName) {}
    fn step_ended(&self, _: StepId, _: &Status) {}
    fn link_down(&self, _: &TaskName, _: u32, _: DownReason) {}
    fn violated(&self, _: &TaskName, _: u32, status: &Status) {
        panic!("{status}");
    }
    fn segment_added(&self, _: Arc<Segment>) {}
}
