//! The worker of a task: keeps parts of graphs for masters, and runs them in steps.
//!
//! Knows sessions, parts and steps; not how the graph was cut, nor what a part computes. Rules and texts are those of
//! TensorFlow's worker.
//!
//! | file | |
//! |---|---|
//! | `session.rs` | what a master keeps here |
//! | `service.rs` | what masters ask, and over which way |

mod service;
mod session;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

pub(crate) use service::services;
#[cfg(any(test, feature = "testing"))]
pub(in crate::server) use service::{create_session, delete_session};
pub(crate) use session::WorkerSession;

use super::errands::Errands;
use super::runner::Runner;
use crate::graph::Ops;
use crate::kernel::Home;
use rendez::engine::Engine;
use rendez::ground::limits::SESSIONS_MAX;
use rendez::ground::{DeviceName, Incarnation, Locked, Status, TaskName, catalogue};
use rendez_proto::tensorflow::DeviceAttributes;

/// How a worker's sessions get what runs their parts: with the task's own variables, or with their own.
pub(crate) type MakeRunner = dyn Fn(Arc<Home>) -> Result<Arc<dyn Runner>, Status> + Send + Sync;
/// How they get a home of their own.
pub(crate) type MakeHome = dyn Fn() -> Home + Send + Sync;

/// The worker of a task.
pub(crate) struct Worker {
    engine: Engine,
    home: Arc<Home>,
    runner: Arc<dyn Runner>,
    make_runner: Box<MakeRunner>,
    make_home: Box<MakeHome>,
    ops: Arc<Ops>,
    /// Parts that are being prepared.
    registering: Arc<Errands>,
    sessions: Mutex<BTreeMap<String, Arc<WorkerSession>>>,
    /// Sessions whose master was lost, and why, oldest first: a master that comes back is told.
    lost: Mutex<VecDeque<(String, Status)>>,
}

/// Whose session it is: a master's task, and which life of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MasterLife {
    pub(crate) task: String,
    pub(crate) incarnation: Incarnation,
}

impl Worker {
    /// A worker without sessions.
    ///
    /// # Errors
    /// What `make_runner` says.
    pub(crate) fn new(
        engine: &Engine,
        ops: Arc<Ops>,
        make_home: Box<MakeHome>,
        make_runner: Box<MakeRunner>,
    ) -> Result<Arc<Self>, Status> {
        let home = Arc::new(make_home());
        let runner = make_runner(Arc::clone(&home))?;
        Ok(Arc::new(Self {
            engine: engine.clone(),
            home,
            runner,
            make_runner,
            make_home,
            ops,
            registering: Arc::default(),
            sessions: Mutex::default(),
            lost: Mutex::default(),
        }))
    }

    /// This task.
    pub(crate) fn task(&self) -> &TaskName {
        self.engine.task()
    }

    /// The devices of this task.
    pub(crate) fn devices(&self) -> Vec<DeviceAttributes> {
        vec![DeviceAttributes {
            name: DeviceName::cpu(self.task()).to_string(),
            device_type: "CPU".into(),
            memory_limit: 0,
            incarnation: self.engine.incarnation().0,
        }]
    }

    /// Begins a session. Sessions that an earlier life of the same master had here are over.
    ///
    /// # Errors
    /// `SESSION_HANDLE` for an empty handle or one that another master has; `SESSION_LIMIT`; what making a runner says.
    pub(crate) fn create_session(
        self: &Arc<Self>,
        handle: &str,
        master: MasterLife,
        is_isolated: bool,
    ) -> Result<Arc<WorkerSession>, Status> {
        if handle.is_empty() {
            return Err(Status::of(
                catalogue::SESSION_HANDLE,
                "Session must be non-empty.",
            ));
        }
        let (runner, own_home) = if is_isolated {
            let home = Arc::new((self.make_home)());
            ((self.make_runner)(Arc::clone(&home))?, Some(home))
        } else {
            (Arc::clone(&self.runner), None)
        };
        let mut sessions = self.sessions.locked();
        let former = |session: &WorkerSession| {
            session.master().task == master.task
                && session.master().incarnation != master.incarnation
        };
        let over: Vec<_> = sessions
            .extract_if(.., |_, session| former(session))
            .collect();
        let begun = if sessions.contains_key(handle) {
            let message = format!("Session handle {handle} is taken");
            Err(Status::of(catalogue::SESSION_HANDLE, message))
        } else if sessions.len() >= SESSIONS_MAX {
            let message = format!("{SESSIONS_MAX} sessions are alive here, the limit SESSIONS_MAX");
            Err(Status::of(catalogue::SESSION_LIMIT, message))
        } else {
            let session = WorkerSession::new(handle, self, master, runner, own_home);
            sessions.insert(handle.to_owned(), Arc::clone(&session));
            Ok(session)
        };
        drop(sessions);
        for (handle, session) in over {
            tracing::info!(
                handle,
                master = session.master().task,
                "a master has restarted: its session here is over"
            );
            session.end();
        }
        begun
    }

    /// The session of that handle.
    ///
    /// # Errors
    /// `WORKER_SESSION_UNKNOWN`, and why this worker ended the session, if it did because its master was lost.
    pub(crate) fn session(&self, handle: &str) -> Result<Arc<WorkerSession>, Status> {
        let session = self.sessions.locked().get(handle).cloned();
        session.ok_or_else(|| {
            let shown: String = handle.chars().take(64).collect();
            let task = self.task();
            let message = match self.lost.locked().iter().find(|(lost, _)| lost == handle) {
                Some((_, why)) => format!(
                    "Session handle is not found: {shown}. This worker (\"{task}\") had lost its master, and ended \
                     it: {}",
                    why.message()
                ),
                None => format!(
                    "Session handle is not found: {shown}. Possibly this worker (\"{task}\") just restarted."
                ),
            };
            Status::of(catalogue::WORKER_SESSION_UNKNOWN, message)
        })
    }

    /// Ends a session: its steps are cancelled and its graphs forgotten. Nothing happens if there is none.
    pub(crate) fn delete_session(&self, handle: &str) {
        let session = self.sessions.locked().remove(handle);
        if let Some(session) = session {
            session.end();
        }
    }

    /// Ends a session whose master is lost: its steps end with the reason, which no other task may know. It is
    /// remembered too: a master that was only paused has nothing under way that could tell it.
    fn lose_session(&self, handle: &str, why: &Status) {
        let session = self.sessions.locked().remove(handle);
        if let Some(session) = session {
            let mut lost = self.lost.locked();
            if lost.len() >= LOST_MAX {
                lost.pop_front();
            }
            lost.push_back((handle.to_owned(), why.clone()));
            drop(lost);
            session.end_lost(why);
        }
    }

    /// Ends all sessions.
    pub(crate) fn end(&self) {
        let all = std::mem::take(&mut *self.sessions.locked());
        all.into_values().for_each(|session| session.end());
    }

    /// How many sessions there are, and how many of their steps are not cleaned up.
    pub(crate) fn load(&self) -> (usize, usize) {
        let sessions: Vec<_> = self.sessions.locked().values().cloned().collect();
        let steps = sessions.iter().map(|session| session.steps_alive()).sum();
        (sessions.len(), steps)
    }

    /// Clears containers; the default one if none is named.
    pub(crate) fn cleanup_all(&self, containers: &[String]) {
        let default = [String::new()];
        let containers = if containers.is_empty() {
            &default
        } else {
            containers
        };
        self.home.variables.clear(containers);
        let sessions: Vec<_> = self.sessions.locked().values().cloned().collect();
        sessions
            .iter()
            .for_each(|session| session.clear(containers));
    }
}

/// How many sessions that were lost are remembered.
const LOST_MAX: usize = 64;

shown! { Worker { task() } }
