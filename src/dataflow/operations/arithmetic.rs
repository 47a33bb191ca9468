//! Arithmetic on pairs of elements, which broadcasting brings together, and sums of tensors.
//!
//! Knows what each operation refuses; how elements meet is [`kernel`](crate::kernel)'s. Gradients of operands that were
//! broadcast are added up to their shapes.

use super::row::{Row, row};
use crate::graph::Node;
use crate::graph::gradients::{Back, Flows, none, operands, pair};
use crate::graph::infer::{all_same, broadcast};
use crate::kernel::Call;
use crate::kernel::call::{Done, Fault, elements};
use crate::kernel::elementwise::{DEEP, LIGHT, broadcast_cost, pairs, same_shapes, zip};
use crate::kernel::make::{Cost, Made, made, typed};
use crate::kernel::numbers::Number;

#[cfg(test)]
mod tests;

const NUM: &str = "T: num";
const REAL: &str = "T: real";

pub(super) const ROWS: &[Row] = &[
    binary("Add", "T: type").gradient(add_gradient).kernel(add),
    binary("AddV2", NUM).gradient(add_gradient).kernel(add),
    binary("Sub", NUM)
        .gradient(|at| {
            let g = at.grad(0)?;
            let right = at.op("Neg", &[g])?;
            pair(at, Some(g), Some(right))
        })
        .kernel(|node| typed!(node, T: numbers => pairs::<T>(LIGHT, Number::minus))),
    binary("Mul", NUM)
        .gradient(|at| {
            let (g, x, y) = operands(at)?;
            let left = at.op("Mul", &[g, y])?;
            let right = at.op("Mul", &[g, x])?;
            pair(at, Some(left), Some(right))
        })
        .kernel(|node| typed!(node, T: numbers => pairs::<T>(LIGHT, Number::times))),
    binary("Div", NUM)
        .gradient(quotient_gradient)
        .kernel(|node| typed!(node, T: numbers => quotients::<T>(Number::over))),
    binary("RealDiv", NUM)
        .gradient(quotient_gradient)
        .kernel(|node| typed!(node, T: reals => quotients::<T>(Number::over))),
    binary("FloorDiv", NUM)
        .gradient(none)
        .kernel(|node| typed!(node, T: numbers => quotients::<T>(Number::floor_over))),
    binary("FloorMod", REAL)
        .gradient(|at| {
            let (g, x, y) = operands(at)?;
            let times = at.op("FloorDiv", &[x, y])?;
            let change = at.op("Mul", &[g, times])?;
            let right = at.op("Neg", &[change])?;
            pair(at, Some(g), Some(right))
        })
        .kernel(|node| typed!(node, T: numbers => quotients::<T>(Number::modulo))),
    binary("Mod", REAL)
        .kernel(|node| typed!(node, T: numbers => quotients::<T>(Number::remainder))),
    binary("Maximum", REAL)
        .gradient(|at| chosen(at, "GreaterEqual"))
        .kernel(|node| typed!(node, T: numbers => pairs::<T>(LIGHT, Number::max))),
    binary("Minimum", REAL)
        .gradient(|at| chosen(at, "LessEqual"))
        .kernel(|node| typed!(node, T: numbers => pairs::<T>(LIGHT, Number::min))),
    binary("Pow", NUM)
        .gradient(power_gradient)
        .kernel(|node| typed!(node, T: numbers => powers::<T>())),
    binary("SquaredDifference", NUM)
        .gradient(|at| {
            let (g, x, y) = operands(at)?;
            let two = at.scalar_like(g, 2.0)?;
            let difference = at.op("Sub", &[x, y])?;
            let twice = at.op("Mul", &[two, difference])?;
            let left = at.op("Mul", &[g, twice])?;
            let right = at.op("Neg", &[left])?;
            pair(at, Some(left), Some(right))
        })
        .kernel(|node| {
            typed!(node, T: numbers => pairs::<T>(LIGHT, |left, right| {
                let difference = left.minus(right);
                difference.times(difference)
            }))
        }),
    row(
        "AddN",
        "inputs: N * T -> sum: T",
        "N: int >= 1; T: num",
        all_same,
    )
    .gradient(|at| {
        let g = at.grad(0)?;
        Ok(vec![Some(g); at.inputs().len()])
    })
    .kernel(|node| typed!(node, T: numbers => sum::<T>(node))),
];

/// An elementwise operation on two values.
const fn binary(name: &'static str, attrs: &'static str) -> Row {
    row(name, "x: T, y: T -> z: T", attrs, broadcast)
}

fn add_gradient(at: &mut Back<'_>) -> Flows {
    let g = at.grad(0)?;
    pair(at, Some(g), Some(g))
}

fn add(node: &Node) -> Made {
    typed!(node, T: numbers => pairs::<T>(LIGHT, Number::plus))
}

fn quotient_gradient(at: &mut Back<'_>) -> Flows {
    let (g, _, y) = operands(at)?;
    let left = at.op("RealDiv", &[g, y])?;
    // The quotient falls by itself over y.
    let quotient = at.output(0);
    let fall = at.op("RealDiv", &[quotient, y])?;
    let change = at.op("Mul", &[g, fall])?;
    let right = at.op("Neg", &[change])?;
    pair(at, Some(left), Some(right))
}

/// `f` of each pair, which must not be divided by zero if they are integers.
fn quotients<T: Number>(
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Made {
    made(broadcast_cost(4 * LIGHT), move |call| {
        if T::IS_INTEGER && has_elements(call)? {
            refuse_divisors(call, T::default())?;
        }
        zip::<T>(call, f)
    })
}

/// Whether anything is computed: where the first input has no elements, none is paired with those of the second.
fn has_elements(call: &Call<'_>) -> Result<bool, Fault> {
    Ok(call.tensor(0)?.shape().elements() > 0)
}

/// Refuses a second input that holds `zero`. Not inlined: it is compiled once for each type, not for each operation.
#[inline(never)]
fn refuse_divisors<T: Number>(call: &Call<'_>, zero: T) -> Done {
    match elements::<T>(&call.tensor(1)?)?.contains(&zero) {
        true => Err("Integer division by zero".into()),
        false => Ok(()),
    }
}

/// The gradient goes to whichever operand was taken; to the left if they are equal.
fn chosen(at: &mut Back<'_>, comparison: &str) -> Flows {
    let (g, x, y) = operands(at)?;
    let is_left = at.op(comparison, &[x, y])?;
    let zeros = at.op("ZerosLike", &[g])?;
    let left = at.op("SelectV2", &[is_left, g, zeros])?;
    let right = at.op("SelectV2", &[is_left, zeros, g])?;
    pair(at, Some(left), Some(right))
}

fn power_gradient(at: &mut Back<'_>) -> Flows {
    let (g, x, y) = operands(at)?;
    let result = at.output(0);
    let unit = at.scalar_like(y, 1.0)?;
    let less = at.op("Sub", &[y, unit])?;
    // To the power of zero all is one, also zero, of which the power below is infinite: the slope is zero times one.
    let none = at.scalar_like(y, 0.0)?;
    let is_flat = at.op("Equal", &[y, none])?;
    let less = at.op("SelectV2", &[is_flat, none, less])?;
    let lower = at.op("Pow", &[x, less])?;
    let slope = at.op("Mul", &[y, lower])?;
    let left = at.op("Mul", &[g, slope])?;
    // The logarithm of what is not above zero is taken as zero: there the result does not change smoothly with y.
    let zero = at.scalar_like(x, 0.0)?;
    let is_above = at.op("Greater", &[x, zero])?;
    let ones = at.op("OnesLike", &[x])?;
    let safe = at.op("SelectV2", &[is_above, x, ones])?;
    let log = at.op("Log", &[safe])?;
    let slope = at.op("Mul", &[result, log])?;
    let right = at.op("Mul", &[g, slope])?;
    pair(at, Some(left), Some(right))
}

fn powers<T: Number>() -> Made {
    made(broadcast_cost(DEEP), |call| {
        let zero = T::default();
        if T::IS_INTEGER
            && has_elements(call)?
            && call
                .tensor(1)?
                .as_slice::<T>()?
                .iter()
                .any(|&power| power < zero)
        {
            return Err("Integers to negative integer powers are not allowed".into());
        }
        zip::<T>(call, Number::power)
    })
}

/// The sum of all inputs, which have one shape.
fn sum<T: Number>(node: &Node) -> Made {
    let name = node.name.clone();
    made(Cost::PerByte(LIGHT), move |call| {
        let inputs = (0..call.inputs.len()).map(|index| call.tensor(index));
        let inputs = inputs.collect::<Result<Vec<_>, Fault>>()?;
        let [first, others @ ..] = inputs.as_slice() else {
            return Err("there is nothing to add up".into());
        };
        if others.is_empty() {
            call.push(first.clone());
            return Ok(());
        }
        same_shapes(call, &name, "AddN")?;
        call.try_output::<T>(first.shape(), |out| {
            out.copy_from_slice(first.as_slice()?);
            for other in others {
                for (sum, &element) in out.iter_mut().zip(other.as_slice::<T>()?) {
                    *sum = sum.plus(element);
                }
            }
            Ok(())
        })
    })
}
