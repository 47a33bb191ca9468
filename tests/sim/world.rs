//! World: tasks with their shards, the links between them, and the hand that moves both through virtual time.
//!
//! It plays what is above and below the shards: the control plane (who is connected, lost, back again), the
//! application (sends, receives, aborts), the clock. Everything follows from the seed.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::SegQueue;
use rendez::channel::Rule;
use rendez::fabric::faulty::Faults;
use rendez::fabric::{AnyPort, DownReason, FaultyPort, LoopbackPort, TcpConfig, TcpPort};
use rendez::ground::device::TaskName;
use rendez::ground::rng::Rng;
use rendez::ground::{Code, DType, Incarnation, Key, Nanos, Shape, Status, StepId, TensorMeta};
use rendez::memory::{ArenaConfig, HugePages, MappedSegment, Segment};
use rendez::shard::solo::{End, Greeting, Holdings, Solo, Team};
use rendez::shard::{Clock, Observer, Path, Progress, Received};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::dials::{Dials, TICK_NS_MAX};
use crate::held::Held;
use crate::model::{Fate, Flow, Receive, Step};

/// Ticks after which a world that does not come to rest is stuck in a loop.
const TICKS_MAX: u64 = 100_000;

/// Leased tensors held at once.
const HELD_MAX: usize = 16;

/// Receives of a flow that may be given up; those after wait for as long as it takes.
const GIVEN_UP_MAX: usize = 30;

/// A task.
pub struct Node {
    pub task: TaskName,
    pub incarnation: Incarnation,
    pub solos: Vec<Solo>,
}

/// A link between two shards of two tasks.
#[derive(Clone, Debug)]
struct Wire {
    ends: [(usize, usize); 2],
    reconnect_at: Option<u64>,
    /// A side gave the other up, or began anew: until the next connection stands, values may be lost.
    is_disturbed: bool,
    /// It was made since that.
    is_new: bool,
}

/// What a shard's observer saw.
enum Seen {
    Segment {
        node: usize,
        incarnation: Incarnation,
        shard: u16,
        segment: Arc<Segment>,
    },
    Violation(String),
}

struct Watch {
    node: usize,
    incarnation: Incarnation,
    shard: u16,
    seen: Arc<SegQueue<Seen>>,
}

impl Observer for Watch {
    fn peer_wanted(&self, _: &TaskName) {}
    fn step_ended(&self, _: StepId, _: &Status) {}
    fn link_down(&self, task: &TaskName, _: u32, reason: DownReason) {
        if reason == DownReason::Corrupt {
            self.seen
                .push(Seen::Violation(format!("the link to {task} was corrupt")));
        }
    }
    fn violated(&self, task: &TaskName, status: &Status) {
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

pub struct World {
    pub dials: Dials,
    pub rng: Rng,
    clock: Arc<AtomicU64>,
    pub nodes: Vec<Node>,
    wires: Vec<Wire>,
    seen: Arc<SegQueue<Seen>>,
    pub steps: Vec<Step>,
    /// Receives of in-shard tasks by token: step, flow, receive.
    tokens: Vec<(usize, usize, usize)>,
    incarnations: u64,
    begun: u64,
    is_settling: bool,
    held: Held,
    /// When which life of which task is proved over.
    exits: Vec<(u64, usize, Incarnation)>,
    /// Descriptors that were not mapped.
    pub refused: usize,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl World {
    pub fn new(dials: Dials) -> Self {
        let mut world = Self {
            rng: Rng::new(dials.seed),
            clock: Arc::new(AtomicU64::new(1)),
            nodes: Vec::new(),
            wires: Vec::new(),
            seen: Arc::default(),
            steps: Vec::new(),
            tokens: Vec::new(),
            incarnations: 0,
            begun: 0,
            is_settling: false,
            held: Held::default(),
            exits: Vec::new(),
            refused: 0,
            dials,
        };
        if world.dials.is_unsealed && world.cut_short(1 << 20).is_none() {
            // Tasks that do not trust each other's memory are no read domain.
            world.dials.read_domain = false;
        }
        for at in 0..world.dials.shards.len() {
            let node = world.muster(at);
            world.nodes.push(node);
        }
        for a in 0..world.nodes.len() {
            for b in a + 1..world.nodes.len() {
                let (ours, theirs) = (world.nodes[a].solos.len(), world.nodes[b].solos.len());
                let common = gcd(ours, theirs);
                for i in 0..ours {
                    for j in (0..theirs).filter(|j| i % common == j % common) {
                        let ends = [(a, i), (b, j)];
                        let apart_ns = world.dials.apart_ns + world.rng.below(100_000);
                        let reconnect_at = Some(1 + apart_ns);
                        world.wires.push(Wire {
                            ends,
                            reconnect_at,
                            is_disturbed: true,
                            is_new: false,
                        });
                    }
                }
            }
        }
        world
    }

    fn muster(&mut self, at: usize) -> Node {
        self.incarnations += 1;
        let incarnation = Incarnation(self.incarnations * 1000 + at as u64);
        let mut settings = self.dials.settings;
        settings.shards = self.dials.shards[at];
        let team = Team {
            task: TaskName::parse(&format!("/job:t{at}/task:0")).unwrap(),
            incarnation,
            settings,
            clock: Clock::simulated(Arc::clone(&self.clock)),
            arena: ArenaConfig {
                segment_bytes: 1 << 20,
                bytes_max: 64 << 20,
                huge_pages: HugePages::Off,
            },
        };
        let (rng, faults, seen) = (&mut self.rng, self.dials.faults, &self.seen);
        let is_stream = self.dials.is_stream;
        let port = |_| {
            let seed = rng.next_u64();
            let inner = if is_stream {
                AnyPort::Tcp(TcpPort::cutting(TcpConfig::default(), seed).unwrap())
            } else {
                AnyPort::Loopback(LoopbackPort::new())
            };
            AnyPort::Faulty(Box::new(FaultyPort::new(inner, faults, seed)))
        };
        let watch = |shard| {
            Arc::new(Watch {
                node: at,
                incarnation,
                shard,
                seen: Arc::clone(seen),
            }) as Arc<dyn Observer>
        };
        let solos = team.muster(port, watch).unwrap();
        Node {
            task: team.task,
            incarnation,
            solos,
        }
    }

    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Lives through the whole world: work, then rest.
    pub fn run(&mut self) -> Result<(), String> {
        self.live()?;
        self.settle()
    }

    /// Work: steps begin, go on, and end, until all are closed.
    fn live(&mut self) -> Result<(), String> {
        let mut idle = 0;
        for _ in 0..TICKS_MAX {
            while self.begun < self.dials.steps
                && self.steps.iter().filter(|step| !step.is_closed).count()
                    < self.dials.steps_at_once
            {
                self.begin_step();
            }
            let mut did = 0;
            for _ in 0..1 + self.rng.below(self.dials.hurry) {
                did += usize::from(self.operate()?);
            }
            did += usize::from(self.tick()?);
            did += self.close_steps();
            if self.steps.iter().all(|step| step.is_closed) && self.begun == self.dials.steps {
                return Ok(());
            }
            idle = if did > 0 { 0 } else { idle + 1 };
            if idle > 3 && self.held.drop_one(&mut self.rng)? {
                // Others may wait for what a lease holds.
                idle = 0;
            } else if idle > 3 && self.leap() {
                idle = 0;
            } else if idle > 2_000 {
                return Err(self.stuck());
            }
        }
        Err(format!("{TICKS_MAX} ticks, and no end: {}", self.stuck()))
    }

    /// Rest: nothing goes wrong any more, nothing is asked; what was owed is paid, and nothing is left.
    pub fn settle(&mut self) -> Result<(), String> {
        self.is_settling = true;
        while self.held.drop_one(&mut self.rng)? {}
        for node in &mut self.nodes {
            for solo in &mut node.solos {
                if let AnyPort::Faulty(port) = solo.port_mut() {
                    let faults = self.dials.faults;
                    let (latency_min_ns, latency_max_ns) =
                        (faults.latency_min_ns, faults.latency_max_ns);
                    port.set_faults(Faults {
                        latency_min_ns,
                        latency_max_ns,
                        ..Faults::default()
                    });
                }
            }
        }
        let mut idle = 0;
        for _ in 0..TICKS_MAX {
            idle = if self.tick()? { 0 } else { idle + 1 };
            if idle > 3 && self.leap() {
                idle = 0;
            } else if idle > 100 {
                return self.check_rest();
            }
        }
        Err(format!("{TICKS_MAX} ticks, and no rest: {}", self.stuck()))
    }

    fn check_rest(&self) -> Result<(), String> {
        for (at, node) in self.nodes.iter().enumerate() {
            for (index, solo) in node.solos.iter().enumerate() {
                let holdings = solo.holdings();
                if holdings != Holdings::default() {
                    return Err(format!(
                        "at rest t{at}/{index} holds {holdings:?}; {:?}",
                        solo.pending()
                    ));
                }
                if solo.stats().violations > 0 {
                    return Err(format!(
                        "t{at}/{index} counts {} violations",
                        solo.stats().violations
                    ));
                }
            }
        }
        Ok(())
    }

    fn stuck(&self) -> String {
        let mut text = String::from("stuck:");
        for step in self.steps.iter().filter(|step| !step.is_closed) {
            for (at, flow) in step
                .flows
                .iter()
                .enumerate()
                .filter(|(_, flow)| !flow.is_whole())
            {
                text += &format!(
                    "\n  step {} {:?} flow {at}: t{}/{} -> t{}/{}, {} sent, {} received of {}, {} wait",
                    step.id,
                    step.fate,
                    flow.from,
                    flow.from_shard,
                    flow.to,
                    flow.to_shard,
                    flow.sent.len(),
                    flow.count,
                    flow.wanted,
                    flow.open()
                );
            }
        }
        for wire in &self.wires {
            let [one, other] = wire.ends;
            let state = |from: (usize, usize), to: (usize, usize)| {
                let (solo, task) = (&self.nodes[from.0].solos[from.1], &self.nodes[to.0].task);
                (
                    solo.is_linked(task, to.1 as u16),
                    solo.is_up(task, to.1 as u16),
                )
            };
            text += &format!(
                "\n  {wire:?} {:?} {:?}",
                state(one, other),
                state(other, one)
            );
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for (index, solo) in node.solos.iter().enumerate() {
                text += &format!("\n  t{at}/{index}: {:?}", solo.holdings());
            }
        }
        text
    }

    // ───────────────────────────────────────────────── time ─────────────────────────────────────────────────

    /// One tick: every shard turns once, in a random order; the control plane does what is due. True if anything
    /// happened.
    pub fn tick(&mut self) -> Result<bool, String> {
        let step = 1 + self.rng.below(self.dials.tick_ns);
        let now = self.clock.fetch_add(step, Ordering::Relaxed) + step;
        let mut did = self.control(now)?;
        if std::env::var("TRACE").is_ok() {
            for (at, node) in self.nodes.iter().enumerate() {
                for (index, solo) in node.solos.iter().enumerate() {
                    eprintln!(
                        "{now} t{at}/{index} timer {} {:?} {:?}",
                        solo.next_timer().0,
                        solo.holdings(),
                        solo.pending()
                    );
                }
            }
        }
        let first = self.rng.below(self.nodes.len() as u64) as usize;
        for offset in 0..self.nodes.len() {
            let node = (first + offset) % self.nodes.len();
            for solo in 0..self.nodes[node].solos.len() {
                did |= self.nodes[node].solos[solo].turn() == Progress::Busy;
                while let Some((token, outcome)) = self.nodes[node].solos[solo].heard() {
                    let (step, flow, receive) = self.tokens[token as usize];
                    self.steps[step].ended(flow, receive, now, &outcome)?;
                    self.hold(step, flow, &outcome);
                    did = true;
                }
            }
        }
        did |= self.poll_cells(now)?;
        self.check_ports()?;
        if self.held.len() > HELD_MAX || self.rng.one_in(self.dials.hold_one_in * 8) {
            did |= self.held.drop_one(&mut self.rng)?;
        }
        Ok(did)
    }

    /// What the fabric saw of both ends: bytes lent for landings, and writes to what was never lent.
    fn check_ports(&mut self) -> Result<(), String> {
        let budget = self.dials.settings.landing_bytes;
        // Half for values that were offered, or one that is larger than that; half for landings ahead of their values.
        let lent_max = (budget / 2).max(4 + self.dials.bytes_max) + budget / 2;
        for (at, node) in self.nodes.iter_mut().enumerate() {
            for (index, solo) in node.solos.iter_mut().enumerate() {
                let AnyPort::Faulty(port) = solo.port_mut() else {
                    continue;
                };
                let lent = port.lent_bytes();
                if lent > lent_max {
                    return Err(format!(
                        "t{at}/{index} has landings of {lent} bytes, and a budget of {budget}"
                    ));
                }
                if let AnyPort::Loopback(inner) = port.inner_mut()
                    && inner.stats().ungranted_writes > 0
                {
                    return Err(format!(
                        "t{at}/{index} was written to where it granted nothing"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Some of what is read in place is read for long.
    fn hold(&mut self, step: usize, flow: usize, outcome: &Result<Received, Status>) {
        if let Ok(received) = outcome
            && received.path == Path::Lease
            && !self.is_settling
            && self.rng.one_in(self.dials.hold_one_in)
        {
            let place = format!("step {} flow {flow}", self.steps[step].id);
            let node = self.steps[step].flows[flow].to;
            self.held.keep(node, place, &received.tensor);
        }
    }

    fn poll_cells(&mut self, now: u64) -> Result<bool, String> {
        let mut did = false;
        for at_step in 0..self.steps.len() {
            let step = &mut self.steps[at_step];
            if step.is_closed {
                continue;
            }
            let mut came = Vec::new();
            for flow in 0..step.flows.len() {
                for at in 0..step.flows[flow].receives.len() {
                    let receive = &mut step.flows[flow].receives[at];
                    if receive.is_over {
                        continue;
                    }
                    let Some(waiting) = &receive.waiting else {
                        continue;
                    };
                    if let Some(outcome) = waiting.take() {
                        step.ended(flow, at, now, &outcome)?;
                        came.push((flow, outcome));
                        did = true;
                    } else if receive.is_cancelled {
                        // The owner has turned since: nothing comes any more.
                        receive.is_over = true;
                        did = true;
                    }
                }
            }
            for (flow, outcome) in came {
                self.hold(at_step, flow, &outcome);
            }
        }
        Ok(did)
    }

    /// Nothing happens now: to the next moment at which something will. False if there is none.
    fn leap(&mut self) -> bool {
        let mut next = u64::MAX;
        for node in &mut self.nodes {
            for solo in &mut node.solos {
                next = next.min(solo.next_timer().0);
                if let AnyPort::Faulty(port) = solo.port_mut() {
                    next = next.min(port.next_due().map_or(u64::MAX, |due| due.0));
                }
            }
        }
        for wire in &self.wires {
            next = next.min(wire.reconnect_at.unwrap_or(u64::MAX));
        }
        next = self.exits.iter().fold(next, |next, exit| next.min(exit.0));
        if next == u64::MAX {
            // A port that stands still says nothing: time goes on all the same.
            self.clock.fetch_add(TICK_NS_MAX, Ordering::Relaxed);
            return false;
        }
        let now = self.now();
        // While there is work it goes in small steps: a user who is slow by a minute is another test.
        let next = if self.is_settling {
            next
        } else {
            next.min(now + 2_000_000)
        };
        if next > now {
            // The tick that follows adds at least one.
            self.clock.store(next - 1, Ordering::Relaxed);
        }
        true
    }

    // ──────────────────────────────────────────── the control plane ────────────────────────────────────────────

    fn control(&mut self, now: u64) -> Result<bool, String> {
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
                    self.wires[at].reconnect_at = Some(now + delay);
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

    fn connect(&mut self, at: usize) {
        self.wires[at].reconnect_at = None;
        self.wires[at].is_new = true;
        let [one, other] = self.wires[at].ends;
        let (maker, opener) = if self.dials.is_stream {
            // A Unix stream has its bytes at the other end at once: the same seed, the same story.
            let (maker, opener) = UnixStream::pair().unwrap();
            (End::Stream(maker.into()), End::Stream(opener.into()))
        } else {
            let (maker, opener) = LoopbackPort::endpoints(self.dials.geometry).unwrap();
            (End::Loopback(maker), End::Loopback(opener))
        };
        for (here, there, endpoint) in [(one, other, maker), (other, one, opener)] {
            let mut segments = Vec::new();
            for arena in 0..self.nodes[there.0].solos.len() {
                for segment in self.nodes[there.0].solos[arena].segments().to_vec() {
                    let mapped = self.map(&segment);
                    segments.extend(mapped.map(|mapped| (arena as u16, segment.index(), mapped)));
                }
            }
            let peer = &self.nodes[there.0];
            let greeting = Greeting {
                task: peer.task.clone(),
                incarnation: peer.incarnation,
                shards: peer.solos.len() as u16,
                read_domain: self.dials.read_domain,
                segments,
                links: vec![(there.1 as u16, endpoint)],
            };
            self.nodes[here.0].solos[here.1].peer_up(greeting);
        }
    }

    fn tell_segment(
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
            for solo in &mut self.nodes[at].solos {
                solo.peer_segment(&task, shard, segment.index(), Arc::clone(&mapped));
            }
        }
    }

    /// A task's memory as its peers map it, if they do.
    fn map(&mut self, segment: &Segment) -> Option<Arc<MappedSegment>> {
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
    fn cut_short(&mut self, len: usize) -> Option<Arc<MappedSegment>> {
        let fd = memfd_create("sim-unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, len as u64).unwrap();
        let theirs = fd.try_clone().unwrap();
        let must_be_sealed = self.dials.settings.rules.on(Rule::Sealed);
        let judged = MappedSegment::open_if(fd, len as u64, must_be_sealed);
        self.refused += usize::from(judged.is_err());
        ftruncate(&theirs, 0).unwrap();
        judged.ok().map(Arc::new)
    }

    /// One task gives another up; perhaps the other does the same.
    pub fn lose(&mut self, one: usize, other: usize) {
        self.disturb(one, other);
        let task = self.nodes[other].task.clone();
        for solo in &mut self.nodes[one].solos {
            solo.peer_lost(&task, Status::new(Code::Unavailable, "SIM", "given up"));
        }
    }

    /// A task dies and begins anew.
    pub fn restart(&mut self, at: usize) -> Result<(), String> {
        self.held.drop_of(at)?;
        let proved_at = self.now() + self.rng.below(300_000);
        self.exits.push((proved_at, at, self.nodes[at].incarnation));
        for other in (0..self.nodes.len()).filter(|&other| other != at) {
            self.disturb(at, other);
        }
        // Receives of the dead are over.
        for step in &mut self.steps {
            for flow in step.flows.iter_mut().filter(|flow| flow.to == at) {
                for receive in &mut flow.receives {
                    receive.is_over = true;
                    receive.waiting = None;
                }
            }
        }
        let node = self.muster(at);
        self.nodes[at] = node;
        let now = self.now();
        for wire in self
            .wires
            .iter_mut()
            .filter(|wire| wire.ends.iter().any(|end| end.0 == at))
        {
            wire.reconnect_at = Some(now + self.rng.below(300_000));
        }
        if self.rng.one_in(2) {
            let task = self.nodes[at].task.clone();
            for other in (0..self.nodes.len()).filter(|&other| other != at) {
                for solo in &mut self.nodes[other].solos {
                    solo.peer_lost(&task, Status::new(Code::Unavailable, "SIM", "died"));
                }
            }
        }
        Ok(())
    }

    fn disturb(&mut self, one: usize, other: usize) {
        for wire in &mut self.wires {
            if wire.ends.iter().all(|end| end.0 == one || end.0 == other) {
                wire.is_disturbed = true;
                wire.is_new = false;
            }
        }
        for step in self.steps.iter_mut().filter(|step| !step.is_closed) {
            step.is_dirty = true;
        }
    }

    // ───────────────────────────────────────────── the application ─────────────────────────────────────────────

    fn begin_step(&mut self) {
        self.begun += 1;
        let fate = match () {
            () if self.rng.one_in(self.dials.abort_one_in) => Fate::Abort,
            () if self.rng.one_in(self.dials.finish_one_in) => Fate::Finish,
            () if self.rng.one_in(self.dials.one_sided_one_in) => Fate::OneSided,
            () => Fate::Whole,
        };
        let mut step = Step {
            id: self.begun,
            fate,
            flows: Vec::new(),
            is_dirty: self.begun > 1 && self.wires.iter().any(|wire| wire.is_disturbed),
            has_ended: false,
            is_told: false,
            is_closed: false,
        };
        for flow in 0..1 + self.rng.below(self.dials.flows_per_step) {
            let from = self.rng.below(self.nodes.len() as u64) as usize;
            let to = self.rng.below(self.nodes.len() as u64) as usize;
            let key =
                Key::between(&format!("t{from}"), &format!("t{to}"), &format!("e{flow}")).unwrap();
            let by_cell = self.rng.one_in(2);
            let from_shard = self.rng.below(self.nodes[from].solos.len() as u64) as usize;
            let to_shard = if by_cell {
                key.shard_of(self.nodes[to].solos.len() as u32) as usize
            } else {
                self.rng.below(self.nodes[to].solos.len() as u64) as usize
            };
            let wanted = 1 + self.rng.below(self.dials.values_per_flow);
            step.flows.push(Flow::new(
                key,
                [from, to],
                [from_shard, to_shard],
                by_cell,
                wanted,
            ));
        }
        self.steps.push(step);
    }

    /// One operation of a random flow. False if there was nothing to do.
    fn operate(&mut self) -> Result<bool, String> {
        if self.nodes.len() > 1 && self.rng.one_in(self.dials.loss_one_in) {
            let one = self.rng.below(self.nodes.len() as u64) as usize;
            let other = (one + 1) % self.nodes.len();
            self.lose(one, other);
            if self.rng.one_in(2) {
                self.lose(other, one);
            }
        }
        if self.rng.one_in(self.dials.restart_one_in) {
            let at = self.rng.below(self.nodes.len() as u64) as usize;
            self.restart(at)?;
        }
        let open: Vec<_> = (0..self.steps.len())
            .filter(|&at| !self.steps[at].is_closed)
            .collect();
        if open.is_empty() {
            return Ok(false);
        }
        let at = open[self.rng.below(open.len() as u64) as usize];
        if self.steps[at].is_dirty && !self.steps[at].is_told && self.rng.one_in(20) {
            self.abort_everywhere(at);
            return Ok(true);
        }
        if self.steps[at].has_ended {
            return Ok(false);
        }
        let flow = self.rng.below(self.steps[at].flows.len() as u64) as usize;
        let is_early = matches!(self.steps[at].fate, Fate::Abort | Fate::Finish);
        if is_early && self.rng.one_in(10) {
            self.end_early(at, flow);
            return Ok(true);
        }
        if self.rng.one_in(2) {
            self.send(at, flow)
        } else {
            self.receive(at, flow)
        }
    }

    fn end_early(&mut self, at: usize, flow: usize) {
        self.steps[at].has_ended = true;
        let id = StepId(self.steps[at].id);
        if self.steps[at].fate == Fate::Finish {
            return self.finish_everywhere(id);
        }
        // Who has never been greeted cannot be told: then whoever runs the step must tell all.
        self.steps[at].is_dirty |= self.wires.iter().any(|wire| wire.is_disturbed);
        let flow = &self.steps[at].flows[flow];
        let (node, shard) = if self.rng.one_in(2) {
            (flow.from, flow.from_shard)
        } else {
            (flow.to, flow.to_shard)
        };
        self.nodes[node].solos[shard].abort(id, Status::new(Code::Internal, "SIM", "it broke"));
    }

    fn abort_everywhere(&mut self, at: usize) {
        self.steps[at].has_ended = true;
        self.steps[at].is_told = true;
        let id = StepId(self.steps[at].id);
        for solo in self.nodes.iter_mut().flat_map(|node| &mut node.solos) {
            solo.abort(id, Status::new(Code::Aborted, "SIM", "a peer was lost"));
        }
    }

    fn finish_everywhere(&mut self, id: StepId) {
        for solo in self.nodes.iter_mut().flat_map(|node| &mut node.solos) {
            solo.finish(id);
        }
    }

    pub fn send(&mut self, at: usize, flow: usize) -> Result<bool, String> {
        let len = match self.rng.below(4) {
            0 => 4 + self.rng.below(12.min(self.dials.bytes_max)),
            1 => 4 + self.rng.below(self.dials.bytes_max.min(1000)),
            // Often the same length, so that what was seen before helps.
            2 => 4 + self.dials.bytes_max / 2,
            _ => 4 + self.rng.below(self.dials.bytes_max),
        };
        let is_dead = self.rng.one_in(10);
        let step = &mut self.steps[at];
        let id = step.id;
        if step.flows[flow].sent.len() as u64 >= step.flows[flow].wanted {
            return Ok(false);
        }
        let flow = &mut step.flows[flow];
        let bytes = flow.next(
            self.nodes[flow.from].incarnation.0,
            id,
            len as usize,
            is_dead,
        );
        let meta = TensorMeta::new(DType::U8, Shape::new(&[bytes.len() as u64]).unwrap()).unwrap();
        let solo = &mut self.nodes[flow.from].solos[flow.from_shard];
        let sent = solo.enter(|context| {
            let key = context.prepare(&flow.key)?;
            let mut builder = context.builder(meta)?;
            builder.bytes_mut().copy_from_slice(&bytes);
            let tensor = builder.finish();
            if is_dead {
                context.send_dead(StepId(id), key, tensor)
            } else {
                context.send(StepId(id), key, tensor)
            }
        });
        match sent {
            Err(status) if !step.is_dirty => Err(format!("step {id}: send refused: {status}")),
            _ => Ok(true),
        }
    }

    pub fn receive(&mut self, at: usize, flow: usize) -> Result<bool, String> {
        let now = self.now();
        let (id, is_one_sided) = (self.steps[at].id, self.steps[at].fate == Fate::OneSided);
        let target = &mut self.steps[at].flows[flow];
        let (open, count, wanted) = (target.open(), target.count, target.wanted as usize);
        if is_one_sided && target.from != target.to {
            return Ok(false);
        }
        let is_fickle = target.receives.len() < wanted + GIVEN_UP_MAX;
        if is_fickle
            && let Some(victim) = target
                .receives
                .iter_mut()
                .find(|receive| !receive.is_over && receive.waiting.is_some())
            && !victim.is_cancelled
            && self.rng.one_in(self.dials.cancel_one_in)
            && let Some(waiting) = &victim.waiting
        {
            victim.is_cancelled = true;
            self.nodes[target.to].solos[target.to_shard].cancel(waiting);
            return Ok(true);
        }
        if open + count >= wanted {
            return Ok(false);
        }
        let deadline = (is_fickle && self.rng.one_in(self.dials.deadline_one_in))
            .then(|| now + 1 + self.rng.below(400_000));
        let until = deadline.map_or(Nanos::NEVER, Nanos);
        let solo = &mut self.nodes[target.to].solos[target.to_shard];
        let index = target.receives.len();
        let waiting = if target.by_cell {
            Some(solo.recv(StepId(id), &target.key, until))
        } else {
            let token = self.tokens.len() as u64;
            self.tokens.push((at, flow, index));
            let asked = solo.enter(|context| {
                let key = context.prepare(&target.key)?;
                context.recv_by(StepId(id), key, token, until);
                Ok::<_, Status>(())
            });
            asked.map_err(|status| format!("step {id}: {status}"))?;
            None
        };
        target.receives.push(Receive {
            waiting,
            deadline,
            is_cancelled: false,
            is_over: false,
        });
        Ok(true)
    }

    /// Steps whose work is done are finished on every shard.
    fn close_steps(&mut self) -> usize {
        let mut done = 0;
        for at in 0..self.steps.len() {
            let step = &mut self.steps[at];
            if step.is_closed {
                continue;
            }
            let is_done = match step.fate {
                _ if step.has_ended => step.flows.iter().all(|flow| flow.open() == 0),
                Fate::OneSided => {
                    let is_sent = |flow: &Flow| flow.sent.len() as u64 == flow.wanted;
                    step.flows.iter().all(|flow| {
                        if flow.from == flow.to {
                            flow.is_whole()
                        } else {
                            is_sent(flow)
                        }
                    })
                }
                _ => step.flows.iter().all(Flow::is_whole),
            };
            if is_done {
                step.is_closed = true;
                step.has_ended = true;
                let id = StepId(step.id);
                self.finish_everywhere(id);
                done += 1;
            }
        }
        done
    }
}
