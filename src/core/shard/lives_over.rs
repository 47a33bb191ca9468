//! Lives over: which lives of peers were given up, and what their waiters were told.
//!
//! A receive that began in time is told as the life ends. One that begins later and names the life in its key finds it
//! here: else it would wait for what no life sends.

use std::collections::VecDeque;

use crate::ground::{Incarnation, Status, limits};

/// The lives that ended last, oldest first: as many as there may be peers.
#[derive(Debug, Default)]
pub(crate) struct LivesOver {
    lives: VecDeque<Life>,
}

/// A life that is over.
#[derive(Debug)]
struct Life {
    incarnation: Incarnation,
    /// What its waiters were told.
    status: Status,
    /// How many steps had ended here when it was met.
    ends_at_meeting: u64,
}

impl LivesOver {
    /// The life is over; its waiters were told `status`.
    #[cold]
    pub(super) fn note(&mut self, life: Incarnation, status: &Status, ends_at_meeting: u64) {
        self.forget(life);
        if self.lives.len() >= limits::PEERS {
            self.lives.pop_front();
        }
        self.lives.push_back(Life {
            incarnation: life,
            status: status.clone(),
            ends_at_meeting,
        });
    }

    /// The life was given up, and is there after all.
    #[cold]
    pub(super) fn forget(&mut self, life: Incarnation) {
        self.lives.retain(|over| over.incarnation != life);
    }

    /// What those who waited for that life were told, if it is over.
    #[cold]
    pub(super) fn status(&self, life: Incarnation) -> Option<&Status> {
        self.find(life).map(|over| &over.status)
    }

    /// How many steps had ended here when that life was met, if it is over.
    #[cold]
    pub(super) fn ends_at_meeting(&self, life: Incarnation) -> Option<u64> {
        self.find(life).map(|over| over.ends_at_meeting)
    }

    fn find(&self, life: Incarnation) -> Option<&Life> {
        self.lives.iter().find(|over| over.incarnation == life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::catalogue;

    fn life(number: u64) -> Incarnation {
        Incarnation(number)
    }

    /// The failure model names this number.
    #[test]
    fn the_last_4096_lives_are_known_and_the_oldest_goes_first() {
        let mut over = LivesOver::default();
        let told = |number: u64| Status::of(catalogue::PEER_LOST, format!("life {number}"));
        for number in 1..=4_096 {
            over.note(life(number), &told(number), number);
        }
        assert_eq!(over.status(life(1)), Some(&told(1)));
        over.note(life(4_097), &told(4_097), 4_097);
        assert_eq!(over.status(life(1)), None);
        for number in 2..=4_097 {
            assert_eq!(over.status(life(number)), Some(&told(number)));
            assert_eq!(over.ends_at_meeting(life(number)), Some(number));
        }
        assert_eq!(over.lives.len(), 4_096);
    }

    /// A life that ends again takes no second place, and is the youngest then.
    #[test]
    fn a_life_that_ends_again_has_one_place() {
        let mut over = LivesOver::default();
        let lost = Status::of(catalogue::PEER_LOST, "it is lost");
        for number in (1..=4_096).chain([1]) {
            over.note(life(number), &lost, 0);
        }
        assert_eq!(over.lives.len(), 4_096);
        over.note(life(5_000), &lost, 0);
        let is_over = |number| over.status(life(number)).is_some();
        assert!(is_over(1) && !is_over(2) && is_over(3));
    }
}
