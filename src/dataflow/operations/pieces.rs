//! Pieces: tensors put together, cut apart and sliced.
//!
//! Knows dimensions and sizes. A piece along the first dimension, or a whole, moves in one run.

use crate::graph::{Node, attr};
use crate::kernel::Call;
use crate::kernel::arrange::{Arrange, Strided, arranged, strides};
use crate::kernel::broadcast::Walk;
use crate::kernel::call::{Done, Fault, axis_of, shape_of};
use crate::kernel::make::{Cost, Made, made};
use rendez::ground::Shape;
use rendez::memory::Tensor;

mod strided;

/// Picoseconds for each byte that moves.
const MOVE: usize = 200;

pub(super) fn make(node: &Node) -> Made {
    let axis = attr::int(&node.attrs, "axis").unwrap_or(0);
    let outputs = node.out_ports().len();
    match node.op.name() {
        "Concat" => made(Cost::PerByte(MOVE), |call| {
            let axis = call.integer(0)?;
            concat(call, 1..call.inputs.len(), axis)
        }),
        "ConcatV2" => made(Cost::PerByte(MOVE), |call| {
            let last = call.inputs.len().saturating_sub(1);
            let axis = call.integer(last)?;
            concat(call, 0..last, axis)
        }),
        "ConcatOffset" => made(Cost::Light, concat_offset),
        "Pack" => made(Cost::PerByte(MOVE), move |call| pack(call, axis)),
        "Unpack" => made(Cost::PerByte(MOVE), move |call| unpack(call, axis, outputs)),
        "Split" => made(Cost::PerByte(MOVE), move |call| split(call, outputs)),
        "SplitV" => made(Cost::PerByte(MOVE), move |call| split_v(call, outputs)),
        "Slice" => made(Cost::PerByte(MOVE), slice),
        _ => strided::make(node),
    }
}

/// Inputs side by side: of each, so many elements go to a block of the output in turn.
struct Beside {
    widths: Vec<usize>,
}

impl Arrange for Beside {
    fn arrange<E: Copy>(&self, inputs: &[&[E]], _: E, out: &mut [E]) -> Done {
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

fn concat(call: &mut Call<'_>, inputs: std::ops::Range<usize>, axis: i64) -> Done {
    let parts = inputs.map(|index| call.tensor(index));
    let parts = parts.collect::<Result<Vec<_>, Fault>>()?;
    let Some(first) = parts.first().map(Tensor::shape) else {
        return Err("there is nothing to concatenate".into());
    };
    let Some(axis) = axis_of(axis, first.rank()) else {
        let rank = first.rank();
        return Err(format!(
            "ConcatOp : Expected concatenating dimensions in the range [{}, {rank}), but got {axis}",
            -(rank as i64)
        )
        .into());
    };
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
    let inner = dims[axis + 1..].iter().product::<u64>() as usize;
    let shape = Shape::new(&dims)?;
    let width = |part: &Tensor| part.shape().dim(axis).unwrap_or(0) as usize * inner;
    beside(call, &parts, shape, width)
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
    let inner = dims[axis..].iter().product::<u64>() as usize;
    dims.insert(axis, parts.len() as u64);
    beside(call, &parts, Shape::new(&dims)?, |_| inner)
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

fn split_v(call: &mut Call<'_>, count: usize) -> Done {
    let input = call.tensor(0)?;
    let (axis, size) = split_axis(call, 2, &input)?;
    let sizes = crate::kernel::call::integers(&call.tensor(1)?)?;
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
