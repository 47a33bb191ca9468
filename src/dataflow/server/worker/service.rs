//! What a worker is asked: by masters over the control plane and over the lines of their sessions, and by people.
//!
//! Knows messages and methods. What takes long goes to a thread of its own: a line is read by a shard.

use std::sync::{Arc, Weak};

use prost::Message;

use super::{Master, Worker, WorkerSession};
use crate::graph::decode;
use crate::server::rpc_stream::{Question, RpcMessage, ServerEnd, Service, status_of};
use rendez::control::{Incoming, Services};
use rendez::ground::{Status, StepId, TaskName, catalogue};
use rendez_proto::services::CancelStepRequest;
use rendez_proto::tensorflow::{
    CleanupAllRequest, CleanupAllResponse, CleanupGraphRequest, CreateWorkerSessionRequest,
    CreateWorkerSessionResponse, DeleteWorkerSessionRequest, DeleteWorkerSessionResponse,
    DeregisterGraphRequest, GetStatusRequest, GetStatusResponse, LoggingRequest, LoggingResponse,
    RegisterGraphResponse, RunGraphRequest, TracingRequest, TracingResponse,
};

/// Takes a `GetStatusRequest`, gives a `GetStatusResponse`.
pub(crate) const GET_STATUS: u32 = 16;
/// Takes a `CreateWorkerSessionRequest`, gives a `CreateWorkerSessionResponse`.
pub(crate) const CREATE_WORKER_SESSION: u32 = 17;
/// Takes a `DeleteWorkerSessionRequest`, gives a `DeleteWorkerSessionResponse`.
pub(crate) const DELETE_WORKER_SESSION: u32 = 18;
/// Takes a `CleanupAllRequest`, gives a `CleanupAllResponse`.
pub(crate) const CLEANUP_ALL: u32 = 19;
/// Takes a `LoggingRequest`, gives a `LoggingResponse`.
pub(crate) const LOGGING: u32 = 20;
/// Takes a `TracingRequest`, gives a `TracingResponse`.
pub(crate) const TRACING: u32 = 21;

/// On a session's line: a graph as a tensor of bytes; gives a `RegisterGraphResponse`.
pub(crate) const REGISTER_GRAPH: u32 = 1;
/// On a session's line: a `DeregisterGraphRequest`, which is only told.
pub(crate) const DEREGISTER_GRAPH: u32 = 2;
/// On a session's line: a `RunGraphRequest`; the answer is empty, and comes when the part has run.
pub(crate) const RUN_GRAPH: u32 = 3;
/// On a session's line: a `CleanupGraphRequest`, which is only told.
pub(crate) const CLEANUP_GRAPH: u32 = 4;
/// On a session's line: a `CancelStepRequest`, which is only told.
pub(crate) const CANCEL_STEP: u32 = 5;

/// The services of a worker that is there as soon as `worker` gives one.
pub(crate) fn services<F>(worker: F) -> Services
where
    F: Fn() -> Result<Arc<Worker>, Status> + Clone + Send + Sync + 'static,
{
    let on = |serve: fn(&Arc<Worker>, &Incoming) -> Result<Vec<u8>, Status>| {
        let worker = worker.clone();
        move |call: &Incoming| serve(&worker()?, call)
    };
    Services::new()
        .on(GET_STATUS, on(tell_status))
        .on(CREATE_WORKER_SESSION, on(create_session))
        .on(DELETE_WORKER_SESSION, on(delete_session))
        .on(CLEANUP_ALL, on(cleanup_all))
        .on(LOGGING, on(logging))
        .on(TRACING, on(tracing))
}

fn tell_status(worker: &Arc<Worker>, call: &Incoming) -> Result<Vec<u8>, Status> {
    let GetStatusRequest {} = read(call)?;
    let device_attributes = worker.devices();
    Ok(GetStatusResponse { device_attributes }.encode_to_vec())
}

pub(in crate::server) fn create_session(
    worker: &Arc<Worker>,
    call: &Incoming,
) -> Result<Vec<u8>, Status> {
    let asked: CreateWorkerSessionRequest = read(call)?;
    // The session belongs to the caller: the message can only name the same task.
    if !asked.master_task.is_empty() && asked.master_task != call.task {
        let message = format!(
            "{} begins a session in the name of another task, {}",
            call.task,
            asked.master_task.chars().take(64).collect::<String>()
        );
        return Err(Status::of(catalogue::SESSION_HANDLE, message));
    }
    let caller = TaskName::parse(&call.task)?;
    let master = Master {
        task: call.task.clone(),
        incarnation: call.incarnation,
    };
    let session = if asked.reopen {
        let session = worker.session(&asked.session_handle)?;
        if *session.master() != master {
            let message = format!("session {} is another master's", asked.session_handle);
            return Err(Status::of(catalogue::SESSION_HANDLE, message));
        }
        session
    } else {
        worker.create_session(&asked.session_handle, master, asked.isolate_session_state)?
    };
    let service: Weak<WorkerSession> = Arc::downgrade(&session);
    match ServerEnd::open(
        &worker.engine,
        StepId(asked.line),
        (&caller, call.incarnation),
        service,
    ) {
        Ok(line) => session.hear(line),
        Err(status) => {
            worker.delete_session(&asked.session_handle);
            return Err(status);
        }
    }
    let incarnation = worker.engine.incarnation().0.cast_signed();
    Ok(CreateWorkerSessionResponse { incarnation }.encode_to_vec())
}

pub(in crate::server) fn delete_session(
    worker: &Arc<Worker>,
    call: &Incoming,
) -> Result<Vec<u8>, Status> {
    let asked: DeleteWorkerSessionRequest = read(call)?;
    let session = worker.session(&asked.session_handle);
    // Deleting what is not there is no error; what is another's stays.
    if session.is_ok_and(|session| session.master().task == call.task) {
        worker.delete_session(&asked.session_handle);
    }
    Ok(DeleteWorkerSessionResponse {}.encode_to_vec())
}

fn cleanup_all(worker: &Arc<Worker>, call: &Incoming) -> Result<Vec<u8>, Status> {
    let asked: CleanupAllRequest = read(call)?;
    worker.cleanup_all(&asked.container);
    Ok(CleanupAllResponse {}.encode_to_vec())
}

fn logging(worker: &Arc<Worker>, call: &Incoming) -> Result<Vec<u8>, Status> {
    let asked: LoggingRequest = read(call)?;
    if asked.enable_rpc_logging {
        worker.log(true);
    }
    if asked.disable_rpc_logging {
        worker.log(false);
    }
    let step = worker.logged(&asked.fetch_step_id);
    if asked.clear {
        worker.clear_logs();
    }
    Ok(LoggingResponse { step }.encode_to_vec())
}

fn tracing(worker: &Arc<Worker>, call: &Incoming) -> Result<Vec<u8>, Status> {
    let asked: TracingRequest = read(call)?;
    let seconds = asked.options.unwrap_or_default().duration;
    let step = worker.trace(seconds, || call.is_given_up())?;
    Ok(TracingResponse { step }.encode_to_vec())
}

fn read<M: Message + Default>(call: &Incoming) -> Result<M, Status> {
    M::decode(&*call.payload).map_err(|error| {
        let message = format!(
            "what service {} was sent is not what it takes: {error}",
            call.method
        );
        Status::of(catalogue::CALL_MALFORMED, message)
    })
}

impl Service for WorkerSession {
    fn asked(self: Arc<Self>, question: Question) {
        if !self.hears(question.line()) {
            // It was under way when its master began to speak over another line, and has been forgotten there.
            let message = "the master speaks over another line";
            let over = Status::of(catalogue::LINE_CLOSED, message).derived();
            return question.answer.give(Err(over));
        }
        let outcome = match question.method {
            RUN_GRAPH => return self.run_asked(question),
            REGISTER_GRAPH => return self.register_asked(question),
            DEREGISTER_GRAPH => question
                .read::<DeregisterGraphRequest>()
                .and_then(|asked| self.deregister(&asked.graph_handle)),
            CLEANUP_GRAPH => question
                .read::<CleanupGraphRequest>()
                .map(|asked| self.cleanup(StepId(asked.step_id.cast_unsigned()))),
            CANCEL_STEP => question.read::<CancelStepRequest>().map(|asked| {
                let why = status_of(&asked.why.unwrap_or_default());
                self.cancel(StepId(asked.step), &why);
            }),
            method => {
                let message = format!("a worker's session has no method {method}");
                Err(Status::of(catalogue::CALL_UNKNOWN, message))
            }
        };
        if let Err(status) = &outcome {
            tracing::debug!(session = self.handle(), %status, "a master asked in vain");
        }
        question
            .answer
            .give(outcome.map(|()| RpcMessage::default()));
    }

    fn lost(self: Arc<Self>, line: StepId, status: Status) {
        if !mutant!("lost_masters_ignored")
            && self.hears(line)
            && let Ok(worker) = self.worker()
        {
            tracing::debug!(session = self.handle(), %status, "the master is gone, and its session here over");
            worker.lose_session(self.handle(), &status);
        }
    }
}

impl WorkerSession {
    fn run_asked(self: Arc<Self>, question: Question) {
        let asked = question.read::<RunGraphRequest>();
        let answer = question.answer;
        match asked {
            Ok(asked) => {
                let step = StepId(asked.step_id.cast_unsigned());
                let done = move |outcome: crate::server::runner::Outcome| {
                    answer.give(outcome.map(|_| RpcMessage::default()));
                };
                let trace = self.worker().ok().and_then(|worker| {
                    worker
                        .engine
                        .heard_traceparent(&asked.traceparent, &self.handle())
                });
                self.run(&asked.graph_handle, (step, trace), vec![], Box::new(done));
            }
            Err(status) => answer.give(Err(status)),
        }
    }

    fn register_asked(self: Arc<Self>, question: Question) {
        let Question {
            rpc_message,
            answer,
            ..
        } = question;
        let place = self.worker().and_then(|worker| worker.errands.place());
        let place = match place {
            Ok(place) => place,
            Err(status) => return answer.give(Err(status)),
        };
        place.go(move || {
            let bytes = rpc_message
                .tensors
                .first()
                .map_or(Ok(&[][..]), |tensor| tensor.host());
            let outcome = bytes
                .map_err(Status::from)
                .and_then(decode)
                .and_then(|def| self.register(def))
                .map(|graph_handle| RpcMessage {
                    body: RegisterGraphResponse { graph_handle }.encode_to_vec(),
                    tensors: vec![],
                });
            answer.give(outcome);
        });
    }
}
