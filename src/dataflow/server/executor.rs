//! Executor: runs registered parts of graphs, one step at a time or many.
//!
//! Knows plans, steps and shards, and nothing of sessions, masters or registrations. A run lives inside a shard, the
//! home of its step, so that what it sends and receives wakes no thread; kernels that take longer are called by threads
//! beside the shards:
//!
//! ```text
//!   any thread ── run, cancel ──▶ inbox ──▶ driver: a task of the shard ◀── costly kernels ──▶ pool
//!                                            │  Run: ready counts, dead values, frames
//!                                            ▼
//!                                      the shard's table and links
//! ```
//!
//! A run that fails aborts its step in the engine, with its failure as a consequence for all others of the step: what
//! they wait for ends by that. It ends itself once nothing is left that it waits for, and then tells its own failure.
//!
//! An edge between two parts of one task goes through the shard's table like any other: within a shard that costs some
//! 60 ns for a send and its receive, a fraction of what a kernel's call costs with its inputs and outputs.
//!
//! | file | |
//! |---|---|
//! | `plan.rs` | a part as it is run |
//! | `run.rs`, `flow.rs`, `frames.rs` | one step of it, as a state machine |
//! | `step_driver.rs` | the task of a shard that drives runs |
//! | `inbox.rs`, `pool.rs` | how other threads reach it, and those that call costly kernels |

mod flow;
mod frames;
mod inbox;
mod plan;
mod pool;
mod run;
mod step_driver;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use plan::Plan;
pub(crate) use pool::Pool;

use crate::graph::{Graph, Node};
use crate::kernel::files::Files;
use crate::kernel::kept::KeptKernels;
use crate::kernel::{Home, Kernel, Value};
use crate::operations::Operations;
use inbox::{Done, Inbox, Order, RunState};
use plan::{KernelSource, Owner};
use rendez::engine::{Engine, WeakEngine};
use rendez::ground::limits::RUNS_MAX;
use rendez::ground::{Incarnation, Status, StepId, TaskName, catalogue};
use rendez::sync::{AtomicU64, AtomicUsize, Ordering};
use step_driver::StepDriver;

/// Runs parts of graphs on the shards of an engine. Cheap to clone; when the last clone is dropped what runs goes on to
/// its end, and nothing new begins.
#[derive(Clone, Debug)]
pub struct Executor {
    face: Arc<Face>,
}

/// What all clones share; its end closes the drivers.
struct Face {
    shared: Arc<Shared>,
    task: TaskName,
    incarnation: Incarnation,
    kernels: Box<KernelSource>,
    plans: AtomicU64,
}

/// What the drivers, plans and clones share.
#[derive(Debug)]
struct Shared {
    home: Arc<Home>,
    /// One for each shard.
    inboxes: Vec<Arc<Inbox>>,
    /// Runs that are ordered and have not ended.
    running: Arc<AtomicUsize>,
}

/// A run that was ordered. Dropping it does nothing to the run.
#[derive(Debug)]
pub struct RunHandle {
    inbox: Arc<Inbox>,
    state: Arc<RunState>,
}

/// What kernels use of a task: variables of its own, the files below its `files_root`, and memory of `engine` for as
/// long as that is there.
#[must_use]
pub fn home(engine: WeakEngine) -> Home {
    let root = engine.upgrade().and_then(|engine| engine.files_root());
    let files = root.map_or_else(Files::none, Files::below);
    Home::new(move |meta| {
        let engine = engine.upgrade();
        let engine = engine.ok_or_else(|| Status::of(catalogue::SHUTDOWN, "Shutdown"))?;
        let dims: Vec<u64> = meta.shape.dims().collect();
        engine.tensor(meta.dtype, &dims)
    })
    .with_files(files)
}

shown! { Face { task, plans } }

impl Executor {
    /// An executor on the shards of `engine`, whose kernels use `home`. It keeps `home` until its last run has ended,
    /// but not the engine.
    ///
    /// # Errors
    /// `Internal` if the threads for costly kernels cannot be started.
    pub fn new(engine: &Engine, home: Arc<Home>) -> Result<Self, Status> {
        let operations = Operations::standard();
        Self::with_kernels(engine, home, move |node| operations.kernel(node))
    }

    /// The same with kernels from elsewhere.
    ///
    /// # Errors
    /// As [`Executor::new`].
    pub fn with_kernels(
        engine: &Engine,
        home: Arc<Home>,
        kernels: impl Fn(&Node) -> Result<Box<dyn Kernel>, Status> + Send + Sync + 'static,
    ) -> Result<Self, Status> {
        Self::with_pool(engine, &Pool::start()?, home, kernels)
    }

    /// The same whose costly kernels are called by threads that others share.
    ///
    /// # Errors
    /// What [`Engine::spawn`] says.
    pub(crate) fn with_pool(
        engine: &Engine,
        pool: &Pool,
        home: Arc<Home>,
        kernels: impl Fn(&Node) -> Result<Box<dyn Kernel>, Status> + Send + Sync + 'static,
    ) -> Result<Self, Status> {
        let inboxes = (0..engine.shards()).map(|_| Arc::new(Inbox::new()));
        let shared = Arc::new(Shared {
            home,
            inboxes: inboxes.collect(),
            running: Arc::default(),
        });
        let face = Arc::new(Face {
            shared: Arc::clone(&shared),
            task: engine.task().clone(),
            incarnation: engine.incarnation(),
            kernels: Box::new(kernels),
            plans: AtomicU64::new(0),
        });
        for (shard, inbox) in shared.inboxes.iter().enumerate() {
            let driver = StepDriver::new(Arc::clone(&shared), Arc::clone(inbox), pool.clone());
            inbox.wakes(engine.spawn(shard, Box::new(driver))?);
        }
        Ok(Self { face })
    }

    /// Makes a plan of a part of a graph: that of one device, or of this task. `name` is for people.
    ///
    /// # Errors
    /// `KERNEL_UNKNOWN` naming a node that has no kernel; `GRAPH_FRAME` and `GRAPH_CYCLE` for loops that make no sense;
    /// `GRAPH_ATTR` for sends, receives, arguments and results whose attributes make none; `DEVICE_FOREIGN_SOURCE` and
    /// `DEVICE_FOREIGN_DESTINATION` for sends and receives of another task, `PEER_RESTARTED` for those of an earlier
    /// life of this one.
    pub fn plan(&self, graph: &Graph, name: &str) -> Result<Arc<Plan>, Status> {
        self.plan_with(graph, name, &KeptKernels::default())
    }

    /// The same, where kernels with state are those that are `kept`.
    ///
    /// # Errors
    /// As [`Executor::plan`]; `SESSION_LIMIT`.
    pub(crate) fn plan_with(
        &self,
        graph: &Graph,
        name: &str,
        kept: &KeptKernels,
    ) -> Result<Arc<Plan>, Status> {
        let owner = Owner {
            task: &self.face.task,
            incarnation: self.face.incarnation,
        };
        let mut plan = Plan::new(graph, name, owner, &*self.face.kernels, kept)?;
        plan.id = self.face.plans.fetch_add(1, Ordering::Relaxed);
        plan.shared = Some(Arc::clone(&self.face.shared));
        Ok(Arc::new(plan))
    }

    /// Runs a plan in a step. `args` are what the `_Arg` nodes give, by their number; `done` is called once with what
    /// the `_Retval` nodes were given, by their number, where `None` is dead: in whatever thread, maybe in this one
    /// before this returns, and it must not block.
    ///
    /// The step's sends and receives are those of [`Engine::step`] with the same number. A run that fails aborts that
    /// step; one that ends well leaves the step to the caller, to [finish](rendez::engine::Step::finish) it.
    pub fn run(
        &self,
        plan: &Arc<Plan>,
        step: StepId,
        args: Vec<Value>,
        done: impl FnOnce(Result<Vec<Option<Value>>, Status>) + Send + 'static,
    ) -> RunHandle {
        let shared = &self.face.shared;
        let state = RunState::new();
        let inbox = &shared.inboxes[(step.0 % shared.inboxes.len() as u64) as usize];
        let handle = RunHandle {
            inbox: Arc::clone(inbox),
            state: Arc::clone(&state),
        };
        let done = Done::new(done, &shared.running);
        match self.check(plan, &args) {
            Err(status) => done.tell(Err(status)),
            Ok(()) => inbox.push(Order::Begin {
                plan: Arc::clone(plan),
                step,
                args,
                state,
                done,
            }),
        }
        handle
    }

    /// Whether a run may begin; it is counted already.
    fn check(&self, plan: &Plan, args: &[Value]) -> Result<(), Status> {
        let shared = &self.face.shared;
        let is_ours = plan
            .shared
            .as_ref()
            .is_some_and(|of| Arc::ptr_eq(of, shared));
        if !is_ours {
            let message = format!("the plan '{}' is another executor's", plan.name());
            return Err(Status::of(catalogue::RUN_ARGUMENTS, message));
        }
        if args.len() < plan.args() {
            let message = format!(
                "the part '{}' takes {} arguments and was given {}",
                plan.name(),
                plan.args(),
                args.len()
            );
            return Err(Status::of(catalogue::RUN_ARGUMENTS, message));
        }
        if shared.running.load(Ordering::Acquire) > RUNS_MAX {
            let message = format!("{RUNS_MAX} runs are under way (RUNS_MAX)");
            return Err(Status::of(catalogue::RUNS, message));
        }
        Ok(())
    }

    /// How many runs were ordered and have not ended.
    #[must_use]
    pub fn running(&self) -> usize {
        self.face.shared.running.load(Ordering::Acquire)
    }
}

impl RunHandle {
    /// Ends the run with `status`, unless it has failed or ended before. What it waits for ends too; `done` hears it
    /// once all of that is over.
    pub fn cancel(&self, status: Status) {
        let state = Arc::clone(&self.state);
        self.inbox.push(Order::Cancel { state, status });
    }
}

impl Shared {
    /// A plan is gone: no shard needs its keys.
    fn forget(&self, plan: u64) {
        for inbox in &self.inboxes {
            inbox.push(Order::Forget { plan });
        }
    }
}

impl Drop for Face {
    fn drop(&mut self) {
        for inbox in &self.shared.inboxes {
            inbox.push(Order::Close);
        }
    }
}
