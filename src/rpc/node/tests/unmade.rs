//! Values that are asked for and never made: each who waits for one hears so, without a deadline.

use super::script::{Held, Script};
use super::*;
use crate::message::FaultKind;

fn is_refused(script: &Script, job: u64) -> bool {
    matches!(
        script.ended.get(&job),
        Some(Ending::Answered(Outcome::Fault(fault))) if fault.kind == FaultKind::Reference
    )
}

/// Worker 0 asks 1 for a value, which is lost, and gives 2 a share; 2 asks for the value when it has the share.
fn creation_is_lost(meanwhile: impl Fn(&mut Script)) -> (Script, u64) {
    let mut script = Script::new(3);
    script.live(limits().greeting * 2);
    let share = script.create(0, 1);
    assert_eq!(script.lose_if(|mail| mail.is("create", 0, 1)), 1);
    let given = script.call(0, 2, &[share]);
    script.deliver_if(|mail| mail.is("call", 0, 2));
    meanwhile(&mut script);
    script.deliver();
    let came = script.runs(given).expect("its share is confirmed").shares[0];
    let fetch = script.fetch(2, came, None);
    script.deliver();
    (script, fetch)
}

#[test]
fn who_waits_for_a_value_whose_creation_was_given_up_hears_so() {
    let mut script = Script::new(2);
    let share = script.create(0, 1);
    let creation = *script.nodes[0].outgoing().next().expect("it is out").token;
    let fetch = script.fetch(0, share, None);
    assert_eq!(script.lose_if(|mail| mail.is("create", 0, 1)), 1);
    script.deliver();
    assert!(!script.ended.contains_key(&fetch));
    script.turn(0, |node, now| {
        node.cancel(now, WorkerId(1), |job| *job == creation)
    });
    script.deliver();
    assert!(is_refused(&script, fetch), "{:?}", script.ended.get(&fetch));
}

#[test]
fn who_waits_for_a_value_is_not_forgotten_with_a_share_of_it_that_came_early() {
    let mut script = Script::new(2);
    let share = script.create(0, 1);
    let fetch = script.fetch(0, share, None);
    let given = script.call(0, 1, &[share]);
    // The creation is late. A share of it comes, and is dropped.
    script.deliver_one(|mail| mail.is("fetch", 0, 1));
    script.deliver_one(|mail| mail.is("call", 0, 1));
    let came = script.runs(given).expect("it runs").shares[0];
    script.drop_share(1, came);
    script.deliver();
    script.finish_all();
    script.deliver();
    let ended = script.ended.get(&fetch);
    assert!(
        matches!(ended, Some(Ending::Answered(Outcome::Value { .. }))),
        "{ended:?}"
    );
}

#[test]
fn who_waits_for_a_value_hears_that_its_creator_is_gone() {
    let (mut script, fetch) = creation_is_lost(|_| {});
    assert!(!script.ended.contains_key(&fetch));
    script.cut(1, 0);
    script.deliver();
    assert!(is_refused(&script, fetch), "{:?}", script.ended.get(&fetch));
}

#[test]
fn a_share_that_comes_after_its_creator_is_gone_promises_no_value() {
    let (script, fetch) = creation_is_lost(|script| script.cut(1, 0));
    assert!(is_refused(&script, fetch), "{:?}", script.ended.get(&fetch));
}

#[test]
fn a_creator_that_lost_the_owner_says_that_it_will_not_ask_when_it_finds_it_again() {
    let (mut script, fetch) = creation_is_lost(|_| {});
    script.cut(0, 1);
    assert!(!script.ended.contains_key(&fetch));
    script.live(limits().greeting * 2);
    assert!(is_refused(&script, fetch), "{:?}", script.ended.get(&fetch));
}

/// A program may try it as often as it likes: nothing is kept of it until the owner is there.
#[test]
fn an_owner_hears_nothing_of_creations_that_were_refused_while_it_was_lost() {
    let mut script = Script::new(2);
    script.cut(0, 1);
    for _ in 0..10 {
        let share = script.create(0, 1);
        script.drop_share(0, share);
    }
    assert_eq!(script.nodes[0].present_life(WorkerId(1)), 0);
    script.live(limits().greeting * 2);
    assert_ne!(script.nodes[0].present_life(WorkerId(1)), 0);
    assert_eq!(script.count("delete", 0, 1), 0);
}

#[test]
fn an_owner_waits_for_no_value_that_a_former_life_of_it_had() {
    let mut script = Script::new(2);
    let (rref, owner) = (script.fresh(0), 1);
    let former = Held {
        rref,
        owner,
        fork: None,
    };
    let fetch = script.fetch(1, former, None);
    script.deliver();
    assert!(is_refused(&script, fetch), "{:?}", script.ended.get(&fetch));
}

/// Worker 1 dies with all that it had, comes again in another life, and meets the others. `held_back` is not delivered.
fn owner_comes_again(script: &mut Script, held_back: impl Fn(&super::script::Mail) -> bool) {
    script.lose(1);
    script.restart(1, 9);
    for _ in 0..20 {
        script.pass(limits().greeting / 2);
        script.deliver_if(|mail| !held_back(mail));
    }
    let meets = |at: usize| script.nodes[at].present_life(WorkerId(1)) == 9;
    assert!(meets(0) && (script.nodes.len() < 3 || meets(2)));
}

#[test]
fn the_next_life_of_an_owner_refuses_a_share_of_what_a_former_one_was_to_make() {
    let mut script = Script::new(3);
    let share = script.create(0, 1);
    let given = script.call(0, 2, &[share]);
    let is_carrier = |mail: &super::script::Mail| mail.is("call", 0, 2);
    // The value is made, and its creator has no more to say of it.
    script.deliver_if(|mail| !is_carrier(mail));
    script.finish_all();
    script.deliver_if(|mail| !is_carrier(mail));
    owner_comes_again(&mut script, is_carrier);
    assert_eq!(script.count("fork", 2, 1), 0);
    script.deliver();
    assert_eq!(script.count("fork", 2, 1), 1, "it asks the next life");
    assert!(is_refused(&script, given), "{:?}", script.ended.get(&given));
    assert_eq!(script.nodes[1].reference_counts().owners, 0);
}

#[test]
fn an_owner_that_hands_on_what_a_former_life_had_says_that_it_is_gone() {
    let mut script = Script::new(2);
    let share = script.value(0, 1);
    owner_comes_again(&mut script, |_| false);
    let asked = script.call(1, 0, &[]);
    script.deliver();
    script.finish(asked, &[share]);
    script.deliver();
    assert!(script.is_answered(asked));
    // It has the name of a value now, and no value.
    let named = Held {
        fork: None,
        ..share
    };
    let given = script.call(1, 0, &[named]);
    script.deliver();
    assert!(is_refused(&script, given), "{:?}", script.ended.get(&given));
}
