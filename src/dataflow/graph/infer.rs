//! Shape inference of single operations: the words that shape rules are written in, and the rules that many share.
//!
//! A rule goes from what is known of the inputs to what is known of the outputs. Rules follow TensorFlow's shape
//! functions, and refuse what those refuse: an unknown dimension fits everything, a known one only itself. A shape that
//! comes as a tensor is known where that is a constant. Knows no graph, which [`shapes`](super::shapes) walks, and no
//! operation: a rule that only one family has stands there.

use super::attr::{self, Attrs};
use super::shape::{PartialShape, Size, merge_size};
use rendez::ground::limits::GRAPH_RANK_MAX;

/// What is known of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The shapes of its inputs.
    pub(crate) shapes: &'a [PartialShape],
    /// The elements of its inputs, where they are integers that never change.
    pub(crate) values: &'a [Option<Vec<i64>>],
    /// Its attributes.
    pub(crate) attrs: &'a Attrs,
    /// How many outputs it has.
    pub(crate) outputs: usize,
}

/// Outputs, or what contradicts itself.
pub(crate) type Inferred = Result<Vec<PartialShape>, String>;

/// A rule.
pub(crate) type Infer = fn(Known<'_>) -> Inferred;
/// A rule for the integers that a node gives whatever happens, if they are known.
pub(crate) type Integers = fn(Known<'_>) -> Option<Vec<i64>>;

impl Known<'_> {
    /// The shape of input `index`.
    pub(crate) fn shape(&self, index: usize) -> PartialShape {
        self.shapes.get(index).cloned().unwrap_or_default()
    }

    /// The elements of input `index`.
    pub(crate) fn value(&self, index: usize) -> Option<&[i64]> {
        self.values.get(index)?.as_deref()
    }

    /// Input `index`, which must have `rank` dimensions.
    pub(crate) fn of_rank(&self, index: usize, rank: usize) -> Result<PartialShape, String> {
        let shape = self.shape(index);
        match shape.rank() {
            Some(actual) if actual != rank => Err(format!(
                "Shape must be rank {rank} but is rank {actual} for input {index}, {shape}"
            )),
            _ => merged(&shape, &PartialShape::of_rank(rank)),
        }
    }

    /// The one element of input `index` as an axis of a tensor of `rank` dimensions.
    pub(crate) fn axis(&self, index: usize, rank: usize) -> Result<Option<usize>, String> {
        match self.value(index) {
            Some(&[axis]) => axis_of(axis, rank).map(Some),
            Some(values) => Err(format!("an axis must be one number, not {}", values.len())),
            None => Ok(None),
        }
    }
}

/// `axis`, counted from the end if it is negative, as one of `rank`.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Result<usize, String> {
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
pub(crate) fn merged(left: &PartialShape, right: &PartialShape) -> Result<PartialShape, String> {
    left.merge(right)
        .ok_or_else(|| format!("Shapes {left} and {right} are not compatible"))
}

pub(crate) fn merged_size(left: Size, right: Size) -> Result<Size, String> {
    merge_size(left, right).ok_or_else(|| {
        let text = |size: Size| size.map_or_else(|| "?".to_owned(), |size| size.to_string());
        format!(
            "Dimensions must be equal, but are {} and {}",
            text(left),
            text(right)
        )
    })
}

/// `number` as the size of a dimension; -1 is unknown.
pub(crate) fn size(number: i64) -> Result<Size, String> {
    match number {
        -1 => Ok(None),
        number => match u64::try_from(number) {
            Ok(size) => Ok(Some(size)),
            Err(_) => Err(format!("{number} is no size of a dimension")),
        },
    }
}

/// The shape that the elements of input `index` say; -1 is unknown. If they are not known, its length is the rank.
pub(crate) fn said(known: Known<'_>, index: usize) -> Result<PartialShape, String> {
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

/// How many elements the row that input `index` is has.
pub(crate) fn said_len(known: Known<'_>, index: usize) -> Result<Option<usize>, String> {
    let len = known.of_rank(index, 1)?.dim(0);
    let len = len.and_then(|len| usize::try_from(len).ok());
    Ok(len.filter(|&len| len <= GRAPH_RANK_MAX))
}

/// The integers of what hands its first input on, maybe under another shape.
pub(crate) fn same_integers(known: Known<'_>) -> Option<Vec<i64>> {
    known.value(0).map(<[i64]>::to_vec)
}

/// No outputs.
pub(crate) fn nothing(_: Known<'_>) -> Inferred {
    Ok(vec![])
}

/// Nothing is known before it runs.
pub(crate) fn unknown(known: Known<'_>) -> Inferred {
    Ok(vec![PartialShape::UNKNOWN; known.outputs])
}

/// One element.
pub(crate) fn scalar(known: Known<'_>) -> Inferred {
    Ok(vec![PartialShape::scalar(); known.outputs])
}

/// A row of unknown length.
pub(crate) fn vector(known: Known<'_>) -> Inferred {
    Ok(vec![PartialShape::of_rank(1); known.outputs])
}

/// The first input's.
pub(crate) fn same(known: Known<'_>) -> Inferred {
    Ok(vec![known.shape(0); known.outputs])
}

/// All inputs have one shape, and it is the output's.
pub(crate) fn all_same(known: Known<'_>) -> Inferred {
    let mut all = PartialShape::UNKNOWN;
    for shape in known.shapes {
        all = merged(&all, shape)?;
    }
    Ok(vec![all; known.outputs])
}

/// All inputs together after NumPy's rule.
pub(crate) fn broadcast(known: Known<'_>) -> Inferred {
    let mut all = PartialShape::scalar();
    for shape in known.shapes {
        let together = all.broadcast(shape);
        all = together
            .ok_or_else(|| format!("Incompatible shapes for broadcasting: {all} and {shape}"))?;
    }
    Ok(vec![all])
}

/// The attribute `shape`'s.
pub(crate) fn declared(known: Known<'_>) -> Inferred {
    match attr::shape(known.attrs, "shape").map(PartialShape::from_proto) {
        Some(Some(shape)) => Ok(vec![shape]),
        Some(None) => Err("attr 'shape' is no shape".to_owned()),
        None => Ok(vec![PartialShape::UNKNOWN]),
    }
}
