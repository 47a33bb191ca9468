//! Shapes as values, and values under other shapes.
//!
//! What changes only the shape hands the same bytes on.

use crate::graph::{Node, attr};
use crate::kernel::Call;
use crate::kernel::arrange::{Strided, arranged, strides};
use crate::kernel::broadcast::{Walk, broadcast};
use crate::kernel::call::{Done, Fault, axis_of, shape_of};
use crate::kernel::make::{Cost, Made, dtype, made};
use rendez::ground::shape::RANK_MAX;
use rendez::ground::{DType, Shape};
use rendez::memory::Tensor;

/// Picoseconds for each byte of a transposition.
const MOVE: usize = 600;

pub(super) fn make(node: &Node) -> Made {
    let out_type = dtype(node, "out_type").unwrap_or(DType::I32);
    match node.op.name() {
        "Shape" | "ShapeN" => made(Cost::Light, move |call| {
            for index in 0..call.inputs.len() {
                let shape = call.tensor(index)?.shape();
                let dims: Vec<_> = shape.dims().map(u64::cast_signed).collect();
                call.output_ints(out_type, Shape::new(&[dims.len() as u64])?, &dims)?;
            }
            Ok(())
        }),
        "Size" => made(Cost::Light, move |call| {
            let size = call.tensor(0)?.shape().elements().cast_signed();
            call.output_ints(out_type, Shape::SCALAR, &[size])
        }),
        "Rank" => made(Cost::Light, |call| {
            let rank = call.tensor(0)?.shape().rank() as i32;
            call.push(Tensor::scalar(rank));
            Ok(())
        }),
        "Reshape" => made(Cost::Light, reshape),
        "ExpandDims" => made(Cost::Light, expand_dims),
        "Squeeze" => {
            let axes = attr::list(&node.attrs, "squeeze_dims");
            let axes = axes.map(|list| list.i.clone()).unwrap_or_default();
            made(Cost::Light, move |call| squeeze(call, &axes))
        }
        "Transpose" => made(Cost::PerByte(MOVE), transpose),
        "InvertPermutation" => made(Cost::Light, invert_permutation),
        "BroadcastArgs" => made(Cost::Light, |call| {
            let shape = broadcast(shape_of(&call.dims(0)?)?, shape_of(&call.dims(1)?)?)?;
            let dims: Vec<_> = shape.dims().map(u64::cast_signed).collect();
            let dtype = call.tensor(0)?.dtype();
            call.output_ints(dtype, Shape::new(&[dims.len() as u64])?, &dims)
        }),
        "BroadcastGradientArgs" => made(Cost::Light, broadcast_gradient_args),
        _ => Ok(None),
    }
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

fn invert_permutation(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    if input.shape().rank() != 1 {
        return Err(format!(
            "invert_permutation expects a 1D vector, not shape {}",
            input.shape()
        )
        .into());
    }
    let entries = crate::kernel::call::integers(&input)?;
    let mut inverse = vec![-1i64; entries.len()];
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
