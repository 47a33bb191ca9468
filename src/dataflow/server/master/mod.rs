//! The master of a task: takes graphs from clients, has workers run them, and tells how it went.
//!
//! Knows sessions, and which tasks are workers; not what a graph computes. Rules and texts are those of the original's
//! master.
//!
//! | file | |
//! |---|---|
//! | `discovery.rs` | which devices there are |
//! | `session.rs` | a client's graph, and what belongs to it |
//! | `plan.rs` | what a kind of step runs where |
//! | `link.rs` | a worker, here or elsewhere |
//! | `step.rs`, `stragglers.rs` | a step that runs, and one that is over and whose parts are not |
//! | `partial.rs` | steps that are fed and fetched from piece by piece |
//! | `service.rs` | clients in other processes |
//! | `solo.rs` | masters and workers that a simulation turns |

mod discovery;
mod link;
mod partial;
mod plan;
mod service;
mod session;
#[cfg(any(test, feature = "testing"))]
pub mod solo;
mod step;
mod stragglers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) use plan::{StepPlan, StepSignature};
pub(crate) use service::services;
pub(crate) use session::{MasterSession, closed};
pub(crate) use step::{RunningStep, StepDone};

use super::errands::Errands;
use super::wait::Waiter;
use super::worker::Worker;
use crate::graph::{Counted, Ops};
use link::{DELETE, Link};
use plan::{PlanWait, Then, Wanted};
use rendez::cluster::ClusterSpec;
use rendez::engine::Engine;
use rendez::ground::limits::SESSIONS_MAX;
use rendez::ground::rng::Rng;
use rendez::ground::{Code, Locked, Status, StepId, TaskName, Traceparent, catalogue};
use rendez::memory::Tensor;
use rendez_proto::methods::worker_service::CleanupAll;
use rendez_proto::tensorflow::{CleanupAllRequest, ConfigProto, DeviceAttributes, RunOptions};
use session::{CLOSING, Ground};

/// Of a step's number the top bits are zero.
const STEP_BITS: u32 = 57;
/// How long a worker may take to clear its containers.
const RESET_PATIENCE: Duration = Duration::from_secs(10);

/// The master of a task.
pub(crate) struct Master {
    engine: Engine,
    worker: Arc<Worker>,
    errands: Arc<Errands>,
    /// Errands that ask all workers, and wait for those that are not there.
    discovering: Arc<Errands>,
    cluster: ClusterSpec,
    ops: Arc<Ops>,
    patience: Duration,
    sessions: Mutex<BTreeMap<String, Arc<MasterSession>>>,
    clients: Mutex<BTreeMap<StepId, Arc<service::Client>>>,
    dice: Mutex<Rng>,
}

/// How a session begins: its handle, and the version of its graph.
pub(crate) type Created = (Arc<MasterSession>, i64);

impl Master {
    /// A master of the workers of `cluster`, with that of its own task. A worker that is not there is waited for as
    /// long as `patience`.
    ///
    /// # Errors
    /// `SYSTEM_CALL` if the system gives no random numbers.
    pub(crate) fn new(
        engine: &Engine,
        worker: &Arc<Worker>,
        errands: &Arc<Errands>,
        ops: Arc<Ops>,
        cluster: ClusterSpec,
        patience: Duration,
    ) -> Result<Arc<Self>, Status> {
        Ok(Arc::new(Self {
            engine: engine.clone(),
            worker: Arc::clone(worker),
            errands: Arc::clone(errands),
            discovering: Arc::default(),
            cluster,
            ops,
            patience,
            sessions: Mutex::default(),
            clients: Mutex::default(),
            dice: Mutex::new(Rng::new(draw()?.0)),
        }))
    }

    /// Begins a session: finds its devices, reads and places its graph, and begins a session at each worker. Blocks.
    ///
    /// # Errors
    /// `SESSION_SETTING`, `SESSION_LIMIT`; `WORKER_ABSENT` names a worker that does not answer, `PEER_RESTARTED` one
    /// that has another life by now; what is wrong with the graph. Workers are waited for through so much of what the
    /// session's settings give, or of this master's own patience, if that is less.
    pub(crate) fn create_session(
        &self,
        graph: Counted,
        config: ConfigProto,
        [part, of]: [u32; 2],
    ) -> Result<Created, Status> {
        check_config(&config)?;
        if self.sessions.locked().len() >= SESSIONS_MAX {
            let message = format!("{SESSIONS_MAX} sessions are alive here, the limit SESSIONS_MAX");
            return Err(Status::of(catalogue::SESSION_LIMIT, message));
        }
        let Counted { def, left } = graph;
        // No more than the client gives: it is told who is away before its time is over.
        let patience = match u64::try_from(config.operation_timeout_in_ms) {
            Ok(timeout @ 1..) => self
                .patience
                .min(Duration::from_millis(timeout) / of * part),
            _ => self.patience,
        };
        let filters = &config.device_filters;
        let attributes =
            discovery::devices(&self.worker, &self.engine, &self.cluster, filters, patience)?;
        let (devices, own) = discovery::named(self.worker.task(), &attributes)?;
        let ground = Ground {
            handle: format!("{:016x}", draw()?.0),
            ops: Arc::clone(&self.ops),
            attributes,
            devices,
            own,
            config,
        };
        let placed = ground.place(def)?;
        let links = self.open_links(&ground)?;
        let session = MasterSession::new(&self.engine, ground, links, (placed, left));
        let session = Arc::new(session);
        self.sessions
            .locked()
            .insert(session.handle().to_owned(), Arc::clone(&session));
        Ok((session, 0))
    }

    /// The session of that handle.
    ///
    /// # Errors
    /// `SESSION_UNKNOWN`.
    pub(crate) fn session(&self, handle: &str) -> Result<Arc<MasterSession>, Status> {
        let session = self.sessions.locked().get(handle).cloned();
        session.ok_or_else(|| {
            let shown: String = handle.chars().take(64).collect();
            Status::of(
                catalogue::SESSION_UNKNOWN,
                format!("Session {shown} is not found."),
            )
        })
    }

    /// What a client said of the trace that its step belongs to.
    pub(crate) fn heard_traceparent(
        &self,
        options: Option<&RunOptions>,
        client: &TaskName,
    ) -> Option<Traceparent> {
        self.engine.heard_traceparent(&options?.traceparent, client)
    }

    /// Runs a step. `done` is called once, by any thread, also before this returns. Does not block.
    pub(crate) fn run(
        &self,
        session: &Arc<MasterSession>,
        plan: &Arc<StepPlan>,
        trace: Option<Traceparent>,
        feeds: Vec<Tensor>,
        done: StepDone,
    ) -> Option<Arc<RunningStep>> {
        if let Err(status) = plan.check_feeds(&feeds) {
            done(Err(status));
            return None;
        }
        Some(RunningStep::start(
            session,
            plan,
            (self.step_id(), trace),
            feeds,
            done,
        ))
    }

    /// Has `then` called with the plan of a kind of step: at once if it is made, or cannot be; else when it is, in the
    /// thread that hears the last worker's answer, which may be a shard's: it must not block. Gives the place where
    /// `then` waits, unless it was called at once. Does not block.
    pub(crate) fn want_plan(
        &self,
        session: &Arc<MasterSession>,
        signature: &StepSignature,
        then: Then,
    ) -> Option<PlanWait> {
        let within = Arc::downgrade(session);
        let then: Then = Box::new(move |made| {
            then(made.map_err(|status| match within.upgrade() {
                Some(session) => session.plan_failed(status),
                None => status,
            }));
        });
        match session.want_plan(signature, || self.errands.place()) {
            Ok(Wanted::New(making, place)) => {
                let waits = making.begun().then(then);
                let (session, signature) = (Arc::clone(session), signature.clone());
                place.go(move || session.make_plan(making, &signature, &Link::register));
                waits
            }
            Ok(Wanted::Begun(begun)) => begun.then(then),
            Ok(Wanted::Made(plan)) => {
                then(Ok(plan));
                None
            }
            Err(status) => {
                then(Err(status));
                None
            }
        }
    }

    /// The plan of a kind of step. Blocks while it is made, no longer than until `deadline`: `None` if it is not made
    /// by then. It goes on being made, for the next step.
    ///
    /// # Errors
    /// As [`MasterSession::plan`]; `SESSION_LIMIT`.
    pub(crate) fn plan_until(
        &self,
        session: &Arc<MasterSession>,
        signature: &StepSignature,
        deadline: Instant,
    ) -> Result<Option<Arc<StepPlan>>, Status> {
        if let Some(plan) = session.ready_plan(signature) {
            return Ok(Some(plan));
        }
        let (then, waiter) = Waiter::pair();
        let waits = self.want_plan(session, signature, Box::new(then));
        let made = waiter.wait(Some(deadline));
        if let (None, Some(waits)) = (&made, waits) {
            waits.end(Status::of(
                catalogue::STEP_DEADLINE,
                "it is waited for no longer",
            ));
        }
        made.transpose()
    }

    /// Begins a partial run. Gives its handle. Does not block.
    ///
    /// # Errors
    /// `SESSION_CLOSED`; `SESSION_LIMIT`.
    pub(crate) fn set_up(
        &self,
        session: &Arc<MasterSession>,
        plan: &Arc<StepPlan>,
    ) -> Result<String, Status> {
        session.partial_runs.begin(session, plan, self.step_id())
    }

    /// Feeds and fetches a part of a partial run. Blocks.
    ///
    /// # Errors
    /// `PARTIAL_RUN_NONE`, `PARTIAL_RUN`; why the run failed.
    pub(crate) fn run_partial(
        &self,
        session: &MasterSession,
        handle: &str,
        feeds: Vec<(String, Tensor)>,
        fetches: &[String],
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        session.check_open()?;
        session
            .partial_runs
            .run(session, &self.engine, handle, feeds, fetches, deadline)
    }

    /// Ends a session. Its steps are cancelled. Blocks until the workers know.
    ///
    /// # Errors
    /// `SESSION_UNKNOWN`.
    pub(crate) fn close_session(&self, handle: &str) -> Result<(), Status> {
        let session = self.session(handle).map_err(|status| {
            let message = format!("{} Possibly, this master has restarted.", status.message());
            Status::of(catalogue::SESSION_UNKNOWN, message)
        })?;
        session.close(&cancelled_by("an explicit call to `Session::Close()`."));
        self.sessions.locked().remove(handle);
        Ok(())
    }

    /// Ends the sessions of a client that is gone, all at once. Blocks until the workers know.
    fn lose_client(&self, handles: &BTreeSet<String>) {
        // One that was closed already is not there.
        let sessions = handles
            .iter()
            .filter_map(|handle| self.session(handle).ok());
        let sessions: Vec<_> = sessions.collect();
        let all: Vec<_> = sessions.iter().map(|session| &**session).collect();
        let steps_until = Instant::now() + CLOSING;
        let why = cancelled_by("the loss of its client.");
        session::close_all(&all, &why, steps_until, steps_until + DELETE);
        self.sessions
            .locked()
            .retain(|handle, _| !handles.contains(handle));
    }

    /// The devices of a session, or, without one, of all workers: those of this task, and the others.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such session; `WORKER_ABSENT`.
    pub(crate) fn list_devices(
        &self,
        handle: Option<&str>,
    ) -> Result<(Vec<DeviceAttributes>, Vec<DeviceAttributes>), Status> {
        let all = match handle {
            None => self.discover(&[], self.patience)?,
            Some(handle) => {
                let session = self.session(handle).map_err(|status| {
                    Status::new(Code::InvalidArgument, status.reason(), status.message())
                })?;
                session.ground.attributes.clone()
            }
        };
        let own = self.worker.devices();
        Ok(all
            .into_iter()
            .partition(|device| own.iter().any(|known| known.name == device.name)))
    }

    /// Ends all sessions, and clears containers at all workers that the filters leave: one that cannot be told keeps no
    /// other from it. Blocks.
    ///
    /// # Errors
    /// Which worker could not be told.
    pub(crate) fn reset(&self, containers: &[String], filters: &[String]) -> Result<(), Status> {
        let tasks = discovery::others(self.worker.task(), &self.cluster, filters)?;
        let why = cancelled_by("a call to `Session::Reset()`.");
        let steps_until = Instant::now() + CLOSING;
        self.end_sessions(&why, steps_until, steps_until + DELETE);
        self.worker.cleanup_all(containers);
        let asked = CleanupAllRequest {
            container: containers.to_vec(),
        };
        let told = discovery::each(tasks, |task| {
            discovery::ask(&self.engine, &task, Instant::now(), self.patience)?;
            self.engine
                .ask::<CleanupAll>(&task, &asked, RESET_PATIENCE)
                .map(drop)
        });
        told.into_iter().collect()
    }

    /// Ends everything, and blocks no longer than `deadline`, nor than the end of one session may take: half of that
    /// is for steps to end, the rest for the workers to hear of it.
    pub(crate) fn end(&self, deadline: Duration) {
        let (now, time) = (Instant::now(), deadline.min(CLOSING + DELETE));
        let steps_until = now + CLOSING.min(time / 2);
        let why = Status::of(catalogue::SHUTDOWN, "Shutdown");
        self.end_sessions(&why, steps_until, now + time);
        let clients = std::mem::take(&mut *self.clients.locked());
        drop(clients);
    }

    /// How many sessions there are.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.locked().len()
    }

    fn end_sessions(&self, why: &Status, steps_until: Instant, until: Instant) {
        let all = std::mem::take(&mut *self.sessions.locked());
        let all: Vec<_> = all.values().map(|session| &**session).collect();
        session::close_all(&all, why, steps_until, until);
    }

    fn discover(
        &self,
        filters: &[String],
        patience: Duration,
    ) -> Result<Vec<DeviceAttributes>, Status> {
        discovery::devices(&self.worker, &self.engine, &self.cluster, filters, patience)
    }

    /// Begins a session at each worker that has a device of it; if one refuses, at none.
    fn open_links(&self, ground: &Ground) -> Result<BTreeMap<String, Arc<Link>>, Status> {
        let mut tasks: Vec<_> = ground
            .devices
            .iter()
            .map(|device| (device.task.clone(), device.incarnation))
            .collect();
        tasks.sort_unstable();
        tasks.dedup();
        let is_isolated = ground.config.isolate_session_state;
        let opened = discovery::each(tasks, |(task, life)| {
            let link = if task == *self.worker.task() {
                let master = super::worker::MasterLife {
                    task: task.to_string(),
                    incarnation: self.engine.incarnation(),
                };
                let session = self
                    .worker
                    .create_session(&ground.handle, master, is_isolated)?;
                Link::Here(Arc::clone(&self.worker), session)
            } else {
                Link::open(
                    &self.engine,
                    &self.errands,
                    (&task, life),
                    &ground.handle,
                    is_isolated,
                    self.patience,
                )?
            };
            Ok((task.to_string(), Arc::new(link)))
        });
        let mut links = BTreeMap::new();
        let mut refused = None;
        for outcome in opened {
            match outcome {
                Ok((task, link)) => drop(links.insert(task, link)),
                Err(status) => refused = refused.or(Some(status)),
            }
        }
        match refused {
            None => Ok(links),
            Some(status) => {
                link::end_all(links.into_values().collect(), Instant::now() + DELETE);
                Err(status)
            }
        }
    }

    /// A step's number: random, so that those of several masters do not meet.
    fn step_id(&self) -> StepId {
        let mut dice = self.dice.locked();
        StepId(dice.next_u64() >> (u64::BITS - STEP_BITS))
    }
}

/// Random bits from the system, as a step's number.
///
/// # Errors
/// `SYSTEM_CALL` if it gives none.
pub(crate) fn draw() -> Result<StepId, Status> {
    let bits = getrandom::u64().map_err(|error| {
        Status::of(
            catalogue::SYSTEM_CALL,
            format!("the system gives no random numbers: {error}"),
        )
    })?;
    Ok(StepId(bits >> (u64::BITS - STEP_BITS)))
}

fn cancelled_by(what: &str) -> Status {
    Status::of(
        catalogue::STEP_CANCELLED,
        format!("Step was cancelled by {what}"),
    )
}

/// What a session's settings may not say.
fn check_config(config: &ConfigProto) -> Result<(), Status> {
    let refuse = |message: &str| Err(Status::of(catalogue::SESSION_SETTING, message));
    if !config.session_inter_op_thread_pool.is_empty() {
        return refuse("Distributed session does not support session thread pool options.");
    }
    if config.cluster_def.is_some() {
        return refuse(
            "a session has no cluster of its own here: give cluster_def to the servers, and leave workers out by \
             device_filters",
        );
    }
    Ok(())
}

impl std::fmt::Debug for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Master")
            .field("task", self.worker.task())
            .finish_non_exhaustive()
    }
}
