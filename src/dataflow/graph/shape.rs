//! Partial shapes: what is known of a tensor's dimensions before it exists.
//!
//! Knows nothing of operations.

use std::fmt;

use rendez::ground::limits::GRAPH_RANK_MAX;
use rendez_proto::tensorflow::TensorShapeProto;
use rendez_proto::tensorflow::tensor_shape_proto::Dim;

/// A dimension: its size, if that is known.
pub type Size = Option<u64>;

/// A shape of which parts may be unknown, even the rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PartialShape(Option<Vec<Size>>);

impl PartialShape {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self(None);

    /// A shape of which all is known.
    #[must_use]
    pub fn known(dims: &[u64]) -> Self {
        Self(Some(dims.iter().copied().map(Some).collect()))
    }

    /// A shape of known rank.
    #[must_use]
    pub const fn of(dims: Vec<Size>) -> Self {
        Self(Some(dims))
    }

    /// A shape of which only the rank is known.
    #[must_use]
    pub fn of_rank(rank: usize) -> Self {
        Self(Some(vec![None; rank]))
    }

    /// The shape of one element.
    #[must_use]
    pub const fn scalar() -> Self {
        Self(Some(vec![]))
    }

    /// The shape of a message; `None` if a dimension is below -1, there are more than
    /// [`GRAPH_RANK_MAX`], or the elements are 2⁶³ or more.
    #[must_use]
    pub fn from_proto(shape: &TensorShapeProto) -> Option<Self> {
        if shape.unknown_rank {
            return shape.dim.is_empty().then_some(Self::UNKNOWN);
        }
        if shape.dim.len() > GRAPH_RANK_MAX {
            return None;
        }
        let mut dims = Vec::with_capacity(shape.dim.len());
        let mut elements = 1i64;
        for dim in &shape.dim {
            let size = match dim.size {
                -1 => None,
                size => Some(u64::try_from(size).ok()?),
            };
            elements = elements.checked_mul(dim.size.max(1))?;
            dims.push(size);
        }
        Some(Self(Some(dims)))
    }

    /// The message.
    #[must_use]
    pub fn to_proto(&self) -> TensorShapeProto {
        let dim = |size: &Size| Dim {
            size: size.map_or(-1, |size| i64::try_from(size).unwrap_or(i64::MAX)),
            name: String::new(),
        };
        TensorShapeProto {
            dim: self.dims().unwrap_or_default().iter().map(dim).collect(),
            unknown_rank: self.0.is_none(),
        }
    }

    /// The dimensions, if their number is known.
    #[must_use]
    pub fn dims(&self) -> Option<&[Size]> {
        self.0.as_deref()
    }

    /// The number of dimensions, if that is known.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.0.as_ref().map(Vec::len)
    }

    /// Dimension `index`, if it is known.
    #[must_use]
    pub fn dim(&self, index: usize) -> Size {
        self.0.as_ref()?.get(index).copied().flatten()
    }

    /// All dimensions, if all are known.
    #[must_use]
    pub fn fully(&self) -> Option<Vec<u64>> {
        self.0.as_ref()?.iter().copied().collect()
    }

    /// The number of elements, if all dimensions are known and it is below 2⁶³.
    #[must_use]
    pub fn elements(&self) -> Size {
        let dims = self.fully()?;
        let elements = dims
            .iter()
            .try_fold(1u64, |all, &dim| all.checked_mul(dim))?;
        (elements < 1 << 63).then_some(elements)
    }

    /// What both know together; `None` if they contradict each other.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Option<Self> {
        let (Some(left), Some(right)) = (&self.0, &other.0) else {
            let known = self.0.as_ref().or(other.0.as_ref());
            return Some(Self(known.cloned()));
        };
        if left.len() != right.len() {
            return None;
        }
        let pairs = left.iter().zip(right);
        let dims = pairs.map(|(&left, &right)| merge_size(left, right));
        Some(Self(Some(dims.collect::<Option<_>>()?)))
    }

    /// What is true of both: for a value that may be either.
    #[must_use]
    pub fn widen(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (Some(left), Some(right)) if left.len() == right.len() => {
                let pairs = left.iter().zip(right);
                let same = |(left, right): (&Size, &Size)| left.filter(|_| left == right);
                Self(Some(pairs.map(same).collect()))
            }
            _ => Self::UNKNOWN,
        }
    }

    /// The shape of an elementwise operation on both, after NumPy's rule; `None` if they do not fit.
    #[must_use]
    pub fn broadcast(&self, other: &Self) -> Option<Self> {
        let (Some(left), Some(right)) = (&self.0, &other.0) else {
            return Some(Self::UNKNOWN);
        };
        let rank = left.len().max(right.len());
        let at = |dims: &[Size], index: usize| match (index + dims.len()).checked_sub(rank) {
            Some(index) => dims[index],
            None => Some(1),
        };
        let dims = (0..rank).map(|index| match (at(left, index), at(right, index)) {
            (Some(1), size) | (size, Some(1)) => Some(size),
            (Some(left), Some(right)) if left != right => None,
            // One that is not 1 is the result's, for the other must be 1 or the same.
            (left, right) => Some(left.or(right)),
        });
        Some(Self(Some(dims.collect::<Option<_>>()?)))
    }
}

/// What both know together; `None` if they differ.
#[must_use]
pub fn merge_size(left: Size, right: Size) -> Option<Size> {
    match (left, right) {
        (Some(left), Some(right)) if left != right => None,
        _ => Some(left.or(right)),
    }
}

/// `[2,?]`, and `<unknown>` if not even the rank is known.
impl fmt::Display for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dims) = &self.0 else {
            return f.write_str("<unknown>");
        };
        f.write_str("[")?;
        for (index, dim) in dims.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match dim {
                Some(size) => write!(f, "{size}")?,
                None => f.write_str("?")?,
            }
        }
        f.write_str("]")
    }
}
