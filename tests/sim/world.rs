//! World: tasks with their shards, the links between them, and the hand that moves both through virtual time.
//!
//! It plays what is above and below the shards: the control plane (who is connected, lost, back again), the
//! application (sends, receives, aborts), the clock. Everything follows from the seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam::queue::SegQueue;
use rendez::fabric::faulty::Faults;
use rendez::fabric::{AnyPort, FaultyPort, LoopbackPort, TcpConfig, TcpPort};
use rendez::ground::device::TaskName;
use rendez::ground::rng::Rng;
use rendez::ground::{Incarnation, Status};
use rendez::mail::Received;
use rendez::memory::{ArenaConfig, HugePages, Segment};
use rendez::shard::{Observer, Progress};
use rendez::testing::solo::{Solo, Team};
use rendez::trace::Path;

use crate::clocks::NodeClock;
use crate::control::{Seen, Watch, Wire};
use crate::dials::{Dials, TICK_NS_MAX};
use crate::held::Held;
use crate::model::Step;

/// Ticks after which a world that does not come to rest is stuck in a loop. Some that are not take more than a tenth of
/// them: seed 42934, whose connections break about as often as a value and its answers pass.
const TICKS_MAX: u64 = 1_000_000;

/// Ticks without progress after which scarce worlds give a step up.
const QUIET_MAX: u64 = 500;

/// Leased tensors held at once.
const HELD_MAX: usize = 16;
/// While there is work, time leaps no further: a user who is slow by a minute is another test.
pub const LEAP_NS_AT_WORK: u64 = 2_000_000;

/// A task.
pub struct Node {
    pub task: TaskName,
    pub incarnation: Incarnation,
    pub solos: Vec<Solo>,
    /// What the shards were made of.
    pub team: Team,
    /// Who hears what they say of themselves.
    pub watches: Vec<Arc<Watch>>,
    /// Memory of what stands on the shards: the arena after theirs.
    pub beside: Vec<Arc<Segment>>,
}

pub struct World {
    pub dials: Dials,
    pub rng: Rng,
    pub clock: Arc<AtomicU64>,
    pub nodes: Vec<Node>,
    pub wires: Vec<Wire>,
    pub seen: Arc<SegQueue<Seen>>,
    /// Steps that failed at a shard for a bound.
    pub failed: Arc<SegQueue<u64>>,
    /// What each task takes for the time.
    pub clocks: Vec<NodeClock>,
    /// Until when each shard has no core.
    pub lost: Vec<Vec<u64>>,
    /// Ticks since a value was received or a step closed.
    pub quiet_ticks: u64,
    /// How many of the disturbances that last have begun.
    pub disturbed: usize,
    pub steps: Vec<Step>,
    /// Receives of in-shard tasks by token: step, flow, receive.
    pub tokens: Vec<(usize, usize, usize)>,
    pub incarnations: u64,
    pub begun: u64,
    pub is_settling: bool,
    pub held: Held,
    /// When which life of which task is proved over.
    pub exits: Vec<(u64, usize, Incarnation)>,
    /// Descriptors that were not mapped.
    pub refused: usize,
    /// Who gave whom up, or may have, until it is asked for.
    pub disturbed_pairs: Vec<(usize, usize)>,
}

/// The ports of a shard, as they misbehave.
pub fn faulty(solo: &mut Solo) -> impl Iterator<Item = &mut FaultyPort> {
    solo.ports_mut().iter_mut().filter_map(|port| match port {
        AnyPort::Faulty(port) => Some(&mut **port),
        _ => None,
    })
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
            failed: Arc::default(),
            clocks: Vec::new(),
            lost: Vec::new(),
            quiet_ticks: 0,
            disturbed: 0,
            steps: Vec::new(),
            tokens: Vec::new(),
            incarnations: 0,
            begun: 0,
            is_settling: false,
            held: Held::default(),
            exits: Vec::new(),
            refused: 0,
            disturbed_pairs: Vec::new(),
            dials,
        };
        if world.dials.is_unsealed && world.cut_short(1 << 20).is_none() {
            // Tasks that do not trust each other's memory are no read domain.
            world.dials.read_domain = false;
        }
        for at in 0..world.dials.shards.len() {
            world
                .clocks
                .push(NodeClock::new(&mut world.rng, world.dials.is_skewed));
            world.lost.push(Vec::new());
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
                            healed_at: 0,
                        });
                    }
                }
            }
        }
        world
    }

    pub fn muster(&mut self, at: usize) -> Node {
        self.incarnations += 1;
        let incarnation = Incarnation(self.incarnations * 1000 + at as u64);
        let mut settings = self.dials.settings;
        settings.shards = self.dials.shards[at];
        let team = Team {
            task: TaskName::parse(&format!("/job:t{at}/task:0")).unwrap(),
            incarnation,
            settings,
            clock: self.clocks[at].clock(),
            arena: ArenaConfig {
                segment_bytes: 1 << 20,
                bytes_max: self.dials.arena_bytes,
                huge_pages: HugePages::Off,
            },
            queues: self.dials.queues,
        };
        let (rng, faults, seen) = (&mut self.rng, self.dials.faults, &self.seen);
        let (is_stream, has_hosts) = (self.dials.is_stream, !self.dials.hosts.is_empty());
        let ports = |_| {
            let kinds = if has_hosts {
                vec![false, true]
            } else {
                vec![is_stream]
            };
            let port = |is_stream| {
                let seed = rng.next_u64();
                let inner = if is_stream {
                    AnyPort::Tcp(TcpPort::cutting(TcpConfig::default(), seed).unwrap())
                } else {
                    AnyPort::Loopback(LoopbackPort::new())
                };
                AnyPort::Faulty(Box::new(FaultyPort::new(inner, faults, seed)))
            };
            kinds.into_iter().map(port).collect()
        };
        let failed = &self.failed;
        let mut watches = Vec::new();
        let watch = |shard| {
            let watch = Arc::new(Watch {
                node: at,
                incarnation,
                shard,
                seen: Arc::clone(seen),
                failed: Arc::clone(failed),
                above: OnceLock::new(),
            });
            watches.push(Arc::clone(&watch));
            watch as Arc<dyn Observer>
        };
        let solos = team.muster(ports, watch).unwrap();
        self.lost[at] = vec![0; solos.len()];
        Node {
            task: team.task.clone(),
            incarnation,
            solos,
            team,
            watches,
            beside: Vec::new(),
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
    pub fn live(&mut self) -> Result<(), String> {
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
            if self.dials.is_scarce && self.quiet_ticks > QUIET_MAX {
                // Work that waits for room that other work holds: its user gives some up.
                self.abort_one();
            }
            if self.steps.iter().all(|step| step.is_closed) && self.begun == self.dials.steps {
                return Ok(());
            }
            idle = if did > 0 { 0 } else { idle + 1 };
            if idle > 3 && self.held.drop_one(&mut self.rng)? {
                // Others may wait for what a lease holds.
                idle = 0;
            } else if idle > 3 && self.leap(LEAP_NS_AT_WORK) {
                idle = 0;
            } else if idle > 2_000 {
                return Err(self.stuck());
            }
        }
        Err(format!("{TICKS_MAX} ticks, and no end: {}", self.stuck()))
    }

    /// Rest: nothing goes wrong any more, nothing is asked; what was owed is paid, and nothing is left.
    pub fn settle(&mut self) -> Result<(), String> {
        self.calm()?;
        self.come_to_rest()?;
        self.check_rest()
    }

    /// Nothing goes wrong any more.
    pub fn calm(&mut self) -> Result<(), String> {
        self.is_settling = true;
        while self.held.drop_one(&mut self.rng)? {}
        for node in &mut self.nodes {
            for solo in &mut node.solos {
                for port in faulty(solo) {
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
        Ok(())
    }

    /// Ticks until nothing is due.
    pub fn come_to_rest(&mut self) -> Result<(), String> {
        let mut idle = 0;
        for _ in 0..TICKS_MAX {
            idle = if self.tick()? { 0 } else { idle + 1 };
            if idle > 3 && self.leap(u64::MAX) {
                idle = 0;
            } else if idle > 100 {
                return Ok(());
            }
        }
        Err(format!("{TICKS_MAX} ticks, and no rest: {}", self.stuck()))
    }

    /// One tick: every shard turns once, in a random order; the control plane does what is due. True if anything
    /// happened.
    pub fn tick(&mut self) -> Result<bool, String> {
        let step = 1 + self.rng.below(self.dials.tick_ns);
        let now = self.clock.fetch_add(step, Ordering::Relaxed) + step;
        self.show(now);
        self.quiet_ticks += 1;
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
                if self.lost[node][solo] > now {
                    continue;
                }
                did |= self.nodes[node].solos[solo].turn() == Progress::Busy;
                self.hear_failures();
                let now = self.clocks[node].now();
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
        self.check_credit()?;
        self.check_bounds()?;
        if self.held.len() > HELD_MAX || self.rng.one_in(self.dials.hold_one_in * 8) {
            did |= self.held.drop_one(&mut self.rng)?;
        }
        Ok(did)
    }

    /// Some of what is read in place is read for long.
    pub fn hold(&mut self, step: usize, flow: usize, outcome: &Result<Received, Status>) {
        if outcome.is_ok() {
            self.quiet_ticks = 0;
        }
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

    pub fn poll_cells(&mut self, now: u64) -> Result<bool, String> {
        let mut did = false;
        let is_awake = |at: usize| {
            // What stands before a full ring between two shards comes as late as those before it.
            let is_clear = |solo: &Solo| solo.holdings().shard_messages == 0;
            self.lost[at].iter().all(|&until| until <= now)
                && self.nodes[at].solos.iter().all(is_clear)
        };
        let awake: Vec<_> = (0..self.nodes.len())
            .map(|at| (self.clocks[at].now(), is_awake(at)))
            .collect();
        for at_step in 0..self.steps.len() {
            let step = &mut self.steps[at_step];
            if step.is_closed {
                continue;
            }
            let mut came = Vec::new();
            for flow in 0..step.flows.len() {
                let (to, to_shard) = (step.flows[flow].to, step.flows[flow].to_shard);
                for at in 0..step.flows[flow].receives.len() {
                    let receive = &mut step.flows[flow].receives[at];
                    if receive.is_over {
                        continue;
                    }
                    if awake[to].1 {
                        receive.grows_late(awake[to].0)?;
                    }
                    let Some(waiting) = &receive.waiting else {
                        continue;
                    };
                    if let Some(outcome) = waiting.take() {
                        step.ended(flow, at, awake[to].0, &outcome)?;
                        came.push((flow, outcome));
                        did = true;
                    } else if receive.is_unheard {
                        // Its owner polls it at last, or drops it.
                        if self.rng.one_in(4) {
                            receive.is_unheard = false;
                            self.nodes[to].solos[to_shard].cancel(waiting);
                        }
                        did = true;
                    } else if receive.is_cancelled && self.lost[to][to_shard] <= now {
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

    /// Tells every task the time, each its own.
    fn show(&self, now: u64) {
        for clock in &self.clocks {
            clock.show(now);
        }
    }

    /// Steps that failed for a bound somewhere: values may be missing.
    fn hear_failures(&mut self) {
        while let Some(id) = self.failed.pop() {
            for step in self.steps.iter_mut().filter(|step| step.id == id) {
                step.is_failed |= step.is_scarce;
            }
        }
    }

    /// True while a shard has no core.
    pub fn is_lost(&self, node: usize, shard: usize) -> bool {
        self.lost[node][shard] > self.now()
    }

    /// Nothing happens now: to the next moment at which something will, in a step of at most so much. False if there is
    /// none.
    pub fn leap(&mut self, most_ns: u64) -> bool {
        let mut next = u64::MAX;
        let now = self.now();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            for (solo, &lost) in node.solos.iter_mut().zip(&self.lost[at]) {
                let mut due = solo.next_timer().0;
                for port in faulty(solo) {
                    due = due.min(port.next_due().map_or(u64::MAX, |due| due.0));
                }
                let due = self.clocks[at].when(due);
                next = next.min(if lost > now { due.max(lost) } else { due });
            }
        }
        next = self
            .lost
            .iter()
            .flatten()
            .filter(|&&until| until > now)
            .fold(next, |next, &until| next.min(until));
        for wire in &self.wires {
            next = next.min(wire.reconnect_at.unwrap_or(u64::MAX));
        }
        next = self.exits.iter().fold(next, |next, exit| next.min(exit.0));
        if next == u64::MAX {
            // A port that stands still says nothing: time goes on all the same.
            let now = self.clock.fetch_add(TICK_NS_MAX, Ordering::Relaxed) + TICK_NS_MAX;
            self.show(now);
            return false;
        }
        let now = self.now();
        let next = next.min(now.saturating_add(most_ns));
        if next > now {
            // The tick that follows adds at least one.
            self.clock.store(next - 1, Ordering::Relaxed);
            self.show(next - 1);
        }
        true
    }
}
