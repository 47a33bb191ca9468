//! Parameter servers: the trainer has the data and the loss, and each layer lives at a server.

use super::digits::Digits;
use super::group::Group;
use super::parts::{Part, remote};
use super::{BATCH, STEPS, compare};
use rendez_autograd::optim::{Optimizer, Rule, Sgd};
use rendez_autograd::remote::DistributedOptimizer;
use rendez_autograd::tape::{Tape, Var};

const RULE: Rule = Rule::Sgd(Sgd {
    lr: 0.2,
    momentum: 0.9,
    dampening: 0.0,
    nesterov: true,
    weight_decay: 1e-4,
});

fn batch(tape: &Tape, digits: &Digits, step: usize) -> (Var, Var) {
    let images = digits.images(step, &[BATCH as u64, 64]);
    (
        tape.constant(images),
        tape.constant(digits.labels(step, BATCH)),
    )
}

fn loss_of(logits: &Var, labels: &Var) -> Var {
    logits
        .sparse_cross_entropy(labels)
        .and_then(|losses| losses.average())
        .expect("a loss")
}

fn apart(digits: &Digits) -> Vec<f32> {
    let group = Group::start("servers");
    let (agent, worker) = group.trainer();
    let (hidden, mut parameters) = remote(agent, "one", "hidden", 1);
    let (classes, others) = remote(agent, "two", "classes", 2);
    parameters.extend(others);
    let optimizer = DistributedOptimizer::new(agent, RULE, &parameters).expect("an optimizer");
    let mut losses = vec![];
    for step in 0..STEPS {
        let (images, labels) = batch(worker.engine(), digits, step);
        let scope = worker.scope().expect("a context");
        let inner: Var = hidden.rpc_sync("part.forward", (images,)).expect("a call");
        let logits: Var = classes.rpc_sync("part.forward", (inner,)).expect("a call");
        let loss = loss_of(&logits, &labels);
        losses.push(loss.tensor().item::<f32>().expect("a scalar"));
        scope.backward(&[loss]).expect("a pass");
        optimizer.step(scope.id()).expect("a step");
    }
    group.check_empty();
    drop((optimizer, parameters, hidden, classes));
    group.stop();
    losses
}

fn together(digits: &Digits) -> Vec<f32> {
    let tape = Tape::new().expect("memory");
    let (hidden, classes) = (
        Part::new(&tape, "hidden", 1),
        Part::new(&tape, "classes", 2),
    );
    let parameters = [hidden.parameters(), classes.parameters()].concat();
    let optimizer = Optimizer::new(RULE, parameters).expect("an optimizer");
    let mut losses = vec![];
    for step in 0..STEPS {
        let (images, labels) = batch(&tape, digits, step);
        let logits = hidden
            .forward(&images)
            .and_then(|inner| classes.forward(&inner))
            .expect("logits");
        let loss = loss_of(&logits, &labels);
        losses.push(loss.tensor().item::<f32>().expect("a scalar"));
        optimizer
            .step(&tape.backward(&loss).expect("a pass"))
            .expect("a step");
    }
    losses
}

#[test]
fn a_training_by_parameter_servers_loses_what_one_process_loses() {
    let digits = Digits::load();
    compare(&apart(&digits), &together(&digits));
}
