//! Shape inference of single operations: from what is known of the inputs to what is known of the outputs.
//!
//! Knows no graph: [`shapes`](super::shapes) walks it. The rules are those of TensorFlow's shape functions, and refuse
//! what those refuse: an unknown dimension fits everything, a known one only itself.

use super::attr::{self, Attrs};
use super::shape::{PartialShape, Size, merge_size};

mod pieces;
#[cfg(test)]
mod tests;

pub(super) use pieces::{
    broadcast_args, broadcast_to, concat, concat_v2, expand_dims, fill, gather, gather_v2, one_hot,
    pack, random, range, reshape, slice, split, split_v, squeeze, transpose, unpack,
};

/// What is known of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// The shapes of its inputs.
    pub(super) shapes: &'a [PartialShape],
    /// The elements of its inputs, where they are integers that never change.
    pub(super) values: &'a [Option<Vec<i64>>],
    /// Its attributes.
    pub(super) attrs: &'a Attrs,
    /// How many outputs it has.
    pub(super) outputs: usize,
}

/// Outputs, or what contradicts itself.
pub(super) type Inferred = Result<Vec<PartialShape>, String>;
/// A rule.
pub(super) type Infer = fn(Known<'_>) -> Inferred;

impl Known<'_> {
    /// The shape of input `index`.
    pub(super) fn shape(&self, index: usize) -> PartialShape {
        self.shapes.get(index).cloned().unwrap_or_default()
    }

    /// The elements of input `index`.
    pub(super) fn value(&self, index: usize) -> Option<&[i64]> {
        self.values.get(index)?.as_deref()
    }

    /// Input `index`, which must have `rank` dimensions.
    pub(super) fn of_rank(&self, index: usize, rank: usize) -> Result<PartialShape, String> {
        let shape = self.shape(index);
        match shape.rank() {
            Some(actual) if actual != rank => Err(format!(
                "Shape must be rank {rank} but is rank {actual} for input {index}, {shape}"
            )),
            _ => merged(&shape, &PartialShape::of_rank(rank)),
        }
    }

    /// The one element of input `index` as an axis of a tensor of `rank` dimensions.
    pub(super) fn axis(&self, index: usize, rank: usize) -> Result<Option<usize>, String> {
        match self.value(index) {
            Some(&[axis]) => axis_of(axis, rank).map(Some),
            Some(values) => Err(format!("an axis must be one number, not {}", values.len())),
            None => Ok(None),
        }
    }
}

/// `axis`, counted from the end if it is negative, as one of `rank`.
pub(super) fn axis_of(axis: i64, rank: usize) -> Result<usize, String> {
    let count = i64::try_from(rank).unwrap_or(i64::MAX);
    let from_front = if axis < 0 {
        axis.saturating_add(count)
    } else {
        axis
    };
    usize::try_from(from_front)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or_else(|| format!("axis {axis} is not one of {rank} dimensions"))
}

/// What both know together.
pub(super) fn merged(left: &PartialShape, right: &PartialShape) -> Result<PartialShape, String> {
    left.merge(right)
        .ok_or_else(|| format!("Shapes {left} and {right} are not compatible"))
}

fn merged_size(left: Size, right: Size) -> Result<Size, String> {
    merge_size(left, right).ok_or_else(|| {
        let text = |size: Size| size.map_or_else(|| "?".to_owned(), |size| size.to_string());
        format!(
            "Dimensions must be equal, but are {} and {}",
            text(left),
            text(right)
        )
    })
}

/// No outputs.
pub(super) fn nothing(_: Known<'_>) -> Inferred {
    Ok(vec![])
}

/// Nothing is known before it runs.
pub(super) fn unknown(known: Known<'_>) -> Inferred {
    Ok(vec![PartialShape::UNKNOWN; known.outputs])
}

/// One element.
pub(super) fn scalar(known: Known<'_>) -> Inferred {
    Ok(vec![PartialShape::scalar(); known.outputs])
}

/// A row of unknown length.
pub(super) fn vector(known: Known<'_>) -> Inferred {
    Ok(vec![PartialShape::of_rank(1); known.outputs])
}

/// The first input's.
pub(super) fn same(known: Known<'_>) -> Inferred {
    Ok(vec![known.shape(0); known.outputs])
}

/// The first input's, which is the variable's.
pub(super) fn first(known: Known<'_>) -> Inferred {
    Ok(vec![known.shape(0)])
}

/// Each output has its input's.
pub(super) fn zip_same(known: Known<'_>) -> Inferred {
    Ok((0..known.outputs).map(|index| known.shape(index)).collect())
}

/// All inputs have one shape, and it is the output's.
pub(super) fn all_same(known: Known<'_>) -> Inferred {
    let mut all = PartialShape::UNKNOWN;
    for shape in known.shapes {
        all = merged(&all, shape)?;
    }
    Ok(vec![all; known.outputs])
}

/// As [`all_same`].
pub(super) fn add_n(known: Known<'_>) -> Inferred {
    all_same(known)
}

/// All inputs together after NumPy's rule.
pub(super) fn broadcast(known: Known<'_>) -> Inferred {
    let mut all = PartialShape::scalar();
    for shape in known.shapes {
        let together = all.broadcast(shape);
        all = together
            .ok_or_else(|| format!("Incompatible shapes for broadcasting: {all} and {shape}"))?;
    }
    Ok(vec![all])
}

/// The attribute `value`'s.
pub(super) fn constant(known: Known<'_>) -> Inferred {
    let value = attr::tensor(known.attrs, "value");
    let shape = value.and_then(|value| match &value.tensor_shape {
        Some(shape) => PartialShape::from_proto(shape),
        None => Some(PartialShape::scalar()),
    });
    match shape.filter(|shape| shape.elements().is_some()) {
        Some(shape) => Ok(vec![shape]),
        None => Err("the constant has no valid shape".to_owned()),
    }
}

/// The attribute `shape`'s.
pub(super) fn placeholder(known: Known<'_>) -> Inferred {
    match attr::shape(known.attrs, "shape").map(PartialShape::from_proto) {
        Some(Some(shape)) => Ok(vec![shape]),
        Some(None) => Err("attr 'shape' is no shape".to_owned()),
        None => Ok(vec![PartialShape::UNKNOWN]),
    }
}

/// The product of two matrices.
pub(super) fn matmul(known: Known<'_>) -> Inferred {
    let side = |index: usize, transposed: &str| {
        let shape = known.of_rank(index, 2)?;
        let flip = attr::bool(known.attrs, transposed).unwrap_or(false);
        let (rows, columns) = (shape.dim(0), shape.dim(1));
        Ok::<_, String>(if flip {
            (columns, rows)
        } else {
            (rows, columns)
        })
    };
    let (rows, inner_left) = side(0, "transpose_a")?;
    let (inner_right, columns) = side(1, "transpose_b")?;
    merged_size(inner_left, inner_right)?;
    Ok(vec![PartialShape::of(vec![rows, columns])])
}

/// A row added along the last dimension.
pub(super) fn bias_add(known: Known<'_>) -> Inferred {
    let (value, bias) = (known.shape(0), known.of_rank(1, 1)?);
    let Some(dims) = value.dims() else {
        return Ok(vec![value]);
    };
    if dims.len() < 2 {
        return Err(format!("Shape must be at least rank 2 but is {value}"));
    }
    let mut dims = dims.to_vec();
    let channels = match attr::text(known.attrs, "data_format") {
        Some("NCHW") => 1,
        _ => dims.len() - 1,
    };
    dims[channels] = merged_size(dims[channels], bias.dim(0))?;
    Ok(vec![PartialShape::of(dims)])
}

/// The length of the last dimension.
pub(super) fn bias_add_grad(known: Known<'_>) -> Inferred {
    let shape = known.shape(0);
    let channels = match (attr::text(known.attrs, "data_format"), shape.rank()) {
        (_, None) => None,
        (_, Some(rank)) if rank < 2 => {
            return Err(format!("Shape must be at least rank 2 but is {shape}"));
        }
        (Some("NCHW"), _) => shape.dim(1),
        (_, Some(rank)) => shape.dim(rank - 1),
    };
    Ok(vec![PartialShape::of(vec![channels])])
}

/// One loss for each row, and the gradient.
pub(super) fn softmax_loss(known: Known<'_>) -> Inferred {
    let together = known.shape(0).broadcast(&known.shape(1)).ok_or_else(|| {
        format!(
            "logits {} and labels {} do not fit",
            known.shape(0),
            known.shape(1)
        )
    })?;
    let together = merged(&together, &PartialShape::of_rank(2))?;
    Ok(vec![PartialShape::of(vec![together.dim(0)]), together])
}

/// The same for labels that are numbers of classes.
pub(super) fn sparse_softmax_loss(known: Known<'_>) -> Inferred {
    let (logits, labels) = (known.of_rank(0, 2)?, known.of_rank(1, 1)?);
    let batch = merged_size(logits.dim(0), labels.dim(0))?;
    let logits = PartialShape::of(vec![batch, logits.dim(1)]);
    Ok(vec![PartialShape::of(vec![batch]), logits])
}

/// The input without the dimensions that are named, or with 1 in their place.
pub(super) fn reduce(known: Known<'_>) -> Inferred {
    let input = known.shape(0);
    let keep = attr::bool(known.attrs, "keep_dims").unwrap_or(false);
    let (Some(dims), Some(axes)) = (input.dims(), known.value(1)) else {
        let rank = input.rank().filter(|_| keep);
        return Ok(vec![
            rank.map_or(PartialShape::UNKNOWN, PartialShape::of_rank),
        ]);
    };
    let mut gone = vec![false; dims.len()];
    for &axis in axes {
        gone[axis_of(axis, dims.len())?] = true;
    }
    let left = dims
        .iter()
        .zip(gone)
        .filter_map(|(&dim, gone)| match (gone, keep) {
            (false, _) => Some(dim),
            (true, true) => Some(Some(1)),
            (true, false) => None,
        });
    Ok(vec![PartialShape::of(left.collect())])
}

/// The input without one dimension.
pub(super) fn arg_reduce(known: Known<'_>) -> Inferred {
    let input = known.shape(0);
    let Some(dims) = input.dims() else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    if dims.is_empty() {
        return Err("Shape must be at least rank 1 but is rank 0".to_owned());
    }
    let Some(axis) = known.axis(1, dims.len())? else {
        return Ok(vec![PartialShape::of_rank(dims.len() - 1)]);
    };
    let mut dims = dims.to_vec();
    dims.remove(axis);
    Ok(vec![PartialShape::of(dims)])
}

/// Both choices have one shape; the condition has it too, or is one element, or a row as long as they are.
pub(super) fn select(known: Known<'_>) -> Inferred {
    let chosen = merged(&known.shape(1), &known.shape(2))?;
    let condition = known.shape(0);
    match condition.rank() {
        None | Some(0) => {}
        Some(1) => {
            if chosen.rank().is_some_and(|rank| rank > 0) {
                merged_size(condition.dim(0), chosen.dim(0))?;
            }
        }
        Some(_) => return Ok(vec![merged(&condition, &chosen)?]),
    }
    Ok(vec![chosen])
}

/// As long as the input has dimensions, for each input.
pub(super) fn shape_of(known: Known<'_>) -> Inferred {
    let row = |index| {
        let rank = known.shape(index).rank();
        PartialShape::of(vec![rank.and_then(|rank| u64::try_from(rank).ok())])
    };
    Ok((0..known.outputs).map(row).collect())
}

/// The data's, on both sides.
pub(super) fn switch(known: Known<'_>) -> Inferred {
    merged(&known.shape(1), &PartialShape::scalar())?;
    same(known)
}

/// What is true of all inputs, and one index.
pub(super) fn merge(known: Known<'_>) -> Inferred {
    let mut all = known.shape(0);
    for shape in known.shapes.iter().skip(1) {
        all = all.widen(shape);
    }
    Ok(vec![all, PartialShape::scalar()])
}

/// The data's.
pub(super) fn enter(known: Known<'_>) -> Inferred {
    same(known)
}
