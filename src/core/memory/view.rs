//! Tensors as arrays: `ndarray` views straight over a tensor's memory, for kernels and users.
//!
//! Knows shapes and slices; nothing here copies or owns.

use ndarray::{ArrayViewD, ArrayViewMutD, IxDyn};

use super::{Element, Tensor, TensorBuilder, TensorError};
use crate::ground::{Shape, shape::RANK_MAX};

impl Tensor {
    /// The tensor as an array, in row-major order, without a copy.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`]; [`TensorError::Huge`] for an empty tensor with dimensions that no array can have.
    pub fn view<T: Element>(&self) -> Result<ArrayViewD<'_, T>, TensorError> {
        let elements = self.as_slice::<T>()?;
        ArrayViewD::from_shape(dimensions(self.shape()), elements).map_err(|_| TensorError::Huge)
    }
}

impl TensorBuilder {
    /// The tensor to be as an array, in row-major order: what is written there is written in place.
    ///
    /// # Errors
    /// As [`TensorBuilder::as_mut_slice`]; [`TensorError::Huge`] as for [`Tensor::view`].
    pub fn view_mut<T: Element>(&mut self) -> Result<ArrayViewMutD<'_, T>, TensorError> {
        let dimensions = dimensions(self.meta().shape);
        let elements = self.as_mut_slice::<T>()?;
        ArrayViewMutD::from_shape(dimensions, elements).map_err(|_| TensorError::Huge)
    }
}

fn dimensions(shape: Shape) -> IxDyn {
    let mut dims = [0usize; RANK_MAX];
    for (place, dim) in dims.iter_mut().zip(shape.dims()) {
        *place = dim as usize;
    }
    IxDyn(&dims[..shape.rank()])
}
