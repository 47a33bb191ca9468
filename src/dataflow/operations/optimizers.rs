//! Updates of variables by gradients: gradient descent, momentum, Adam; by reference and by handle.
//!
//! Knows the formulas. All variables of one update are held while their next contents are computed, and nothing is
//! replaced before all of them are.

use std::sync::Arc;

use super::row::{Row, row};
use super::state::{found, missing};
use crate::graph::infer::{Inferred, Known, nothing};
use crate::graph::{Node, attr};
use crate::kernel::call::{Done, Fault, elements, elements_mut};
use crate::kernel::make::{Cost, Made, made, typed};
use crate::kernel::numbers::{Float, Number, Real};
use crate::kernel::variables::hold_all;
use crate::kernel::{Call, Value};
use rendez::memory::{Tensor, TensorBuilder};

#[cfg(test)]
mod tests;

/// Picoseconds for each byte of an update.
const UPDATE: usize = 300;

const PLAIN: &str = "T: num; use_locking: bool = false";
const NESTEROV: &str = "T: num; use_locking: bool = false; use_nesterov: bool = false";

const ADAM: &str = "var: Ref(T), m: Ref(T), v: Ref(T), beta1_power: T, beta2_power: T, lr: T, beta1: T, beta2: T, \
                    epsilon: T, grad: T -> out: Ref(T)";
const RESOURCE_ADAM: &str = "var: resource, m: resource, v: resource, beta1_power: T, beta2_power: T, lr: T, \
                             beta1: T, beta2: T, epsilon: T, grad: T ->";

pub(super) const ROWS: &[Row] = &[
    row(
        "ApplyGradientDescent",
        "var: Ref(T), alpha: T, delta: T -> out: Ref(T)",
        PLAIN,
        first,
    )
    .kernel(|node| descent(node, true)),
    row(
        "ApplyMomentum",
        "var: Ref(T), accum: Ref(T), lr: T, grad: T, momentum: T -> out: Ref(T)",
        NESTEROV,
        first,
    )
    .kernel(|node| momentum(node, true)),
    row("ApplyAdam", ADAM, NESTEROV, first).kernel(|node| adam(node, true)),
    row(
        "ResourceApplyGradientDescent",
        "var: resource, alpha: T, delta: T ->",
        PLAIN,
        nothing,
    )
    .stateful()
    .kernel(|node| descent(node, false)),
    row(
        "ResourceApplyMomentum",
        "var: resource, accum: resource, lr: T, grad: T, momentum: T ->",
        NESTEROV,
        nothing,
    )
    .stateful()
    .kernel(|node| momentum(node, false)),
    row("ResourceApplyAdam", RESOURCE_ADAM, NESTEROV, nothing)
        .stateful()
        .kernel(|node| adam(node, false)),
];

/// The first input's, which is the variable's.
fn first(known: Known<'_>) -> Inferred {
    Ok(vec![known.shape(0)])
}

fn nesterov(node: &Node) -> bool {
    attr::bool(&node.attrs, "use_nesterov").unwrap_or(false)
}

fn descent(node: &Node, is_ref: bool) -> Made {
    typed!(node, T: reals => made(Cost::PerByte(UPDATE), move |call| {
        update::<T, 1, 1>(call, is_ref, ["var"], &["alpha"], "delta", |[var], [alpha], delta| {
            [var.minus(alpha.times(delta))]
        })
    }))
}

fn momentum(node: &Node, is_ref: bool) -> Made {
    let nesterov = nesterov(node);
    typed!(node, T: reals => made(Cost::PerByte(UPDATE), move |call| {
        update_momentum::<T>(call, is_ref, nesterov)
    }))
}

fn adam(node: &Node, is_ref: bool) -> Made {
    let nesterov = nesterov(node);
    typed!(node, T: reals => made(Cost::PerByte(UPDATE), move |call| {
        update_adam::<T>(call, is_ref, nesterov)
    }))
}

fn update_momentum<T: Real>(call: &mut Call<'_>, is_ref: bool, nesterov: bool) -> Done {
    // The gradient stands between the rate and the momentum.
    let names = ["var", "accum"];
    update::<T, 2, 2>(
        call,
        is_ref,
        names,
        &["lr", "grad", "momentum"],
        "grad",
        |[var, accum], [lr, momentum], grad| {
            let accum = accum.times(momentum).plus(grad);
            let step = match nesterov {
                true => grad.times(lr).plus(accum.times(momentum).times(lr)),
                false => accum.times(lr),
            };
            [var.minus(step), accum]
        },
    )
}

fn update_adam<T: Real>(call: &mut Call<'_>, is_ref: bool, nesterov: bool) -> Done {
    let one = T::Wide::ONE;
    let scalars = [
        "beta1_power",
        "beta2_power",
        "lr",
        "beta1",
        "beta2",
        "epsilon",
    ];
    update::<T, 3, 6>(
        call,
        is_ref,
        ["var", "m", "v"],
        &scalars,
        "grad",
        |[var, m, v], scalars, grad| {
            let [power1, power2, lr, beta1, beta2, epsilon] = scalars;
            let alpha = lr.times(one.minus(power2).sqrt()).over(one.minus(power1));
            let m = m.plus(grad.minus(m).times(one.minus(beta1)));
            let v = v.plus(grad.times(grad).minus(v).times(one.minus(beta2)));
            let direction = match nesterov {
                true => grad.times(one.minus(beta1)).plus(beta1.times(m)),
                false => m,
            };
            [
                var.minus(direction.times(alpha).over(v.sqrt().plus(epsilon))),
                m,
                v,
            ]
        },
    )
}

/// Replaces the first `N` inputs, variables, by what `next` makes of their elements, the scalars and the gradient.
///
/// `others` names the inputs behind the variables in order; the one called `gradient`, or else the one behind them all,
/// has the variables' shape, the others are `S` scalars.
fn update<T: Real, const N: usize, const S: usize>(
    call: &mut Call<'_>,
    is_ref: bool,
    names: [&str; N],
    others: &[&str],
    gradient: &str,
    next: impl Fn([T::Wide; N], [T::Wide; S], T::Wide) -> [T::Wide; N],
) -> Done {
    replaced(
        call,
        is_ref,
        &names,
        others,
        gradient,
        &mut |read, rooms| {
            let mut scalars = [T::Wide::default(); S];
            for (scalar, tensor) in scalars.iter_mut().zip(&read.scalars) {
                for element in elements::<T>(tensor)? {
                    *scalar = element.wide();
                }
            }
            let mut slices: [&[T]; N] = [&[]; N];
            for (slice, content) in slices.iter_mut().zip(&read.contents) {
                *slice = elements(content)?;
            }
            let mut outs: [&mut [T]; N] = [(); N].map(|()| Default::default());
            for (out, room) in outs.iter_mut().zip(rooms) {
                *out = elements_mut(room)?;
            }
            let changes = elements::<T>(&read.change)?;
            // Slices of one length, which the compiler is told: it leaves the bounds out of the loop.
            let len = changes.len();
            let slices = slices.map(|slice| &slice[..len.min(slice.len())]);
            for (at, change) in changes.iter().enumerate() {
                let new = next(slices.map(|slice| slice[at].wide()), scalars, change.wide());
                for (out, new) in outs.iter_mut().zip(new) {
                    out[at] = T::narrow(new);
                }
            }
            Ok(())
        },
    )
}

/// What an update computes from: contents and change are of one shape.
struct Read {
    contents: Vec<Tensor>,
    scalars: Vec<Tensor>,
    change: Tensor,
}

/// What is the same for every type and formula of [`update`], compiled once: `write` has the loop alone.
fn replaced(
    call: &mut Call<'_>,
    is_ref: bool,
    names: &[&str],
    others: &[&str],
    gradient: &str,
    write: &mut dyn FnMut(&Read, &mut [TensorBuilder]) -> Done,
) -> Done {
    let count = names.len();
    let gradient_at = others
        .iter()
        .position(|&name| name == gradient)
        .unwrap_or(others.len());
    let mut scalars = Vec::with_capacity(others.len());
    for (at, name) in others.iter().enumerate() {
        if at == gradient_at {
            continue;
        }
        let tensor = call.tensor(count + at)?;
        if tensor.shape().rank() != 0 {
            return Err(format!("{name} is not a scalar: {}", tensor.shape()).into());
        }
        scalars.push(tensor);
    }
    let change = call.tensor(count + gradient_at)?;
    let mut variables = Vec::with_capacity(count);
    for index in 0..count {
        variables.push(found(call, index, is_ref)?);
    }
    let all: Vec<_> = variables.iter().collect();
    let held = hold_all(&all, |variable| call.hold(variable))?;
    let held = held.ok_or("one variable stands in two places of an update")?;
    let mut contents = Vec::with_capacity(count);
    for (variable, name) in variables.iter().zip(names) {
        let content = variable.read();
        let content = if is_ref {
            content?
        } else {
            content.map_err(|_| missing(variable))?
        };
        let first: &Tensor = contents.first().unwrap_or(&content);
        if content.shape() != first.shape() {
            return Err(different("var", name, first, &content));
        }
        contents.push(content);
    }
    let Some(first) = contents.first() else {
        return Err("there is no variable".into());
    };
    if change.shape() != first.shape() {
        return Err(different("var", gradient, first, &change));
    }
    let mut rooms = Vec::with_capacity(count);
    for content in &contents {
        rooms.push(call.home.allocate(content.meta())?);
    }
    let read = Read {
        contents,
        scalars,
        change,
    };
    write(&read, &mut rooms)?;
    for (held, room) in held.iter().zip(rooms) {
        held.replace(room.finish());
    }
    drop(held);
    if is_ref {
        let variable = Arc::clone(call.variable(0)?);
        call.outputs.push(Value::Variable(variable));
    }
    Ok(())
}

fn different(left: &str, right: &str, left_is: &Tensor, right_is: &Tensor) -> Fault {
    format!(
        "{left} and {right} do not have the same shape{} {}",
        left_is.shape(),
        right_is.shape()
    )
    .into()
}
