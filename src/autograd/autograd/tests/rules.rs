//! The rules, one by one, and the defects of PyTorch's that this does not have.

use super::message;
use super::world::World;
use crate::autograd::{
    Autograd, Body, COUNTER_MAX, ContextId, Effect, Envelope, MessageId, Mode, Options, WorkerId,
};
use rendez::ground::catalogue;

const RETAIN: Options = Options {
    mode: Mode::Smart,
    retain: true,
};
const FAST: Options = Options {
    mode: Mode::Fast,
    retain: true,
};

fn workers() -> [WorkerId; 3] {
    [0, 1, 2].map(WorkerId)
}

/// Each calls the next with the newest value that it has.
fn pass_on(world: &mut World, context: ContextId, way: &[(WorkerId, WorkerId)]) {
    for &(from, to) in way {
        let last = world.newest(from, context);
        world.call_with(from, to, context, &[last]);
        world.drain();
    }
}

#[test]
fn an_id_is_16_bits_of_the_worker_and_48_of_a_counter() {
    let context = ContextId::new(WorkerId(3), 5);
    assert_eq!(context.to_wire(), (3 << 48) + 5);
    let last = ContextId::new(WorkerId(7), COUNTER_MAX);
    assert_eq!(last.to_wire(), (7 << 48) + (1 << 48) - 1);
    assert_eq!((last.worker(), last.counter()), (WorkerId(7), COUNTER_MAX));
}

/// PyTorch takes worker ids as signed in RPC and as unsigned here.
#[test]
fn worker_ids_above_32767_are_ids_as_others() {
    let me = WorkerId(0xffff);
    let mut machine: Autograd<i64> = Autograd::new(me);
    let context = machine.create_context().expect("an id");
    assert_eq!(context.worker(), me);
    assert_eq!(ContextId::from_wire(context.to_wire()), context);
    machine.release_context(context).expect("it is there");
}

#[test]
fn a_worker_whose_ids_are_used_up_says_so() {
    let mut machine: Autograd<i64> = Autograd::starting_at(WorkerId(1), COUNTER_MAX);
    let last = machine.create_context().expect("the last id");
    assert_eq!(last.counter(), COUNTER_MAX);
    let error = machine.create_context().expect_err("there is none left");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_IDS);
    machine.release_context(last).expect("it is there");
}

#[test]
fn a_call_always_has_an_envelope_and_an_answer_only_with_gradients() {
    let mut machine: Autograd<i64> = Autograd::new(WorkerId(0));
    let context = machine.create_context().expect("an id");
    let mut record = |requires: &[bool], is_reply| {
        machine
            .record_send(context, WorkerId(1), requires, is_reply)
            .expect("it is recorded")
    };
    assert!(record(&[], false).is_some());
    assert!(record(&[false], false).is_some());
    assert_eq!(record(&[false], true), None);
    let envelope = record(&[false, true], true).expect("one wants gradients");
    assert_eq!(
        machine.functions(context).expect("it is there"),
        (vec![envelope.message], vec![])
    );
    assert_eq!(
        machine.known_workers(context).expect("it is there"),
        [WorkerId(1)].into()
    );
}

#[test]
fn what_is_unknown_is_said_in_pytorchs_words() {
    let mut machine: Autograd<i64> = Autograd::new(WorkerId(0));
    let context = ContextId::new(WorkerId(0), 9);
    let error = machine
        .start_backward(context, 1, RETAIN)
        .expect_err("there is none");
    assert_eq!(
        error.message(),
        "Could not find autograd context with id: 9"
    );
    let error = machine
        .record_send(context, WorkerId(1), &[], false)
        .expect_err("there is none");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_CONTEXT_UNKNOWN);
    let known = machine.create_context().expect("an id");
    let error = machine
        .start_backward(known, 0, RETAIN)
        .expect_err("no roots");
    assert_eq!(
        error.message(),
        "No tensors provided for gradient computation."
    );
}

/// PyTorch's `test_backward_unused_send_function` asserts that the pass hangs.
#[test]
fn an_unused_send_function_hangs_neither_mode() {
    let [a, b, _] = workers();
    for (options, is_well) in [(RETAIN, true), (FAST, false)] {
        let mut world = World::new(1, 2, 0);
        let context = world.create(a);
        let leaf = world.leaf(a, context);
        world.call_with(a, b, context, &[leaf]);
        world.drain();
        // The answer of that call is thrown away; the loss is local.
        let loss = world.total(a, context, &[leaf]);
        let local = world.named(a, context, loss).expect("it is there");
        let pass = world
            .backward_from(a, context, options, local, loss)
            .expect("it begins");
        world.drain();
        let result = world.outcomes[&pass].result.clone().expect("it ends");
        assert_eq!(result.is_ok(), is_well, "{result:?}");
        if let Err(error) = result {
            assert_eq!(error.reason(), catalogue::AUTOGRAD_UNUSED_SEND);
            assert!(
                error.message().contains("1 send functions of worker 0"),
                "{error}"
            );
        }
        world.check_gradients(context);
    }
}

/// The cost that is stated: a mark and its answer at most for each gradient that crosses.
#[test]
fn smart_mode_costs_at_most_two_messages_for_each_gradient() {
    let [a, b, c] = workers();
    for options in [RETAIN, FAST] {
        let mut world = World::new(3, 3, 0);
        let context = world.create(a);
        let leaf = world.leaf(a, context);
        pass_on(&mut world, context, &[(a, b), (b, c), (c, a)]);
        assert_ne!(world.newest(a, context), leaf, "it came round");
        let loss = world.newest(a, context);
        let local = world.named(a, context, loss).expect("it is there");
        let before = world.sent.clone();
        let pass = world
            .backward_from(a, context, options, local, loss)
            .expect("it begins");
        world.drain();
        assert_eq!(world.outcomes[&pass].result, Some(Ok(())));
        let count = |name| world.sent.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
        let (marks, gradients, acks) = (count("mark"), count("gradient"), count("ack"));
        assert_eq!(gradients, 3);
        // What goes to the root has no answer.
        let expected = if options.mode == Mode::Smart {
            (3, 4)
        } else {
            (0, 2)
        };
        assert_eq!((marks, acks), expected);
        world.check_gradients(context);
    }
}

/// PyTorch #26379: contexts are not collected if the one that would release them dies.
#[test]
fn a_context_is_released_everywhere_when_its_creator_dies() {
    let [a, b, c] = workers();
    let mut world = World::new(5, 3, 0);
    let context = world.create(a);
    world.leaf(a, context);
    pass_on(&mut world, context, &[(a, b), (b, c)]);
    assert!(world.machine(c).holds(context));
    world.kill(a);
    world.drain();
    world.check_empty();
}

/// The holder behind a worker that died is told by the creator itself.
#[test]
fn a_context_is_released_behind_a_worker_that_died() {
    let [a, b, c] = workers();
    let mut world = World::new(6, 3, 0);
    let context = world.create(a);
    world.leaf(a, context);
    pass_on(&mut world, context, &[(a, b), (b, c)]);
    world.kill(b);
    world.drain();
    assert!(world.machine(c).holds(context));
    world.release(context);
    world.drain();
    world.check_empty();
}

/// PyTorch #27643: one worker fails, and the others wait.
#[test]
fn a_death_in_a_pass_is_told_to_all_who_take_part() {
    let [a, b, c] = workers();
    let mut world = World::new(7, 3, 0);
    let context = world.create(a);
    let leaf = world.leaf(a, context);
    pass_on(&mut world, context, &[(a, b), (b, c), (c, a)]);
    let loss = world.total(a, context, &[leaf, world.newest(a, context)]);
    let local = world.named(a, context, loss).expect("it is there");
    let pass = world
        .backward_from(a, context, RETAIN, local, loss)
        .expect("it begins");
    world.kill(b);
    world.drain();
    let error = world.outcomes[&pass]
        .result
        .clone()
        .expect("it ends")
        .expect_err("b is dead");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_WORKER_DEAD);
    assert!(error.message().contains("worker 1 is dead"), "{error}");
    for worker in [a, c] {
        assert_eq!(world.machine(worker).load().passes, 0);
    }
}

fn envelope(context: ContextId, from: WorkerId) -> Envelope {
    Envelope {
        context,
        message: MessageId::new(from, 0),
        requires: vec![true],
    }
}

#[test]
fn a_call_that_comes_after_the_release_does_not_bring_the_context_back() {
    let [a, b, _] = workers();
    let mut machine: Autograd<i64> = Autograd::new(b);
    let context = ContextId::new(a, 4);
    let release = |number, counter, oldest| {
        let context = ContextId::new(a, counter);
        message(number, Body::Release { context, oldest })
    };
    machine.handle_message(a, release(1, 4, 2));
    let error = machine
        .record_receive(a, &envelope(context, a))
        .expect_err("it is released");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_CONTEXT_UNKNOWN);
    machine
        .record_receive(a, &envelope(ContextId::new(a, 3), a))
        .expect("this one lives");
    // A release that was lost is made good by a later one.
    machine.handle_message(a, release(2, 9, 8));
    assert_eq!(machine.load().contexts, 0);
    assert_eq!(machine.load().tombstones, 1);
}

#[test]
fn a_peer_speaks_only_of_what_is_its_own() {
    let [a, b, c] = workers();
    let mut machine: Autograd<i64> = Autograd::new(b);
    let context = ContextId::new(a, 0);
    machine
        .record_receive(a, &envelope(context, a))
        .expect("a call");
    // Neither a release by another, nor an id of another, nor a gradient from who did not get the tensor.
    let body = Body::Release { context, oldest: 0 };
    machine.handle_message(c, message(1, body));
    assert!(machine.holds(context));
    assert!(machine.record_receive(c, &envelope(context, a)).is_err());
    let sent = machine
        .record_send(context, a, &[true], true)
        .expect("it is recorded")
        .expect("an envelope");
    let pass = crate::autograd::PassId {
        context,
        root: c,
        number: 0,
    };
    let gradient = |number, gradients| {
        let body = Body::Gradient {
            pass,
            options: FAST,
            message: sent.message,
            gradients,
        };
        message(number, body)
    };
    while machine.poll_effect().is_some() {}
    machine.handle_message(c, gradient(2, vec![Some(1)]));
    let told: Vec<_> = std::iter::from_fn(|| machine.poll_effect()).collect();
    let is_fail = |effect: &Effect<i64>| match effect {
        Effect::Send { to, message } => *to == c && matches!(message.body, Body::Fail { .. }),
        _ => false,
    };
    assert!(told.iter().any(is_fail), "{told:?}");
    assert!(machine.holds(context), "the context is as before");
}

#[test]
fn a_context_is_released_where_it_was_created() {
    let [a, b, _] = workers();
    let mut machine: Autograd<i64> = Autograd::new(b);
    let context = ContextId::new(a, 0);
    machine
        .record_receive(a, &envelope(context, a))
        .expect("a call");
    let error = machine.release_context(context).expect_err("it is a's");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_CONTEXT_FOREIGN);
    assert!(machine.holds(context));
}

#[test]
fn a_worker_that_comes_again_begins_anew() {
    let [a, b, _] = workers();
    let mut machine: Autograd<i64> = Autograd::new(b);
    let first = envelope(ContextId::new(a, 0), a);
    machine.record_receive(a, &first).expect("a call");
    machine.handle_worker_dead(a);
    assert_eq!(machine.load().contexts, 0);
    assert!(machine.record_receive(a, &first).is_err(), "a is dead");
    let error = machine
        .create_context()
        .and_then(|context| machine.record_send(context, a, &[], false));
    assert_eq!(
        error.expect_err("a is dead").reason(),
        catalogue::AUTOGRAD_WORKER_DEAD
    );
    machine.handle_worker_joined(a);
    machine.record_receive(a, &first).expect("another a");
}
