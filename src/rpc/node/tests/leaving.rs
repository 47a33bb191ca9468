//! Leaving together: not before all is done, also what calls have called.

use super::script::Script;
use super::*;
use crate::node::leaving::PROBING_RISE;

fn leave_all(world: &mut World, patience: Duration) {
    let deadline = world.now.after(patience);
    for at in 0..world.actors.len() {
        let now = world.now;
        world.actors[at].node.leave(now, deadline);
        world.pump(at);
    }
}

fn has_left(world: &World, at: usize) -> bool {
    world.actors[at].has_left.is_some()
}

#[test]
fn all_leave_when_all_are_at_rest() {
    for count in [1, 2, 5] {
        let mut world = World::new(20, count, QUIET);
        leave_all(&mut world, Duration::from_secs(10));
        world.run_until(|world| world.actors.iter().all(|actor| actor.has_left.is_some()));
        assert!(
            world
                .actors
                .iter()
                .all(|actor| actor.has_left == Some(Ok(()))),
            "{count}"
        );
    }
}

#[test]
fn nobody_leaves_before_nested_and_follow_up_calls_are_done() {
    let mut world = World::new(21, 3, QUIET);
    world.call(0, 1, plain(), None, &[]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    leave_all(&mut world, Duration::from_secs(10));
    world.run_for(Duration::from_millis(50));
    assert!(!(0..3).any(|at| has_left(&world, at)), "a call runs");
    // It calls on, ends, and the next call runs.
    world.call(1, 2, plain(), None, &[]);
    world.run_until(|world| !world.actors[2].running.is_empty());
    world.finish(1, 0, &[]);
    world.run_for(Duration::from_millis(50));
    assert!(
        !(0..3).any(|at| has_left(&world, at)),
        "its nested call runs"
    );
    world.call(2, 0, plain(), None, &[]);
    world.finish(2, 0, &[]);
    world.run_until(|world| !world.actors[0].running.is_empty());
    world.run_for(Duration::from_millis(50));
    assert!(
        !(0..3).any(|at| has_left(&world, at)),
        "its follow-up call runs"
    );
    world.finish(0, 0, &[]);
    world.run_until(|world| world.actors.iter().all(|actor| actor.has_left.is_some()));
    assert!(
        world
            .ended
            .values()
            .all(|(_, ending)| matches!(ending, Ending::Answered(_)))
    );
}

#[test]
fn the_time_of_a_shutdown_is_obeyed_and_says_what_was_outstanding() {
    // Upstream ignores it in agent.join: one call that never ends blocks all workers.
    let mut world = World::new(22, 2, QUIET);
    world.call(0, 1, plain(), None, &[]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    let until = world.now.after(Duration::from_millis(80));
    leave_all(&mut world, Duration::from_millis(80));
    world.run_until(|world| (0..2).all(|at| has_left(world, at)));
    assert!(world.now >= until && world.now <= until.after(Duration::from_millis(1)));
    let what = world.actors[0]
        .has_left
        .clone()
        .expect("it left")
        .unwrap_err();
    assert!(
        what.iter()
            .any(|text| text == "1 calls to worker 1 are not answered"),
        "{what:?}"
    );
    assert!(matches!(
        world.ended[&0].1,
        Ending::Shutdown | Ending::Lost(_)
    ));
}

#[test]
fn one_that_does_not_want_to_leave_holds_the_others_until_their_time_is_over() {
    let mut world = World::new(23, 3, QUIET);
    let now = world.now;
    for at in 0..2 {
        world.actors[at]
            .node
            .leave(now, now.after(Duration::from_millis(100)));
        world.pump(at);
    }
    world.run_for(Duration::from_millis(40));
    assert!(!has_left(&world, 0) && !has_left(&world, 1));
    world.run_until(|world| has_left(world, 0) && has_left(world, 1));
    assert!(
        world.actors[0]
            .has_left
            .clone()
            .is_some_and(|how| how.is_err())
    );
}

#[test]
fn the_others_leave_when_one_dies_meanwhile_also_the_one_that_asks() {
    for dies in 0..3 {
        let mut world = World::new(24, 3, QUIET);
        leave_all(&mut world, Duration::from_secs(10));
        world.kill(dies);
        let others: Vec<usize> = (0..3).filter(|&at| at != dies).collect();
        world.run_until(|world| others.iter().all(|&at| has_left(world, at)));
        assert!(
            others
                .iter()
                .all(|&at| world.actors[at].has_left == Some(Ok(()))),
            "{dies}"
        );
    }
}

/// What was said in a round that was given up is older than the round that follows.
#[test]
fn an_answer_to_a_round_that_was_given_up_counts_in_no_other() {
    let mut script = Script::new(4);
    for at in 0..4 {
        script.turn(at, |node, now| node.leave(now, Nanos::NEVER));
    }
    let tick = Duration::from_millis(1);
    script.pass(tick);
    let probes = |script: &Script| [1, 2].map(|to| script.count("probe", 0, to));
    assert_eq!(probes(&script), [1, 1]);
    script.cut(0, 3);
    script.pass(tick);
    assert_eq!(probes(&script), [2, 2]);
    // Both answer both of them, and nothing that is asked after that comes.
    for to in [1, 2] {
        while script.deliver_one(|mail| mail.is("probe", 0, to)) {}
    }
    for _ in 0..2 {
        for from in [1, 2] {
            assert!(script.deliver_one(|mail| mail.is("ack", from, 0)));
        }
        script.pass(tick);
    }
    assert_eq!(probes(&script), [3, 3], "a second round is asked for");
    assert_eq!(script.count("proceed", 0, 1), 0, "and waited for");
    script.lose_if(|mail| mail.from == 3 || mail.to == 3);
    script.live(Duration::from_secs(1));
    assert!((0..3).all(|at| script.left.get(&at) == Some(&Ok(()))));
}

/// It is in no round that began before it was there, and that round would wait for it.
#[test]
fn one_that_is_found_again_while_others_are_asked_is_asked_too() {
    let mut script = Script::new(3);
    script.cut(0, 2);
    script.cut(2, 0);
    for at in 0..3 {
        script.turn(at, |node, now| node.leave(now, Nanos::NEVER));
    }
    script.pass(Duration::from_millis(1));
    assert_eq!(script.count("probe", 0, 1), 1);
    // Worker 1 answers when worker 2 has been heard again.
    script.pass(Duration::from_millis(50));
    script.deliver_if(|mail| mail.from + mail.to != 1);
    assert_eq!(script.count("probe", 0, 2), 0);
    script.live(Duration::from_secs(10));
    let all = (0..3).all(|at| script.left.get(&at) == Some(&Ok(())));
    assert!(all, "{:?}", script.nodes[0].outstanding());
}

#[test]
fn shares_that_are_held_at_the_end_are_named_and_end() {
    let mut world = World::new(25, 2, QUIET);
    let share = value_of(&mut world, 0, 1);
    leave_all(&mut world, Duration::from_secs(1));
    world.run_until(|world| (0..2).all(|at| has_left(world, at)));
    let named = world.actors[0].node.leaks();
    assert_eq!(named.len(), 1);
    assert!(named[0].starts_with("UserRRef(RRefId="), "{named:?}");
    assert!(world.actors[1].node.leaks().is_empty());
    // One that leaves alone takes its shares along.
    let mut world = World::new(25, 2, QUIET);
    let share_too = value_of(&mut world, 0, 1);
    assert_eq!(share_too, share);
    let now = world.now;
    world.actors[0].node.leave_now(now);
    world.pump(0);
    world.run_until(|world| !world.actors[1].values.contains(&share.rref));
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_function_that_runs_during_shutdown_uses_its_references() {
    // Worker 1 carries a function out that holds a share of 2's value, and asks for it while all leave.
    let mut world = World::new(29, 3, QUIET);
    let share = value_of(&mut world, 0, 2);
    world.call(0, 1, plain(), None, &[share]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    world.release(0, share);
    leave_all(&mut world, Duration::from_secs(10));
    world.run_for(Duration::from_millis(50));
    let fetch = world.call(1, 2, Target::Fetch(share.rref), None, &[]);
    world.run_for(Duration::from_millis(50));
    assert!(
        matches!(
            &world.ended.get(&fetch),
            Some((_, Ending::Answered(Outcome::Value { .. })))
        ),
        "{:?}",
        world.ended.get(&fetch)
    );
    world.finish(1, 0, &[]);
    world.run_until(|world| world.actors.iter().all(|actor| actor.has_left.is_some()));
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn calls_after_leaving_fail() {
    let mut world = World::new(26, 2, QUIET);
    leave_all(&mut world, Duration::from_secs(1));
    world.run_until(|world| (0..2).all(|at| has_left(world, at)));
    let late = world.call(0, 1, plain(), None, &[]);
    assert_eq!(world.ended[&late].1, Ending::Shutdown);
}

#[test]
fn leaving_over_a_faulty_network_comes_to_an_end_by_seed() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let count = 2 + dice.below(4) as u16;
        let mut world = World::new(seed, count, QUIET);
        world.network.faults = Faults {
            lose: 20,
            repeat: 20,
            delay: Duration::from_millis(3),
        };
        for _ in 0..20 {
            let (at, to) = (
                dice.below(count.into()) as usize,
                dice.below(count.into()) as usize,
            );
            world.call(at, to, plain(), Some(Duration::from_millis(20)), &[]);
        }
        leave_all(&mut world, Duration::from_secs(100));
        for _ in 0..500 {
            for at in 0..usize::from(count) {
                while !world.actors[at].running.is_empty() {
                    assert!(
                        world.actors[at].has_left.is_none(),
                        "seed {seed}: {at} left while it worked"
                    );
                    world.finish(at, 0, &[]);
                }
            }
            world.run_for(Duration::from_millis(20));
        }
        assert_eq!(world.ended.len(), 20, "seed {seed}");
        assert!(
            world.actors.iter().all(|actor| actor.has_left.is_some()),
            "seed {seed}"
        );
        assert!(world.harm.is_empty(), "seed {seed}: {:?}", world.harm);
    }
}

#[test]
fn two_leave_of_which_one_has_given_the_other_up() {
    // Before they want to leave, and while the one asks the other.
    for is_late in [false, true] {
        let mut script = Script::new(2);
        let leave = |script: &mut Script, at| {
            script.turn(at, |node, now| node.leave(now, Nanos::NEVER));
        };
        if is_late {
            leave(&mut script, 0);
            script.pass(Duration::from_millis(1));
        }
        script.give_up(0, 1);
        if !is_late {
            leave(&mut script, 0);
        }
        leave(&mut script, 1);
        script.live(Duration::from_millis(100));
        assert_eq!(script.left.len(), 2, "late: {is_late}");
    }
}

#[test]
fn who_waits_long_for_the_others_to_leave_asks_them_more_seldom() {
    let mut script = Script::new(3);
    let leave = |script: &mut Script, at| {
        script.turn(at, |node, now| node.leave(now, Nanos::NEVER));
    };
    leave(&mut script, 0);
    script.live(Duration::from_secs(2));
    let asked = script.count("probe", 0, 1);
    assert!((20..=30).contains(&asked), "{asked} times");
    leave(&mut script, 1);
    leave(&mut script, 2);
    script.live(limits().probing * (PROBING_RISE + 2));
    assert_eq!(script.left.len(), 3);
}
