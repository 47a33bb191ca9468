//! Lesson: what trainings under test learn, and what a step of one does, in plain numbers.
//!
//! Knows no engine. The trainer takes its batches from here, and the judge does each step again: what differs was not
//! applied once.

use super::scope::mixed;

/// Rows of a batch.
pub(super) const ROWS: usize = 8;
/// Weights of the model.
pub(super) const WEIGHTS: usize = 4;
/// How far a step goes.
pub(super) const RATE: f64 = 0.05;
/// What is to be learnt first, and after every so many steps the opposite of it: who has learnt all changes nothing any
/// more, and then it is not seen whether steps are done.
const GOAL: [f32; WEIGHTS] = [1.5, -2.0, 0.25, 3.0];
const GOAL_STEPS: u64 = 40;
/// How far sums in another order may be apart.
const NEAR: f32 = 1e-4;

/// Inputs and what they should give.
pub(super) struct Batch {
    pub(super) inputs: Vec<f32>,
    pub(super) targets: Vec<f32>,
}

/// What one begins with who knows nothing.
pub(super) const fn ignorance() -> [f32; WEIGHTS] {
    [0.0; WEIGHTS]
}

/// The batch of that step.
pub(super) fn batch(step: u64) -> Batch {
    let number = |at: usize| {
        let dice = mixed(mixed(step) ^ at as u64) % 20_001;
        dice as f32 / 10_000.0 - 1.0
    };
    let inputs: Vec<f32> = (0..ROWS * WEIGHTS).map(number).collect();
    let is_opposite = (step / GOAL_STEPS) % 2 == 1;
    let goal = GOAL.map(|weight| if is_opposite { -weight } else { weight });
    let targets = guesses(&inputs, &goal);
    Batch { inputs, targets }
}

fn guesses(inputs: &[f32], weights: &[f32]) -> Vec<f32> {
    let dot = |row: &[f32]| row.iter().zip(weights).map(|(x, w)| x * w).sum();
    inputs.chunks(WEIGHTS).map(dot).collect()
}

/// The mean of the squared errors of a step that begins with `weights`, and the weights after it: gradient descent.
pub(super) fn step(weights: &[f32], step: u64) -> (f32, Vec<f32>) {
    let Batch { inputs, targets } = batch(step);
    let errors: Vec<f32> = guesses(&inputs, weights)
        .iter()
        .zip(&targets)
        .map(|(guess, target)| guess - target)
        .collect();
    let loss = errors.iter().map(|error| error * error).sum::<f32>() / ROWS as f32;
    let slope = |at: usize| {
        let terms = errors.iter().zip(inputs.chunks(WEIGHTS));
        terms.map(|(error, row)| error * row[at]).sum::<f32>() * 2.0 / ROWS as f32
    };
    let next = |(at, weight): (usize, &f32)| weight - RATE as f32 * slope(at);
    (loss, weights.iter().enumerate().map(next).collect())
}

/// True if they differ by rounding at most.
pub(super) fn are_near(one: &[f32], other: &[f32]) -> bool {
    let is_near = |(one, other): (&f32, &f32)| (one - other).abs() <= NEAR * (1.0 + one.abs());
    one.len() == other.len() && one.iter().zip(other).all(is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_seen() {
        let mut weights = ignorance().to_vec();
        for at in 0..2_000 {
            let (_, after) = step(&weights, at);
            assert!(!are_near(&after, &weights), "step {at} left out");
            assert!(
                !are_near(&after, &step(&after, at).1),
                "step {at} done twice"
            );
            weights = after;
        }
    }
}
