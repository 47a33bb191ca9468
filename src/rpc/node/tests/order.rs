//! Order: only if asked for, and then whatever the network does.

use super::script::{Mail, Script, plain_call};
use super::*;
use crate::message::Call;

/// Faults that let later calls come before earlier ones, and all of them twice.
const REORDERS: Faults = Faults {
    lose: 0,
    repeat: 50,
    delay: Duration::from_millis(5),
};

fn in_order(seed: u64) -> World {
    let mut world = World::new(seed, 3, REORDERS);
    for actor in &mut world.actors {
        actor.node.limits.in_order = true;
    }
    world
}

/// Calls from 0 to 1, all at once; the order in which they began, and whether two ever ran together.
fn begun(world: &mut World, count: u64) -> (Vec<u64>, bool) {
    let jobs: Vec<u64> = (0..count)
        .map(|_| world.call(0, 1, plain(), None, &[]))
        .collect();
    let (mut order, mut is_together) = (Vec::new(), false);
    while !jobs.iter().all(|job| world.ended.contains_key(job)) {
        world.run_for(Duration::from_micros(300));
        let running = &world.actors[1].running;
        is_together |= running.len() > 1;
        for (.., job, _) in running {
            if !order.contains(&job.0) {
                order.push(job.0);
            }
        }
        if !running.is_empty() && world.dice.below(2) == 0 {
            world.finish(1, 0, &[]);
        }
    }
    assert!(world.harm.is_empty(), "{:?}", world.harm);
    (order, is_together)
}

#[test]
fn calls_in_order_are_carried_out_one_after_another_as_they_were_made() {
    for seed in 0..50 {
        let (order, is_together) = begun(&mut in_order(seed), 20);
        assert!(
            order.is_sorted() && order.len() == 20,
            "seed {seed}: {order:?}"
        );
        assert!(!is_together, "seed {seed}");
    }
}

#[test]
fn without_being_asked_for_there_is_no_order() {
    let orders = (0..50).map(|seed| begun(&mut World::new(seed, 3, REORDERS), 20));
    let (mut is_unsorted, mut is_together) = (false, false);
    for (order, together) in orders {
        assert_eq!(order.len(), 20);
        is_unsorted |= !order.is_sorted();
        is_together |= together;
    }
    assert!(
        is_unsorted && is_together,
        "this test would not see a lack of order"
    );
}

#[test]
fn a_call_that_is_given_up_lets_nobody_overtake() {
    let mut world = in_order(1);
    world.network.faults = QUIET;
    world.call(0, 1, plain(), None, &[]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    let late = world.call(0, 1, plain(), Some(Duration::from_millis(5)), &[]);
    let last = world.call(0, 1, plain(), None, &[]);
    world.run_for(Duration::from_millis(50));
    assert_eq!(world.ended[&late].1, Ending::Timeout);
    assert_eq!(world.actors[1].running.len(), 1, "the first runs still");
    world.finish(1, 0, &[]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    assert_eq!(world.actors[1].running[0].3.0, last);
    world.finish(1, 0, &[]);
    world.settle();
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_call_that_comes_after_its_cancel_keeps_its_place_in_the_order() {
    let mut world = in_order(2);
    world.network.faults = QUIET;
    // The first is on its way for long; the second is cancelled before it comes, and the third is there first.
    world.network.faults.delay = Duration::from_millis(100);
    let first = world.call(0, 1, plain(), None, &[]);
    let second = world.call(0, 1, plain(), Some(Duration::from_millis(1)), &[]);
    world.network.faults.delay = Duration::from_micros(1);
    let third = world.call(0, 1, plain(), None, &[]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    assert_eq!(world.actors[1].running[0].3.0, first);
    world.finish(1, 0, &[]);
    world.run_until(|world| !world.actors[1].running.is_empty());
    assert_eq!(world.actors[1].running[0].3.0, third);
    world.finish(1, 0, &[]);
    world.settle();
    assert_eq!(world.ended[&second].1, Ending::Timeout);
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn the_order_of_one_caller_is_none_of_anothers() {
    let mut world = in_order(3);
    world.network.faults = QUIET;
    world.call(0, 1, plain(), None, &[]);
    let other = world.call(2, 1, plain(), None, &[]);
    world.run_until(|world| world.actors[1].running.len() == 2);
    // Another caller's order is its own.
    let of_other = world.actors[1]
        .running
        .iter()
        .position(|one| one.3.0 == other);
    world.finish(1, of_other.expect("it runs"), &[]);
    world.run_until(|world| world.ended.contains_key(&other));
    assert!(world.harm.is_empty(), "{:?}", world.harm);
}

#[test]
fn a_caller_that_has_started_again_keeps_its_order() {
    let mut script = Script::new(2);
    script.value(0, 1);
    script.restart(0, 9);
    script.deliver();
    script.nodes[0].limits.in_order = true;
    let (first, second) = (script.call(0, 1, &[]), script.call(0, 1, &[]));
    let is_second =
        |mail: &Mail| matches!(&mail.message.body, Body::Call(call) if call.payload == second);
    assert!(script.deliver_one(is_second));
    assert!(script.runs(second).is_none());
    script.deliver();
    assert!(script.runs(first).is_some() && script.runs(second).is_none());
    script.finish(first, &[]);
    assert!(script.runs(second).is_some());
}

#[test]
fn calls_that_come_after_each_other_in_a_circle_are_dropped() {
    let mut script = Script::new(2);
    let say = |script: &mut Script, body| {
        let life = script.nodes[0].life;
        script.hear(1, (WorkerId(0), life), body);
    };
    let call = |id, after| {
        Body::Call(Call {
            settled: CallId(0),
            after: Some(CallId(after)),
            ..plain_call(id, id)
        })
    };
    let cancel = |id, of| Body::Control {
        id: CallId(id),
        settled: CallId(0),
        control: Control::Cancel(CallId(of)),
    };
    // The second half of a number does not travel.
    let wraps = 1 << 48;
    for (id, of, as_said, after) in [(21, 3, wraps + 3, 5), (22, 5, 5, 3)] {
        say(&mut script, cancel(id, of));
        say(&mut script, call(as_said, after));
    }
    say(&mut script, call(7, 3));
    assert_eq!(script.nodes[1].implausible, 1);
    assert!(script.runs(wraps + 3).is_none());
}

/// A thread has 2 MiB of stack as a rule, and a caller chooses how much waits in order.
#[test]
fn thousands_that_are_refused_in_order_end_one_after_another() {
    let mut script = Script::new(3);
    script.nodes[0].limits = Limits {
        in_order: true,
        ..Limits::default()
    };
    script.nodes[1].limits = Limits::default();
    let share = script.value(0, 2);
    let first = script.call(0, 1, &[]);
    script.deliver();
    let behind: Vec<u64> = (1..4096).map(|_| script.call(0, 1, &[share])).collect();
    let last = script.call(0, 1, &[]);
    script.deliver();
    // What they are given is gone before their turn comes.
    script.lose(2);
    let small = std::thread::Builder::new().stack_size(2 << 20);
    let run = move || {
        script.finish(first, &[]);
        script.mail.retain(|mail| mail.to != 2);
        script.deliver();
        script.finish(last, &[]);
        script.deliver();
        script
    };
    let thread = small.spawn(run).expect("a thread");
    let script = thread.join().expect("no panic");
    let is_refused = |job: &u64| {
        matches!(
            script.ended[job],
            Ending::Answered(Outcome::Fault(_)) | Ending::Lost(_)
        )
    };
    assert!(behind.iter().all(is_refused));
    assert!(script.is_answered(last));
}
