//! A pipeline of two stages: the batch goes through in four parts, of which the first is in the second stage while the
//! next is in the first.

use super::digits::Digits;
use super::group::Group;
use super::parts::{Part, remote};
use super::{BATCH, STEPS, compare};
use rendez_autograd::optim::{Adam, Optimizer, Rule};
use rendez_autograd::remote::DistributedOptimizer;
use rendez_autograd::tape::{Tape, Var};
use rendez_rpc::Pending;

const RULE: Rule = Rule::Adam(Adam {
    lr: 0.01,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    weight_decay: 0.0,
    amsgrad: false,
});
/// Parts of a batch.
const MICRO: usize = 4;

/// The parts of batch `step`.
fn batch(tape: &Tape, digits: &Digits, step: usize) -> Vec<(Var, Var)> {
    let size = BATCH / MICRO;
    let part = |at| {
        let at = step * MICRO + at;
        let images = digits.images(at, &[size as u64, 8, 8, 1]);
        (
            tape.constant(images),
            tape.constant(digits.labels(at, size)),
        )
    };
    (0..MICRO).map(part).collect()
}

/// The mean of the losses of all parts.
fn loss_of(tape: &Tape, logits: &[Var], parts: &[(Var, Var)]) -> Var {
    let each = logits
        .iter()
        .zip(parts)
        .map(|(logits, (_, labels))| logits.sparse_cross_entropy(labels));
    let each: Vec<_> = each.map(|losses| losses.expect("losses")).collect();
    let all = tape
        .concat(&each.iter().collect::<Vec<_>>(), 0)
        .expect("one row");
    all.average().expect("a loss")
}

fn apart(digits: &Digits) -> Vec<f32> {
    let group = Group::start("pipeline");
    let (agent, worker) = group.trainer();
    let (first, mut parameters) = remote(agent, "one", "convolution", 3);
    let (second, others) = remote(agent, "two", "classes", 4);
    parameters.extend(others);
    let optimizer = DistributedOptimizer::new(agent, RULE, &parameters).expect("an optimizer");
    let mut losses = vec![];
    for step in 0..STEPS {
        let parts = batch(worker.engine(), digits, step);
        let scope = worker.scope().expect("a context");
        let begin =
            |(images, _): &(Var, Var)| first.rpc_async::<Var>("part.forward", (images.clone(),));
        let inside: Vec<_> = parts
            .iter()
            .map(|part| begin(part).expect("a call"))
            .collect();
        let go_on = |call: Pending<Var>| {
            second.rpc_async::<Var>("part.forward", (call.wait().expect("stage one"),))
        };
        let outside: Vec<_> = inside
            .into_iter()
            .map(|call| go_on(call).expect("a call"))
            .collect();
        let logits: Vec<_> = outside
            .into_iter()
            .map(|call| call.wait().expect("stage two"))
            .collect();
        let loss = loss_of(worker.engine(), &logits, &parts);
        losses.push(loss.tensor().item::<f32>().expect("a scalar"));
        scope.backward(&[loss]).expect("a pass");
        optimizer.step(scope.id()).expect("a step");
    }
    group.check_empty();
    drop((optimizer, parameters, first, second));
    group.stop();
    losses
}

fn together(digits: &Digits) -> Vec<f32> {
    let tape = Tape::new().expect("memory");
    let (first, second) = (
        Part::new(&tape, "convolution", 3),
        Part::new(&tape, "classes", 4),
    );
    let optimizer = Optimizer::new(RULE, [first.parameters(), second.parameters()].concat())
        .expect("an optimizer");
    let mut losses = vec![];
    for step in 0..STEPS {
        let parts = batch(&tape, digits, step);
        let forward = |images: &Var| {
            first
                .forward(images)
                .and_then(|inner| second.forward(&inner))
        };
        let logits: Vec<_> = parts
            .iter()
            .map(|(images, _)| forward(images).expect("logits"))
            .collect();
        let loss = loss_of(&tape, &logits, &parts);
        losses.push(loss.tensor().item::<f32>().expect("a scalar"));
        optimizer
            .step(&tape.backward(&loss).expect("a pass"))
            .expect("a step");
    }
    losses
}

#[test]
fn a_pipeline_of_two_stages_loses_what_one_process_loses() {
    let digits = Digits::load();
    compare(&apart(&digits), &together(&digits));
}
