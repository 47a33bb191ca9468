//! Order: calls of a worker that asks for it are carried out here one after another, as they were made.
//!
//! Each such call names the one before it, and is held until that has come and ended, or is over for its caller. One
//! that ends before it has begun leaves behind which was before it: what waited for it waits for that. Messages come in
//! any order, and none is lost while its sender lives: a lane is lost only with the peer, and its order with it.

use std::collections::BTreeMap;

use super::{Node, Peer};
use crate::id::{CallId, WorkerId};

/// Calls of a peer that are remembered at most of those that were not begun: each until the one after it has come.
const SKIPPED_MAX: usize = 1 << 16;

/// What is known of a peer's order, and of ours towards it.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last that we have made; zero before the first.
    pub(super) last: CallId,
    /// The peer's that have come and not ended, and of each the one before it.
    open: BTreeMap<CallId, CallId>,
    /// Those that have come and were not begun, and of each the one before it: until what comes after it has asked.
    skipped: BTreeMap<CallId, CallId>,
    /// The next is looked for.
    is_advancing: bool,
}

impl Order {
    /// A call has come that is to be carried out after `after`.
    pub(super) fn came(&mut self, id: CallId, after: CallId) {
        let before = self.before(after);
        self.open.insert(id, before);
    }

    /// A call has come that is not wanted any more.
    pub(super) fn skip(&mut self, id: CallId, after: CallId) {
        let before = self.before(after);
        self.skipped.insert(id, before);
        if self.skipped.len() > SKIPPED_MAX {
            self.skipped.pop_first();
        }
    }

    /// What a call that follows on `after` waits for. No other follows on that, nor on what was skipped before it.
    fn before(&mut self, mut after: CallId) -> CallId {
        while let Some(earlier) = self.skipped.remove(&after) {
            after = earlier;
        }
        after
    }

    /// The lowest that has come and not ended.
    fn first(&self) -> Option<CallId> {
        self.open.first_key_value().map(|(&first, _)| first)
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, id: CallId, has_begun: bool) {
        if let Some(after) = self.open.remove(&id)
            && !has_begun
        {
            self.skip(id, after);
        }
    }

    /// All calls below `mark` are over for the peer.
    pub(super) fn settle(&mut self, mark: CallId) {
        while self
            .skipped
            .first_key_value()
            .is_some_and(|(&first, _)| first < mark)
        {
            self.skipped.pop_first();
        }
    }

    /// The peer is gone, and what it asked for is in no order any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<P, T> Peer<P, T> {
    /// Whether a call of the peer may begin, as far as order goes.
    pub(super) fn is_turn(&mut self, id: CallId) -> bool {
        let Some(&after) = self.order.open.get(&id) else {
            return true;
        };
        if self.order.first().is_some_and(|first| first < id) {
            return false;
        }
        let before = self.order.before(after);
        self.order.open.insert(id, before);
        // It has come, and since it is not open it has ended; or it will not come.
        before.0 == 0 || self.seen.has(before) && !self.refused.contains(&before)
    }
}

impl<P, T> Node<P, T> {
    /// The next call of the peer may begin now. One that cannot is refused, and lets the one after it begin: one after
    /// another, and not one inside of another, for there may be thousands.
    pub(super) fn next_in_order(&mut self, from: WorkerId) {
        while let Some(peer) = self.peers.get_mut(&from)
            && let Some(first) = peer.order.first()
            && !std::mem::replace(&mut peer.order.is_advancing, true)
        {
            self.try_serve(from, first);
            let Some(peer) = self.peers.get_mut(&from) else {
                return;
            };
            peer.order.is_advancing = false;
            if peer.order.first() == Some(first) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_were_not_begun_are_remembered_by_one() {
        for ascends in [true, false] {
            let mut order = Order::default();
            order.came(CallId(1), CallId(0));
            for round in 0..100 {
                let behind = 10 * round + 2..10 * round + 12;
                let mut behind: Vec<u64> = behind.collect();
                behind
                    .iter()
                    .for_each(|&id| order.came(CallId(id), CallId(id - 1)));
                if !ascends {
                    behind.reverse();
                }
                let ended = behind.into_iter();
                ended.for_each(|id| order.ended(CallId(id), false));
                assert!(order.skipped.len() <= 10, "{order:?}");
            }
            assert_eq!(order.before(CallId(1001)), CallId(1));
        }
    }
}
