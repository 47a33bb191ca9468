//! A master's session at a worker: the parts it has registered, and the steps that are not cleaned up.
//!
//! Knows parts by handle and steps by number. A step is known from its first part until its master says that it is over
//! everywhere; what it holds in the engine goes then, or when the session ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{MasterLife, Worker};
use crate::graph::{Graph, Import};
use crate::kernel::Home;
use crate::kernel::Value;
use crate::kernel::kept::KeptKernels;
use crate::server::rpc_stream::ServerEnd;
use crate::server::runner::{Done, Part, Runner, Running};
use rendez::ground::limits::{SESSION_GRAPHS_MAX, SESSION_STEPS_MAX};
use rendez::ground::{Locked, Status, StepId, Traceparent, catalogue, faults};
use rendez_proto::tensorflow::GraphDef;

/// A session at a worker.
pub(crate) struct WorkerSession {
    handle: String,
    master: MasterLife,
    worker: Weak<Worker>,
    runner: Arc<dyn Runner>,
    /// Its variables, if it shares none.
    own_home: Option<Arc<Home>>,
    /// What its stateful nodes have come to, in whatever graph they are.
    kept: KeptKernels,
    next_graph: AtomicU64,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    graphs: BTreeMap<String, Arc<dyn Part>>,
    steps: BTreeMap<StepId, Step>,
    line: Option<Arc<ServerEnd>>,
    is_over: bool,
}

/// A step that is not cleaned up.
#[derive(Default)]
struct Step {
    /// Its parts that run here, by handle.
    parts: BTreeMap<String, State>,
}

/// How far a part is.
enum State {
    /// It is being started.
    Starting,
    /// It was cancelled while it was being started.
    Cancelled(Status),
    Runs(Box<dyn Running>),
    /// It has run; a step runs a part once.
    Done,
}

impl WorkerSession {
    pub(super) fn new(
        handle: &str,
        worker: &Arc<Worker>,
        master: MasterLife,
        runner: Arc<dyn Runner>,
        own_home: Option<Arc<Home>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            handle: handle.to_owned(),
            master,
            worker: Arc::downgrade(worker),
            runner,
            own_home,
            kept: KeptKernels::default(),
            next_graph: AtomicU64::new(0),
            book: Mutex::default(),
        })
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> &str {
        &self.handle
    }

    /// Whose it is.
    pub(crate) const fn master(&self) -> &MasterLife {
        &self.master
    }

    /// The worker it is at.
    ///
    /// # Errors
    /// `SHUTDOWN` if that is gone.
    pub(super) fn worker(&self) -> Result<Arc<Worker>, Status> {
        let gone = || Status::of(catalogue::SHUTDOWN, "Shutdown");
        self.worker.upgrade().ok_or_else(gone)
    }

    /// Takes the line its master speaks over; a former one ends. What was asked on that is over for the master, and
    /// what it said of its end may not have come: so those steps are over here as well.
    ///
    /// # Errors
    /// Why that line is lost already: no one tells of it again. The session is over, unless its master speaks over
    /// another line by now.
    pub(super) fn hear(&self, line: Arc<ServerEnd>) -> Result<(), Status> {
        let mut book = self.book.locked();
        let is_alive = |line: &Arc<ServerEnd>| line.lost_with().is_none();
        if let Some(lost) = line.lost_with()
            && book.line.as_ref().is_some_and(is_alive)
        {
            return Err(lost.clone());
        }
        let former = book.line.replace(Arc::clone(&line));
        let steps = std::mem::take(&mut book.steps);
        drop(book);
        self.end_steps(steps, &other_line());
        drop(former);
        let Some(lost) = line.lost_with() else {
            return Ok(());
        };
        self.worker()?.lose_session(&self.handle, lost);
        Err(lost.clone())
    }

    /// True if that line is the one its master speaks over.
    pub(super) fn hears(&self, line: StepId) -> bool {
        self.book.locked().hears(line)
    }

    /// Prepares a part. Gives the handle it is run by.
    ///
    /// # Errors
    /// What is wrong with the graph, naming the node; `SESSION_LIMIT`.
    pub(crate) fn register(&self, part: GraphDef) -> Result<String, Status> {
        let worker = self.worker()?;
        let graph = Graph::from_def(part, &worker.ops, Import::Part)?;
        let number = self.next_graph.fetch_add(1, Ordering::Relaxed);
        let handle = format!("{number:016x}");
        let name = format!("{}/{handle}", self.handle);
        let part = self.runner.prepare(&graph, &name, &self.kept);
        let mut book = self.book.locked();
        if book.is_over {
            drop(book);
            // What it was prepared with came after all was forgotten.
            self.kept.clear();
            return Err(self.over());
        }
        let part = part?;
        if book.graphs.len() >= SESSION_GRAPHS_MAX {
            let message = format!(
                "session {} has {SESSION_GRAPHS_MAX} graphs here, the limit SESSION_GRAPHS_MAX",
                self.handle
            );
            return Err(Status::of(catalogue::SESSION_LIMIT, message));
        }
        book.graphs.insert(handle.clone(), part);
        Ok(handle)
    }

    /// Forgets a part; steps that run it go on.
    ///
    /// # Errors
    /// `WORKER_GRAPH_UNKNOWN`.
    pub(crate) fn deregister(&self, graph: &str) -> Result<(), Status> {
        let former = self.book.locked().graphs.remove(graph);
        former.map(drop).ok_or_else(|| unknown_graph(graph))
    }

    /// Runs a part in a step. `done` is called once, by any thread, and does not block.
    pub(crate) fn run(
        self: &Arc<Self>,
        graph: &str,
        step: (StepId, Option<Traceparent>),
        args: Vec<Value>,
        done: Done,
    ) {
        self.run_over(None, graph, step, args, done);
    }

    /// The same for a master that asks over a line.
    pub(super) fn run_over(
        self: &Arc<Self>,
        line: Option<StepId>,
        graph: &str,
        (step, trace): (StepId, Option<Traceparent>),
        args: Vec<Value>,
        done: Done,
    ) {
        let (part, worker) = match self.begin(line, graph, step) {
            Ok(begun) => begun,
            Err(status) => return done(Err(status)),
        };
        let span = trace.map_or_else(tracing::Span::none, |trace| {
            worker.engine.trace_step(step, trace);
            tracing::debug_span!("part", %step, graph, traceparent = %trace)
        });
        let in_span = span.clone().entered();
        let session = Arc::clone(self);
        let name = graph.to_owned();
        let running = part.run(
            step,
            args,
            Box::new(move |outcome| {
                if !span.is_none() {
                    let failed = outcome.as_ref().err().map(tracing::field::display);
                    tracing::debug!(parent: &span, failed, "a part of a step that is traced has ended");
                }
                session.ended(&worker, step, &name);
                done(outcome);
            }),
        );
        drop(in_span);
        self.started(step, graph, running);
    }

    fn begin(
        &self,
        line: Option<StepId>,
        graph: &str,
        step: StepId,
    ) -> Result<(Arc<dyn Part>, Arc<Worker>), Status> {
        let worker = self.worker()?;
        let mut book = self.book.locked();
        if book.is_over {
            return Err(self.over());
        }
        if line.is_some_and(|line| !book.hears(line)) {
            return Err(other_line());
        }
        let part = book.graphs.get(graph).cloned();
        let part = part.ok_or_else(|| unknown_graph(graph))?;
        if book.steps.len() >= SESSION_STEPS_MAX && !book.steps.contains_key(&step) {
            let message = format!(
                "session {} has {SESSION_STEPS_MAX} steps under way, the limit SESSION_STEPS_MAX",
                self.handle
            );
            return Err(Status::of(catalogue::SESSION_LIMIT, message));
        }
        let parts = &mut book.steps.entry(step).or_default().parts;
        if parts.contains_key(graph) {
            let message =
                format!("The same RunGraph request was received twice. Step {step}, graph {graph}");
            return Err(Status::of(catalogue::STEP_DUPLICATE, message));
        }
        parts.insert(graph.to_owned(), State::Starting);
        Ok((part, worker))
    }

    /// A part was started, and may have ended.
    fn started(&self, step: StepId, graph: &str, running: Box<dyn Running>) {
        let mut book = self.book.locked();
        let known = book.steps.get_mut(&step);
        let Some(state) = known.and_then(|step| step.parts.get_mut(graph)) else {
            drop(book);
            // Its step ended while it was being started.
            let status = Status::of(catalogue::STEP_FINISHED, format!("Step {step} is over"));
            return running.cancel(status.derived());
        };
        match state {
            State::Starting => *state = State::Runs(running),
            State::Cancelled(status) => {
                let status = status.clone();
                *state = State::Starting;
                drop(book);
                running.cancel(status);
                self.started(step, graph, running);
            }
            State::Runs(_) | State::Done => {}
        }
    }

    /// A part has ended. What will get no clean-up is removed at once.
    fn ended(&self, worker: &Worker, step: StepId, graph: &str) {
        let mut book = self.book.locked();
        if let Some(known) = book.steps.get_mut(&step)
            && let Some(state) = known.parts.get_mut(graph)
        {
            *state = State::Done;
        }
        let is_over = book.is_over || !book.steps.contains_key(&step);
        drop(book);
        if is_over {
            worker.engine.step(step).finish();
        }
    }

    /// Ends what runs here of a step with `status`. Nothing happens if nothing does.
    pub(crate) fn cancel(&self, step: StepId, status: &Status) {
        let mut book = self.book.locked();
        let Some(known) = book.steps.get_mut(&step) else {
            return;
        };
        let cancelled = known.cancel(status);
        drop(book);
        cancelled
            .iter()
            .for_each(|running| running.cancel(status.clone()));
        if let Ok(worker) = self.worker() {
            worker.engine.step(step).abort(status.clone().derived());
        }
    }

    /// A step is over everywhere: what is left of it here goes.
    pub(crate) fn cleanup(&self, step: StepId) {
        let known = self.book.locked().steps.remove(&step);
        let status = faults::step_finished(step);
        if let Some(mut known) = known {
            let cancelled = known.cancel(&status);
            cancelled
                .iter()
                .for_each(|running| running.cancel(status.clone()));
        }
        if let Ok(worker) = self.worker() {
            worker.engine.step(step).finish();
        }
    }

    /// Clears containers of a session that shares none.
    pub(super) fn clear(&self, containers: &[String]) {
        if let Some(home) = &self.own_home {
            home.variables.clear(containers);
        }
    }

    /// How many steps are not cleaned up.
    pub(super) fn steps_alive(&self) -> usize {
        self.book.locked().steps.len()
    }

    /// The session is over: its steps are cancelled, and nothing is kept.
    pub(super) fn end(&self) {
        self.end_with(&self.over().derived());
    }

    /// The same for one whose master is lost. Its line is gone too: what the steps end with is all that the master, if
    /// it lives, hears of it.
    pub(super) fn end_lost(&self, why: &Status) {
        if why.is_derived() {
            return self.end();
        }
        let task = self
            .worker()
            .map_or_else(|_| String::new(), |worker| format!("{}: ", worker.task()));
        let message = format!("{task}{} {}", self.over().message(), why.message());
        self.end_with(&Status::new(why.code(), why.reason(), message));
    }

    fn end_with(&self, status: &Status) {
        let mut book = self.book.locked();
        book.is_over = true;
        let steps = std::mem::take(&mut book.steps);
        let graphs = std::mem::take(&mut book.graphs);
        let line = book.line.take();
        drop(book);
        if let Some(line) = &line
            && !status.is_derived()
        {
            line.fail(status);
        }
        self.end_steps(steps, status);
        self.kept.clear();
        drop((graphs, line));
    }

    fn end_steps(&self, steps: BTreeMap<StepId, Step>, status: &Status) {
        let engine = self.worker().map(|worker| worker.engine.clone());
        for (id, mut step) in steps {
            let cancelled = step.cancel(status);
            cancelled
                .iter()
                .for_each(|running| running.cancel(status.clone()));
            if let Ok(engine) = &engine {
                let step = engine.step(id);
                step.abort(status.clone());
                step.finish();
            }
        }
    }

    fn over(&self) -> Status {
        let message = format!("Session {} is over at this worker.", self.handle);
        Status::of(catalogue::WORKER_SESSION_UNKNOWN, message)
    }
}

impl Book {
    fn hears(&self, line: StepId) -> bool {
        let served = self.line.as_ref();
        served.is_some_and(|served| served.id() == line)
    }
}

impl Step {
    /// Marks all parts; gives those that have to be told.
    fn cancel(&mut self, status: &Status) -> Vec<Box<dyn Running>> {
        let mut told = vec![];
        for state in self.parts.values_mut() {
            match std::mem::replace(state, State::Done) {
                State::Starting => *state = State::Cancelled(status.clone()),
                State::Runs(running) => told.push(running),
                former => *state = former,
            }
        }
        told
    }
}

/// What was asked or ran over a line, after its master has begun to speak over another.
pub(super) fn other_line() -> Status {
    let message = "the master speaks over another line";
    Status::of(catalogue::LINE_CLOSED, message).derived()
}

fn unknown_graph(graph: &str) -> Status {
    let shown: String = graph.chars().take(64).collect();
    let message = format!("Graph handle is not found: {shown}");
    Status::of(catalogue::WORKER_GRAPH_UNKNOWN, message)
}

shown! { WorkerSession { handle } }
