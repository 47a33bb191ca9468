//! Worked examples: three trainings on several engines, each beside the same model on one tape, with equal losses.
//!
//! | file | |
//! |---|---|
//! | `parameter_server.rs` | a trainer, whose layers live on two parameter servers |
//! | `pipeline.rs` | a convolutional network in two stages, through which parts of a batch go one behind the other |
//! | `recurrent.rs` | a recurrent network with its embedding at one worker and its decoder at another |
//! | `parts.rs` | the parts of the models, here or at another worker |
//! | `digits.rs` | what they learn |
//! | `group.rs` | engines, agents and workers |
//!
//! Each worker is an engine of its own: they share no more than if they were processes.

mod digits;
mod group;
mod parameter_server;
mod parts;
mod pipeline;
mod recurrent;

/// Steps of each training.
const STEPS: usize = 50;
/// Digits in a batch.
const BATCH: usize = 32;

/// Asserts that both trainings lost as much at each step, and that something was learnt.
fn compare(apart: &[f32], together: &[f32]) {
    assert_eq!((apart.len(), together.len()), (STEPS, STEPS));
    for (step, (one, two)) in apart.iter().zip(together).enumerate() {
        assert!(
            (one - two).abs() <= 1e-5,
            "step {step}: {one} apart, and {two} together"
        );
    }
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let (first, last) = (mean(&apart[..5]), mean(&apart[STEPS - 5..]));
    assert!(
        last < 0.8 * first,
        "nothing was learnt: {first} at first, {last} at last"
    );
}
