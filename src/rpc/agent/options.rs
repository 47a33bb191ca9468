//! How an agent is set up.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rendez::control::Address;
use rendez::engine::Engine;
use rendez::ground::{StepId, TaskName, catalogue};

use super::WorkerInfo;
use crate::error::Error;
use crate::functions::Functions;
use crate::id::{WorkerId, check_name};
use crate::node::Limits;
use crate::observer::Observer;

/// A worker as a group names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// Its task, as `/job:worker/task:0`.
    pub task: String,
    /// Where its engine listens, if the engine does not know.
    pub address: Option<Address>,
}

impl Worker {
    /// The worker `name`, which is `task`; the engine knows where that listens.
    pub fn new(name: impl Into<String>, task: impl Into<String>) -> Self {
        Self { name: name.into(), task: task.into(), address: None }
    }

    /// It listens there.
    #[must_use]
    pub fn at(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }
}

/// The settings of an agent.
#[derive(Clone)]
pub struct Options {
    /// The workers of the group, in the order of their numbers: the same at all of them.
    pub group_workers: Vec<Worker>,
    /// The group's name: agents of different groups do not hear each other.
    pub group: String,
    /// What others may call here.
    pub functions: Functions,
    /// How long a call may take; zero for no limit.
    pub timeout: Duration,
    /// How long all workers may take to be there; zero for no limit.
    pub init_timeout: Duration,
    /// Threads that carry functions out.
    pub threads: usize,
    /// The engine's shard in which the agent works.
    pub shard: usize,
    /// Calls under way to one worker; more wait here until one of them has ended.
    pub window: usize,
    /// Calls that wait here for one worker; more are refused with `RPC_BUSY`.
    pub waiting: usize,
    /// Calls of one worker that wait or run here; more are refused with `RPC_BUSY`.
    pub serving: usize,
    /// What rides along with calls.
    pub observers: Vec<Arc<dyn Observer>>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("group", &self.group)
            .field("workers", &self.group_workers)
            .field("functions", &self.functions)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// A group of these workers, all of which are known from the beginning.
    #[must_use]
    pub fn of_workers(workers: impl IntoIterator<Item = Worker>) -> Self {
        let limits = Limits::default();
        Self {
            group_workers: workers.into_iter().collect(),
            group: "rpc".into(),
            functions: Functions::new(),
            timeout: Duration::from_secs(60),
            init_timeout: Duration::from_secs(60),
            threads: 16,
            shard: 0,
            window: limits.window,
            waiting: limits.waiting,
            serving: limits.serving,
            observers: Vec::new(),
        }
    }

    /// Others may call these functions.
    #[must_use]
    pub fn functions(mut self, functions: Functions) -> Self {
        self.functions = self.functions.and(functions);
        self
    }

    /// How long a call may take; zero for no limit.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// This rides along with calls.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    pub(crate) fn workers(&self) -> Result<BTreeMap<WorkerId, WorkerInfo>, Error> {
        let mut workers = BTreeMap::<WorkerId, WorkerInfo>::new();
        for (at, worker) in self.group_workers.iter().enumerate() {
            let id = u16::try_from(at).map(WorkerId).map_err(|_| {
                Error::of(catalogue::RPC_GROUP, "a group has at most 65536 workers")
            })?;
            let name = &worker.name;
            check_name(name).map_err(|error| Error::of(catalogue::RPC_NAME, error.to_string()))?;
            if let Some(other) = workers.values().find(|info| info.name == *name) {
                let other = other.id;
                let message = format!(
                    "RPC worker name {name} is not unique. Workers {other} and {id} share the same name."
                );
                return Err(Error::of(catalogue::RPC_NAME, message));
            }
            let task = TaskName::parse(&worker.task)
                .map_err(|error| Error::of(catalogue::RPC_GROUP, error.to_string()))?;
            workers.insert(id, WorkerInfo { id, name: name.clone(), task });
        }
        Ok(workers)
    }

    /// The engine learns where workers listen.
    pub(crate) fn introduce(&self, engine: &Engine, workers: &BTreeMap<WorkerId, WorkerInfo>) {
        for (info, worker) in workers.values().zip(&self.group_workers) {
            if let Some(address) = &worker.address
                && info.task != *engine.task()
            {
                engine.add_peer(info.task.clone(), address.clone());
            }
        }
    }

    /// A digest of the group's members, which all of them must have; never zero.
    pub(crate) fn roster(&self, workers: &BTreeMap<WorkerId, WorkerInfo>) -> u64 {
        let mut text = self.group.clone();
        for info in workers.values() {
            text.push_str(&format!("\n{} {} {}", info.id, info.name, info.task));
        }
        super::step_of(&text).0
    }

    pub(crate) fn step(&self) -> StepId {
        super::step_of(&self.group)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            window: self.window.max(1),
            waiting: self.waiting,
            serving: self.serving.max(1),
            ..Limits::default()
        }
    }
}
