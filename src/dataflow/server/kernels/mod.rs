//! Kernels: what computes a node's outputs from its inputs.
//!
//! A kernel is made once for a node, when its graph is registered, and called in every step by the code that runs the
//! graph. It knows its node's attributes and no edges, no frames and no devices. What a node does to the flow (Switch,
//! Merge, the nodes of a loop, Send and Recv) is no kernel: that is for the executor.

//!
//! A family of operations is a file with a function `make`, which knows their names and gives what computes them, made
//! for the node's types. `call.rs` is what they compute with.

use std::fmt;

mod arrange;
mod assertion;
mod broadcast;
mod call;
mod checkpoint;
mod compare;
mod elementwise;
mod fills;
mod gather;
mod linear;
mod make;
mod network;
mod numbers;
mod optimizers;
mod pieces;
mod random;
mod reduce;
mod shapes;
mod sources;
mod state;
#[cfg(test)]
mod testing;

use super::files::Files;
use super::value::Value;
use super::variables::Variables;
use crate::graph::Node;
use rendez::ground::{Status, StepId, TensorMeta};
use rendez::memory::TensorBuilder;

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
}

/// Computes a node's outputs.
pub trait Kernel: fmt::Debug + Send + Sync {
    /// Computes. Called by any thread, and by several at once.
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
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").finish_non_exhaustive()
    }
}

/// The kernel of a node.
///
/// # Errors
/// `KERNEL_UNKNOWN` naming the node, its operation and its types if there is none; what its attributes contradict.
pub fn of(node: &Node) -> Result<Box<dyn Kernel>, Status> {
    make::kernel(node)
}
