//! The agent: one worker of a group, on an engine.

mod builtin;
pub(crate) mod context;
pub(crate) mod desk;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod faulty;
mod figures;
pub(crate) mod guests;
mod lanes;
pub(crate) mod local;
mod log;
mod notices;
pub(crate) mod options;
pub(crate) mod packed;
mod panics;
pub(crate) mod pending;
mod place;
mod pool;
pub(crate) mod promise;
pub(crate) mod raw;
mod reporting;
pub(crate) mod rref;
mod seat;
pub(crate) mod shared;
pub(crate) mod slot;
mod store;
mod timer;
mod work;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crossbeam::queue::SegQueue;
use rendez::engine::Engine;
use rendez::ground::hash::fnv1a;
use rendez::ground::{Code, Status, StepId, Unpoisoned, catalogue};
use rendez::mail::forks;
use rendez::mail::wait::Awaited;

use crate::error::Error;
use crate::id::{WorkerId, check_name};
use crate::message::{Hello, Target};
use crate::node::{Group, Node};
use crate::value::{Args, Value};
pub use builtin::ReferenceInfo;
use desk::Desk;
use figures::Figures;
use notices::Notices;
pub use options::{Meeting, Options, Worker};
use packed::Packed;
pub use pending::{Pending, wait_all};
use pool::Pool;
use rref::RRef;
use seat::Seat;
pub use shared::WorkerInfo;
use shared::{Command, Left, Mode, Shared};
use slot::Slot;

/// A worker of a group. Cheap to clone; when the last clone is dropped it leaves at once, as by
/// [`Agent::shutdown_local`]. In a child of `fork` it is the parent's: calls are refused with `ENGINE_FORKED`, and the
/// group does not hear of its end.
#[derive(Clone)]
pub struct Agent {
    inner: Arc<Inner>,
}

/// An agent, as what it keeps may hold it.
#[derive(Clone)]
pub struct WeakAgent(Weak<Inner>);

impl WeakAgent {
    /// The agent, until its last clone is dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<Agent> {
        let inner = self.0.upgrade()?;
        Some(Agent { inner })
    }
}

shown! { WeakAgent {} }

enum Inner {
    /// Of the program.
    Own(Arc<Shared>),
    /// Of a function that is carried out.
    Lent(Arc<Shared>),
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Self::Own(shared) = self
            && !forks::is_child()
        {
            shared.is_closed.store(true, Ordering::Release);
            shared.push(Command::LeaveNow);
            shared.leave_seat();
            shared.leave_place();
            if context::may_wait().is_ok() {
                shared.tell_of_the_end();
            }
        }
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = self.shared();
        write!(
            f,
            "Agent(WorkerInfo(id={}, name={}))",
            shared.me, shared.name
        )
    }
}

impl Agent {
    pub(crate) fn of(shared: &Arc<Shared>) -> Self {
        Self {
            inner: Arc::new(Inner::Lent(Arc::clone(shared))),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        match &*self.inner {
            Inner::Own(shared) | Inner::Lent(shared) => shared,
        }
    }

    /// The agent, as what it keeps may hold it: its functions, its observers.
    #[must_use]
    pub fn downgrade(&self) -> WeakAgent {
        WeakAgent(Arc::downgrade(&self.inner))
    }

    /// Starts the worker `name` on `engine`, and waits until all workers of its group are there.
    ///
    /// # Errors
    /// `RPC_NAME` for a name that is none, or that two workers share; `RPC_GROUP` if the group's name cannot be part of
    /// a key, if this task is no worker of the group, if it runs one already, or if workers disagree about it;
    /// `RPC_INIT` names those that did not come in time; `WAIT_IN_SHARD` inside a shard.
    pub fn init(engine: &Engine, name: &str, options: Options) -> Result<Self, Error> {
        context::may_wait()?;
        panics::watch();
        check_name(name).map_err(|error| Error::of(catalogue::RPC_NAME, error.to_string()))?;
        options.check_group(engine)?;
        let seat = (Seat::take(engine, &options.group, options.step())?, life()?);
        let (workers, place) = options.workers(engine, name)?;
        let me = workers.values().find(|info| info.name == name).cloned();
        let me = me.ok_or_else(|| {
            Error::of(
                catalogue::RPC_GROUP,
                format!("the group has no worker '{name}'"),
            )
        })?;
        if me.task != *engine.task() {
            let message = format!(
                "worker '{name}' is the task {} in the group, and runs as {}",
                me.task,
                engine.task()
            );
            return Err(Error::of(catalogue::RPC_GROUP, message));
        }
        let group = Group {
            hello: Hello {
                roster: options.roster(&workers),
                name: name.into(),
                task: me.task.to_string(),
                address: engine
                    .address()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                wants_answer: false,
            },
            is_dynamic: options.is_dynamic(),
        };
        Self::begin((engine, seat), me, workers, group, options, place)
    }

    /// Starts the worker `me`, and waits until all others are there.
    fn begin(
        (engine, (seat, life)): (&Engine, (Seat, u32)),
        me: WorkerInfo,
        workers: BTreeMap<WorkerId, WorkerInfo>,
        group: Group,
        options: Options,
        place: Option<place::Place>,
    ) -> Result<Self, Error> {
        let node = Node::new(me.id, life, group, options.limits());
        let step = options.step();
        let patience = options.init_timeout;
        let shard = options.shard;
        let shared = Arc::new(Shared {
            engine: engine.clone(),
            me: me.id,
            name: me.name.clone(),
            functions: (options.functions.clone())
                .and(crate::spans::functions())
                .and(builtin::functions()),
            workers: RwLock::new(workers),
            values: Mutex::new(HashMap::new()),
            queue: SegQueue::new(),
            queued: AtomicUsize::new(0),
            waker: OnceLock::new(),
            pool: Pool::new(&me.name, options.threads),
            notices: Notices::default(),
            // Of a worker that starts again: it gives no identity again that a former life of it gave.
            locals: AtomicU64::new(node.first_local()),
            is_closed: AtomicBool::new(false),
            async_calls: AtomicUsize::new(0),
            figures: Figures::new(engine.is_timed()),
            recordings: Mutex::default(),
            span_ids: AtomicU64::new(node.first_local() + 1),
            joined: Slot::default(),
            left: Slot::default(),
            guests: Mutex::default(),
            offer: Mutex::default(),
            place: Mutex::new(place.clone()),
            seat: Mutex::new(Some(seat)),
            options,
        });
        for observer in &shared.options.observers {
            observer.begun(shared.me);
        }
        let desk = Desk::new(Arc::clone(&shared), node, step);
        // A start that fails leaves nothing behind.
        let waker = engine.spawn(shard, Box::new(desk));
        let waker = waker.inspect_err(|_| shared.leave_place())?;
        let _ = shared.waker.set(waker.clone());
        engine.wake(shard, &waker);
        let reporter: std::sync::Weak<dyn rendez::engine::reporters::Reporter> =
            Arc::<Shared>::downgrade(&shared);
        engine.add_reporter(reporter);
        let agent = Self {
            inner: Arc::new(Inner::Own(Arc::clone(&shared))),
        };
        if let (Some(place), true) = (place, shared.options.is_dynamic()) {
            place.watch(&shared)?;
        }
        let patience = Some(patience).filter(|patience| !patience.is_zero());
        if !shared.wait(&shared.joined, patience) {
            let error = agent.unjoined(patience.unwrap_or_default());
            agent.shutdown_local();
            return Err(error);
        }
        match shared.joined.take() {
            Some(Err(error)) => {
                agent.shutdown_local();
                Err(error)
            }
            _ => {
                guests::receive(&shared);
                Ok(agent)
            }
        }
    }

    fn unjoined(&self, patience: Duration) -> Error {
        let absent = self
            .shared()
            .ask(|view| view.node.awaited().collect::<Vec<_>>())
            .unwrap_or_default();
        let names: Vec<String> = absent
            .into_iter()
            .map(|id| self.shared().name_of(id))
            .collect();
        let message = format!(
            "after {patience:?} these workers were not there: {}",
            names.join(", ")
        );
        Error::of(catalogue::RPC_INIT, message)
    }

    /// This worker.
    #[must_use]
    pub fn worker(&self) -> WorkerInfo {
        let shared = self.shared();
        let workers = shared.workers.read().unpoisoned();
        workers
            .get(&shared.me)
            .cloned()
            .unwrap_or_else(|| WorkerInfo {
                id: shared.me,
                name: shared.name.clone(),
                task: shared.engine.task().clone(),
            })
    }

    /// All workers of the group.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let workers = self.shared().workers.read().unpoisoned();
        workers.values().cloned().collect()
    }

    /// The name of a worker of the group.
    #[must_use]
    pub fn name_of(&self, worker: WorkerId) -> Option<String> {
        let workers = self.shared().workers.read().unpoisoned();
        workers.get(&worker).map(|info| info.name.clone())
    }

    /// Does `work` on a thread that carries functions out: what a function in the shard finds too long for it. Dropped
    /// if the worker has left the group.
    pub fn offload(&self, work: impl FnOnce() + Send + 'static) {
        self.shared().pool.push(Box::new(work));
    }

    /// The engine it runs on.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.shared().engine
    }

    /// Calls `function` at the worker `to`, and waits for its result.
    ///
    /// # Errors
    /// As [`Pending::wait`]; `RPC_WORKER` if there is no such worker.
    pub fn rpc_sync<R: Value>(
        &self,
        to: &str,
        function: &str,
        args: impl Args,
    ) -> Result<R, Error> {
        let (to, target, packed) = self.packed(to, function, &args)?;
        let shared = self.shared();
        shared.call(to, target, packed, shared.options.timeout)
    }

    /// Blocks this thread until `is_over` says so, which happens where a function or a callback of this worker runs:
    /// what `is_over` is given is woken then. As a thread that waits for a call, this one sends and receives meanwhile.
    /// No longer than `patience`, if there is one: whether it is over then, `is_over` says.
    ///
    /// # Errors
    /// `WAIT_IN_SHARD` if it cannot wait here; `RPC_SHUTDOWN` if the engine has ended.
    pub fn wait_until(
        &self,
        is_over: &dyn Fn(Option<&Waker>) -> bool,
        patience: Option<Duration>,
    ) -> Result<(), Error> {
        struct End<'a>(&'a dyn Fn(Option<&Waker>) -> bool);
        impl Awaited for End<'_> {
            type Outcome = ();

            fn look(&self) -> Option<()> {
                (self.0)(None).then_some(())
            }

            fn watch(&self, waker: &Waker) -> Poll<()> {
                match (self.0)(Some(waker)) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }
        }
        context::may_wait()?;
        let began = Instant::now();
        match self.shared().wait_for(&End(is_over), patience) {
            true => Ok(()),
            false if patience.is_some_and(|patience| began.elapsed() >= patience) => Ok(()),
            false => Err(Error::local(crate::error::shut_down())),
        }
    }

    /// Calls `function` at the worker `to`, and does not wait: what is returned is a future, and has
    /// [`wait`](Pending::wait).
    ///
    /// # Errors
    /// `RPC_WORKER` if there is no such worker; `RPC_ARGUMENTS` for arguments that cannot travel.
    pub fn rpc_async<R: Value>(
        &self,
        to: &str,
        function: &str,
        args: impl Args,
    ) -> Result<Pending<R>, Error> {
        self.rpc_async_within(to, function, args, self.shared().options.timeout)
    }

    /// As [`Agent::rpc_async`], with a time of its own: when `timeout` is over the call ends with `RPC_TIMEOUT`, and is
    /// not begun at the other side if it has not. Zero is no limit.
    ///
    /// # Errors
    /// As [`Agent::rpc_async`].
    pub fn rpc_async_within<R: Value>(
        &self,
        to: &str,
        function: &str,
        args: impl Args,
        timeout: Duration,
    ) -> Result<Pending<R>, Error> {
        self.call(to, function, args, (timeout, Mode::Async))
    }

    /// As [`Agent::rpc_async_within`], for a call that is made for what it does there: it sets out at once, and its end
    /// is heard when this thread waits for something of this agent, or some other thread does, at the latest within a
    /// millisecond. No other thread is woken for it, which costs more than the call.
    ///
    /// # Errors
    /// As [`Agent::rpc_async`].
    pub fn rpc_post(
        &self,
        to: &str,
        function: &str,
        args: impl Args,
        timeout: Duration,
    ) -> Result<Pending<()>, Error> {
        let (to, target, packed) = self.packed(to, function, &args)?;
        Ok(self.shared().post(to, target, packed, timeout))
    }

    fn call<R: Value>(
        &self,
        to: &str,
        function: &str,
        args: impl Args,
        (timeout, mode): (Duration, Mode),
    ) -> Result<Pending<R>, Error> {
        let (to, target, packed) = self.packed(to, function, &args)?;
        Ok(self.shared().start(to, target, packed, timeout, mode))
    }

    /// What a call of `function` at the worker `to` consists of.
    fn packed(
        &self,
        to: &str,
        function: &str,
        args: &impl Args,
    ) -> Result<(WorkerId, Target, Packed), Error> {
        let to = self.shared().find(to)?;
        let packed = self.shared().pack(to, function, args)?;
        Ok((to, Target::Function(function.into()), packed))
    }

    /// Calls `function` at the worker `to`, and leaves its result there: what is returned refers to it, at once.
    ///
    /// # Errors
    /// As [`Agent::rpc_async`]. A failure of the function is told by [`RRef::to_here`].
    pub fn remote<T>(&self, to: &str, function: &str, args: impl Args) -> Result<RRef<T>, Error>
    where
        T: Any + Send + Sync,
    {
        self.remote_within(to, function, args, self.shared().options.timeout)
    }

    /// As [`Agent::remote`], with a time of its own until the value is there. Zero is no limit.
    ///
    /// # Errors
    /// As [`Agent::remote`].
    pub fn remote_within<T>(
        &self,
        to: &str,
        function: &str,
        args: impl Args,
        timeout: Duration,
    ) -> Result<RRef<T>, Error>
    where
        T: Any + Send + Sync,
    {
        let shared = self.shared();
        let to = shared.find(to)?;
        let packed = shared.pack(to, function, &args)?;
        Ok(RRef::of(shared.create(to, function, packed, timeout)))
    }

    /// Leaves when all workers of the group want to, and all calls everywhere, also those that calls have made, are
    /// done. References that this program still holds then are named in the log, and end. Zero waits for ever. Of
    /// several shutdowns at once the earliest end counts, and all are told how it went.
    ///
    /// # Errors
    /// `RPC_SHUTDOWN_DEADLINE` names what was outstanding when `timeout` was over; `RPC_LEAK` names references that
    /// were held, if [`Options::refuse_leaks`] asks for that. This worker has left all the same. `RPC_SHUTDOWN` inside
    /// a function that is carried out here, for which shutdown would wait; nothing has happened then.
    pub fn shutdown(self, timeout: Duration) -> Result<(), Error> {
        context::may_wait()?;
        if context::Context::current().is_some_and(|call| Arc::ptr_eq(&call.shared, self.shared()))
        {
            let message = "a function that is carried out cannot shut its own worker down: shutdown waits for it; \
                           use shutdown_local, or have another thread do it";
            return Err(Error::of(catalogue::RPC_SHUTDOWN, message));
        }
        let shared = Arc::clone(self.shared());
        shared.push(Command::Leave((!timeout.is_zero()).then_some(timeout)));
        shared.wait(&shared.left, None);
        shared.leave_place();
        shared.is_closed.store(true, Ordering::Release);
        shared.tell_of_the_end();
        let Left { how, leaks } = shared.left.copy().unwrap_or_default();
        if let Err(what) = how {
            let after = match timeout.is_zero() {
                true => "after the time of another shutdown".to_owned(),
                false => format!("after {timeout:?}"),
            };
            let message = format!("{after}: {}", what.join("; "));
            return Err(Error::of(catalogue::RPC_SHUTDOWN_DEADLINE, message));
        }
        if shared.options.refuse_leaks && !leaks.is_empty() {
            let message = format!("Leaking RRef {}", leaks.join(", "));
            return Err(Error::of(catalogue::RPC_LEAK, message));
        }
        Ok(())
    }

    /// Leaves at once. What waits for this worker, or of it, ends. In a child of `fork` nothing happens.
    pub fn shutdown_local(self) {
        if forks::is_child() {
            return;
        }
        let shared = Arc::clone(self.shared());
        shared.is_closed.store(true, Ordering::Release);
        shared.push(Command::LeaveNow);
        let may_wait = context::may_wait().is_ok();
        if may_wait {
            shared.wait(&shared.left, Some(Duration::from_secs(5)));
        }
        // Also if the program keeps a handle: who joins must not wait for this worker.
        shared.leave_place();
        if may_wait {
            shared.tell_of_the_end();
        }
    }
}

/// A number for this life of a worker, which is not zero.
fn life() -> Result<u32, Error> {
    random().map(|number| (number as u32).max(1))
}

/// A number that no other process draws.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = format!("the system gives no random numbers: {error}");
        Error::local(Status::new(Code::Internal, catalogue::RPC_GROUP, message))
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// The step in which a group's messages travel: of its name, and never of a program's own by chance.
pub(crate) fn step_of(group: &str) -> StepId {
    StepId(fnv1a(group.as_bytes()) | 1 << 63)
}

/// How many workers the file of a group names; see [`parsers`](crate::parsers).
#[cfg(any(test, feature = "testing"))]
pub(crate) fn parse_store(path: &std::path::Path) -> Result<usize, Error> {
    let members = store::Store::new(path, None).members()?;
    Ok(members.len())
}

/// How many workers the log of a group names; see [`parsers`](crate::parsers).
#[cfg(any(test, feature = "testing"))]
pub(crate) fn parse_log(bytes: &[u8]) -> Result<usize, String> {
    let log = log::Log::read(bytes)?;
    // What it would be written anew as is a log as well.
    if let Some(short) = log.compacted() {
        log::Log::read(short.as_bytes())?;
    }
    Ok(log.members(0).len())
}
