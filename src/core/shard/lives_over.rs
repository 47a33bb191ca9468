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
            over.note(life(number), &told(number));
        }
        assert_eq!(over.status(life(1)), Some(&told(1)));
        over.note(life(4_097), &told(4_097));
        assert_eq!(over.status(life(1)), None);
        for number in 2..=4_097 {
            assert_eq!(over.status(life(number)), Some(&told(number)));
        }
        assert_eq!(over.lives.len(), 4_096);
    }

    /// A life that ends again takes no second place, and is the youngest then.
    #[test]
    fn a_life_that_ends_again_has_one_place() {
        let mut over = LivesOver::default();
        let lost = Status::of(catalogue::PEER_LOST, "it is lost");
        for number in (1..=4_096).chain([1]) {
            over.note(life(number), &lost);
        }
        assert_eq!(over.lives.len(), 4_096);
        over.note(life(5_000), &lost);
        let is_over = |number| over.status(life(number)).is_some();
        assert!(is_over(1) && !is_over(2) && is_over(3));
    }
}
