//! How an agent is set up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rendez::cluster::{ClusterSpec, HostPort};
use rendez::control::Address;
use rendez::engine::Engine;
use rendez::ground::{StepId, TaskName, catalogue};

use super::WorkerInfo;
#[cfg(any(test, feature = "testing"))]
use super::faulty::Faulty;
use super::place::{Keys, Place};
use super::store::Store;
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
        Self {
            name: name.into(),
            task: task.into(),
            address: None,
        }
    }

    /// It listens there.
    #[must_use]
    pub fn at(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }
}

/// How the workers of a group find each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// All of them are known from the beginning, in the order of their numbers: the same at all of them.
    Listed(Vec<Worker>),
    /// They are tasks of a cluster, in this order: the same at all of them. Each says its own name when it greets.
    Cluster(Vec<(TaskName, Address)>),
    /// Through a file that all of them can lock and write.
    File {
        /// Which.
        path: PathBuf,
        /// How many there are; `None` for a group that workers join and leave as they like.
        size: Option<usize>,
    },
    /// Through a store of keys: PyTorch's `TCPStore`, or a [`Server`](crate::store::Server).
    Store {
        /// Where it listens, as `host:port`.
        address: String,
        /// As of a file.
        size: Option<usize>,
    },
}

/// The settings of an agent.
#[derive(Clone)]
pub struct Options {
    /// How the workers of the group find each other.
    pub meeting: Meeting,
    /// The group's name: agents of different groups do not hear each other.
    pub group: String,
    /// What others may call here.
    pub functions: Functions,
    /// How long a call may take; zero for no limit.
    pub timeout: Duration,
    /// How long all workers may take to be there; zero for no limit. One of a dynamic group that the engine cannot
    /// reach within its `connect_timeout` is not waited for: it may be dead, and its place in the group stays.
    ///
    /// Agents of a listed group or of a cluster greet at once, and an engine keeps what only others say for a minute:
    /// an agent that begins on a running engine more than a minute after the first of the others cannot join any more
    /// (`RPC_INIT`). Start the engine with the agent, or meet through a file or a store.
    pub init_timeout: Duration,
    /// Threads that carry functions out. One that waits for a call of its own is replaced meanwhile, as long as no more
    /// than 256 wait; beyond that what comes waits until one of them gets on, so calls that call on need a time.
    pub threads: usize,
    /// The engine's shard in which the agent works.
    pub shard: usize,
    /// Calls under way to one worker; more wait here until one of them has ended. One that was given up has ended when
    /// its worker has heard so.
    pub window: usize,
    /// Calls that wait here for one worker; more are refused with `RPC_BUSY`.
    pub waiting: usize,
    /// Calls of one worker that wait or run here; more are refused with `RPC_BUSY`.
    pub serving: usize,
    /// Each worker carries our calls out one after another, in the order in which they were made: see
    /// [`Options::in_order`].
    pub in_order: bool,
    /// Shutdown fails with `RPC_LEAK` if the program still holds references; else it names them in the log.
    pub refuse_leaks: bool,
    /// What rides along with calls.
    pub observers: Vec<Arc<dyn Observer>>,
    /// What is done to what is sent, in tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) faulty: Option<Faulty>,
}

shown! { Options { group, meeting, functions } }

impl Options {
    /// A group of these workers, all of which are known from the beginning.
    #[must_use]
    pub fn of_workers(workers: impl IntoIterator<Item = Worker>) -> Self {
        Self::of(Meeting::Listed(workers.into_iter().collect()))
    }

    /// A group of all tasks of a cluster, in its order: what a launcher, a file or a variable says, as
    /// [`resolve`](rendez::cluster::resolve) gives it. Each worker has the name that it gives to
    /// [`Agent::init`](crate::Agent::init), and others learn it when it greets. Tasks that are to be left out are taken
    /// out of [`Options::meeting`].
    #[must_use]
    pub fn of_cluster(cluster: &ClusterSpec) -> Self {
        let address = |at: &HostPort| Address::Tcp {
            host: at.host().to_owned(),
            port: at.port(),
        };
        let tasks = cluster.tasks().map(|(task, at)| (task, address(at)));
        Self::of(Meeting::Cluster(tasks.collect()))
    }

    /// A group that meets through a file: of so many workers, or, with `None`, one that workers join and leave as they
    /// like. All of them must be able to write to its folder: a change is a new file in its place. What a group that
    /// ended in disorder has left in the file is to be deleted before the next uses it.
    #[must_use]
    pub fn through_file(path: &Path, size: Option<usize>) -> Self {
        Self::of(Meeting::File {
            path: path.to_owned(),
            size,
        })
    }

    /// A group that meets through the store of keys at `address`, as `host:port`: PyTorch's `TCPStore`, or a
    /// [`Server`](crate::store::Server). `size` is as in [`Options::through_file`]. A store may serve many groups:
    /// their names tell them apart.
    #[must_use]
    pub fn through_store(address: impl Into<String>, size: Option<usize>) -> Self {
        Self::of(Meeting::Store {
            address: address.into(),
            size,
        })
    }

    fn of(meeting: Meeting) -> Self {
        let limits = Limits::default();
        Self {
            meeting,
            group: "rpc".into(),
            functions: Functions::new(),
            timeout: Duration::from_secs(60),
            init_timeout: Duration::from_secs(60),
            threads: 16,
            shard: 0,
            window: limits.window,
            waiting: limits.waiting,
            serving: limits.serving,
            in_order: false,
            refuse_leaks: false,
            observers: Vec::new(),
            #[cfg(any(test, feature = "testing"))]
            faulty: None,
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

    /// Each worker carries the calls of this one out one after another, in the order in which they were made; else a
    /// small call may overtake a large one, and many run at once. They are under way together all the same. Fetching a
    /// value has no order. A function that is called in order must not wait for a call in order of its own caller back
    /// to it: that would wait for itself.
    #[must_use]
    pub const fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// What this agent sends is dropped, delayed and repeated: for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn faulty(mut self, faulty: Faulty) -> Self {
        self.faulty = Some(faulty);
        self
    }

    /// This rides along with calls. One observer at most may have a header for a leg: autograd has one of its own for
    /// those in a context.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Whether the keys of the group can have its name in them.
    pub(super) fn check_group(&self, engine: &Engine) -> Result<(), Error> {
        let task = engine.task();
        super::lanes::key_of(&self.group, task, task, 0)
            .map(drop)
            .map_err(|status| {
                let (name, why) = (&self.group, status.message());
                let message = format!(
                    "no group can be called '{name:.64}': take a shorter name without ';' ({why:.256})"
                );
                Error::of(catalogue::RPC_GROUP, message)
            })
    }

    /// The workers of the group, after this one has joined it, and where they meet.
    pub(super) fn workers(
        &self,
        engine: &Engine,
        name: &str,
    ) -> Result<(BTreeMap<WorkerId, WorkerInfo>, Option<Place>), Error> {
        let (place, size) = match &self.meeting {
            Meeting::Listed(listed) => {
                let workers = numbered(listed)?;
                introduce(engine, &workers, listed);
                return Ok((workers, None));
            }
            Meeting::Cluster(tasks) => return Ok((of_tasks(engine, name, tasks)?, None)),
            Meeting::File { path, size } => {
                let store = Store::new(path, *size);
                (Place::File(Arc::new(store)), *size)
            }
            Meeting::Store { address, size } => {
                let keys = Keys::new(address, &self.group, *size);
                (Place::Keys(Arc::new(keys)), *size)
            }
        };
        if size == Some(0) {
            return Err(Error::of(catalogue::RPC_GROUP, "a group of no workers"));
        }
        if engine.address().is_none() {
            let message = "the engine has no control plane: peers cannot connect to it";
            return Err(Error::of(catalogue::RPC_STORE, message));
        }
        let meeting = match &self.meeting {
            Meeting::Store { address, .. } => address.parse().ok(),
            _ => None,
        };
        let address = engine.address_for(meeting.as_ref(), self.init_timeout)?;
        place.join(name, engine.task(), &address, self.init_timeout)?;
        let members = match size {
            Some(size) => place.gather(size, self.init_timeout),
            None => place.members(),
        };
        let members = match members {
            Ok(members) => members,
            Err(error) => {
                // The first failure is told.
                let _ = place.leave();
                return Err(error);
            }
        };
        let mut workers = BTreeMap::new();
        for (id, (info, address)) in members {
            if info.task != *engine.task() {
                engine.add_peer(info.task.clone(), address);
            }
            workers.insert(id, info);
        }
        Ok((workers, Some(place)))
    }

    /// Others learn a worker's name from itself.
    pub(crate) const fn is_named_by_itself(&self) -> bool {
        matches!(self.meeting, Meeting::Cluster(_))
    }

    pub(crate) const fn is_dynamic(&self) -> bool {
        matches!(
            self.meeting,
            Meeting::File { size: None, .. } | Meeting::Store { size: None, .. }
        )
    }

    /// A digest of the group's members, which all of them must have; zero for a group that grows and shrinks.
    pub(crate) fn roster(&self, workers: &BTreeMap<WorkerId, WorkerInfo>) -> u64 {
        if self.is_dynamic() {
            return 0;
        }
        let mut text = self.group.clone();
        for info in workers.values() {
            let name = match self.is_named_by_itself() {
                true => "",
                false => &info.name,
            };
            text.push_str(&format!("\n{} {name} {}", info.id, info.task));
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
            in_order: self.in_order,
            ..Limits::default()
        }
    }
}

fn numbered(listed: &[Worker]) -> Result<BTreeMap<WorkerId, WorkerInfo>, Error> {
    let mut workers = BTreeMap::<WorkerId, WorkerInfo>::new();
    for (at, worker) in listed.iter().enumerate() {
        let id = u16::try_from(at)
            .map(WorkerId)
            .map_err(|_| Error::of(catalogue::RPC_GROUP, "a group has at most 65536 workers"))?;
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
        workers.insert(
            id,
            WorkerInfo {
                id,
                name: name.clone(),
                task,
            },
        );
    }
    Ok(workers)
}

/// The tasks of a cluster. Until a worker has said its name it has that of its job and its number there.
fn of_tasks(
    engine: &Engine,
    name: &str,
    tasks: &[(TaskName, Address)],
) -> Result<BTreeMap<WorkerId, WorkerInfo>, Error> {
    let named = tasks.iter().map(|(task, _)| {
        let name = match task == engine.task() {
            true => name.to_owned(),
            false => format!("{}:{}", task.job(), task.task()),
        };
        Worker::new(name, task.to_string())
    });
    let listed: Vec<Worker> = named
        .zip(tasks)
        .map(|(worker, (_, address))| worker.at(address.clone()))
        .collect();
    let own = listed
        .iter()
        .position(|one| one.task == engine.task().to_string());
    let mut workers = BTreeMap::new();
    for (at, worker) in listed.iter().enumerate() {
        let alone = numbered(std::slice::from_ref(worker))?;
        let id = u16::try_from(at)
            .map(WorkerId)
            .map_err(|_| Error::of(catalogue::RPC_GROUP, "a group has at most 65536 workers"))?;
        workers.extend(
            alone
                .into_values()
                .map(|info| (id, WorkerInfo { id, ..info })),
        );
    }
    if own.is_none() {
        let message = format!("{} is no task of the cluster", engine.task());
        return Err(Error::of(catalogue::RPC_GROUP, message));
    }
    introduce(engine, &workers, &listed);
    Ok(workers)
}

/// The engine learns where workers listen.
fn introduce(engine: &Engine, workers: &BTreeMap<WorkerId, WorkerInfo>, listed: &[Worker]) {
    for (info, worker) in workers.values().zip(listed) {
        if let Some(address) = &worker.address
            && info.task != *engine.task()
        {
            engine.add_peer(info.task.clone(), address.clone());
        }
    }
}
