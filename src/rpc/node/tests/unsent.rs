//! Messages that could not be sent: their calls end alone.

use rendez::ground::{Status, catalogue};

use super::script::Script;
use super::*;

fn far() -> Status {
    Status::of(catalogue::TENSOR_DEVICE, "it lies elsewhere")
}

/// The next message of that kind could not be sent.
fn fail(script: &mut Script, kind: &str) {
    let place = script.mail.iter().position(|mail| mail.kind() == kind);
    let mail = script.mail.remove(place.expect("there is one"));
    let mail = mail.expect("there is one");
    let (now, to) = (script.now, WorkerId(mail.to as u16));
    script.nodes[mail.from].handle_unsent(now, to, &mail.message, &far());
    script.pump(mail.from);
}

#[test]
fn a_call_that_cannot_go_ends_alone_and_takes_what_it_carries_with_it() {
    let mut script = Script::new(2);
    let share = script.value(0, 1);
    let own = script.value(0, 0);
    let (job, other) = (script.call(0, 1, &[share, own]), script.call(0, 1, &[]));
    fail(&mut script, "call");
    assert_eq!(script.ended[&job], Ending::Unsent(far()));
    script.deliver();
    assert!(script.runs(job).is_none() && script.runs(other).is_some());
    script.finish_all();
    script.deliver();
    assert!(script.is_answered(other));
    script.both_answer();
    // Nothing keeps what it was to bring.
    script.drop_share(0, share);
    script.drop_share(0, own);
    script.deliver();
    script.released.sort();
    let mut values = [(1, share.rref), (0, own.rref)];
    values.sort();
    assert_eq!(script.released, values);
}

#[test]
fn a_value_whose_call_cannot_go_is_never_made() {
    let mut script = Script::new(2);
    let share = script.create(0, 1);
    fail(&mut script, "create");
    script.deliver();
    assert!(script.serving.is_empty());
    script.drop_share(0, share);
    script.deliver();
    script.both_answer();
}

#[test]
fn an_answer_that_cannot_go_is_a_fault_and_takes_what_it_carries_with_it() {
    let mut script = Script::new(2);
    let own = script.value(1, 1);
    let job = script.call(0, 1, &[]);
    script.deliver();
    script.finish(job, &[own]);
    fail(&mut script, "reply");
    script.deliver();
    let Some(Ending::Answered(Outcome::Fault(fault))) = script.ended.get(&job) else {
        panic!("{:?}", script.ended.get(&job));
    };
    assert!(
        fault.message.contains(catalogue::TENSOR_DEVICE),
        "{fault:?}"
    );
    script.drop_share(1, own);
    script.deliver();
    assert_eq!(script.released, [(1, own.rref)]);
    script.both_answer();
}

#[test]
fn what_follows_in_order_on_a_call_that_cannot_go_does_not_wait_for_it() {
    let mut script = Script::new(2);
    script.nodes[0].limits.in_order = true;
    let first = script.call(0, 1, &[]);
    // Made together, before any of them goes.
    let (now, jobs) = (script.now, [101, 102, 103]);
    for job in jobs {
        let call = NewCall {
            token: job,
            target: plain(),
            deadline: rendez::ground::Nanos::NEVER,
            references: Vec::new(),
            payload: job,
        };
        script.nodes[0].call(now, WorkerId(1), call);
    }
    let Some(Output::Send { to, message }) = script.nodes[0].poll() else {
        panic!("a call goes");
    };
    script.nodes[0].handle_unsent(now, to, &message, &far());
    script.pump(0);
    assert_eq!(script.ended[&jobs[0]], Ending::Unsent(far()));
    script.deliver();
    for (job, next) in [(first, jobs[1]), (jobs[1], jobs[2])] {
        assert!(script.runs(job).is_some() && script.runs(next).is_none());
        script.finish(job, &[]);
    }
    script.finish(jobs[2], &[]);
    // So too when it is the last that was made.
    let last = script.call(0, 1, &[]);
    fail(&mut script, "call");
    assert_eq!(script.ended[&last], Ending::Unsent(far()));
    script.mail.clear();
    let next = script.call(0, 1, &[]);
    script.deliver();
    assert!(script.runs(next).is_some());
}

#[test]
fn what_was_for_a_life_that_is_over_changes_nothing_when_it_cannot_go() {
    let mut script = Script::new(2);
    let job = script.call(0, 1, &[]);
    script.lose(1);
    let lost = script.ended[&job].clone();
    fail(&mut script, "call");
    assert_eq!(script.ended[&job], lost);
    script.live(Duration::from_secs(1));
    script.both_answer();
    let job = script.call(0, 1, &[]);
    script.deliver();
    script.finish(job, &[]);
    script.restart(0, 9);
    script.deliver_if(|mail| mail.kind() != "reply");
    script.said.clear();
    fail(&mut script, "reply");
    assert_eq!(
        script.count("reply", 1, 0),
        0,
        "the next life asked nothing"
    );
    script.both_answer();
}
