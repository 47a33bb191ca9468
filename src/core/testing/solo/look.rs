//! Look: what a solo holds and has counted, for invariants. Changes nothing.

use super::Solo;
use crate::ground::device::TaskName;
use crate::mail::{PendingItem, ShardStats};
use crate::shard::core::Core;

/// What a shard still holds or owes. All zero for one at rest, except `stale`-like counters, which are not here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holdings {
    /// Requests outstanding, values on offer, writes on their way, frames kept, over all links.
    pub owed: [usize; 4],
    /// Lines of unrequested values held here; lines of ours the peers have not returned.
    pub lines: [u64; 2],
    /// Requests of peers that wait here.
    pub asked: usize,
    /// Offers of peers whose bytes are not here.
    pub incoming: usize,
    /// Values that came before their turn.
    pub early: usize,
    /// Receives of application threads and neighbours.
    pub waits: usize,
    /// Offers and demands that wait for landing budget.
    pub backlog: usize,
    /// Notes for neighbours whose rings are full.
    pub shard_messages: usize,
    /// Values and waiters in the table.
    pub table: [u32; 2],
    /// Steps alive, and in grace.
    pub steps: [u32; 2],
    /// Leases of peers' memory.
    pub leases: u64,
    /// Bytes of landings.
    pub landing_bytes: u64,
    /// Bytes of values that left the table and are kept for peers.
    pub held_bytes: u64,
    /// Bytes of the arena that are in use.
    pub arena_bytes: u64,
}

/// The credit of one end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditLook {
    /// Both hellos have been exchanged.
    pub is_up: bool,
    /// Lines of the peer's unrequested values that wait here.
    pub held: u64,
    /// Lines of ours that the peer has not returned.
    pub out: u64,
    /// Frames posted and not acknowledged.
    pub in_flight: usize,
    /// How many epochs have ended.
    pub life: u32,
}

impl Solo {
    /// What the link to that shard of a peer holds of the peer's, and has out with it.
    #[must_use]
    pub fn credit(&self, task: &TaskName, theirs: u16) -> Option<CreditLook> {
        let link = self.link(task, theirs)?;
        let [held, out] = link.channel.lines_out();
        Some(CreditLook {
            is_up: link.channel.is_up(),
            held,
            out,
            in_flight: link.channel.in_flight(),
            life: link.channel.life(),
        })
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> ShardStats {
        self.shard.stats()
    }

    /// Parked values and waiting receives, oldest first.
    #[must_use]
    pub fn pending(&self) -> Vec<PendingItem> {
        self.shard.core.pending()
    }

    /// What it holds or owes.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        self.shard.core.holdings()
    }
}

impl Core {
    fn holdings(&self) -> Holdings {
        let table = self.table.stats();
        let mut owed = [0; 4];
        let mut lines = [0; 2];
        for link in &self.links {
            owed.iter_mut()
                .zip(link.channel.load())
                .for_each(|(sum, load)| *sum += load);
            lines
                .iter_mut()
                .zip(link.channel.lines_out())
                .for_each(|(sum, lines)| *sum += lines);
        }
        Holdings {
            owed,
            lines,
            asked: self.asked.len(),
            incoming: self.transfers.len(),
            early: self.early.len(),
            waits: self.waits.len(),
            backlog: self.transfers.waiting(),
            shard_messages: self.neighbour_queues.len(),
            table: [table.values, table.waiters],
            steps: [table.steps, table.grace_steps],
            leases: self.leases.out() as u64,
            landing_bytes: self.transfers.landing_bytes(),
            held_bytes: table.held_bytes,
            arena_bytes: self.pool.stats().in_use_bytes,
        }
    }
}
