//! Workers of one process: contexts, calls and passes, with the tape as their engine.

use std::collections::BTreeMap;

use super::{Worker, current_context};
use crate::autograd::{
    Body, ContextId, Message, MessageId, Mode, Options, PassId, Port, Session, WorkerId,
};
use crate::tape::{Tape, Var};
use rendez::ground::rng::Rng;
use rendez::ground::{Shape, Status, catalogue};
use rendez::memory::Tensor;

mod local;

use local::{Handler, LocalGroup};

const SMART: Options = Options {
    mode: Mode::Smart,
    retain: false,
};

fn row(values: &[f64]) -> Tensor {
    let shape = Shape::new(&[values.len() as u64]).expect("a row");
    Tensor::from_vec(values.to_vec(), shape).expect("a tensor")
}

/// Scales by a new leaf of the worker.
fn scale(worker: &Worker<Tape>, values: Vec<Var>) -> Result<Vec<Var>, Status> {
    let weight = worker.engine().leaf(row(&[0.5, -2.0]));
    values.iter().map(|value| value.mul(&weight)).collect()
}

fn multiply(_: &Worker<Tape>, values: Vec<Var>) -> Result<Vec<Var>, Status> {
    Ok(vec![values[0].mul(&values[1])?])
}

fn nothing(_: &Worker<Tape>, _: Vec<Var>) -> Result<Vec<Var>, Status> {
    Ok(vec![])
}

fn group(count: usize) -> LocalGroup {
    let engines = (0..count).map(|_| Tape::new().expect("memory")).collect();
    let handlers: [(&str, Handler); 3] = [
        ("scale", scale),
        ("multiply", multiply),
        ("nothing", nothing),
    ];
    LocalGroup::new(engines, &handlers)
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec::<f64>().expect("doubles")
}

/// Waits until only the creator could hold it: messages are under way for a moment.
fn all_empty(group: &LocalGroup, count: u16) {
    for _ in 0..2000 {
        if (0..count).all(|id| group.worker(id).load().contexts == 0) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for id in 0..count {
        let worker = group.worker(id);
        assert_eq!(worker.load().contexts, 0, "{worker:?}");
        assert_eq!(worker.engine().kept(), (0, 0), "{worker:?}");
    }
}

#[test]
fn a_pass_goes_there_and_back() {
    let group = group(2);
    let (here, there) = (group.worker(0), WorkerId(1));
    let tape = here.engine();
    let (x, y) = (tape.leaf(row(&[1.0, 2.0])), tape.leaf(row(&[3.0, 4.0])));
    let scope = here.scope().expect("a context");
    assert_eq!(current_context(), Some(scope.id()));
    let product = group
        .call(WorkerId(0), there, "multiply", &[x.clone(), y.clone()])
        .expect("a call");
    let loss = product[0].total().expect("a sum");
    scope.backward(&[loss]).expect("a pass");
    let gradients = scope.gradients().expect("gradients");
    assert_eq!(
        numbers(&gradients[&x.leaf_id().expect("a leaf")]),
        [3.0, 4.0]
    );
    assert_eq!(
        numbers(&gradients[&y.leaf_id().expect("a leaf")]),
        [1.0, 2.0]
    );
    assert_eq!(here.debug_info()["num_autograd_contexts"], 1);
    drop(scope);
    assert_eq!(current_context(), None);
    all_empty(&group, 2);
}

#[test]
fn a_thread_is_in_one_context_unless_it_asks_for_more() {
    let group = group(1);
    let worker = group.worker(0);
    let outer = worker.scope().expect("a context");
    let error = worker.scope().expect_err("a second one");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_CONTEXT_NESTED);
    assert!(
        error
            .message()
            .starts_with("Already have an autograd context id for this thread.")
    );
    let inner = worker.nested_scope().expect("asked for");
    assert_eq!(current_context(), Some(inner.id()));
    drop(inner);
    assert_eq!(current_context(), Some(outer.id()));
    std::thread::scope(|threads| {
        threads
            .spawn(|| assert_eq!(current_context(), None))
            .join()
            .expect("another thread is in none");
    });
    drop(outer);
    all_empty(&group, 1);
}

/// As fields of a struct are dropped, and what a list holds.
#[test]
fn scopes_may_end_in_any_order() {
    let group = group(1);
    let worker = group.worker(0);
    let outer = worker.scope().expect("a context");
    let inner = worker.nested_scope().expect("another");
    drop(outer);
    assert_eq!(current_context(), Some(inner.id()));
    drop(inner);
    assert_eq!(current_context(), None);
}

#[test]
fn calls_without_a_context_record_nothing() {
    let group = group(2);
    let x = group.worker(0).engine().leaf(row(&[1.0, 2.0]));
    let results = group
        .call(WorkerId(0), WorkerId(1), "scale", &[x])
        .expect("a call");
    assert!(!results[0].requires_gradient());
    all_empty(&group, 2);
}

/// PyTorch wraps every call of a context, so each worker that is called has a context to be cleaned; an answer without
/// gradients records nothing.
#[test]
fn a_call_without_tensors_makes_the_context_known() {
    let group = group(2);
    let scope = group.worker(0).scope().expect("a context");
    group
        .call(WorkerId(0), WorkerId(1), "nothing", &[])
        .expect("a call");
    assert_eq!(group.worker(1).load().contexts, 1);
    drop(scope);
    all_empty(&group, 2);
}

#[test]
fn passes_accumulate_and_are_retained_if_asked() {
    let group = group(2);
    let here = group.worker(0);
    let x = here.engine().leaf(row(&[1.0, 2.0]));
    let id = x.leaf_id().expect("a leaf");
    let scope = here.scope().expect("a context");
    let scaled = group
        .call(WorkerId(0), WorkerId(1), "scale", &[x])
        .expect("a call");
    let loss = scaled[0].total().expect("a sum");
    let retained = Options {
        retain: true,
        ..SMART
    };
    for times in 1..3 {
        here.backward(scope.id(), std::slice::from_ref(&loss), retained)
            .expect("a pass");
        let gradients = here.gradients(scope.id()).expect("gradients");
        assert_eq!(
            numbers(&gradients[&id]),
            [0.5 * f64::from(times), -2.0 * f64::from(times)]
        );
    }
    here.backward(scope.id(), &[loss.clone(), loss.clone()], SMART)
        .expect("two roots");
    let gradients = here.gradients(scope.id()).expect("gradients");
    assert_eq!(numbers(&gradients[&id]), [2.0, -8.0]);
    let error = here
        .backward(scope.id(), &[loss], SMART)
        .expect_err("it is used up");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_GRAPH_FREED);
    let gradients = here.gradients(scope.id()).expect("gradients");
    assert_eq!(numbers(&gradients[&id]), [2.0, -8.0], "as before");
    drop(scope);
    all_empty(&group, 2);
}

/// As a hidden state that is kept from one iteration to the next.
#[test]
fn what_a_call_of_another_context_brought_is_refused_with_what_to_do() {
    let group = group(2);
    let here = group.worker(0);
    let leaf = here.engine().leaf(row(&[1.0, 2.0]));
    let before = here.scope().expect("a context");
    let kept = group.call(WorkerId(0), WorkerId(1), "scale", &[leaf]);
    let root = kept.expect("a call")[0].total().expect("a sum");
    let scope = here.nested_scope().expect("another");
    let error = scope.backward(&[root]).expect_err("it is not of this one");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_FUNCTION_UNKNOWN);
    let says = |what: &str| error.message().contains(what);
    assert!(
        says("detach the value") && says(&scope.id().to_string()),
        "{error}"
    );
    drop((scope, before));
    all_empty(&group, 2);
}

#[test]
fn roots_are_judged_before_anything_begins() {
    let group = group(1);
    let worker = group.worker(0);
    let scope = worker.scope().expect("a context");
    let constant = worker.engine().constant(Tensor::scalar(1.0));
    let error = scope.backward(&[constant]).expect_err("no gradient");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_ROOT);
    assert_eq!(worker.load().passes, 0);
}

/// A program of sums, products and calls, the same on one tape and on several workers.
struct Program<'a> {
    group: &'a LocalGroup,
    reference: &'a Tape,
    /// By worker: values with their copies in the reference, and leaves with theirs.
    values: Vec<Vec<(Var, Var)>>,
    leaves: Vec<Vec<u64>>,
}

impl Program<'_> {
    fn leaf(&mut self, at: usize, values: &[f64]) -> (Var, Var) {
        let there = self.reference.leaf(row(values));
        self.leaves[at].extend(there.leaf_id());
        (
            self.group.worker(at as u16).engine().leaf(row(values)),
            there,
        )
    }

    fn step(&mut self, rng: &mut Rng) {
        let at = rng.below(self.values.len() as u64) as usize;
        let mut pick = || {
            let all = &self.values[at];
            all[rng.below(all.len() as u64) as usize].clone()
        };
        let (one, two) = (pick(), pick());
        let to = rng.below(self.values.len() as u64) as usize;
        let made = match rng.below(4) {
            0 => (
                one.0.add(&two.0).expect("a sum"),
                one.1.add(&two.1).expect("a sum"),
            ),
            1 => (
                one.0.tanh().expect("a value"),
                one.1.tanh().expect("a value"),
            ),
            2 => {
                let (from, to) = (WorkerId(at as u16), WorkerId(to as u16));
                let result = self
                    .group
                    .call(from, to, "multiply", &[one.0, two.0])
                    .expect("a call");
                (result[0].clone(), one.1.mul(&two.1).expect("a product"))
            }
            _ => {
                let weight = self.reference.leaf(row(&[0.5, -2.0]));
                self.leaves[to].extend(weight.leaf_id());
                let (from, to) = (WorkerId(at as u16), WorkerId(to as u16));
                let result = self
                    .group
                    .call(from, to, "scale", &[one.0])
                    .expect("a call");
                (result[0].clone(), one.1.mul(&weight).expect("a product"))
            }
        };
        self.values[at].push(made);
    }

    /// The gradients at each worker, and those of the reference, in the order the leaves were made.
    fn compare(&self, context: ContextId, reference: &BTreeMap<u64, Tensor>, seed: u64) {
        for (at, leaves) in self.leaves.iter().enumerate() {
            let actual = self
                .group
                .worker(at as u16)
                .gradients(context)
                .unwrap_or_default();
            let actual: Vec<_> = actual.values().map(numbers).collect();
            let expected: Vec<_> = leaves
                .iter()
                .filter_map(|leaf| reference.get(leaf))
                .map(numbers)
                .collect();
            let is_near = |(one, two): (&f64, &f64)| (one - two).abs() <= 1e-9 * one.abs().max(1.0);
            let flat = |all: &[Vec<f64>]| all.concat();
            let (one, two) = (flat(&actual), flat(&expected));
            assert_eq!(one.len(), two.len(), "seed {seed}, worker {at}");
            assert!(
                one.iter().zip(&two).all(is_near),
                "seed {seed}, worker {at}: {one:?} instead of {two:?}"
            );
        }
    }
}

#[test]
fn any_program_has_the_gradients_that_it_has_on_one_tape() {
    let group = group(3);
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let reference = Tape::new().expect("memory");
        let scope = group.worker(0).scope().expect("a context");
        for to in [1, 2] {
            group
                .call(WorkerId(0), WorkerId(to), "nothing", &[])
                .expect("a call");
        }
        let mut program = Program {
            group: &group,
            reference: &reference,
            values: vec![vec![]; 3],
            leaves: vec![vec![]; 3],
        };
        for at in 0..3 {
            let leaf = program.leaf(at, &[0.3 + at as f64, -0.7]);
            program.values[at].push(leaf);
        }
        for _ in 0..5 + rng.below(20) {
            program.step(&mut rng);
        }
        let (last, there) = program.values[0].last().expect("there is one").clone();
        let losses = last.tanh().and_then(|last| last.total()).expect("a loss");
        let reference_loss = there.tanh().and_then(|last| last.total()).expect("a loss");
        scope
            .backward(&[losses])
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let expected = reference.backward(&reference_loss).expect("a pass");
        program.compare(scope.id(), &expected, seed);
    }
    all_empty(&group, 3);
}

#[test]
fn values_whose_history_cannot_be_recorded_are_refused() {
    use crate::autograd::{Envelope, MessageId};
    let group = group(2);
    let (here, there) = (group.worker(0), WorkerId(1));
    let context = here.create_context().expect("a context");
    let envelope = |requires: &[bool]| Envelope {
        context,
        message: MessageId::new(there, 0),
        requires: requires.to_vec(),
    };
    // An envelope of another call.
    let two = envelope(&[true, true]);
    let error = here
        .incoming(there, Some(&two), vec![row(&[1.0])])
        .expect_err("one tensor");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_MESSAGE);
    here.release_context(context).expect("it is there");
    let one = envelope(&[true]);
    let error = here
        .incoming(there, Some(&one), vec![row(&[1.0])])
        .expect_err("the context is over");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_CONTEXT_UNKNOWN);
    // What wants no gradient loses nothing.
    let plain = envelope(&[false]);
    let values = here
        .incoming(there, Some(&plain), vec![row(&[1.0])])
        .expect("a constant");
    assert!(!values[0].requires_gradient());
}

/// A worker that was given a tensor says of its gradients whatever it likes.
#[test]
fn a_peer_that_lies_of_gradients_costs_its_pass_and_nothing_else() {
    let group = group(3);
    let (worker, liar) = (group.worker(0), WorkerId(1));
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let called = group.call(WorkerId(0), WorkerId(2), "scale", std::slice::from_ref(&x));
    let loss = called.expect("a result")[0].total().expect("a sum");
    let sent = worker.outgoing(scope.id(), liar, std::slice::from_ref(&x), false);
    let sent = sent
        .expect("it is recorded")
        .0
        .expect("an envelope")
        .message;
    let shape = |len: u64| Shape::new(&[len]).expect("a row");
    let floats = Tensor::from_vec(vec![1.0_f32; 2], shape(2)).expect("a tensor");
    let scalar = Tensor::scalar(1.0_f64);
    let of = |gradient: Tensor| vec![Some(gradient)];
    let gradients = [
        (sent, vec![]),
        (sent, vec![None, None]),
        (sent, of(row(&[1.0, 1.0, 1.0]))),
        (sent, of(row(&[]))),
        (sent, of(floats)),
        (sent, of(scalar)),
        (sent, [of(row(&[7.0, 7.0])), of(row(&[7.0, 7.0]))].concat()),
        (MessageId::new(liar, 5), of(row(&[7.0, 7.0]))),
        (MessageId::new(WorkerId(0), 1 << 40), of(row(&[7.0, 7.0]))),
    ];
    let bodies = gradients
        .into_iter()
        .enumerate()
        .flat_map(|(number, (message, gradients))| {
            let pass = PassId {
                context: scope.id(),
                root: liar,
                number: number as u32,
            };
            let port = Port { message, index: 0 };
            let far = Port {
                index: u16::MAX,
                ..port
            };
            let options = SMART;
            let mark = |ports| Body::Mark {
                pass,
                options,
                ports,
            };
            let gradient = Body::Gradient {
                pass,
                options,
                message,
                gradients,
            };
            [mark(vec![port]), mark(vec![far, port, port]), gradient]
        });
    for (number, body) in (1_000..).zip(bodies) {
        let is_last = matches!(body, Body::Gradient { .. });
        let message = Message {
            from: Session::default(),
            to: None,
            number,
            body,
        };
        worker.deliver(liar, message);
        assert!(
            !is_last || worker.load().passes == 0,
            "{number} leaves a pass"
        );
        assert!(scope.gradients().expect("gradients").is_empty(), "{number}");
    }
    scope.backward(&[loss]).expect("a pass of others");
    let found = scope.gradients().expect("gradients");
    let found: Vec<Vec<f64>> = found.values().map(numbers).collect();
    assert_eq!(found, [[0.5, -2.0]]);
    drop(scope);
    all_empty(&group, 3);
}
