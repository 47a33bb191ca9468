//! Rivals: other lives of a connected task that want its place. Each is judged by a proof of life that the connected
//! one gave after that rival had come.
//!
//! Pure: numbers, and moments that are given; no socket, no clock.
//!
//! A rival that is remembered keeps its place until it has its answer, however many others come in between. If each
//! newcomer took the place of another, processes that come in turn would all be put off for ever.

use std::time::{Duration, Instant};

use crate::ground::Incarnation;
use crate::ground::limits::RIVALS_MAX;

/// A rival that has not come again for so long has given up: a dial pauses for a quarter of a second at most.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// What becomes of a rival that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RivalVerdict {
    /// The connected life has proved that it lives.
    Refuse,
    /// It is to be asked for a proof; until then the rival is put off.
    Ask,
    /// The proof has not come yet, or so many others wait for one that this one is not remembered.
    PutOff,
}

/// The rivals of one connected life that are put off.
#[derive(Debug, Default)]
pub(crate) struct Rivals(Vec<Rival>);

#[derive(Clone, Copy, Debug)]
struct Rival {
    life: Incarnation,
    first: Instant,
    last: Instant,
}

impl Rivals {
    /// The rival `life` comes at `now`; `proved` is the last moment at which the connected life was proved alive.
    pub(crate) fn judge(
        &mut self,
        life: Incarnation,
        proved: Instant,
        now: Instant,
    ) -> RivalVerdict {
        self.0
            .retain(|rival| now.saturating_duration_since(rival.last) < FORGOTTEN_AFTER);
        match self.0.iter().position(|rival| rival.life == life) {
            Some(at) if proved >= self.0[at].first => {
                // Its place is free for another.
                self.0.swap_remove(at);
                RivalVerdict::Refuse
            }
            Some(at) => {
                self.0[at].last = now;
                RivalVerdict::PutOff
            }
            None if self.0.len() < RIVALS_MAX => {
                self.0.push(Rival {
                    life,
                    first: now,
                    last: now,
                });
                RivalVerdict::Ask
            }
            None => RivalVerdict::PutOff,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rival_is_refused_by_a_proof_that_came_after_it() {
        let start = Instant::now();
        let mut rivals = Rivals::default();
        let mut judge = |life, proved, now| {
            let at = |seconds| start + seconds * SECOND;
            rivals.judge(Incarnation(life), at(proved), at(now))
        };
        assert_eq!(judge(1, 4, 5), RivalVerdict::Ask);
        assert_eq!(judge(2, 4, 6), RivalVerdict::Ask);
        assert_eq!(judge(1, 4, 7), RivalVerdict::PutOff);
        // The second came after this proof.
        assert_eq!(judge(2, 5, 8), RivalVerdict::PutOff);
        assert_eq!(judge(1, 5, 8), RivalVerdict::Refuse);
        assert_eq!(judge(2, 6, 9), RivalVerdict::Refuse);
        // What was proved for its former dial is no proof for the next.
        assert_eq!(judge(1, 6, 10), RivalVerdict::Ask);
    }

    #[test]
    fn rivals_are_bounded_and_each_has_its_turn() {
        let start = Instant::now();
        let mut rivals = Rivals::default();
        let most = RIVALS_MAX as u64;
        for life in 1..=most {
            let verdict = rivals.judge(Incarnation(life), start, start + SECOND);
            assert_eq!(verdict, RivalVerdict::Ask);
        }
        let more = |rivals: &mut Rivals, proved, now| {
            rivals.judge(Incarnation(most + 1), start + proved, start + now)
        };
        assert_eq!(more(&mut rivals, SECOND, 2 * SECOND), RivalVerdict::PutOff);
        // One of those that are remembered has its answer, and leaves its place.
        let answered = rivals.judge(Incarnation(1), start + SECOND, start + 2 * SECOND);
        assert_eq!(answered, RivalVerdict::Refuse);
        assert_eq!(more(&mut rivals, SECOND, 2 * SECOND), RivalVerdict::Ask);
        assert_eq!(rivals.0.len(), RIVALS_MAX);
        // Those that never come again leave theirs too.
        let late = 2 * SECOND + FORGOTTEN_AFTER;
        let verdict = rivals.judge(Incarnation(99), start, start + late);
        assert_eq!((verdict, rivals.0.len()), (RivalVerdict::Ask, 1));
    }
}
