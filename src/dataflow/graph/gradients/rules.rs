//! Rules that operations of several families share, and pieces of rules.
//!
//! Knows no operation that has one of them.

use super::{Back, Flows};
use crate::graph::flow::Output;
use rendez::ground::Status;

/// Of what hands its inputs on.
pub(crate) fn passed(at: &mut Back<'_>) -> Flows {
    Ok(at.grads.clone())
}

/// Of what does not change with its inputs, or by steps.
pub(crate) fn none(at: &mut Back<'_>) -> Flows {
    Ok(vec![None; at.inputs().len()])
}

/// The only gradient.
pub(crate) fn one(grad: Result<Output, Status>) -> Flows {
    Ok(vec![Some(grad?)])
}

/// The gradient of a result of two operands, and these.
pub(crate) fn operands(at: &Back<'_>) -> Result<(Output, Output, Output), Status> {
    Ok((at.grad(0)?, at.input(0)?, at.input(1)?))
}

/// The gradients of two operands that were broadcast.
pub(crate) fn pair(at: &mut Back<'_>, left: Option<Output>, right: Option<Output>) -> Flows {
    let operands = [at.input(0)?, at.input(1)?];
    at.unbroadcast(operands, [left, right])
}

/// All dimensions of `of`.
pub(crate) fn all_axes(at: &mut Back<'_>, of: Output) -> Result<Output, Status> {
    let rank = at.op("Rank", &[of])?;
    let (zero, unit) = (at.int(0)?, at.int(1)?);
    at.op("Range", &[zero, rank, unit])
}
