//! Neighbour queues: what this shard has to say to the others of its process, until their rings have room.
//!
//! Knows shards by number and messages; of what a message says only that a shard owes nothing any more.

use std::collections::VecDeque;

use crate::mail::call::ShardMessage;

/// A queue for each shard of the process; that for the shard itself stays empty.
#[derive(Debug)]
pub(crate) struct NeighbourQueues {
    queues: Vec<VecDeque<ShardMessage>>,
    /// Messages in all of them.
    waiting: usize,
    /// This shard has said that it owes nothing any more, and so many others have.
    has_drained: bool,
    drained: usize,
}

impl NeighbourQueues {
    /// Empty ones, for so many shards.
    pub(super) fn new(shards: usize) -> Self {
        Self {
            queues: (0..shards).map(|_| VecDeque::new()).collect(),
            waiting: 0,
            has_drained: false,
            drained: 0,
        }
    }

    /// Messages that wait.
    #[inline]
    #[cfg(any(test, feature = "testing"))]
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

    /// This shard owes nothing any more, which each other is told once.
    pub(super) fn say_drained(&mut self, own: u16) {
        if std::mem::replace(&mut self.has_drained, true) {
            return;
        }
        for shard in (0..self.queues.len() as u16).filter(|&shard| shard != own) {
            self.push(shard, ShardMessage::Drained);
        }
    }

    /// Another shard owes nothing any more.
    pub(super) const fn hear_drained(&mut self) {
        self.drained += 1;
    }

    /// True if no shard of the process owes anything any more.
    pub(super) const fn are_drained(&self) -> bool {
        self.has_drained && self.drained + 1 >= self.queues.len()
    }

    /// Says what `give` takes, in order; what it gives back stays the first, and the rest waits with it. True if
    /// anything was said.
    pub(super) fn send(
        &mut self,
        shard: usize,
        mut give: impl FnMut(ShardMessage) -> Option<ShardMessage>,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(shard) else {
            return false;
        };
        let before = self.waiting;
        while let Some(message) = queue.pop_front() {
            if let Some(message) = give(message) {
                reached!("a_full_ring_of_notes");
                queue.push_front(message);
                break;
            }
            self.waiting -= 1;
        }
        self.waiting < before
    }
}

#[cfg(test)]
mod tests;
