//! Rules of products and of the layers of networks.

use super::arithmetic::one;
use super::{Back, Flows, Rule};
use crate::graph::attr;
use crate::graph::flow::Output;
use rendez::ground::Status;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "MatMul" => matmul,
        "BiasAdd" => |at| {
            let g = at.grad(0)?;
            let format = attr::text(at.attrs(), "data_format")
                .unwrap_or("NHWC")
                .to_owned();
            let bias = at.op_with("BiasAddGrad", &[g], |node| node.attr("data_format", format))?;
            Ok(vec![Some(g), Some(bias)])
        },
        "Relu" => |at| {
            let (g, y) = (at.grad(0)?, at.output(0));
            one(at.op("ReluGrad", &[g, y]))
        },
        "Relu6" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let zero = super::arithmetic::scalar_like(at, x, 0.0)?;
            let six = super::arithmetic::scalar_like(at, x, 6.0)?;
            let above = at.op("Greater", &[x, zero])?;
            let below = at.op("Less", &[x, six])?;
            let inside = at.op("LogicalAnd", &[above, below])?;
            let zeros = at.op("ZerosLike", &[g])?;
            one(at.op("SelectV2", &[inside, g, zeros]))
        },
        "ReluGrad" => |at| {
            let (g, features) = (at.grad(0)?, at.input(1)?);
            let flow = at.op("ReluGrad", &[g, features])?;
            Ok(vec![Some(flow), None])
        },
        "Softmax" => |at| {
            let (g, softmax) = (at.grad(0)?, at.output(0));
            one(through_softmax(at, g, softmax))
        },
        "LogSoftmax" => |at| {
            let (g, y) = (at.grad(0)?, at.output(0));
            let total = sum_of_rows(at, g)?;
            let softmax = at.op("Exp", &[y])?;
            let part = at.op("Mul", &[total, softmax])?;
            one(at.op("Sub", &[g, part]))
        },
        "SoftmaxCrossEntropyWithLogits" => |at| {
            let (logits, labels) = (at.input(0)?, at.input(1)?);
            let by_logits = loss(at)?;
            let log = at.op("LogSoftmax", &[logits])?;
            let log = at.op("Neg", &[log])?;
            let by_labels = match at.grads.first().copied().flatten() {
                Some(g) => {
                    let column = column(at, g)?;
                    Some(at.op("Mul", &[column, log])?)
                }
                None => None,
            };
            at.unbroadcast([logits, labels], [Some(by_logits), by_labels])
        },
        "SparseSoftmaxCrossEntropyWithLogits" => |at| Ok(vec![Some(loss(at)?), None]),
        "L2Loss" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            one(at.op("Mul", &[x, g]))
        },
        _ => return None,
    })
}

fn matmul(at: &mut Back<'_>) -> Flows {
    let (g, a, b) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let is = |at: &Back<'_>, name| attr::bool(at.attrs(), name).unwrap_or(false);
    let (turned_a, turned_b) = (is(at, "transpose_a"), is(at, "transpose_b"));
    let mut product = |left: Output, right: Output, turn_left: bool, turn_right: bool| {
        at.op_with("MatMul", &[left, right], |node| {
            node.attr("transpose_a", turn_left)
                .attr("transpose_b", turn_right)
        })
    };
    let (by_a, by_b) = match (turned_a, turned_b) {
        (false, false) => (product(g, b, false, true)?, product(a, g, true, false)?),
        (false, true) => (product(g, b, false, false)?, product(g, a, true, false)?),
        (true, false) => (product(b, g, false, true)?, product(a, g, false, false)?),
        (true, true) => (product(b, g, true, true)?, product(g, a, true, true)?),
    };
    Ok(vec![Some(by_a), Some(by_b)])
}

/// A value for each row, as a column beside the rows.
fn column(at: &mut Back<'_>, values: Output) -> Result<Output, Status> {
    let last = at.int(-1)?;
    at.op("ExpandDims", &[values, last])
}

/// The sum of each row, as a column.
fn sum_of_rows(at: &mut Back<'_>, of: Output) -> Result<Output, Status> {
    let last = at.ints(&[1], &[-1])?;
    at.op_with("Sum", &[of, last], |node| node.attr("keep_dims", true))
}

/// The gradient of the logits from the gradient `g` of their softmax.
fn through_softmax(at: &mut Back<'_>, g: Output, softmax: Output) -> Result<Output, Status> {
    let weighted = at.op("Mul", &[g, softmax])?;
    let total = sum_of_rows(at, weighted)?;
    let rest = at.op("Sub", &[g, total])?;
    at.op("Mul", &[rest, softmax])
}

/// The gradient of the logits of a loss: what its second output is, times the gradient of each row, and what flows
/// back through that output itself, for gradients of gradients.
fn loss(at: &mut Back<'_>) -> Result<Output, Status> {
    let logits = at.input(0)?;
    let (of_loss, of_gradient) = (
        at.grads.first().copied().flatten(),
        at.grads.get(1).copied().flatten(),
    );
    let mut parts = vec![];
    if let Some(g) = of_loss {
        let (column, gradient) = (column(at, g)?, at.output(1));
        parts.push(at.op("Mul", &[column, gradient])?);
    }
    if let Some(g) = of_gradient {
        let softmax = at.op("Softmax", &[logits])?;
        parts.push(through_softmax(at, g, softmax)?);
    }
    match parts.as_slice() {
        [part] => Ok(*part),
        _ => at.op("AddN", &parts),
    }
}
