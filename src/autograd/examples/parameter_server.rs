//! Parameter servers: the trainer has the data and the loss, and each layer lives at a server.

use super::BATCH;
use super::digits::Digits;
use super::training::{Example, Stage};
use rendez_autograd::optim::{Rule, Sgd};
use rendez_autograd::tape::{Tape, Var};
use rendez_rpc::Error;

const EXAMPLE: Example = Example {
    name: "servers",
    rule: Rule::Sgd(Sgd {
        lr: 0.2,
        momentum: 0.9,
        dampening: 0.0,
        nesterov: true,
        weight_decay: 1e-4,
    }),
    parts: &[("one", "hidden", 1), ("two", "classes", 2)],
    loss,
};

fn loss(tape: &Tape, digits: &Digits, step: usize, stages: &[Stage]) -> Result<Var, Error> {
    let images = tape.constant(digits.images(step, &[BATCH as u64, 64]));
    let labels = tape.constant(digits.labels(step, BATCH));
    let inner = stages[0].forward(&images)?;
    let logits = stages[1].forward(&inner)?;
    Ok(logits.sparse_cross_entropy(&labels)?.average()?)
}

#[test]
fn a_training_by_parameter_servers_loses_what_one_process_loses() {
    EXAMPLE.check();
}
