//! Functions of single elements, and the operations that their gradients are computed with.
//!
//! Functions of real numbers are computed in 32 bits at least, and rounded once.

use super::row::{Row, row};
use crate::graph::Node;
use crate::graph::gradients::{Back, Flows, one, operands};
use crate::graph::infer::{all_same, same};
use crate::kernel::elementwise::{DEEP, LIGHT, broadcast_cost, each, zip};
use crate::kernel::make::{Made, made, of_same_shapes, typed};
use crate::kernel::numbers::{Float, Number, Real};

const NUM: &str = "T: num";
const SMOOTH: &str = "T: smooth";

/// Makes the kernel of a gradient from what it computes of a result and the gradient of that.
macro_rules! pairs {
    ($T:ident, $f:expr) => {
        |node| of_same_shapes(node, typed!(node, $T: reals => exact_pairs::<$T>($f)))
    };
}

pub(super) const ROWS: &[Row] = &[
    unary("Neg", NUM)
        .gradient(|at| {
            let g = at.grad(0)?;
            one(at.op("Neg", &[g]))
        })
        .kernel(|node| typed!(node, T: numbers => each::<T>(LIGHT, Number::negative))),
    unary("Abs", "T: real")
        .gradient(|at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let sign = at.op("Sign", &[x])?;
            one(at.op("Mul", &[g, sign]))
        })
        .kernel(|node| typed!(node, T: numbers => each::<T>(LIGHT, Number::absolute))),
    unary("Sign", NUM)
        .gradient(|at| {
            let x = at.input(0)?;
            one(at.op("ZerosLike", &[x]))
        })
        .kernel(|node| typed!(node, T: numbers => each::<T>(LIGHT, Number::sign))),
    unary("Square", NUM)
        .gradient(|at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let two = at.scalar_like(x, 2.0)?;
            let twice = at.op("Mul", &[two, x])?;
            one(at.op("Mul", &[g, twice]))
        })
        .kernel(|node| typed!(node, T: numbers => each::<T>(LIGHT, |x| x.times(x)))),
    unary("Exp", SMOOTH)
        .gradient(|at| {
            let (g, y) = (at.grad(0)?, at.output(0));
            one(at.op("Mul", &[g, y]))
        })
        .kernel(|node| typed!(node, T: reals => exact::<T>(Float::exp))),
    unary("Log", SMOOTH)
        .gradient(|at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            one(at.op("RealDiv", &[g, x]))
        })
        .kernel(|node| typed!(node, T: reals => exact::<T>(Float::ln))),
    unary("Log1p", SMOOTH)
        .gradient(|at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let unit = at.scalar_like(x, 1.0)?;
            let above = at.op("AddV2", &[x, unit])?;
            one(at.op("RealDiv", &[g, above]))
        })
        .kernel(|node| typed!(node, T: reals => exact::<T>(Float::ln_1p))),
    unary("Sqrt", SMOOTH)
        .gradient(|at| from_result(at, "SqrtGrad"))
        .kernel(|node| typed!(node, T: reals => exact::<T>(Float::sqrt))),
    slope("SqrtGrad").kernel(pairs!(T, |y, dy| half::<T>().times(dy).over(y))),
    unary("Rsqrt", SMOOTH)
        .gradient(|at| from_result(at, "RsqrtGrad"))
        .kernel(|node| typed!(node, T: reals => exact::<T>(|x| unit::<T>().over(x.sqrt())))),
    slope("RsqrtGrad").kernel(pairs!(T, |y, dy| half::<T>()
        .negative()
        .times(dy)
        .times(y.times(y).times(y)))),
    unary("Reciprocal", NUM)
        .gradient(|at| from_result(at, "ReciprocalGrad"))
        .kernel(reciprocal),
    unary("Inv", NUM)
        .gradient(|at| from_result(at, "ReciprocalGrad"))
        .kernel(reciprocal),
    slope("ReciprocalGrad").kernel(pairs!(T, |y, dy| dy.negative().times(y.times(y)))),
    unary("Tanh", SMOOTH)
        .gradient(|at| from_result(at, "TanhGrad"))
        .kernel(|node| typed!(node, T: reals => exact::<T>(Float::tanh))),
    // TanhGrad(y, dy) = dy (1 − y²).
    slope("TanhGrad")
        .gradient(|at| {
            let (g, y, dy) = operands(at)?;
            let by_dy = at.op("TanhGrad", &[y, g])?;
            let factor = at.scalar_like(y, -2.0)?;
            let slope = at.op("Mul", &[factor, y])?;
            let slope = at.op("Mul", &[slope, dy])?;
            let by_y = at.op("Mul", &[g, slope])?;
            Ok(vec![Some(by_y), Some(by_dy)])
        })
        .kernel(pairs!(T, |y, dy| dy.times(unit::<T>().minus(y.times(y))))),
    unary("Sigmoid", SMOOTH)
        .gradient(|at| from_result(at, "SigmoidGrad"))
        .kernel(|node| typed!(node, T: reals => exact::<T>(sigmoid))),
    // SigmoidGrad(y, dy) = dy y (1 − y).
    slope("SigmoidGrad")
        .gradient(|at| {
            let (g, y, dy) = operands(at)?;
            let by_dy = at.op("SigmoidGrad", &[y, g])?;
            let (unit, two) = (at.scalar_like(y, 1.0)?, at.scalar_like(y, 2.0)?);
            let twice = at.op("Mul", &[two, y])?;
            let slope = at.op("Sub", &[unit, twice])?;
            let slope = at.op("Mul", &[slope, dy])?;
            let by_y = at.op("Mul", &[g, slope])?;
            Ok(vec![Some(by_y), Some(by_dy)])
        })
        .kernel(pairs!(T, |y, dy| dy.times(y).times(unit::<T>().minus(y)))),
];

/// An elementwise operation on one value.
const fn unary(name: &'static str, attrs: &'static str) -> Row {
    row(name, "x: T -> y: T", attrs, same)
}

/// The gradient of an elementwise operation, from its result and the gradient of that, which has its shape.
const fn slope(name: &'static str) -> Row {
    row(name, "y: T, dy: T -> z: T", SMOOTH, all_same)
}

fn reciprocal(node: &Node) -> Made {
    typed!(node, T: reals => exact::<T>(|x| unit::<T>().over(x)))
}

fn unit<T: Real>() -> T::Wide {
    T::Wide::ONE
}

/// A gradient that is computed from the result.
fn from_result(at: &mut Back<'_>, op: &str) -> Flows {
    let (g, y) = (at.grad(0)?, at.output(0));
    one(at.op(op, &[y, g]))
}

fn half<T: Real>() -> T::Wide {
    T::Wide::from_f64(0.5)
}

/// 1 / (1 + e⁻ˣ), without overflow on either side.
fn sigmoid<F: Float>(x: F) -> F {
    let e = x.absolute().negative().exp();
    let one = F::ONE;
    let (above, below) = (one.over(one.plus(e)), e.over(one.plus(e)));
    if x < F::default() { below } else { above }
}

fn exact<T: Real>(f: impl Fn(T::Wide) -> T::Wide + Copy + Send + Sync + 'static) -> Made {
    each::<T>(DEEP, f)
}

fn exact_pairs<T: Real>(
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Made {
    made(broadcast_cost(2 * LIGHT), move |call| zip::<T>(call, f))
}
