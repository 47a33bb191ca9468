//! Value: what flows along an edge of a graph while it runs.
//!
//! Knows tensors and variables, and nothing of nodes or steps. That nothing will come along an edge (a dead value) is
//! no value: the code that runs the graph keeps that beside it.

use std::sync::Arc;

use super::variables::Variable;
use rendez::ground::Status;
use rendez::memory::Tensor;

/// What flows along an edge.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A variable, by reference: what reads it as a value reads its content at that moment, what assigns changes it.
    /// Also the handle that flows along an edge of type `resource`.
    Variable(Arc<Variable>),
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl Value {
    /// The variable, if it is one.
    #[must_use]
    pub const fn variable(&self) -> Option<&Arc<Variable>> {
        match self {
            Self::Variable(variable) => Some(variable),
            Self::Tensor(_) => None,
        }
    }

    /// Bytes of the tensor: of a variable those it had a moment ago.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Tensor(tensor) => tensor.size(),
            Self::Variable(variable) => variable.bytes(),
        }
    }

    /// The tensor: of a variable its content at this moment.
    ///
    /// # Errors
    /// `FailedPrecondition` naming the variable if it has no content yet.
    pub fn tensor(&self) -> Result<Tensor, Status> {
        match self {
            Self::Tensor(tensor) => Ok(tensor.clone()),
            Self::Variable(variable) => variable.read(),
        }
    }
}
