//! Rules of what arranges elements: each goes back where it came from.

use super::arithmetic::one;
use super::{Back, Flows, Rule};
use crate::graph::attr;
use crate::graph::flow::Output;
use rendez::ground::Status;
use rendez_proto::tensorflow::DataType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Reshape" | "ExpandDims" | "Squeeze" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let flow = at.reshaped_as(g, x)?;
            let mut flows = vec![None; at.inputs().len()];
            if let Some(first) = flows.first_mut() {
                *first = Some(flow);
            }
            Ok(flows)
        },
        "Transpose" => |at| {
            let (g, order) = (at.grad(0)?, at.input(1)?);
            let back = at.op("InvertPermutation", &[order])?;
            let flow = at.op("Transpose", &[g, back])?;
            Ok(vec![Some(flow), None])
        },
        "Concat" => |at| concat(at, true),
        "ConcatV2" => |at| concat(at, false),
        "Split" => |at| {
            let axis = at.input(0)?;
            let flow = joined(at, axis)?;
            Ok(vec![None, Some(flow)])
        },
        "SplitV" => |at| {
            let axis = at.input(2)?;
            let flow = joined(at, axis)?;
            Ok(vec![Some(flow), None, None])
        },
        "Pack" => |at| {
            let g = at.grad(0)?;
            let count = at.inputs().len();
            let axis = attr::int(at.attrs(), "axis").unwrap_or(0);
            let parts = at.op_with("Unpack", &[g], |node| {
                node.attr("num", i64::try_from(count).unwrap_or(0))
                    .attr("axis", axis)
            })?;
            Ok((0..)
                .take(count)
                .map(|port| Some(Output { port, ..parts }))
                .collect())
        },
        "Unpack" => |at| {
            let axis = attr::int(at.attrs(), "axis").unwrap_or(0);
            let parts = all_grads(at)?;
            one(at.op_with("Pack", &parts, |node| node.attr("axis", axis)))
        },
        "Slice" => |at| {
            let (g, x, begin) = (at.grad(0)?, at.input(0)?, at.input(1)?);
            let base = at.base(begin);
            let typed = |at: &mut Back<'_>, of| {
                at.op_with("Shape", &[of], |node| node.attr("out_type", base))
            };
            let (shape, size) = (typed(at, x)?, typed(at, g)?);
            let end = at.op("AddV2", &[begin, size])?;
            let strides = at.op("OnesLike", &[begin])?;
            let flow = at.op("StridedSliceGrad", &[shape, begin, end, strides, g])?;
            Ok(vec![Some(flow), None, None])
        },
        "StridedSlice" => |at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            let [begin, end, strides] = [at.input(1)?, at.input(2)?, at.input(3)?];
            let base = at.base(begin);
            let shape = at.op_with("Shape", &[x], |node| match base {
                DataType::DtInt64 => node.attr("out_type", base),
                _ => node,
            })?;
            let shape = at.cast(shape, base)?;
            let masks = [
                "begin_mask",
                "end_mask",
                "ellipsis_mask",
                "new_axis_mask",
                "shrink_axis_mask",
            ];
            let masks = masks.map(|name| (name, attr::int(at.attrs(), name).unwrap_or(0)));
            let flow = at.op_with(
                "StridedSliceGrad",
                &[shape, begin, end, strides, g],
                |node| {
                    masks
                        .into_iter()
                        .fold(node, |node, (name, mask)| node.attr(name, mask))
                },
            )?;
            Ok(vec![Some(flow), None, None, None])
        },
        "Gather" => |at| {
            let axis = at.int(0)?;
            let flow = gathered(at, axis)?;
            Ok(vec![Some(flow), None])
        },
        "GatherV2" => |at| {
            if attr::int(at.attrs(), "batch_dims").unwrap_or(0) != 0 {
                return Err(at.refuse("has one only without batch_dims"));
            }
            let axis = at.input(2)?;
            let axis = at.cast(axis, DataType::DtInt32)?;
            let flow = gathered(at, axis)?;
            Ok(vec![Some(flow), None, None])
        },
        _ => return None,
    })
}

/// The gradients of all outputs, zeros where there are none.
fn all_grads(at: &mut Back<'_>) -> Result<Vec<Output>, Status> {
    (0..at.grads.len())
        .map(|index| at.grad_or_zeros(index))
        .collect()
}

/// What was split, put together.
fn joined(at: &mut Back<'_>, axis: Output) -> Result<Output, Status> {
    let parts = all_grads(at)?;
    if let [part] = parts.as_slice() {
        return Ok(*part);
    }
    let inputs: Vec<_> = parts.into_iter().chain([axis]).collect();
    at.op("ConcatV2", &inputs)
}

/// What was put together, cut where each part began.
fn concat(at: &mut Back<'_>, axis_is_first: bool) -> Flows {
    let g = at.grad(0)?;
    let mut inputs = at.inputs();
    let axis = if axis_is_first {
        Some(inputs.remove(0))
    } else {
        inputs.pop()
    };
    let (Some(axis), Some(&first)) = (axis, inputs.first()) else {
        return Err(at.refuse("lacks inputs"));
    };
    let rank = at.op("Rank", &[first])?;
    let axis = at.cast(axis, DataType::DtInt32)?;
    let axis = at.op("FloorMod", &[axis, rank])?;
    let sizes = at.op("ShapeN", &inputs)?;
    let size = |port| Output { port, ..sizes };
    let ports = (0u32..).take(inputs.len());
    let arguments: Vec<_> = std::iter::once(axis)
        .chain(ports.clone().map(size))
        .collect();
    let starts = at.op("ConcatOffset", &arguments)?;
    let mut flows = vec![];
    for port in ports {
        let part = at.op("Slice", &[g, Output { port, ..starts }, size(port)])?;
        flows.push(Some(part));
    }
    flows.insert(if axis_is_first { 0 } else { flows.len() }, None);
    Ok(flows)
}

/// What was gathered, added up where it came from: the gradient as outer × picks × inner, turned so that the picks come
/// first, summed by their indices, and turned back.
fn gathered(at: &mut Back<'_>, axis: Output) -> Result<Output, Status> {
    let (g, params, indices) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let shape = at.shape(params)?;
    let rank = at.op("Rank", &[params])?;
    let axis = at.op("FloorMod", &[axis, rank])?;
    let row = at.ints(&[1], &[-1])?;
    let unit = at.ints(&[1], &[1])?;
    let start = at.ints(&[1], &[0])?;
    let at_axis = at.op("Reshape", &[axis, row])?;
    let after = at.op("AddV2", &[at_axis, unit])?;
    let before = at.op("Slice", &[shape, start, at_axis])?;
    let behind = at.op("Slice", &[shape, after, row])?;
    let along = at.op("Slice", &[shape, at_axis, unit])?;
    let mut product = |of| at.op_with("Prod", &[of, start], |node| node.attr("keep_dims", true));
    let (outer, inner) = (product(before)?, product(behind)?);
    let picks = at.op("Size", &[indices])?;
    let picks = at.op("Reshape", &[picks, row])?;
    let zero = at.int(0)?;
    let folded = at.op("ConcatV2", &[outer, picks, inner, zero])?;
    let g = at.op("Reshape", &[g, folded])?;
    let turn = at.ints(&[3], &[1, 0, 2])?;
    let g = at.op("Transpose", &[g, turn])?;
    let flat = at.op("Reshape", &[indices, row])?;
    let scalar = at.ints(&[0], &[])?;
    let segments = at.op("Reshape", &[along, scalar])?;
    let sums = at.op("UnsortedSegmentSum", &[g, flat, segments])?;
    let sums = at.op("Transpose", &[sums, turn])?;
    at.op("Reshape", &[sums, shape])
}
