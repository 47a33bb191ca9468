//! Solo: what runs graphs on a task, over an engine whose shards its owner turns, and without a control plane.
//!
//! For simulations: nothing here waits, starts a thread that matters to what happens, or reads dice or a clock but the
//! engine's. Steps, lines, parts and their clean-up are those of every task; what masters ask of workers over the
//! control plane, and what blocks meanwhile, is done at once by the owner of both sides.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MasterSession;
use super::discovery;
use super::link::{Link, ThenRun, open_line_by};
use super::plan::{StepPlan, StepSignature, from_worker};
use super::session::Ground;
use super::step::RunningStep;
use crate::graph::{Counted, Ops};
use crate::kernel::Value;
use crate::operations::Operations;
use crate::server::errands::Errands;
use crate::server::rpc_stream::RpcStream;
use crate::server::runtime::worker_on;
use crate::server::worker::{self, Worker};
use rendez::engine::Engine;
use rendez::ground::{Status, StepId, TaskName, catalogue};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::{
    ConfigProto, CreateWorkerSessionRequest, DeleteWorkerSessionRequest, GraphDef,
};

/// What runs graphs on a task.
#[derive(Debug)]
pub struct Site {
    engine: Engine,
    pub(super) worker: Arc<Worker>,
    pub(super) errands: Arc<Errands>,
    ops: Arc<Ops>,
}

/// A session whose master is one site, and whose workers are that and others.
#[derive(Debug)]
pub struct SoloSession {
    engine: Engine,
    pub(super) session: Arc<MasterSession>,
}

/// A kind of step, registered at its workers.
#[derive(Clone, Debug)]
pub struct Prepared(pub(super) Arc<StepPlan>);

/// A step that was begun.
#[derive(Clone, Debug)]
pub struct Run(pub(super) Arc<RunningStep>);

impl Site {
    /// Begins to run graphs on `engine`'s shards.
    ///
    /// # Errors
    /// What the system has not got.
    pub fn new(engine: &Engine) -> Result<Self, Status> {
        let operations = Operations::standard();
        Ok(Self {
            engine: engine.clone(),
            worker: worker_on(engine, &operations)?,
            errands: Arc::default(),
            ops: operations.shared_ops(),
        })
    }

    /// How many sessions masters have at its worker, and how many of their steps are not cleaned up.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        self.worker.load()
    }

    /// Begins a session over this worker and `others`, each with the number of the line to it.
    ///
    /// # Errors
    /// What is wrong with the graph; what a worker says.
    pub fn begin(
        &self,
        handle: &str,
        def: GraphDef,
        others: &[(&Self, StepId)],
    ) -> Result<SoloSession, Status> {
        let mut attributes = self.worker.devices();
        attributes.extend(others.iter().flat_map(|(site, _)| site.worker.devices()));
        let (devices, own) = discovery::named(self.worker.task(), &attributes)?;
        let ground = Ground {
            handle: handle.to_owned(),
            ops: Arc::clone(&self.ops),
            config: ConfigProto::default(),
            attributes,
            devices,
            own,
        };
        let Counted { def, left } = Counted::new(def)?;
        let placed = ground.place(def)?;
        let task = self.worker.task();
        let master = worker::MasterLife {
            task: task.to_string(),
            incarnation: self.engine.incarnation(),
        };
        let here = self.worker.create_session(handle, master, false)?;
        let mut links = BTreeMap::new();
        let link = Link::Here(Arc::clone(&self.worker), here);
        links.insert(task.to_string(), Arc::new(link));
        for (site, id) in others {
            let asked = CreateWorkerSessionRequest {
                session_handle: handle.to_owned(),
                ..CreateWorkerSessionRequest::default()
            };
            let line = open_line(&self.engine, *id, site, asked)?;
            let task = site.worker.task();
            let link = Link::over(&self.engine, &self.errands, task, handle, line);
            links.insert(task.to_string(), Arc::new(link));
        }
        let session = MasterSession::new(&self.engine, ground, links, (placed, left));
        Ok(SoloSession {
            engine: self.engine.clone(),
            session: Arc::new(session),
        })
    }
}

impl SoloSession {
    /// Prunes and cuts the graph for a kind of step, and registers the parts at their workers, which are among `sites`.
    ///
    /// # Errors
    /// What is wrong with the endpoints; what a worker says.
    pub fn prepare(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        sites: &[&Site],
    ) -> Result<Prepared, Status> {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let signature = StepSignature {
            feeds: names(feeds),
            fetches: names(fetches),
            ..StepSignature::default()
        };
        let registered = |link: &Link, part: GraphDef| {
            let site = sites.iter().find(|site| site.worker.task() == link.task());
            let absent = || Status::of(catalogue::WORKER_ABSENT, link.task().to_string());
            let worker = &site.ok_or_else(absent)?.worker;
            worker.session(self.session.handle())?.register(part)
        };
        let registered = |link: &Link, part: GraphDef| {
            let said = registered(link, part);
            said.map_err(|status| from_worker(&link.task().to_string(), &status))
        };
        let register =
            |link: &Link, part: GraphDef, then: ThenRun| then.tell(registered(link, part));
        self.session.plan_by(&signature, &register).map(Prepared)
    }

    /// The workers whose lines are lost: until they have others no step can be run.
    #[must_use]
    pub fn lost(&self) -> Vec<TaskName> {
        let links = self.session.links();
        let lost = links.filter(|link| match link {
            Link::Here(..) => false,
            Link::There(there) => there.line().lost_with().is_some(),
        });
        lost.map(|link| link.task().clone()).collect()
    }

    /// Goes on with a worker whose line is lost over another one, of number `id`.
    ///
    /// # Errors
    /// `WORKER_SESSION_UNKNOWN` if the worker has restarted, or has ended the session.
    pub fn reopen(&self, site: &Site, id: StepId) -> Result<(), Status> {
        let asked = CreateWorkerSessionRequest {
            session_handle: self.session.handle().to_owned(),
            reopen: true,
            ..CreateWorkerSessionRequest::default()
        };
        let line = open_line(&self.engine, id, site, asked)?;
        let task = site.worker.task();
        if let Some(Link::There(there)) = self.session.links().find(|link| link.task() == task) {
            there.goes_over(line);
        }
        Ok(())
    }

    /// Runs step `id`. `done` is called once, also before this returns.
    ///
    /// # Errors
    /// `FEED_UNFIT` names the feed.
    pub fn run(
        &self,
        prepared: &Prepared,
        id: StepId,
        feeds: Vec<Tensor>,
        done: impl FnOnce(Result<Vec<Tensor>, Status>) + Send + 'static,
    ) -> Result<Run, Status> {
        prepared.0.check_feeds(&feeds)?;
        let done = move |outcome: Result<Vec<Value>, Status>| {
            let values = outcome.and_then(|values| values.iter().map(Value::tensor).collect());
            done(values);
        };
        let run = RunningStep::start(
            &self.session,
            &prepared.0,
            (id, None),
            feeds,
            Box::new(done),
        );
        Ok(Run(run))
    }

    /// In a simulated world: gives up the parts of steps that have failed long enough ago, by the engine's clock.
    pub fn turn(&self) {
        self.session.stragglers.turn();
    }

    /// How many steps run.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.session.steps_alive()
    }

    /// Ends the session, of which no step runs. Those of `sites` are told by the control plane, as well as by the end
    /// of their lines.
    pub fn close(self, sites: &[&Site]) {
        let closed = Status::of(catalogue::SESSION_CLOSED, "Session is closed.");
        self.session.close_at_rest(closed);
        let asked = DeleteWorkerSessionRequest {
            session_handle: self.session.handle().to_owned(),
        };
        let task = self.engine.task().to_string();
        for site in sites {
            worker::delete_session(&site.worker, &task, &asked);
        }
    }
}

impl Run {
    /// Ends the step with `status`. Nothing happens if it is over.
    pub fn cancel(&self, status: Status) {
        self.0.cancel(status);
    }
}

fn open_line(
    engine: &Engine,
    id: StepId,
    site: &Site,
    asked: CreateWorkerSessionRequest,
) -> Result<Arc<RpcStream>, Status> {
    let (task, incarnation) = (engine.task().to_string(), engine.incarnation());
    open_line_by(engine, id, site.worker.task(), asked, |asked| {
        worker::create_session(&site.worker, (&task, incarnation), asked)
    })
}
