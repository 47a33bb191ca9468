//! Server: one task of a cluster, from its description to a clean end.
//!
//! Floor 6. Knows the cluster, the engine and how protocols are spelled; not how the cluster was resolved, and nothing
//! of what travels. States, texts and codes are those of TensorFlow's server, which lacks a clean stop.
//!
//! ```text
//!   new ── start ──▶ started ── stop ──▶ stopped        stop of a new server goes there at once, and ends its start
//! ```
//!
//! | file | |
//! |---|---|
//! | `builder.rs` | what a server is made of, checked before anything is started |
//! | `protocol.rs` | the registry of protocols, with the spellings of other systems |
//! | `listen.rs` | where a task listens that was told nothing but its cluster |
//! | `join.rs` | how ranks that know only their root learn of each other |
//! | `session/` | how programs run graphs: by a master in this process, or in another |
//! | `master/`, `worker/` | the master takes graphs and has them run, workers run their parts |
//! | `rpc_stream/` | questions and answers between two tasks, as values of the engine |
//! | `runtime.rs`, `runner.rs`, `executing.rs` | how master, worker and executor are put together |
//! | `errands.rs`, `wait.rs` | threads for what blocks, and how one waits for another |
//! | `executor/` | runs registered parts of graphs |

mod builder;
mod errands;
mod executing;
pub mod executor;
mod join;
mod listen;
mod master;
mod protocol;
mod rpc_stream;
mod runner;
mod runtime;
mod session;
mod wait;
mod worker;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub use builder::ServerBuilder;
pub use listen::listen_at;
#[cfg(any(test, feature = "testing"))]
pub use master::solo;
pub use protocol::Protocol;
pub use session::{Callable, PartialRun, Session, StepOptions};

use crate::operations::Operations;
use rendez::cluster::{ClusterSpec, HostPort, Local, Membership};
use rendez::control::Services;
use rendez::control::here::ThisHost;
use rendez::engine::{Config, Engine};
use rendez::ground::{Code, Locked, Status, TaskName, Unpoisoned, catalogue};
use runtime::{Means, Runtime, RuntimePlace};

/// One task of a cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: Config,
    task: TaskName,
    membership: Membership,
    place: Place,
    protocol: Protocol,
    operations: Operations,
    services: Services,
    stage: Mutex<Stage>,
    changed: Condvar,
}

/// What launchers and messages say of a task's place besides its cluster.
#[derive(Clone, Copy, Debug)]
struct Place {
    port: Option<u16>,
    local: Option<Local>,
}

/// Where a server is in its life, and what it has there.
#[derive(Clone, Debug)]
enum Stage {
    New,
    /// A thread starts it: with its engine, once there is one.
    Starting(Option<Engine>),
    Started {
        engine: Engine,
        spec: ClusterSpec,
        runtime: Arc<Runtime>,
    },
    /// A thread stops it.
    Stopping,
    Stopped,
}

/// What a server keeps for sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Sessions of its master.
    pub sessions: usize,
    /// Sessions that masters have at its worker.
    pub worker_sessions: usize,
    /// Steps of those that are not cleaned up.
    pub steps: usize,
}

/// Where a server is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Made, not started, or not to the end.
    New,
    /// Its engine runs, or is being stopped.
    Started,
    /// Over: it cannot be started again.
    Stopped,
}

impl Server {
    /// Begins a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Starts the engine, and learns of the other tasks. Nothing happens if it runs already.
    ///
    /// With a cluster that is known this is done as soon as the task listens: peers may come up in any order, at any
    /// time. Ranks of a rooted cluster wait for each other here.
    ///
    /// # Errors
    /// `FailedPrecondition` after [`Server::stop`], also if that is called meanwhile; what [`Engine::start`] names;
    /// `Unavailable` names the ranks that did not come in time.
    pub fn start(&self) -> Result<(), Status> {
        let mut stage = self.stage();
        while let Stage::Starting(_) = *stage {
            let waited = self.inner.changed.wait(stage);
            stage = waited.unpoisoned();
        }
        match &*stage {
            Stage::Started { .. } => {
                tracing::info!(task = %self.inner.task, "the server has already been started");
                return Ok(());
            }
            Stage::Stopping | Stage::Stopped => return Err(stopped()),
            Stage::New | Stage::Starting(_) => {}
        }
        *stage = Stage::Starting(None);
        drop(stage);
        let mut start = Start {
            inner: &self.inner,
            engine: None,
            next: Stage::New,
            is_over: false,
        };
        match self.bring_up(&mut start) {
            Ok(started) => {
                start.next = started;
                start.end()
            }
            Err(status) => start.end().and(Err(status)),
        }
    }

    /// Starts all that the server has. It may be stopped meanwhile, which ends its engine, and all that waits here.
    fn bring_up(&self, start: &mut Start<'_>) -> Result<Stage, Status> {
        let place = RuntimePlace::default();
        let services = place.services().and(self.inner.services.clone());
        let began = Instant::now();
        let patience = self.inner.config.connect_timeout;
        let mut config = self.inner.config.clone();
        if config.listen.is_none() {
            config.listen = Some(self.inner.listen(patience)?);
        }
        let engine = Engine::start_with(config, services)?;
        start.engine = Some(engine.clone());
        if let Stage::Starting(known) = &mut *self.stage() {
            *known = Some(engine.clone());
        } else {
            // It was stopped when there was no engine yet.
            return Err(stopped());
        }
        let spec = match &self.inner.membership {
            Membership::Known(spec) => spec.clone(),
            Membership::Rooted { root, rank, size } => {
                join::join(&engine, root, *rank, *size, patience, began)?
            }
        };
        let means = Means {
            operations: self.inner.operations.clone(),
            patience,
        };
        let runtime = Runtime::start(&engine, spec.clone(), means, &place)?;
        Ok(Stage::Started {
            engine,
            spec,
            runtime,
        })
    }

    /// Stops in good order: sessions may end, all at once, and what is on its way may leave until `deadline` has
    /// passed, then everything that still waits hears so. The deadline is that of the settings if none is given.
    /// Nothing happens if it has stopped already. While another thread stops or starts it, this waits for the end of
    /// that, a second longer than the deadline at most.
    pub fn stop(&self, deadline: Option<Duration>) {
        let began = Instant::now();
        let deadline = deadline.unwrap_or(self.inner.config.drain_timeout);
        let mut stage = self.stage();
        if let Stage::Starting(engine) = &mut *stage {
            let engine = engine.take();
            *stage = Stage::Stopping;
            drop(stage);
            if let Some(engine) = engine {
                engine.shutdown(deadline);
            }
            // The thread that starts it hears so, and lets go of the rest.
            stage = self.stage();
        }
        if let Stage::Stopping | Stage::Stopped = *stage {
            let left = deadline.saturating_sub(began.elapsed());
            let until = left.saturating_add(Duration::from_secs(1));
            let is_stopping = |stage: &mut Stage| matches!(stage, Stage::Stopping);
            let changed = &self.inner.changed;
            drop(changed.wait_timeout_while(stage, until, is_stopping));
            return;
        }
        let former = std::mem::replace(&mut *stage, Stage::Stopping);
        drop(stage);
        if let Stage::Started {
            engine, runtime, ..
        } = former
        {
            runtime.stop(deadline);
            engine.shutdown(deadline.saturating_sub(began.elapsed()));
        }
        *self.stage() = Stage::Stopped;
        self.inner.changed.notify_all();
    }

    /// Waits until the server is stopped, and all that it had is at its end.
    pub fn join(&self) {
        let mut stage = self.stage();
        while !matches!(*stage, Stage::Stopped) {
            let waited = self.inner.changed.wait(stage);
            stage = waited.unpoisoned();
        }
    }

    /// Where it is in its life.
    #[must_use]
    pub fn state(&self) -> State {
        match *self.stage() {
            Stage::New | Stage::Starting(_) => State::New,
            Stage::Started { .. } | Stage::Stopping => State::Started,
            Stage::Stopped => State::Stopped,
        }
    }

    /// The engine, while it runs.
    ///
    /// # Errors
    /// `FailedPrecondition` before [`Server::start`] and after [`Server::stop`].
    pub fn engine(&self) -> Result<Engine, Status> {
        Ok(self.runtime()?.engine().clone())
    }

    /// What it keeps for sessions, while it runs.
    ///
    /// # Errors
    /// As [`Server::engine`].
    pub fn load(&self) -> Result<Load, Status> {
        let runtime = self.runtime()?;
        let (worker_sessions, steps) = runtime.worker().load();
        Ok(Load {
            sessions: runtime.master().session_count(),
            worker_sessions,
            steps,
        })
    }

    /// What runs graphs here, while the server runs.
    fn runtime(&self) -> Result<Arc<Runtime>, Status> {
        let message = match &*self.stage() {
            Stage::Started { runtime, .. } => return Ok(Arc::clone(runtime)),
            Stage::New | Stage::Starting(_) => "Server has not been started.",
            Stage::Stopping | Stage::Stopped => return Err(stopped()),
        };
        Err(Status::new(
            Code::FailedPrecondition,
            catalogue::SERVER_STOPPED,
            message,
        ))
    }

    /// All tasks of the cluster: as it was given, or, of a rooted one, as it was learnt; empty before that.
    #[must_use]
    pub fn cluster(&self) -> ClusterSpec {
        match (&*self.stage(), &self.inner.membership) {
            (Stage::Started { spec, .. }, _) | (_, Membership::Known(spec)) => spec.clone(),
            _ => ClusterSpec::default(),
        }
    }

    /// Which task it is.
    #[must_use]
    pub fn task(&self) -> &TaskName {
        &self.inner.task
    }

    /// How it reaches its peers.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.inner.protocol
    }

    /// What a client connects to: `rendez://host:port`, with the port it got, and the cluster's host where the task
    /// listens at all addresses of its machine. `None` unless it runs and listens for other machines.
    #[must_use]
    pub fn target(&self) -> Option<String> {
        let engine = self.engine().ok()?;
        let bound = engine.tcp_address()?;
        let cluster = self.cluster();
        let named = cluster.find(self.inner.task.job(), self.inner.task.task());
        let named = named.ok().map(dialled);
        // Of another port the cluster says nothing.
        let named = named.filter(|named| bound.is_wildcard() && named.port() == bound.port());
        Some(format!("rendez://{}", named.as_ref().unwrap_or(bound)))
    }

    fn stage(&self) -> std::sync::MutexGuard<'_, Stage> {
        self.inner.stage.locked()
    }
}

impl Inner {
    /// Where the task listens, as its cluster says.
    fn listen(&self, patience: Duration) -> Result<rendez::control::Address, Status> {
        let Place { port, local } = self.place;
        match &self.membership {
            Membership::Known(spec) => listen_at(spec, &self.task, port),
            Membership::Rooted { root, rank, size } => {
                let has_others = listen::has_others(&self.config, local, *size);
                listen::of_root(&ThisHost, root, *rank, has_others, patience)
            }
        }
    }
}

/// A start under way. It ends in another stage, whatever comes of it, and those that wait hear so.
struct Start<'a> {
    inner: &'a Inner,
    engine: Option<Engine>,
    /// What the server is then, unless it was stopped meanwhile.
    next: Stage,
    is_over: bool,
}

impl Drop for Start<'_> {
    /// Something that was given to the server has panicked.
    fn drop(&mut self) {
        if !self.is_over {
            self.settle();
        }
    }
}

impl Start<'_> {
    /// # Errors
    /// It was stopped meanwhile.
    fn end(mut self) -> Result<(), Status> {
        match self.settle() {
            true => Ok(()),
            false => Err(stopped()),
        }
    }

    /// True if it was not stopped.
    fn settle(&mut self) -> bool {
        self.is_over = true;
        let mut stage = self.inner.stage.locked();
        let is_up = matches!(self.next, Stage::Started { .. });
        if !is_up || matches!(*stage, Stage::Stopping) {
            let known = match &mut *stage {
                Stage::Starting(engine) => engine.take(),
                _ => None,
            };
            let is_stopped = matches!(*stage, Stage::Stopping);
            drop(stage);
            self.next = Stage::New;
            // It is at its end before it is said to be, and before another listens in its place.
            if let Some(engine) = self.engine.take().filter(|_| is_stopped) {
                engine.shutdown(self.inner.config.drain_timeout);
            }
            drop(known);
            stage = self.inner.stage.locked();
        }
        let is_stopped = matches!(*stage, Stage::Stopping);
        let next = match is_stopped {
            true => Stage::Stopped,
            false => std::mem::replace(&mut self.next, Stage::New),
        };
        let former = std::mem::replace(&mut *stage, next);
        drop(stage);
        self.inner.changed.notify_all();
        drop(former);
        !is_stopped
    }
}

fn stopped() -> Status {
    let message = "Server has stopped.";
    Status::new(Code::FailedPrecondition, catalogue::SERVER_STOPPED, message)
}

/// The address as the control plane has it.
pub fn dialled(address: &HostPort) -> rendez::control::Address {
    rendez::control::Address::Tcp {
        host: address.host().to_owned(),
        port: address.port(),
    }
}
