//! Peers: the numbers of messages to and from each worker, so that every message counts once; and who is dead.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::{ContextId, WorkerId};
use super::message::Session;

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
        while self.above.len() > AHEAD_MAX
            || self.above.first() == Some(&self.floor.saturating_add(1))
        {
            self.floor = self.above.pop_first().unwrap_or(self.floor);
        }
        true
    }
}

/// What is known of one worker.
#[derive(Clone, Debug, Default)]
struct Peer {
    /// How often it was lost: that is our session with it.
    losses: u32,
    /// Its session with us, as of the last message.
    theirs: Option<Session>,
    sent: u64,
    seen: Seen,
    is_dead: bool,
    /// That it is there was told: so will be that it is not.
    is_met: bool,
    released: Released,
}

impl Peer {
    /// Our session with it.
    const fn ours(&self, life: u64) -> Session {
        Session {
            life,
            losses: self.losses,
        }
    }
}

/// Contexts of a worker that are released, as far as it has told.
#[derive(Clone, Debug, Default)]
struct Released {
    /// Its life: the contexts of that begin here.
    life: u64,
    /// Those with a smaller counter are.
    oldest: u64,
    /// And these.
    single: BTreeSet<u64>,
}

/// What a message says of the sessions that it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// It is of those that are known.
    Current,
    /// It is the first of a session. Its sender may have forgotten what was before.
    Anew {
        /// It has.
        has_forgotten: bool,
        /// It does not know that we have lost it meanwhile.
        is_over: bool,
    },
    /// It is of a session of ours that is over, and its sender does not know that.
    Over,
    /// It is late, or of a worker that is dead.
    Late,
}

/// What is known of all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    /// This life of the worker.
    life: u64,
    all: BTreeMap<WorkerId, Peer>,
}

impl Peers {
    /// Nothing is known, in that life.
    pub(super) const fn new(life: u64) -> Self {
        Self {
            life,
            all: BTreeMap::new(),
        }
    }

    /// This life of the worker: its ids begin there.
    pub(super) const fn life(&self) -> u64 {
        self.life
    }

    fn peer(&mut self, worker: WorkerId) -> &mut Peer {
        self.all.entry(worker).or_default()
    }

    /// Our session with `worker`.
    pub(super) fn ours(&self, worker: WorkerId) -> Session {
        let known = self.all.get(&worker);
        let first = Session {
            life: self.life,
            losses: 0,
        };
        known.map_or(first, |peer| peer.ours(self.life))
    }

    /// The sessions and the number of the next message to `worker`.
    pub(super) fn next(&mut self, worker: WorkerId) -> (Session, Option<Session>, u64) {
        let life = self.life;
        let peer = self.peer(worker);
        peer.sent += 1;
        (peer.ours(life), peer.theirs, peer.sent)
    }

    /// A message of its session `from` for ours `to` has come from `worker`.
    pub(super) fn hear(&mut self, worker: WorkerId, from: Session, to: Option<Session>) -> Heard {
        let life = self.life;
        let peer = self.peer(worker);
        let ours = Some(peer.ours(life));
        let is_over = to.is_some() && to != ours;
        let is_later = |known: Session| known.life != from.life || known.losses < from.losses;
        match peer.theirs {
            _ if peer.is_dead => Heard::Late,
            Some(known) if known == from && is_over => Heard::Over,
            Some(known) if known == from => Heard::Current,
            Some(known) if !is_later(known) => Heard::Late,
            known => {
                // One that knows our session has forgotten nothing of it.
                let has_forgotten = known.is_some() || (from.losses > 0 && to != ours);
                (peer.theirs, peer.seen) = (Some(from), Seen::default());
                Heard::Anew {
                    has_forgotten,
                    is_over,
                }
            }
        }
    }

    /// True if the message of that number comes from `worker` for the first time in its session.
    pub(super) fn is_new(&mut self, worker: WorkerId, number: u64) -> bool {
        self.peer(worker).seen.is_new(number)
    }

    pub(super) fn is_dead(&self, worker: WorkerId) -> bool {
        self.all.get(&worker).is_some_and(|peer| peer.is_dead)
    }

    pub(super) fn died(&mut self, worker: WorkerId) {
        let peer = self.peer(worker);
        *peer = Peer {
            is_dead: true,
            is_met: peer.is_met,
            losses: peer.losses.wrapping_add(1),
            // It may live on, and so may calls in contexts that it has released.
            released: std::mem::take(&mut peer.released),
            ..Peer::default()
        };
    }

    /// It is there, for the first time or again, or another worker has that id now.
    pub(super) fn joined(&mut self, worker: WorkerId) {
        let peer = self.peer(worker);
        (peer.is_dead, peer.is_met) = (false, true);
    }

    /// True if it is told when that worker is lost.
    pub(super) fn is_watched(&self, worker: WorkerId) -> bool {
        self.all.get(&worker).is_some_and(|peer| peer.is_met)
    }

    /// Remembers that its creator has released `context`, and in that life all below `oldest`.
    pub(super) fn released(&mut self, life: u64, context: ContextId, oldest: u64) {
        let released = &mut self.peer(context.worker()).released;
        if released.life != life {
            *released = Released {
                life,
                ..Released::default()
            };
        }
        released.oldest = released.oldest.max(oldest);
        released.single.insert(context.counter());
        while released.single.len() > RELEASED_MAX {
            let first = released.single.pop_first();
            released.oldest = first.map_or(released.oldest, |first| first + 1);
        }
        released.single = released.single.split_off(&released.oldest);
    }

    /// True if its creator has released `context`, as far as was told.
    pub(super) fn is_released(&self, context: ContextId) -> bool {
        let counter = context.counter();
        let told = |Peer { released, .. }: &Peer| {
            let is_old = (released.life..released.oldest).contains(&counter);
            is_old || released.single.contains(&counter)
        };
        self.all.get(&context.worker()).is_some_and(told)
    }

    /// How many single releases are remembered.
    pub(super) fn tombstones(&self) -> usize {
        self.all
            .values()
            .map(|peer| peer.released.single.len())
            .sum()
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
    fn numbers_at_their_end_count_as_others() {
        let mut seen = Seen::default();
        let last = u64::MAX - AHEAD_MAX as u64 - 2..=u64::MAX;
        assert!(last.clone().all(|number| seen.is_new(number)));
        assert_eq!(seen.floor, u64::MAX);
        assert!(!last.clone().any(|number| seen.is_new(number)));
    }

    #[test]
    fn releases_below_the_oldest_need_no_memory() {
        let mut peers = Peers::new(0);
        let context = |counter| ContextId::new(WorkerId(3), counter);
        for counter in [5, 9, 7] {
            peers.released(0, context(counter), 2);
        }
        assert_eq!(peers.tombstones(), 3);
        assert!(peers.is_released(context(1)) && peers.is_released(context(7)));
        assert!(!peers.is_released(context(6)));
        peers.released(0, context(8), 8);
        assert_eq!(peers.tombstones(), 2);
        assert!(peers.is_released(context(6)) && peers.is_released(context(9)));
        assert!(!peers.is_released(context(10)));
    }
}
