//! Workers that are called, or referred to, before they have been heard, and some that never come.

use super::script::{Mail, Script, plain_call};
use super::*;
use crate::message::FaultKind;

/// Three workers of a dynamic group, of which 0 and 2 do not know each other; a value of 2 that 1 holds.
fn strangers() -> (Script, super::script::Held) {
    let mut script = Script::of(3, true);
    let share = script.value(1, 2);
    script.live(limits().greeting * 2);
    script.nodes[0].peers.remove(&WorkerId(2));
    script.nodes[2].peers.remove(&WorkerId(0));
    (script, share)
}

#[test]
fn a_connection_that_was_lost_is_found_again_in_a_dynamic_group() {
    let mut script = Script::of(2, true);
    script.live(limits().greeting * 2);
    script.cut(0, 1);
    script.cut(1, 0);
    script.mail.clear();
    script.live(Duration::from_millis(50));
    script.both_answer();
}

#[test]
fn a_call_of_a_worker_that_was_given_up_is_heard_in_a_dynamic_group() {
    let mut script = Script::of(2, true);
    script.cut(0, 1);
    let job = script.call(1, 0, &[]);
    script.deliver();
    script.finish_all();
    script.deliver();
    assert!(script.is_answered(job), "{:?}", script.ended.get(&job));
}

#[test]
fn a_share_of_a_value_of_one_that_is_not_met_yet_is_confirmed_when_it_is() {
    let (mut script, share) = strangers();
    let job = script.call(1, 0, &[share]);
    script.deliver();
    assert!(script.runs(job).is_none());
    assert!(!script.ended.contains_key(&job));
    script.turn(2, |node, now| node.add_peer(now, WorkerId(0)));
    script.deliver();
    let came = script.runs(job).expect("it runs").shares[0];
    let fork = came.fork.expect("it is a user");
    assert!(script.nodes[0].references.is_confirmed(fork));
}

#[test]
fn a_share_of_a_value_of_one_that_never_comes_is_refused() {
    let (mut script, share) = strangers();
    let job = script.call(1, 0, &[share]);
    script.deliver();
    script.live(limits().retry_max * 2);
    let ended = script.ended.get(&job);
    assert!(
        matches!(ended, Some(Ending::Answered(Outcome::Fault(fault))) if fault.kind == FaultKind::Reference),
        "{ended:?}"
    );
    assert!(script.nodes[0].references.is_at_rest());
}

#[test]
fn a_call_to_a_worker_that_never_came_ends_when_it_is_lost() {
    let mut script = Script::new(2);
    let (now, stranger) = (script.now, WorkerId(9));
    script.nodes[0].add_peer(now, stranger);
    let job = script.call(0, 9, &[]);
    assert!(!script.ended.contains_key(&job));
    script.cut(0, 9);
    assert!(matches!(script.ended[&job], Ending::Lost(_)));
    // It is greeted on, and is called when it comes.
    script.mail.clear();
    script.pass(limits().greeting * 2);
    assert!(script.count("hello", 0, 9) > 0);
    let hello = script.nodes[1].group.hello.clone();
    let message = Message {
        from_life: 100,
        to_life: script.nodes[0].life,
        body: Body::Hello(hello),
    };
    let now = script.now;
    script.nodes[0].handle_message(now, stranger, message);
    let next = script.call(0, 9, &[]);
    assert_eq!(script.count("call", 0, 9), 1);
    assert!(!script.ended.contains_key(&next));
}

#[test]
fn a_call_to_a_guest_that_never_comes_ends_with_its_seat() {
    let mut script = Script::new(2);
    let (now, guest) = (script.now, WorkerId(9));
    script.nodes[0].admit(now, guest);
    let job = script.call(0, 9, &[]);
    script.cut(0, 9);
    assert!(matches!(script.ended[&job], Ending::Lost(_)));
    assert!(script.nodes[0].guests().next().is_none());
}

/// Worker 2 of a dynamic group has started again: nothing that it sends has come yet.
fn joiner() -> Script {
    let mut script = Script::of(3, true);
    script.restart(2, 9);
    script
}

#[test]
fn a_worker_that_leaves_before_all_have_met_is_not_waited_for() {
    let mut script = joiner();
    let between = |mail: &Mail| mail.from != 0 && mail.to != 0;
    script.deliver_if(between);
    assert!(script.nodes[2].is_up(WorkerId(1)));
    script.turn(1, |node, now| node.leave_now(now));
    script.deliver_if(between);
    assert!(matches!(script.nodes[2].phase, Phase::Joining));
    script.deliver();
    assert!(matches!(script.nodes[2].phase, Phase::Running));
}

#[test]
fn a_worker_that_is_removed_before_it_is_heard_is_neither_waited_for_nor_greeted() {
    let (mut script, gone) = (joiner(), WorkerId(1));
    let job = script.call(2, 1, &[]);
    script.lose_if(|mail| mail.to == 1);
    script.deliver();
    assert!(matches!(script.nodes[2].phase, Phase::Joining));
    script.turn(2, |node, now| node.remove_peer(now, gone));
    assert!(matches!(script.nodes[2].phase, Phase::Running));
    assert!(matches!(script.ended[&job], Ending::Lost(_)));
    let before = script.count("hello", 2, 1);
    script.pass(limits().greeting * 2);
    assert_eq!(script.count("hello", 2, 1), before);
    // It comes again.
    script.turn(2, |node, now| node.add_peer(now, gone));
    script.deliver();
    assert!(script.nodes[2].is_up(gone));
}

#[test]
fn a_worker_that_cannot_be_reached_keeps_none_from_joining_a_dynamic_group() {
    let mut script = joiner();
    script.lose_if(|mail| mail.to == 1);
    script.deliver();
    assert!(matches!(script.nodes[2].phase, Phase::Joining));
    script.cut(2, 1);
    assert!(matches!(script.nodes[2].phase, Phase::Running));
    // It is greeted on, and is there when it comes.
    script.live(limits().greeting * 2);
    assert!(script.nodes[2].is_up(WorkerId(1)));
}

#[test]
fn a_worker_that_only_a_reference_names_is_not_waited_for() {
    let mut script = Script::of(4, true);
    let share = script.value(1, 3);
    script.restart(2, 9);
    // As it meets a group that worker 3 has left, or has not joined yet.
    script.nodes[2].peers.remove(&WorkerId(3));
    script.nodes[3].peers.remove(&WorkerId(2));
    let between = |mail: &Mail| mail.from != 0 && mail.to != 0 && mail.from != 3 && mail.to != 3;
    script.deliver_if(between);
    let job = script.call(1, 2, &[share]);
    script.deliver_if(between);
    assert!(script.nodes[2].peers.contains_key(&WorkerId(3)));
    assert!(matches!(script.nodes[2].phase, Phase::Joining));
    assert_eq!(script.nodes[2].awaited().collect::<Vec<_>>(), [WorkerId(0)]);
    script.lose_if(|mail| mail.from == 3 || mail.to == 3);
    script.deliver();
    assert!(matches!(script.nodes[2].phase, Phase::Running));
    // What needs it waits, and ends when it does not come.
    assert!(script.runs(job).is_none() && !script.ended.contains_key(&job));
    script.live(limits().retry_max * 2);
    assert!(script.ended.contains_key(&job));
}

/// Its creator is on its way as well: that it has not been heard does not mean that it is gone.
#[test]
fn a_value_that_is_used_before_its_creator_is_met_is_made() {
    let mut script = Script::of(3, true);
    let now = script.now;
    script.nodes[2].peers.remove(&WorkerId(0));
    script.nodes[2].add_peer(now, WorkerId(0));
    assert!(script.nodes[0].is_up(WorkerId(2)) && !script.nodes[2].is_up(WorkerId(0)));
    let share = script.create(0, 2);
    let job = script.call(0, 1, &[share]);
    script.deliver_if(|mail| (mail.from, mail.to) != (0, 2));
    assert_eq!(
        script.count("fork", 1, 2),
        1,
        "its user asks before its creator"
    );
    let fetch = script.fetch(0, share, None);
    script.deliver();
    script.finish_all();
    script.deliver();
    script.finish_all();
    script.deliver();
    assert!(script.is_answered(job), "{:?}", script.ended.get(&job));
    assert!(script.is_answered(fetch), "{:?}", script.ended.get(&fetch));
}

#[test]
fn what_a_guest_has_left_behind_answers_no_later_guest() {
    let (mut script, guest) = (Script::new(2), WorkerId(9));
    for life in [21, 22] {
        let now = script.now;
        script.nodes[0].admit(now, guest);
        let hello = script.nodes[1].group.hello.clone();
        script.hear(0, (guest, life), Body::Hello(hello));
        let call = plain_call(1, u64::from(life));
        script.hear(0, (guest, life), Body::Call(call));
        if life == 21 {
            script.hear(0, (guest, life), Body::Leave);
            assert!(script.nodes[0].guests().next().is_none());
        }
    }
    // The first still runs.
    let [first, second] = [21, 22].map(|job| script.runs(job).expect("it runs").clone());
    script.finish_served(&first, &[]);
    assert_eq!(script.count("reply", 0, 9), 0);
    script.finish_served(&second, &[]);
    assert_eq!(script.count("reply", 0, 9), 1);
    // A late word of the first brings it not back.
    script.hear(0, (guest, 22), Body::Leave);
    let hello = script.nodes[1].group.hello.clone();
    script.hear(0, (guest, 21), Body::Hello(hello));
    assert!(!script.nodes[0].is_up(guest));
}
