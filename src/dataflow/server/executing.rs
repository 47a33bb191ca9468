//! Executing: the executor as masters and workers see it.
//!
//! Knows both faces, and nothing else.

use std::sync::Arc;

use super::executor::{Executor, Plan, Pool, RunHandle};
use super::runner::{Done, Part, Runner, Running};
use crate::graph::{Graph, Node};
use crate::kernel::Home;
use crate::kernel::Value;
use crate::kernel::kept::KeptKernels;
use crate::operations::Operations;
use rendez::engine::Engine;
use rendez::ground::{Status, StepId};

/// What runs parts on `engine`'s shards and in the threads of `pool`, with the kernels of `operations` and what is at
/// `home`.
///
/// # Errors
/// What the executor says.
pub(crate) fn runner(
    engine: &Engine,
    pool: &Pool,
    home: Arc<Home>,
    operations: &Operations,
) -> Result<Arc<dyn Runner>, Status> {
    let operations = operations.clone();
    let kernels = move |node: &Node| operations.kernel(node);
    Ok(Arc::new(Executor::with_pool(engine, pool, home, kernels)?))
}

/// A part with what runs it.
#[derive(Debug)]
struct Prepared {
    executor: Executor,
    plan: Arc<Plan>,
}

impl Runner for Executor {
    fn prepare(
        &self,
        graph: &Graph,
        name: &str,
        kept: &KeptKernels,
    ) -> Result<Arc<dyn Part>, Status> {
        Ok(Arc::new(Prepared {
            executor: self.clone(),
            plan: self.plan_with(graph, name, kept)?,
        }))
    }
}

impl Part for Prepared {
    fn run(&self, step: StepId, args: Vec<Value>, done: Done) -> Box<dyn Running> {
        Box::new(self.executor.run(&self.plan, step, args, done))
    }
}

impl Running for RunHandle {
    fn cancel(&self, status: Status) {
        Self::cancel(self, status);
    }
}
