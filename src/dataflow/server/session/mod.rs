//! Sessions: how programs run graphs.
//!
//! Knows the master, in this process or in another, and how it is asked. A session is cheap to clone, and every call
//! can be made by several threads at once.
//!
//! ```
//! use rendez_dataflow::graph::{Builder, floats};
//! use rendez_dataflow::operations::Operations;
//! use rendez_dataflow::server::Session;
//!
//! let mut graph = Builder::new(Operations::standard().ops());
//! let two = graph.constant("two", floats(&[], &[2.0]))?;
//! graph.node("Mul").name("four").input(two).input(two).build()?;
//!
//! let session = Session::local()?;
//! session.create(graph.finish()?.to_def())?;
//! let four = session.run(&[], &["four"], &[])?;
//! assert_eq!(four[0].as_slice::<f32>()?, [4.0]);
//! session.close()?;
//! # Ok::<(), rendez::ground::Status>(())
//! ```

mod callable;
mod fetches;
mod local;
mod partial;
mod remote;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use callable::Callable;
use fetches::Fetches;
pub use partial::PartialRun;

use super::Server;
use super::master::{StepSignature, closed};
use crate::operations::Operations;
use rendez::engine::Config;
use rendez::ground::{Code, Locked, Status, Traceparent, catalogue, faults};
use rendez::mail::forks;
use rendez::memory::Tensor;
use rendez_proto::tensorflow::{ConfigProto, DeviceAttributes, GraphDef};

/// A client's session with a master. Cheap to clone. The last clone dropped closes it, if that was not done before.
#[derive(Clone, Debug)]
pub struct Session {
    inner: Arc<Inner>,
}

/// What clones, callables and partial runs share.
#[derive(Debug)]
struct Inner {
    way: Box<dyn Backend>,
    config: ConfigProto,
    state: Mutex<State>,
    /// Held while the master is asked to begin the session, or to extend its graph.
    changing: Mutex<()>,
}

/// Where a session is in its life.
#[derive(Clone, Debug)]
enum State {
    New,
    Alive { handle: Arc<str>, version: i64 },
    Closed,
}

/// How a step is run, beside what it is. The session's settings and no trace are the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepOptions {
    /// How long it may take; without it, as long as the session's settings say.
    pub patience: Option<Duration>,
    /// Which trace of the caller's it belongs to: every task that runs a part of it is told, and its recorders and
    /// spans say so.
    pub traceparent: Option<Traceparent>,
}

/// The same, as a way takes it.
#[derive(Clone, Copy, Debug)]
struct RunContext {
    deadline: Option<Instant>,
    trace: Option<Traceparent>,
}

/// What a master is asked, wherever it is. All of it blocks: until the deadline, or, of a master of this process, as
/// long as that waits for what it needs.
trait Backend: std::fmt::Debug + Send + Sync {
    /// Gives the session's handle, and its graph's version.
    fn create(
        &self,
        graph: GraphDef,
        config: &ConfigProto,
        deadline: Option<Instant>,
    ) -> Result<(String, i64), Status>;
    /// Extends the graph from `version`, which is then the one that the master is known to have, whatever the outcome.
    fn extend(
        &self,
        session: &str,
        graph: GraphDef,
        version: &mut i64,
        deadline: Option<Instant>,
    ) -> Result<(), Status>;
    fn run(
        &self,
        session: &str,
        signature: StepSignature,
        feeds: Vec<Tensor>,
        manner: RunContext,
    ) -> Result<Vec<Tensor>, Status>;
    fn make_callable(
        &self,
        session: &str,
        signature: StepSignature,
        deadline: Option<Instant>,
    ) -> Result<i64, Status>;
    fn run_callable(
        &self,
        session: &str,
        callable: i64,
        feeds: Vec<Tensor>,
        manner: RunContext,
    ) -> Result<Vec<Tensor>, Status>;
    fn release_callable(&self, session: &str, callable: i64);
    fn set_up(
        &self,
        session: &str,
        signature: StepSignature,
        deadline: Option<Instant>,
    ) -> Result<String, Status>;
    fn run_partial(
        &self,
        session: &str,
        partial_run: &str,
        feeds: Vec<(String, Tensor)>,
        fetches: Vec<String>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status>;
    fn abandon(&self, session: &str, partial_run: &str);
    fn devices(
        &self,
        session: Option<&str>,
        deadline: Option<Instant>,
    ) -> Result<Vec<DeviceAttributes>, Status>;
    fn close(&self, session: &str, deadline: Option<Instant>) -> Result<(), Status>;
    fn reset(&self, containers: &[String], deadline: Option<Instant>) -> Result<(), Status>;
}

impl Session {
    /// A session on an engine of its own, in this process.
    ///
    /// # Errors
    /// As [`Engine::start`](rendez::engine::Engine::start).
    pub fn local() -> Result<Self, Status> {
        Self::local_in(None)
    }

    /// The same, whose graphs may read and write files below `files`.
    ///
    /// # Errors
    /// As [`Engine::start`](rendez::engine::Engine::start).
    pub fn local_in(files: Option<PathBuf>) -> Result<Self, Status> {
        let mut config = Config::new("/job:localhost/task:0");
        (config.shards, config.share_cores, config.control) = (1, true, false);
        config.files_root = files;
        Self::local_with(config)
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// As [`Engine::start`](rendez::engine::Engine::start).
    pub fn local_with(config: Config) -> Result<Self, Status> {
        Self::local_of(config, Operations::standard())
    }

    /// The same with operations of one's own.
    ///
    /// # Errors
    /// As [`Engine::start`](rendez::engine::Engine::start).
    pub fn local_of(config: Config, operations: Operations) -> Result<Self, Status> {
        local::Local::start(config, operations).map(|way| Self::new(Box::new(way)))
    }

    /// A session with the master of a server in this process.
    ///
    /// # Errors
    /// `FailedPrecondition` unless the server runs.
    pub fn on(server: &Server) -> Result<Self, Status> {
        Ok(Self::new(Box::new(local::Local::on(server.runtime()?))))
    }

    /// A session with the master at `target`: `host:port` or `unix:@name`, also after `rendez://`. The settings are
    /// those that [`Config::load`] finds.
    ///
    /// # Errors
    /// `CONTROL_ADDRESS` for a text that is no address; as [`Engine::start`](rendez::engine::Engine::start), and as
    /// [`Engine::reach`](rendez::engine::Engine::reach) if no master answers there in time.
    pub fn connect(target: &str) -> Result<Self, Status> {
        Self::connect_with(target, Config::load()?)
    }

    /// The same with other settings, those of a task too: what
    /// [`Config::of_client`] leaves out of them is left out.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect_with(target: &str, config: Config) -> Result<Self, Status> {
        remote::Remote::connect(target, config).map(|way| Self::new(Box::new(way)))
    }

    fn new(way: Box<dyn Backend>) -> Self {
        Self {
            inner: Arc::new(Inner {
                way,
                config: ConfigProto::default(),
                state: Mutex::new(State::New),
                changing: Mutex::default(),
            }),
        }
    }

    /// The same session with these settings, for [`Session::create`]. To be called before that.
    ///
    /// # Errors
    /// `FailedPrecondition` if other clones of it are held.
    pub fn configured(mut self, config: ConfigProto) -> Result<Self, Status> {
        let inner = Arc::get_mut(&mut self.inner).ok_or_else(|| {
            let message = "a session is configured before it is cloned and used";
            Status::new(
                Code::FailedPrecondition,
                catalogue::SESSION_SETTING,
                message,
            )
        })?;
        inner.config = config;
        Ok(self)
    }

    /// Gives the session its graph.
    ///
    /// # Errors
    /// `SESSION_EXISTS` if it has one; what is wrong with the graph; `WORKER_ABSENT` names a worker that does not
    /// answer, also one that the graph does not need, unless the settings' `device_filters` leave it out;
    /// `PEER_RESTARTED` one that restarted meanwhile: call this again then; `CALL_DEADLINE` if a master of another
    /// process does not answer within the settings' `operation_timeout_in_ms`: so it is with all that is asked of one.
    /// What it makes after that is closed again. It waits for workers through three quarters of that time at most, so
    /// that it can tell which is absent.
    pub fn create(&self, graph: GraphDef) -> Result<(), Status> {
        let _changing = self.inner.changing()?;
        if let State::Alive { .. } = *self.inner.state()? {
            return Err(Status::of(catalogue::SESSION_EXISTS, "A session is alive."));
        }
        self.inner.create(graph)
    }

    /// Adds nodes to the graph; without one, these are the first.
    ///
    /// # Errors
    /// As [`Session::create`] where these are the first; `GRAPH_NODE_EXISTS` for a node that is there already, and what
    /// else is wrong with the graph, which is then as it was; `SESSION_VERSION` if another client extended it
    /// meanwhile; `SESSION_LIMIT` while too much is asked of a master of another process, by any clients: a later try
    /// may succeed. After `CALL_DEADLINE` a master of another process may extend it yet: the next call waits for what
    /// becomes of that.
    pub fn extend(&self, graph: GraphDef) -> Result<(), Status> {
        let _changing = self.inner.changing()?;
        let State::Alive {
            handle,
            mut version,
        } = self.inner.state()?.clone()
        else {
            return self.inner.create(graph);
        };
        let (way, deadline) = (&self.inner.way, self.inner.deadline());
        let extended = way.extend(&handle, graph, &mut version, deadline);
        if let State::Alive { version: known, .. } = &mut *self.inner.state()? {
            *known = version;
        }
        extended
    }

    /// Runs a step: feeds values for outputs, as `node:output`, runs what `fetches` and `targets` need, and gives what
    /// was fetched, in order. An output may be fetched several times; it is computed once. It may take as long as the
    /// session's settings say.
    ///
    /// # Errors
    /// `SESSION_NONE` before [`Session::create`]; `GRAPH_ENDPOINT` and `GRAPH_ENDPOINT_UNKNOWN` for endpoints that make
    /// no sense; `FEED_UNFIT`, `FETCH_DEAD`; `SESSION_LIMIT` while too many other kinds of steps are being prepared, or
    /// too many steps run: a later try may succeed; why the step failed, with the workers that said so.
    /// `WORKER_SESSION_UNKNOWN` once a worker of it has restarted, and `SESSION_UNKNOWN` once its master has: begin
    /// another session then, and restore a checkpoint.
    /// `PARKED_BYTES_OF_STEP` and `PARKED_BYTES` if its parts send more than the settings `parked_bytes_per_step` and
    /// `parked_bytes` allow before it is received, as parameters of many gigabytes do: raise these where such
    /// parameters stand, for as many steps as run at a time.
    pub fn run(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Vec<Tensor>, Status> {
        self.run_with(&StepOptions::default(), feeds, fetches, targets)
    }

    /// The same, and gives up after `patience` with `STEP_DEADLINE`. The step is then cancelled.
    ///
    /// # Errors
    /// As [`Session::run`]; `STEP_DEADLINE`.
    pub fn run_within(
        &self,
        patience: Duration,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Vec<Tensor>, Status> {
        let options = StepOptions {
            patience: Some(patience),
            ..StepOptions::default()
        };
        self.run_with(&options, feeds, fetches, targets)
    }

    /// The same, in the manner that `options` say.
    ///
    /// # Errors
    /// As [`Session::run_within`].
    pub fn run_with(
        &self,
        options: &StepOptions,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Vec<Tensor>, Status> {
        let manner = self.inner.manner(options);
        let handle = self.inner.handle()?;
        let names = feeds.iter().map(|(name, _)| *name);
        let fetches = Fetches::of(fetches);
        let signature = signature(names, &fetches.distinct, targets);
        let feeds = feeds.iter().map(|(_, tensor)| tensor.clone()).collect();
        let fetched = self.inner.way.run(&handle, signature, feeds, manner)?;
        Ok(fetches.spread(fetched))
    }

    /// Prepares a kind of step, to be run often.
    ///
    /// # Errors
    /// As [`Session::run`], as far as it can be known before.
    pub fn callable(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Callable, Status> {
        let session = self.inner.handle()?;
        let fetches = Fetches::of(fetches);
        let signature = signature(feeds.iter().copied(), &fetches.distinct, targets);
        let deadline = self.inner.deadline();
        let handle = self
            .inner
            .way
            .make_callable(&session, signature, deadline)?;
        let places = fetches.places;
        Ok(Callable::new(
            Arc::clone(&self.inner),
            session,
            handle,
            places,
        ))
    }

    /// Sets up a step that is fed and fetched from piece by piece. Here each output is fetched once.
    ///
    /// # Errors
    /// As [`Session::run`], as far as it can be known before.
    pub fn partial_run(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<PartialRun, Status> {
        let session = self.inner.handle()?;
        let mut signature = signature(feeds.iter().copied(), fetches, targets);
        signature.is_partial = true;
        let deadline = self.inner.deadline();
        let handle = self.inner.way.set_up(&session, signature, deadline)?;
        Ok(PartialRun::new(Arc::clone(&self.inner), session, handle))
    }

    /// The devices that it can use: those of all workers before it has a graph.
    ///
    /// # Errors
    /// `WORKER_ABSENT` names a worker that does not answer; `SESSION_CLOSED`.
    pub fn devices(&self) -> Result<Vec<DeviceAttributes>, Status> {
        let state = self.inner.state()?.clone();
        let deadline = self.inner.deadline();
        match state {
            State::New => self.inner.way.devices(None, deadline),
            State::Alive { handle, .. } => self.inner.way.devices(Some(&handle), deadline),
            State::Closed => Err(closed()),
        }
    }

    /// Closes all sessions of the master, and clears these containers of variables at all its workers; the default one
    /// if none is named.
    ///
    /// # Errors
    /// Which worker could not be told.
    pub fn reset(&self, containers: &[&str]) -> Result<(), Status> {
        is_here()?;
        let containers: Vec<_> = containers
            .iter()
            .map(|&container| container.to_owned())
            .collect();
        self.inner.way.reset(&containers, self.inner.deadline())
    }

    /// Closes the session. Steps that run are cancelled; what is asked of it later fails with `SESSION_CLOSED`.
    /// Nothing happens if it is closed already.
    ///
    /// # Errors
    /// `SESSION_UNKNOWN` if its master has restarted since, or was lost.
    pub fn close(&self) -> Result<(), Status> {
        self.inner.close(self.inner.deadline())
    }
}

impl Inner {
    fn manner(&self, options: &StepOptions) -> RunContext {
        let until = |patience| Instant::now().checked_add(patience);
        RunContext {
            deadline: options.patience.map_or_else(|| self.deadline(), until),
            trace: options.traceparent,
        }
    }

    /// Until when a call may take, if the settings say so.
    fn deadline(&self) -> Option<Instant> {
        let timeout = u64::try_from(self.config.operation_timeout_in_ms).ok()?;
        let timeout = Some(timeout).filter(|timeout| *timeout > 0)?;
        Instant::now().checked_add(Duration::from_millis(timeout))
    }

    fn handle(&self) -> Result<Arc<str>, Status> {
        match &*self.state()? {
            State::New => Err(Status::of(
                catalogue::SESSION_NONE,
                "A session is not created yet....",
            )),
            State::Alive { handle, .. } => Ok(Arc::clone(handle)),
            State::Closed => Err(closed()),
        }
    }

    /// Begins a session, unless it was closed, or is closed meanwhile. There is none yet.
    fn create(&self, graph: GraphDef) -> Result<(), Status> {
        if let State::Closed = *self.state()? {
            return Err(closed());
        }
        let (handle, version) = self.way.create(graph, &self.config, self.deadline())?;
        let mut state = self.state()?;
        if let State::Closed = *state {
            drop(state);
            self.way.close(&handle, Some(dropped_until()))?;
            return Err(closed());
        }
        *state = State::Alive {
            handle: handle.into(),
            version,
        };
        Ok(())
    }

    fn close(&self, deadline: Option<Instant>) -> Result<(), Status> {
        let former = std::mem::replace(&mut *self.state()?, State::Closed);
        match former {
            State::Alive { handle, .. } => self.way.close(&handle, deadline),
            State::New | State::Closed => Ok(()),
        }
    }

    /// What holds others up that change the graph; see [`is_here`].
    fn changing(&self) -> Result<MutexGuard<'_, ()>, Status> {
        is_here()?;
        Ok(self.changing.locked())
    }

    /// How far it is; see [`is_here`].
    fn state(&self) -> Result<MutexGuard<'_, State>, Status> {
        is_here()?;
        Ok(self.state.locked())
    }
}

/// Whether the master can be asked: in no child of `fork`, where its threads are not.
fn is_here() -> Result<(), Status> {
    match forks::is_child() {
        true => Err(faults::forked()),
        false => Ok(()),
    }
}

/// Until when the master is waited for by a caller that did not ask for the end of a session: a little longer than a
/// master takes to end one.
fn dropped_until() -> Instant {
    Instant::now() + Duration::from_secs(16)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let until = dropped_until();
        let until = self
            .deadline()
            .map_or(until, |deadline| deadline.min(until));
        if let Err(status) = self.close(Some(until)) {
            tracing::debug!(%status, "a session that was dropped could not be closed");
        }
    }
}

fn signature<'a>(
    feeds: impl Iterator<Item = &'a str>,
    fetches: &[&str],
    targets: &[&str],
) -> StepSignature {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    StepSignature {
        feeds: feeds.map(str::to_owned).collect(),
        fetches: owned(fetches),
        targets: owned(targets),
        is_partial: false,
    }
}

/// What is told of a step that was not over in time.
fn late() -> Status {
    Status::of(
        catalogue::STEP_DEADLINE,
        "Timed out: the step was not over by its deadline",
    )
}
