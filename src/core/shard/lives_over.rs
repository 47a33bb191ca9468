//! Lives over: which lives of peers were given up, and what their waiters were told.
//!
//! A receive that began in time is told as the life ends. One that begins later and names the life in its key finds it
//! here: else it would wait for what no life sends.

use std::collections::VecDeque;

use crate::ground::{Incarnation, Status, limits};

/// The lives that ended last, oldest first: as many as there may be peers.
#[derive(Debug, Default)]
pub(crate) struct LivesOver {
    lives: VecDeque<(Incarnation, Status)>,
}

impl LivesOver {
    /// The life is over; its waiters were told `status`.
    #[cold]
    pub(super) fn note(&mut self, life: Incarnation, status: &Status) {
        self.forget(life);
        if self.lives.len() >= limits::PEERS {
            self.lives.pop_front();
        }
        self.lives.push_back((life, status.clone()));
    }

    /// The life was given up, and is there after all.
    #[cold]
    pub(super) fn forget(&mut self, life: Incarnation) {
        self.lives.retain(|&(over, _)| over != life);
    }

    /// What those who waited for that life were told, if it is over.
    #[cold]
    pub(super) fn status(&self, life: Incarnation) -> Option<&Status> {
        let mut lives = self.lives.iter();
        lives.find_map(|(over, status)| (*over == life).then_some(status))
    }
}
