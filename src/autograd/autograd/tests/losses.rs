//! Losses: what must hold when a worker loses another, is the only one that does, or hears of it late. Each case was
//! found by a composed world (`seeds.rs`).

use super::message;
use crate::autograd::{
    Autograd, Body, ContextId, Effect, Envelope, Message, MessageId, Mode, Options, PassId, Port,
    Ran, Session, WorkerId,
};
use rendez::ground::{Status, catalogue};

type Machine = Autograd<i64>;

const SMART: Options = Options {
    mode: Mode::Smart,
    retain: true,
};
const A: WorkerId = WorkerId(0);
const B: WorkerId = WorkerId(1);
const C: WorkerId = WorkerId(2);
const D: WorkerId = WorkerId(3);

fn effects(machine: &mut Machine) -> Vec<Effect<i64>> {
    std::iter::from_fn(|| machine.poll_effect()).collect()
}

/// The messages to `to`, and nothing else that is to be done.
fn mail(machine: &mut Machine, to: WorkerId) -> Vec<Message<i64>> {
    let sent = effects(machine)
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Send { to: at, message } if at == to => Some(message),
            _ => None,
        });
    sent.collect()
}

fn bodies(machine: &mut Machine, to: WorkerId) -> Vec<Body<i64>> {
    let mail = mail(machine, to).into_iter();
    mail.map(|message| message.body).collect()
}

fn lost(worker: WorkerId) -> Status {
    Status::of(catalogue::PEER_LOST, format!("worker {} is lost", worker.0))
}

/// A call of `from` in `context` comes, with one value that wants gradients.
fn receive(machine: &mut Machine, from: WorkerId, context: ContextId) -> MessageId {
    let message = MessageId::new(from, 7);
    let envelope = Envelope {
        context,
        message,
        requires: vec![true],
    };
    machine
        .record_receive(from, &envelope)
        .expect("its context lives");
    message
}

/// One value goes to `to` in `context`.
fn send(machine: &mut Machine, to: WorkerId, context: ContextId) -> MessageId {
    let sent = machine.record_send(context, to, &[true], true);
    sent.expect("it is recorded").expect("an envelope").message
}

fn pass(context: ContextId, root: WorkerId) -> PassId {
    PassId {
        context,
        root,
        number: 4,
    }
}

fn mark(pass: PassId, message: MessageId) -> Body<i64> {
    let ports = vec![Port { message, index: 0 }];
    Body::Mark {
        pass,
        options: SMART,
        ports,
    }
}

fn gradient(pass: PassId, message: MessageId) -> Body<i64> {
    Body::Gradient {
        pass,
        options: SMART,
        message,
        gradients: vec![Some(1)],
    }
}

/// Worker B has done its part of a pass of `root` that came by C, with a gradient of its leaf 5.
fn done_at_b(context: ContextId, root: WorkerId) -> (Machine, PassId) {
    let mut machine = Machine::new(B);
    receive(&mut machine, C, context);
    let sent = send(&mut machine, C, context);
    let pass = pass(context, root);
    machine.handle_message(C, message(1, mark(pass, sent)));
    machine.handle_marked(pass, Ok(vec![]));
    machine.handle_message(C, message(2, gradient(pass, sent)));
    let leaves = vec![(5, 1)];
    let ran = Ran {
        leaves,
        ..Ran::default()
    };
    machine.handle_ran(pass, Ok(ran));
    let done = effects(&mut machine);
    let is_finish = |effect: &Effect<i64>| matches!(effect, Effect::Finish { .. });
    assert!(done.iter().any(is_finish), "{done:?}");
    assert_eq!(machine.gradients(context).expect("it is there").len(), 1);
    (machine, pass)
}

#[test]
fn a_context_that_goes_under_a_pass_ends_it_for_all_who_take_part() {
    let mut machine = Machine::new(B);
    let context = ContextId::new(A, 3);
    receive(&mut machine, C, context);
    let sent = send(&mut machine, C, context);
    machine.handle_message(C, message(1, mark(pass(context, C), sent)));
    assert_eq!(machine.load().passes, 1);
    effects(&mut machine);
    // The root has not lost A, and would wait.
    machine.handle_worker_dead(A);
    let told = bodies(&mut machine, C);
    assert!(matches!(told[..], [Body::Fail { .. }]), "{told:?}");
    assert!(!machine.holds(context));
}

#[test]
fn no_two_passes_have_one_number_though_their_context_comes_again() {
    let mut machine = Machine::starting_at(B, 900);
    let context = ContextId::new(A, 3);
    receive(&mut machine, A, context);
    let first = machine.start_backward(context, 1, SMART).expect("a pass");
    machine.handle_worker_dead(A);
    assert!(!machine.holds(context));
    machine.handle_worker_joined(A);
    receive(&mut machine, A, context);
    let second = machine.start_backward(context, 1, SMART).expect("a pass");
    assert_ne!(first, second);
    let mut next_life = Machine::starting_at(B, 70_000);
    receive(&mut next_life, A, context);
    let third = next_life.start_backward(context, 1, SMART).expect("a pass");
    assert!(third != first && third != second);
}

#[test]
fn a_context_whose_creator_cannot_be_told_of_its_holder_is_let_go() {
    let mut machine = Machine::new(B);
    let context = ContextId::new(A, 3);
    receive(&mut machine, C, context);
    let joined = mail(&mut machine, A).remove(0);
    assert_eq!(joined.body, Body::Joined { context });
    // A is only busy: it is told again.
    let busy = Status::of(catalogue::RPC_BUSY, "it is busy");
    machine.handle_undelivered(A, joined, &busy);
    let joined = mail(&mut machine, A).remove(0);
    assert_eq!(joined.body, Body::Joined { context });
    assert!(machine.holds(context));
    let unmet = Status::of(catalogue::RPC_WORKER, "worker 0 is not there yet");
    machine.handle_undelivered(A, joined, &unmet);
    assert!(!machine.holds(context));
    let forget = effects(&mut machine);
    assert!(forget.contains(&Effect::Forget { context }), "{forget:?}");
}

#[test]
fn a_release_that_a_busy_worker_refuses_to_the_last_is_told_again() {
    let mut machine = Machine::new(A);
    let context = machine.create_context().expect("an id");
    send(&mut machine, B, context);
    machine.release_context(context).expect("it is here");
    let release = mail(&mut machine, B).remove(0);
    assert!(matches!(release.body, Body::Release { .. }));
    let body = release.body.clone();
    let busy = Status::of(catalogue::RPC_BUSY, "it is busy");
    machine.handle_undelivered(B, release, &busy);
    assert_eq!(bodies(&mut machine, B), [body]);
}

#[test]
fn who_has_lost_another_alone_says_so_and_the_other_forgets_too() {
    let [mut root, mut other] = [Machine::starting_at(A, 50), Machine::starting_at(B, 60)];
    let context = root.create_context().expect("an id");
    let came = receive(&mut root, B, context);
    receive(&mut other, A, context);
    let begun = root.start_backward(context, 1, SMART).expect("a pass");
    let ports = vec![Port {
        message: came,
        index: 0,
    }];
    root.handle_marked(begun, Ok(ports));
    let mark = mail(&mut root, B).remove(0);
    // B hears it, and only then that it had lost A before: what it knew of the pass is gone.
    other.handle_message(A, mark);
    other.handle_worker_dead(A);
    effects(&mut other);
    other.handle_worker_joined(A);
    let forgot = mail(&mut other, A).remove(0);
    assert_eq!(forgot.body, Body::Forgot);
    assert_eq!(root.open_passes(), [begun], "A has lost nothing");
    root.handle_message(B, forgot);
    assert!(root.open_passes().is_empty());
    let ended = effects(&mut root);
    let is_end = |effect: &&Effect<i64>| matches!(effect, Effect::Ended { .. });
    let end = ended.iter().find(is_end).expect("it ends");
    let Effect::Ended { pass, result } = end else {
        unreachable!("it is an end")
    };
    let error = result.as_ref().expect_err("B has forgotten it");
    assert_eq!(
        (*pass, error.reason()),
        (begun, catalogue::AUTOGRAD_WORKER_DEAD)
    );
    assert!(error.message().contains("worker 1"), "{error}");
}

#[test]
fn a_message_for_a_session_that_is_over_is_refused_and_its_sender_hears_so() {
    let mut machine = Machine::starting_at(B, 60);
    machine.handle_worker_joined(A);
    machine.handle_worker_dead(A);
    machine.handle_worker_joined(A);
    effects(&mut machine);
    let stale = Message {
        to: Some(Session {
            life: 60,
            losses: 0,
        }),
        ..message(
            1,
            Body::Doubt {
                pass: pass(ContextId::new(A, 0), B),
            },
        )
    };
    machine.handle_message(A, stale);
    assert_eq!(bodies(&mut machine, A), [Body::Forgot]);
}

#[test]
fn a_release_holds_in_any_session_and_of_the_life_that_it_is_of() {
    let mut machine = Machine::new(B);
    let of = |counter| ContextId::new(A, counter);
    let release = |life, counter| Message {
        from: Session { life, losses: 0 },
        ..message(
            1,
            Body::Release {
                context: of(counter),
                oldest: counter,
            },
        )
    };
    machine.handle_worker_dead(A);
    machine.handle_message(A, release(10, 12));
    machine.handle_worker_joined(A);
    let late = |machine: &mut Machine, counter| {
        let envelope = Envelope {
            context: of(counter),
            message: MessageId::new(A, 0),
            requires: vec![],
        };
        machine.record_receive(A, &envelope).is_ok()
    };
    assert!(!late(&mut machine, 12), "it is released");
    assert!(!late(&mut machine, 11), "it is older, and released too");
    // Contexts of another life have other numbers, also smaller ones.
    assert!(late(&mut machine, 4));
    assert!(late(&mut machine, 13));
}

#[test]
fn who_took_part_and_loses_another_asks_whether_the_pass_failed() {
    let context = ContextId::new(A, 3);
    let (mut machine, pass) = done_at_b(context, D);
    machine.handle_worker_dead(C);
    assert_eq!(bodies(&mut machine, D), [Body::Doubt { pass }]);
    assert_eq!(machine.gradients(context).expect("it is there").len(), 1);
    let error = lost(C);
    machine.handle_message(D, message(1, Body::Fail { pass, error }));
    assert!(machine.gradients(context).expect("it is there").is_empty());
}

#[test]
fn who_loses_the_root_of_a_pass_lets_the_others_ask() {
    let context = ContextId::new(A, 3);
    let (mut machine, pass) = done_at_b(context, D);
    machine.handle_worker_dead(D);
    assert_eq!(bodies(&mut machine, C), [Body::Doubt { pass }]);
    // Once: it does not go round.
    machine.handle_message(C, message(3, Body::Doubt { pass }));
    assert_eq!(bodies(&mut machine, C), []);
}

#[test]
fn a_root_that_is_asked_answers_of_a_pass_that_failed_and_tells_one_that_fails_later() {
    let mut root = Machine::new(A);
    let context = root.create_context().expect("an id");
    let came = receive(&mut root, C, context);
    let begun = root.start_backward(context, 1, SMART).expect("a pass");
    let ports = vec![Port {
        message: came,
        index: 0,
    }];
    root.handle_marked(begun, Ok(ports));
    effects(&mut root);
    let doubt = |number| message(number, Body::Doubt { pass: begun });
    root.handle_message(B, doubt(1));
    assert_eq!(bodies(&mut root, B), [], "it goes on");
    root.handle_worker_dead(C);
    let told = bodies(&mut root, B);
    assert!(matches!(told[..], [Body::Fail { .. }]), "{told:?}");
    root.handle_message(D, doubt(1));
    let told = bodies(&mut root, D);
    assert!(matches!(told[..], [Body::Fail { .. }]), "{told:?}");
}

#[test]
fn a_pass_that_was_refused_for_its_root_was_dead_does_not_begin_when_that_is_back() {
    let mut machine = Machine::new(B);
    let context = ContextId::new(A, 3);
    receive(&mut machine, C, context);
    let sent = send(&mut machine, C, context);
    let pass = pass(context, D);
    machine.handle_worker_dead(D);
    for number in [1, 2] {
        effects(&mut machine);
        machine.handle_message(C, message(number, mark(pass, sent)));
        let told = bodies(&mut machine, C);
        assert!(
            matches!(told[..], [Body::Fail { .. }]),
            "{number}: {told:?}"
        );
        machine.handle_worker_joined(D);
    }
    assert_eq!(machine.load().passes, 0);
}

#[test]
fn what_may_have_come_before_its_receiver_was_lost_fails_nothing() {
    let context = ContextId::new(A, 3);
    for is_watched in [true, false] {
        let mut machine = Machine::new(B);
        if is_watched {
            machine.handle_worker_joined(D);
        }
        receive(&mut machine, D, context);
        let sent = send(&mut machine, C, context);
        let pass = pass(context, D);
        machine.handle_message(C, message(1, mark(pass, sent)));
        let ports = vec![Port {
            message: MessageId::new(D, 7),
            index: 0,
        }];
        machine.handle_marked(pass, Ok(ports));
        let mark = mail(&mut machine, D).remove(0);
        assert!(matches!(mark.body, Body::Mark { .. }));
        machine.handle_undelivered(D, mark, &lost(D));
        // Where no one says when a worker is lost, this is the only word of it.
        assert_eq!(machine.load().passes, usize::from(is_watched));
    }
}

/// What B says, asked for what it sent in message `counter` by the pass of that number.
fn failure(machine: &mut Machine, number: u32, counter: u64, mode: Mode) -> &'static str {
    let (message, options) = (MessageId::new(B, counter), Options { mode, retain: true });
    let pass = PassId {
        context: ContextId::new(A, 0),
        root: A,
        number,
    };
    let body = match mode {
        Mode::Smart => Body::Mark {
            pass,
            options,
            ports: vec![Port { message, index: 0 }],
        },
        Mode::Fast => Body::Gradient {
            pass,
            options,
            message,
            gradients: vec![Some(1)],
        },
    };
    machine.handle_message(A, super::message(u64::from(number) + 1, body));
    let told = mail(machine, A).into_iter();
    let mut errors = told.filter_map(|message| match message.body {
        Body::Fail { error, .. } => Some(error.reason()),
        _ => None,
    });
    errors.next().expect("the pass fails")
}

/// B was killed and is there again: no pass used up what it sent before.
#[test]
fn a_pass_through_a_former_life_of_a_worker_is_told_so() {
    let dead = catalogue::AUTOGRAD_WORKER_DEAD;
    let mut machine = Machine::starting_at(B, 100);
    let smart = failure(&mut machine, 0, 5, Mode::Smart);
    let fast = failure(&mut machine, 1, 5, Mode::Fast);
    assert_eq!([smart, fast], [dead; 2], "the context is not here");
    let call = Envelope {
        context: ContextId::new(A, 0),
        message: MessageId::new(A, 0),
        requires: vec![true],
    };
    machine.record_receive(A, &call).expect("a call");
    let smart = failure(&mut machine, 2, 5, Mode::Smart);
    let fast = failure(&mut machine, 3, 5, Mode::Fast);
    assert_eq!([smart, fast], [dead; 2], "the context came again");
    let sent = machine.record_send(call.context, A, &[true], true);
    let sent = sent.expect("it is recorded").expect("an envelope");
    machine.forget_send(&sent);
    let used_up = failure(&mut machine, 4, sent.message.counter(), Mode::Smart);
    assert_eq!(
        used_up,
        catalogue::AUTOGRAD_FUNCTION_UNKNOWN,
        "of this life"
    );
}
