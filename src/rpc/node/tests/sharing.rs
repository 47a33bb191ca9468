//! References as they are handed on: who tells whom, in which order, and what a message that comes late may do.

use super::script::{Held, Script, plain_call};
use super::*;
use crate::id::GlobalId;
use crate::message::{Call, FaultKind};
use crate::references::Counts;

fn is_value(script: &Script, job: u64) -> bool {
    matches!(
        script.ended.get(&job),
        Some(Ending::Answered(Outcome::Value { .. }))
    )
}

/// Ends `job` and drops what came with it; then nothing of any reference may be left but what `kept` holds.
fn end_and_drop(script: &mut Script, job: u64) {
    let shares = script.runs(job).expect("it runs").shares.clone();
    let at = script.runs(job).expect("it runs").at;
    script.finish(job, &[]);
    shares
        .iter()
        .for_each(|share| script.drop_share(at, *share));
    script.deliver();
}

fn check_nothing_left(script: &mut Script) {
    script.live(Duration::from_millis(300));
    for (at, node) in script.nodes.iter().enumerate() {
        assert_eq!(node.reference_counts(), Counts::default(), "worker {at}");
    }
}

/// The owner's own share, of which it makes a reference.
fn own_value(script: &mut Script, at: usize) -> Held {
    let rref = script.fresh(at);
    script.nodes[at].create_owned(rref, true);
    Held {
        rref,
        owner: at,
        fork: None,
    }
}

#[test]
fn an_owner_gives_a_share_without_a_control_message() {
    let mut script = Script::new(2);
    let value = own_value(&mut script, 0);
    let job = script.call(0, 1, &[value]);
    // Known to the owner before it is sent.
    assert_eq!(script.nodes[0].reference_counts().forks, 1);
    script.deliver();
    assert!(script.runs(job).is_some(), "it is confirmed at once");
    assert_eq!(script.said, [(0, 1, "call")]);
    script.drop_share(0, value);
    assert!(script.released.is_empty(), "the user has its share");
    end_and_drop(&mut script, job);
    assert_eq!(script.count("delete", 1, 0), 1);
    assert_eq!(script.released, [(0, value.rref)]);
    check_nothing_left(&mut script);
}

#[test]
fn an_owner_that_calls_itself_with_its_reference_makes_no_fork() {
    let mut script = Script::new(1);
    let value = own_value(&mut script, 0);
    let job = script.call(0, 0, &[value]);
    script.drop_share(0, value);
    assert!(script.released.is_empty(), "the call carries it");
    script.deliver();
    assert_eq!(script.nodes[0].reference_counts().forks, 0);
    let came = script.runs(job).expect("it runs").shares.clone();
    assert_eq!(came[0].fork, None);
    end_and_drop(&mut script, job);
    assert_eq!(script.released, [(0, value.rref)]);
    check_nothing_left(&mut script);
}

#[test]
fn a_user_gives_the_owner_its_share_and_no_fork_is_made() {
    let mut script = Script::new(2);
    let share = script.value(0, 1);
    let job = script.call(0, 1, &[share]);
    // Its deletion must not overtake the call: the share stays until the call is answered.
    script.drop_share(0, share);
    assert_eq!(script.count("delete", 0, 1), 0);
    script.deliver();
    assert_eq!(script.nodes[1].reference_counts().forks, 1, "the caller's");
    assert_eq!(script.runs(job).expect("it runs").shares[0].fork, None);
    end_and_drop(&mut script, job);
    assert_eq!(script.count("delete", 0, 1), 1);
    assert_eq!(script.released, [(1, share.rref)]);
    check_nothing_left(&mut script);
}

#[test]
fn a_user_gives_a_user_a_share_and_both_ask_the_owner_in_order() {
    let mut script = Script::new(3);
    let share = script.value(1, 0);
    let job = script.call(1, 2, &[share]);
    script.drop_share(1, share);
    script.deliver_if(|mail| mail.is("call", 1, 2));
    assert_eq!(script.nodes[2].reference_counts().pending_users, 1);
    assert!(script.runs(job).is_none(), "not before the owner has heard");
    script.deliver_if(|mail| mail.is("fork", 2, 0));
    assert!(
        script.runs(job).is_none(),
        "not before the owner has answered"
    );
    script.deliver_if(|mail| mail.is("ack", 0, 2));
    assert!(script.runs(job).is_some());
    assert_eq!(
        script.count("delete", 1, 0),
        0,
        "the parent stays meanwhile"
    );
    end_and_drop(&mut script, job);
    assert_eq!(script.count("delete", 1, 0), 1);
    assert_eq!(script.count("delete", 2, 0), 1);
    check_nothing_left(&mut script);
}

#[test]
fn a_reference_goes_through_a_chain_of_users_each_of_whom_lets_it_go_at_once() {
    let mut script = Script::new(6);
    let first = script.value(1, 0);
    let (mut at, mut share, mut jobs) = (1, first, Vec::new());
    for to in 2..6 {
        let job = script.call(at, to, &[share]);
        script.drop_share(at, share);
        script.deliver();
        (at, share) = (to, script.runs(job).expect("it runs").shares[0]);
        jobs.push(job);
    }
    assert!(script.released.is_empty());
    let fetch = script.fetch(5, share, None);
    script.deliver();
    assert!(is_value(&script, fetch));
    // Nested calls end from the inside.
    for job in jobs.iter().rev() {
        script.finish(*job, &[]);
        script.deliver();
    }
    script.drop_share(5, share);
    script.deliver();
    assert_eq!(script.released, [(0, first.rref)]);
    check_nothing_left(&mut script);
}

#[test]
fn a_share_comes_back_to_who_gave_it_as_a_share_of_its_own() {
    // User to user and back: the first user has two shares then, and drops them one by one.
    let mut script = Script::new(3);
    let share = script.value(1, 0);
    let out = script.call(1, 2, &[share]);
    script.deliver();
    let theirs = script.runs(out).expect("it runs").shares[0];
    let back = script.call(2, 1, &[theirs]);
    script.deliver();
    let mine_too = script.runs(back).expect("it runs").shares[0];
    assert_ne!(mine_too.fork, share.fork);
    script.finish(back, &[]);
    script.finish(out, &[]);
    script.drop_share(1, share);
    script.drop_share(2, theirs);
    script.deliver();
    assert!(script.released.is_empty());
    script.drop_share(1, mine_too);
    script.deliver();
    assert_eq!(script.released, [(0, share.rref)]);
    check_nothing_left(&mut script);
}

#[test]
fn a_user_calls_itself_with_its_share() {
    let mut script = Script::new(2);
    let share = script.value(0, 1);
    let job = script.call(0, 0, &[share]);
    script.drop_share(0, share);
    script.deliver();
    let came = script.runs(job).expect("it runs").shares[0];
    assert_ne!(came.fork, share.fork);
    assert!(script.released.is_empty());
    end_and_drop(&mut script, job);
    assert_eq!(script.released, [(1, share.rref)]);
    check_nothing_left(&mut script);
}

#[test]
fn a_share_dropped_before_its_fork_is_confirmed_is_deleted_after_that() {
    let mut script = Script::new(3);
    let share = script.value(1, 0);
    script.call(1, 2, &[share]);
    script.deliver_if(|mail| mail.is("call", 1, 2));
    // The caller gives up: the call is refused, and what came with it is abandoned, pending as it is.
    script.turn(1, |node, now| {
        node.cancel(now, WorkerId(2), |job| *job == 2)
    });
    script.deliver_if(|mail| mail.is("cancel", 1, 2));
    assert_eq!(script.count("delete", 2, 0), 0, "its fork is not confirmed");
    script.deliver();
    assert_eq!(script.count("delete", 2, 0), 1);
    assert_eq!(script.nodes[0].reference_counts().forks, 1);
    script.drop_share(1, share);
    check_nothing_left(&mut script);
    assert_eq!(script.released, [(0, share.rref)]);
}

#[test]
fn the_creation_of_a_value_is_confirmed_by_its_answer() {
    let mut script = Script::new(2);
    let share = script.create(0, 1);
    assert_eq!(script.nodes[0].reference_counts().pending_users, 1);
    script.deliver();
    let counts = script.nodes[1].reference_counts();
    assert_eq!(
        (counts.owners, counts.pending_futures, counts.forks),
        (1, 1, 1)
    );
    // Dropped while it is made: the owner is told when it has answered, and not before.
    script.drop_share(0, share);
    assert_eq!(script.count("delete", 0, 1), 0);
    script.finish_all();
    script.deliver();
    assert_eq!(script.count("delete", 0, 1), 1);
    assert_eq!(script.released, [(1, share.rref)]);
    check_nothing_left(&mut script);
}

#[test]
fn a_creation_by_oneself_sends_no_message() {
    let mut script = Script::new(2);
    let own = script.create(0, 0);
    script.deliver();
    script.finish_all();
    let fetch = script.fetch(0, own, None);
    script.deliver();
    assert!(is_value(&script, fetch));
    assert!(script.said.is_empty(), "{:?}", script.said);
    script.drop_share(0, own);
    script.deliver();
    assert_eq!(script.released, [(0, own.rref)]);
}

#[test]
fn the_time_of_a_fetch_is_its_own_and_the_value_can_be_asked_for_again() {
    let mut script = Script::new(2);
    let share = script.create(0, 1);
    let first = script.fetch(0, share, Some(Duration::from_millis(3)));
    script.live(Duration::from_millis(5));
    assert_eq!(script.ended[&first], Ending::Timeout);
    let again = script.fetch(0, share, Some(Duration::from_millis(50)));
    script.deliver();
    script.finish_all();
    script.deliver();
    assert!(is_value(&script, again));
}

#[test]
fn a_call_whose_answer_brings_an_unconfirmed_share_ends_at_its_deadline() {
    // Worker 1 answers 0 with a share of 2's value, and 2 is silent.
    let mut script = Script::new(3);
    let share = script.value(1, 2);
    let patience = Some(Duration::from_millis(20));
    let function = plain();
    let job = script.call_within(0, 1, function.clone(), patience, &[]);
    script.deliver();
    script.finish(job, &[share]);
    script.deliver_if(|mail| mail.is("reply", 1, 0));
    assert!(!script.ended.contains_key(&job));
    script.lose_if(|mail| mail.to == 2);
    script.pass(Duration::from_millis(19));
    assert!(!script.ended.contains_key(&job));
    script.pass(Duration::from_millis(1));
    assert_eq!(script.ended[&job], Ending::Timeout);
    assert_eq!(script.count("took", 0, 1), 0, "the parent stays meanwhile");
    // So does a cancel end it.
    let cancelled = script.call_within(0, 1, function, None, &[]);
    script.deliver_if(|mail| mail.is("call", 0, 1));
    script.finish(cancelled, &[share]);
    script.deliver_if(|mail| mail.is("reply", 1, 0));
    script.turn(0, |node, now| {
        node.cancel(now, WorkerId(1), |job| *job == cancelled)
    });
    assert_eq!(script.ended[&cancelled], Ending::Cancelled);
    // The owner speaks again: nothing is left.
    script.live(Duration::from_millis(300));
    assert_eq!(script.count("took", 0, 1), 2);
    script.drop_share(1, share);
    check_nothing_left(&mut script);
    assert_eq!(script.released, [(2, share.rref)]);
}

#[test]
fn an_answer_that_brings_an_unconfirmed_share_has_a_place_until_that_is_confirmed() {
    // Worker 1 answers 0 with shares of 2's value, and 2 is silent.
    let mut script = Script::new(3);
    let share = script.value(1, 2);
    let window = limits().window;
    let patience = Some(Duration::from_millis(20));
    for _ in 0..window {
        let job = script.call_within(0, 1, plain(), patience, &[]);
        script.deliver_if(|mail| mail.is("call", 0, 1));
        script.finish(job, &[share]);
        script.deliver_if(|mail| mail.is("reply", 1, 0));
    }
    // The calls end, and their answers wait on.
    script.lose_if(|mail| mail.to == 2);
    script.pass(Duration::from_millis(20));
    assert_eq!(script.ended.len(), window + 1);
    let job = script.call(0, 1, &[]);
    assert_eq!(script.count("call", 0, 1), window);
    script.live(Duration::from_millis(300));
    assert_eq!(script.count("call", 0, 1), window + 1);
    script.finish(job, &[]);
    script.deliver();
    assert!(script.is_answered(job));
    script.drop_share(1, share);
    check_nothing_left(&mut script);
}

#[test]
fn a_worker_dies_whose_answer_waits_for_a_share() {
    let mut script = Script::new(3);
    let share = script.value(1, 2);
    let job = script.call(0, 1, &[]);
    script.deliver();
    script.finish(job, &[share]);
    script.deliver_if(|mail| mail.is("reply", 1, 0));
    script.lose_if(|mail| mail.from == 1 || mail.to == 1);
    script.lose(1);
    assert!(matches!(script.ended[&job], Ending::Lost(_)));
    script.deliver();
    for at in [0, 2] {
        assert_eq!(script.nodes[at].reference_counts(), Counts::default());
    }
}

#[test]
fn an_owner_that_dies_ends_what_waits_for_it_and_a_user_that_dies_its_shares() {
    let mut script = Script::new(4);
    let share = script.value(1, 0);
    let job = script.call(1, 2, &[share]);
    script.deliver_if(|mail| mail.is("call", 1, 2));
    let fetch = script.fetch(1, share, None);
    // The owner dies while worker 2 waits to be confirmed.
    script.mail.retain(|mail| mail.from != 0 && mail.to != 0);
    script.lose(0);
    assert!(matches!(script.ended[&fetch], Ending::Lost(_)));
    script.deliver();
    let fault = |job| match &script.ended[&job] {
        Ending::Answered(Outcome::Fault(fault)) => fault.kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(fault(job), FaultKind::Reference);
    // Of another owner: its user dies.
    let theirs = script.value(3, 2);
    script.lose(3);
    assert_eq!(script.released, [(2, theirs.rref)]);
}

// Peers that break the rules harm themselves.

fn tell(script: &mut Script, from: usize, to: usize, body: Body<u64>) {
    script.hear(to, (WorkerId(from as u16), from as u32 + 1), body);
}

fn creation(id: u64, rref: RRefId, fork: RRefId) -> Body<u64> {
    Body::Call(Call {
        target: Target::Remote {
            function: "make".into(),
            rref,
            fork,
        },
        ..plain_call(id, 77)
    })
}

#[test]
fn no_worker_makes_a_value_under_the_identity_of_another() {
    let mut script = Script::new(3);
    let own = own_value(&mut script, 1);
    let share = script.value(0, 1);
    let fork = GlobalId {
        on: WorkerId(2),
        local: 9,
    };
    for (id, rref) in [(50, own.rref), (51, share.rref)] {
        tell(&mut script, 2, 1, creation(id, rref, fork));
        assert!(script.serving.is_empty(), "it replaces no value");
    }
    // Nor twice under one of its own.
    let mine = GlobalId {
        on: WorkerId(2),
        local: 1 << 40,
    };
    tell(&mut script, 2, 1, creation(52, mine, fork));
    assert_eq!(script.serving.len(), 1);
    tell(&mut script, 2, 1, creation(53, mine, fork));
    assert_eq!(script.serving.len(), 1);
}

#[test]
fn the_end_of_a_share_that_a_stranger_tells_beforehand_is_no_end() {
    let mut script = Script::new(3);
    let share = script.create(0, 1);
    let fork = share.fork.expect("a user's");
    let end = Body::Control {
        id: CallId(50),
        settled: CallId(50),
        control: Control::Delete {
            rref: share.rref,
            fork,
        },
    };
    tell(&mut script, 2, 1, end);
    script.deliver();
    script.finish_all();
    let fetch = script.fetch(0, share, None);
    script.deliver();
    assert!(is_value(&script, fetch));
}

#[test]
fn no_worker_takes_or_ends_the_share_of_another() {
    let mut script = Script::new(3);
    let share = script.value(0, 1);
    let fork = share.fork.expect("a user's");
    let control = |id, control| Body::Control {
        id: CallId(id),
        settled: CallId(id),
        control,
    };
    let (rref, early) = (share.rref, None);
    let claim = Control::Fork { rref, fork, early };
    tell(&mut script, 2, 1, control(50, claim));
    let end = Control::Delete { rref, fork };
    tell(&mut script, 2, 1, control(51, end));
    assert!(script.released.is_empty());
    script.lose(2);
    assert!(script.released.is_empty(), "it is worker 0's still");
    let fetch = script.fetch(0, share, None);
    script.deliver();
    assert!(is_value(&script, fetch));
    script.drop_share(0, share);
    script.deliver();
    assert_eq!(script.released, [(1, share.rref)]);
}

#[test]
fn who_asks_for_a_value_that_was_let_go_is_told_so() {
    let mut script = Script::new(2);
    let share = script.value(1, 0);
    script.drop_share(1, share);
    script.deliver();
    assert_eq!(script.released, [(0, share.rref)]);
    let fetch = script.fetch(1, share, None);
    script.deliver();
    let ended = &script.ended[&fetch];
    assert!(
        matches!(ended, Ending::Answered(Outcome::Fault(fault)) if fault.kind == FaultKind::Reference),
        "{ended:?}"
    );
}
