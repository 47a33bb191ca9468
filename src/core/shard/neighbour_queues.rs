//! Neighbour queues: what this shard has to say to the others of its process, until their rings have room.
//!
//! Knows shards by number and messages; not what a message says.

use std::collections::VecDeque;

use crate::mail::call::ShardMessage;

/// A queue for each shard of the process; that for the shard itself stays empty.
#[derive(Debug)]
pub(crate) struct NeighbourQueues {
    queues: Vec<VecDeque<ShardMessage>>,
    /// Messages in all of them.
    waiting: usize,
}

impl NeighbourQueues {
    /// Empty ones, for so many shards.
    pub(super) fn new(shards: usize) -> Self {
        Self {
            queues: (0..shards).map(|_| VecDeque::new()).collect(),
            waiting: 0,
        }
    }

    /// Messages that wait.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.waiting
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// True if `limit` messages or more wait for that shard, or there is no such shard.
    pub(super) fn is_full(&self, shard: u16, limit: usize) -> bool {
        let queue = self.queues.get(usize::from(shard));
        queue.is_none_or(|queue| queue.len() >= limit)
    }

    /// Something to say to that shard.
    #[inline]
    pub(crate) fn push(&mut self, shard: u16, message: ShardMessage) {
        if let Some(queue) = self.queues.get_mut(usize::from(shard)) {
            queue.push_back(message);
            self.waiting += 1;
        }
    }

    /// Says what `give` takes, in order; what it gives back stays the first, and the rest waits with it.
    pub(super) fn send(
        &mut self,
        shard: usize,
        mut give: impl FnMut(ShardMessage) -> Option<ShardMessage>,
    ) {
        let Some(queue) = self.queues.get_mut(shard) else {
            return;
        };
        while let Some(message) = queue.pop_front() {
            if let Some(message) = give(message) {
                reached!("a_full_ring_of_notes");
                queue.push_front(message);
                return;
            }
            self.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
