//! A recurrent network that reads a digit row by row: the embedding of its pixels lives at one worker, the decoder at
//! another, and the memory here.

use super::BATCH;
use super::digits::Digits;
use super::training::{Example, Stage, TRAINER};
use rendez_autograd::optim::{RmsProp, Rule};
use rendez_autograd::tape::{Tape, Var};
use rendez_rpc::Error;

const EXAMPLE: Example = Example {
    name: "recurrent",
    rule: Rule::RmsProp(RmsProp {
        lr: 0.005,
        alpha: 0.95,
        eps: 1e-6,
        weight_decay: 0.0,
        momentum: 0.5,
        centered: false,
    }),
    parts: &[
        ("one", "embedding", 5),
        (TRAINER, "memory", 7),
        ("two", "classes", 6),
    ],
    loss,
};

fn loss(tape: &Tape, digits: &Digits, step: usize, stages: &[Stage]) -> Result<Var, Error> {
    let mut value = tape.constant(digits.levels(step, &[BATCH as u64, 8, 8]));
    let labels = tape.constant(digits.labels(step, BATCH));
    for stage in stages {
        value = stage.forward(&value)?;
    }
    Ok(value.sparse_cross_entropy(&labels)?.average()?)
}

#[test]
fn a_recurrent_network_with_a_remote_embedding_loses_what_one_process_loses() {
    EXAMPLE.check();
}
