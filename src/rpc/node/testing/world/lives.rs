//! Lives: workers of a world that die, pause, come again, join and leave, and connections that are cut.

use std::time::Duration;

use rendez::ground::{Nanos, Status, catalogue};

use super::{Arrival, Event, Job, World};
use crate::codec::decode;
use crate::id::WorkerId;
use crate::node::testing::network::Packet;

/// How long it takes at most until a worker is told that another is gone.
pub(crate) const DETECTION: Duration = Duration::from_millis(30);

impl World {
    pub(super) fn arrive(&mut self, packet: Packet) {
        let (from, now) = (packet.from, self.now);
        let at = usize::from(packet.to.0);
        if self.actors[at].is_dead {
            return;
        }
        match packet.arrival {
            Arrival::Message(bytes) => match decode::<Job>(&bytes) {
                Ok(message) => {
                    self.tell(|| format!("{from} => {at} {:?}", message.body));
                    self.actors[at].node.handle_message(now, from, message);
                }
                Err(error) => self.harm.push(error.to_string()),
            },
            // Of a life that is over it is no news.
            Arrival::Lost { life, .. } if self.actors[usize::from(from.0)].life != life => {}
            Arrival::Lost { status, .. } => self.actors[at].node.handle_lost(now, from, &status),
        }
        self.pump(at);
    }

    fn id(&self, at: usize) -> (WorkerId, u32) {
        (WorkerId(at as u16), self.actors[at].life)
    }

    /// Workers that have neither died nor left.
    pub fn living(&self) -> Vec<usize> {
        let is_there =
            |at: &usize| !self.actors[*at].is_dead && self.actors[*at].has_left.is_none();
        (0..self.actors.len()).filter(is_there).collect()
    }

    /// A worker dies, and the others are told at once.
    pub fn kill(&mut self, at: usize) {
        self.die(at);
        let status = Status::of(catalogue::PEER_LOST, "it died");
        let now = self.now;
        for other in 0..self.actors.len() {
            if !self.actors[other].is_dead {
                let node = &mut self.actors[other].node;
                node.handle_lost(now, WorkerId(at as u16), &status);
                self.pump(other);
            }
        }
        self.network.forget(WorkerId(at as u16));
    }

    /// A worker dies; the others are told sooner or later.
    pub fn die(&mut self, at: usize) {
        let dead = self.id(at);
        let others: Vec<WorkerId> = (0..self.actors.len())
            .filter(|&other| other != at && !self.actors[other].is_dead)
            .map(|other| WorkerId(other as u16))
            .collect();
        self.tell(|| format!("{at} dies"));
        self.actors[at].is_dead = true;
        self.note(|| Event::Gone { at });
        self.network.kill(self.now, dead, &others, DETECTION);
    }

    /// A dead worker begins another life.
    pub fn restart(&mut self, at: usize) {
        let (id, life) = self.id(at);
        let actors = &self.actors;
        let knew = |other: WorkerId| actors[usize::from(other.0)].node.life_of(id) == Some(life);
        for packet in self.network.restart(id, knew) {
            self.arrive(packet);
        }
        let actor = self.actor(at as u16);
        self.tell(|| format!("{at} begins its life {}", actor.life));
        self.actors[at] = actor;
        self.note(|| Event::Begun { at });
        self.enter(at);
    }

    /// Another worker joins a group that grows.
    pub fn join(&mut self) {
        let at = self.actors.len();
        let actor = self.actor(at as u16);
        self.actors.push(actor);
        self.note(|| Event::Begun { at });
        self.enter(at);
    }

    /// A worker comes into the group: it knows who is there, and they learn of it by and by.
    fn enter(&mut self, at: usize) {
        let now = self.now;
        for other in 0..self.actors.len() {
            let is_there = !self.is_dynamic || !self.actors[other].is_dead;
            if other != at && is_there {
                self.actors[at].node.add_peer(now, WorkerId(other as u16));
                if self.actors[other].is_dead {
                    let (gone, at) = (self.id(other), WorkerId(at as u16));
                    self.network.tell_of(now, gone, at, DETECTION);
                }
                let when = now.after(self.dice.time(DETECTION));
                self.meetings.insert((when, other, at));
            }
        }
        self.actors[at].node.join(now);
        self.pump(at);
    }

    /// A worker is told of another.
    pub(super) fn meet(&mut self) {
        let Some((_, at, of)) = self.meetings.pop_first() else {
            return;
        };
        if !self.actors[at].is_dead && self.is_dynamic {
            let now = self.now;
            self.actors[at].node.add_peer(now, WorkerId(of as u16));
            self.pump(at);
            if self.actors[of].is_dead {
                let (gone, life) = self.id(of);
                self.network
                    .tell_of(now, (gone, life), WorkerId(at as u16), DETECTION);
            }
        }
    }

    /// A worker does nothing for a while. If that is long, the others give it up, and it them.
    pub fn pause(&mut self, at: usize, time: Duration) {
        let until = self.now.after(time);
        self.tell(|| format!("{at} pauses for {time:?}"));
        self.actors[at].paused_until = until;
        self.network.pause(WorkerId(at as u16), until);
        if time > DETECTION {
            for other in self.living().into_iter().filter(|&other| other != at) {
                self.sever(at, other, time);
            }
        }
    }

    /// Nothing passes between two workers for a while. If that is long, both give the other up.
    pub fn cut(&mut self, one: usize, other: usize, time: Duration) {
        let until = self.now.after(time);
        match time > DETECTION {
            true => self.sever(one, other, time),
            false => {
                self.network
                    .stall(WorkerId(one as u16), WorkerId(other as u16), until);
            }
        }
    }

    fn sever(&mut self, one: usize, other: usize, time: Duration) {
        self.was_severed = true;
        self.tell(|| format!("{one} and {other} are cut for {time:?}"));
        let heals: Nanos = self.now.after(time);
        let ends = [self.id(one), self.id(other)];
        self.network.sever(self.now, ends, DETECTION, heals);
    }
}
