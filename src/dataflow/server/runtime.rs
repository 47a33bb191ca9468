//! Runtime: what runs graphs on a task, beside its engine: a worker, and a master of all workers.
//!
//! Knows how they are put together. What peers ask before they are there is refused.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::errands::Errands;
use super::executing;
use super::executor::{self, Pool};
use super::master::{self, Master};
use super::worker::{self, Worker};
use crate::operations::Operations;
use rendez::cluster::ClusterSpec;
use rendez::control::Services;
use rendez::drive::Driver;
use rendez::engine::Engine;
use rendez::ground::{Status, catalogue};
use rendez::mail::forks;

/// What runs graphs on a task. Its end ends all sessions.
#[derive(Debug)]
pub(crate) struct Runtime {
    engine: Engine,
    worker: Arc<Worker>,
    master: Arc<Master>,
}

/// What a runtime is given beside its engine and its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    /// Which operations it runs.
    pub(crate) operations: Operations,
    /// How long a worker that is not there is waited for.
    pub(crate) patience: Duration,
}

/// Where a runtime is once it is there. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuntimePlace(Arc<OnceLock<Weak<Runtime>>>);

impl RuntimePlace {
    /// What peers may ask of it.
    pub(crate) fn services(&self) -> Services {
        let (workers, masters) = (self.clone(), self.clone());
        let worker = move || workers.runtime().map(|runtime| Arc::clone(&runtime.worker));
        let master = move || masters.runtime().map(|runtime| Arc::clone(&runtime.master));
        worker::services(worker).and(master::services(master))
    }

    fn runtime(&self) -> Result<Arc<Runtime>, Status> {
        let absent = || {
            Status::of(
                catalogue::WORKER_ABSENT,
                "this task runs no graphs, or not yet, or no more",
            )
        };
        self.0.get().and_then(Weak::upgrade).ok_or_else(absent)
    }
}

impl Runtime {
    /// Begins to run graphs on `engine`'s task, for masters of all tasks and as master of the workers of `cluster`.
    ///
    /// # Errors
    /// What the system has not got; `CONFIG` where shards have no thread (`drive = "caller"`).
    pub(crate) fn start(
        engine: &Engine,
        cluster: ClusterSpec,
        means: Means,
        place: &RuntimePlace,
    ) -> Result<Arc<Self>, Status> {
        let errands = Arc::new(Errands::default());
        let worker = worker_on(engine, &means.operations)?;
        let ops = means.operations.shared_ops();
        let master = Master::new(engine, &worker, &errands, ops, cluster, means.patience)?;
        let runtime = Arc::new(Self {
            engine: engine.clone(),
            worker,
            master,
        });
        let _ = place.0.set(Arc::downgrade(&runtime));
        Ok(runtime)
    }

    /// Its master.
    pub(crate) const fn master(&self) -> &Arc<Master> {
        &self.master
    }

    /// Its worker.
    pub(crate) const fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Its engine.
    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Ends all sessions, and blocks no longer than `deadline`.
    pub(crate) fn stop(&self, deadline: Duration) {
        if forks::is_child() {
            return;
        }
        self.master.end(deadline);
        self.worker.end();
    }
}

/// A worker that runs parts on `engine`'s shards.
///
/// # Errors
/// What the system has not got.
pub(super) fn worker_on(engine: &Engine, operations: &Operations) -> Result<Arc<Worker>, Status> {
    if engine.driver() == Driver::Caller {
        return Err(Status::of(
            catalogue::CONFIG,
            "drive = \"caller\" has no thread that runs graphs: set drive to \"adaptive\" or \"thread\"",
        ));
    }
    // What runs in a shard keeps its home.
    let of_home = engine.downgrade();
    let make_home = Box::new(move || executor::home(of_home.clone()));
    let (of_runner, kernels) = (engine.clone(), operations.clone());
    // Sessions with variables of their own have no threads of their own: clients may ask for many of them.
    let pool = Pool::start()?;
    let make_runner = Box::new(move |home| executing::runner(&of_runner, &pool, home, &kernels));
    let ops = operations.shared_ops();
    Worker::new(engine, ops, make_home, make_runner)
}

/// How long the end of sessions may take if it was not asked for.
const DROPPED: Duration = Duration::from_secs(1);

impl Drop for Runtime {
    fn drop(&mut self) {
        if forks::is_child() {
            // What they would tell their peers and threads is for the parent to tell. The process's end takes them.
            std::mem::forget((Arc::clone(&self.worker), Arc::clone(&self.master)));
        }
        self.stop(DROPPED);
    }
}
