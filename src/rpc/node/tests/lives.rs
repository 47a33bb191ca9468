//! Workers that are lost and come back, in the same life or in another: nothing of before reaches what is after.

use super::script::Script;
use super::*;

/// PyTorch never replaces a pipe that has failed: all later calls to that worker fail.
#[test]
fn a_worker_that_was_lost_and_comes_back_in_the_same_life_is_called_again() {
    let mut script = Script::new(2);
    let before = script.call(0, 1, &[]);
    script.cut(0, 1);
    script.cut(1, 0);
    script.mail.clear();
    assert!(matches!(script.ended[&before], Ending::Lost(_)));
    // Both greet each other until they hear.
    script.live(Duration::from_millis(50));
    script.both_answer();
}

#[test]
fn a_worker_that_starts_again_calls_and_is_called() {
    let mut script = Script::new(2);
    for _ in 0..5 {
        script.call(1, 0, &[]);
        script.deliver();
        script.finish_all();
        script.deliver();
    }
    for life in 100..103 {
        script.restart(1, life);
        script.deliver();
        for (at, to) in [(1, 0), (0, 1)] {
            let job = script.call(at, to, &[]);
            script.deliver();
            script.finish_all();
            script.deliver();
            assert!(script.is_answered(job), "life {life}: {at} calls {to}");
        }
    }
}

#[test]
fn what_a_former_life_asked_for_answers_no_call_of_the_next() {
    let mut script = Script::new(2);
    let old = script.call(1, 0, &[]);
    script.deliver();
    let served = script.runs(old).expect("it runs").clone();
    script.serving.clear();
    script.restart(1, 100);
    script.deliver();
    let new = script.call(1, 0, &[]);
    script.deliver();
    assert!(script.runs(new).is_some());
    // The function of the former life ends while the call of the next runs.
    script.finish_served(&served, &[]);
    script.deliver();
    assert!(!script.ended.contains_key(&new));
    script.finish(new, &[]);
    script.deliver();
    assert!(script.is_answered(new));
    assert_eq!(script.nodes[0].call_counts(), (0, 0));
}

#[test]
fn a_share_that_is_confirmed_late_begins_no_call_of_the_next_life() {
    let mut script = Script::new(3);
    let (one, two) = (script.value(1, 2), script.value(1, 2));
    // Worker 1 calls 0 with a share of 2's value, and starts again before the owner has confirmed it.
    script.call(1, 0, &[one]);
    script.deliver_if(|mail| mail.is("call", 1, 0));
    script.restart(1, 100);
    script.deliver_if(|mail| mail.kind() == "hello" && mail.from + mail.to == 1);
    let new = script.call(1, 0, &[two]);
    script.deliver_if(|mail| mail.is("call", 1, 0));
    assert_eq!(script.count("fork", 0, 2), 2);
    script.deliver_one(|mail| mail.is("fork", 0, 2));
    script.deliver_if(|mail| mail.is("ack", 2, 0));
    assert!(script.runs(new).is_none(), "its own share is not confirmed");
}

#[test]
fn old_numbers_do_not_hold_memory_over_lives() {
    let mut script = Script::new(2);
    for life in 100..120 {
        script.restart(1, life);
        script.deliver();
        for _ in 0..20 {
            script.call(1, 0, &[]);
            script.deliver();
            script.finish_all();
            script.deliver();
        }
    }
    assert!(script.nodes[0].peers[&WorkerId(1)].seen.kept() <= 2);
}

#[test]
fn twenty_workers_meet_and_call_each_other() {
    // PyTorch needs a thread for each worker in its first exchange: more than 16 can hang.
    let mut script = Script::new(20);
    let mut jobs = Vec::new();
    for at in 0..20 {
        jobs.extend((0..20).map(|to| script.call(at, to, &[])));
    }
    script.deliver();
    script.finish_all();
    script.deliver();
    assert!(jobs.iter().all(|job| script.is_answered(*job)));
}

#[test]
fn a_late_word_of_a_life_before_does_not_displace_the_next() {
    let mut script = Script::new(2);
    script.restart(1, 100);
    // The first word of life 100 is late: life 200 is there before it.
    let is_first_word = |mail: &super::script::Mail| mail.message.from_life == 100;
    let late = script.mail.iter().position(is_first_word);
    let late = script
        .mail
        .remove(late.expect("it greets"))
        .expect("a message");
    script.lose_if(is_first_word);
    script.restart(1, 200);
    script.live(Duration::from_millis(30));
    script.mail.push_back(late);
    script.live(Duration::from_millis(30));
    for (at, to) in [(1, 0), (0, 1)] {
        let job = script.call(at, to, &[]);
        script.deliver();
        script.finish_all();
        script.deliver();
        assert!(script.is_answered(job), "{at} calls {to}");
    }
}

#[test]
fn the_leave_of_a_guest_that_has_come_again_is_of_its_former_visit() {
    let mut script = Script::new(2);
    let guest = WorkerId(9);
    let now = script.now;
    let mut hello = script.nodes[1].group.hello.clone();
    hello.wants_answer = true;
    let say = |node: &mut Node<u64, u64>, from_life, body| {
        let to_life = node.life;
        let message = Message {
            from_life,
            to_life,
            body,
        };
        node.handle_message(now, guest, message);
    };
    let node = &mut script.nodes[0];
    node.admit(now, guest);
    say(node, 100, Body::Hello(hello.clone()));
    assert!(node.is_up(guest));
    // It has left, and is admitted again before that is heard.
    node.admit(now, guest);
    assert!(!node.is_up(guest));
    say(node, 100, Body::Leave);
    assert!(node.guests().any(|one| one == guest), "it is expected");
    say(node, 200, Body::Hello(hello));
    assert!(node.is_up(guest));
    say(node, 200, Body::Leave);
    assert!(!node.guests().any(|one| one == guest), "it has left");
}

#[test]
fn a_message_for_a_former_life_is_answered_with_the_present_one() {
    let mut script = Script::new(2);
    script.restart(1, 100);
    // Worker 0 asks whether that is so, and the answer is lost: worker 1 takes itself for known.
    script.deliver_one(|mail| mail.is("hello", 1, 0));
    script.deliver_one(|mail| mail.is("hello", 0, 1));
    assert_eq!(script.lose_if(|mail| mail.is("hello", 1, 0)), 1);
    let old = script.call(0, 1, &[]);
    script.deliver();
    assert!(matches!(script.ended[&old], Ending::Lost(_)));
    let new = script.call(0, 1, &[]);
    script.deliver();
    script.finish_all();
    script.deliver();
    assert!(script.is_answered(new));
}

#[test]
fn a_life_that_was_lost_with_its_connection_ends_when_the_next_is_heard() {
    let mut script = Script::new(2);
    let old = script.call(1, 0, &[]);
    let late = script.mail.pop_front().expect("it is sent");
    script.cut(0, 1);
    script.restart(1, 100);
    script.deliver();
    script.mail.push_back(late);
    script.deliver();
    assert!(script.runs(old).is_none());
    assert_eq!(
        script.nodes[0].peers[&WorkerId(1)].state.life(),
        Some(100),
        "a late call of the former life displaced the next"
    );
}

#[test]
fn an_answer_to_a_former_life_ends_no_greeting() {
    let mut script = Script::new(2);
    script.restart(1, 100);
    script.mail.clear();
    let hello = script.nodes[0].hello(false);
    let (now, from_life) = (script.now, script.nodes[0].life);
    let answer = Message {
        from_life,
        to_life: 2,
        body: Body::Hello(hello),
    };
    script.nodes[1].handle_message(now, WorkerId(0), answer);
    assert!(!script.nodes[1].is_up(WorkerId(0)));
}

#[test]
fn one_that_has_left_says_so_to_a_life_that_it_does_not_know() {
    let mut script = Script::new(2);
    let share = script.value(0, 1);
    script.turn(0, |node, now| node.leave_now(now));
    script.mail.clear();
    script.restart(1, 100);
    script.deliver();
    let known = &script.nodes[1].peers[&WorkerId(0)].state;
    assert!(matches!(known, PeerState::Lost(_)), "{known:?}");
    // And it says nothing else.
    script.drop_share(0, share);
    script.pass(Duration::from_secs(1));
    assert_eq!(script.count("delete", 0, 1), 0);
    assert_eq!(script.nodes[0].next_timer(), Nanos::NEVER);
}

#[test]
fn a_worker_that_seems_to_have_started_again_is_asked_until_it_answers() {
    let mut script = Script::new(2);
    let share = script.value(1, 0);
    script.restart(1, 100);
    script.deliver_one(|mail| mail.is("hello", 1, 0));
    script.deliver_one(|mail| mail.is("hello", 0, 1));
    assert_eq!(script.lose_if(|mail| mail.is("hello", 1, 0)), 1);
    // Worker 0 has nothing to say to 1, and keeps a value for its former life.
    assert!(!script.released.contains(&(0, share.rref)));
    script.live(Duration::from_millis(50));
    assert!(script.released.contains(&(0, share.rref)));
    // And not once more than that.
    let asked = script.count("hello", 0, 1);
    script.live(Duration::from_millis(50));
    assert_eq!(script.count("hello", 0, 1), asked);
}

#[test]
fn a_life_that_one_side_has_ended_alone_ends_at_the_other_too() {
    // It hears so when it says something: all that it says, and that it greets.
    for greets in [false, true] {
        let mut script = Script::new(2);
        let before = script.call(1, 0, &[]);
        script.deliver();
        script.give_up(0, 1);
        let after = script.call(1, 0, &[]);
        if greets {
            script.lose_if(|mail| mail.is("call", 1, 0));
            script.cut(1, 0);
            script.pass(limits().greeting);
        }
        script.deliver();
        for job in [before, after] {
            let ending = &script.ended[&job];
            assert!(matches!(ending, Ending::Lost(_)), "{ending:?}");
        }
        assert!(!script.nodes[1].is_up(WorkerId(0)));
        script.live(Duration::from_millis(50));
        script.said.clear();
        script.live(Duration::from_millis(50));
        assert_eq!(script.said, [], "and then both are silent");
    }
    // And when it says nothing.
    let mut script = Script::new(2);
    script.give_up(0, 1);
    script.deliver();
    script.live(limits().greeting.saturating_mul(2));
    assert!(!script.nodes[1].is_up(WorkerId(0)));
    script.restart(1, 100);
    script.deliver();
    script.both_answer();
}

#[test]
fn a_worker_that_has_left_is_not_greeted() {
    let mut script = Script::new(3);
    script.turn(1, |node, now| node.leave_now(now));
    script.deliver();
    script.said.clear();
    script.live(Duration::from_millis(200));
    assert_eq!(script.said, []);
    // It greets when it begins again.
    script.restart(1, 100);
    script.deliver();
    script.both_answer();
}

#[test]
fn a_guest_whose_life_has_ended_here_alone_is_told_before_its_place_is_given_away() {
    let mut script = Script::new(2);
    let guest = WorkerId(9);
    let mut hello = script.nodes[1].group.hello.clone();
    hello.wants_answer = true;
    script.turn(0, |node, now| node.admit(now, guest));
    script.hear(0, (guest, 100), Body::Hello(hello));
    script.said.clear();
    script.give_up(0, 9);
    assert_eq!(script.said, [(0, 9, "over")]);
    assert!(!script.nodes[0].guests().any(|one| one == guest));
}
