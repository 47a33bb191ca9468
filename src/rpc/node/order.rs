//! Order: calls of a worker that asks for it are carried out here one after another, as they were made.
//!
//! Each such call names the one before it, and is held until that has come and ended, or is over for its caller. One
//! that ends before it has begun leaves behind which was before it: what waited for it waits for that. Messages come in
//! any order, and none is lost while its sender lives: a lane is lost only with the peer, and its order with it.

use std::collections::BTreeMap;

use super::{Node, Peer};
use crate::id::{CallId, WorkerId};

/// What is known of a peer's order, and of ours towards it.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last that we have made; zero before the first.
    pub(super) last: CallId,
    /// The peer's that have come and not ended, and of each the one before it.
    open: BTreeMap<CallId, CallId>,
    /// Those that have come and were not begun, and of each the one before it.
    skipped: BTreeMap<CallId, CallId>,
}

impl Order {
    /// A call has come that is to be carried out after `after`.
    pub(super) fn came(&mut self, id: CallId, after: CallId) {
        self.open.insert(id, after);
    }

    /// A call has come that is not wanted any more.
    pub(super) fn skip(&mut self, id: CallId, after: CallId) {
        self.skipped.insert(id, after);
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, id: CallId, has_begun: bool) {
        if let Some(after) = self.open.remove(&id)
            && !has_begun
        {
            self.skipped.insert(id, after);
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
    pub(super) fn is_turn(&self, id: CallId) -> bool {
        let Some(&after) = self.order.open.get(&id) else {
            return true;
        };
        if self
            .order
            .open
            .first_key_value()
            .is_some_and(|(&first, _)| first < id)
        {
            return false;
        }
        let mut before = after;
        while let Some(&earlier) = self.order.skipped.get(&before) {
            before = earlier;
        }
        // It has come, and since it is not open it has ended; or it will not come.
        before.0 == 0 || self.seen.has(before) && !self.refused.contains(&before)
    }
}

impl<P, T> Node<P, T> {
    /// The next call of the peer may begin now.
    pub(super) fn next_in_order(&mut self, from: WorkerId) {
        let peer = self.peers.get(&from);
        let first = peer.and_then(|peer| peer.order.open.keys().next().copied());
        if let Some(first) = first {
            self.try_serve(from, first);
        }
    }
}
