//! Guests: programs that call a worker and are no workers of its group, as the command `rendez call` is.
//!
//! A guest asks the worker's task over the control plane, by the name of the group, and is given a number that no
//! worker has. From then on it is a worker like any other, except that the group does not know it: none waits for it,
//! and what is its own ends with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rendez::control::Incoming;
use rendez::engine::Engine;
use rendez::ground::{Locked, Status, TaskName, Unpoisoned, catalogue};
use serde::{Deserialize, Serialize};

use super::builtin::FUNCTIONS;
use super::promise::Admission;
use super::seat::Seat;
use super::shared::{Command, Shared};
use super::slot::Slot;
use super::{Agent, Options, Pending, WorkerInfo};
use crate::error::Error;
use crate::functions::HOUSE;
use crate::id::{WorkerId, check_name};
use crate::message::Hello;
use crate::node::Group;
use crate::signature::Signature;

/// More guests than a worker has at once.
const GUESTS_MAX: usize = 64;
/// What the names of agents' offers begin with.
const OFFERS: &str = "rpc/";

/// Who a guest is.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    task: TaskName,
    name: String,
}

/// What a guest says.
#[derive(Serialize, Deserialize)]
struct Visit {
    name: String,
}

/// What it is told.
#[derive(Serialize, Deserialize)]
struct Welcome {
    /// The guest's number.
    guest: u16,
    /// The worker's.
    worker: u16,
    name: String,
    roster: u64,
}

impl Shared {
    /// A number for a guest: the same for one task, until it is gone.
    pub(super) fn seat(&self, task: &TaskName, name: String) -> Result<WorkerId, Error> {
        let mut guests = self.guests.locked();
        if let Some((&id, _)) = guests.iter().find(|(_, guest)| guest.task == *task) {
            return Ok(id);
        }
        let workers = self.workers.read().unpoisoned();
        // Its keys as a guest would be those that it has as a worker.
        if let Some(worker) = workers.values().find(|worker| worker.task == *task) {
            let message = format!(
                "{task} is the worker '{}' of the group: it is no guest",
                worker.name
            );
            return Err(Error::of(catalogue::RPC_GROUP, message));
        }
        let is_free = |id: &WorkerId| !guests.contains_key(id) && !workers.contains_key(id);
        let free = (0..=u16::MAX).rev().map(WorkerId).find(is_free);
        let free = free.filter(|_| guests.len() < GUESTS_MAX).ok_or_else(|| {
            let message = format!("'{}' has {GUESTS_MAX} guests already", self.name);
            Error::of(catalogue::RPC_BUSY, message)
        })?;
        let task = task.clone();
        guests.insert(free, Guest { task, name });
        Ok(free)
    }

    pub(super) fn unseat(&self, guest: WorkerId) -> bool {
        let mut guests = self.guests.locked();
        guests.remove(&guest).is_some()
    }

    pub(super) fn is_guest(&self, worker: WorkerId) -> bool {
        let guests = self.guests.locked();
        guests.contains_key(&worker)
    }

    pub(super) fn guest_name(&self, worker: WorkerId) -> Option<String> {
        let guests = self.guests.locked();
        guests.get(&worker).map(|guest| guest.name.clone())
    }

    /// Has the desk admit a guest.
    pub(super) fn admit(
        &self,
        task: TaskName,
        name: String,
        patience: Duration,
    ) -> Result<WorkerId, Status> {
        let slot = Arc::new(Slot::default());
        self.push(Command::Admit(task, name, Admission(Arc::clone(&slot))));
        if self.is_missed() {
            return Err(crate::error::shut_down());
        }
        self.wait(&slot, Some(patience));
        match slot.take() {
            Some(Ok(guest)) => Ok(guest),
            Some(Err(error)) => Err(error.status().clone()),
            None => Err(crate::error::shut_down()),
        }
    }

    fn welcome(self: &Arc<Self>, call: &Incoming, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let malformed = |error: postcard::Error| {
            Status::of(catalogue::CALL_MALFORMED, format!("not a visit: {error}"))
        };
        let visit: Visit = postcard::from_bytes(payload).map_err(malformed)?;
        check_name(&visit.name)
            .map_err(|error| Status::of(catalogue::RPC_NAME, error.to_string()))?;
        let task = TaskName::parse(&call.task)?;
        let patience = call.deadline.saturating_duration_since(Instant::now());
        let guest = self.admit(task, visit.name, patience)?;
        let workers = self.workers.read().unpoisoned();
        let welcome = Welcome {
            guest: guest.0,
            worker: self.me.0,
            name: self.name.clone(),
            roster: self.options.roster(&workers),
        };
        postcard::to_stdvec(&welcome).map_err(malformed)
    }
}

/// Lets guests come, while the agent is there.
pub(super) fn receive(shared: &Arc<Shared>) {
    let engine = &shared.engine;
    if !engine.can_call() {
        return;
    }
    let weak: Weak<Shared> = Arc::downgrade(shared);
    let name = format!("{OFFERS}{}", shared.options.group);
    let welcome = move |call: &Incoming, payload: &[u8]| match weak.upgrade() {
        Some(shared) => shared.welcome(call, payload),
        None => Err(crate::error::shut_down()),
    };
    match engine.offer(&name, welcome) {
        Ok(offer) => {
            let mut place = shared.offer.locked();
            *place = Some(offer);
        }
        // Of two agents of one group on one engine the first has the guests.
        Err(status) => tracing::debug!(%status, "no guests come"),
    }
}

impl Agent {
    /// Visits the worker that is `task`, of `group` or of the only group that it is in: a guest calls it, and is no
    /// worker of the group. Leave by [`Agent::shutdown_local`], or by dropping it. An engine visits a worker once at a
    /// time.
    ///
    /// # Errors
    /// `RPC_WORKER` if that task has no such worker, or workers of several groups and `group` is `None`; `RPC_GROUP` if
    /// the group's name cannot be part of a key; `WAIT_IN_SHARD` inside a shard; as [`Engine::call`].
    pub fn visit(
        engine: &Engine,
        task: &TaskName,
        group: Option<&str>,
        patience: Duration,
    ) -> Result<Self, Error> {
        super::context::may_wait()?;
        let mut options = Options::of_workers([]);
        options.init_timeout = patience;
        if let Some(group) = group {
            group.clone_into(&mut options.group);
            options.check_group(engine)?;
        }
        engine.reach(task, patience).map_err(Error::local)?;
        if group.is_none() {
            options.group = only_group(engine, task, patience)?;
        }
        // First: the worker would take another visit of this engine for the end of the one before.
        let seat = (
            Seat::take(engine, &options.group, options.step())?,
            super::life()?,
        );
        let name = format!("guest-{}", std::process::id());
        let visit = postcard::to_stdvec(&Visit { name: name.clone() }).unwrap_or_default();
        let answer = engine
            .ask_offer(
                task,
                &format!("{OFFERS}{}", options.group),
                &visit,
                patience,
            )
            .map_err(|status| match status.reason() {
                catalogue::CALL_UNKNOWN => {
                    let message = format!("{task} has no worker of the group '{}'", options.group);
                    Error::of(catalogue::RPC_WORKER, message)
                }
                _ => Error::local(status),
            })?;
        let welcome: Welcome = postcard::from_bytes(&answer).map_err(|error| {
            Error::of(
                catalogue::RPC_MESSAGE,
                format!("{task} gave no welcome: {error}"),
            )
        })?;
        check_name(&welcome.name)
            .map_err(|error| Error::of(catalogue::RPC_NAME, error.to_string()))?;
        let me = WorkerInfo {
            id: WorkerId(welcome.guest),
            name,
            task: engine.task().clone(),
        };
        let worker = WorkerInfo {
            id: WorkerId(welcome.worker),
            name: welcome.name,
            task: task.clone(),
        };
        let hello = Group {
            hello: Hello {
                roster: welcome.roster,
                name: me.name.clone(),
                task: me.task.to_string(),
                address: String::new(),
                wants_answer: false,
            },
            is_dynamic: true,
        };
        let workers = BTreeMap::from([(me.id, me.clone()), (worker.id, worker)]);
        Self::begin((engine, seat), me, workers, hello, options, None)
    }

    /// The signatures of the functions of the worker `to`.
    ///
    /// # Errors
    /// As [`Agent::rpc_sync`].
    pub fn signatures(&self, to: &str) -> Result<Vec<Signature>, Error> {
        let asked = self.signatures_async(to, self.shared().options.timeout)?;
        let texts = asked.wait()?;
        Ok(texts
            .iter()
            .filter(|text| !text.starts_with(HOUSE))
            .filter_map(|text| Signature::parse(text))
            .collect())
    }

    /// Asks the worker `to` for the signatures of its functions, for at most `timeout`, and does not wait. They come as
    /// texts, each for [`Signature::parse`]; names that begin with `rendez.` are not for programs. Zero is no limit.
    ///
    /// # Errors
    /// As [`Agent::rpc_async`].
    pub fn signatures_async(
        &self,
        to: &str,
        timeout: Duration,
    ) -> Result<Pending<Vec<String>>, Error> {
        self.rpc_async_within(to, FUNCTIONS, (), timeout)
    }
}

fn only_group(engine: &Engine, task: &TaskName, patience: Duration) -> Result<String, Error> {
    let offers = engine.offers_of(task, patience).map_err(Error::local)?;
    let mut groups: Vec<&str> = offers
        .iter()
        .filter_map(|name| name.strip_prefix(OFFERS))
        .collect();
    match groups[..] {
        [group] => Ok(group.to_owned()),
        [] => {
            let message = format!("{task} runs, and is no worker of remote calls");
            Err(Error::of(catalogue::RPC_WORKER, message))
        }
        _ => {
            groups.truncate(16);
            let message = format!(
                "{task} is a worker of several groups, name one: {}",
                groups.join(", ")
            );
            Err(Error::of(catalogue::RPC_WORKER, message))
        }
    }
}
