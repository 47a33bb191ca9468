//! Shapes as values, and values under other shapes.
//!
//! What changes only the shape hands the same bytes on.

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows, none};
use crate::graph::infer::{
    self, Inferred, Known, said, said_len, same, same_integers, scalar, vector,
};
use crate::graph::{Node, PartialShape, attr};
use crate::kernel::Call;
use crate::kernel::arrange::{Strided, arranged, strides};
use crate::kernel::broadcast::{Walk, broadcast};
use crate::kernel::call::{Done, Fault, axis_of, heap_of, integers, shape_of};
use crate::kernel::make::{Cost, Made, dtype, made};
use rendez::ground::shape::RANK_MAX;
use rendez::ground::{DType, Shape};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::DataType;

/// Picoseconds for each byte of a transposition.
const MOVE: usize = 600;
/// Picoseconds for each byte of a permutation that is inverted.
const INVERT: usize = 1000;

const ROW: &str = "T: index = int32";

pub(super) const ROWS: &[Row] = &[
    row(
        "Shape",
        "input: T -> output: out_type",
        "T: type; out_type: index = int32",
        lengths,
    )
    .integers(dims_of)
    .gradient(none)
    .kernel(shapes),
    row(
        "ShapeN",
        "input: N * T -> output: N * out_type",
        "N: int >= 1; T: type; out_type: index = int32",
        lengths,
    )
    .gradient(none)
    .kernel(shapes),
    row(
        "Size",
        "input: T -> output: out_type",
        "T: type; out_type: index = int32",
        scalar,
    )
    .integers(|known| Some(vec![known.shapes.first()?.elements()?.cast_signed()]))
    .gradient(none)
    .kernel(|node| {
        let out_type = out_type(node);
        made(Cost::Light, move |call| {
            let size = call.tensor(0)?.shape().elements().cast_signed();
            call.output_ints(out_type, Shape::SCALAR, &[size])
        })
    }),
    row("Rank", "input: T -> output: int32", "T: type", scalar)
        .integers(|known| Some(vec![known.shapes.first()?.rank()? as i64]))
        .gradient(none)
        .kernel(|_| {
            made(Cost::Light, |call| {
                let rank = call.tensor(0)?.shape().rank() as i32;
                call.push(Tensor::scalar(rank));
                Ok(())
            })
        }),
    row(
        "Reshape",
        "tensor: T, shape: Tshape -> output: T",
        "T: type; Tshape: index = int32",
        reshape_shape,
    )
    .integers(same_integers)
    .gradient(back_in_shape)
    .kernel(|_| made(Cost::Light, reshape)),
    row(
        "ExpandDims",
        "input: T, dim: Tdim -> output: T",
        "T: type; Tdim: index = int32",
        expand_dims_shape,
    )
    .integers(same_integers)
    .gradient(back_in_shape)
    .kernel(|_| made(Cost::Light, expand_dims)),
    row(
        "Squeeze",
        "input: T -> output: T",
        "T: type; squeeze_dims: list(int) = []",
        squeeze_shape,
    )
    .integers(same_integers)
    .gradient(back_in_shape)
    .kernel(|node| {
        let axes = attr::list(&node.attrs, "squeeze_dims");
        let axes = axes.map(|list| list.i.clone()).unwrap_or_default();
        made(Cost::Light, move |call| squeeze(call, &axes))
    }),
    row(
        "Transpose",
        "x: T, perm: Tperm -> y: T",
        "T: type; Tperm: index = int32",
        transpose_shape,
    )
    .gradient(|at| {
        let (g, mut order) = (at.grad(0)?, at.input(1)?);
        let known = at.constant(1);
        if !known.is_some_and(|order| order.iter().all(|axis| *axis >= 0)) {
            // Negative ones are counted from the end, and have no place in the inverse.
            let x = at.input(0)?;
            let rank = at.op("Rank", &[x])?;
            let unit = at.int(1)?;
            let rank = at.op("Maximum", &[rank, unit])?;
            order = at.cast(order, DataType::DtInt32)?;
            order = at.op("FloorMod", &[order, rank])?;
        }
        let back = at.op("InvertPermutation", &[order])?;
        let flow = at.op("Transpose", &[g, back])?;
        Ok(vec![Some(flow), None])
    })
    .kernel(|_| made(Cost::PerByte(MOVE), transpose)),
    row("InvertPermutation", "x: T -> y: T", ROW, same)
        .kernel(|_| made(Cost::PerByte(INVERT), invert_permutation)),
    row(
        "BroadcastArgs",
        "s0: T, s1: T -> r0: T",
        ROW,
        broadcast_args_shape,
    )
    .kernel(|_| made(Cost::Light, broadcast_args)),
    row(
        "BroadcastGradientArgs",
        "s0: T, s1: T -> r0: T, r1: T",
        ROW,
        vector,
    )
    .kernel(|_| made(Cost::Light, broadcast_gradient_args)),
];

/// As long as the input has dimensions, for each input.
fn lengths(known: Known<'_>) -> Inferred {
    let row = |index| {
        let rank = known.shape(index).rank();
        PartialShape::of(vec![rank.and_then(|rank| u64::try_from(rank).ok())])
    };
    Ok((0..known.outputs).map(row).collect())
}

fn shapes(node: &Node) -> Made {
    let out_type = out_type(node);
    made(Cost::Light, move |call| {
        for index in 0..call.inputs.len() {
            let shape = call.tensor(index)?.shape();
            let dims: Vec<_> = shape.dims().map(u64::cast_signed).collect();
            call.output_ints(out_type, Shape::new(&[dims.len() as u64])?, &dims)?;
        }
        Ok(())
    })
}

/// The sizes of the first input's dimensions.
fn dims_of(known: Known<'_>) -> Option<Vec<i64>> {
    let dims = known.shapes.first()?.fully()?;
    Some(dims.iter().map(|&dim| dim.cast_signed()).collect())
}

fn out_type(node: &Node) -> DType {
    dtype(node, "out_type").unwrap_or(DType::I32)
}

fn reshape_shape(known: Known<'_>) -> Inferred {
    let (input, wanted) = (known.shape(0), said(known, 1)?);
    let (Some(elements), Some(dims)) = (input.elements(), wanted.dims()) else {
        return Ok(vec![wanted]);
    };
    if known.value(1).is_none() {
        return Ok(vec![wanted]);
    }
    let given = dims
        .iter()
        .flatten()
        .try_fold(1u64, |all, &dim| all.checked_mul(dim));
    let given = given.ok_or_else(|| format!("{wanted} has too many elements"))?;
    let refuse = || {
        Err(format!(
            "Cannot reshape a tensor with {elements} elements to shape {wanted}"
        ))
    };
    let open = dims.iter().filter(|dim| dim.is_none()).count();
    match open {
        0 if given != elements => return refuse(),
        0 => return Ok(vec![wanted]),
        1 => {}
        _ => return Err(format!("only one dimension of {wanted} may be -1")),
    }
    if given == 0 {
        return Ok(vec![wanted]);
    }
    if elements % given != 0 {
        return refuse();
    }
    let dims = dims.iter().map(|dim| dim.or(Some(elements / given)));
    Ok(vec![PartialShape::of(dims.collect())])
}

fn reshape(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    let mut dims = call.dims(1)?;
    let elements = input.shape().elements().cast_signed();
    let mut unknown = None;
    let mut known = 1i64;
    for (index, &dim) in dims.iter().enumerate() {
        match dim {
            -1 if unknown.is_some() => {
                return Err(format!(
                    "Only one input size may be -1, not both {} and {index}",
                    unknown.unwrap_or(0)
                )
                .into());
            }
            -1 => unknown = Some(index),
            dim if dim < 0 => {
                return Err(format!("Size {index} must be non-negative, not {dim}").into());
            }
            dim => {
                known = known
                    .checked_mul(dim)
                    .ok_or("the shape has 2^63 elements or more")?
            }
        }
    }
    if let Some(index) = unknown {
        if known == 0 && elements > 0 {
            return Err(format!(
                "Input to reshape is a tensor with {elements} values, but the requested shape has 0"
            )
            .into());
        }
        if known == 0 {
            return Err("reshape cannot infer the missing input size for an empty tensor unless all specified input \
                        sizes are non-zero"
                .into());
        }
        if elements % known != 0 {
            return Err(format!(
                "Input to reshape is a tensor with {elements} values, but the requested shape requires a multiple of \
                 {known}"
            )
            .into());
        }
        dims[index] = elements / known;
    } else if known != elements {
        return Err(format!(
            "Input to reshape is a tensor with {elements} values, but the requested shape has {known}"
        )
        .into());
    }
    call.push(input.reshaped(shape_of(&dims)?)?);
    Ok(())
}

fn expand_dims_shape(known: Known<'_>) -> Inferred {
    let input = known.shape(0);
    let Some(dims) = input.dims() else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    let Some(axis) = known.axis(1, dims.len() + 1)? else {
        return Ok(vec![PartialShape::of_rank(dims.len() + 1)]);
    };
    let mut dims = dims.to_vec();
    dims.insert(axis, Some(1));
    Ok(vec![PartialShape::of(dims)])
}

fn expand_dims(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    let rank = input.shape().rank();
    let axis = call.integer(1)?;
    let Some(at) = axis_of(axis, rank + 1) else {
        let lowest = -1 - rank as i64;
        return Err(format!(
            "Tried to expand dim index {axis} for tensor with {rank} dimensions. It must be in [{lowest}, {rank}]"
        )
        .into());
    };
    let mut dims: Vec<_> = input.shape().dims().collect();
    dims.insert(at, 1);
    call.push(input.reshaped(Shape::new(&dims)?)?);
    Ok(())
}

fn squeeze_shape(known: Known<'_>) -> Inferred {
    let input = known.shape(0);
    let Some(dims) = input.dims() else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    let axes = attr::list(known.attrs, "squeeze_dims").map_or(&[][..], |list| &list.i);
    if axes.is_empty() {
        if dims.iter().any(Option::is_none) {
            return Ok(vec![PartialShape::UNKNOWN]);
        }
        let left = dims.iter().copied().filter(|&dim| dim != Some(1));
        return Ok(vec![PartialShape::of(left.collect())]);
    }
    let mut gone = vec![false; dims.len()];
    for &axis in axes {
        let axis = infer::axis_of(axis, dims.len())?;
        if dims[axis].is_some_and(|dim| dim != 1) {
            return Err(format!(
                "Can not squeeze dim[{axis}] of {input}, expected a dimension of 1"
            ));
        }
        gone[axis] = true;
    }
    let left = dims.iter().zip(gone).filter(|(_, gone)| !gone);
    Ok(vec![PartialShape::of(left.map(|(&dim, _)| dim).collect())])
}

fn squeeze(call: &mut Call<'_>, axes: &[i64]) -> Done {
    let input = call.tensor(0)?;
    let rank = input.shape().rank();
    let mut gone = [false; RANK_MAX];
    for &axis in axes {
        let Some(at) = axis_of(axis, rank) else {
            let lowest = -(rank as i64);
            return Err(
                format!("Tried to squeeze dim index {axis} for tensor with {rank} dimensions. It must be in \
                     [{lowest}, {rank})")
                    .into(),
            );
        };
        let dim = input.shape().dim(at).unwrap_or(0);
        if dim != 1 {
            return Err(
                format!("Can not squeeze dim[{at}], expected a dimension of 1, got {dim}").into(),
            );
        }
        gone[at] = true;
    }
    let stays = |&(dim, gone): &(u64, bool)| if axes.is_empty() { dim != 1 } else { !gone };
    let dims: Vec<_> = input
        .shape()
        .dims()
        .zip(gone)
        .filter(stays)
        .map(|(dim, _)| dim)
        .collect();
    call.push(input.reshaped(Shape::new(&dims)?)?);
    Ok(())
}

/// The gradient under the shape that the first input had.
fn back_in_shape(at: &mut Back<'_>) -> Flows {
    let (g, x) = (at.grad(0)?, at.input(0)?);
    let flow = at.reshaped_as(g, x)?;
    let mut flows = vec![None; at.inputs().len()];
    if let Some(first) = flows.first_mut() {
        *first = Some(flow);
    }
    Ok(flows)
}

fn transpose_shape(known: Known<'_>) -> Inferred {
    let input = known.shape(0);
    let order = said_len(known, 1)?;
    if let (Some(rank), Some(order)) = (input.rank(), order)
        && rank != order
    {
        return Err(format!("perm has {order} numbers for {rank} dimensions"));
    }
    let Some(rank) = input.rank().or(order) else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    let Some(order) = known.value(1) else {
        return Ok(vec![PartialShape::of_rank(rank)]);
    };
    let mut dims = Vec::with_capacity(rank);
    let mut seen = vec![false; rank];
    for &axis in order {
        let axis = infer::axis_of(axis, rank)?;
        if std::mem::replace(&mut seen[axis], true) {
            return Err(format!("{axis} is repeated in perm"));
        }
        dims.push(input.dim(axis));
    }
    Ok(vec![PartialShape::of(dims)])
}

fn transpose(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    let shape = input.shape();
    let order = permutation(call, 1, shape.rank())?;
    let own = strides(shape);
    let dims: Vec<_> = order.iter().map(|&at| shape.dim(at).unwrap_or(0)).collect();
    let out = Shape::new(&dims)?;
    // Dimensions of one element may go anywhere without a byte being moved.
    let moved: Vec<_> = order
        .iter()
        .filter(|&&at| shape.dim(at) != Some(1))
        .collect();
    if moved.is_sorted() {
        call.push(input.reshaped(out)?);
        return Ok(());
    }
    let walk = Walk::over(
        order
            .iter()
            .map(|&at| (shape.dim(at).unwrap_or(0) as usize, [own[at]])),
    );
    let turned = arranged(call, &[&input], out, &Strided { base: 0, walk })?;
    call.push(turned);
    Ok(())
}

/// The permutation of `rank` dimensions that input `index` is.
fn permutation(call: &Call<'_>, index: usize, rank: usize) -> Result<Vec<usize>, Fault> {
    let axes = call.dims(index)?;
    if axes.len() != rank {
        return Err(format!(
            "transpose expects a vector of size {rank}. But input({index}) is a vector of size {}",
            axes.len()
        )
        .into());
    }
    let mut seen = [false; RANK_MAX];
    let mut permutation = Vec::with_capacity(rank);
    for axis in axes {
        let Some(at) = axis_of(axis, rank) else {
            return Err(format!("{axis} is out of range [0 .. {rank})").into());
        };
        seen[at] = true;
        permutation.push(at);
    }
    // Entries that are as many as dimensions and miss one have another twice.
    if let Some(missing) = seen.iter().take(rank).position(|seen| !seen) {
        let entries: Vec<_> = permutation.iter().map(usize::to_string).collect();
        return Err(format!("{missing} is missing from {{{}}}.", entries.join(",")).into());
    }
    Ok(permutation)
}

fn invert_permutation(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    if input.shape().rank() != 1 {
        return Err(format!(
            "invert_permutation expects a 1D vector, not shape {}",
            input.shape()
        )
        .into());
    }
    let entries = integers(&input)?;
    let mut inverse = heap_of(entries.len(), -1i64)?;
    for (at, &entry) in (0i64..).zip(&entries) {
        let place = usize::try_from(entry)
            .ok()
            .and_then(|entry| inverse.get_mut(entry));
        let Some(place) = place else {
            return Err(format!("{entry} is not between 0 and {}", entries.len()).into());
        };
        if std::mem::replace(place, at) != -1 {
            return Err(format!("{entry} is duplicated in the input.").into());
        }
    }
    call.output_ints(input.dtype(), input.shape(), &inverse)
}

fn broadcast_args_shape(known: Known<'_>) -> Inferred {
    let (left, right) = (known.of_rank(0, 1)?, known.of_rank(1, 1)?);
    let longer = match (left.dim(0), right.dim(0)) {
        (Some(left), Some(right)) => Some(left.max(right)),
        _ => None,
    };
    Ok(vec![PartialShape::of(vec![longer])])
}

fn broadcast_args(call: &mut Call<'_>) -> Done {
    let shape = broadcast(shape_of(&call.dims(0)?)?, shape_of(&call.dims(1)?)?)?;
    let dims: Vec<_> = shape.dims().map(u64::cast_signed).collect();
    let dtype = call.tensor(0)?.dtype();
    call.output_ints(dtype, Shape::new(&[dims.len() as u64])?, &dims)
}

/// For each of two shapes that were broadcast, the dimensions over which a gradient of the result is to be added up.
fn broadcast_gradient_args(call: &mut Call<'_>) -> Done {
    let (left, right) = (shape_of(&call.dims(0)?)?, shape_of(&call.dims(1)?)?);
    let dtype = call.tensor(0)?.dtype();
    let out = broadcast(left, right)?;
    for own in [left, right] {
        let front = out.rank() - own.rank();
        let added = (0..out.rank()).filter(|&index| {
            let dim = index
                .checked_sub(front)
                .and_then(|index| own.dim(index))
                .unwrap_or(1);
            dim == 1 && left != right
        });
        let added: Vec<_> = added.map(|index| index as i64).collect();
        call.output_ints(dtype, Shape::new(&[added.len() as u64])?, &added)?;
    }
    Ok(())
}
