//! Kernels: what computes a node's outputs from its inputs, and what such code works with.
//!
//! A kernel is made for a node when its graph is registered, and called in every step by the code that runs the graph;
//! that of a stateful node once for its session. It knows its node's attributes and no edges, no frames and no devices.
//! What a node does to the flow (Switch, Merge, the nodes of a loop, Send and Recv) is no kernel: that is for the
//! executor. No operation is known here: those stand in [`operations`](crate::operations).
//!
//! | file | |
//! |---|---|
//! | `value.rs`, `variables.rs` | what flows along edges, and what outlives a step |
//! | `files.rs` | the files that kernels may touch |
//! | `names.rs` | the names that a file of tensors has, each once |
//! | `protos.rs` | tensors as TensorFlow's messages |
//! | `make.rs` | a kernel made of a closure, and what its calls cost |
//! | `kept.rs` | the kernels with state, one for each node of a session |
//! | `call.rs` | inputs as slices, outputs in the engine's memory, and what is refused |
//! | `numbers.rs`, `broadcast.rs` | arithmetic of each element type, and how shapes meet |
//! | `elementwise.rs`, `arrange.rs` | loops over elements that are computed, and over those that only move |

use std::fmt;

pub(crate) mod arrange;
pub(crate) mod broadcast;
pub(crate) mod call;
pub(crate) mod elementwise;
pub mod files;
pub(crate) mod kept;
pub(crate) mod make;
pub mod names;
pub(crate) mod numbers;
pub mod protos;
#[cfg(test)]
pub(crate) mod testing;
mod value;
pub mod variables;

pub use value::Value;

use files::Files;
use rendez::ground::{DType, Shape, Status, StepId, TensorMeta, catalogue};
use rendez::memory::strings::encoded_len;
use rendez::memory::{Tensor, TensorBuilder};
use variables::Variables;

/// What a kernel has to do with, beside its inputs. One for each task.
pub struct Home {
    /// The task's variables.
    pub variables: Variables,
    /// The files that kernels may touch.
    pub files: Files,
    allocate: Box<dyn Fn(TensorMeta) -> Result<TensorBuilder, Status> + Send + Sync>,
}

/// One call of a kernel.
#[derive(Debug)]
pub struct Call<'a> {
    /// Its inputs, as many as the node has.
    pub inputs: &'a [Value],
    /// Its outputs, pushed in order. Empty when it is called.
    pub outputs: &'a mut Vec<Value>,
    /// What it may use.
    pub home: &'a Home,
    /// The step that it is called in.
    pub step: StepId,
    /// Whether it may wait.
    pub waiting: Waiting,
}

/// Whether a call of a kernel may wait for other threads, as [`Call::hold`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// It may: it is called beside the shards.
    May,
    /// It may not: its thread is a shard's, which has others to serve.
    MayNot,
    /// It may not, and would have to: it is called again where it may.
    Would,
}

/// Computes a node's outputs.
pub trait Kernel: fmt::Debug + Send + Sync {
    /// Computes. Called by any thread, and by several at once. Unless it [is costly](Self::is_costly) it is called in a
    /// shard's thread, and must not wait there: what holds variables does that by [`Call::hold`].
    ///
    /// # Errors
    /// What the node cannot compute, with the node's name; it ends the step.
    fn compute(&self, call: &mut Call<'_>) -> Result<(), Status>;

    /// True if it may take longer than some ten microseconds with these inputs: then it is called beside the shards.
    fn is_costly(&self, inputs: &[Value]) -> bool {
        let _ = inputs;
        false
    }
}

impl Home {
    /// A home whose kernels write where `allocate` says: the engine's memory, so that what is sent is not copied. They
    /// touch no files.
    pub fn new(
        allocate: impl Fn(TensorMeta) -> Result<TensorBuilder, Status> + Send + Sync + 'static,
    ) -> Self {
        Self {
            variables: Variables::default(),
            files: Files::none(),
            allocate: Box::new(allocate),
        }
    }

    /// The same, whose kernels may touch `files`.
    #[must_use]
    pub fn with_files(self, files: Files) -> Self {
        Self { files, ..self }
    }

    /// Room for a tensor.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is none.
    pub fn allocate(&self, meta: TensorMeta) -> Result<TensorBuilder, Status> {
        (self.allocate)(meta)
    }

    /// A tensor of byte strings, in the same memory.
    ///
    /// # Errors
    /// As [`Home::allocate`]; `TENSOR_SHAPE` unless there is one string for each element of `shape`.
    pub fn strings<S: AsRef<[u8]>>(
        &self,
        shape: Shape,
        items: impl IntoIterator<Item = S, IntoIter: Clone>,
    ) -> Result<Tensor, Status> {
        strings(shape, items, |meta| self.allocate(meta))
    }
}

/// A tensor of byte strings in memory that `allocate` gives.
fn strings<S: AsRef<[u8]>>(
    shape: Shape,
    items: impl IntoIterator<Item = S, IntoIter: Clone>,
    allocate: impl FnOnce(TensorMeta) -> Result<TensorBuilder, Status>,
) -> Result<Tensor, Status> {
    let unfit = |error: &dyn fmt::Display| Status::of(catalogue::TENSOR_SHAPE, error.to_string());
    let items = items.into_iter();
    let bytes = Shape::new(&[encoded_len(items.clone()) as u64]).map_err(|error| unfit(&error))?;
    let room = allocate(TensorMeta {
        dtype: DType::U8,
        shape: bytes,
    })?;
    let made = room.finish_strings(items, shape);
    made.map_err(|error| unfit(&error))
}

shown! { Home {} }
