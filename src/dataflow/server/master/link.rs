//! Links: how a master's session has its parts run: in this process, or over a line by another task's worker.
//!
//! Knows both ways, and nothing of what is run. A worker that is in this process is called; its arguments and results
//! never become messages.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prost::Message;

use super::plan::from_worker;
use crate::kernel::Value;
use crate::server::errands::Errands;
use crate::server::rpc_stream::{RpcStream, of_bytes, of_status};
use crate::server::runner::Done;
use crate::server::worker::{Worker, WorkerSession};
use rendez::engine::Engine;
use rendez::ground::{
    Incarnation, Locked, Status, StepId, TaskName, Traceparent, Unpoisoned, catalogue,
};
use rendez_proto::methods::worker_service::{CreateWorkerSession, DeleteWorkerSession};
use rendez_proto::methods::worker_session::{
    CancelStep, CleanupGraph, DeregisterGraph, RegisterGraph, RunGraph,
};
use rendez_proto::services::CancelStepRequest;
use rendez_proto::tensorflow::{
    CleanupGraphRequest, CreateWorkerSessionRequest, CreateWorkerSessionResponse,
    DeleteWorkerSessionRequest, DeregisterGraphRequest, GraphDef, RegisterGraphRequest,
    RunGraphRequest,
};

/// How long a worker that was lost may take to say whether it still has the session.
const REOPEN: Duration = Duration::from_secs(2);
/// How long the end of a session may take to be told.
pub(super) const DELETE: Duration = Duration::from_secs(10);

/// A worker, as one session of a master has it.
#[derive(Debug)]
pub(super) enum Link {
    /// In this process.
    Here(Arc<Worker>, Arc<WorkerSession>),
    /// In another.
    There(Arc<There>),
}

/// A worker of another task.
pub(super) struct There {
    engine: Engine,
    errands: Arc<Errands>,
    task: TaskName,
    session: String,
    line: Mutex<Arc<RpcStream>>,
    /// Parts that are not run any more, which it was not told over a line that was lost: it hears so over the next one.
    untold: Mutex<Vec<String>>,
    /// While another one is being opened: what waits for it.
    reopening: Mutex<Option<Vec<OnLine>>>,
    /// Parts that it has not said anything of: as many as this process does errands, whatever other workers do.
    registering: Arc<Errands>,
}

/// Takes the line, or why there is none. Must not block.
type OnLine = Tell<Arc<RpcStream>>;

/// The opening of another line. Its end tells what waits for it.
struct Reopening {
    there: Arc<There>,
    opened: Result<Arc<RpcStream>, Status>,
}

impl Link {
    /// Begins a session at the worker of another task, in the life of it that said which devices it has.
    ///
    /// # Errors
    /// What the worker says, or why it does not; `PEER_RESTARTED` for another life: what is sent to and from the
    /// devices of the former never comes.
    pub(super) fn open(
        engine: &Engine,
        errands: &Arc<Errands>,
        (task, life): (&TaskName, Incarnation),
        session: &str,
        is_isolated: bool,
        patience: Duration,
    ) -> Result<Self, Status> {
        let asked = CreateWorkerSessionRequest {
            session_handle: session.to_owned(),
            isolate_session_state: is_isolated,
            ..CreateWorkerSessionRequest::default()
        };
        let mut begun = life;
        let line = open_line_by(engine, super::draw()?, task, asked, |asked| {
            let answer = engine.ask::<CreateWorkerSession>(task, &asked, patience)?;
            begun = Incarnation(answer.incarnation.cast_unsigned());
            Ok(answer)
        })?;
        let link = Self::over(engine, errands, task, session, line);
        if begun != life {
            link.end(DELETE);
            let message = format!("{task} restarted while the session began: begin it again");
            return Err(Status::of(catalogue::PEER_RESTARTED, message));
        }
        Ok(link)
    }

    /// A worker of another task that has begun the session, over the line that it serves.
    pub(super) fn over(
        engine: &Engine,
        errands: &Arc<Errands>,
        task: &TaskName,
        session: &str,
        line: Arc<RpcStream>,
    ) -> Self {
        Self::There(Arc::new(There {
            engine: engine.clone(),
            errands: Arc::clone(errands),
            task: task.clone(),
            session: session.to_owned(),
            line: Mutex::new(line),
            untold: Mutex::default(),
            reopening: Mutex::default(),
            registering: Arc::default(),
        }))
    }

    /// The worker's task.
    pub(super) fn task(&self) -> &TaskName {
        match self {
            Self::Here(worker, _) => worker.task(),
            Self::There(there) => &there.task,
        }
    }

    /// True if it is in this process.
    pub(super) const fn is_here(&self) -> bool {
        matches!(self, Self::Here(..))
    }

    /// Has a part prepared. `then` hears the handle it is run by, what the worker says or why it does not, with its
    /// name, or that too many parts are under way to it. Only a worker of this process is waited for.
    pub(super) fn register(&self, part: GraphDef, then: ThenRun) {
        let task = self.task().to_string();
        let says = move |status: Status| from_worker(&task, &status);
        let there = match self {
            Self::Here(_, session) => return then.tell(session.register(part).map_err(says)),
            Self::There(there) => there,
        };
        let asked = there.registering.place();
        let asked = asked.and_then(|place| Ok((place, of_bytes(part.encode_to_vec())?)));
        let (place, graph) = match asked {
            Ok(asked) => asked,
            Err(status) => return then.tell(Err(status)),
        };
        there.on_line(Box::new(move |line| {
            let line = match line {
                Ok(line) => line,
                Err(status) => return then.tell(Err(says(status))),
            };
            let asked = RegisterGraphRequest::default();
            line.ask::<RegisterGraph>(&asked, vec![graph], move |outcome| {
                drop(place);
                then.tell(outcome.map(|(answer, _)| answer.graph_handle).map_err(says));
            });
        }));
    }

    /// A part is not run any more.
    pub(super) fn deregister(&self, graph: &str) {
        let outcome = match self {
            Self::Here(_, session) => session.deregister(graph),
            Self::There(there) => there.deregister(graph),
        };
        quiet(outcome);
    }

    /// Runs a part in a step. `done` is called once; this does not block. Only a worker of this process takes
    /// arguments and gives results: what is fed and fetched stands there. A part that begins after this has returned
    /// may have missed [`Link::cancel`]: `stopping` gives what that said.
    pub(super) fn run(
        &self,
        graph: &str,
        (step, trace): (StepId, Option<Traceparent>),
        args: Vec<Value>,
        stopping: impl Fn() -> Option<Status> + Send + 'static,
        done: Done,
    ) {
        let there = match self {
            Self::Here(_, session) => return session.run(graph, (step, trace), args, done),
            Self::There(there) => there,
        };
        let asked = RunGraphRequest {
            graph_handle: graph.to_owned(),
            step_id: step.0.cast_signed(),
            traceparent: trace.map(|trace| trace.to_string()).unwrap_or_default(),
        };
        let line = there.line();
        if line.lost_with().is_none() {
            return ask_to_run(&line, &asked, done);
        }
        // Whether it has restarted or was only out of reach, it says itself.
        let done = Once::new(done);
        there.on_line(Box::new(move |line| {
            let line = match line {
                Ok(line) => line,
                Err(status) => return done.tell(Err(status)),
            };
            // Until now a cancel was told over the line that was lost.
            if let Some(status) = stopping() {
                return done.tell(Err(status));
            }
            ask_to_run(&line, &asked, Box::new(|outcome| done.tell(outcome)));
            if let Some(status) = stopping() {
                tell_cancel(&line, step, &status);
            }
        }));
    }

    /// Ends what runs of a step there.
    pub(super) fn cancel(&self, step: StepId, status: &Status) {
        match self {
            Self::Here(_, session) => session.cancel(step, status),
            Self::There(there) => tell_cancel(&there.line(), step, status),
        }
    }

    /// A step is over everywhere.
    pub(super) fn cleanup(&self, step: StepId) {
        match self {
            Self::Here(_, session) => session.cleanup(step),
            Self::There(there) => {
                let asked = CleanupGraphRequest {
                    step_id: step.0.cast_signed(),
                };
                let line = there.line();
                quiet(line.tell::<CleanupGraph>(&asked));
                if line.lost_with().is_some() {
                    there.end_former_steps();
                }
            }
        }
    }

    /// The session is over. Blocks until the worker knows, cannot be told, or has not answered for so long.
    pub(super) fn end(&self, patience: Duration) {
        let there = match self {
            Self::Here(worker, session) => return worker.delete_session(session.handle()),
            Self::There(there) => there,
        };
        let line = there.line();
        if line.lost_with().is_none() {
            let asked = DeleteWorkerSessionRequest {
                session_handle: there.session.clone(),
            };
            let told = there
                .engine
                .ask::<DeleteWorkerSession>(&there.task, &asked, patience);
            quiet(told.map(drop));
        }
        line.close();
    }
}

impl There {
    pub(super) fn line(&self) -> Arc<RpcStream> {
        let line = self.line.lock();
        Arc::clone(&line.unpoisoned())
    }

    /// Has the worker end what is left of steps whose end could not be told: it does when the line is opened again. One
    /// that cannot be reached has lost this master too, and ends the session by itself.
    fn end_former_steps(self: &Arc<Self>) {
        // Without a control plane no worker can be called.
        if self.engine.can_call() {
            self.on_line(Box::new(|line| quiet(line.map(drop))));
        }
    }

    /// Calls `then` with the line: at once, or when another was opened if it was lost, or with why that failed. Does
    /// not block. One errand opens it for all that wait.
    fn on_line(self: &Arc<Self>, then: OnLine) {
        let mut waiting = self.waiting();
        let line = self.line();
        if line.lost_with().is_none() {
            drop(waiting);
            return then(Ok(line));
        }
        if let Some(waiting) = &mut *waiting {
            return waiting.push(then);
        }
        // There is one for each session and worker at most, and those that wait for it may hold all the others.
        let place = self.errands.place_anyway();
        *waiting = Some(vec![then]);
        drop(waiting);
        let reopening = Reopening {
            there: Arc::clone(self),
            opened: Err(no_answer()),
        };
        place.go(move || reopening.open());
    }

    /// The line, opened again if it was lost. Blocks.
    ///
    /// # Errors
    /// `WORKER_SESSION_UNKNOWN` if the worker has restarted; `Unavailable` if it does not answer.
    fn living_line(&self) -> Result<Arc<RpcStream>, Status> {
        let line = self.line();
        let Some(lost) = line.lost_with() else {
            return Ok(line);
        };
        let asked = CreateWorkerSessionRequest {
            session_handle: self.session.clone(),
            reopen: true,
            ..CreateWorkerSessionRequest::default()
        };
        self.engine.connect(&self.task);
        let opened = open_line(&self.engine, &self.task, asked, REOPEN);
        let opened = opened.map_err(|status| {
            if status.reason() == catalogue::CALL_DEADLINE {
                lost
            } else {
                status
            }
        })?;
        self.goes_over(Arc::clone(&opened));
        Ok(opened)
    }

    /// Goes on over another line.
    pub(super) fn goes_over(&self, line: Arc<RpcStream>) {
        let untold = {
            let mut untold = self.untold.locked();
            let mut former = self.line.locked();
            *former = Arc::clone(&line);
            std::mem::take(&mut *untold)
        };
        for graph in untold {
            quiet(tell_deregister(&line, &graph));
        }
    }

    fn deregister(&self, graph: &str) -> Result<(), Status> {
        let mut untold = self.untold.locked();
        let line = self.line();
        if line.lost_with().is_some() {
            untold.push(graph.to_owned());
            return Ok(());
        }
        drop(untold);
        tell_deregister(&line, graph)
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Vec<OnLine>>> {
        let waiting = self.reopening.lock();
        waiting.unpoisoned()
    }
}

impl Reopening {
    fn open(mut self) {
        self.opened = self.there.living_line();
    }
}

impl Drop for Reopening {
    fn drop(&mut self) {
        let waiting = self.there.waiting().take();
        for then in waiting.into_iter().flatten() {
            then(self.opened.clone());
        }
    }
}

/// Ends the session at workers, all at once. Blocks until they know, or until then.
pub(super) fn end_all(links: Vec<Arc<Link>>, until: Instant) {
    super::discovery::each(links, |link| {
        link.end(until.saturating_duration_since(Instant::now()));
        Ok(())
    });
}

fn open_line(
    engine: &Engine,
    task: &TaskName,
    asked: CreateWorkerSessionRequest,
    patience: Duration,
) -> Result<Arc<RpcStream>, Status> {
    open_line_by(engine, super::draw()?, task, asked, |asked| {
        engine.ask::<CreateWorkerSession>(task, &asked, patience)
    })
}

/// Opens the line of that number, which the worker is told of by `call`.
///
/// # Errors
/// What the worker says, or why it does not.
pub(super) fn open_line_by(
    engine: &Engine,
    id: StepId,
    task: &TaskName,
    asked: CreateWorkerSessionRequest,
    call: impl FnOnce(CreateWorkerSessionRequest) -> Result<CreateWorkerSessionResponse, Status>,
) -> Result<Arc<RpcStream>, Status> {
    let asked = CreateWorkerSessionRequest {
        master_task: engine.task().to_string(),
        line: id.0,
        ..asked
    };
    RpcStream::open(engine, id, task, || {
        let answer = call(asked)?;
        Ok(Incarnation(answer.incarnation.cast_unsigned()))
    })
}

fn ask_to_run(line: &RpcStream, asked: &RunGraphRequest, done: Done) {
    line.ask::<RunGraph>(asked, vec![], move |outcome| done(outcome.map(|_| vec![])));
}

fn tell_deregister(line: &RpcStream, graph: &str) -> Result<(), Status> {
    let asked = DeregisterGraphRequest {
        graph_handle: graph.to_owned(),
    };
    line.tell::<DeregisterGraph>(&asked)
}

fn tell_cancel(line: &RpcStream, step: StepId, status: &Status) {
    let asked = CancelStepRequest {
        step: step.0,
        why: Some(of_status(status)),
    };
    quiet(line.tell::<CancelStep>(&asked));
}

/// Tells an outcome once, also if it is dropped before.
pub(super) struct Once<T>(Option<Tell<T>>);

/// Takes it. Must not block.
type Tell<T> = Box<dyn FnOnce(Result<T, Status>) + Send>;

/// Takes the handle of a part that was registered, or why it was not. Must not block.
pub(super) type ThenRun = Once<String>;

impl<T> Once<T> {
    pub(super) fn new(done: impl FnOnce(Result<T, Status>) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }

    pub(super) fn tell(mut self, outcome: Result<T, Status>) {
        if let Some(done) = self.0.take() {
            done(outcome);
        }
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(no_answer()));
        }
    }
}

fn no_answer() -> Status {
    Status::of(
        catalogue::SERVICE_FAILED,
        "the question was dropped unanswered",
    )
}

/// What failed here is known from elsewhere: the line is lost, or the worker has no such session.
fn quiet(outcome: Result<(), Status>) {
    if let Err(status) = outcome {
        tracing::debug!(%status, "a worker could not be told");
    }
}

shown! { There { task, session } }
