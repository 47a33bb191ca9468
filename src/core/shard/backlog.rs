//! Backlog: offers that are wanted and wait for landing budget or arena room, by link, each link in its turn.
//!
//! It knows links and turns; not budgets, bytes or values.

use std::collections::{BTreeMap, VecDeque};

use super::ids::LinkId;
use super::transfers::TransferId;

/// What waits. Within a link the oldest is first; between links one follows the other, so that a peer with a thousand
/// values on offer delays only itself.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queues: BTreeMap<LinkId, VecDeque<TransferId>>,
    /// The links with something in their queues, the next one first.
    turns: VecDeque<LinkId>,
    len: usize,
}

impl Backlog {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// How many links have something here.
    pub(crate) fn links(&self) -> usize {
        self.turns.len()
    }

    pub(crate) fn push_back(&mut self, link: LinkId, id: TransferId) {
        self.queue(link).push_back(id);
    }

    /// Back where it was: first of its link.
    pub(crate) fn push_front(&mut self, link: LinkId, id: TransferId) {
        self.queue(link).push_front(id);
    }

    /// The oldest of the link whose turn it is.
    pub(crate) fn front(&self) -> Option<(LinkId, TransferId)> {
        let &link = self.turns.front()?;
        Some((link, *self.queues.get(&link)?.front()?))
    }

    /// Takes the front out, and it is the next link's turn.
    pub(crate) fn pop(&mut self) {
        let Some(link) = self.turns.pop_front() else {
            return;
        };
        let queue = self.queues.entry(link).or_default();
        self.len -= usize::from(queue.pop_front().is_some());
        if !queue.is_empty() {
            self.turns.push_back(link);
        }
    }

    /// The link whose turn it is lets the next one go first.
    pub(crate) fn pass(&mut self) {
        if let Some(link) = self.turns.pop_front() {
            self.turns.push_back(link);
        }
    }

    fn queue(&mut self, link: LinkId) -> &mut VecDeque<TransferId> {
        self.len += 1;
        let queue = self.queues.entry(link).or_default();
        if queue.is_empty() {
            self.turns.push_back(link);
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn link(number: u32) -> LinkId {
        LinkId::from_number(number)
    }

    const fn id(number: u64) -> TransferId {
        TransferId::from_token(number)
    }

    #[test]
    fn links_take_turns_and_each_keeps_its_order() {
        let mut backlog = Backlog::default();
        for number in 0..4 {
            backlog.push_back(link(7), id(number));
        }
        backlog.push_back(link(9), id(100));
        backlog.push_front(link(7), id(50));
        assert_eq!((backlog.len(), backlog.links()), (6, 2));
        let mut order = Vec::new();
        while let Some((link, id)) = backlog.front() {
            order.push((link.number(), id.token()));
            backlog.pop();
        }
        assert_eq!(order, [(7, 50), (9, 100), (7, 0), (7, 1), (7, 2), (7, 3)]);
        assert_eq!((backlog.len(), backlog.links()), (0, 0));
        backlog.push_back(link(1), id(1));
        backlog.push_back(link(2), id(2));
        backlog.pass();
        assert_eq!(backlog.front(), Some((link(2), id(2))));
    }
}
