//! Deadlines, repeats and bounds: what is sent how often, and what a number at its bound does.

use super::script::{Script, plain_call};
use super::*;
use crate::message::{Call, FaultKind};

#[test]
fn a_call_is_sent_once_and_a_control_message_until_it_is_acknowledged() {
    let mut script = Script::new(2);
    let share = script.value(0, 1);
    script.call(0, 1, &[]);
    script.drop_share(0, share);
    script.pass(Duration::from_secs(1));
    assert_eq!(script.count("call", 0, 1), 1);
    let repeats = script.count("delete", 0, 1);
    // After 20 ms, each time half as long again, at most 100 ms.
    assert!((10..=14).contains(&repeats), "{repeats}");
    script.deliver();
    assert!(!script.serving.is_empty());
    assert_eq!(script.serving.len(), 1, "one call, however often it came");
    script.pass(Duration::from_secs(1));
    assert_eq!(script.count("delete", 0, 1), repeats);
    assert_eq!(
        script.released.len(),
        1,
        "one effect, however often it came"
    );
}

#[test]
fn a_repeat_waits_half_as_long_again_up_to_a_bound() {
    let mut script = Script::new(2);
    let share = script.value(0, 1);
    script.drop_share(0, share);
    let (mut known, mut last, mut gaps) = (script.count("delete", 0, 1), 0, vec![]);
    for at in 1..1_000_u32 {
        script.pass(Duration::from_millis(1));
        let count = script.count("delete", 0, 1);
        if count > known {
            gaps.push(at - last);
            (known, last) = (count, at);
        }
    }
    let wanted = [20, 30, 45, 67, 100, 100, 100];
    let is_near = |(gap, wanted): (&u32, &u32)| gap.abs_diff(*wanted) <= 1;
    assert!(gaps.iter().zip(&wanted).all(is_near), "{gaps:?}");
    assert!(gaps.len() > wanted.len(), "{gaps:?}");
    assert_eq!(Limits::default().retry_max, Duration::from_secs(30));
}

#[test]
fn no_limit_is_no_limit() {
    let mut script = Script::new(2);
    let job = script.call(0, 1, &[]);
    script.deliver();
    script.pass(Duration::from_secs(10_000));
    assert!(!script.ended.contains_key(&job) && script.runs(job).is_some());
    // The longest time that a peer can name is none.
    let call = Call {
        budget: Some(u64::MAX),
        ..plain_call(40, 9)
    };
    script.hear(1, (WorkerId(0), 1), Body::Call(call));
    script.pass(Duration::from_secs(10_000));
    assert!(script.runs(9).is_some());
}

#[test]
fn answers_come_in_any_order_each_to_its_call() {
    let mut script = Script::new(2);
    let jobs: Vec<u64> = (0..5).map(|_| script.call(0, 1, &[])).collect();
    script.deliver();
    for job in jobs.iter().rev() {
        script.finish(*job, &[]);
    }
    while !script.mail.is_empty() {
        let last = script.mail.len() - 1;
        let mail = script.mail.remove(last).expect("a message");
        script.turn(0, |node, now| {
            node.handle_message(now, WorkerId(1), mail.message)
        });
    }
    for job in jobs {
        let answer = Ending::Answered(Outcome::Value {
            payload: job,
            references: Vec::new(),
        });
        assert_eq!(script.ended[&job], answer);
    }
}

#[test]
fn calls_beyond_what_a_worker_serves_are_refused_and_cost_nothing_else() {
    let mut script = Script::new(3);
    script.nodes[1].limits.serving = 2;
    for _ in 0..2 {
        script.call(0, 1, &[]);
    }
    let refused = script.call(0, 1, &[]);
    let other = script.call(2, 1, &[]);
    script.deliver();
    let Ending::Answered(Outcome::Fault(fault)) = &script.ended[&refused] else {
        panic!("{:?}", script.ended[&refused]);
    };
    assert_eq!(fault.kind, FaultKind::Busy);
    assert!(script.runs(other).is_some(), "the bound is for each caller");
    script.finish_all();
    script.deliver();
    assert_eq!(script.nodes[1].call_counts(), (0, 0));
}

#[test]
fn a_worker_calls_itself_without_a_message() {
    let mut script = Script::new(2);
    let outer = script.call(0, 0, &[]);
    script.deliver();
    let inner = script.call(0, 0, &[]);
    script.deliver();
    script.finish(inner, &[]);
    script.deliver();
    script.finish(outer, &[]);
    script.deliver();
    assert_eq!(script.ended.len(), 2);
    assert!(script.said.is_empty());
}

#[test]
fn a_message_of_a_stranger_changes_nothing() {
    let mut script = Script::new(2);
    script.hear(0, (WorkerId(7), 9), Body::Call(plain_call(1, 5)));
    assert!(script.serving.is_empty() && script.mail.is_empty());
}

/// The lowest number that is not over at the caller is that of the long one, whatever comes and ends behind it.
#[test]
fn a_call_that_runs_long_keeps_no_other_from_being_carried_out() {
    let mut script = Script::new(2);
    let long = script.call(0, 1, &[]);
    script.deliver();
    let first = script.runs(long).expect("it runs").id;
    let last = (1 << 18) + 10;
    let behind = |id| Call {
        settled: first,
        ..plain_call(id, id)
    };
    for id in first.0 + 1..last {
        script.hear(1, (WorkerId(0), 1), Body::Call(behind(id)));
        script.mail.clear();
        if script.runs(id).is_none() {
            panic!("call {id} is not begun");
        }
        script.finish(id, &[]);
    }
    assert_eq!(script.nodes[1].peers[&WorkerId(0)].seen.kept(), 1);
    // Nor is it carried out again, and the long one has its answer.
    script.mail.clear();
    script.hear(1, (WorkerId(0), 1), Body::Call(behind(last / 2)));
    assert!(script.runs(last / 2).is_none() && script.mail.is_empty());
    script.finish(long, &[]);
    script.deliver();
    assert!(script.is_answered(long));
}

#[test]
fn what_closes_a_gap_is_taken_of_a_peer_that_leaves_too_many() {
    let mut script = Script::new(2);
    let say = |script: &mut Script, id: u64, settled: u64| {
        let call = Call {
            settled: CallId(settled),
            ..plain_call(id, id)
        };
        script.hear(1, (WorkerId(0), 1), Body::Call(call));
        let is_begun = script.runs(id).is_some();
        script.finish_all();
        is_begun
    };
    let most = 1 << 18;
    assert!((1..=most).all(|at| say(&mut script, 2 * at, 0)));
    assert!(!say(&mut script, 2 * most + 2, 0), "one gap more");
    assert_eq!(script.nodes[1].implausible, 1);
    assert!(say(&mut script, 3, 0), "a gap is closed");
    // A message that says what is over is believed before it is judged.
    assert!(say(&mut script, 2 * most + 2, 0));
    assert!(!say(&mut script, 2 * most + 4, 0));
    assert!(say(&mut script, 2 * most + 4, 2 * most));
}
