//! A recurrent network that reads a digit row by row: the embedding of its pixels lives at one worker, the decoder at
//! another, and the memory here.

use super::digits::Digits;
use super::group::Group;
use super::parts::{Part, remote};
use super::{BATCH, STEPS, compare};
use rendez_autograd::optim::{Optimizer, RmsProp, Rule};
use rendez_autograd::remote::DistributedOptimizer;
use rendez_autograd::tape::{Tape, Var};
use rendez_rpc::RRef;

const RULE: Rule = Rule::RmsProp(RmsProp {
    lr: 0.005,
    alpha: 0.95,
    eps: 1e-6,
    weight_decay: 0.0,
    momentum: 0.5,
    centered: false,
});

fn batch(tape: &Tape, digits: &Digits, step: usize) -> (Var, Var) {
    let levels = digits.levels(step, &[BATCH as u64, 8, 8]);
    (
        tape.constant(levels),
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
    let group = Group::start("recurrent");
    let (agent, worker) = group.trainer();
    let (embedding, mut parameters) = remote(agent, "one", "embedding", 5);
    let (decoder, others) = remote(agent, "two", "classes", 6);
    let memory = Part::new(worker.engine(), "memory", 7);
    let own = memory
        .parameters()
        .into_iter()
        .map(|parameter| RRef::to_object(agent, parameter));
    parameters.extend(others.into_iter().chain(own));
    let optimizer = DistributedOptimizer::new(agent, RULE, &parameters).expect("an optimizer");
    let mut losses = vec![];
    for step in 0..STEPS {
        let (levels, labels) = batch(worker.engine(), digits, step);
        let scope = worker.scope().expect("a context");
        let rows: Var = embedding
            .rpc_sync("part.forward", (levels,))
            .expect("a call");
        let hidden = memory.forward(&rows).expect("a state");
        let logits: Var = decoder.rpc_sync("part.forward", (hidden,)).expect("a call");
        let loss = loss_of(&logits, &labels);
        losses.push(loss.tensor().item::<f32>().expect("a scalar"));
        scope.backward(&[loss]).expect("a pass");
        optimizer.step(scope.id()).expect("a step");
    }
    group.check_empty();
    drop((optimizer, parameters, embedding, decoder));
    group.stop();
    losses
}

fn together(digits: &Digits) -> Vec<f32> {
    let tape = Tape::new().expect("memory");
    let embedding = Part::new(&tape, "embedding", 5);
    let (decoder, memory) = (
        Part::new(&tape, "classes", 6),
        Part::new(&tape, "memory", 7),
    );
    let parameters = [
        embedding.parameters(),
        decoder.parameters(),
        memory.parameters(),
    ]
    .concat();
    let optimizer = Optimizer::new(RULE, parameters).expect("an optimizer");
    let mut losses = vec![];
    for step in 0..STEPS {
        let (levels, labels) = batch(&tape, digits, step);
        let rows = embedding.forward(&levels).expect("rows");
        let logits = memory
            .forward(&rows)
            .and_then(|hidden| decoder.forward(&hidden))
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
fn a_recurrent_network_with_a_remote_embedding_loses_what_one_process_loses() {
    let digits = Digits::load();
    compare(&apart(&digits), &together(&digits));
}
