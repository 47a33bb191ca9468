//! Departed peers: those whose connection is over and whose process is still followed, for the proof that it has ended.
//!
//! Knows peers and lives; not how a process is followed.

use std::collections::VecDeque;

use super::peer::PeerId;
use crate::ground::Incarnation;
use crate::ground::limits::DEPARTED_MAX;

/// The departed.
#[derive(Debug, Default)]
pub(super) struct Departed {
    /// The longest gone first.
    all: VecDeque<(PeerId, String, Incarnation)>,
}

impl Departed {
    /// A peer's connection is over. Where that are too many, the longest gone is given up: told back, and not known any
    /// more.
    #[must_use]
    pub(super) fn leave(&mut self, peer: PeerId, task: &str, life: Incarnation) -> Option<PeerId> {
        self.all.push_back((peer, task.to_owned(), life));
        let is_over = self.all.len() > DEPARTED_MAX;
        let given_up = is_over.then(|| self.all.pop_front()).flatten();
        given_up.map(|(peer, ..)| peer)
    }

    /// A process has ended. True if the peer was here; it is not any more.
    #[must_use]
    pub(super) fn exit(&mut self, peer: PeerId) -> bool {
        let at = self.all.iter().position(|(departed, ..)| *departed == peer);
        at.and_then(|at| self.all.remove(at)).is_some()
    }

    /// A life of a task is up again: its former connections go, and are told back.
    #[must_use]
    pub(super) fn rejoin(&mut self, task: &str, life: Incarnation) -> Vec<PeerId> {
        let mut former = Vec::new();
        self.all.retain(|(peer, of, departed)| {
            let is_same = of == task && *departed == life;
            former.extend(is_same.then_some(*peer));
            !is_same
        });
        former
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Incarnation = Incarnation(7);

    #[test]
    fn the_longest_gone_is_given_up_and_not_the_one_that_came_first() {
        let mut departed = Departed::default();
        for peer in 1..=DEPARTED_MAX as u32 {
            assert_eq!(departed.leave(PeerId(peer), "a", LIFE), None);
        }
        // The first that came leaves last.
        assert_eq!(departed.leave(PeerId(0), "a", LIFE), Some(PeerId(1)));
        assert_eq!(departed.leave(PeerId(5000), "a", LIFE), Some(PeerId(2)));
        assert!(departed.exit(PeerId(0)));
        assert!(!departed.exit(PeerId(0)), "told once");
        assert!(!departed.exit(PeerId(1)), "it was given up");
        assert_eq!(departed.leave(PeerId(5001), "a", LIFE), None);
    }

    #[test]
    fn a_life_that_is_up_again_leaves_none_of_its_former_connections() {
        let mut departed = Departed::default();
        for (peer, task, life) in [(1, "a", 7), (2, "a", 8), (3, "b", 7), (4, "a", 7)] {
            let given_up = departed.leave(PeerId(peer), task, Incarnation(life));
            assert_eq!(given_up, None);
        }
        assert_eq!(departed.rejoin("a", LIFE), [PeerId(1), PeerId(4)]);
        assert!(departed.exit(PeerId(2)) && departed.exit(PeerId(3)));
        assert!(!departed.exit(PeerId(1)) && !departed.exit(PeerId(4)));
    }
}
