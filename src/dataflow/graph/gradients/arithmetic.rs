//! Rules of arithmetic: of pairs, whose gradients are added up where they were broadcast, and of single values.

use super::{Back, Flows, Rule};
use crate::graph::flow::Output;
use rendez::ground::Status;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Identity"
        | "RefIdentity"
        | "Snapshot"
        | "PlaceholderWithDefault"
        | "ReadVariableOp"
        | "IdentityN" => |at| Ok(at.grads.clone()),
        // What does not change with its inputs, or by steps.
        "StopGradient"
        | "ZerosLike"
        | "OnesLike"
        | "Sign"
        | "FloorDiv"
        | "Shape"
        | "ShapeN"
        | "Size"
        | "Rank"
        | "ArgMax"
        | "ArgMin"
        | "Equal"
        | "NotEqual"
        | "Less"
        | "LessEqual"
        | "Greater"
        | "GreaterEqual"
        | "Range"
        | "VariableShape"
        | "IsVariableInitialized" => |at| Ok(vec![None; at.inputs().len()]),
        "Add" | "AddV2" => |at| {
            let g = at.grad(0)?;
            pair(at, Some(g), Some(g))
        },
        "Sub" => |at| {
            let g = at.grad(0)?;
            let right = at.op("Neg", &[g])?;
            pair(at, Some(g), Some(right))
        },
        "Mul" => |at| {
            let (g, x, y) = binary(at)?;
            let left = at.op("Mul", &[g, y])?;
            let right = at.op("Mul", &[g, x])?;
            pair(at, Some(left), Some(right))
        },
        "Div" | "RealDiv" => |at| {
            let (g, _, y) = binary(at)?;
            let left = at.op("RealDiv", &[g, y])?;
            // The quotient falls by itself over y.
            let quotient = at.output(0);
            let fall = at.op("RealDiv", &[quotient, y])?;
            let change = at.op("Mul", &[g, fall])?;
            let right = at.op("Neg", &[change])?;
            pair(at, Some(left), Some(right))
        },
        "FloorMod" => |at| {
            let (g, x, y) = binary(at)?;
            let times = at.op("FloorDiv", &[x, y])?;
            let change = at.op("Mul", &[g, times])?;
            let right = at.op("Neg", &[change])?;
            pair(at, Some(g), Some(right))
        },
        "Maximum" => |at| chosen(at, "GreaterEqual"),
        "Minimum" => |at| chosen(at, "LessEqual"),
        "SquaredDifference" => |at| {
            let (g, x, y) = binary(at)?;
            let two = scalar_like(at, g, 2.0)?;
            let difference = at.op("Sub", &[x, y])?;
            let twice = at.op("Mul", &[two, difference])?;
            let left = at.op("Mul", &[g, twice])?;
            let right = at.op("Neg", &[left])?;
            pair(at, Some(left), Some(right))
        },
        "Pow" => power,
        "AddN" => |at| {
            let g = at.grad(0)?;
            Ok(vec![Some(g); at.inputs().len()])
        },
        "Neg" => |at| {
            let g = at.grad(0)?;
            one(at.op("Neg", &[g]))
        },
        "Abs" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let sign = at.op("Sign", &[x])?;
            one(at.op("Mul", &[g, sign]))
        },
        "Exp" => |at| {
            let (g, y) = (at.grad(0)?, at.output(0));
            one(at.op("Mul", &[g, y]))
        },
        "Log" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            one(at.op("RealDiv", &[g, x]))
        },
        "Log1p" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let unit = scalar_like(at, x, 1.0)?;
            let above = at.op("AddV2", &[x, unit])?;
            one(at.op("RealDiv", &[g, above]))
        },
        "Square" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let two = scalar_like(at, x, 2.0)?;
            let twice = at.op("Mul", &[two, x])?;
            one(at.op("Mul", &[g, twice]))
        },
        "Sqrt" => |at| from_result(at, "SqrtGrad"),
        "Rsqrt" => |at| from_result(at, "RsqrtGrad"),
        "Reciprocal" | "Inv" => |at| from_result(at, "ReciprocalGrad"),
        "Tanh" => |at| from_result(at, "TanhGrad"),
        "Sigmoid" => |at| from_result(at, "SigmoidGrad"),
        // Of TanhGrad(y, dy) = dy (1 − y²).
        "TanhGrad" => |at| {
            let (g, y, dy) = binary(at)?;
            let by_dy = at.op("TanhGrad", &[y, g])?;
            let factor = scalar_like(at, y, -2.0)?;
            let slope = at.op("Mul", &[factor, y])?;
            let slope = at.op("Mul", &[slope, dy])?;
            let by_y = at.op("Mul", &[g, slope])?;
            Ok(vec![Some(by_y), Some(by_dy)])
        },
        // Of SigmoidGrad(y, dy) = dy y (1 − y).
        "SigmoidGrad" => |at| {
            let (g, y, dy) = binary(at)?;
            let by_dy = at.op("SigmoidGrad", &[y, g])?;
            let (unit, two) = (scalar_like(at, y, 1.0)?, scalar_like(at, y, 2.0)?);
            let twice = at.op("Mul", &[two, y])?;
            let slope = at.op("Sub", &[unit, twice])?;
            let slope = at.op("Mul", &[slope, dy])?;
            let by_y = at.op("Mul", &[g, slope])?;
            Ok(vec![Some(by_y), Some(by_dy)])
        },
        "Select" | "SelectV2" => select,
        "Cast" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let base = at.base(x);
            if !super::is_smooth(base) {
                return Ok(vec![None]);
            }
            one(at.cast(g, base))
        },
        _ => return None,
    })
}

/// The only gradient.
pub(super) fn one(grad: Result<Output, Status>) -> Flows {
    Ok(vec![Some(grad?)])
}

/// A scalar of the type that `like` has.
pub(super) fn scalar_like(at: &mut Back<'_>, like: Output, value: f32) -> Result<Output, Status> {
    let base = at.base(like);
    at.scalar(base, value)
}

fn binary(at: &Back<'_>) -> Result<(Output, Output, Output), Status> {
    Ok((at.grad(0)?, at.input(0)?, at.input(1)?))
}

/// The gradients of two operands that were broadcast.
fn pair(at: &mut Back<'_>, left: Option<Output>, right: Option<Output>) -> Flows {
    let operands = [at.input(0)?, at.input(1)?];
    at.unbroadcast(operands, [left, right])
}

/// A gradient that is computed from the result.
fn from_result(at: &mut Back<'_>, op: &str) -> Flows {
    let (g, y) = (at.grad(0)?, at.output(0));
    one(at.op(op, &[y, g]))
}

/// The gradient goes to whichever operand was taken; to the left if they are equal.
fn chosen(at: &mut Back<'_>, comparison: &str) -> Flows {
    let (g, x, y) = binary(at)?;
    let is_left = at.op(comparison, &[x, y])?;
    let zeros = at.op("ZerosLike", &[g])?;
    let left = at.op("SelectV2", &[is_left, g, zeros])?;
    let right = at.op("SelectV2", &[is_left, zeros, g])?;
    pair(at, Some(left), Some(right))
}

fn power(at: &mut Back<'_>) -> Flows {
    let (g, x, y) = binary(at)?;
    let result = at.output(0);
    let unit = scalar_like(at, y, 1.0)?;
    let less = at.op("Sub", &[y, unit])?;
    let lower = at.op("Pow", &[x, less])?;
    let slope = at.op("Mul", &[y, lower])?;
    let left = at.op("Mul", &[g, slope])?;
    // The logarithm of what is not above zero is taken as zero: there the result does not change smoothly with y.
    let zero = scalar_like(at, x, 0.0)?;
    let is_above = at.op("Greater", &[x, zero])?;
    let ones = at.op("OnesLike", &[x])?;
    let safe = at.op("SelectV2", &[is_above, x, ones])?;
    let log = at.op("Log", &[safe])?;
    let slope = at.op("Mul", &[result, log])?;
    let right = at.op("Mul", &[g, slope])?;
    pair(at, Some(left), Some(right))
}

fn select(at: &mut Back<'_>) -> Flows {
    let (g, condition) = (at.grad(0)?, at.input(0)?);
    let zeros = at.op("ZerosLike", &[g])?;
    let op = at.op_name();
    let yes = at.op(op, &[condition, g, zeros])?;
    let no = at.op(op, &[condition, zeros, g])?;
    if op == "Select" {
        return Ok(vec![None, Some(yes), Some(no)]);
    }
    let mut flows = vec![None];
    for (index, grad) in [(1, yes), (2, no)] {
        let (operand, result) = (at.input(index)?, at.output(0));
        flows.push(
            at.unbroadcast([operand, result], [Some(grad), None])?
                .swap_remove(0),
        );
    }
    Ok(flows)
}
