//! Rules of reductions: what became one element gets its gradient back, whole or in parts.

use super::arithmetic::one;
use super::{Back, Flows, Rule};
use crate::graph::attr;
use crate::graph::flow::Output;
use rendez::ground::Status;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Sum" => |at| {
            let flow = spread(at)?;
            Ok(vec![Some(flow), None])
        },
        "Mean" => |at| {
            let (x, y) = (at.input(0)?, at.output(0));
            let flow = spread(at)?;
            let (all, left) = (at.op("Size", &[x])?, at.op("Size", &[y])?);
            let unit = at.int(1)?;
            let left = at.op("Maximum", &[left, unit])?;
            let count = at.op("FloorDiv", &[all, left])?;
            let base = at.base(x);
            let count = at.cast(count, base)?;
            let flow = at.op("RealDiv", &[flow, count])?;
            Ok(vec![Some(flow), None])
        },
        "Max" | "Min" => extreme,
        "BroadcastTo" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let result = at.output(0);
            let flow = at.unbroadcast([x, result], [Some(g), None])?.swap_remove(0);
            Ok(vec![flow, None])
        },
        "Fill" => |at| {
            let g = at.grad(0)?;
            let axes = all_axes(at, g)?;
            let flow = at.op("Sum", &[g, axes])?;
            Ok(vec![None, Some(flow)])
        },
        "Tile" => tile,
        _ => return None,
    })
}

/// All dimensions of `of`.
fn all_axes(at: &mut Back<'_>, of: Output) -> Result<Output, Status> {
    let rank = at.op("Rank", &[of])?;
    let (zero, unit) = (at.int(0)?, at.int(1)?);
    at.op("Range", &[zero, rank, unit])
}

/// `value`, shaped as the result, with the dimensions that were reduced as ones; and the shape of the input.
fn kept(at: &mut Back<'_>, value: Output) -> Result<Output, Status> {
    if attr::bool(at.attrs(), "keep_dims").unwrap_or(false) {
        return Ok(value);
    }
    if let Some([axis]) = at.constant(1).as_deref()
        && let Ok(axis) = i32::try_from(*axis)
    {
        // The dimension that went comes back; counted from the end it is the same one.
        let axis = at.int(axis)?;
        return at.op("ExpandDims", &[value, axis]);
    }
    let shape = kept_shape(at)?;
    at.op("Reshape", &[value, shape])
}

/// The shape of the input, with ones where it was reduced.
fn kept_shape(at: &mut Back<'_>) -> Result<Output, Status> {
    let (x, axes) = (at.input(0)?, at.input(1)?);
    let shape = at.shape(x)?;
    let rank = at.op("Rank", &[x])?;
    // Of a scalar there are no axes, and none is to be divided by its rank.
    let unit = at.int(1)?;
    let rank = at.op("Maximum", &[rank, unit])?;
    let column = at.ints(&[2], &[-1, 1])?;
    let axes = at.cast(axes, rendez_proto::tensorflow::DataType::DtInt32)?;
    let axes = at.op("Reshape", &[axes, column])?;
    let axes = at.op("FloorMod", &[axes, rank])?;
    let all = all_axes(at, x)?;
    let is_gone = at.op("Equal", &[axes, all])?;
    let first = at.ints(&[1], &[0])?;
    let is_gone = at.op("Any", &[is_gone, first])?;
    at.op("SelectV2", &[is_gone, unit, shape])
}

/// The gradient of the result, given to every element of the input.
fn spread(at: &mut Back<'_>) -> Result<Output, Status> {
    let (g, x) = (at.grad(0)?, at.input(0)?);
    let g = kept(at, g)?;
    let shape = at.shape(x)?;
    at.op("BroadcastTo", &[g, shape])
}

/// The gradient goes to the elements that are the largest, in equal parts.
fn extreme(at: &mut Back<'_>) -> Flows {
    let (g, x, axes) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let result = at.output(0);
    let (g, result) = (kept(at, g)?, kept(at, result)?);
    let is_it = at.op("Equal", &[result, x])?;
    let base = at.base(x);
    let is_it = at.cast(is_it, base)?;
    let count = at.op_with("Sum", &[is_it, axes], |node| node.attr("keep_dims", true))?;
    let part = at.op("RealDiv", &[is_it, count])?;
    let flow = at.op("Mul", &[part, g])?;
    Ok(vec![Some(flow), None])
}

/// Every repetition adds to what was repeated: the gradient with two dimensions for each, of which one goes.
fn tile(at: &mut Back<'_>) -> Flows {
    let (g, x, times) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let base = at.base(times);
    let shape = at.op_with("Shape", &[x], |node| node.attr("out_type", base))?;
    let pairs = at.op_with("Pack", &[times, shape], |node| node.attr("axis", 1i64))?;
    let row = at.ints(&[1], &[-1])?;
    let pairs = at.op("Reshape", &[pairs, row])?;
    let g = at.op("Reshape", &[g, pairs])?;
    let size = at.op("Size", &[pairs])?;
    let (zero, two) = (at.int(0)?, at.int(2)?);
    let axes = at.op("Range", &[zero, size, two])?;
    let flow = one(at.op("Sum", &[g, axes]))?;
    Ok(flow.into_iter().chain([None]).collect())
}
