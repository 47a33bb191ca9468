//! A pipeline of two stages: the batch goes through in four parts, of which the first is in the second stage while the
//! next is in the first.

use super::BATCH;
use super::digits::Digits;
use super::training::{Coming, Example, Stage};
use rendez_autograd::optim::{Adam, Rule};
use rendez_autograd::tape::{Tape, Var};
use rendez_rpc::Error;

const EXAMPLE: Example = Example {
    name: "pipeline",
    rule: Rule::Adam(Adam {
        lr: 0.01,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.0,
        amsgrad: false,
    }),
    parts: &[("one", "convolution", 3), ("two", "classes", 4)],
    loss,
};
/// Parts of a batch.
const MICRO: usize = 4;

/// The mean of the losses of all parts of the batch.
fn loss(tape: &Tape, digits: &Digits, step: usize, stages: &[Stage]) -> Result<Var, Error> {
    let size = BATCH / MICRO;
    let all = step * MICRO..(step + 1) * MICRO;
    let mut first = vec![];
    for at in all.clone() {
        let images = tape.constant(digits.images(at, &[size as u64, 8, 8, 1]));
        first.push(stages[0].begin(&images)?);
    }
    // As soon as a part has left the first stage it enters the second.
    let go_on = |inner: Coming| stages[1].begin(&inner.wait()?);
    let second: Vec<Coming> = first.into_iter().map(go_on).collect::<Result<_, _>>()?;
    let mut losses = vec![];
    for (at, logits) in all.zip(second) {
        let labels = tape.constant(digits.labels(at, size));
        losses.push(logits.wait()?.sparse_cross_entropy(&labels)?);
    }
    let losses = tape.concat(&losses.iter().collect::<Vec<_>>(), 0)?;
    Ok(losses.average()?)
}

#[test]
fn a_pipeline_of_two_stages_loses_what_one_process_loses() {
    EXAMPLE.check();
}
