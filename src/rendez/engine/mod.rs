//! Engine: the public handle. Starts the shards of this process and its control plane, and lets any thread and any
//! async runtime hand tensors over and receive them.
//!
//! It knows shards by their mailboxes only. Nothing here is on the path of a value that an in-shard task sends.

mod admission;
mod cancel;
mod config;
pub mod counters;
mod devices;
mod drive;
mod ending;
mod links;
pub mod metrics;
mod offers;
pub mod recording;
mod recv;
pub mod reporters;
mod secrets;
mod send;
pub mod services;
#[cfg(any(test, feature = "testing"))]
mod solo;
mod start;
mod steps;
mod tasks;
mod tensors;
mod transports;
mod users;
mod wiring;

#[cfg(test)]
mod tests;

pub use admission::OBSERVER_JOB;
pub use cancel::{CancelScope, CancelToken, Cancelled};
pub use config::{
    Config, Loaded, Origin, Origins, Require, SETTINGS, Setting, Sources, Taker, VerbsSettings,
    reference_page,
};
pub use devices::{DeviceSettings, DeviceStats, DeviceUse, EngineDevices};
pub use offers::Offer;
pub use recv::{Filled, Recv};
pub use send::{SendAsync, Unsent};
pub use steps::Step;
pub use tasks::TaskEnd;
pub use transports::transports;
pub use wiring::{Connected, Fallback};

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel;

use crate::control::{Address, Control, RuntimeReport, Services, check_exposure, here};
use crate::drive::{Drive, is_shard_thread};
use crate::fabric::doorbell::Doorbell;
use crate::ground::device::TaskName;
use crate::ground::{
    Code, Incarnation, Locked, Nanos, Status, StepId, Unpoisoned, catalogue, faults,
};
use crate::mail::wait::WaitCell;
use crate::mail::{PendingItem, ShardStats, forks};
use crate::memory::{HugePagesReport, Pool};
use crate::shard::{Call, Mailbox, Task, TaskWaker};
use crate::trace::Clock;
use crate::trace::recorder::Recorder;
use ending::Ended;
use recording::ComparedClock;
use reporters::Reporters;
use steps::Steps;
use users::Users;
use wiring::Wiring;

/// A running engine. Cheap to clone; dropping the last clone stops it at once, whatever the engine's own threads are
/// doing. Whatever is made from a clone and hands values over, such as a [`Step`] or a [`Recv`], counts as a clone.
///
/// **After `fork`** an engine does not work in the child, which has none of its threads: calls that return a status
/// return `ENGINE_FORKED`, [`Engine::start`] too, and the others do nothing. Dropping it there is harmless. Fork before
/// the first engine starts, or call `exec` in the child, as [`std::process::Command`] does.
///
/// **A process that becomes a daemon** must do so before its first engine starts: one that closes all its descriptors
/// closes the engine's too, and files opened afterwards get their numbers, to which the engine goes on writing.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Users>,
}

/// A handle that does not keep its engine running.
#[derive(Clone, Debug)]
pub struct WeakEngine(Weak<Users>);

impl WeakEngine {
    /// The engine, if it still runs.
    #[must_use]
    pub fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(|inner| Engine { inner })
    }
}

/// What all clones share.
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) task: TaskName,
    pub(crate) incarnation: Incarnation,
    pub(crate) clock: Clock,
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
    pub(crate) doorbells: Vec<Arc<Doorbell>>,
    /// What turns each shard; none in a simulation.
    pub(crate) drives: Vec<Arc<Drive>>,
    /// Bytes a shard's table may park: above a quarter of it in a mailbox, a send waits for its answer.
    pub(crate) parked_bytes: u64,
    pub(crate) steps: Steps,
    pub(crate) wiring: Arc<Wiring>,
    pub(crate) control: OnceLock<Control>,
    /// The arena of application threads, which no shard owns.
    pub(crate) pool: Mutex<Pool>,
    pub(crate) crew: Mutex<Option<Crew>>,
    /// Told when all that is to stop has.
    pub(crate) ended: Ended,
    /// What all ended with, if a shard panicked.
    pub(crate) failed: OnceLock<Status>,
    pub(crate) placement: Placement,
    /// The thread that writes a missed deadline down.
    pub(crate) dumping: Mutex<Option<JoinHandle<()>>>,
    /// When a missed deadline was recorded last.
    pub(crate) dumped: AtomicU64,
    /// The thread that compares the clocks of peers with ours.
    pub(crate) clock_keeper: Mutex<Option<JoinHandle<()>>>,
    /// Traceparents from peers that are none.
    pub(crate) refused_traces: AtomicU64,
    /// Libraries above the engine that tell of themselves.
    pub(crate) reporters: Reporters,
    /// How the clocks of peers that do not share ours compared last, and when.
    pub(crate) clocks: Mutex<BTreeMap<TaskName, (ComparedClock, Nanos)>>,
    /// When it started.
    pub(crate) began: Nanos,
    /// The server of the metrics.
    pub(crate) metrics: Mutex<Option<metrics::MetricsServer>>,
    /// What each shard records into; `None` where nothing is recorded.
    pub(crate) recorders: OnceLock<Vec<Option<Arc<Recorder>>>>,
    /// Engines of this process we are connected with by loopback.
    pub(crate) locals: Mutex<Vec<Weak<Self>>>,
}

/// The threads of the shards, and how they and we wait for each other at the end.
pub(crate) struct Crew {
    threads: Vec<JoinHandle<()>>,
    /// Ends when all shards have done their work.
    done: mpsc::Receiver<()>,
    /// While this is there, the shards that have done their work keep their connections.
    stay: channel::Sender<()>,
    /// Told to end, and waited for once no page of it can wait for a shard.
    metrics: Option<metrics::MetricsServer>,
}

/// How long the shards, all together, may take to answer what they are asked. `rendez pending` waits five seconds: of a
/// task with a shard that hangs it hears what the others say.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);

/// How long peers may take to know that we leave.
const PARTING: Duration = Duration::from_millis(200);

/// Where the shards run.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The core of each shard.
    pub cores: Vec<usize>,
    /// True if shards share a core, with each other or, as configured, with others: they yield it.
    pub is_shared: bool,
}

impl Engine {
    /// Starts the shards and the control plane of one task.
    ///
    /// # Errors
    /// `InvalidArgument` names the setting that makes no sense; `ResourceExhausted` what the machine lacks;
    /// `AlreadyExists` if a living task has this name's address.
    pub fn start(config: Config) -> Result<Self, Status> {
        Self::start_with(config, Services::new())
    }

    /// The same, and peers may call `services` too. Numbers up to [`services::OWN_MAX`] are the engine's.
    ///
    /// # Errors
    /// As [`Engine::start`]; `InvalidArgument` names a service whose number is the engine's.
    pub fn start_with(config: Config, services: Services) -> Result<Self, Status> {
        start::start(config, services).map(|inner| Self { inner })
    }

    /// Whether this machine has the cores that the configuration wants, as [`Engine::start`] judges it.
    ///
    /// # Errors
    /// What is missing.
    pub fn judge_placement(config: &Config) -> Result<(), Status> {
        start::place(config).map(drop)
    }

    /// What is wrong with the files of the secret and of TLS, each with the setting that names it. `TLS_REFUSED` is a
    /// certificate that is not valid now: a task starts with it, and is reached once it is renewed or its clock is set.
    pub fn judge_secrets(config: &Config) -> Vec<(&'static str, Status)> {
        secrets::judge(config)
    }

    /// Whether a task with this configuration may listen at `bound`: see [`Config::insecure`].
    ///
    /// # Errors
    /// `CONTROL_EXPOSED` if other machines reach it, and nothing would keep strangers out.
    pub fn judge_exposure(config: &Config, bound: SocketAddr) -> Result<(), Status> {
        let files = [
            &config.cluster_secret_file,
            &config.tls_cert,
            &config.tls_key,
            &config.tls_ca,
        ];
        // A file that is unfit is refused for itself.
        let has_proof = files.iter().any(|path| path.is_some());
        let is_kept = has_proof || config.cluster_secret_fd.is_some() || config.insecure;
        check_exposure(bound, is_kept).map_err(|error| error.status())
    }

    /// A weak handle to the engine, for what the engine itself keeps running.
    #[must_use]
    pub fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.inner))
    }

    /// The step of that number. Steps begin with their first use and end with [`Step::finish`] or [`Step::abort`].
    #[must_use]
    pub fn step(&self, id: StepId) -> Step {
        Step::new(Arc::clone(&self.inner), id)
    }

    /// The step of that number, which is to end within `patience`: as [`Step::deadline`] at its first use.
    ///
    /// # Errors
    /// As [`Step::deadline`].
    pub fn step_within(&self, id: StepId, patience: Duration) -> Result<Step, Status> {
        let step = self.step(id);
        step.deadline(patience)?;
        Ok(step)
    }

    /// Runs a task inside shard `index`. What it returns wakes the task from any thread, and names it where its
    /// [end](Engine::task_ended) is asked for. A task that panics ends, and nothing else does: see
    /// [`Engine::task_failed`].
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such shard; `SHUTDOWN` after [`Engine::shutdown`], and what the engine ended
    /// with if a shard panicked.
    pub fn spawn(&self, index: usize, task: Box<dyn Task>) -> Result<TaskWaker, Status> {
        let mailbox = self.inner.mailboxes.get(index).ok_or_else(|| {
            let count = self.inner.mailboxes.len();
            Status::new(
                Code::InvalidArgument,
                catalogue::CONFIG,
                format!("there is no shard {index}, only {count}"),
            )
        })?;
        self.inner.is_up()?;
        if mailbox.is_closed() {
            return Err(mailbox.end());
        }
        let waker = TaskWaker::new(Arc::clone(mailbox));
        let seat = Arc::clone(waker.seat());
        self.inner
            .reach_shard(index)
            .call(Call::Spawn { task, seat });
        Ok(waker)
    }

    /// Connects two engines of one process with each other, without sockets or descriptors. If a port of either is full
    /// then, or memory that one adds later cannot be mapped by the other, what waits for one at the other ends with
    /// `PEER_LOST`.
    ///
    /// # Errors
    /// `InvalidArgument` if both are the same task.
    pub fn connect_local(&self, other: &Self) -> Result<(), Status> {
        self.inner.is_up()?;
        other.inner.is_up()?;
        links::connect_local(&self.inner, &other.inner)
    }

    /// Tells where a task listens, so that keys that name it can be dialled. With [`Config::require`] of TCP or RDMA on
    /// either side that is its [`Engine::tcp_address`]: what waits for a task whose address is not a TCP one ends with
    /// `PATH_REFUSED`.
    pub fn add_peer(&self, task: TaskName, address: Address) {
        if forks::is_child() {
            return;
        }
        self.inner.wiring.add_peer(task, address);
    }

    /// This task.
    #[must_use]
    pub fn task(&self) -> &TaskName {
        &self.inner.task
    }

    /// This life of the task.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.inner.incarnation
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.inner.mailboxes.len()
    }

    /// A row of up to so many bytes leaves in a frame, at once: it needs no room where values wait.
    #[doc(hidden)] // For lines of the dataflow runtime.
    #[must_use]
    pub fn row_in_frame(&self) -> usize {
        self.inner
            .config
            .inline_max
            .saturating_sub(crate::ground::limits::LEAD_MAX)
    }

    /// Where the shards run.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.inner.placement
    }

    /// Which pages tensors of application threads lie in, and why not better ones. `Off` in a child of `fork`, which
    /// can make none.
    #[must_use]
    pub fn huge_pages(&self) -> HugePagesReport {
        if forks::is_child() {
            return HugePagesReport::Off;
        }
        self.inner.pool.locked().stats().huge_pages
    }

    /// The clock that deadlines of in-shard tasks are read on.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Where this task can be dialled on its machine, for the best path there is: its Unix address, which it has
    /// whatever [`Config::listen`] is. `None` for an engine without a control plane.
    #[must_use]
    pub fn address(&self) -> Option<&Address> {
        self.inner.control.get().map(Control::address)
    }

    /// Where this task can be dialled over TCP, from this machine and others, with the port it got; `None` if
    /// [`Config::listen`] names no TCP address.
    #[must_use]
    pub fn tcp_address(&self) -> Option<&Address> {
        self.inner.control.get().and_then(Control::tcp_address)
    }

    /// Where to tell others that this task can be dialled, if they and it meet at `meeting`, as a root or a store that
    /// all know: [`Engine::tcp_address`], with a host where that means all addresses of the machine; without one
    /// [`Engine::address`]. Blocks while the system looks up the meeting's name, for which it has `patience`.
    ///
    /// # Errors
    /// `InvalidArgument` names `listen` if that is all addresses, and no meeting says which of them is known to others,
    /// and is returned for an engine without a control plane; `Unavailable` if no way leads to the meeting.
    pub fn address_for(
        &self,
        meeting: Option<&Address>,
        patience: Duration,
    ) -> Result<Address, Status> {
        let bound = self.tcp_address().or_else(|| self.address());
        let bound = bound.ok_or_else(|| {
            let message = "the engine has no control plane: peers cannot connect to it";
            Status::of(catalogue::CONTROL_ADDRESS, message)
        })?;
        here::told(&here::ThisHost, bound, meeting, patience)
    }

    /// Where metrics are served, with the port it got; `None` for nowhere, as in a child of `fork`.
    #[must_use]
    pub fn metrics_address(&self) -> Option<std::net::SocketAddr> {
        if forks::is_child() {
            return None;
        }
        let metrics = self.inner.metrics.lock();
        let metrics = metrics.unpoisoned();
        metrics.as_ref().map(metrics::MetricsServer::address)
    }

    /// The metrics of this task, as text for Prometheus: what a scraper reads where `metrics` names an address.
    ///
    /// # Errors
    /// `SHUTDOWN` once the engine has ended; `WAIT_IN_SHARD` on the thread of a shard, which would have to answer
    /// itself; `ENGINE_FORKED` in a child of `fork`.
    pub fn metrics_text(&self) -> Result<String, Status> {
        use metrics::Pages as _;
        recv::may_wait()?;
        self.inner.is_up()?;
        let page = metrics::Page(Arc::downgrade(&self.inner));
        page.metrics(false).ok_or_else(faults::shutdown)
    }

    /// The peers that are connected now, and the way to each.
    #[must_use]
    pub fn connected(&self) -> Vec<Connected> {
        match forks::is_child() {
            true => Vec::new(),
            false => self.inner.wiring.connected(),
        }
    }

    /// The peers of this machine for which shared memory was tried and unavailable so far; the log was told of each
    /// once.
    #[must_use]
    pub fn fallbacks(&self) -> Vec<Fallback> {
        match forks::is_child() {
            true => Vec::new(),
            false => self.inner.wiring.fallbacks(),
        }
    }

    /// Connects to a peer before a key names it. Nothing happens if it is connected, or its address is unknown.
    pub fn connect(&self, task: &TaskName) {
        if forks::is_child() {
            return;
        }
        self.inner.wiring.connect_early(task);
    }

    /// Connects to a peer, and waits until it is connected. [`Engine::add_peer`] or the settings say where it listens.
    ///
    /// # Errors
    /// Why it is not, according to the last attempt within `patience`: `CONNECTION_REFUSED` if no process listens
    /// there, `GREETING_LATE` if one does and says nothing, as a stopped process, `CONNECT_DEADLINE` if there is no
    /// way; `SECRET_MISSING`, `SECRET_WRONG`, `TLS_REFUSED` or `PEER_OTHER_USER` if one does not let the other in;
    /// `PEER_UNKNOWN` if another task answers there, which an observer is told at once.
    pub fn reach(&self, task: &TaskName, patience: Duration) -> Result<Connected, Status> {
        if forks::is_child() {
            return Err(faults::forked());
        }
        self.inner.wiring.reach(task, patience)
    }

    /// `status` under the reason why `task` could not be reached, where it says only that time ran out.
    pub fn with_cause(&self, task: &TaskName, status: Status) -> Status {
        match forks::is_child() {
            true => status,
            false => self.inner.wiring.with_cause(task, status),
        }
    }

    /// Which task listens at `address`.
    ///
    /// # Errors
    /// As [`Engine::reach`].
    pub fn who_listens(&self, address: &Address, patience: Duration) -> Result<TaskName, Status> {
        if forks::is_child() {
            return Err(faults::forked());
        }
        self.inner
            .wiring
            .who_listens(&self.inner.task, address, patience)
    }

    /// What the control plane runs on, and why.
    #[must_use]
    pub fn control_runtime(&self) -> Option<&RuntimeReport> {
        self.inner.control.get().map(Control::runtime)
    }

    /// Everything that waits or is parked, oldest first. Nothing of shards that cannot be asked: all of them on a
    /// shard's own thread and in a child of `fork`, where [`Engine::try_pending`] says so.
    #[must_use]
    pub fn pending(&self) -> Vec<PendingItem> {
        self.try_pending().unwrap_or_default()
    }

    /// The same, or why the shards cannot be asked here.
    ///
    /// # Errors
    /// `WAIT_IN_SHARD` on the thread of a shard, which would have to answer itself; `ENGINE_FORKED` in a child of
    /// `fork`.
    pub fn try_pending(&self) -> Result<Vec<PendingItem>, Status> {
        let answers = self.ask_all(|answer| Call::Pending { answer })?;
        let mut items: Vec<_> = answers.into_iter().flatten().collect();
        items.sort_by_key(|item| std::cmp::Reverse(item.age_ns));
        Ok(items)
    }

    /// What each shard has counted and holds; of those that cannot be asked, or do not answer within three seconds,
    /// nothing, as with [`Engine::pending`].
    #[must_use]
    pub fn stats(&self) -> Vec<ShardStats> {
        self.try_stats().unwrap_or_default()
    }

    /// The same, or why the shards cannot be asked here.
    ///
    /// # Errors
    /// As [`Engine::try_pending`].
    pub fn try_stats(&self) -> Result<Vec<ShardStats>, Status> {
        self.ask_all(|answer| Call::Stats { answer })
    }

    /// What the shards answer that do so within [`ANSWER_PATIENCE`].
    fn ask_all<T>(&self, call: impl Fn(Arc<WaitCell<T>>) -> Call) -> Result<Vec<T>, Status> {
        recv::may_wait()?;
        let shards = self.inner.reach_all();
        let cells: Vec<_> = shards
            .filter(|shard| !shard.mailbox.is_closed())
            .map(|shard| {
                let cell = Arc::new(WaitCell::default());
                shard.call(call(Arc::clone(&cell)));
                (shard, cell)
            })
            .collect();
        let until = Instant::now() + ANSWER_PATIENCE;
        let answers = cells.iter().filter_map(|(shard, cell)| {
            let left = until.saturating_duration_since(Instant::now());
            shard.wait(cell, Some(left))?.ok()
        });
        Ok(answers.collect())
    }

    /// Stops in good order. Receives that wait, and sends that wait for room, end at once with `Aborted: Shutdown`, and
    /// what peers have sent and no receive has taken is dropped. Values that were taken, and are on their way to peers,
    /// may leave until `deadline` has passed, even to those that are still being connected. What begins to wait in that
    /// time ends with it. If another thread is already stopping it, this waits for that end, a second longer than
    /// `deadline` at most.
    ///
    /// A value in this engine's memory that a peer has received in place is no longer on its way, though the peer holds
    /// it: it can be read there afterwards too. A device's is, until it is let go of.
    ///
    /// On the thread of a shard, as in an in-shard task, it only begins to stop, and returns: a shard cannot wait for
    /// its own end. In a child of `fork` nothing happens: the engine is the parent's.
    pub fn shutdown(&self, deadline: Duration) {
        if !is_shard_thread() {
            return self.inner.stop(deadline);
        }
        // As a user does: else the last one's drop would come before it, with less time for what is on its way.
        let users = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new().name("rendez-stop".into());
        if let Err(error) = thread.spawn(move || users.stop(deadline)) {
            tracing::warn!(%error, "cannot start a thread to stop the engine: it ends with its last handle");
        }
    }
}

impl Inner {
    /// The arena of application threads: after those of the shards.
    pub(crate) fn app_arena(&self) -> u16 {
        self.mailboxes.len() as u16
    }

    /// Whether there is anything behind this handle.
    fn is_up(&self) -> Result<(), Status> {
        if forks::is_child() {
            return Err(faults::forked());
        }
        if let Some(status) = self.failed.get() {
            return Err(status.clone());
        }
        match self.mailboxes.iter().all(|mailbox| mailbox.is_closed()) {
            true => Err(faults::shutdown()),
            false => Ok(()),
        }
    }
}

shown! { Inner { task, placement } }
