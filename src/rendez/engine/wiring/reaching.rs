//! Reaching a peer: waiting for its connection, or for why there is none.
//!
//! Knows what dials come to, and says which peer came; not what is handed over by a connection.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{Connected, Wiring};
use crate::control::{Address, named_in, until};
use crate::engine::OBSERVER_JOB;
use crate::ground::device::TaskName;
use crate::ground::{Status, Unpoisoned, catalogue, limits};
use crate::shard::Call;

/// How much longer a dial is waited for than it may take: it ends by itself, and knows why.
const GRACE: Duration = Duration::from_secs(1);

/// Counts dials by an address alone, whose task gets a made-up name.
static STRANGERS: AtomicU32 = AtomicU32::new(1);

impl Wiring {
    /// What was wanted before there was a control plane is dialled now, peers that were greeted before are told of
    /// memory that was new since (those that know it are not told again), and those that could not be wired are hung up
    /// on.
    pub(crate) fn control_is_up(&self) {
        self.tell_all_memory();
        let (wanted, useless) = {
            let mut book = self.book();
            let wanted = std::mem::take(&mut book.wanted);
            (wanted, std::mem::take(&mut book.useless))
        };
        if let Some(engine) = self.engine() {
            for (peer, why) in useless {
                self.hang_up_soon(&engine, peer, &why);
            }
        }
        for task in wanted {
            self.dial(&task);
        }
    }

    /// Dials a task before a key names it: it is not missed if it is not there.
    pub(crate) fn connect_early(&self, task: &TaskName) {
        let is_up = |connected: &Connected| connected.task == *task;
        if !self.book().connected.values().any(is_up) {
            self.dial(task);
        }
    }

    pub(super) fn want(&self, task: &TaskName) {
        self.book().await_task(task);
        self.dial(task);
    }

    fn dial(&self, task: &TaskName) {
        let Some(engine) = self.engine() else { return };
        let dialled = {
            let mut book = self.book();
            let address = book.addresses.get(&task.to_string()).cloned();
            let dialled = engine.control.get().zip(address);
            // In the same hold: who brings what is missing looks here afterwards. The peer may dial us, too; if it does
            // not, the shards give up at the connect deadline.
            if dialled.is_none() && book.wanted.len() < limits::PEERS {
                book.wanted.insert(task.clone());
            }
            dialled
        };
        if let Some((control, address)) = dialled
            && let Err(status) = control.dial(&task.to_string(), address, self.dial_timeout)
        {
            engine.call_all(|| Call::PeerLost {
                task: task.clone(),
                status: status.clone(),
            });
        }
    }

    pub(crate) fn add_peer(&self, task: TaskName, address: Address) {
        let is_due = {
            let mut book = self.book();
            let before = book.addresses.insert(task.to_string(), address.clone());
            // A dial that is under way goes on there.
            let has_moved = before.is_some_and(|before| before != address);
            book.wanted.remove(&task) || has_moved && book.awaited.contains_key(&task)
        };
        if is_due {
            self.dial(&task);
        }
    }

    /// Dials `task` unless it is connected, and waits until it is, or until that has failed.
    pub(crate) fn reach(&self, task: &TaskName, patience: Duration) -> Result<Connected, Status> {
        let until = until(patience.saturating_add(GRACE));
        let address = {
            let mut book = self.book();
            if let Some(connected) = book.connected.values().find(|peer| peer.task == *task) {
                return Ok(connected.clone());
            }
            book.unreached.remove(task);
            book.addresses.get(&task.to_string()).cloned()
        };
        let address = address.ok_or_else(|| {
            let message = format!("it is not known where {task} listens");
            Status::of(catalogue::PEER_UNKNOWN, message)
        })?;
        let engine = self.engine().ok_or_else(super::gone)?;
        let control = engine.control.get().ok_or_else(|| {
            let message = "this engine has no control plane";
            Status::of(catalogue::CONTROL_STOPPED, message)
        })?;
        control.dial(&task.to_string(), address, patience)?;
        let mut book = self.book();
        loop {
            if let Some(connected) = book.connected.values().find(|peer| peer.task == *task) {
                return Ok(connected.clone());
            }
            if let Some(status) = book.unreached.get(task) {
                return Err(status.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("{task} could not be reached in time");
                return Err(Status::of(catalogue::CONNECT_DEADLINE, message));
            }
            let waited = self.settled.wait_timeout(book, left);
            (book, _) = waited.unpoisoned();
        }
    }

    /// Which task listens at `address`. A task is dialled by its name; one that is dialled by another name says its
    /// own.
    pub(crate) fn who_listens(
        &self,
        own: &TaskName,
        address: &Address,
        patience: Duration,
    ) -> Result<TaskName, Status> {
        // Not our own number, or we would dial ourselves.
        let number = STRANGERS.fetch_add(1, Ordering::Relaxed);
        let stranger = TaskName::new(OBSERVER_JOB, 0, own.task().wrapping_add(number))?;
        self.add_peer(stranger.clone(), address.clone());
        let reached = self.reach(&stranger, patience);
        let mut book = self.book();
        book.addresses.remove(&stranger.to_string());
        book.unreached.remove(&stranger);
        drop(book);
        let status = match reached {
            Err(status) => status,
            Ok(_) => Status::of(
                catalogue::PEER_PROTOCOL,
                "a task answered to a made-up name",
            ),
        };
        named_in(&status).ok_or_else(|| {
            let message = status.message().replace(&stranger.to_string(), "there");
            Status::new(status.code(), status.reason(), message)
        })
    }

    /// `status` under the reason of what befell the last dial of `task`, if it says no more than that time is over.
    pub(crate) fn with_cause(&self, task: &TaskName, status: Status) -> Status {
        let book = self.book();
        match book.unreached.get(task) {
            Some(last) if status.reason() == catalogue::CONNECT_DEADLINE => {
                status.with_reason(last.reason())
            }
            _ => status,
        }
    }

    /// Why a task is not connected, as far as is known.
    pub(super) fn why_absent(&self, task: &TaskName) -> Option<String> {
        let book = self.book();
        if !book.addresses.contains_key(&task.to_string()) {
            let message = "this task does not know where it listens, and it has not connected by itself: see what it \
                 says of this task";
            return Some(message.into());
        }
        let last = book.tried.get(task).or_else(|| book.unreached.get(task))?;
        Some(format!("{} [{}]", last.message(), last.reason()))
    }

    /// A dial that came to nothing is repeated.
    pub(super) fn tried(&self, task: &str, last: &Status) {
        if let Ok(task) = TaskName::parse(task) {
            self.book().tried.insert(task, last.clone());
        }
    }

    #[cfg(test)]
    pub(in crate::engine) fn held(&self) -> impl Sized + '_ {
        self.book()
    }

    /// Says which peer is connected, and whether it was before.
    pub(super) fn tell_who_came(&self, connected: &Connected) {
        let (task, life, why) = (&connected.task, connected.incarnation, &connected.why);
        if task.job() == OBSERVER_JOB {
            return tracing::debug!(%task, incarnation = %life, path = ?connected.path, %why, "a visitor came");
        }
        let mut book = self.book();
        let is_kept = book.lives.len() < limits::PEERS_MAX || book.lives.contains_key(task);
        let former = is_kept
            .then(|| book.lives.insert(task.clone(), life))
            .flatten();
        if former == Some(life)
            && let Some(connections) = book.counts.of(task)
        {
            connections.remade += 1;
        }
        let what = match former {
            None => "a peer is connected",
            Some(former) if former == life => "a peer is connected again",
            Some(_) => "a peer has returned in another life",
        };
        tracing::info!(%task, incarnation = %life, path = ?connected.path, %why, "{what}");
    }

    /// A dial was given up.
    pub(super) fn given_up(&self, task: &str, status: &Status, last: &Status) {
        let mut book = self.book();
        // Of a greeting that came to nothing.
        book.links.remove(task);
        let task = TaskName::parse(task);
        let mut is_news = false;
        if let Ok(task) = &task {
            book.tried.remove(task);
            let former = book.unreached.get(task).map(Status::reason);
            is_news =
                status.reason() != catalogue::CONNECT_DEADLINE && former != Some(last.reason());
        }
        // Who asks who listens at an address has had the answer by it.
        if !task.as_ref().is_ok_and(|task| task.job() == OBSERVER_JOB) {
            *book.counts.dials_failed.entry(last.reason()).or_default() += 1;
        }
        drop(book);
        if let (Some(engine), Ok(task)) = (self.engine(), task) {
            // Who only sent hears of it in no other way. Observers say it themselves.
            let observes = |task: &TaskName| task.job() == OBSERVER_JOB;
            if is_news && !observes(&task) && !observes(&engine.task) {
                tracing::warn!(own = %engine.task, %task, %status, "a peer cannot be reached: what waits for it ends, \
                    and what was sent to it is dropped");
            }
            self.not_reached(&task, last);
            // Where it was only not there in time, each shard gives it up by its own clock: what began to wait as the
            // dial ended has its whole time.
            if status.reason() != catalogue::CONNECT_DEADLINE {
                engine.call_all(|| Call::PeerLost {
                    task: task.clone(),
                    status: status.clone(),
                });
            }
            self.seek(&engine, &task, status);
        }
    }

    /// A dial came to nothing.
    pub(super) fn not_reached(&self, task: &TaskName, why: &Status) {
        let mut book = self.book();
        // Others named themselves when they dialled us: there may be any number of them.
        let is_kept = book.addresses.contains_key(&task.to_string())
            || book.awaited.contains_key(task)
            || book.unreached.len() < limits::PEERS_MAX;
        // It is the newer one.
        book.tried.remove(task);
        if is_kept {
            book.unreached.insert(task.clone(), why.clone());
        }
        drop(book);
        self.settled.notify_all();
    }
}
