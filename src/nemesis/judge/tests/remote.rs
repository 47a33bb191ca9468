//! The judge of remote calls, of references and of trainings, against histories in which one thing is wrong.

use super::super::super::history::remote::number;
use super::super::super::lesson;
use super::*;

/// The call that things go wrong with: it begins, is carried out, and ends one millisecond after the other.
const NTH: u64 = 110;
const CALL_MS: u64 = 1_501 + NTH * 1_000;
/// When a value is made, used, let go, and freed.
const MADE_MS: u64 = 50_000;
/// A trainer's step that things go wrong with, and when it is done.
const STEP: u64 = 100;
const STEP_MS: u64 = 2_300 + STEP * 1_000;

fn id(me: u64, nth: u64) -> u64 {
    number((me as u32, 0), nth)
}

fn value(me: u64) -> u64 {
    id(me, 1 << 20)
}

fn words(weights: &[f32]) -> String {
    let words: Vec<String> = weights
        .iter()
        .map(|weight| format!("{:x}", weight.to_bits()))
        .collect();
    words.join(" ")
}

/// What a worker of two writes that lives long: a call and a step of its training each second, and a value once.
pub(super) fn lines(me: u64) -> Vec<String> {
    let other = 1 - me;
    let mut lines = vec![line(1_400, "joined")];
    for nth in 0..198 {
        let at = 1_501 + nth * 1_000;
        let (own, its) = (id(me, nth), id(other, nth));
        lines.push(line(
            at,
            &format!("call {own:x} {other} echo {} 0", 2_000 * MS),
        ));
        lines.push(line(at + 1, &format!("ran {its:x}")));
        lines.push(line(at + 2, &format!("told {own:x} right")));
    }
    lines.push(line(MADE_MS, &format!("made {:x}", value(other))));
    lines.push(line(
        MADE_MS + 100,
        &format!("holds {:x} {other}", value(me)),
    ));
    lines.push(line(MADE_MS + 800, &format!("lets {:x}", value(me))));
    lines.push(line(MADE_MS + 900, &format!("freed {:x}", value(other))));
    lines.extend(training(other, 1_600));
    lines.push(line(199_990, "rest 0 0 0"));
    lines.push(line(199_995, "parted right"));
    lines
}

/// A model at a task, trained from then on: a step each second.
fn training(at: u64, from_ms: u64) -> Vec<String> {
    let mut weights = lesson::ignorance().to_vec();
    let mut lines = vec![line(from_ms, &format!("model 1 {at} {}", words(&weights)))];
    let times = (from_ms + 700..199_500).step_by(1_000);
    for (step, at_ms) in (0..).zip(times) {
        let (loss, after) = lesson::step(&weights, step);
        weights = after;
        let loss = loss.to_bits();
        let learnt = format!("learnt 1 {step} {loss:x} {}", words(&weights));
        lines.push(line(at_ms, &learnt));
    }
    lines
}

/// What task 0 writes in a life that begins then, and task 1 beside it.
pub(super) fn next_life(run: &mut Run, began_ms: u64) -> Vec<String> {
    let mut lines = vec![line(began_ms + 100, "joined")];
    for (nth, at) in (0..).zip((began_ms + 200..199_500).step_by(1_000)) {
        let id = number((0, 1), nth);
        lines.push(line(at, &format!("call {id:x} 1 echo {} 0", 2_000 * MS)));
        run.insert(1, line(at + 1, &format!("ran {id:x}")));
        lines.push(line(at + 2, &format!("told {id:x} right")));
    }
    lines.extend(training(1, began_ms + 300));
    lines.push(line(199_990, "rest 0 0 0"));
    lines.push(line(199_995, "parted right"));
    lines
}

/// A line about the call of task 1.
fn call(after_ms: u64, what: &str, rest: &str) -> String {
    line(
        CALL_MS + after_ms,
        &format!("{what} {:x}{rest}", id(1, NTH)),
    )
}

fn told() -> String {
    format!("told {:x}", id(1, NTH))
}

/// Task 1's call ended so.
fn ended(after_ms: u64, answer: &str) -> Run {
    Run::with(&told(), &call(after_ms, "told", &format!(" {answer}")))
}

/// Something was broken for task 0 around the call.
fn broken(run: Run, what: &str, until_ms: u64) -> Run {
    run.and(&[
        (CALL_MS + 1, &format!("fault {what} 0")),
        (CALL_MS + until_ms, &format!("healed {what} 0")),
    ])
}

fn finds_some(run: &Run, what: &str) {
    let findings = run.findings();
    let is_found = findings.iter().any(|found| found.contains(what));
    assert!(is_found, "{findings:#?}");
}

#[test]
fn a_call_that_is_carried_out_twice_is_found() {
    let mut run = Run::good();
    run.insert(0, call(3, "ran", ""));
    run.finds("carried out 2 times");
    let mut run = Run::good();
    run.insert(0, line(CALL_MS, &format!("ran {:x}", id(1, 1 << 30))));
    run.finds("no task made it");
}

#[test]
fn a_call_that_is_carried_out_elsewhere_or_not_at_all_is_found() {
    let mut run = Run::good();
    let ran = format!("ran {:x}", id(1, NTH));
    let at = run.histories[0]
        .iter()
        .position(|line| line.ends_with(&ran));
    let ran = run.histories[0].remove(at.expect("it is there"));
    run.finds("answered, and not carried out");
    run.insert(1, ran);
    finds_some(&run, "carried out at task 1");
}

#[test]
fn the_answer_of_another_call_is_found() {
    ended(2, "wrong").finds("its answer is of another call");
    // Whatever is broken.
    broken(ended(2, "wrong"), "cut", 10).finds("its answer is of another call");
}

#[test]
fn a_call_that_fails_needs_a_cause_and_a_reason() {
    for reason in ["PEER_LOST", "RPC_REMOTE_ERROR", "RPC_CANCELLED"] {
        let run = ended(2, reason);
        run.finds("without a cause");
        broken(run, "cut", 10).finds_nothing();
    }
    for reason in ["RPC_REMOTE_PANIC", "RPC_MESSAGE", "RPC_ARGUMENTS"] {
        broken(ended(2, reason), "cut", 10).finds("is no reason");
    }
}

#[test]
fn a_cancel_is_a_cause_and_so_is_a_time_that_is_too_short() {
    let mut run = ended(20, "RPC_CANCELLED");
    let cancelled = call(10, "cancel", "");
    let ends = call(20, "told", " RPC_CANCELLED");
    run.replace(&told(), &format!("{cancelled}\n{ends}"));
    run.finds_nothing();
    let ends = call(600, "told", " RPC_CANCELLED");
    run.replace(&told(), &ends);
    run.finds("too late");
    let timed_out = |patience_ms: u64, needs_ms: u64| {
        let mut run = ended(patience_ms, "RPC_TIMEOUT");
        let rest = format!(" 0 slow {} {}", patience_ms * MS, needs_ms * MS);
        run.replace(&format!("call {:x}", id(1, NTH)), &call(0, "call", &rest));
        run
    };
    timed_out(100, 0).finds_nothing();
    timed_out(1_500, 1_000).finds_nothing();
    timed_out(1_500, 10).finds("RPC_TIMEOUT without a cause");
}

#[test]
fn a_call_ends_by_its_deadline_and_not_before() {
    ended(2_499, "right").finds_nothing();
    ended(2_501, "right").finds("too late");
    // Not while its own task is stopped, or not let run.
    let stopped = ended(2_501, "right").and(&[
        (CALL_MS + 1_900, "fault stop 1"),
        (CALL_MS + 2_400, "healed stop 1"),
    ]);
    stopped.finds_nothing();
    ended(2_501, "right")
        .late(1, CALL_MS + 900, 50)
        .finds_nothing();
    let never = Run::with(&told(), "");
    assert!(
        never.histories[1]
            .iter()
            .all(|line| !line.contains(&told()))
    );
    never.finds("it never ended");
    broken(ended(1_900, "RPC_TIMEOUT"), "cut", 10).finds("gave up before its deadline");
}

#[test]
fn a_call_whose_callee_is_lost_is_told_in_time() {
    for what in ["cut", "deaf", "mute", "stop"] {
        broken(ended(1_500, "PEER_LOST"), what, 1_700).finds_nothing();
        broken(ended(1_502, "PEER_LOST"), what, 1_700).finds(&format!("not told of a {what}"));
        // What does not last need not be told.
        broken(ended(1_502, "PEER_LOST"), what, 1_400).finds_nothing();
    }
    // On one machine a process that is stopped is there.
    let mut near = broken(ended(1_900, "right"), "stop", 1_700);
    near.script[..2].clone_from_slice(&[line(500, "host 0 1"), line(500, "host 2")]);
    near.finds_nothing();
}

#[test]
fn a_panic_is_found() {
    let mut story = Run::good().story();
    story.read_log((0, 0), "thread 'shard' panicked at src/x.rs:1:2:\n");
    let findings = judge(&story, &BOUNDS).findings;
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert!(findings[0].contains("panicked at src/x.rs"));
}

#[test]
fn a_value_that_is_freed_under_a_share_is_found() {
    let freed = line(MADE_MS + 700, &format!("freed {:x}", value(0)));
    let run = Run::with("freed", &freed);
    run.finds("was freed at");
    // Its owner may have lost the user.
    let cut = [
        (MADE_MS + 300, "fault cut 0"),
        (MADE_MS + 400, "healed cut 0"),
    ];
    Run::with("freed", &freed).and(&cut).finds_nothing();
}

#[test]
fn a_value_that_is_kept_for_ever_is_found() {
    Run::with("freed", "").finds("after its last share");
    let freed = line(MADE_MS + 3_801, &format!("freed {:x}", value(0)));
    Run::with("freed", &freed).finds("after its last share");
    let freed = line(MADE_MS + 3_799, &format!("freed {:x}", value(0)));
    Run::with("freed", &freed).finds_nothing();
}

#[test]
fn what_is_left_at_the_end_is_found() {
    for left in ["rest 1 0 0", "rest 0 1 0", "rest 0 0 1"] {
        Run::with("rest 0 0 0", &line(199_990, left)).finds("left");
    }
    Run::with("rest 0 0 0", "").finds("did not say what is left");
    let late = line(199_995, "parted RPC_SHUTDOWN_DEADLINE");
    Run::with("parted", &late).finds("did not leave in good order");
}

#[test]
fn a_worker_that_does_not_join_or_has_no_answers_is_found() {
    let mut run = Run::good();
    run.histories[1].retain(|line| !line.ends_with("joined"));
    finds_some(&run, "did not join");
    let mut run = Run::good();
    for nth in NTH..NTH + 3 {
        for what in ["told", "call"] {
            let of_call = format!("{what} {:x} ", id(1, nth));
            run.histories[1].retain(|line| !line.contains(&of_call));
        }
        let ran = format!("ran {:x}", id(1, nth));
        run.histories[0].retain(|line| !line.ends_with(&ran));
    }
    run.finds("had no answer of 0");
}

/// The step, with these weights after it.
fn learnt(step: u64, weights: &[f32]) -> Run {
    let mut before = lesson::ignorance().to_vec();
    for at in 0..STEP {
        before = lesson::step(&before, at).1;
    }
    let loss = lesson::step(&before, STEP).0.to_bits();
    let text = format!("learnt 1 {step} {loss:x} {}", words(weights));
    Run::with(&format!("learnt 1 {STEP} "), &line(STEP_MS, &text))
}

/// The weights after that step, and after the one before.
fn weights() -> [Vec<f32>; 2] {
    let mut weights = [lesson::ignorance().to_vec(), vec![]];
    for at in 0..=STEP {
        let after = lesson::step(&weights[0], at).1;
        weights = [after, std::mem::take(&mut weights[0])];
    }
    weights
}

#[test]
fn a_step_that_is_not_done_once_is_found() {
    let [after, before] = weights();
    learnt(STEP, &after).finds_nothing();
    finds_some(
        &learnt(STEP, &before),
        &format!("step {STEP} was not done once"),
    );
    let twice = lesson::step(&after, STEP).1;
    finds_some(
        &learnt(STEP, &twice),
        &format!("step {STEP} was not done once"),
    );
    finds_some(&learnt(STEP - 1, &after), "was not done once");
}

#[test]
fn a_model_goes_on_where_the_last_one_ended_and_is_given_up_for_a_cause() {
    let [after, before] = weights();
    let next = |weights: &[f32], reason: &str| {
        let gave = line(STEP_MS + 100, &format!("gave 1 {reason}"));
        let model = line(STEP_MS + 200, &format!("model 2 0 {}", words(weights)));
        let mut run = Run::good();
        let step = format!("learnt 1 {STEP} ");
        let at = run.histories[1]
            .iter()
            .position(|line| line.contains(&step));
        let at = at.expect("it is there") + 1;
        run.histories[1].splice(at..at, [gave, model]);
        run
    };
    let cut = [
        (STEP_MS + 50, "fault cut 0"),
        (STEP_MS + 60, "healed cut 0"),
    ];
    next(&after, "PEER_LOST").finds("PEER_LOST of 0 without a cause");
    next(&after, "PEER_LOST").and(&cut).finds_nothing();
    next(&after, "AUTOGRAD_ROOT")
        .and(&cut)
        .finds("is no reason");
    next(&before, "PEER_LOST")
        .and(&cut)
        .finds("does not begin where");
}

#[test]
fn a_training_that_stands_still_is_found() {
    let mut run = Run::good();
    let cut = STEP_MS * MS;
    let is_before = |line: &String| {
        let (at_ns, rest) = line.split_once(' ').expect("a line");
        !rest.starts_with("learnt") || at_ns.parse::<u64>().expect("a time") < cut
    };
    run.histories[1].retain(is_before);
    run.finds("did no step for");
}
