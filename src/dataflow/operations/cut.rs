//! Tensors cut apart: into pieces along a dimension, and to a slice.
//!
//! Knows dimensions and sizes. A whole is handed on as it is.

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows, one};
use crate::graph::infer::{self, Inferred, Known, merged_size, said_len, size, unknown};
use crate::graph::shape::Size;
use crate::graph::{Output, PartialShape, attr};
use crate::kernel::Call;
use crate::kernel::arrange::{Strided, arranged, strides};
use crate::kernel::broadcast::Walk;
use crate::kernel::call::{Done, Fault, axis_of, integers, shape_of};
use crate::kernel::make::{Cost, made};
use rendez::ground::{Shape, Status};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::DataType;

/// Picoseconds for each byte that moves.
const MOVE: usize = 200;

pub(super) const ROWS: &[Row] = &[
    row(
        "Split",
        "split_dim: int32, value: T -> output: num_split * T",
        "num_split: int >= 1; T: type",
        split_shape,
    )
    .gradient(|at| {
        let axis = at.input(0)?;
        let flow = joined(at, axis)?;
        Ok(vec![None, Some(flow)])
    })
    .kernel(|node| {
        let outputs = node.out_ports().len();
        made(Cost::PerByte(MOVE), move |call| split(call, outputs))
    }),
    row(
        "SplitV",
        "value: T, size_splits: Tlen, split_dim: int32 -> output: num_split * T",
        "num_split: int >= 1; T: type; Tlen: {int8, int32, int64} = int64",
        split_v_shape,
    )
    .gradient(|at| {
        let axis = at.input(2)?;
        let flow = joined(at, axis)?;
        Ok(vec![Some(flow), None, None])
    })
    .kernel(|node| {
        let outputs = node.out_ports().len();
        made(Cost::PerByte(MOVE), move |call| split_v(call, outputs))
    }),
    row(
        "Unpack",
        "value: T -> output: num * T",
        "num: int >= 0; T: type; axis: int = 0",
        unpack_shape,
    )
    .gradient(|at| {
        let axis = attr::int(at.attrs(), "axis").unwrap_or(0);
        let parts = at.grads_or_zeros()?;
        one(at.op_with("Pack", &parts, |node| node.attr("axis", axis)))
    })
    .kernel(|node| {
        let axis = attr::int(&node.attrs, "axis").unwrap_or(0);
        let outputs = node.out_ports().len();
        made(Cost::PerByte(MOVE), move |call| unpack(call, axis, outputs))
    }),
    row(
        "Slice",
        "input: T, begin: Index, size: Index -> output: T",
        "T: type; Index: index",
        slice_shape,
    )
    .gradient(slice_gradient)
    .kernel(|_| made(Cost::PerByte(MOVE), slice)),
];

fn split_shape(known: Known<'_>) -> Inferred {
    let value = known.shape(1);
    let Some(rank) = value.rank() else {
        return unknown(known);
    };
    let Some(axis) = known.axis(0, rank)? else {
        return Ok(vec![PartialShape::of_rank(rank); known.outputs]);
    };
    let parts = known.outputs as u64;
    let dim = value.dim(axis);
    if let Some(dim) = dim.filter(|dim| parts == 0 || dim % parts != 0) {
        return Err(format!(
            "Dimension size {dim} must be evenly divisible by {parts}"
        ));
    }
    let part = with_dim(&value, axis, dim.map(|dim| dim / parts));
    Ok(vec![part; known.outputs])
}

fn split(call: &mut Call<'_>, count: usize) -> Done {
    let input = call.tensor(1)?;
    let (axis, size) = split_axis(call, 0, &input)?;
    if size % count as u64 != 0 {
        return Err(format!(
            "Number of ways to split should evenly divide the split dimension, but got split_dim {axis} (size = \
             {size}) \
             and num_split {count}"
        )
        .into());
    }
    cut(call, &input, axis, &vec![size / count as u64; count])
}

fn split_v_shape(known: Known<'_>) -> Inferred {
    let value = known.shape(0);
    let Some(rank) = value.rank() else {
        return unknown(known);
    };
    let (Some(axis), Some(sizes)) = (known.axis(2, rank)?, known.value(1)) else {
        return Ok(vec![PartialShape::of_rank(rank); known.outputs]);
    };
    if sizes.len() != known.outputs {
        return Err(format!("{} sizes for {} parts", sizes.len(), known.outputs));
    }
    let part = |&number: &i64| Ok(with_dim(&value, axis, size(number)?));
    sizes.iter().map(part).collect()
}

fn split_v(call: &mut Call<'_>, count: usize) -> Done {
    let input = call.tensor(0)?;
    let (axis, size) = split_axis(call, 2, &input)?;
    let sizes = integers(&call.tensor(1)?)?;
    if sizes.len() != count {
        return Err(format!(
            "size_splits must have {count} elements, and has {}",
            sizes.len()
        )
        .into());
    }
    let known: i64 = sizes
        .iter()
        .filter(|&&size| size >= 0)
        .fold(0i64, |all, &size| all.saturating_add(size));
    let unknown = sizes.iter().filter(|&&size| size == -1).count();
    let rest = size.cast_signed() - known;
    if unknown > 1 {
        return Err("There can only be one -1 in the input.".into());
    }
    if let Some(wrong) = sizes.iter().find(|&&size| size < -1) {
        return Err(format!(
            "Split sizes must be >= 0, or one of them -1, and not {wrong}: {sizes:?}"
        )
        .into());
    }
    if rest < 0 || (unknown == 0 && rest != 0) {
        return Err(format!(
            "Determined shape must either match input shape along split_dim exactly if fully specified, or be less \
             than \
             the size of the input along split_dim if not fully specified.  Got: {known}, and the input has {size}"
        )
        .into());
    }
    let sizes: Vec<_> = sizes
        .iter()
        .map(|&size| u64::try_from(size).unwrap_or_else(|_| rest.unsigned_abs()))
        .collect();
    cut(call, &input, axis, &sizes)
}

fn split_axis(call: &Call<'_>, index: usize, input: &Tensor) -> Result<(usize, u64), Fault> {
    let axis = call.integer(index)?;
    let rank = input.shape().rank();
    let Some(at) = axis_of(axis, rank) else {
        return Err(format!(
            "-input rank(-{rank}) <= split_dim < input rank ({rank}), but got {axis}"
        )
        .into());
    };
    Ok((at, input.shape().dim(at).unwrap_or(0)))
}

/// What was split, put together.
fn joined(at: &mut Back<'_>, axis: Output) -> Result<Output, Status> {
    let parts = at.grads_or_zeros()?;
    if let [part] = parts.as_slice() {
        return Ok(*part);
    }
    let inputs: Vec<_> = parts.into_iter().chain([axis]).collect();
    at.op("ConcatV2", &inputs)
}

fn unpack_shape(known: Known<'_>) -> Inferred {
    let value = known.shape(0);
    let Some(dims) = value.dims() else {
        return unknown(known);
    };
    let axis = infer::axis_of(attr::int(known.attrs, "axis").unwrap_or(0), dims.len())?;
    merged_size(dims[axis], Some(known.outputs as u64))?;
    let mut dims = dims.to_vec();
    dims.remove(axis);
    Ok(vec![PartialShape::of(dims); known.outputs])
}

fn unpack(call: &mut Call<'_>, axis: i64, count: usize) -> Done {
    let input = call.tensor(0)?;
    let shape = input.shape();
    let Some(axis) = axis_of(axis, shape.rank()) else {
        let rank = shape.rank();
        return Err(format!("axis = {axis} not in [{}, {rank})", -(rank as i64)).into());
    };
    if shape.dim(axis) != Some(count as u64) {
        return Err(
            format!("Input shape axis {axis} must equal {count}, got shape {shape}").into(),
        );
    }
    let mut dims: Vec<_> = shape.dims().collect();
    let mut begin = vec![0; dims.len()];
    dims[axis] = 1;
    let whole = dims.clone();
    dims.remove(axis);
    let piece_shape = Shape::new(&dims)?;
    for index in 0..count {
        begin[axis] = index;
        let piece = part(call, &input, &begin, &whole)?;
        call.push(piece.reshaped(piece_shape)?);
    }
    Ok(())
}

fn with_dim(shape: &PartialShape, axis: usize, dim: Size) -> PartialShape {
    let mut dims = shape.dims().unwrap_or_default().to_vec();
    if let Some(at) = dims.get_mut(axis) {
        *at = dim;
    }
    PartialShape::of(dims)
}

/// The pieces of `input` along `axis`, of these sizes, one after the other.
fn cut(call: &mut Call<'_>, input: &Tensor, axis: usize, sizes: &[u64]) -> Done {
    let mut dims: Vec<_> = input.shape().dims().collect();
    let mut begin = vec![0; dims.len()];
    for &size in sizes {
        dims[axis] = size;
        let piece = part(call, input, &begin, &dims)?;
        call.push(piece);
        begin[axis] = begin[axis].saturating_add(size as usize);
    }
    Ok(())
}

fn slice_shape(known: Known<'_>) -> Inferred {
    let input = known.shape(0);
    let rank = match (input.rank(), said_len(known, 1)?, said_len(known, 2)?) {
        (Some(rank), ..) | (None, Some(rank), _) | (None, None, Some(rank)) => rank,
        _ => return Ok(vec![PartialShape::UNKNOWN]),
    };
    let (Some(begin), Some(sizes)) = (known.value(1), known.value(2)) else {
        return Ok(vec![PartialShape::of_rank(rank)]);
    };
    if begin.len() != rank || sizes.len() != rank {
        return Err(format!("a slice of {input} needs {rank} begins and sizes"));
    }
    let mut dims = vec![];
    for (index, (&begin, &number)) in begin.iter().zip(sizes).enumerate() {
        let start = u64::try_from(begin).map_err(|_| format!("begin {begin} is negative"))?;
        let rest = match input.dim(index) {
            Some(dim) if start > dim => {
                return Err(format!(
                    "begin {begin} is past dimension {index} of {input}"
                ));
            }
            dim => dim.map(|dim| dim - start),
        };
        dims.push(match (size(number)?, rest) {
            (None, rest) => rest,
            (Some(wanted), Some(rest)) if wanted > rest => {
                return Err(format!(
                    "begin {begin} and size {wanted} are past dimension {index} of {input}"
                ));
            }
            (wanted, _) => wanted,
        });
    }
    Ok(vec![PartialShape::of(dims)])
}

fn slice_gradient(at: &mut Back<'_>) -> Flows {
    let (g, x, begin) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let begin = at.cast(begin, DataType::DtInt64)?;
    let (shape, size) = (at.shape(x)?, at.shape(g)?);
    let end = at.op("AddV2", &[begin, size])?;
    let strides = at.op("OnesLike", &[begin])?;
    let flow = at.op("StridedSliceGrad", &[shape, begin, end, strides, g])?;
    Ok(vec![Some(flow), None, None])
}

fn slice(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    let shape = input.shape();
    let (begin, size) = (call.dims(1)?, call.dims(2)?);
    if begin.len() != shape.rank() || size.len() != shape.rank() {
        return Err(format!(
            "Expected begin and size arguments to be 1-D tensors of size {}, but got shapes [{}] and [{}] instead.",
            shape.rank(),
            begin.len(),
            size.len()
        )
        .into());
    }
    let mut starts = vec![];
    let mut dims = vec![];
    for (at, ((&begin, &size), dim)) in begin.iter().zip(&size).zip(shape.dims()).enumerate() {
        let dim = dim.cast_signed();
        if !(0..=dim).contains(&begin) {
            return Err(format!("Expected begin[{at}] in [0, {dim}], but got {begin}").into());
        }
        let size = if size == -1 { dim - begin } else { size };
        if !(0..=dim - begin).contains(&size) {
            return Err(format!(
                "Expected size[{at}] in [0, {}], but got {size}",
                dim - begin
            )
            .into());
        }
        starts.push(begin as usize);
        dims.push(size);
    }
    let dims: Vec<_> = shape_of(&dims)?.dims().collect();
    let piece = part(call, &input, &starts, &dims)?;
    call.push(piece);
    Ok(())
}

/// The part of `input` that begins at `begin` and has these dimensions; the same tensor if that is all of it.
fn part(call: &Call<'_>, input: &Tensor, begin: &[usize], dims: &[u64]) -> Result<Tensor, Fault> {
    let shape = Shape::new(dims)?;
    if shape == input.shape() {
        return Ok(input.clone());
    }
    let strides = strides(input.shape());
    let base = begin
        .iter()
        .zip(&strides)
        .map(|(&begin, &stride)| begin.wrapping_mul(stride));
    let base = base.fold(0usize, usize::wrapping_add);
    let each = dims
        .iter()
        .zip(&strides)
        .map(|(&dim, &stride)| (dim as usize, [stride]));
    let walk = Walk::over(each);
    arranged(call, &[input], shape, &Strided { base, walk })
}
