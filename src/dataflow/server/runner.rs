//! Runner: what runs the part of a graph that stands on this task, as masters and workers see it.
//!
//! Knows parts and what goes into and comes out of them, and not how they are run.

use std::fmt::Debug;
use std::sync::Arc;

use crate::graph::Graph;
use crate::kernel::Value;
use crate::kernel::kept::KeptKernels;
use rendez::ground::{Status, StepId};

/// What becomes of a part in a step: the values of its `_Retval`s by number, `None` for dead ones.
pub(crate) type Outcome = Result<Vec<Option<Value>>, Status>;
/// Takes it.
pub(crate) type Done = Box<dyn FnOnce(Outcome) + Send>;

/// Prepares parts.
pub(crate) trait Runner: Debug + Send + Sync {
    /// Prepares a part; `name` is for people. Kernels with state are those that are `kept`.
    ///
    /// # Errors
    /// Names a node that cannot be run.
    fn prepare(
        &self,
        graph: &Graph,
        name: &str,
        kept: &KeptKernels,
    ) -> Result<Arc<dyn Part>, Status>;
}

/// A part that is prepared.
pub(crate) trait Part: Debug + Send + Sync {
    /// Runs it in a step. `done` is called once, by any thread, also before this returns; it does not block.
    fn run(&self, step: StepId, args: Vec<Value>, done: Done) -> Box<dyn Running>;
}

/// A part that runs. Dropping this changes nothing.
pub(crate) trait Running: Send {
    /// Has it end with `status`, if it has not ended.
    fn cancel(&self, status: Status);
}
