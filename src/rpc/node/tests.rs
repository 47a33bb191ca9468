//! Rules of calls, references and leaving, each in a world that would break it.

use std::time::Duration;

use super::testing::world::{Dice, Faults, Share, World, limits};
use super::*;
use script::Script;

mod leaving;
mod lives;
mod meeting;
mod order;
mod script;
mod seeds;
mod sharing;
mod times;
mod unmade;
mod unsent;

const QUIET: Faults = Faults {
    lose: 0,
    repeat: 0,
    delay: Duration::from_micros(50),
};

fn plain() -> Target {
    Target::Function("f".into())
}

/// Runs until job `job` has ended.
fn run_job(world: &mut World, job: u64) -> Ending<super::testing::world::Job> {
    world.run_until(|world| world.ended.contains_key(&job));
    world.ended[&job].1.clone()
}

#[test]
fn a_call_is_answered_once_though_all_is_repeated() {
    let faults = Faults {
        repeat: 100,
        delay: Duration::from_millis(2),
        ..QUIET
    };
    let mut world = World::new(1, 2, faults);
    for _ in 0..50 {
        world.call(0, 1, plain(), None, &[]);
    }
    world.settle();
    assert_eq!((world.ended.len(), world.carried_out.len()), (50, 50));
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_call_that_is_lost_ends_at_its_deadline_and_is_not_begun_later() {
    let mut world = World::new(2, 2, QUIET);
    world.network.faults.lose = 100;
    let job = world.call(0, 1, plain(), Some(Duration::from_millis(5)), &[]);
    assert_eq!(run_job(&mut world, job), Ending::Timeout);
    world.network.faults.lose = 0;
    world.settle();
    assert!(world.carried_out.is_empty());
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_call_that_comes_after_its_cancel_is_not_carried_out() {
    let mut world = World::new(3, 2, QUIET);
    // The call takes 50 ms, and its cancel none.
    world.network.faults.delay = Duration::from_millis(100);
    let job = world.call(0, 1, plain(), Some(Duration::from_micros(1)), &[]);
    world.network.faults.delay = Duration::from_micros(1);
    assert_eq!(run_job(&mut world, job), Ending::Timeout);
    world.settle();
    world.run_for(Duration::from_millis(200));
    assert!(world.carried_out.is_empty());
}

#[test]
fn a_late_answer_is_dropped() {
    let mut world = World::new(4, 2, QUIET);
    let job = world.call(0, 1, plain(), Some(Duration::from_millis(5)), &[]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    assert_eq!(run_job(&mut world, job), Ending::Timeout);
    world.settle();
    assert_eq!(world.ended.len(), 1);
}

#[test]
fn a_deadline_stops_what_runs_at_the_other_side() {
    let mut world = World::new(5, 2, QUIET);
    let job = world.call(0, 1, plain(), Some(Duration::from_millis(5)), &[]);
    assert_eq!(run_job(&mut world, job), Ending::Timeout);
    world.run_for(Duration::from_millis(5));
    assert_eq!(world.actors[1].stopped.len(), 1);
}

#[test]
fn a_peer_that_dies_ends_all_calls_of_it_at_once() {
    let mut world = World::new(6, 3, QUIET);
    let jobs: Vec<u64> = (0..20)
        .map(|_| world.call(0, 1, plain(), None, &[]))
        .collect();
    let other = world.call(0, 2, plain(), None, &[]);
    world.run_for(Duration::from_millis(1));
    world.kill(1);
    assert!(
        jobs.iter()
            .all(|job| matches!(world.ended[job].1, Ending::Lost(_)))
    );
    assert!(!world.ended.contains_key(&other));
    // Its own calls are told to stop, and what comes later fails at once.
    let late = world.call(0, 1, plain(), None, &[]);
    assert!(matches!(world.ended[&late].1, Ending::Lost(_)));
    world.settle();
    assert!(matches!(world.ended[&other].1, Ending::Answered(_)));
}

#[test]
fn calls_beyond_the_window_wait_and_go_in_order() {
    let mut world = World::new(7, 2, QUIET);
    let jobs: Vec<u64> = (0..40)
        .map(|_| world.call(0, 1, plain(), None, &[]))
        .collect();
    world.run_for(Duration::from_millis(1));
    assert_eq!(
        world.actors[1].running.len(),
        super::testing::world::limits().window
    );
    world.settle();
    assert!(
        jobs.iter()
            .all(|job| matches!(world.ended[job].1, Ending::Answered(_)))
    );
    for _ in 0..8 + 64 {
        world.call(0, 1, plain(), None, &[]);
    }
    let refused = world.call(0, 1, plain(), None, &[]);
    assert_eq!(world.ended[&refused].1, Ending::Busy);
}

#[test]
fn a_call_that_was_given_up_has_a_place_until_its_worker_has_heard_so() {
    let mut script = Script::new(2);
    let (window, waiting) = (limits().window, limits().waiting);
    let patience = Duration::from_millis(5);
    // Worker 1 is there, and stands still.
    for round in 0..3 {
        for _ in 0..window + waiting {
            script.call_within(0, 1, plain(), Some(patience), &[]);
        }
        script.pass(patience);
        let timeouts = script.ended.values().filter(|how| **how == Ending::Timeout);
        let busy = script.ended.values().filter(|how| **how == Ending::Busy);
        let places = window + (round + 1) * waiting;
        assert_eq!((timeouts.count(), busy.count()), (places, round * window));
        assert_eq!(script.count("call", 0, 1), window);
        assert_eq!(script.nodes[0].call_counts(), (0, 0));
    }
    script.deliver();
    let job = script.call(0, 1, &[]);
    script.deliver();
    script.finish(job, &[]);
    script.deliver();
    assert!(script.is_answered(job));
}

#[test]
fn calls_that_are_given_up_together_are_not_made_one_after_the_other() {
    let mut script = Script::new(2);
    let window = limits().window;
    let mut call = || script.call(0, 1, &[]);
    let jobs: Vec<u64> = (0..3 * window).map(|_| call()).collect();
    let (kept, given_up) = (jobs[2 * window], &jobs[..]);
    script.turn(0, |node, now| {
        node.cancel(now, WorkerId(1), |job| {
            *job != kept && given_up.contains(job)
        });
    });
    assert_eq!(script.ended.len(), 3 * window - 1);
    assert!(script.ended.values().all(|how| *how == Ending::Cancelled));
    // Those of the window had gone, and of the others goes the one that is kept, when there is a place.
    assert_eq!(script.count("call", 0, 1), window);
    script.deliver();
    assert_eq!(script.count("call", 0, 1), window + 1);
    script.finish_all();
    script.deliver();
    assert!(script.is_answered(kept));
}

#[test]
fn a_value_of_ones_own_is_made_though_its_handle_is_dropped_while_the_call_waits() {
    let mut world = World::new(29, 2, QUIET);
    let held: Vec<_> = (0..=super::testing::world::limits().window)
        .map(|_| world.create(0, 0, None))
        .collect();
    let many = held.len();
    held.into_iter().for_each(|share| world.release(0, share));
    world.settle();
    assert_eq!(world.ended.len(), many);
    for (_, ending) in world.ended.values() {
        let is_made = matches!(ending, Ending::Answered(Outcome::Value { .. }));
        assert!(is_made, "{ending:?}");
    }
}

#[test]
fn a_call_that_waits_for_the_window_has_its_deadline_too() {
    let mut world = World::new(27, 2, QUIET);
    for _ in 0..8 {
        world.call(0, 1, plain(), None, &[]);
    }
    let job = world.call(0, 1, plain(), Some(Duration::from_millis(5)), &[]);
    assert_eq!(run_job(&mut world, job), Ending::Timeout);
    world.settle();
    assert!(!world.carried_out.contains_key(&job));
}

#[test]
fn what_runs_beyond_its_deadline_is_no_result() {
    let mut world = World::new(28, 2, QUIET);
    // The caller's clock stands still: only the other side sees that the time is over.
    let job = world.call(0, 1, plain(), Some(Duration::from_millis(5)), &[]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    let late = world.now.after(Duration::from_millis(6));
    world.actors[1].node.handle_time(late);
    world.pump(1);
    world.finish(1, 0, &[]);
    let ending = run_job(&mut world, job);
    assert!(
        !matches!(ending, Ending::Answered(Outcome::Value { .. })),
        "{ending:?}"
    );
}

#[test]
fn what_a_receiver_remembers_is_what_is_under_way() {
    let mut world = World::new(8, 2, QUIET);
    for _ in 0..200 {
        world.call(0, 1, plain(), None, &[]);
        world.settle();
    }
    assert!(world.actors[1].node.peers[&WorkerId(0)].seen.kept() <= 2);
}

#[test]
fn a_worker_that_comes_back_in_another_life_takes_no_old_message() {
    let mut world = World::new(9, 2, QUIET);
    world.network.faults.delay = Duration::from_millis(100);
    world.call(0, 1, plain(), None, &[]);
    world.network.faults.delay = Duration::from_micros(1);
    // Worker 0 starts again, in life 99.
    let now = world.now;
    let old = world.actors[0].node.life;
    let hello = world.actors[0].node.hello(true);
    let message = Message {
        from_life: 99,
        to_life: world.actors[1].node.life,
        body: Body::Hello(hello),
    };
    world.actors[1]
        .node
        .handle_message(now, WorkerId(0), message);
    assert!(world.actors[1].node.peers[&WorkerId(0)].past.contains(&old));
    world.run_for(Duration::from_millis(300));
    assert!(world.carried_out.is_empty());
}

#[test]
fn a_group_that_another_does_not_know_is_refused() {
    let mut world = World::new(10, 2, QUIET);
    let now = world.now;
    let mut hello = world.actors[0].node.hello(true);
    hello.roster = 0;
    let message = Message {
        from_life: 1,
        to_life: 0,
        body: Body::Hello(hello),
    };
    world.actors[1]
        .node
        .handle_message(now, WorkerId(0), message);
    world.pump(1);
    assert_eq!(
        world.harm,
        ["RPC group mixes statically and dynamically initialized members which is not supported."]
    );
}

// References.

/// A value of worker `owner` that worker `user` holds, confirmed.
fn value_of(world: &mut World, user: usize, owner: usize) -> Share {
    let share = world.create(user, owner, None);
    world.settle();
    assert!(world.actors[owner].values.contains(&share.rref));
    share
}

#[test]
fn the_owner_is_told_when_a_share_ends_though_messages_are_lost() {
    let faults = Faults { lose: 60, ..QUIET };
    let mut world = World::new(11, 2, QUIET);
    let share = value_of(&mut world, 0, 1);
    world.network.faults = faults;
    world.release(0, share);
    world.settle();
    assert!(world.actors[1].values.is_empty(), "G1");
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_parent_stays_until_the_owner_knows_its_child() {
    // Worker 0 owns; 1 holds, gives 2 a share in a call, and drops its own at once.
    let mut world = World::new(12, 3, QUIET);
    let share = value_of(&mut world, 1, 0);
    world.call(1, 2, plain(), None, &[share]);
    world.release(1, share);
    world.run_until(|world| !world.actors[2].running.is_empty());
    assert!(world.actors[0].values.contains(&share.rref), "G2");
    world.settle();
    world.drop_all();
    world.settle();
    assert!(world.actors[0].values.is_empty());
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_function_runs_only_when_its_references_are_confirmed() {
    let mut world = World::new(13, 3, QUIET);
    let share = value_of(&mut world, 1, 0);
    // The owner does not hear worker 2 for a while.
    world.call(1, 2, plain(), None, &[share]);
    world.network.faults.lose = 100;
    world.run_for(Duration::from_millis(10));
    assert!(world.actors[2].running.is_empty());
    world.network.faults.lose = 0;
    world.run_until(|world| !world.actors[2].running.is_empty());
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_lost_carrier_leaves_no_fork() {
    // Upstream's hole: the owner registers a fork before it sends, and the message is lost.
    let mut world = World::new(14, 2, QUIET);
    let share = value_of(&mut world, 1, 1);
    world.network.faults.lose = 100;
    world.call(1, 0, plain(), Some(Duration::from_millis(5)), &[share]);
    world.release(1, share);
    world.run_for(Duration::from_millis(10));
    world.network.faults.lose = 0;
    world.settle();
    assert!(world.actors[1].values.is_empty());
    assert_eq!(world.actors[1].node.reference_counts().forks, 0);
}

#[test]
fn a_deletion_that_overtakes_the_creation_is_remembered() {
    let mut references = crate::references::References::new(WorkerId(1), 1);
    let id = |local| crate::id::GlobalId {
        on: WorkerId(0),
        local,
    };
    references.delete(WorkerId(0), id(1), id(2));
    assert!(!references.creation_asked(WorkerId(0), id(1), id(2)));
    assert_eq!(references.counts().forks, 0);
    // And so is one that overtakes the news of a share.
    assert!(references.creation_asked(WorkerId(0), id(3), id(4)));
    references.delete(WorkerId(2), id(3), id(5));
    assert!(!references.fork_asked(WorkerId(2), (id(3), id(5)), Some(1), true));
    assert_eq!(references.counts().forks, 1);
}

#[test]
fn a_share_that_overtakes_the_creation_of_its_value_is_no_error() {
    // Worker 0 asks 1 for a value, and gives 2 a share and 1 itself the reference before 1 has heard of it.
    let mut world = World::new(19, 3, QUIET);
    world.network.faults.delay = Duration::from_millis(100);
    let share = world.create(0, 1, None);
    world.network.faults.delay = Duration::from_micros(1);
    world.call(0, 2, plain(), None, &[share]);
    world.call(0, 1, plain(), None, &[share]);
    world.run_for(Duration::from_millis(1));
    assert!(!world.actors[2].running.is_empty() && !world.actors[1].running.is_empty());
    world.settle();
    let fetch = world.call(0, 1, Target::Fetch(share.rref), None, &[]);
    world.settle();
    assert!(matches!(
        world.ended[&fetch].1,
        Ending::Answered(Outcome::Value { .. })
    ));
    world.drop_all();
    world.settle();
    assert_eq!(world.actors[1].node.reference_counts(), Default::default());
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn control_messages_may_come_twice() {
    let mut world = World::new(
        15,
        3,
        Faults {
            repeat: 100,
            ..QUIET
        },
    );
    let share = value_of(&mut world, 1, 0);
    world.call(1, 2, plain(), None, &[share]);
    world.settle();
    world.drop_all();
    world.settle();
    let counts = world.actors[0].node.reference_counts();
    assert_eq!((counts.owners, counts.forks), (0, 0));
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_value_is_asked_for_before_it_is_made() {
    let mut world = World::new(16, 2, QUIET);
    let share = world.create(0, 1, None);
    let fetch = world.call(0, 1, Target::Fetch(share.rref), None, &[]);
    world.run_for(Duration::from_millis(5));
    assert!(!world.ended.contains_key(&fetch));
    world.settle();
    assert!(matches!(
        world.ended[&fetch].1,
        Ending::Answered(Outcome::Value { .. })
    ));
}

#[test]
fn the_shares_of_a_worker_go_with_it_and_its_values_too() {
    let mut world = World::new(17, 3, QUIET);
    let of_one = value_of(&mut world, 0, 1);
    let of_two = value_of(&mut world, 1, 2);
    world.kill(1);
    assert!(
        world.actors[2].values.is_empty(),
        "{of_two:?} had one user, which died"
    );
    let fetch = world.call(0, 1, Target::Fetch(of_one.rref), None, &[]);
    assert!(matches!(world.ended[&fetch].1, Ending::Lost(_)));
    world.drop_all();
    world.settle();
    assert_eq!(world.actors[0].node.reference_counts().users, 0);
}

#[test]
fn a_creation_that_was_never_seen_leaves_nothing_and_one_that_was_is_ended() {
    for lose in [100, 0] {
        let mut world = World::new(18, 2, QUIET);
        world.network.faults.lose = lose;
        let share = world.create(0, 1, Some(Duration::from_millis(5)));
        world.run_for(Duration::from_millis(10));
        world.network.faults.lose = 0;
        world.settle();
        world.release(0, share);
        world.settle();
        let (user, owner) = (
            world.actors[0].node.reference_counts(),
            world.actors[1].node.reference_counts(),
        );
        assert_eq!((user.users, owner.owners), (0, 0), "lose {lose}");
    }
}
