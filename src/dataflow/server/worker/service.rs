//! What a worker is asked by masters: over the control plane, and over the lines of their sessions.
//!
//! Knows messages and methods. What takes long goes to a thread of its own: a line is read by a shard.

use std::sync::{Arc, Weak};

use super::session::other_line;
use super::{MasterLife, Worker, WorkerSession};
use crate::graph::decode;
use crate::server::rpc_stream::{Question, ServerEnd, Service, status_of};
use crate::server::runner::Outcome;
use rendez::control::Services;
use rendez::ground::{Incarnation, Status, StepId, TaskName, catalogue};
use rendez_proto::Method;
use rendez_proto::methods::worker_service::{
    CleanupAll, CreateWorkerSession, DeleteWorkerSession, GetStatus,
};
use rendez_proto::methods::worker_session::{
    CancelStep, CleanupGraph, DeregisterGraph, RegisterGraph, RunGraph,
};
use rendez_proto::services::Nothing;
use rendez_proto::tensorflow::{
    CleanupAllResponse, CreateWorkerSessionRequest, CreateWorkerSessionResponse,
    DeleteWorkerSessionRequest, DeleteWorkerSessionResponse, GetStatusResponse,
    RegisterGraphResponse, RunGraphResponse,
};

/// The services of a worker that is there as soon as `worker` gives one.
pub(crate) fn services<F>(worker: F) -> Services
where
    F: Fn() -> Result<Arc<Worker>, Status> + Clone + Send + Sync + 'static,
{
    let (status, creation, deletion) = (worker.clone(), worker.clone(), worker.clone());
    let cleanup = worker;
    Services::new()
        .serve::<GetStatus>(move |_, _| {
            let device_attributes = status()?.devices();
            Ok(GetStatusResponse { device_attributes })
        })
        .serve::<CreateWorkerSession>(move |call, asked| {
            create_session(&creation()?, (&call.task, call.incarnation), asked)
        })
        .serve::<DeleteWorkerSession>(move |call, asked| {
            delete_session(&*deletion()?, &call.task, &asked);
            Ok(DeleteWorkerSessionResponse {})
        })
        .serve::<CleanupAll>(move |_, asked| {
            cleanup()?.cleanup_all(&asked.container);
            Ok(CleanupAllResponse {})
        })
}

/// Begins a session for the master that is `task`, in that life of it, or opens another line to one of its sessions.
///
/// # Errors
/// `SESSION_HANDLE` where the session is another master's; what the worker refuses.
pub(in crate::server) fn create_session(
    worker: &Arc<Worker>,
    (task, incarnation): (&str, Incarnation),
    asked: CreateWorkerSessionRequest,
) -> Result<CreateWorkerSessionResponse, Status> {
    // The session belongs to the caller: the message can only name the same task.
    if !asked.master_task.is_empty() && asked.master_task != task {
        let message = format!(
            "{task} begins a session in the name of another task, {}",
            asked.master_task.chars().take(64).collect::<String>()
        );
        return Err(Status::of(catalogue::SESSION_HANDLE, message));
    }
    let caller = TaskName::parse(task)?;
    let master = MasterLife {
        task: task.to_owned(),
        incarnation,
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
    let line = StepId(asked.line);
    let served = ServerEnd::open(&worker.engine, line, (&caller, incarnation), service);
    session.hear(served.inspect_err(|_| worker.delete_session(&asked.session_handle))?)?;
    let incarnation = worker.engine.incarnation().0.cast_signed();
    Ok(CreateWorkerSessionResponse { incarnation })
}

/// Ends a session of the master that is `task`. To delete what is not there is no error; what is another's stays.
pub(in crate::server) fn delete_session(
    worker: &Worker,
    task: &str,
    asked: &DeleteWorkerSessionRequest,
) {
    let session = worker.session(&asked.session_handle);
    if session.is_ok_and(|session| session.master().task == task) {
        worker.delete_session(&asked.session_handle);
    }
}

impl Service for WorkerSession {
    fn asked(self: Arc<Self>, question: Question) {
        if !self.hears(question.line()) {
            // It was under way when its master began to speak over another line, and has been forgotten there.
            return question.answer.refuse(other_line());
        }
        match question.method {
            RunGraph::NUMBER => self.run_asked(question),
            RegisterGraph::NUMBER => self.register_asked(question),
            DeregisterGraph::NUMBER => question.serve::<DeregisterGraph>(|asked, _| {
                self.deregister(&asked.graph_handle)?;
                Ok(Nothing {})
            }),
            CleanupGraph::NUMBER => question.serve::<CleanupGraph>(|asked, _| {
                self.cleanup(StepId(asked.step_id.cast_unsigned()));
                Ok(Nothing {})
            }),
            CancelStep::NUMBER => question.serve::<CancelStep>(|asked, _| {
                let why = status_of(&asked.why.unwrap_or_default());
                self.cancel(StepId(asked.step), &why);
                Ok(Nothing {})
            }),
            method => {
                let message = format!("a worker's session has no method {method}");
                question
                    .answer
                    .refuse(Status::of(catalogue::CALL_UNKNOWN, message));
            }
        }
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
        let (asked, line) = (question.read::<RunGraph>(), question.line());
        let answer = question.answer;
        match asked {
            Ok(asked) => {
                let step = StepId(asked.step_id.cast_unsigned());
                let done = move |outcome: Outcome| {
                    answer.give::<RunGraph>(outcome.map(|_| (RunGraphResponse {}, vec![])));
                };
                let trace = self.worker().ok().and_then(|worker| {
                    worker
                        .engine
                        .heard_traceparent(&asked.traceparent, &self.handle())
                });
                let (graph, step) = (&asked.graph_handle, (step, trace));
                self.run_over(Some(line), graph, step, vec![], Box::new(done));
            }
            Err(status) => answer.refuse(status),
        }
    }

    fn register_asked(self: Arc<Self>, question: Question) {
        let worker = match self.worker() {
            Ok(worker) => worker,
            Err(status) => return question.answer.refuse(status),
        };
        worker.registering.go(move |room| {
            if let Err(status) = room {
                return question.answer.refuse(status);
            }
            question.serve::<RegisterGraph>(|_, tensors| {
                let bytes = match tensors.first() {
                    Some(graph) => graph.host()?,
                    None => &[],
                };
                let graph_handle = self.register(decode(bytes)?)?;
                Ok(RegisterGraphResponse { graph_handle })
            });
        });
    }
}
