//! Losing a peer: what becomes of it when its connection ends, or when one of its links does.
//!
//! Knows which paths are made again, until when, and how often a peer is looked for after that; not how a connection is
//! made.

use std::time::{Duration, Instant};

use super::{Book, Connected, Wiring};
use crate::control::{Path, PeerGone, PeerId};
use crate::engine::config::nanos;
use crate::engine::{Inner, OBSERVER_JOB};
use crate::fabric::DownReason;
use crate::ground::device::TaskName;
use crate::ground::{Status, catalogue, limits};
use crate::shard::Call;

/// A peer that is away is dialled after as long a time as it has been away, at least this,
const SEEK_PAUSE_MIN: Duration = Duration::from_secs(1);
/// and at most this. Chance takes up to half of it.
const SEEK_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long such a dial goes on.
const SEEK_PATIENCE: Duration = Duration::from_secs(1);

/// A peer whose connection was lost.
#[derive(Debug)]
pub(super) struct Lost {
    since: Instant,
    /// The log says that it is gone.
    is_told: bool,
}

impl Lost {
    fn now() -> Self {
        Self {
            since: Instant::now(),
            is_told: false,
        }
    }
}

impl Wiring {
    /// A connection is over: it is made again, unless the peer's process is known to have ended. Over the network that
    /// was settled by its last proof of life when the peer is given up; nothing that is tried until then moves it. On
    /// this machine its process lives, or its handle would say so, and hung up now: one that had no time to end its
    /// greeting does.
    pub(super) fn connection_gone(
        &self,
        engine: &Inner,
        of: &Connected,
        why: &PeerGone,
        proved: Instant,
    ) {
        let (task, path) = (&of.task, of.path);
        let status = why.status(&task.to_string());
        let left = match path.is_far() {
            true => self.given_up_after.saturating_sub(proved.elapsed()),
            false => self.given_up_after,
        };
        let is_visitor = task.job() == OBSERVER_JOB;
        if !matches!(why, PeerGone::Said { .. }) {
            let mut book = self.book();
            if let Some(connections) = book.counts.of(task) {
                connections.lost += 1;
            }
            // One that is of no list may have drawn its name, and comes under another. Its next life may be connected
            // already.
            let is_it = |name: &String| TaskName::parse(name).is_ok_and(|name| name == *task);
            let is_listed = book.addresses.contains_key(&task.to_string())
                || engine.config.known.iter().any(is_it);
            let is_there = |book: &Book| book.connected.values().any(|now| now.task == *task);
            if is_listed && !is_visitor && !is_there(&book) {
                book.await_task(task);
                book.lost.insert(task.clone(), Lost::now());
            }
        }
        if !path.is_far() && !why.is_proof() && !self.will_be_proved(of) {
            let until = engine.clock.stamp() + nanos(self.given_up_after);
            self.devices.peer_away(task, of.incarnation, until);
        }
        if matches!(why, PeerGone::ConnectionLost(_)) && !left.is_zero() {
            if is_visitor {
                tracing::debug!(%task, %status, "the connection of a visitor is lost");
            } else {
                let is_dialled = self.book().addresses.contains_key(&task.to_string());
                let what = match is_dialled {
                    true => "and is being made again",
                    false => "and this task cannot dial the peer: it waits for the peer to dial",
                };
                tracing::info!(%task, %status, ?left, "a connection is lost, {what}");
            }
            let until = engine.clock.stamp() + nanos(left);
            engine.call_all(|| Call::PeerAway {
                task: task.clone(),
                status: status.clone(),
                until,
            });
            return self.resume(engine, task, left);
        }
        if is_visitor {
            // A visitor has its answer by now: no peer is missed.
            tracing::debug!(%task, "a visitor left");
        } else if !self.seek(engine, task, &status) {
            tracing::info!(%task, %status, "a peer is gone");
        }
        engine.call_all(|| Call::PeerLost {
            task: task.clone(),
            status: status.clone(),
        });
    }

    /// True if the end of the peer's process will be told.
    fn will_be_proved(&self, of: &Connected) -> bool {
        let book = self.book();
        let mut followed = book.followed.values();
        followed.any(|(task, incarnation)| (task, *incarnation) == (&of.task, of.incarnation))
    }

    /// Dials a peer whose connection was lost, if it is known where it listens; a task that cannot dial waits to be
    /// dialled. The shards know by themselves when to give it up.
    fn resume(&self, engine: &Inner, task: &TaskName, left: Duration) {
        let dialled = {
            let mut book = self.book();
            let address = book.addresses.get(&task.to_string()).cloned();
            if address.is_some() {
                book.await_task(task);
            }
            let control = engine.control.get();
            // In the same hold: the control plane's start looks here afterwards.
            if control.is_none() && address.is_some() && book.wanted.len() < limits::PEERS {
                book.wanted.insert(task.clone());
            }
            control.zip(address)
        };
        if let Some((control, address)) = dialled
            && let Err(status) = control.dial(&task.to_string(), address, left)
        {
            tracing::warn!(%task, %status, "a lost peer cannot be dialled");
        }
    }

    /// A lost peer did not come back in time, or cannot: the log says so, once. It is dialled from then on, ever more
    /// rarely, so that a task that hands nothing over meets its next life as well. False if it is of no list, or was
    /// not lost.
    pub(super) fn seek(&self, engine: &Inner, task: &TaskName, status: &Status) -> bool {
        let (is_new, away, address) = {
            let mut book = self.book();
            let address = book.addresses.get(&task.to_string()).cloned();
            let Some(lost) = book.lost.get_mut(task) else {
                return false;
            };
            let is_told = std::mem::replace(&mut lost.is_told, true);
            (!is_told, lost.since.elapsed(), address)
        };
        if is_new {
            tracing::info!(%task, %status, "a peer is gone");
        }
        // An observer asks, and leaves.
        if engine.task.job() != OBSERVER_JOB
            && let Some((control, address)) = engine.control.get().zip(address)
        {
            let pause = away.clamp(SEEK_PAUSE_MIN, SEEK_PAUSE_MAX);
            let patience = SEEK_PATIENCE.min(self.dial_timeout);
            let sought = control.dial_later(&task.to_string(), address, pause, patience);
            // A control plane that ends looks for no peer.
            if let Err(status) = sought
                && status.reason() != catalogue::CONTROL_STOPPED
            {
                tracing::warn!(%task, %status, "cannot look for a lost peer: it is dialled when a key names it");
            }
        }
        true
    }

    /// Hangs up on all peers, as a broken network would.
    #[cfg(test)]
    pub(crate) fn break_connections(&self) {
        let peers: Vec<_> = self.book().connected.keys().copied().collect();
        if let Some(engine) = self.engine()
            && let Some(control) = engine.control.get()
        {
            for peer in peers {
                control.hang_up(peer, "a test breaks it").unwrap();
            }
        }
    }

    /// A peer was greeted and cannot be wired: it must not take the connection for a good one, and is dialled again.
    pub(super) fn start_over(&self, engine: &Inner, peer: PeerId, task: &TaskName, why: &Status) {
        self.hang_up_soon(engine, peer, &why.to_string());
        self.resume(engine, task, self.dial_timeout);
    }

    /// Ends a connection that is of no use, once there is a control plane: it greets peers before it is at hand.
    pub(in crate::engine) fn hang_up_soon(&self, engine: &Inner, peer: PeerId, why: &str) {
        let control = {
            let mut book = self.book();
            let control = engine.control.get();
            if control.is_none() {
                book.useless.push((peer, why.to_owned()));
            }
            control
        };
        if let Some(control) = control {
            // Refused only by a control plane that ends.
            let _ = control.hang_up(peer, why);
        }
    }

    /// A link went down and nothing took its place, while the connection stands: the whole is made again.
    pub(super) fn renew(&self, task: &TaskName, connection: u32, reason: DownReason) {
        let peer = PeerId(connection);
        let is_current = self
            .book()
            .connected
            .get(&peer)
            .is_some_and(|now| now.task == *task);
        if let Some(engine) = self.engine().filter(|_| is_current) {
            let why = format!("a data connection went down: {reason:?}");
            self.hang_up_soon(&engine, peer, &why);
        }
    }

    /// A path is no longer available: peers connected by it reconnect by another.
    pub(crate) fn leave_path(&self, path: Path, why: &str) {
        let book = self.book();
        let by_it = |(_, now): &(&PeerId, &Connected)| now.path == path;
        let peers: Vec<PeerId> = book
            .connected
            .iter()
            .filter(by_it)
            .map(|(peer, _)| *peer)
            .collect();
        drop(book);
        if let Some(engine) = self.engine() {
            for peer in peers {
                self.hang_up_soon(&engine, peer, why);
            }
        }
    }
}
