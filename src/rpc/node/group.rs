//! The group: who is there, who is gone, and leaving together.
//!
//! Leaving in good order is detecting termination. The worker with the lowest number that is there asks all others,
//! again and again, whether they want to leave and have nothing outstanding, and how much they have ever done. Two
//! rounds, one after the other, in which all are idle and none has done anything between, prove that there was a moment
//! when no worker was busy and, since every message that asks for work is outstanding at its sender, nothing was on its
//! way (the double counting of F. Mattern, "Algorithms for distributed termination detection", 1987, with one counter).

use std::collections::BTreeMap;
use std::time::Duration;

use rendez::ground::{Nanos, Status};

use super::calling::Out;
use super::{Node, Output, Peer, Timer};
use crate::id::WorkerId;
use crate::message::{Body, Control, Hello, Message, Rest};

/// Lives of a worker that are remembered to be over.
const PAST_LIVES: usize = 16;

impl<P, T> Peer<P, T> {
    /// Nothing of that life counts from now on.
    fn end_life(&mut self, life: u32) {
        self.past.push_back(life);
        if self.past.len() > PAST_LIVES {
            self.past.pop_front();
        }
    }
}

/// The group as one of its workers knows it.
#[derive(Clone, Debug)]
pub struct Group {
    /// What this worker says of itself.
    pub hello: Hello,
    /// Workers join and leave as they like; else all of them are known from the beginning.
    pub is_dynamic: bool,
}

/// Whether a worker is there.
#[derive(Clone, PartialEq, Debug)]
pub enum PeerState {
    /// It has not been heard.
    Unmet,
    /// It is there, in that life.
    Up {
        /// Its life.
        life: u32,
    },
    /// It is gone.
    Lost(Status),
}

impl PeerState {
    pub(super) const fn life(&self) -> Option<u32> {
        match self {
            Self::Up { life } => Some(*life),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum Phase {
    Joining,
    Running,
    Leaving(Leaving),
    Left,
}

#[derive(Debug)]
pub(super) struct Leaving {
    deadline: Nanos,
    /// What each worker said in this round.
    round: BTreeMap<WorkerId, Rest>,
    /// What all of them said in the round before, if all were idle.
    before: Option<BTreeMap<WorkerId, Rest>>,
    /// So many of the others have not acknowledged that all leave.
    proceeding: Option<usize>,
}

impl<P, T> Node<P, T> {
    /// Another worker is in the group: it is greeted until it answers.
    pub fn add_peer(&mut self, now: Nanos, peer: WorkerId) {
        self.now = now;
        self.peers
            .entry(peer)
            .or_insert_with(|| Peer::new(PeerState::Unmet));
        if !self.is_up(peer) {
            self.greet(peer);
        }
    }

    /// A guest may come: it calls, and is no worker of the group, which neither waits for it nor asks it when all
    /// leave. It greets; what is its own ends with it.
    pub fn admit(&mut self, now: Nanos, guest: WorkerId) {
        self.now = now;
        let peer = self.peers.entry(guest);
        let peer = peer.or_insert_with(|| Peer::new(PeerState::Unmet));
        // It has come again, and its word that it had left is still on its way: that must not end the new visit.
        let former = peer.state.life();
        peer.state = PeerState::Unmet;
        former.into_iter().for_each(|life| peer.end_life(life));
        self.guests.insert(guest);
        if former.is_some() {
            let status = crate::error::has_left(guest);
            self.fail_calls(guest, &status);
            self.drop_serving(guest);
            self.references.peer_lost(guest);
        }
    }

    /// Those that may come as guests, or have.
    pub fn guests(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.guests.iter().copied()
    }

    /// All workers of the group have been added.
    pub fn join(&mut self, now: Nanos) {
        self.now = now;
        let me = self.me;
        self.peers
            .insert(me, Peer::new(PeerState::Up { life: self.life }));
        self.look_joined();
    }

    pub(super) fn is_up(&self, peer: WorkerId) -> bool {
        self.peers
            .get(&peer)
            .is_some_and(|peer| peer.state.life().is_some())
    }

    pub(super) const fn has_left(&self) -> bool {
        matches!(self.phase, Phase::Left)
    }

    /// Workers that have not been heard, or are gone.
    pub fn absent(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.peers
            .iter()
            .filter(|(id, peer)| peer.state.life().is_none() && !self.guests.contains(id))
            .map(|(&id, _)| id)
    }

    /// Other workers of the group that are there.
    fn others_up(&self) -> Vec<WorkerId> {
        let is_up = |(&id, peer): (&WorkerId, &Peer<P, T>)| {
            let is_other = id != self.me && !self.guests.contains(&id);
            (is_other && peer.state.life().is_some()).then_some(id)
        };
        self.peers.iter().filter_map(is_up).collect()
    }

    pub(super) fn greet(&mut self, to: WorkerId) {
        if self.is_up(to) || self.has_left() {
            return;
        }
        let hello = self.hello(true);
        self.send(to, Body::Hello(hello));
        self.timers
            .insert((self.now.after(self.limits.greeting), Timer::Greet(to)));
    }

    /// Whether a message is of the life of its sender that we know; one of a life that we do not know yet brings it.
    pub(super) fn is_current(&mut self, from: WorkerId, life: u32) -> bool {
        let Some(peer) = self.peers.get(&from) else {
            return false;
        };
        if peer.past.contains(&life) {
            return false;
        }
        match peer.state.life() {
            Some(known) if known == life => true,
            _ if self.group.is_dynamic => false,
            _ => {
                self.rises(from, life);
                true
            }
        }
    }

    pub(super) fn hear_hello(&mut self, from: WorkerId, life: u32, to_life: u32, hello: Hello) {
        let known = self.peers.get(&from);
        if known.is_some_and(|peer| peer.past.contains(&life)) {
            return;
        }
        let is_other = known
            .and_then(|peer| peer.state.life())
            .is_some_and(|known| known != life);
        if is_other && to_life != self.life {
            return self.doubt(from, life);
        }
        if hello.roster != self.group.hello.roster {
            let why = match (self.group.is_dynamic, hello.roster == 0) {
                (true, false) | (false, true) => {
                    "RPC group mixes statically and dynamically initialized members which is not supported.".into()
                }
                _ => format!("worker {from} ('{}') has another list of workers", hello.name),
            };
            return self.outputs.push_back(Output::Refused(why));
        }
        self.peers
            .entry(from)
            .or_insert_with(|| Peer::new(PeerState::Unmet));
        self.outputs.push_back(Output::Named(from, hello.name));
        self.rises(from, life);
        if hello.wants_answer {
            let answer = self.hello(false);
            self.send(from, Body::Hello(answer));
        }
    }

    /// A worker that is there seems to be in another life. Either it has started again, or this is a late word of a
    /// life before: the one that is there now answers, and its answer names the life that it has heard.
    fn doubt(&mut self, from: WorkerId, life: u32) {
        let body = Body::Hello(self.hello(true));
        self.outputs.push_back(Output::Send {
            to: from,
            message: Message {
                from_life: self.life,
                to_life: life,
                body,
            },
        });
    }

    /// A worker is there, in that life.
    fn rises(&mut self, from: WorkerId, life: u32) {
        let Some(peer) = self.peers.get(&from) else {
            return;
        };
        match peer.state.life() {
            Some(known) if known == life => return,
            Some(_) => {
                let status = crate::error::restarted(from);
                self.falls(from, &status);
            }
            None => {}
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.state = PeerState::Up { life };
            if peer.latest != 0 && peer.latest != life {
                peer.former = peer.former.wrapping_add(1);
                if peer.former == 0 {
                    (peer.seen, peer.refused) = Default::default();
                }
            }
            peer.latest = life;
        }
        self.outputs.push_back(Output::Up(from));
        self.look_joined();
        self.advance(from);
    }

    fn look_joined(&mut self) {
        let is_complete = self.peers.contains_key(&self.me) && self.absent().next().is_none();
        if matches!(self.phase, Phase::Joining) && is_complete {
            self.phase = Phase::Running;
            self.outputs.push_back(Output::Joined);
        }
    }

    /// A worker is gone: all that depends on it ends with `status`.
    pub fn handle_lost(&mut self, now: Nanos, peer: WorkerId, status: &Status) {
        self.now = now;
        if self.is_up(peer) || self.guests.contains(&peer) {
            self.falls(peer, status);
        }
    }

    pub(super) fn hear_leave(&mut self, from: WorkerId) {
        let status = crate::error::has_left(from);
        self.falls(from, &status);
    }

    fn falls(&mut self, peer: WorkerId, status: &Status) {
        let Some(entry) = self.peers.get_mut(&peer) else {
            return;
        };
        let Some(life) = entry.state.life() else {
            // A guest that never came.
            self.forget_guest(peer, status);
            return;
        };
        entry.state = PeerState::Lost(status.clone());
        if !crate::error::is_lost_connection(status) {
            entry.end_life(life);
        }
        self.fail_calls(peer, status);
        self.drop_serving(peer);
        self.references.peer_lost(peer);
        if self.guests.contains(&peer) {
            return self.forget_guest(peer, status);
        }
        self.outputs.push_back(Output::Down(peer, status.clone()));
        if !self.group.is_dynamic {
            self.timers
                .insert((self.now.after(self.limits.greeting), Timer::Greet(peer)));
        }
        // The one who asks may have been it, or have waited for it.
        if let Phase::Leaving(leaving) = &mut self.phase {
            leaving.round.remove(&peer);
            leaving.before = None;
            match leaving.proceeding {
                Some(_) => self.proceeded_all(),
                None => self.arm_probe(Duration::ZERO),
            }
        }
    }

    fn forget_guest(&mut self, peer: WorkerId, status: &Status) {
        if self.guests.remove(&peer) {
            self.peers.remove(&peer);
            self.outputs.push_back(Output::Down(peer, status.clone()));
        }
    }

    /// Guests are told that we leave: they keep no group together.
    fn dismiss_guests(&mut self) {
        let status = crate::error::shut_down();
        for guest in self.guests().collect::<Vec<_>>() {
            self.send(guest, Body::Leave);
            self.falls(guest, &status);
        }
    }

    /// Leaves in good order: when all workers of a static group want to and have come to rest, or this worker of a
    /// dynamic one has; at `deadline` all the same. [`Output::Left`] follows. References that the program still holds
    /// end then, and not before: functions that are carried out meanwhile may use theirs.
    pub fn leave(&mut self, now: Nanos, deadline: Nanos) {
        self.now = now;
        if !matches!(self.phase, Phase::Running | Phase::Joining) {
            return;
        }
        self.dismiss_guests();
        self.phase = Phase::Leaving(Leaving {
            deadline,
            round: BTreeMap::new(),
            before: None,
            proceeding: None,
        });
        if deadline != Nanos::NEVER {
            self.timers.insert((deadline, Timer::Leave));
        }
        self.arm_probe(Duration::ZERO);
    }

    /// References that the program held when this worker left, by name.
    #[must_use]
    pub fn leaks(&self) -> &[String] {
        &self.leaks
    }

    /// Leaves at once.
    pub fn leave_now(&mut self, now: Nanos) {
        self.now = now;
        if !self.has_left() {
            self.go(Ok(()));
        }
    }

    fn arm_probe(&mut self, delay: Duration) {
        self.timers.insert((self.now.after(delay), Timer::Probe));
    }

    /// What this worker says of itself.
    pub(super) fn rest(&mut self) -> Rest {
        self.drain_references();
        let is_control = |out: &Out<P, T>| {
            matches!(
                out,
                Out::Control {
                    control: Control::Probe,
                    ..
                }
            )
        };
        let is_peer_idle = |peer: &Peer<P, T>| {
            peer.out.values().all(is_control) && peer.waiting.is_empty() && peer.serving.is_empty()
        };
        Rest {
            is_idle: matches!(self.phase, Phase::Leaving(_))
                && self.references.is_at_rest()
                && self.peers.values().all(is_peer_idle),
            activity: self.activity,
        }
    }

    /// The first of those that are there asks the others; it begins a round when the one before is over.
    pub(super) fn probe(&mut self) {
        let rest = self.rest();
        let others = self.others_up();
        let Phase::Leaving(leaving) = &mut self.phase else {
            return;
        };
        if leaving.proceeding.is_some() {
            return;
        }
        if self.group.is_dynamic || others.is_empty() {
            if rest.is_idle {
                return self.go(Ok(()));
            }
            return self.arm_probe(self.limits.probing);
        }
        if others.iter().any(|&other| other < self.me) {
            // It asks us.
            return;
        }
        leaving.round = BTreeMap::from([(self.me, rest)]);
        others
            .into_iter()
            .for_each(|other| self.control(other, Control::Probe));
    }

    pub(super) fn hear_rest(&mut self, from: WorkerId, rest: Rest) {
        let others = self.others_up();
        let Phase::Leaving(leaving) = &mut self.phase else {
            return;
        };
        leaving.round.insert(from, rest);
        if !others.iter().all(|other| leaving.round.contains_key(other)) {
            return;
        }
        let round = std::mem::take(&mut leaving.round);
        let is_idle = round.values().all(|rest| rest.is_idle);
        if is_idle && leaving.before.as_ref() == Some(&round) {
            leaving.proceeding = Some(others.len());
            others
                .into_iter()
                .for_each(|other| self.control(other, Control::Proceed));
            return;
        }
        let is_first = leaving.before.is_none();
        leaving.before = is_idle.then_some(round);
        // The second round follows at once.
        let delay = if is_idle && is_first {
            Duration::ZERO
        } else {
            self.limits.probing
        };
        self.arm_probe(delay);
    }

    pub(super) fn proceeded(&mut self) {
        if let Phase::Leaving(Leaving {
            proceeding: Some(left),
            ..
        }) = &mut self.phase
        {
            *left = left.saturating_sub(1);
        }
        self.proceeded_all();
    }

    /// The one who asked leaves when all have heard that they may, or are gone.
    fn proceeded_all(&mut self) {
        let is_open = |out: &Out<P, T>| {
            matches!(
                out,
                Out::Control {
                    control: Control::Proceed,
                    ..
                }
            )
        };
        let is_heard = !self
            .peers
            .values()
            .any(|peer| peer.out.values().any(is_open));
        if is_heard
            && matches!(
                self.phase,
                Phase::Leaving(Leaving {
                    proceeding: Some(_),
                    ..
                })
            )
        {
            self.go(Ok(()));
        }
    }

    pub(super) fn proceed(&mut self) {
        if matches!(self.phase, Phase::Leaving(_)) {
            self.go(Ok(()));
        }
    }

    pub(super) fn leave_late(&mut self) {
        if let Phase::Leaving(leaving) = &self.phase
            && leaving.deadline <= self.now
        {
            let what = self.outstanding();
            self.go(Err(what));
        }
    }

    fn go(&mut self, how: Result<(), Vec<String>>) {
        if matches!(self.phase, Phase::Leaving(_)) {
            self.leaks = self.references.held();
        }
        self.drain_references();
        self.dismiss_guests();
        for other in self.others_up() {
            // Others of a static group leave by themselves, each when it has heard; those that do not are told.
            self.send(other, Body::Leave);
        }
        self.phase = Phase::Left;
        self.timers.clear();
        let status = crate::error::shut_down();
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.fail_calls(peer, &status);
            self.drop_serving(peer);
        }
        self.outputs.push_back(Output::Left(how));
    }

    /// What keeps this worker from leaving, by name.
    #[must_use]
    pub fn outstanding(&self) -> Vec<String> {
        let mut what = Vec::new();
        for (id, peer) in &self.peers {
            let calls = peer.calls + peer.waiting.len();
            if calls > 0 {
                what.push(format!("{calls} calls to worker {id} are not answered"));
            }
            what.extend(super::report::unacknowledged(*id, peer));
            if !peer.serving.is_empty() {
                what.push(format!(
                    "{} calls of worker {id} are not finished here",
                    peer.serving.len()
                ));
            }
        }
        if let Phase::Leaving(leaving) = &self.phase {
            let unready = leaving.round.iter().filter(|(_, rest)| !rest.is_idle);
            let unready: Vec<_> = unready.map(|(id, _)| id.to_string()).collect();
            if !unready.is_empty() {
                what.push(format!(
                    "workers {} do not want to leave yet, or work",
                    unready.join(", ")
                ));
            }
            let silent = self.others_up();
            let silent: Vec<_> = silent
                .iter()
                .filter(|id| !leaving.round.is_empty() && !leaving.round.contains_key(id))
                .map(ToString::to_string)
                .collect();
            if !silent.is_empty() {
                what.push(format!("workers {} have not answered", silent.join(", ")));
            }
            let held = self.references.held().into_iter();
            what.extend(held.map(|name| format!("{name} is still held")));
        }
        what
    }
}
