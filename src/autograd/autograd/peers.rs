//! Peers: the numbers of messages to and from each worker, so that every message counts once; and who is dead.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::{ContextId, WorkerId};

/// How many numbers may be ahead of one that has not come: what is older than that was given up by its sender.
const AHEAD_MAX: usize = 1 << 16;

/// How many releases of a worker's contexts are remembered one by one. A worker with more contexts at once than that
/// loses the oldest of them here.
const RELEASED_MAX: usize = 1 << 16;

/// The numbers that have come.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// All up to here have.
    floor: u64,
    above: BTreeSet<u64>,
}

impl Seen {
    /// True if `number` comes for the first time.
    fn is_new(&mut self, number: u64) -> bool {
        if number <= self.floor || !self.above.insert(number) {
            return false;
        }
        while self.above.len() > AHEAD_MAX || self.above.first() == Some(&(self.floor + 1)) {
            self.floor = self.above.pop_first().unwrap_or(self.floor);
        }
        true
    }
}

/// What is known of one worker.
#[derive(Clone, Debug, Default)]
struct Peer {
    sent: u64,
    seen: Seen,
    is_dead: bool,
    /// Its contexts with a smaller counter are released.
    oldest: u64,
    /// Those that are released beside them.
    released: BTreeSet<u64>,
}

/// What is known of all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers(BTreeMap<WorkerId, Peer>);

impl Peers {
    fn peer(&mut self, worker: WorkerId) -> &mut Peer {
        self.0.entry(worker).or_default()
    }

    /// The number of the next message to `worker`.
    pub(super) fn number(&mut self, worker: WorkerId) -> u64 {
        let peer = self.peer(worker);
        peer.sent += 1;
        peer.sent
    }

    /// True if the message of that number comes from `worker` for the first time, and `worker` lives.
    pub(super) fn is_new(&mut self, worker: WorkerId, number: u64) -> bool {
        let peer = self.peer(worker);
        !peer.is_dead && peer.seen.is_new(number)
    }

    pub(super) fn is_dead(&self, worker: WorkerId) -> bool {
        self.0.get(&worker).is_some_and(|peer| peer.is_dead)
    }

    pub(super) fn died(&mut self, worker: WorkerId) {
        *self.peer(worker) = Peer {
            is_dead: true,
            ..Peer::default()
        };
    }

    /// Another worker has that id now, which begins with nothing.
    pub(super) fn joined(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }

    /// Remembers that its creator has released `context`, and all below `oldest`.
    pub(super) fn released(&mut self, context: ContextId, oldest: u64) {
        let peer = self.peer(context.worker());
        peer.oldest = peer.oldest.max(oldest);
        peer.released.insert(context.counter());
        while peer.released.len() > RELEASED_MAX {
            peer.oldest = peer
                .released
                .pop_first()
                .map_or(peer.oldest, |first| first + 1);
        }
        peer.released = peer.released.split_off(&peer.oldest);
    }

    /// True if its creator has released `context`, as far as was told.
    pub(super) fn is_released(&self, context: ContextId) -> bool {
        let told = |peer: &Peer| {
            context.counter() < peer.oldest || peer.released.contains(&context.counter())
        };
        self.0.get(&context.worker()).is_some_and(told)
    }

    /// How many single releases are remembered.
    pub(super) fn tombstones(&self) -> usize {
        self.0.values().map(|peer| peer.released.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_counts_once_in_any_order() {
        let mut seen = Seen::default();
        let news: Vec<_> = [2, 1, 2, 1, 4, 3, 4, 5]
            .map(|number| seen.is_new(number))
            .into();
        assert_eq!(news, [true, true, false, false, true, true, false, true]);
        assert_eq!((seen.floor, seen.above.len()), (5, 0));
    }

    #[test]
    fn a_number_that_never_comes_does_not_hold_memory_for_ever() {
        let mut seen = Seen::default();
        for number in 2..300_000 {
            assert!(seen.is_new(number));
        }
        assert!(seen.above.len() <= AHEAD_MAX);
        assert!(!seen.is_new(1), "given up");
    }

    #[test]
    fn releases_below_the_oldest_need_no_memory() {
        let mut peers = Peers::default();
        let context = |counter| ContextId::new(WorkerId(3), counter);
        for counter in [5, 9, 7] {
            peers.released(context(counter), 2);
        }
        assert_eq!(peers.tombstones(), 3);
        assert!(peers.is_released(context(1)) && peers.is_released(context(7)));
        assert!(!peers.is_released(context(6)));
        peers.released(context(8), 8);
        assert_eq!(peers.tombstones(), 2);
        assert!(peers.is_released(context(6)) && peers.is_released(context(9)));
        assert!(!peers.is_released(context(10)));
    }
}
