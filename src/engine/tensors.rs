//! Tensors in memory of the engine, made by application threads: peers read them in place.

use std::sync::{Arc, PoisonError};

use super::Engine;
use crate::ground::{Code, DType, Shape, Status, TensorMeta, catalogue};
use crate::memory::strings::check_count;
use crate::memory::{Element, Tensor, TensorBuilder};

impl Engine {
    /// Memory of this engine to write a tensor of `dims` into in place: handed over without a copy.
    ///
    /// # Errors
    /// `InvalidArgument` for dimensions that are no shape, `ResourceExhausted` when the arena is full; `SHUTDOWN` after
    /// [`Engine::shutdown`], and what the engine ended with if a shard panicked.
    pub fn tensor(&self, dtype: DType, dims: &[u64]) -> Result<TensorBuilder, Status> {
        self.inner.is_up()?;
        let unfit = |error: &dyn std::fmt::Display| {
            Status::new(
                Code::InvalidArgument,
                catalogue::TENSOR_SHAPE,
                error.to_string(),
            )
        };
        let shape = Shape::new(dims).map_err(|error| unfit(&error))?;
        let meta = TensorMeta::new(dtype, shape).map_err(|error| unfit(&error))?;
        let mut pool = self
            .inner
            .pool
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = pool.segments().len();
        let builder = pool.builder(meta)?;
        for segment in &pool.segments()[known..] {
            self.inner
                .wiring
                .segment_added(self.inner.app_arena(), Arc::clone(segment));
        }
        Ok(builder)
    }

    /// A tensor of a copy of `values`, in memory of this engine: it is handed over without another copy.
    ///
    /// ```
    /// use rendez::engine::{Config, Engine};
    /// use rendez::ground::Shape;
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # (config.shards, config.share_cores, config.control) = (1, true, false);
    /// let engine = Engine::start(config)?;
    /// let tensor = engine.tensor_from(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], Shape::from([2, 3]))?;
    /// assert_eq!(tensor.shape(), Shape::from([2, 3]));
    /// # Ok::<(), rendez::ground::Status>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::tensor`]; `InvalidArgument` unless there is one value for each element of `shape`.
    pub fn tensor_from<T: Element>(&self, values: &[T], shape: Shape) -> Result<Tensor, Status> {
        check_count(shape, values.len())?;
        let dims: Vec<u64> = shape.dims().collect();
        let mut builder = self.tensor(T::DTYPE, &dims)?;
        builder.as_mut_slice::<T>()?.copy_from_slice(values);
        Ok(builder.finish())
    }
}
