//! What a peer that was given up, and comes back in the same life, hears of steps that ended meanwhile.

use super::*;
use crate::ground::Code;

struct Case {
    now: Arc<AtomicU64>,
    a: Shards,
    b: Shards,
}

/// Two tasks that were connected.
fn connected() -> Case {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    Case { now, a, b }
}

impl Case {
    fn abort_here(&mut self, step: StepId) {
        let broke = Status::new(Code::Internal, "TEST", "it broke");
        self.a.solos[0].abort(step, broke);
        settle(&mut [&mut self.a]);
    }

    fn connect(&mut self) {
        connect(&mut self.a, &mut self.b);
        settle(&mut [&mut self.a, &mut self.b]);
    }

    /// What a receive of the peer's in that step ends with.
    fn heard_there(&mut self, step: StepId) -> Option<&'static str> {
        let key = Key::between("a", "b", "never").unwrap();
        let waiting = self.b.solos[0].recv(step, &key, Nanos::NEVER);
        settle(&mut [&mut self.a, &mut self.b]);
        Some(waiting.take()?.unwrap_err().reason())
    }
}

/// Nothing of it was left here, so a visitor had its place.
#[test]
fn a_peer_whose_place_a_visitor_had_hears_how_steps_ended() {
    let mut case = connected();
    let (task, visitor) = (name('b'), name('c'));
    let lost = |of: &TaskName| faults::peer_exited(of);
    case.a.solos[0].peer_lost(&task, lost(&task));
    case.abort_here(StepId(2));
    let mut c = Shards::new('c', 3, 1, &case.now);
    connect(&mut case.a, &mut c);
    settle(&mut [&mut case.a, &mut c]);
    case.a.solos[0].peer_lost(&visitor, lost(&visitor));
    case.abort_here(StepId(3));
    let peers = &case.a.solos[0].core_mut().peers;
    assert_eq!(peers.iter().count(), 1, "the place is the same");
    assert!(peers.find(&task).is_none());
    case.connect();
    assert_eq!(case.heard_there(StepId(2)), Some(catalogue::PEER_STATUS));
    assert_eq!(case.heard_there(StepId(3)), Some(catalogue::PEER_STATUS));
}

/// Its channel would have told it, had it come back in time.
#[test]
fn a_peer_that_is_given_up_late_hears_how_steps_ended_while_it_was_away() {
    let mut case = connected();
    let task = name('b');
    let until = Nanos(10 * SECOND);
    case.a.solos[0].peer_away(&task, faults::peer_exited(&task), until);
    case.abort_here(StepId(2));
    case.now.store(until.0 + 1, Ordering::Relaxed);
    settle(&mut [&mut case.a]);
    case.connect();
    assert_eq!(case.heard_there(StepId(2)), Some(catalogue::PEER_STATUS));
}

/// The channel that was to tell the life before is no channel of this one.
#[test]
fn the_next_life_of_a_peer_that_was_away_hears_how_steps_ended_meanwhile() {
    for is_given_up in [false, true] {
        let mut case = connected();
        let task = name('b');
        let until = Nanos(10 * SECOND);
        case.a.solos[0].peer_away(&task, faults::peer_exited(&task), until);
        case.abort_here(StepId(2));
        if is_given_up {
            case.now.store(until.0 + 1, Ordering::Relaxed);
            settle(&mut [&mut case.a]);
        }
        case.b = Shards::new('b', 5, 1, &case.now);
        case.connect();
        let heard = case.heard_there(StepId(2));
        assert_eq!(heard, Some(catalogue::PEER_STATUS), "{is_given_up}");
    }
}

/// Steps that had ended before a task was known here are none of its own, also when it was given up since.
#[test]
fn a_peer_that_comes_for_the_first_time_hears_of_no_earlier_end() {
    let mut case = connected();
    case.abort_here(StepId(2));
    let Case { now, a, .. } = &mut case;
    let task = name('c');
    let mut c = Shards::new('c', 3, 1, now);
    for _ in 0..2 {
        connect(a, &mut c);
        settle(&mut [a, &mut c]);
        let key = Key::between("a", "c", "never").unwrap();
        let waiting = c.solos[0].recv(StepId(2), &key, Nanos::NEVER);
        settle(&mut [a, &mut c]);
        let ended = waiting.take();
        assert!(ended.is_none(), "{ended:?}");
        a.solos[0].peer_lost(&task, faults::peer_exited(&task));
    }
}
