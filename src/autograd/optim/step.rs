//! One step of one parameter: values, gradient and state in, values and state out.
//!
//! Arithmetic is in the type of the parameter, 32 or 64 bits, in the order of PyTorch's pseudo code.

use std::ops::{Add, Div, Mul, Sub};

use super::rule::{Adagrad, Adam, AdamW, RmsProp, Rule, Sgd};

/// What an optimizer keeps of a parameter between steps.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct ParameterState<T> {
    /// Steps that were made.
    pub(super) steps: u64,
    /// The momentum, or the mean of the gradients. Empty, as the others, for a rule that does not read it.
    pub(super) first: Vec<T>,
    /// The sum or the mean of their squares.
    pub(super) second: Vec<T>,
    /// The largest of those, or (of `RMSprop`) the mean of the gradients.
    pub(super) third: Vec<T>,
}

/// Numbers that parameters are made of.
pub(super) trait Real:
    Copy
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// The nearest of this type.
    fn of(value: f64) -> Self;
    /// Square root.
    fn root(self) -> Self;
}

macro_rules! real {
    ($($type:ty),*) => {$(
        #[allow(clippy::cast_possible_truncation)]
        impl Real for $type {
            fn of(value: f64) -> Self {
                value as $type
            }
            fn root(self) -> Self {
                self.sqrt()
            }
        }
    )*};
}

real!(f32, f64);

/// Steps `values` along `gradient`, which is as long.
pub(super) fn step<T: Real>(
    rule: &Rule,
    state: &mut ParameterState<T>,
    values: &mut [T],
    gradient: &[T],
) {
    state.steps += 1;
    // Without decay the loops are others: zero times an infinite value is not a number, and a question in a loop costs.
    let decay = match rule {
        Rule::Sgd(rule) => rule.weight_decay,
        Rule::Adagrad(rule) => rule.weight_decay,
        Rule::Adam(rule) => rule.weight_decay,
        Rule::AdamW(_) => 0.0,
        Rule::RmsProp(rule) => rule.weight_decay,
    };
    if decay == 0.0 {
        step_by(rule, state, values, gradient, |gradient, _| gradient);
    } else {
        let decay = T::of(decay);
        step_by(rule, state, values, gradient, |gradient, value| {
            gradient + decay * value
        });
    }
}

/// The same, along what `decayed` makes of a gradient and its value.
fn step_by<T: Real>(
    rule: &Rule,
    state: &mut ParameterState<T>,
    values: &mut [T],
    gradient: &[T],
    decayed: impl Fn(T, T) -> T,
) {
    match rule {
        Rule::Sgd(rule) => sgd(rule, state, values, gradient, decayed),
        Rule::Adagrad(rule) => adagrad(rule, state, values, gradient, decayed),
        Rule::Adam(rule) => adam(rule, 0.0, state, values, gradient, decayed),
        Rule::AdamW(AdamW(rule)) => {
            adam(rule, rule.weight_decay, state, values, gradient, decayed);
        }
        Rule::RmsProp(rule) => rms_prop(rule, state, values, gradient, decayed),
    }
}

/// As long as `like`, filled with `value` when it is made.
fn ready<T: Real>(buffer: &mut Vec<T>, like: &[T], value: f64) {
    buffer.resize(like.len(), T::of(value));
}

/// `mean`, moved towards `value` by `part`: from the end that is nearer, so that little is cancelled.
fn lerp<T: Real>(mean: T, value: T, part: T) -> T {
    let (from, part_of_way) = if part < T::of(0.5) {
        (mean, part)
    } else {
        (value, part - T::of(1.0))
    };
    from + part_of_way * (value - mean)
}

fn sgd<T: Real>(
    rule: &Sgd,
    state: &mut ParameterState<T>,
    values: &mut [T],
    gradient: &[T],
    decayed: impl Fn(T, T) -> T,
) {
    let is_first = state.first.is_empty();
    let (lr, momentum) = (T::of(rule.lr), T::of(rule.momentum));
    if rule.momentum == 0.0 {
        for (value, gradient) in values.iter_mut().zip(gradient) {
            *value = *value - lr * decayed(*gradient, *value);
        }
        return;
    }
    let damped = T::of(1.0 - rule.dampening);
    ready(&mut state.first, values, 0.0);
    for ((value, gradient), buffer) in values.iter_mut().zip(gradient).zip(&mut state.first) {
        let gradient = decayed(*gradient, *value);
        *buffer = if is_first {
            gradient
        } else {
            momentum * *buffer + damped * gradient
        };
        let by = if rule.nesterov {
            gradient + momentum * *buffer
        } else {
            *buffer
        };
        *value = *value - lr * by;
    }
}

fn adagrad<T: Real>(
    rule: &Adagrad,
    state: &mut ParameterState<T>,
    values: &mut [T],
    gradient: &[T],
    decayed: impl Fn(T, T) -> T,
) {
    ready(&mut state.second, values, rule.initial_accumulator_value);
    let lr = T::of(rule.lr / (1.0 + (state.steps - 1) as f64 * rule.lr_decay));
    let eps = T::of(rule.eps);
    for ((value, gradient), sum) in values.iter_mut().zip(gradient).zip(&mut state.second) {
        let gradient = decayed(*gradient, *value);
        *sum = *sum + gradient * gradient;
        *value = *value - lr * (gradient / (sum.root() + eps));
    }
}

/// `shrink` takes off the parameter.
fn adam<T: Real>(
    rule: &Adam,
    shrink: f64,
    state: &mut ParameterState<T>,
    values: &mut [T],
    gradient: &[T],
    decayed: impl Fn(T, T) -> T,
) {
    ready(&mut state.first, values, 0.0);
    ready(&mut state.second, values, 0.0);
    if rule.amsgrad {
        ready(&mut state.third, values, 0.0);
    }
    let power = i32::try_from(state.steps).unwrap_or(i32::MAX);
    let unbiased = 1.0 - rule.beta1.powi(power);
    let rate = T::of(rule.lr / unbiased);
    let spread = T::of((1.0 - rule.beta2.powi(power)).sqrt());
    let (part, beta2, rest) = (
        T::of(1.0 - rule.beta1),
        T::of(rule.beta2),
        T::of(1.0 - rule.beta2),
    );
    let (kept, eps) = (T::of(1.0 - rule.lr * shrink), T::of(rule.eps));
    let means = state.first.iter_mut().zip(&mut state.second);
    let mut largest = state.third.iter_mut();
    for ((value, gradient), (mean, square)) in values.iter_mut().zip(gradient).zip(means) {
        *value = *value * kept;
        let gradient = decayed(*gradient, *value);
        *mean = lerp(*mean, gradient, part);
        *square = beta2 * *square + rest * (gradient * gradient);
        let mut square = *square;
        if rule.amsgrad
            && let Some(largest) = largest.next()
        {
            if square > *largest {
                *largest = square;
            }
            square = *largest;
        }
        let divisor = square.root() / spread + eps;
        *value = *value - rate * (*mean / divisor);
    }
}

fn rms_prop<T: Real>(
    rule: &RmsProp,
    state: &mut ParameterState<T>,
    values: &mut [T],
    gradient: &[T],
    decayed: impl Fn(T, T) -> T,
) {
    ready(&mut state.second, values, 0.0);
    if rule.momentum > 0.0 {
        ready(&mut state.first, values, 0.0);
    }
    if rule.centered {
        ready(&mut state.third, values, 0.0);
    }
    let (lr, alpha, rest) = (T::of(rule.lr), T::of(rule.alpha), T::of(1.0 - rule.alpha));
    let (eps, momentum) = (T::of(rule.eps), T::of(rule.momentum));
    let (mut buffers, mut means) = (state.first.iter_mut(), state.third.iter_mut());
    for ((value, gradient), square) in values.iter_mut().zip(gradient).zip(&mut state.second) {
        let gradient = decayed(*gradient, *value);
        *square = alpha * *square + rest * (gradient * gradient);
        let spread = if rule.centered
            && let Some(mean) = means.next()
        {
            *mean = lerp(*mean, gradient, rest);
            (*square - *mean * *mean).root()
        } else {
            square.root()
        };
        let ratio = gradient / (spread + eps);
        if rule.momentum > 0.0
            && let Some(buffer) = buffers.next()
        {
            *buffer = momentum * *buffer + ratio;
            *value = *value - lr * *buffer;
        } else {
            *value = *value - lr * ratio;
        }
    }
}
