//! Clients in other processes: what they ask over their lines, and what is left when they go.
//!
//! Knows messages and methods. A line is read by a shard: what takes long goes to a thread of its own, and a step whose
//! plan is made is begun at once. The sessions of a client end with its line: no other client has their handles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use prost::Message;

use super::plan::Plan;
use super::{Master, MasterSession, RunningStep, Signature};
use crate::graph::decode;
use crate::server::rpc_stream::{Question, Responder, RpcMessage, ServerEnd, Service};
use crate::server::value::Value;
use rendez::control::{Incoming, Services};
use rendez::ground::limits::{LINE_QUESTIONS_MAX, SESSIONS_MAX};
use rendez::ground::{Status, StepId, TaskName, Traceparent, catalogue};
use rendez::memory::Tensor;
use rendez_proto::services::{GiveUpRequest, OpenLineRequest, OpenLineResponse};
use rendez_proto::tensorflow::{
    CloseSessionRequest, CreateSessionRequest, CreateSessionResponse, ExtendSessionRequest,
    ExtendSessionResponse, ListDevicesRequest, ListDevicesResponse, MakeCallableRequest,
    MakeCallableResponse, PartialRunSetupRequest, PartialRunSetupResponse, ReleaseCallableRequest,
    ResetRequest, RunCallableRequest, RunOptions, RunStepRequest,
};

/// Takes an `OpenLineRequest`, gives nothing: the client is heard on its line from then on.
pub(crate) const OPEN_LINE: u32 = 22;

/// On a client's line: a `CreateSessionRequest` with a graph beside it; gives a `CreateSessionResponse`.
pub(crate) const CREATE: u32 = 1;
/// An `ExtendSessionRequest` with nodes beside it; gives an `ExtendSessionResponse`.
pub(crate) const EXTEND: u32 = 2;
/// A `RunStepRequest` with feeds beside it; gives what is fetched.
pub(crate) const RUN: u32 = 3;
/// A `PartialRunSetupRequest`; gives a `PartialRunSetupResponse`.
pub(crate) const PARTIAL_RUN_SETUP: u32 = 4;
/// A `RunStepRequest` with a partial run's handle; gives what is fetched.
pub(crate) const PARTIAL_RUN: u32 = 5;
/// A `RunStepRequest` of which only the handles count: that partial run will not be continued. It has no answer.
pub(crate) const ABANDON: u32 = 6;
/// A `MakeCallableRequest`; gives a `MakeCallableResponse`.
pub(crate) const MAKE_CALLABLE: u32 = 7;
/// A `RunCallableRequest` with feeds beside it; gives what is fetched.
pub(crate) const RUN_CALLABLE: u32 = 8;
/// A `ReleaseCallableRequest`; gives nothing.
pub(crate) const RELEASE_CALLABLE: u32 = 9;
/// A `CloseSessionRequest`; gives nothing.
pub(crate) const CLOSE: u32 = 10;
/// A `ListDevicesRequest`; gives a `ListDevicesResponse`.
pub(crate) const LIST_DEVICES: u32 = 11;
/// A `ResetRequest`; gives nothing.
pub(crate) const RESET: u32 = 12;
/// A `GiveUpRequest`: the client no longer waits for that step. It has no answer.
pub(crate) const GIVE_UP: u32 = 13;

/// A client in another process.
pub(super) struct Client {
    master: Weak<Master>,
    task: TaskName,
    line: OnceLock<Arc<ServerEnd>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: BTreeSet<String>,
    /// Its steps, by the number of the question.
    steps: BTreeMap<u64, Asked>,
    is_gone: bool,
}

/// How far a step is that was asked for.
enum Asked {
    Planned,
    GivenUp,
    Runs(Arc<RunningStep>),
}

/// The services of a master that is there as soon as `master` gives one.
pub(crate) fn services<F>(master: F) -> Services
where
    F: Fn() -> Result<Arc<Master>, Status> + Send + Sync + 'static,
{
    Services::new().on(OPEN_LINE, move |call| open_line(&master()?, call))
}

fn open_line(master: &Arc<Master>, call: &Incoming) -> Result<Vec<u8>, Status> {
    let asked = OpenLineRequest::decode(&*call.payload).map_err(|error| {
        let message = format!("not an OpenLineRequest: {error}");
        Status::of(catalogue::CALL_MALFORMED, message)
    })?;
    let line = StepId(asked.line);
    let client = Arc::new(Client {
        master: Arc::downgrade(master),
        task: TaskName::parse(&call.task)?,
        line: OnceLock::new(),
        state: Mutex::default(),
    });
    let mut clients = master.clients();
    if clients.contains_key(&line) {
        let message = format!("line {line} is open already");
        return Err(Status::of(catalogue::SESSION_HANDLE, message));
    }
    if clients.len() >= SESSIONS_MAX {
        let message = format!("{SESSIONS_MAX} clients are here, the limit SESSIONS_MAX");
        return Err(Status::of(catalogue::SESSION_LIMIT, message));
    }
    let service: Weak<Client> = Arc::downgrade(&client);
    let served = ServerEnd::open(
        &master.engine,
        line,
        (&client.task, call.incarnation),
        service,
    )?;
    let _ = client.line.set(served);
    clients.insert(line, client);
    let incarnation = master.engine.incarnation().0;
    Ok(OpenLineResponse { incarnation }.encode_to_vec())
}

impl Service for Client {
    fn asked(self: Arc<Self>, question: Question) {
        let Ok(master) = self.master() else {
            return question
                .answer
                .give(Err(Status::of(catalogue::SHUTDOWN, "Shutdown")));
        };
        match question.method {
            RUN => self.run(&master, question),
            RUN_CALLABLE => self.run_callable(&master, question),
            GIVE_UP => self.give_up(&question),
            _ => {
                let place = match master.errands.place() {
                    Ok(place) => place,
                    Err(status) => return question.answer.give(Err(status)),
                };
                place.go(move || {
                    let outcome = self.serve(&master, &question);
                    question.answer.give(outcome);
                });
            }
        }
    }

    fn lost(self: Arc<Self>, line: StepId, status: Status) {
        let mut state = self.state();
        state.is_gone = true;
        let sessions = std::mem::take(&mut state.sessions);
        drop(state);
        let Ok(master) = self.master() else {
            return;
        };
        tracing::debug!(client = %self.task, %status, sessions = sessions.len(), "a client is gone");
        master.clients().remove(&line);
        if sessions.is_empty() {
            return;
        }
        // The end of a session waits for its workers: not here. One thread for each client that is gone.
        let thread = std::thread::Builder::new().name("rendez-client-gone".into());
        let closing = thread.spawn(move || close_all(&master, &sessions));
        if let Err(error) = closing {
            tracing::error!(%error, "the system gives no thread to close the sessions of a client that is gone");
        }
    }
}

impl Client {
    /// What is asked seldom, and may block.
    fn serve(&self, master: &Arc<Master>, question: &Question) -> Result<RpcMessage, Status> {
        let message = |message: Vec<u8>| RpcMessage {
            body: message,
            tensors: vec![],
        };
        match question.method {
            CREATE => self.create(master, question).map(message),
            EXTEND => {
                let asked: ExtendSessionRequest = question.read()?;
                let more = decode(graph(question)?)?;
                let version = asked.current_graph_version;
                let new_graph_version =
                    master.extend_session(&asked.session_handle, more, version)?;
                Ok(message(
                    ExtendSessionResponse { new_graph_version }.encode_to_vec(),
                ))
            }
            PARTIAL_RUN_SETUP => {
                let asked: PartialRunSetupRequest = question.read()?;
                let session = master.session(&asked.session_handle)?;
                let signature = Signature {
                    feeds: asked.feed,
                    fetches: asked.fetch,
                    targets: asked.target,
                    is_partial: true,
                };
                let partial_run_handle = master.set_up(&session, signature)?;
                Ok(message(
                    PartialRunSetupResponse { partial_run_handle }.encode_to_vec(),
                ))
            }
            PARTIAL_RUN => {
                let asked: RunStepRequest = question.read()?;
                let session = master.session(&asked.session_handle)?;
                let feeds = named(&asked.feed, &question.rpc_message.tensors)?;
                let (handle, deadline) =
                    (&asked.partial_run_handle, deadline(asked.options.as_ref()));
                let tensors =
                    master.run_partial(&session, handle, feeds, &asked.fetch, deadline)?;
                Ok(RpcMessage {
                    body: vec![],
                    tensors,
                })
            }
            ABANDON => {
                let asked: RunStepRequest = question.read()?;
                let session = master.session(&asked.session_handle)?;
                master.abandon(&session, &asked.partial_run_handle);
                Ok(RpcMessage::default())
            }
            MAKE_CALLABLE => {
                let asked: MakeCallableRequest = question.read()?;
                let session = master.session(&asked.session_handle)?;
                let options = asked.options.unwrap_or_default();
                let signature = Signature {
                    feeds: options.feed,
                    fetches: options.fetch,
                    targets: options.target,
                    is_partial: false,
                };
                let handle = master.make_callable(&session, &signature)?;
                Ok(message(MakeCallableResponse { handle }.encode_to_vec()))
            }
            RELEASE_CALLABLE => {
                let asked: ReleaseCallableRequest = question.read()?;
                let session = master.session(&asked.session_handle)?;
                master.release_callable(&session, asked.handle)?;
                Ok(RpcMessage::default())
            }
            CLOSE => {
                let asked: CloseSessionRequest = question.read()?;
                master.close_session(&asked.session_handle)?;
                self.state().sessions.remove(&asked.session_handle);
                Ok(RpcMessage::default())
            }
            LIST_DEVICES => {
                let asked: ListDevicesRequest = question.read()?;
                let handle =
                    Some(asked.session_handle.as_str()).filter(|handle| !handle.is_empty());
                let (local_device, remote_device) = master.list_devices(handle)?;
                let devices = ListDevicesResponse {
                    local_device,
                    remote_device,
                };
                Ok(message(devices.encode_to_vec()))
            }
            RESET => {
                let asked: ResetRequest = question.read()?;
                master.reset(&asked.container, &asked.device_filters)?;
                Ok(RpcMessage::default())
            }
            method => {
                let message = format!("a master has no method {method}");
                Err(Status::of(catalogue::CALL_UNKNOWN, message))
            }
        }
    }

    fn create(&self, master: &Arc<Master>, question: &Question) -> Result<Vec<u8>, Status> {
        let asked: CreateSessionRequest = question.read()?;
        let def = decode(graph(question)?)?;
        let (session, graph_version) =
            master.create_session(def, asked.config.unwrap_or_default())?;
        let handle = session.handle().to_owned();
        let mut state = self.state();
        let is_gone = state.is_gone;
        if !is_gone {
            state.sessions.insert(handle.clone());
        }
        drop(state);
        if is_gone {
            // It went while its session was being made.
            master.close_session(&handle)?;
        }
        let answer = CreateSessionResponse {
            session_handle: handle,
            graph_version,
        };
        Ok(answer.encode_to_vec())
    }

    fn run(self: Arc<Self>, master: &Arc<Master>, question: Question) {
        let read = question.read::<RunStepRequest>().and_then(|asked| {
            let session = master.session(&asked.session_handle)?;
            Ok((session, asked))
        });
        let (session, asked) = match read {
            Ok(read) => read,
            Err(status) => return question.answer.give(Err(status)),
        };
        let trace = master.heard_traceparent(asked.options.as_ref(), &self.task);
        let signature = Signature {
            feeds: asked.feed,
            fetches: asked.fetch,
            targets: asked.target,
            is_partial: false,
        };
        if let Err(status) = self.plan_begins(question.number) {
            return question.answer.give(Err(status));
        }
        if let Some(plan) = master.ready_plan(&session, &signature) {
            return self.begin(master, (&session, trace), &plan, question);
        }
        let place = match master.errands.place() {
            Ok(place) => place,
            Err(status) => return self.refuse(question, status),
        };
        let master = Arc::clone(master);
        place.go(move || match master.plan(&session, &signature) {
            Ok(plan) => self.begin(&master, (&session, trace), &plan, question),
            Err(status) => self.refuse(question, status),
        });
    }

    fn run_callable(self: Arc<Self>, master: &Arc<Master>, question: Question) {
        let read = question.read::<RunCallableRequest>().and_then(|asked| {
            let session = master.session(&asked.session_handle)?;
            let plan = master.callable(&session, asked.handle)?;
            self.plan_begins(question.number)?;
            let trace = master.heard_traceparent(asked.options.as_ref(), &self.task);
            Ok((session, trace, plan))
        });
        match read {
            Ok((session, trace, plan)) => self.begin(master, (&session, trace), &plan, question),
            Err(status) => question.answer.give(Err(status)),
        }
    }

    /// Begins a step whose plan is made, unless it was given up meanwhile.
    fn begin(
        self: Arc<Self>,
        master: &Master,
        (session, trace): (&Arc<MasterSession>, Option<Traceparent>),
        plan: &Arc<Plan>,
        question: Question,
    ) {
        let number = question.number;
        if matches!(self.state().steps.get(&number), Some(Asked::GivenUp)) {
            return self.refuse(question, given_up());
        }
        let (
            client,
            Question {
                rpc_message,
                answer,
                ..
            },
        ) = (Arc::clone(&self), question);
        let done = Box::new(move |outcome: Result<Vec<Value>, Status>| {
            client.state().steps.remove(&number);
            give(answer, outcome);
        });
        let Some(step) = master.run(session, plan, trace, rpc_message.tensors, done) else {
            return;
        };
        let mut state = self.state();
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

    fn plan_begins(&self, number: u64) -> Result<(), Status> {
        let mut state = self.state();
        if state.steps.len() >= LINE_QUESTIONS_MAX {
            let message = format!(
                "{LINE_QUESTIONS_MAX} steps wait on one line, the limit LINE_QUESTIONS_MAX"
            );
            return Err(Status::of(catalogue::LINE_BUSY, message));
        }
        if state.steps.contains_key(&number) {
            let message = format!("The same RunStep request was received twice: number {number}");
            return Err(Status::of(catalogue::STEP_DUPLICATE, message));
        }
        state.steps.insert(number, Asked::Planned);
        Ok(())
    }

    fn refuse(&self, question: Question, status: Status) {
        self.state().steps.remove(&question.number);
        question.answer.give(Err(status));
    }

    fn give_up(&self, question: &Question) {
        let Ok(GiveUpRequest { number }) = question.read() else {
            return;
        };
        let mut state = self.state();
        let running = match state.steps.get_mut(&number) {
            Some(Asked::Runs(step)) => Some(Arc::clone(step)),
            Some(asked) => {
                *asked = Asked::GivenUp;
                None
            }
            None => None,
        };
        drop(state);
        if let Some(step) = running {
            step.cancel(given_up());
        }
    }

    fn master(&self) -> Result<Arc<Master>, Status> {
        let gone = || Status::of(catalogue::SHUTDOWN, "Shutdown");
        self.master.upgrade().ok_or_else(gone)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close_all(master: &Master, sessions: &BTreeSet<String>) {
    for handle in sessions {
        if let Err(status) = master.close_session(handle) {
            tracing::debug!(handle, %status, "a session of a client that is gone was closed already");
        }
    }
}

fn give(answer: Responder, outcome: Result<Vec<Value>, Status>) {
    let tensors = outcome.and_then(|values| values.iter().map(Value::tensor).collect());
    answer.give(tensors.map(|tensors| RpcMessage {
        body: vec![],
        tensors,
    }));
}

fn given_up() -> Status {
    Status::of(
        catalogue::STEP_CANCELLED,
        "Step was cancelled: its client gave it up",
    )
}

/// The graph that came with a question; none is an empty one.
fn graph(question: &Question) -> Result<&[u8], Status> {
    match question.rpc_message.tensors.first() {
        Some(graph) => Ok(graph.host()?),
        None => Ok(&[]),
    }
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

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}
