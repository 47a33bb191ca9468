//! Shape inference of operations that cut, join and rearrange.
//!
//! Knows what [`infer`](super) knows. A shape that comes as a tensor is known where that is a constant.

use super::{Inferred, Known, axis_of, merged, merged_size};
use crate::graph::attr;
use crate::graph::shape::{PartialShape, Size};
use rendez::ground::limits::GRAPH_RANK_MAX;

fn size(number: i64) -> Result<Size, String> {
    match number {
        -1 => Ok(None),
        number => match u64::try_from(number) {
            Ok(size) => Ok(Some(size)),
            Err(_) => Err(format!("{number} is no size of a dimension")),
        },
    }
}

/// The shape that the elements of input `index` say; -1 is unknown. If they are not known, its length is the rank.
fn said(known: Known<'_>, index: usize) -> Result<PartialShape, String> {
    let row = known.of_rank(index, 1)?;
    if let Some(values) = known.value(index) {
        let dims = values.iter().map(|&number| size(number));
        return Ok(PartialShape::of(dims.collect::<Result<_, _>>()?));
    }
    let rank = row.dim(0).and_then(|rank| usize::try_from(rank).ok());
    Ok(match rank.filter(|&rank| rank <= GRAPH_RANK_MAX) {
        Some(rank) => PartialShape::of_rank(rank),
        None => PartialShape::UNKNOWN,
    })
}

pub(in crate::graph) fn fill(known: Known<'_>) -> Inferred {
    merged(&known.shape(1), &PartialShape::scalar())?;
    Ok(vec![said(known, 0)?])
}

pub(in crate::graph) fn random(known: Known<'_>) -> Inferred {
    Ok(vec![said(known, 0)?])
}

pub(in crate::graph) fn broadcast_to(known: Known<'_>) -> Inferred {
    Ok(vec![said(known, 1)?])
}

pub(in crate::graph) fn broadcast_args(known: Known<'_>) -> Inferred {
    let (left, right) = (known.of_rank(0, 1)?, known.of_rank(1, 1)?);
    let longer = match (left.dim(0), right.dim(0)) {
        (Some(left), Some(right)) => Some(left.max(right)),
        _ => None,
    };
    Ok(vec![PartialShape::of(vec![longer])])
}

pub(in crate::graph) fn reshape(known: Known<'_>) -> Inferred {
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

pub(in crate::graph) fn expand_dims(known: Known<'_>) -> Inferred {
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

pub(in crate::graph) fn squeeze(known: Known<'_>) -> Inferred {
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
        let axis = axis_of(axis, dims.len())?;
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

pub(in crate::graph) fn transpose(known: Known<'_>) -> Inferred {
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
        let axis = axis_of(axis, rank)?;
        if std::mem::replace(&mut seen[axis], true) {
            return Err(format!("{axis} is repeated in perm"));
        }
        dims.push(input.dim(axis));
    }
    Ok(vec![PartialShape::of(dims)])
}

fn said_len(known: Known<'_>, index: usize) -> Result<Option<usize>, String> {
    let len = known.of_rank(index, 1)?.dim(0);
    let len = len.and_then(|len| usize::try_from(len).ok());
    Ok(len.filter(|&len| len <= GRAPH_RANK_MAX))
}

pub(in crate::graph) fn concat(known: Known<'_>) -> Inferred {
    join(known, &known.shapes[1.min(known.shapes.len())..], 0)
}

pub(in crate::graph) fn concat_v2(known: Known<'_>) -> Inferred {
    let last = known.shapes.len().saturating_sub(1);
    join(known, &known.shapes[..last], last)
}

fn join(known: Known<'_>, parts: &[PartialShape], axis_input: usize) -> Inferred {
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

pub(in crate::graph) fn split(known: Known<'_>) -> Inferred {
    let value = known.shape(1);
    let Some(rank) = value.rank() else {
        return unknowns(known);
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

pub(in crate::graph) fn split_v(known: Known<'_>) -> Inferred {
    let value = known.shape(0);
    let Some(rank) = value.rank() else {
        return unknowns(known);
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

pub(in crate::graph) fn slice(known: Known<'_>) -> Inferred {
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

pub(in crate::graph) fn pack(known: Known<'_>) -> Inferred {
    let mut one = PartialShape::UNKNOWN;
    for shape in known.shapes {
        one = merged(&one, shape)?;
    }
    let Some(dims) = one.dims() else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    let axis = axis_of(attr::int(known.attrs, "axis").unwrap_or(0), dims.len() + 1)?;
    let mut dims = dims.to_vec();
    dims.insert(axis, Some(known.shapes.len() as u64));
    Ok(vec![PartialShape::of(dims)])
}

pub(in crate::graph) fn unpack(known: Known<'_>) -> Inferred {
    let value = known.shape(0);
    let Some(dims) = value.dims() else {
        return unknowns(known);
    };
    let axis = axis_of(attr::int(known.attrs, "axis").unwrap_or(0), dims.len())?;
    merged_size(dims[axis], Some(known.outputs as u64))?;
    let mut dims = dims.to_vec();
    dims.remove(axis);
    Ok(vec![PartialShape::of(dims); known.outputs])
}

pub(in crate::graph) fn gather(known: Known<'_>) -> Inferred {
    taken(&known.shape(0), &known.shape(1), Some(0))
}

pub(in crate::graph) fn gather_v2(known: Known<'_>) -> Inferred {
    let (params, indices) = (known.shape(0), known.shape(1));
    if attr::int(known.attrs, "batch_dims").unwrap_or(0) != 0 {
        return Ok(vec![PartialShape::UNKNOWN]);
    }
    let axis = match params.rank() {
        Some(rank) => known.axis(2, rank)?,
        None => None,
    };
    taken(&params, &indices, axis)
}

/// `params` with `indices` in the place of dimension `axis`.
fn taken(params: &PartialShape, indices: &PartialShape, axis: Option<usize>) -> Inferred {
    let (Some(outer), Some(inner)) = (params.dims(), indices.dims()) else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    if outer.is_empty() {
        return Err("Shape must be at least rank 1 but is rank 0".to_owned());
    }
    let rank = outer.len() - 1 + inner.len();
    let Some(axis) = axis else {
        return Ok(vec![PartialShape::of_rank(rank)]);
    };
    let dims = [&outer[..axis], inner, &outer[axis + 1..]].concat();
    Ok(vec![PartialShape::of(dims)])
}

pub(in crate::graph) fn one_hot(known: Known<'_>) -> Inferred {
    let indices = known.shape(0);
    let Some(dims) = indices.dims() else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    let depth = match known.value(1) {
        Some(&[depth]) => size(depth)?,
        _ => None,
    };
    let axis = axis_of(attr::int(known.attrs, "axis").unwrap_or(-1), dims.len() + 1)?;
    let mut dims = dims.to_vec();
    dims.insert(axis, depth);
    Ok(vec![PartialShape::of(dims)])
}

pub(in crate::graph) fn range(known: Known<'_>) -> Inferred {
    let one = |index: usize| match known.value(index) {
        Some(&[value]) => Some(i128::from(value)),
        _ => None,
    };
    let (Some(start), Some(limit), Some(delta)) = (one(0), one(1), one(2)) else {
        return Ok(vec![PartialShape::of_rank(1)]);
    };
    if delta == 0 {
        return Err("Requires delta != 0".to_owned());
    }
    if (limit - start).signum() * delta.signum() < 0 {
        return Err(format!(
            "Requires start {start} and limit {limit} in the direction of delta {delta}"
        ));
    }
    let steps = ((limit - start).abs() + delta.abs() - 1) / delta.abs();
    Ok(vec![PartialShape::of(vec![u64::try_from(steps).ok()])])
}

fn unknowns(known: Known<'_>) -> Inferred {
    Ok(vec![PartialShape::UNKNOWN; known.outputs])
}

fn with_dim(shape: &PartialShape, axis: usize, dim: Size) -> PartialShape {
    let mut dims = shape.dims().unwrap_or_default().to_vec();
    if let Some(at) = dims.get_mut(axis) {
        *at = dim;
    }
    PartialShape::of(dims)
}
