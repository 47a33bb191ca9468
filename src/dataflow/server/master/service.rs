//! Clients in other processes: what they ask over their lines, and what is left when they go.
//!
//! Knows messages and methods. A line is read by a shard: what takes long goes to a thread of its own, and a step whose
//! plan is made is begun at once. The sessions of a client end with its line: no other client has their handles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::plan::{PlanWait, StepPlan};
use super::{Master, MasterSession, RunningStep};
use crate::graph::Counted;
use crate::kernel::Value;
use crate::server::errands::Errands;
use crate::server::rpc_stream::{Question, Responder, ServerEnd, Service, check_count};
use rendez::control::Services;
use rendez::ground::limits::{LINE_QUESTIONS_MAX, SESSIONS_MAX};
use rendez::ground::{Incarnation, Locked, Status, StepId, TaskName, Traceparent, catalogue};
use rendez::memory::Tensor;
use rendez_proto::Method;
use rendez_proto::methods::master_service::OpenLine;
use rendez_proto::methods::master_session::{
    Abandon, CloseSession, CreateSession, ExtendSession, GiveUp, ListDevices, MakeCallable,
    PartialRun, PartialRunSetup, ReleaseCallable, Reset, RunCallable, RunStep,
};
use rendez_proto::services::{GiveUpRequest, Nothing, OpenLineRequest, OpenLineResponse};
use rendez_proto::tensorflow::{
    CloseSessionResponse, CreateSessionRequest, CreateSessionResponse, ExtendSessionResponse,
    ListDevicesResponse, ReleaseCallableResponse, ResetResponse, RunOptions, RunStepRequest,
    RunStepResponse,
};

mod planned;

#[cfg(test)]
mod tests;

/// A client in another process.
pub(super) struct Client {
    master: Weak<Master>,
    task: TaskName,
    line: OnceLock<Arc<ServerEnd>>,
    /// Pieces of partial runs, which wait for what they fetch.
    pieces: Arc<Errands>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: BTreeSet<String>,
    /// Those of them that are being closed.
    closing: BTreeSet<String>,
    /// What it asked that needs a plan, by the number of the question.
    steps: BTreeMap<u64, Asked>,
    is_gone: bool,
}

/// How far a step is that was asked for.
enum Asked {
    /// Its feeds are on their way, or itself is, where it is longer than a frame.
    Announced,
    /// It was given up before they came: then it never begins.
    Vain,
    Planned,
    /// Until its plan is made.
    Waits(PlanWait),
    GivenUp,
    Runs(Arc<RunningStep>),
}

/// The services of a master that is there as soon as `master` gives one.
pub(crate) fn services<F>(master: F) -> Services
where
    F: Fn() -> Result<Arc<Master>, Status> + Send + Sync + 'static,
{
    Services::new().serve::<OpenLine>(move |call, asked| {
        open_line(&master()?, (&call.task, call.incarnation), &asked)
    })
}

fn open_line(
    master: &Arc<Master>,
    (task, life): (&str, Incarnation),
    asked: &OpenLineRequest,
) -> Result<OpenLineResponse, Status> {
    let line = StepId(asked.line);
    let client = Arc::new(Client {
        master: Arc::downgrade(master),
        task: TaskName::parse(task)?,
        line: OnceLock::new(),
        pieces: Arc::default(),
        state: Mutex::default(),
    });
    let mut clients = master.clients.locked();
    if clients.contains_key(&line) {
        let message = format!("line {line} is open already");
        return Err(Status::of(catalogue::SESSION_HANDLE, message));
    }
    if clients.len() >= SESSIONS_MAX {
        let message = format!("{SESSIONS_MAX} clients are here, the limit SESSIONS_MAX");
        return Err(Status::of(catalogue::SESSION_LIMIT, message));
    }
    let service: Weak<Client> = Arc::downgrade(&client);
    let served = ServerEnd::open(&master.engine, line, (&client.task, life), service)?;
    let _ = client.line.set(served);
    clients.insert(line, client);
    let incarnation = master.engine.incarnation().0;
    Ok(OpenLineResponse { incarnation })
}

impl Service for Client {
    fn announced(&self, number: u64, method: u32) {
        let can_be_given_up = matches!(
            method,
            RunStep::NUMBER | RunCallable::NUMBER | MakeCallable::NUMBER | PartialRunSetup::NUMBER
        );
        if !can_be_given_up {
            return;
        }
        let mut state = self.state.locked();
        // Beyond the limit it is refused when it comes.
        if state.steps.len() < LINE_QUESTIONS_MAX {
            state.steps.entry(number).or_insert(Asked::Announced);
        }
    }

    fn asked(self: Arc<Self>, question: Question) {
        let Some(master) = self.master.upgrade() else {
            let gone = Status::of(catalogue::SHUTDOWN, "Shutdown");
            return question.answer.refuse(gone);
        };
        match question.method {
            RunStep::NUMBER => self.run(&master, question),
            RunCallable::NUMBER => self.run_callable(&master, question),
            MakeCallable::NUMBER => self.make_callable(&master, question),
            PartialRunSetup::NUMBER => self.set_up(&master, question),
            GiveUp::NUMBER => self.give_up(&question),
            // What ends others never waits for them, and is never refused because of them.
            Abandon::NUMBER => question.serve::<Abandon>(|asked, _| {
                let session = master.session(&asked.session_handle)?;
                session.partial_runs.abandon(&asked.partial_run_handle);
                Ok(Nothing {})
            }),
            ReleaseCallable::NUMBER => question.serve::<ReleaseCallable>(|asked, _| {
                let session = master.session(&asked.session_handle)?;
                session.release_callable(asked.handle)?;
                Ok(ReleaseCallableResponse {})
            }),
            CloseSession::NUMBER if self.begins_to_close(&question) => {
                let place = master.errands.place_anyway();
                place.go(move || self.serve(&master, question));
            }
            method => {
                let errands = match method {
                    PartialRun::NUMBER => &self.pieces,
                    CreateSession::NUMBER | ListDevices::NUMBER | Reset::NUMBER => {
                        &master.discovering
                    }
                    _ => &master.errands,
                };
                let place = match errands.place() {
                    Ok(place) => place,
                    Err(status) => return question.answer.refuse(status),
                };
                place.go(move || self.serve(&master, question));
            }
        }
    }

    fn withdrawn(&self, number: u64) {
        self.state.locked().steps.remove(&number);
    }

    fn lost(self: Arc<Self>, line: StepId, status: Status) {
        let mut state = self.state.locked();
        state.is_gone = true;
        let sessions = std::mem::take(&mut state.sessions);
        drop(state);
        let Some(master) = self.master.upgrade() else {
            return;
        };
        tracing::debug!(client = %self.task, %status, sessions = sessions.len(), "a client is gone");
        master.clients.locked().remove(&line);
        if sessions.is_empty() {
            return;
        }
        // The end of a session waits for its workers: not here. One thread for each client that is gone.
        let thread = std::thread::Builder::new().name("rendez-client-gone".into());
        let closing = thread.spawn(move || master.lose_client(&sessions));
        if let Err(error) = closing {
            tracing::error!(%error, "cannot start a thread to close the sessions of a client that is gone");
        }
    }
}

impl Client {
    /// What is asked seldom, and may block.
    fn serve(&self, master: &Arc<Master>, question: Question) {
        match question.method {
            CreateSession::NUMBER => question
                .serve::<CreateSession>(|asked, tensors| self.create(master, asked, tensors)),
            ExtendSession::NUMBER => question.serve::<ExtendSession>(|asked, tensors| {
                let more = Counted::decode(graph(tensors)?)?;
                let session = master.session(&asked.session_handle)?;
                let new_graph_version = session.extend(more, asked.current_graph_version)?;
                Ok(ExtendSessionResponse { new_graph_version })
            }),
            PartialRun::NUMBER => {
                let outcome = question
                    .read::<PartialRun>()
                    .and_then(|asked| run_partial(master, &asked, &question.rpc_message.tensors));
                let outcome = outcome.map(|tensors| (RunStepResponse {}, tensors));
                question.answer.give::<PartialRun>(outcome);
            }
            CloseSession::NUMBER => question.serve::<CloseSession>(|asked, _| {
                let closed = master.close_session(&asked.session_handle);
                let mut state = self.state.locked();
                state.sessions.remove(&asked.session_handle);
                state.closing.remove(&asked.session_handle);
                drop(state);
                closed.map(|()| CloseSessionResponse {})
            }),
            ListDevices::NUMBER => question.serve::<ListDevices>(|asked, _| {
                let handle = asked.session_handle.as_str();
                let (local_device, remote_device) =
                    master.list_devices(Some(handle).filter(|handle| !handle.is_empty()))?;
                Ok(ListDevicesResponse {
                    local_device,
                    remote_device,
                })
            }),
            Reset::NUMBER => question.serve::<Reset>(|asked, _| {
                master.reset(&asked.container, &asked.device_filters)?;
                Ok(ResetResponse {})
            }),
            method => {
                let message = format!("a master has no method {method}");
                question
                    .answer
                    .refuse(Status::of(catalogue::CALL_UNKNOWN, message));
            }
        }
    }

    /// True if this is the first that asks for the end of a session of this client.
    fn begins_to_close(&self, question: &Question) -> bool {
        let Ok(asked) = question.read::<CloseSession>() else {
            return false;
        };
        let mut state = self.state.locked();
        let is_own = state.sessions.contains(&asked.session_handle);
        is_own && state.closing.insert(asked.session_handle)
    }

    fn create(
        &self,
        master: &Arc<Master>,
        asked: CreateSessionRequest,
        tensors: &[Tensor],
    ) -> Result<CreateSessionResponse, Status> {
        let graph = Counted::decode(graph(tensors)?)?;
        let config = asked.config.unwrap_or_default();
        // The answer takes time, too.
        let (session, graph_version) = master.create_session(graph, config, [3, 4])?;
        let handle = session.handle().to_owned();
        let mut state = self.state.locked();
        let is_gone = state.is_gone;
        if !is_gone {
            state.sessions.insert(handle.clone());
        }
        drop(state);
        if is_gone {
            // It went while its session was being made.
            master.close_session(&handle)?;
        }
        Ok(CreateSessionResponse {
            session_handle: handle,
            graph_version,
        })
    }

    /// Begins a step whose plan is made, unless it was given up meanwhile.
    fn begin<M: Method>(
        self: Arc<Self>,
        master: &Master,
        (session, trace): (&Arc<MasterSession>, Option<Traceparent>),
        plan: &Arc<StepPlan>,
        question: Question,
    ) {
        let number = question.number;
        if self.is_given_up(number) {
            return self.refuse(question, given_up());
        }
        let (client, feeds, answer) = (
            Arc::clone(&self),
            question.rpc_message.tensors,
            question.answer,
        );
        let done = Box::new(move |outcome: Result<Vec<Value>, Status>| {
            client.state.locked().steps.remove(&number);
            give::<M>(answer, outcome);
        });
        let Some(step) = master.run(session, plan, trace, feeds, done) else {
            return;
        };
        let mut state = self.state.locked();
        let is_given_up = match state.steps.get_mut(&number) {
            None => false,
            Some(Asked::GivenUp) => true,
            Some(asked) => {
                *asked = Asked::Runs(Arc::clone(&step));
                false
            }
        };
        drop(state);
        if is_given_up {
            step.cancel(given_up());
        }
    }

    fn refuse(&self, question: Question, status: Status) {
        self.state.locked().steps.remove(&question.number);
        question.answer.refuse(status);
    }

    fn give_up(&self, question: &Question) {
        let Ok(GiveUpRequest { number }) = question.read::<GiveUp>() else {
            return;
        };
        let mut state = self.state.locked();
        let Some(asked) = state.steps.get_mut(&number) else {
            return;
        };
        let now = match asked {
            Asked::Runs(step) => {
                let step = Arc::clone(step);
                drop(state);
                return step.cancel(given_up());
            }
            Asked::Announced | Asked::Vain => Asked::Vain,
            Asked::Planned | Asked::Waits(_) | Asked::GivenUp => Asked::GivenUp,
        };
        let former = std::mem::replace(asked, now);
        drop(state);
        if let Asked::Waits(waits) = former {
            waits.end(given_up());
        }
    }
}

fn give<M: Method>(answer: Responder, outcome: Result<Vec<Value>, Status>) {
    let tensors = outcome.and_then(|values| values.iter().map(Value::tensor).collect());
    answer.give::<M>(tensors.map(|tensors| (M::Answer::default(), tensors)));
}

fn given_up() -> Status {
    Status::of(
        catalogue::STEP_CANCELLED,
        "Step was cancelled: its client gave it up",
    )
}

/// The graph that came with a question; none is an empty one.
fn graph(tensors: &[Tensor]) -> Result<&[u8], Status> {
    match tensors.first() {
        Some(graph) => Ok(graph.host()?),
        None => Ok(&[]),
    }
}

fn run_partial(
    master: &Master,
    asked: &RunStepRequest,
    tensors: &[Tensor],
) -> Result<Vec<Tensor>, Status> {
    check_count(asked.fetch.len())?;
    let session = master.session(&asked.session_handle)?;
    let feeds = named(&asked.feed, tensors)?;
    let deadline = deadline(asked.options.as_ref());
    master.run_partial(
        &session,
        &asked.partial_run_handle,
        feeds,
        &asked.fetch,
        deadline,
    )
}

/// What is fed, with its names.
fn named(names: &[String], tensors: &[Tensor]) -> Result<Vec<(String, Tensor)>, Status> {
    if names.len() != tensors.len() {
        let message = format!(
            "{} feeds have names, and {} tensors came",
            names.len(),
            tensors.len()
        );
        return Err(Status::of(catalogue::CALL_MALFORMED, message));
    }
    Ok(names.iter().cloned().zip(tensors.iter().cloned()).collect())
}

/// Until when a client waits.
fn deadline(options: Option<&RunOptions>) -> Option<Instant> {
    let timeout = u64::try_from(options?.timeout_in_ms)
        .ok()
        .filter(|timeout| *timeout > 0)?;
    Instant::now().checked_add(Duration::from_millis(timeout))
}

shown! { Client { task } }
