//! Arithmetic on each element: on pairs of elements that broadcasting brings together, and on single ones.
//!
//! Knows the operations' names and what they refuse; how elements meet is [`kernel`](crate::kernel)'s.

use crate::graph::Node;
use crate::kernel::Call;
use crate::kernel::call::{Done, Fault, elements};
use crate::kernel::elementwise::{broadcast_cost, each, pairs, same_shapes, zip};
use crate::kernel::make::{Cost, Made, dtype, made};
use crate::kernel::numbers::{Float, Number, Real, by_type};

#[cfg(test)]
mod tests;

/// Picoseconds for each byte of adding and its like, which wait for memory.
const LIGHT: usize = 200;
/// Picoseconds for each byte of an exponential and its like.
const DEEP: usize = 2500;

pub(super) fn make(node: &Node) -> Made {
    let op = node.op.name();
    let Some(dtype) = dtype(node, "T") else {
        return Ok(None);
    };
    let found = by_type!(dtype, T: numbers => match op {
        "Add" | "AddV2" => pairs::<T, T>(LIGHT, T::plus),
        "Sub" => pairs::<T, T>(LIGHT, T::minus),
        "Mul" => pairs::<T, T>(LIGHT, T::times),
        "Maximum" => pairs::<T, T>(LIGHT, Number::max),
        "Minimum" => pairs::<T, T>(LIGHT, Number::min),
        "SquaredDifference" => pairs::<T, T>(LIGHT, |left, right| {
            let difference = left.minus(right);
            difference.times(difference)
        }),
        "Div" => quotients::<T>(T::over),
        "RealDiv" if !T::IS_INTEGER => quotients::<T>(T::over),
        "FloorDiv" => quotients::<T>(T::floor_over),
        "Mod" => quotients::<T>(T::remainder),
        "FloorMod" => quotients::<T>(T::modulo),
        "Pow" => powers::<T>(),
        "Neg" => each::<T>(LIGHT, T::negative),
        "Abs" => each::<T>(LIGHT, T::absolute),
        "Sign" => each::<T>(LIGHT, Number::sign),
        "Square" => each::<T>(LIGHT, |x| x.times(x)),
        "AddN" => sum::<T>(node),
        _ => Ok(None),
    });
    match found.transpose()?.flatten() {
        None => smooth(node),
        found => Ok(found),
    }
}

/// Functions of real numbers, and their gradients.
fn smooth(node: &Node) -> Made {
    let Some(dtype) = dtype(node, "T") else {
        return Ok(None);
    };
    let op = node.op.name();
    let found = by_type!(dtype, T: reals => match op {
        "Exp" => exact::<T>(Float::exp),
        "Log" => exact::<T>(Float::ln),
        "Log1p" => exact::<T>(Float::ln_1p),
        "Sqrt" => exact::<T>(Float::sqrt),
        "Rsqrt" => exact::<T>(|x| one::<T>().over(x.sqrt())),
        "Reciprocal" | "Inv" => exact::<T>(|x| one::<T>().over(x)),
        "Tanh" => exact::<T>(Float::tanh),
        "Sigmoid" => exact::<T>(sigmoid),
        // From the result y and the gradient of it.
        "TanhGrad" => exact_pairs::<T>(|y, dy| dy.times(one::<T>().minus(y.times(y)))),
        "SigmoidGrad" => exact_pairs::<T>(|y, dy| dy.times(y).times(one::<T>().minus(y))),
        "SqrtGrad" => exact_pairs::<T>(|y, dy| half::<T>().times(dy).over(y)),
        "RsqrtGrad" => exact_pairs::<T>(|y, dy| {
            half::<T>().negative().times(dy).times(y.times(y).times(y))
        }),
        "ReciprocalGrad" => exact_pairs::<T>(|y, dy| dy.negative().times(y.times(y))),
        _ => Ok(None),
    });
    let found = found.transpose()?.flatten();
    // A gradient has its result's shape.
    Ok(match op.ends_with("Grad") {
        true => found.map(|simple| simple.of_same_shapes(node)),
        false => found,
    })
}

fn one<T: Real>() -> T::Exact {
    T::Exact::ONE
}

fn half<T: Real>() -> T::Exact {
    T::Exact::from_f64(0.5)
}

/// 1 / (1 + e⁻ˣ), without overflow on either side.
pub(super) fn sigmoid<F: Float>(x: F) -> F {
    let e = x.absolute().negative().exp();
    let one = F::ONE;
    let (above, below) = (one.over(one.plus(e)), e.over(one.plus(e)));
    if x < F::default() { below } else { above }
}

/// `f` of each pair, which must not be divided by zero if they are integers.
fn quotients<T: Number>(f: impl Fn(T, T) -> T + Copy + Send + Sync + 'static) -> Made {
    made(broadcast_cost(4 * LIGHT), move |call| {
        if T::IS_INTEGER {
            refuse_divisors(call, T::default())?;
        }
        zip(call, f)
    })
}

/// Refuses a second input that holds `zero`. Not inlined: it is compiled once for each type, not for each operation.
#[inline(never)]
fn refuse_divisors<T: Number>(call: &Call<'_>, zero: T) -> Done {
    match elements::<T>(&call.tensor(1)?)?.contains(&zero) {
        true => Err("Integer division by zero".into()),
        false => Ok(()),
    }
}

fn powers<T: Number>() -> Made {
    made(broadcast_cost(DEEP), |call| {
        let zero = T::default();
        if T::IS_INTEGER
            && call
                .tensor(1)?
                .as_slice::<T>()?
                .iter()
                .any(|&power| power < zero)
        {
            return Err("Integers to negative integer powers are not allowed".into());
        }
        zip(call, T::power)
    })
}

fn exact<T: Real>(f: impl Fn(T::Exact) -> T::Exact + Copy + Send + Sync + 'static) -> Made {
    each::<T>(DEEP, move |x| T::round(f(x.exact())))
}

fn exact_pairs<T: Real>(
    f: impl Fn(T::Exact, T::Exact) -> T::Exact + Copy + Send + Sync + 'static,
) -> Made {
    made(broadcast_cost(2 * LIGHT), move |call| {
        zip::<T, T>(call, move |y, dy| T::round(f(y.exact(), dy.exact())))
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
