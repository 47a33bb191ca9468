//! The group: who is there, and who is gone.

use rendez::ground::{Nanos, Status, catalogue};

use super::leaving::Leaving;
use super::{Node, Output, Peer, Rule, Timer};
use crate::id::WorkerId;
use crate::message::{Body, Hello};

/// Lives of a worker that are remembered to be over.
const PAST_LIVES: usize = 16;

impl<P, T> Peer<P, T> {
    /// Nothing of that life counts from now on.
    fn end_life(&mut self, life: u32) {
        if self.past.contains(&life) {
            return;
        }
        self.past.push_back(life);
        if self.past.len() > PAST_LIVES {
            self.past.pop_front();
        }
    }

    /// The place of a guest that is gone. What it has called may still run: none of the numbers that its calls have
    /// here is given to those of the next guest that has this place.
    fn vacated(mut self, status: &Status) -> Self {
        if self.latest != 0 {
            self.end_life(self.latest);
        }
        Self {
            past: self.past,
            former: self.former.wrapping_add(1),
            next: self.next,
            is_member: false,
            ..Self::new(PeerState::Lost(status.clone()))
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

/// How a worker goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Its connection is lost: it may live on, and come back in the same life.
    Cut,
    /// It knows that its life is over, or that it is here.
    Known,
    /// Its life is over here alone, and it does not know.
    Alone,
}

#[derive(Debug)]
pub(super) enum Phase {
    Joining,
    Running,
    Leaving(Leaving),
    Left,
}

impl<P, T> Node<P, T> {
    /// Another worker is in the group: it is greeted until it answers.
    pub fn add_peer(&mut self, now: Nanos, peer: WorkerId) {
        self.now = now;
        let entry = self.peers.entry(peer);
        let entry = entry.or_insert_with(|| Peer::new(PeerState::Unmet));
        entry.is_member = true;
        if !self.is_up(peer) {
            self.greet(peer);
        }
    }

    /// A worker is in the dynamic group no more, where that meets: it is neither waited for nor greeted. One that was
    /// heard says itself that it leaves: its answers may still be on their way.
    pub fn remove_peer(&mut self, now: Nanos, peer: WorkerId) {
        self.now = now;
        let Some(entry) = self.peers.get_mut(&peer) else {
            return;
        };
        entry.is_member = false;
        if entry.state == PeerState::Unmet {
            self.never_came(peer, &crate::error::has_left(peer));
        }
        self.look_joined();
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

    /// Whether this worker leaves, or has left: no more guests come.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_) | Phase::Left)
    }

    pub(super) const fn has_left(&self) -> bool {
        matches!(self.phase, Phase::Left)
    }

    /// Workers of the group that have not been heard, or are gone.
    pub fn absent(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let is_absent = |peer: &Peer<P, T>| peer.state.life().is_none() && peer.is_member;
        self.peers
            .iter()
            .filter(move |(id, peer)| is_absent(peer) && !self.guests.contains(id))
            .map(|(&id, _)| id)
    }

    /// Of them, those that must come before this worker has joined: one that has left a dynamic group need not, nor one
    /// that cannot be reached. It may be dead, and none takes it out of the group.
    pub fn awaited(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let is_lost = |id: &WorkerId| {
            let state = self.peers.get(id).map(|peer| &peer.state);
            matches!(state, Some(PeerState::Lost(_)))
        };
        self.absent()
            .filter(move |id| !(self.group.is_dynamic && is_lost(id)))
    }

    /// Other workers of the group that are there.
    pub(super) fn others_up(&self) -> Vec<WorkerId> {
        let is_up = |(&id, peer): (&WorkerId, &Peer<P, T>)| {
            let is_other = id != self.me && !self.guests.contains(&id);
            (is_other && peer.state.life().is_some()).then_some(id)
        };
        self.peers.iter().filter_map(is_up).collect()
    }

    pub(super) fn greet(&mut self, to: WorkerId) {
        let Some(peer) = self.peers.get(&to).filter(|_| !self.has_left()) else {
            return;
        };
        if peer.state.life().is_some() {
            if peer.doubted != 0 {
                self.ask_life(to, peer.doubted);
            }
            return;
        }
        // A guest greets by itself.
        if !peer.is_member || self.guests.contains(&to) {
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
        if peer.past.contains(&life) && self.rules.on(Rule::PastLives) {
            return false;
        }
        match peer.state.life() {
            Some(known) if known == life => true,
            _ => {
                self.rises(from, life);
                true
            }
        }
    }

    /// A message is for another life of this worker: its sender is told of this one, which it may never have heard.
    pub(super) fn correct(&mut self, to: WorkerId, to_life: u32) {
        let peer = self.peers.get(&to);
        if to != self.me && peer.is_some_and(|peer| !peer.past.contains(&to_life)) {
            let hello = self.hello(false);
            self.send_to_life(to, to_life, Body::Hello(hello));
        }
    }

    /// A worker speaks from a life that is over here. If it is still in that life, it ends there too: none of its calls
    /// waits for an answer that does not come. If it is not, it says in which it is.
    pub(super) fn end_there(&mut self, peer: WorkerId, life: u32) {
        let Some(entry) = self.peers.get(&peer) else {
            return;
        };
        let why = match &entry.state {
            PeerState::Lost(status) => status.message().to_owned(),
            _ => "it knows a later life of this one".to_owned(),
        };
        self.send_to_life(peer, life, Body::Over(why));
    }

    pub(super) fn hear_hello(&mut self, from: WorkerId, life: u32, to_life: u32, hello: Hello) {
        let known = self.peers.get(&from);
        let is_past = known.is_some_and(|peer| peer.past.contains(&life));
        if is_past && self.rules.on(Rule::PastLives) {
            return self.end_there(from, life);
        }
        let is_other = known
            .and_then(|peer| peer.state.life())
            .is_some_and(|known| known != life);
        let is_answer_to_me = to_life == self.life;
        if is_other && !is_answer_to_me {
            return self.doubt(from, life);
        }
        // An answer to a former life says nothing of what its sender knows of this one.
        if !hello.wants_answer && !is_answer_to_me {
            return;
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
        let peer = self.peers.entry(from);
        let peer = peer.or_insert_with(|| Peer::new(PeerState::Unmet));
        if is_answer_to_me {
            peer.doubted = 0;
        }
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
        if let Some(peer) = self.peers.get_mut(&from)
            && std::mem::replace(&mut peer.doubted, life) == 0
        {
            self.ask_life(from, life);
        }
    }

    /// Asks a worker which life it is in, and again until it answers.
    fn ask_life(&mut self, peer: WorkerId, life: u32) {
        let hello = self.hello(true);
        self.send_to_life(peer, life, Body::Hello(hello));
        self.timers
            .insert((self.now.after(self.limits.greeting), Timer::Greet(peer)));
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
                self.falls(from, &status, End::Known);
            }
            None => {}
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.state = PeerState::Up { life };
            if peer.latest != 0 && peer.latest != life {
                // Its connection was lost, and it has come back as another.
                peer.end_life(peer.latest);
                peer.former = peer.former.wrapping_add(1);
                if peer.former == 0 {
                    (peer.seen, peer.refused) = Default::default();
                }
            }
            peer.latest = life;
        }
        self.outputs.push_back(Output::Up(from));
        self.look_joined();
        self.tell_early(from);
        self.advance(from);
        self.ask_anew(from);
    }

    fn look_joined(&mut self) {
        let is_complete = self.peers.contains_key(&self.me) && self.awaited().next().is_none();
        if matches!(self.phase, Phase::Joining) && is_complete {
            self.phase = Phase::Running;
            self.outputs.push_back(Output::Joined);
        }
    }

    /// A worker is gone: all that depends on it ends with `status`.
    pub fn handle_lost(&mut self, now: Nanos, peer: WorkerId, status: &Status) {
        self.now = now;
        let end = match status.reason() == catalogue::PEER_LOST {
            true => End::Cut,
            false => End::Alone,
        };
        self.goes(peer, status, end);
    }

    /// A worker is gone that has said that it leaves.
    pub fn handle_left(&mut self, now: Nanos, peer: WorkerId) {
        self.now = now;
        self.goes(peer, &crate::error::has_left(peer), End::Known);
    }

    fn goes(&mut self, peer: WorkerId, status: &Status, end: End) {
        match self.peers.get(&peer).map(|peer| &peer.state) {
            Some(PeerState::Unmet) => self.never_came(peer, status),
            Some(PeerState::Up { .. }) => self.falls(peer, status, end),
            Some(PeerState::Lost(_)) | None => {}
        }
        self.look_joined();
    }

    /// A worker that only others know has not come in time, or has by now.
    pub(super) fn unmet(&mut self, peer: WorkerId) {
        let state = self.peers.get(&peer).map(|peer| &peer.state);
        if matches!(state, Some(PeerState::Unmet)) {
            self.never_came(peer, &crate::error::unmet(peer));
        }
    }

    /// What waits for a worker that was never heard ends, and what is asked of it fails until it comes. One that was
    /// added is greeted on, until it is removed.
    fn never_came(&mut self, peer: WorkerId, status: &Status) {
        if !self.rules.on(Rule::DeathEndsCalls) {
            return;
        }
        self.fail_calls(peer, status);
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.state = PeerState::Lost(status.clone());
            entry.early.clear();
        }
        self.references.peer_lost(peer);
        self.forget_guest(peer, status);
    }

    pub(super) fn hear_leave(&mut self, from: WorkerId) {
        let status = crate::error::has_left(from);
        self.falls(from, &status, End::Known);
    }

    pub(super) fn hear_over(&mut self, from: WorkerId, why: &str) {
        let status = crate::error::is_over(from, why);
        self.falls(from, &status, End::Known);
    }

    fn falls(&mut self, peer: WorkerId, status: &Status, end: End) {
        let Some(entry) = self.peers.get_mut(&peer) else {
            return;
        };
        let Some(life) = entry.state.life() else {
            return self.never_came(peer, status);
        };
        let ended;
        let status = match end {
            End::Alone => {
                ended = crate::error::are_through(self.me, peer, status);
                &ended
            }
            End::Cut | End::Known => status,
        };
        (entry.state, entry.doubted) = (PeerState::Lost(status.clone()), 0);
        if end != End::Cut {
            entry.end_life(life);
        }
        if self.rules.on(Rule::DeathEndsCalls) {
            self.fail_calls(peer, status);
        }
        if self.rules.on(Rule::DeathStopsServing) {
            self.drop_serving(peer);
        }
        if self.rules.on(Rule::DeathEndsShares) {
            self.references.peer_lost(peer);
        }
        if self.guests.contains(&peer) {
            if end == End::Alone {
                self.end_there(peer, life);
            }
            return self.forget_guest(peer, status);
        }
        let down = Output::Down(peer, status.clone(), end != End::Cut);
        self.outputs.push_back(down);
        if end == End::Alone {
            self.end_there(peer, life);
        }
        // One that may live on is found again. One that has left greets when it begins again.
        let timers = &mut self.timers;
        timers.retain(|(_, timer)| *timer != Timer::Greet(peer));
        if end == End::Cut {
            timers.insert((self.now.after(self.limits.greeting), Timer::Greet(peer)));
        }
        self.ask_anew(peer);
    }

    fn forget_guest(&mut self, peer: WorkerId, status: &Status) {
        if self.guests.remove(&peer) {
            if let Some(gone) = self.peers.remove(&peer) {
                self.peers.insert(peer, gone.vacated(status));
            }
            self.outputs
                .push_back(Output::Down(peer, status.clone(), true));
        }
    }

    /// Guests are told that we leave: they keep no group together.
    pub(super) fn dismiss_guests(&mut self) {
        let status = crate::error::shut_down();
        for guest in self.guests().collect::<Vec<_>>() {
            self.send(guest, Body::Leave);
            self.falls(guest, &status, End::Known);
        }
    }
}
