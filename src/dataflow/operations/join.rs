//! Tensors put together: side by side, or as slices of one that has a dimension more.
//!
//! Knows dimensions and sizes. A piece along the first dimension, or a whole, moves in one run.

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows};
use crate::graph::infer::{self, Inferred, Known, merged, merged_size, unknown};
use crate::graph::shape::Size;
use crate::graph::{Output, PartialShape, attr};
use crate::kernel::Call;
use crate::kernel::arrange::{Arrange, arranged};
use crate::kernel::broadcast::count_of;
use crate::kernel::call::{Done, Fault, axis_of, axis_within};
use crate::kernel::make::{Cost, made};
use rendez::ground::Shape;
use rendez::memory::Tensor;
use rendez_proto::tensorflow::DataType;

/// Picoseconds for each byte that moves.
const MOVE: usize = 200;

pub(super) const ROWS: &[Row] = &[
    row(
        "Concat",
        "concat_dim: int32, values: N * T -> output: T",
        "N: int >= 2; T: type",
        |known| joined_shape(known, &known.shapes[1.min(known.shapes.len())..], 0),
    )
    .gradient(|at| concat_gradient(at, true))
    .kernel(|_| {
        made(Cost::PerByte(MOVE), |call| {
            let axis = call.integer(0)?;
            concat(call, 1..call.inputs.len(), axis)
        })
    }),
    row(
        "ConcatV2",
        "values: N * T, axis: Tidx -> output: T",
        "N: int >= 2; T: type; Tidx: index = int32",
        |known| {
            let last = known.shapes.len().saturating_sub(1);
            joined_shape(known, &known.shapes[..last], last)
        },
    )
    .gradient(|at| concat_gradient(at, false))
    .kernel(|_| {
        made(Cost::PerByte(MOVE), |call| {
            let last = call.inputs.len().saturating_sub(1);
            let axis = call.integer(last)?;
            concat(call, 0..last, axis)
        })
    }),
    row(
        "ConcatOffset",
        "concat_dim: int32, shape: N * shape_type -> offset: N * shape_type",
        "N: int >= 2; shape_type: index = int32",
        unknown,
    )
    .kernel(|_| made(Cost::Light, concat_offset)),
    row(
        "Pack",
        "values: N * T -> output: T",
        "N: int >= 1; T: type; axis: int = 0",
        pack_shape,
    )
    .integers(packed)
    .gradient(pack_gradient)
    .kernel(|node| {
        let axis = attr::int(&node.attrs, "axis").unwrap_or(0);
        made(Cost::PerByte(MOVE), move |call| pack(call, axis))
    }),
];

fn joined_shape(known: Known<'_>, parts: &[PartialShape], axis_input: usize) -> Inferred {
    let Some(rank) = parts.iter().find_map(PartialShape::rank) else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    let Some(axis) = known.axis(axis_input, rank)? else {
        return Ok(vec![PartialShape::of_rank(rank)]);
    };
    let mut dims: Vec<Size> = vec![None; rank];
    let mut length = Some(0u64);
    for part in parts {
        let part = merged(part, &PartialShape::of_rank(rank))?;
        length = match (length, part.dim(axis)) {
            (Some(all), Some(dim)) => Some(all.saturating_add(dim)),
            _ => None,
        };
        for (index, dim) in dims
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| *index != axis)
        {
            *dim = merged_size(*dim, part.dim(index))?;
        }
    }
    dims[axis] = length;
    Ok(vec![PartialShape::of(dims)])
}

/// What was put together, cut where each part began.
fn concat_gradient(at: &mut Back<'_>, axis_is_first: bool) -> Flows {
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
    let sizes = at.op_with("ShapeN", &inputs, |node| {
        node.attr("out_type", DataType::DtInt64)
    })?;
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

fn concat(call: &mut Call<'_>, inputs: std::ops::Range<usize>, axis: i64) -> Done {
    let parts = inputs.map(|index| call.tensor(index));
    let parts = parts.collect::<Result<Vec<_>, Fault>>()?;
    let Some(first) = parts.first().map(Tensor::shape) else {
        return Err("there is nothing to concatenate".into());
    };
    let what = "ConcatOp : Expected concatenating dimensions";
    let axis = axis_within(axis, first.rank(), what)?;
    let mut along = 0u64;
    for (index, part) in parts.iter().enumerate() {
        let shape = part.shape();
        if shape.rank() != first.rank() {
            return Err(format!(
                "ConcatOp : Ranks of all input tensors should match: shape[0] = {first} vs. shape[{index}] = {shape}"
            )
            .into());
        }
        let differs = |at: usize| at != axis && shape.dim(at) != first.dim(at);
        if (0..first.rank()).any(differs) {
            return Err(format!(
                "ConcatOp : Dimension {} in both shapes must be equal: shape[0] = {first} vs. shape[{index}] = {shape}",
                (0..first.rank()).find(|&at| differs(at)).unwrap_or(axis)
            )
            .into());
        }
        along = along.saturating_add(shape.dim(axis).unwrap_or(0));
    }
    let mut dims: Vec<_> = first.dims().collect();
    dims[axis] = along;
    let inner = count_of(&dims[axis + 1..]);
    let shape = Shape::new(&dims)?;
    let width = |part: &Tensor| {
        let along = part.shape().dim(axis).unwrap_or(0) as usize;
        along.saturating_mul(inner)
    };
    beside(call, &parts, shape, width)
}

fn concat_offset(call: &mut Call<'_>) -> Done {
    let axis = call.integer(0)?;
    let first = call.dims(1)?;
    let Some(axis) = axis_of(axis, first.len()) else {
        return Err(format!("Concat dim is out of range: {axis} vs. {}", first.len()).into());
    };
    let row = Shape::new(&[first.len() as u64])?;
    let mut offset = 0i64;
    for index in 1..call.inputs.len() {
        let dims = call.dims(index)?;
        let differs = |at: usize| at != axis && dims.get(at) != first.get(at);
        if dims.len() != first.len() || (0..first.len()).any(differs) {
            let shown = |dims: &[i64]| {
                let dims: Vec<_> = dims.iter().map(i64::to_string).collect();
                dims.join(" ")
            };
            return Err(format!(
                "All dimensions except {axis} must match. Input {} has shape [{}] and doesn't match input 0 with \
                 shape [{}].",
                index - 1,
                shown(&dims),
                shown(&first)
            )
            .into());
        }
        let mut offsets = vec![0; first.len()];
        offsets[axis] = offset;
        let dtype = call.tensor(index)?.dtype();
        call.output_ints(dtype, row, &offsets)?;
        offset = offset.saturating_add(dims[axis]);
    }
    Ok(())
}

fn pack_shape(known: Known<'_>) -> Inferred {
    let mut one = PartialShape::UNKNOWN;
    for shape in known.shapes {
        one = merged(&one, shape)?;
    }
    let Some(dims) = one.dims() else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    let axis = infer::axis_of(attr::int(known.attrs, "axis").unwrap_or(0), dims.len() + 1)?;
    let mut dims = dims.to_vec();
    dims.insert(axis, Some(known.shapes.len() as u64));
    Ok(vec![PartialShape::of(dims)])
}

/// The integers of scalars, in a row.
fn packed(known: Known<'_>) -> Option<Vec<i64>> {
    let one = |index| known.value(index).filter(|row| row.len() == 1);
    let rows: Option<Vec<_>> = (0..known.values.len()).map(one).collect();
    Some(rows?.concat())
}

fn pack_gradient(at: &mut Back<'_>) -> Flows {
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
}

fn pack(call: &mut Call<'_>, axis: i64) -> Done {
    let parts = (0..call.inputs.len()).map(|index| call.tensor(index));
    let parts = parts.collect::<Result<Vec<_>, Fault>>()?;
    let Some(first) = parts.first().map(Tensor::shape) else {
        return Err("there is nothing to pack".into());
    };
    if let Some((index, other)) = parts
        .iter()
        .enumerate()
        .find(|(_, part)| part.shape() != first)
    {
        return Err(format!(
            "Shapes of all inputs must match: values[0].shape = {first} != values[{index}].shape = {}",
            other.shape()
        )
        .into());
    }
    let rank = first.rank() + 1;
    let Some(axis) = axis_of(axis, rank) else {
        return Err(format!("axis = {axis} not in [{}, {rank})", -(rank as i64)).into());
    };
    let mut dims: Vec<_> = first.dims().collect();
    let inner = count_of(&dims[axis..]);
    dims.insert(axis, parts.len() as u64);
    beside(call, &parts, Shape::new(&dims)?, |_| inner)
}

/// Inputs side by side: of each, so many elements go to a block of the output in turn.
struct Beside {
    widths: Vec<usize>,
}

impl Arrange for Beside {
    fn arrange<E: Copy>(&self, inputs: &[&[E]], _: E, out: &mut [E]) -> Done {
        if out.is_empty() {
            return Ok(());
        }
        let whole: usize = self.widths.iter().sum();
        let mut start = 0;
        for (input, &width) in inputs.iter().zip(&self.widths) {
            // A piece without width has no elements, wherever it would go.
            let pieces = input.chunks_exact(width.max(1));
            for (block, piece) in out.chunks_exact_mut(whole.max(1)).zip(pieces) {
                if let Some(place) = block.get_mut(start..start + width) {
                    place.copy_from_slice(piece);
                }
            }
            start += width;
        }
        Ok(())
    }
}

fn beside(
    call: &mut Call<'_>,
    parts: &[Tensor],
    shape: Shape,
    width: impl Fn(&Tensor) -> usize,
) -> Done {
    let how = Beside {
        widths: parts.iter().map(width).collect(),
    };
    let whole = arranged(call, &parts.iter().collect::<Vec<_>>(), shape, &how)?;
    call.push(whole);
    Ok(())
}
