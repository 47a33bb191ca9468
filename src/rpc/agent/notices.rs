//! Notices: what observers hear of workers that come and go, in order, on a thread of the pool.
//!
//! An observer may take locks that threads hold while they wait for the shard, so the shard's thread never calls one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::shared::Shared;
use crate::id::WorkerId;
use rendez::ground::{Locked, Unpoisoned};

/// A worker came, or went.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    Found(WorkerId),
    Lost(WorkerId),
}

/// Those that no observer has heard yet.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    waiting: Mutex<VecDeque<Notice>>,
    /// Held by the thread that tells one: the next is told after it.
    turn: Mutex<()>,
}

impl Shared {
    /// Lets the observers hear of a worker, soon.
    pub(crate) fn notice(self: &Arc<Self>, notice: Notice) {
        if self.options.observers.is_empty() {
            return;
        }
        self.notices.waiting.locked().push_back(notice);
        let shared = Arc::clone(self);
        self.pool.push(Box::new(move || shared.tell_next()));
    }

    /// This worker has left: observers hear that it has lost all others, after what they have not heard yet. Not in the
    /// shard's thread.
    pub(super) fn tell_of_the_end(&self) {
        if self.options.observers.is_empty() || mutant!("rpc_end_untold") {
            return;
        }
        let workers = self.workers.read().unpoisoned();
        let others = workers.keys().copied().filter(|id| *id != self.me);
        self.notices
            .waiting
            .locked()
            .extend(others.map(Notice::Lost));
        drop(workers);
        while !self.notices.waiting.locked().is_empty() {
            self.tell_next();
        }
    }

    fn tell_next(&self) {
        let _turn = self.notices.turn.locked();
        let next = self.notices.waiting.locked().pop_front();
        for observer in &self.options.observers {
            match next {
                Some(Notice::Found(worker)) => observer.found(worker),
                Some(Notice::Lost(worker)) => observer.lost(worker),
                None => {}
            }
        }
    }
}
