//! Shapes and tensor metadata in one fixed 40-byte value: no heap, copied like a number.
//!
//! Up to four dimensions are held as 64-bit words; five to eight as 32-bit halves, so that a dimension
//! of 2³² or more needs rank four or less. That keeps a `Tensor` handle within 88 bytes.
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use rendez::ground::{DType, Shape, TensorMeta};
//!
//! let meta = TensorMeta::new(DType::F32, Shape::from([2, 3]))?;
//! assert_eq!(meta.shape.to_string(), "[2,3]");
//! assert_eq!(meta.size(), Some(24));
//! # Ok::<(), rendez::ground::shape::ShapeError>(())
//! ```

use std::fmt;

use super::DType;

#[cfg(test)]
mod tests;

/// More dimensions than a shape holds.
pub const RANK_MAX: usize = 8;

/// Why a list of dimensions is not a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// More than [`RANK_MAX`] dimensions.
    #[error("a shape of rank {0} is over the limit of 8 dimensions")]
    Rank(usize),
    /// A dimension that a shape of rank five or more has no room for.
    #[error("dimension {0} is 2^32 or more, which a shape of rank five or more cannot hold")]
    Dimension(u64),
    /// The number of elements, or their bytes, is 2⁶³ or more.
    #[error("the shape holds 2^63 elements or bytes, or more")]
    Size,
}

/// The dimensions of a tensor, outermost first. Rank 0 is a scalar.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    words: [u64; 4],
    rank: u8,
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Self = Self {
        words: [0; 4],
        rank: 0,
    };

    /// What [`From`] makes of dimensions that no tensor can have: a row of 2⁶⁴ − 1 elements. Whatever makes a tensor
    /// refuses it by its size.
    pub const IMPOSSIBLE: Self = Self {
        words: [u64::MAX, 0, 0, 0],
        rank: 1,
    };

    /// A shape of `dims`.
    ///
    /// # Errors
    /// [`ShapeError`] names which bound the dimensions break.
    pub fn new(dims: &[u64]) -> Result<Self, ShapeError> {
        if dims.len() > RANK_MAX {
            return Err(ShapeError::Rank(dims.len()));
        }
        let mut words = [0u64; 4];
        if dims.len() <= 4 {
            words[..dims.len()].copy_from_slice(dims);
        } else {
            for (index, &dim) in dims.iter().enumerate() {
                let half = u32::try_from(dim).map_err(|_| ShapeError::Dimension(dim))?;
                words[index / 2] |= u64::from(half) << (32 * (index % 2));
            }
        }
        let mut elements = 1u64;
        for &dim in dims {
            elements = elements.checked_mul(dim).ok_or(ShapeError::Size)?;
        }
        if elements >= 1 << 63 {
            return Err(ShapeError::Size);
        }
        Ok(Self {
            words,
            rank: dims.len() as u8,
        })
    }

    /// The shape of a row of `len` elements; `None` if that is 2⁶³ or more.
    #[inline]
    #[must_use]
    pub const fn row(len: u64) -> Option<Self> {
        if len >= 1 << 63 {
            return None;
        }
        Some(Self {
            words: [len, 0, 0, 0],
            rank: 1,
        })
    }

    /// The shape of a row of `len` elements, which are less than 2⁶³, or of a scalar.
    #[inline]
    pub(crate) const fn few(is_row: bool, len: u64) -> Self {
        Self {
            words: [if is_row { len } else { 0 }, 0, 0, 0],
            rank: is_row as u8,
        }
    }

    /// The number of dimensions.
    #[must_use]
    #[inline]
    pub const fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Dimension `index`, outermost first; `None` past the rank.
    #[must_use]
    #[inline]
    pub const fn dim(&self, index: usize) -> Option<u64> {
        if index >= self.rank as usize {
            None
        } else if self.rank <= 4 {
            Some(self.words[index])
        } else {
            Some((self.words[index / 2] >> (32 * (index % 2))) & 0xffff_ffff)
        }
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        (0..self.rank()).map(|index| self.dim(index).unwrap_or(0))
    }

    /// The number of elements: the product of the dimensions, 1 for a scalar. Below 2⁶³, except of
    /// [`Shape::IMPOSSIBLE`].
    #[must_use]
    #[inline]
    pub fn elements(&self) -> u64 {
        match self.rank {
            0 => 1,
            1 => self.words[0],
            _ => self.dims().product(),
        }
    }
}

/// The shape of literal dimensions, outermost first: `Shape::from([2, 3])`. At most [`RANK_MAX`] of them; more do not
/// compile. Dimensions that [`Shape::new`] refuses give [`Shape::IMPOSSIBLE`]; call that where they come from input.
///
/// ```
/// # extern crate rendez_core as rendez;
/// use rendez::ground::Shape;
///
/// assert_eq!(Shape::from([2, 3]), Shape::new(&[2, 3])?);
/// assert_eq!(Shape::from([]), Shape::SCALAR);
/// # Ok::<(), rendez::ground::shape::ShapeError>(())
/// ```
impl<const RANK: usize> From<[u64; RANK]> for Shape {
    fn from(dims: [u64; RANK]) -> Self {
        const { assert!(RANK <= RANK_MAX, "a shape has at most 8 dimensions") };
        Self::new(&dims).unwrap_or(Self::IMPOSSIBLE)
    }
}

/// As [`Shape::new`].
impl TryFrom<&[u64]> for Shape {
    type Error = ShapeError;

    fn try_from(dims: &[u64]) -> Result<Self, ShapeError> {
        Self::new(dims)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `[2,3]`; a scalar is `[]`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dim) in self.dims().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

/// What a tensor is, apart from its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TensorMeta {
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions.
    pub shape: Shape,
}

impl TensorMeta {
    /// Metadata of a tensor.
    ///
    /// # Errors
    /// [`ShapeError::Size`] if it has 2⁶³ elements or bytes, or more.
    #[inline]
    pub fn new(dtype: DType, shape: Shape) -> Result<Self, ShapeError> {
        // The shape of strings does not say how many bytes they take: a byte for each is the least that counts.
        let size = dtype.size().unwrap_or(1) as u64;
        match shape.elements().checked_mul(size) {
            Some(bytes) if bytes < 1 << 63 => Ok(Self { dtype, shape }),
            _ => Err(ShapeError::Size),
        }
    }

    /// Bytes the elements take; `None` for strings, whose length the shape does not say.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.dtype
            .size()
            .map(|size| self.shape.elements().saturating_mul(size as u64))
    }
}
