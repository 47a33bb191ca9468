//! Tensors in memory of the engine, made by application threads: peers read them in place.

use std::sync::Arc;

use super::{Engine, Inner};
use crate::ground::{Code, DType, Locked, Shape, Status, TensorMeta, catalogue};
use crate::memory::strings::check_count;
use crate::memory::{Element, MemoryError, Pool, Tensor, TensorBuilder};

impl Engine {
    /// Memory of this engine to write a tensor of `dims` into in place: handed over without a copy.
    ///
    /// # Errors
    /// `InvalidArgument` for dimensions that are no shape, `ResourceExhausted` when the arena is full; `SHUTDOWN` after
    /// [`Engine::shutdown`], and what the engine ended with if a shard panicked.
    pub fn tensor(&self, dtype: DType, dims: &[u64]) -> Result<TensorBuilder, Status> {
        self.inner.builder(dtype, dims, Pool::builder)
    }

    /// As [`Engine::tensor`], for a tensor whose bytes own whole pages: receivers that read it in place may map it to
    /// themselves and write to it ([`Tensor::map_private`]), and neither the sender nor another reader sees that. It
    /// takes whole pages, so it is for large tensors; one that is short enough to travel in a frame arrives as a copy,
    /// and its receiver copies it again.
    ///
    /// ```
    /// use rendez::engine::{Config, Engine};
    /// use rendez::ground::DType;
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # (config.shards, config.share_cores, config.control) = (1, true, false);
    /// let engine = Engine::start(config)?;
    /// let mut builder = engine.paged_tensor(DType::F32, &[1024, 1024])?;
    /// builder.as_mut_slice::<f32>()?.fill(1.0);
    /// let tensor = builder.finish();
    /// let mut mine = tensor.map_private()?;
    /// mine.as_mut_slice::<f32>()?[0] = 2.0;
    /// assert_eq!(tensor.as_slice::<f32>()?[0], 1.0);
    /// # Ok::<(), rendez::ground::Status>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::tensor`].
    pub fn paged_tensor(&self, dtype: DType, dims: &[u64]) -> Result<TensorBuilder, Status> {
        self.inner.builder(dtype, dims, Pool::paged_builder)
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

impl Inner {
    /// Memory for a tensor, as `build` takes it of the arena of application threads.
    pub(super) fn builder(
        &self,
        dtype: DType,
        dims: &[u64],
        build: fn(&mut Pool, TensorMeta) -> Result<TensorBuilder, MemoryError>,
    ) -> Result<TensorBuilder, Status> {
        self.is_up()?;
        let unfit = |error: &dyn std::fmt::Display| {
            Status::new(
                Code::InvalidArgument,
                catalogue::TENSOR_SHAPE,
                error.to_string(),
            )
        };
        let shape = Shape::new(dims).map_err(|error| unfit(&error))?;
        let meta = TensorMeta::new(dtype, shape).map_err(|error| unfit(&error))?;
        let mut pool = self.pool.locked();
        let known = pool.segments().len();
        let built = build(&mut pool, meta);
        // Also if it failed: the arena may have grown before it did, and the segment is there for whatever comes next.
        for segment in &pool.segments()[known..] {
            self.wiring
                .segment_added(self.app_arena(), Arc::clone(segment));
        }
        Ok(built?)
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::tests::{PATIENCE, Way, config, pair};
    use crate::ground::{DType, Key, StepId};
    use crate::memory::MemoryError;

    /// What is kept of it shows there before it is refused, and what was dropped no longer does.
    #[test]
    fn memory_of_application_threads_shows_on_the_page_of_metrics() {
        let (a, _b) = pair(Way::Shm);
        let gauge = |name: &str| -> u64 {
            let page = a.metrics_text().unwrap();
            let name = format!("\nrendez_{name}_bytes{{shard=\"application\"}} ");
            let (_, rest) = page.split_once(&name).expect("it is there");
            rest.lines().next().unwrap().parse().unwrap()
        };
        let limit = a.inner.config.arena.bytes_max;
        assert_eq!((gauge("arena_used"), gauge("arena_headroom")), (0, limit));
        let len = a.inner.config.arena.segment_bytes as u64;
        let kept = [(); 2].map(|()| a.tensor(DType::U8, &[len]).unwrap().finish());
        assert_eq!(gauge("arena_used"), 2 * len);
        assert_eq!(gauge("arena_headroom"), limit - 2 * len);
        assert!(gauge("registered") >= 2 * len);
        let told = crate::engine::counters::stat(&a, 0).application;
        assert_eq!(told["arena_used_bytes"], 2 * len);
        drop(kept);
        assert_eq!(gauge("arena_used"), 0);
    }

    /// As whole pages of reserved huge ones do, of which there may be too few behind the first that begins right.
    #[test]
    fn a_segment_is_told_of_also_if_there_was_no_room_for_what_it_was_made_for() {
        let (a, b) = pair(Way::Shm);
        let key = |edge: &str| Key::between("a", "b", edge).unwrap();
        let hand_over = |edge: &str, len: u64| {
            let tensor = a.tensor(DType::U8, &[len]).unwrap().finish();
            a.step(StepId(7)).send(&key(edge), tensor).unwrap();
            let got = b.step(StepId(7)).recv(&key(edge)).deadline(PATIENCE).wait();
            assert_eq!(
                got.unwrap().tensor.host().unwrap().len() as u64,
                len,
                "{edge}"
            );
        };
        hand_over("before", 100_000);
        let len = config("any").arena.segment_bytes as u64 + 1;
        let refused = a.inner.builder(DType::U8, &[len], |pool, meta| {
            drop(pool.builder(meta)?);
            Err(MemoryError::Unpaged)
        });
        assert!(refused.is_err());
        hand_over("in the new segment", len);
    }
}
