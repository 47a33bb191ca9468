//! Control: the control plane of a simulated world. Who is connected, what it hears, whose memory it maps.
//!
//! It undoes no harm and does none: that is `disturb.rs`.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use crossbeam::queue::SegQueue;
use rendez::channel::Rule;
use rendez::fabric::{DownReason, LoopbackPort};
use rendez::ground::device::TaskName;
use rendez::ground::{Incarnation, Status, StepId};
use rendez::memory::{MappedSegment, Segment};
use rendez::shard::Observer;
use rendez::testing::solo::{End, Greeting};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::model::is_bound;
use crate::world::World;

/// A link between two shards of two tasks.
#[derive(Clone, Debug)]
pub struct Wire {
    pub ends: [(usize, usize); 2],
    pub reconnect_at: Option<u64>,
    /// A side gave the other up, or began anew: until the next connection stands, values may be lost.
    pub is_disturbed: bool,
    /// It was made since that.
    pub is_new: bool,
    /// Nothing passes before.
    pub healed_at: u64,
}

/// What a shard's observer saw.
pub enum Seen {
    Segment {
        node: usize,
        incarnation: Incarnation,
        shard: u16,
        segment: Arc<Segment>,
    },
    Violation(String),
}

pub struct Watch {
    pub node: usize,
    pub incarnation: Incarnation,
    pub shard: u16,
    pub seen: Arc<SegQueue<Seen>>,
    pub failed: Arc<SegQueue<u64>>,
    /// Who stands on the shard, if anybody does.
    pub above: OnceLock<Arc<dyn Observer>>,
}

impl Observer for Watch {
    fn peer_wanted(&self, _: &TaskName) {}
    fn step_ended(&self, step: StepId, status: &Status) {
        if is_bound(status) {
            self.failed.push(step.0);
        }
        if let Some(above) = self.above.get() {
            above.step_ended(step, status);
        }
    }
    fn link_down(&self, task: &TaskName, _: u32, reason: DownReason) {
        if reason == DownReason::Corrupt {
            self.seen
                .push(Seen::Violation(format!("the link to {task} was corrupt")));
        }
    }
    fn violated(&self, task: &TaskName, _: u32, status: &Status) {
        self.seen
            .push(Seen::Violation(format!("{task} is accused: {status}")));
    }
    fn segment_added(&self, segment: Arc<Segment>) {
        let (node, incarnation, shard) = (self.node, self.incarnation, self.shard);
        self.seen.push(Seen::Segment {
            node,
            incarnation,
            shard,
            segment,
        });
    }
}

impl World {
    pub fn control(&mut self, now: u64) -> Result<bool, String> {
        let mut did = false;
        while let Some(seen) = self.seen.pop() {
            match seen {
                Seen::Violation(text) => return Err(text),
                Seen::Segment {
                    node,
                    incarnation,
                    shard,
                    segment,
                } => self.tell_segment(node, incarnation, shard, &segment),
            }
            did = true;
        }
        let (due, later) = self.exits.iter().partition(|exit| exit.0 <= now);
        self.exits = later;
        for (_, gone, incarnation) in due {
            let task = self.nodes[gone].task.clone();
            for at in (0..self.nodes.len()).filter(|&at| at != gone) {
                for solo in &mut self.nodes[at].solos {
                    solo.peer_exited(&task, incarnation);
                }
            }
            did = true;
        }
        for at in 0..self.wires.len() {
            let wire = &self.wires[at];
            let is_up = |from: (usize, usize), to: (usize, usize)| {
                self.nodes[from.0].solos[from.1].is_up(&self.nodes[to.0].task, to.1 as u16)
            };
            let is_linked = |from: (usize, usize), to: (usize, usize)| {
                self.nodes[from.0].solos[from.1].is_linked(&self.nodes[to.0].task, to.1 as u16)
            };
            let [one, other] = wire.ends;
            match wire.reconnect_at {
                Some(when) if when <= now => {
                    self.connect(at);
                    did = true;
                }
                Some(_) => {}
                None if !is_linked(one, other) && !is_linked(other, one) => {
                    let delay = self.rng.below(300_000);
                    let healed_at = self.wires[at].healed_at;
                    self.wires[at].reconnect_at = Some((now + delay).max(healed_at));
                    did = true;
                }
                None if wire.is_new && is_up(one, other) && is_up(other, one) => {
                    self.wires[at].is_disturbed = false
                }
                None => {}
            }
        }
        Ok(did)
    }

    pub fn connect(&mut self, at: usize) {
        let [one, other] = self.wires[at].ends;
        if self.rng.one_in(self.dials.unmapped_one_in) && !self.is_settling {
            // One of them could not map what the other offered: they try again.
            self.wires[at].reconnect_at = Some(self.now() + self.rng.below(300_000));
            return;
        }
        self.wires[at].reconnect_at = None;
        self.wires[at].is_new = true;
        let (is_stream, read_domain) = self.between(one.0, other.0);
        let (maker, opener) = if is_stream {
            // A Unix stream has its bytes at the other end at once: the same seed, the same story.
            let (maker, opener) = UnixStream::pair().unwrap();
            (End::Stream(maker.into()), End::Stream(opener.into()))
        } else {
            let (maker, opener) = LoopbackPort::endpoints(self.dials.geometry).unwrap();
            (End::Loopback(maker), End::Loopback(opener))
        };
        for (here, there, endpoint) in [(one, other, maker), (other, one, opener)] {
            let mut segments = Vec::new();
            let node = &self.nodes[there.0];
            let arenas = node.solos.iter().map(|solo| solo.segments().to_vec());
            let arenas: Vec<_> = arenas.chain([node.beside.clone()]).collect();
            for (arena, lies) in arenas.into_iter().enumerate() {
                for segment in lies {
                    if !read_domain {
                        continue;
                    }
                    let mapped = self.map(&segment);
                    segments.extend(mapped.map(|mapped| (arena as u16, segment.index(), mapped)));
                }
            }
            let peer = &self.nodes[there.0];
            let greeting = Greeting {
                task: peer.task.clone(),
                incarnation: peer.incarnation,
                shards: peer.solos.len() as u16,
                read_domain,
                segments,
                links: vec![(there.1 as u16, endpoint)],
            };
            self.nodes[here.0].solos[here.1].peer_up(greeting);
        }
    }

    /// How two tasks meet: over a stream, and whether they may read each other's memory.
    fn between(&self, one: usize, other: usize) -> (bool, bool) {
        match &self.dials.hosts[..] {
            [] => (self.dials.is_stream, self.dials.read_domain),
            hosts => {
                let is_same = hosts[one] == hosts[other];
                (!is_same, is_same && self.dials.read_domain)
            }
        }
    }

    pub fn tell_segment(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        shard: u16,
        segment: &Segment,
    ) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let Some(mapped) = self.map(segment) else {
            return;
        };
        let task = self.nodes[node].task.clone();
        for at in (0..self.nodes.len()).filter(|&at| at != node) {
            if !self.between(at, node).1 {
                continue;
            }
            if self.rng.one_in(self.dials.unmapped_one_in) && !self.is_settling {
                self.lose(at, node);
                continue;
            }
            for solo in &mut self.nodes[at].solos {
                solo.peer_segment(
                    &task,
                    incarnation,
                    shard,
                    segment.index(),
                    Arc::clone(&mapped),
                );
            }
        }
    }

    /// A task's memory as its peers map it, if they do.
    pub fn map(&mut self, segment: &Segment) -> Option<Arc<MappedSegment>> {
        if !self.dials.read_domain {
            return None;
        }
        if self.dials.is_unsealed {
            return self.cut_short(segment.len());
        }
        let fd = segment.fd().try_clone_to_owned().unwrap();
        Some(Arc::new(
            MappedSegment::open(fd, segment.len() as u64).unwrap(),
        ))
    }

    /// A peer that sends a descriptor without seals, and makes the file shorter as soon as it has been judged.
    pub fn cut_short(&mut self, len: usize) -> Option<Arc<MappedSegment>> {
        let fd = memfd_create("sim-unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, len as u64).unwrap();
        let theirs = fd.try_clone().unwrap();
        let must_be_sealed = self.dials.settings.rules.on(Rule::Sealed);
        let judged = MappedSegment::open_if(fd, len as u64, must_be_sealed);
        self.refused += usize::from(judged.is_err());
        ftruncate(&theirs, 0).unwrap();
        judged.ok().map(Arc::new)
    }
}
