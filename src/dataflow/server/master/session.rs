//! A client's session at a master: its graph, where that stands, its plans, and the steps that run.
//!
//! Knows versions and workers. The whole graph is placed when it comes, so that what is added later stands beside what
//! is there, and a variable never moves.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::link::{DELETE, Link, end_all};
use super::partial::PartialRuns;
use super::plan::{Making, Material, Plans, Register, StepPlan, StepSignature, Wanted};
use super::step::RunningStep;
use super::stragglers::Stragglers;
use crate::graph::{Counted, DeviceIndex, Devices, Graph, Import, Ops, Placing, Room, place};
use rendez::engine::Engine;
use rendez::ground::limits::{SESSION_CALLABLES_MAX, SESSION_STEPS_MAX};
use rendez::ground::{Locked, Status, StepId, catalogue};
use rendez_proto::tensorflow::{ConfigProto, DeviceAttributes, GraphDef};

/// The types of device that have kernels, the best first.
const KINDS: [&str; 1] = ["CPU"];

/// A session at a master.
pub(crate) struct MasterSession {
    pub(super) ground: Ground,
    links: BTreeMap<String, Arc<Link>>,
    graph: Mutex<Versioned>,
    plans: Plans,
    pub(crate) partial_runs: PartialRuns,
    pub(super) stragglers: Stragglers,
    callables: Mutex<Callables>,
    steps: Mutex<Steps>,
    /// No step runs any longer.
    rested: Condvar,
}

/// The graph, and how often it was extended.
struct Versioned {
    version: i64,
    /// What it may still take.
    left: Room,
    placed: Arc<Graph>,
}

#[derive(Default)]
struct Callables {
    next: i64,
    plans: BTreeMap<i64, Arc<StepPlan>>,
}

#[derive(Default)]
struct Steps {
    running: BTreeMap<StepId, Arc<RunningStep>>,
    closed: Option<Status>,
    /// Why no step can end well any more: a worker has forgotten the session.
    broken: Option<Status>,
}

/// Where a session runs.
pub(super) struct Ground {
    pub(super) handle: String,
    pub(super) ops: Arc<Ops>,
    pub(super) config: ConfigProto,
    pub(super) attributes: Vec<DeviceAttributes>,
    pub(super) devices: Devices,
    pub(super) own: DeviceIndex,
}

impl Ground {
    /// Reads and places a graph.
    ///
    /// # Errors
    /// What is wrong with the graph, naming the node.
    pub(super) fn place(&self, def: GraphDef) -> Result<Graph, Status> {
        self.place_beside(def, &Graph::new())
    }

    /// The same for what is added to a graph, of which nothing moves.
    fn place_beside(&self, more: GraphDef, placed: &Graph) -> Result<Graph, Status> {
        let mut graph = placed.extended(more, &self.ops, Import::Client)?;
        let placing = Placing {
            soft: self.config.allow_soft_placement,
            kinds: &KINDS,
            default: self.own,
        };
        place(&mut graph, &self.devices, &placing)?;
        Ok(graph)
    }
}

impl MasterSession {
    /// A session of `engine`'s task, whose workers are ready.
    pub(super) fn new(
        engine: &Engine,
        ground: Ground,
        links: BTreeMap<String, Arc<Link>>,
        (placed, left): (Graph, Room),
    ) -> Self {
        Self {
            ground,
            links,
            graph: Mutex::new(Versioned {
                version: 0,
                left,
                placed: Arc::new(placed),
            }),
            plans: Plans::default(),
            partial_runs: PartialRuns::default(),
            stragglers: Stragglers::new(engine),
            callables: Mutex::default(),
            steps: Mutex::default(),
            rested: Condvar::new(),
        }
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> &str {
        &self.ground.handle
    }

    /// True if it has workers in other tasks.
    pub(super) fn is_distributed(&self) -> bool {
        self.links.len() > 1
    }

    /// The graph as it is now.
    pub(super) fn placed(&self) -> Arc<Graph> {
        Arc::clone(&self.graph.locked().placed)
    }

    /// Adds nodes, unless the graph was extended since version `expected`. Gives the new version.
    ///
    /// # Errors
    /// `SESSION_VERSION`; what is wrong with the graph, which is then as it was.
    pub(crate) fn extend(&self, more: Counted, expected: i64) -> Result<i64, Status> {
        self.check_open()?;
        let mut graph = self.graph.locked();
        if graph.version != expected {
            let message = format!(
                "Current version is {} but caller expected {expected}.",
                graph.version
            );
            return Err(Status::of(catalogue::SESSION_VERSION, message));
        }
        let left = graph.left.beside(more.left)?;
        let placed = self.ground.place_beside(more.def, &graph.placed)?;
        graph.left = left;
        graph.placed = Arc::new(placed);
        graph.version += 1;
        let version = graph.version;
        drop(graph);
        self.plans.forget_begun();
        Ok(version)
    }

    /// The plan of a kind of step, if there is one already. Never blocks.
    pub(super) fn ready_plan(&self, signature: &StepSignature) -> Option<Arc<StepPlan>> {
        self.plans.ready(signature)
    }

    /// The plan of a kind of step. Blocks while it is made.
    ///
    /// # Errors
    /// `SESSION_CLOSED`; what [`StepPlan::make`] says.
    pub(crate) fn plan(&self, signature: &StepSignature) -> Result<Arc<StepPlan>, Status> {
        self.plan_by(signature, &Link::register)
    }

    /// The same, with another way to register parts.
    ///
    /// # Errors
    /// As [`MasterSession::plan`].
    pub(super) fn plan_by(
        &self,
        signature: &StepSignature,
        register: &Register<'_>,
    ) -> Result<Arc<StepPlan>, Status> {
        self.check_open()?;
        let found = self.plans.find(signature, |making| {
            self.make_plan(making, signature, register);
        });
        found.map_err(|status| self.plan_failed(status))
    }

    /// How far the plan of a kind of step is; one that is new is begun in a `place`. Never blocks.
    ///
    /// # Errors
    /// `SESSION_CLOSED`; what `place` says.
    pub(super) fn want_plan<P>(
        &self,
        signature: &StepSignature,
        place: impl FnOnce() -> Result<P, Status>,
    ) -> Result<Wanted<P>, Status> {
        self.check_open()?;
        self.plans.want(signature, place)
    }

    /// Makes the plan of a kind of step, for all who wait for it, who hear of it when its workers have answered. Blocks
    /// for as long as the graph is cut, and a worker of this task prepares its part.
    pub(super) fn make_plan(
        &self,
        making: Making,
        signature: &StepSignature,
        register: &Register<'_>,
    ) {
        let (placed, ground) = (self.placed(), &self.ground);
        let options = ground.config.graph_options.as_ref();
        let material = Material {
            graph: &placed,
            ops: &ground.ops,
            devices: &ground.devices,
            own: ground.own,
            links: &self.links,
            register,
            narrow_floats: options.is_some_and(|options| options.enable_bfloat16_sendrecv),
        };
        StepPlan::make(&material, signature, |made| making.told(made));
    }

    /// Keeps a plan under a number.
    ///
    /// # Errors
    /// `SESSION_LIMIT`.
    pub(crate) fn keep_callable(&self, plan: Arc<StepPlan>) -> Result<i64, Status> {
        let mut callables = self.callables.locked();
        if callables.plans.len() >= SESSION_CALLABLES_MAX {
            let message = format!(
                "session {} has {SESSION_CALLABLES_MAX} callables, the limit SESSION_CALLABLES_MAX",
                self.handle()
            );
            return Err(Status::of(catalogue::SESSION_LIMIT, message));
        }
        let handle = callables.next;
        callables.next += 1;
        callables.plans.insert(handle, plan);
        Ok(handle)
    }

    /// The plan of a callable.
    ///
    /// # Errors
    /// `SESSION_CLOSED`; `CALLABLE_UNKNOWN`.
    pub(crate) fn callable(&self, handle: i64) -> Result<Arc<StepPlan>, Status> {
        self.check_open()?;
        let plan = self.callables.locked().plans.get(&handle).cloned();
        plan.ok_or_else(|| unknown_callable(handle))
    }

    /// Forgets a callable.
    ///
    /// # Errors
    /// `CALLABLE_UNKNOWN`.
    pub(crate) fn release_callable(&self, handle: i64) -> Result<(), Status> {
        let former = self.callables.locked().plans.remove(&handle);
        former.map(drop).ok_or_else(|| unknown_callable(handle))
    }

    /// A step begins: unless the session is closed.
    ///
    /// # Errors
    /// `SESSION_CLOSED`; `WORKER_SESSION_UNKNOWN`, once a worker has restarted; `SESSION_LIMIT`.
    pub(super) fn enter(&self, step: &Arc<RunningStep>) -> Result<(), Status> {
        let mut steps = self.steps.locked();
        steps.check()?;
        if steps.running.len() >= SESSION_STEPS_MAX {
            let message = format!(
                "session {} has {SESSION_STEPS_MAX} steps under way, the limit SESSION_STEPS_MAX",
                self.handle()
            );
            return Err(Status::of(catalogue::SESSION_LIMIT, message));
        }
        steps.running.insert(step.id(), Arc::clone(step));
        Ok(())
    }

    /// A step is over.
    pub(super) fn leave(&self, step: StepId) {
        let mut steps = self.steps.locked();
        let former = steps.running.remove(&step);
        if steps.closed.is_some() && steps.running.is_empty() {
            self.rested.notify_all();
        }
        drop(steps);
        drop(former);
    }

    /// Ends all steps with `why`, waits until they have ended or for as long as that is worth, and lets go of the
    /// workers. Blocks.
    pub(super) fn close(&self, why: &Status) {
        let steps_until = Instant::now() + CLOSING;
        close_all(&[self], why, steps_until, steps_until + DELETE);
    }

    /// Has all steps end with `why`, and what waits for a plan wait no longer, and lets none begin. False if it was
    /// closed before.
    fn cancel(&self, why: &Status) -> bool {
        let mut steps = self.steps.locked();
        if steps.closed.is_some() {
            return false;
        }
        steps.closed = Some(why.clone());
        let running: Vec<_> = steps.running.values().cloned().collect();
        drop(steps);
        self.plans.stop(why);
        self.partial_runs.clear();
        running.iter().for_each(|step| step.cancel(why.clone()));
        true
    }

    /// Waits until all steps have ended, or until then.
    fn await_steps(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let run = |steps: &mut Steps| !steps.running.is_empty();
        let _ = self
            .rested
            .wait_timeout_while(self.steps.locked(), left, run);
    }

    /// Forgets all plans. Gives the workers, to be told.
    fn let_go(&self) -> Vec<Arc<Link>> {
        self.callables.locked().plans.clear();
        self.plans.end(&closed());
        self.links.values().cloned().collect()
    }

    /// Ends a session of which no step runs, its workers one after the other.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn close_at_rest(&self, why: Status) {
        self.steps.locked().closed.get_or_insert(why);
        self.partial_runs.clear();
        self.let_go().iter().for_each(|link| link.end(DELETE));
    }

    /// The ways to its workers.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values().map(|link| &**link)
    }

    /// How many steps run.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn steps_alive(&self) -> usize {
        self.steps.locked().running.len()
    }

    /// # Errors
    /// `SESSION_CLOSED`; `WORKER_SESSION_UNKNOWN`, once a worker has restarted.
    pub(super) fn check_open(&self) -> Result<(), Status> {
        self.steps.locked().check()
    }

    /// A part of a step has failed. Where a worker has another life by now, or has ended the session, so will all later
    /// ones: they hear at once what is to be done.
    pub(super) fn part_failed(&self, status: &Status) {
        let reasons = [catalogue::PEER_RESTARTED, catalogue::WORKER_SESSION_UNKNOWN];
        if !reasons.contains(&status.reason()) {
            return;
        }
        self.steps.locked().broken.get_or_insert_with(|| {
            let message = format!(
                "session {} is over, since one of its workers has restarted or has ended it: begin another session, \
                 and restore a checkpoint. {}",
                self.handle(),
                status.message()
            );
            Status::of(catalogue::WORKER_SESSION_UNKNOWN, message)
        });
    }

    /// The same for a kind of step that is not made. Gives what is told of it.
    pub(super) fn plan_failed(&self, status: Status) -> Status {
        if status.reason() == catalogue::SESSION_CLOSED {
            return status;
        }
        self.part_failed(&status);
        self.broken().unwrap_or(status)
    }

    /// Why no step can end well any more, if that is so.
    pub(super) fn broken(&self) -> Option<Status> {
        self.steps.locked().broken.clone()
    }
}

impl Steps {
    /// Whether a step may begin.
    fn check(&self) -> Result<(), Status> {
        if self.closed.is_some() {
            return Err(closed());
        }
        self.broken.clone().map_or(Ok(()), Err)
    }
}

/// Ends sessions, all at once: their steps, which are waited for until `steps_until`, and then what their workers have
/// of them, who may take until `until` to hear it. Blocks.
pub(super) fn close_all(
    sessions: &[&MasterSession],
    why: &Status,
    steps_until: Instant,
    until: Instant,
) {
    // One that another thread closes already is left to that.
    let open = sessions.iter().filter(|session| session.cancel(why));
    let open: Vec<_> = open.collect();
    open.iter()
        .for_each(|session| session.await_steps(steps_until));
    let links = open.iter().flat_map(|session| session.let_go());
    end_all(links.collect(), until);
}

/// How long the end of a session waits for its steps.
pub(super) const CLOSING: Duration = Duration::from_secs(5);

pub(crate) fn closed() -> Status {
    Status::of(catalogue::SESSION_CLOSED, "Session is closed.")
}

fn unknown_callable(handle: i64) -> Status {
    let message = format!("No such callable handle: {handle}");
    Status::of(catalogue::CALLABLE_UNKNOWN, message)
}

shown! { MasterSession { handle() } }
