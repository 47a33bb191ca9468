//! Worlds: some workers with their programs, over a network that misbehaves by a seed. Virtual time.
//!
//! What happens to workers, who die, pause, and come again, is in `lives.rs`; what a world holds to be wrong, in
//! `looks.rs`; what sets out, and may be lost, in `losses.rs`.

mod events;
mod lives;
mod looks;
mod losses;
mod program;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rendez::ground::Nanos;

pub(crate) use super::network::{Arrival, Dice, Faults, Network};
use crate::codec::{Malformed, OnWire, Reader, Writer};
use crate::id::{ForkId, GlobalId};
use crate::message::Standing;
use crate::node::*;
pub use events::Event;
use events::is_message;
pub use program::{Weather, run};

/// A payload: the number of the job that the call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Job(pub u64);

impl OnWire for Job {
    fn write(&self, writer: &mut Writer) {
        writer.number(self.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.number().map(Self)
    }
}

/// A share that a worker's program holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Of which value.
    pub rref: RRefId,
    /// Where that is.
    pub owner: WorkerId,
    /// `None` at the owner.
    pub fork: Option<ForkId>,
}

/// A worker, with the program that a world plays for it.
#[derive(Debug)]
pub struct Actor {
    /// The machine.
    pub node: Node<Job, u64>,
    /// What its program holds.
    pub held: Vec<Share>,
    /// Values that this worker keeps.
    pub values: BTreeSet<RRefId>,
    /// All that it ever made, in this life.
    pub made: BTreeSet<RRefId>,
    /// Calls that it carries out, each with the references that came with it.
    pub running: Vec<(WorkerId, CallId, Target, Job, Vec<Share>)>,
    /// Those of them that it was told to stop.
    pub stopped: BTreeSet<(WorkerId, CallId)>,
    /// Values that it asks for, or has asked for, with the share that each stands on.
    pub fetching: Vec<(u64, Share)>,
    /// It has died, and not come again.
    pub is_dead: bool,
    /// Which life it is in; no two of a world have the same.
    pub life: u32,
    /// It does nothing before.
    pub paused_until: Nanos,
    /// It knows all that it was to meet.
    pub has_joined: bool,
    /// How it has left, if it has.
    pub has_left: Option<Result<(), Vec<String>>>,
    next_id: u64,
}

/// Some workers and the network.
#[derive(Debug)]
pub struct World {
    /// What is done, by the seed.
    pub dice: Dice,
    /// What lies between them.
    pub network: Network,
    /// Which rules of a worker are on.
    pub rules: Rules,
    /// Bounds and times of its nodes.
    pub limits: Limits,
    /// Workers join and leave as they like.
    pub is_dynamic: bool,
    /// The time.
    pub now: Nanos,
    /// The workers, by their numbers.
    pub actors: Vec<Actor>,
    next_job: u64,
    lives: u32,
    /// Who made each call, in which life, and by when it wanted an end.
    pub callers: BTreeMap<u64, (usize, u32, Nanos)>,
    /// Workers that are to be told of another.
    meetings: BTreeSet<(Nanos, usize, usize)>,
    /// How each call ended, by its job: (the caller, the end).
    pub ended: BTreeMap<u64, (WorkerId, Ending<Job>)>,
    /// How often each job was carried out.
    pub carried_out: BTreeMap<u64, u64>,
    /// How many calls were made.
    pub asked: u64,
    /// Creations, by job.
    creations: BTreeMap<u64, RRefId>,
    /// Values whose creation was given up: they may be there, or not.
    doubtful: BTreeSet<RRefId>,
    /// What went wrong, as the world saw it.
    pub harm: Vec<String>,
    /// How many workers have met all others.
    pub joined: usize,
    /// A connection was given up.
    was_severed: bool,
    /// Values that were let go when no worker held them.
    gone: BTreeSet<RRefId>,
    /// A worker leaves: what it had ends.
    is_left: bool,
    /// Only those messages are lost singly that workers survive it of; the others are lost with their connections.
    pub loses_survived_only: bool,
    /// Who is told what happens.
    pub told: Option<fn(&str)>,
    /// What has happened, if a program beside the world's own wants to know.
    pub events: Option<VecDeque<Event>>,
}

pub(crate) const fn limits() -> Limits {
    Limits {
        window: 8,
        waiting: 64,
        serving: 64,
        retry: Duration::from_millis(20),
        retry_max: Duration::from_millis(100),
        greeting: Duration::from_millis(10),
        probing: Duration::from_millis(5),
        in_order: false,
    }
}

fn group(is_dynamic: bool) -> Group {
    let hello = Hello {
        roster: if is_dynamic { 0 } else { 7 },
        name: "w".into(),
        task: String::new(),
        address: String::new(),
        wants_answer: false,
    };
    Group { hello, is_dynamic }
}

impl World {
    /// So many workers of a static group, that have met.
    pub fn new(seed: u64, count: u16, faults: Faults) -> Self {
        let mut world = Self::empty(seed, faults, Rules::ALL, false);
        world.populate(count);
        world
    }

    /// A world without workers.
    pub const fn empty(seed: u64, faults: Faults, rules: Rules, is_dynamic: bool) -> Self {
        Self {
            dice: Dice::new(seed),
            network: Network::new(seed, faults),
            rules,
            limits: limits(),
            is_dynamic,
            now: Nanos(1),
            actors: Vec::new(),
            next_job: 0,
            lives: 0,
            callers: BTreeMap::new(),
            meetings: BTreeSet::new(),
            ended: BTreeMap::new(),
            carried_out: BTreeMap::new(),
            asked: 0,
            creations: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            harm: Vec::new(),
            joined: 0,
            was_severed: false,
            gone: BTreeSet::new(),
            is_left: false,
            loses_survived_only: false,
            told: None,
            events: None,
        }
    }

    /// So many workers, that know each other, and are there.
    pub fn populate(&mut self, count: u16) {
        for at in 0..count {
            let actor = self.actor(at);
            self.actors.push(actor);
        }
        let now = self.now;
        for at in 0..usize::from(count) {
            for other in (0..count).filter(|other| usize::from(*other) != at) {
                self.actors[at].node.add_peer(now, WorkerId(other));
            }
            self.actors[at].node.join(now);
            self.pump(at);
        }
        let all = usize::from(count);
        self.run_until(|world| world.joined == all);
    }

    /// A worker in a life that none had before.
    fn actor(&mut self, at: u16) -> Actor {
        self.lives += 1;
        let life = self.lives;
        let node = Node::new(
            WorkerId(at),
            life,
            group(self.is_dynamic),
            self.limits.clone(),
        );
        let node = node.with(self.rules);
        Actor {
            next_id: node.first_local(),
            node,
            held: Vec::new(),
            values: BTreeSet::new(),
            made: BTreeSet::new(),
            running: Vec::new(),
            stopped: BTreeSet::new(),
            fetching: Vec::new(),
            is_dead: false,
            life,
            paused_until: Nanos::ZERO,
            has_joined: false,
            has_left: None,
        }
    }

    /// A fresh identity of a worker.
    fn fresh(&mut self, at: usize) -> GlobalId {
        let actor = &mut self.actors[at];
        actor.next_id += 1;
        GlobalId {
            on: WorkerId(at as u16),
            local: actor.next_id,
        }
    }

    /// References to `shares` as worker `at` sends them.
    fn references(&mut self, at: usize, shares: &[Share]) -> Vec<Reference> {
        let mut references = Vec::new();
        for share in shares {
            let fork = self.fresh(at);
            let parent = share.fork.unwrap_or(share.rref);
            let (rref, owner) = (share.rref, share.owner);
            references.push(Reference {
                rref,
                owner,
                fork,
                parent,
                standing: Standing::Known,
            });
        }
        references
    }

    /// Worker `at` calls another.
    pub fn call(
        &mut self,
        at: usize,
        to: usize,
        target: Target,
        patience: Option<Duration>,
        shares: &[Share],
    ) -> u64 {
        let job = self.next_job;
        self.next_job += 1;
        self.asked += 1;
        if let Target::Remote { rref, .. } = target {
            self.creations.insert(job, rref);
        }
        let references = self.references(at, shares);
        let deadline = patience.map_or(Nanos::NEVER, |patience| self.now.after(patience));
        self.tell(|| format!("{at} asks {to} as job {job} within {patience:?}: {target:?}"));
        let life = self.actors[at].life;
        self.callers.insert(job, (at, life, deadline));
        let call = NewCall {
            token: job,
            target,
            deadline,
            references,
            payload: Job(job),
        };
        self.actors[at]
            .node
            .call(self.now, WorkerId(to as u16), call);
        self.pump(at);
        job
    }

    /// Worker `at` asks for a value to be made at `to`, and holds the share.
    pub fn create(&mut self, at: usize, to: usize, patience: Option<Duration>) -> Share {
        let (rref, fork) = (self.fresh(at), self.fresh(at));
        let owner = WorkerId(to as u16);
        if at == to {
            self.actors[at].node.create_owned(rref, false);
        }
        let share = Share {
            rref,
            owner,
            fork: (at != to).then_some(fork),
        };
        self.actors[at].held.push(share);
        let target = Target::Remote {
            function: "make".into(),
            rref,
            fork,
        };
        self.call(at, to, target, patience, &[]);
        share
    }

    /// Worker `at` drops a share that it holds.
    pub fn release(&mut self, at: usize, share: Share) {
        let now = self.now;
        let actor = &mut self.actors[at];
        if let Some(place) = actor.held.iter().position(|held| *held == share) {
            actor.held.swap_remove(place);
            match share.fork {
                Some(fork) => actor.node.drop_user(now, fork),
                None => actor.node.drop_owned(now, share.rref),
            }
            self.pump(at);
        }
    }

    /// Ends the `which`th running call of worker `at`; its answer carries `shares`.
    pub fn finish(&mut self, at: usize, which: usize, shares: &[Share]) {
        if which >= self.actors[at].running.len() {
            return;
        }
        let (from, id, target, job, came) = self.actors[at].running.swap_remove(which);
        self.actors[at].stopped.remove(&(from, id));
        let references = match target {
            Target::Function(_) => self.references(at, shares),
            _ => Vec::new(),
        };
        if let Target::Remote { rref, .. } = target {
            self.actors[at].values.insert(rref);
            if !self.actors[at].made.insert(rref) {
                self.harm
                    .push(format!("{rref} names two values of worker {at}"));
            }
        }
        let now = self.now;
        let outcome = Outcome::Value {
            payload: job,
            references,
        };
        self.actors[at].node.finish(now, from, id, outcome);
        // What came with the call is dropped, or kept.
        for share in came {
            match self.dice.chance(50) {
                true => {
                    self.actors[at].held.push(share);
                    self.release(at, share);
                }
                false => self.actors[at].held.push(share),
            }
        }
        self.pump(at);
    }

    fn shares_of(&self, at: usize, references: &[Reference]) -> Vec<Share> {
        let me = WorkerId(at as u16);
        let share = |one: &Reference| Share {
            rref: one.rref,
            owner: one.owner,
            fork: (one.owner != me).then_some(one.fork),
        };
        references.iter().map(share).collect()
    }

    /// Does what worker `at` wants.
    pub fn pump(&mut self, at: usize) {
        if self.actors[at].is_dead {
            return;
        }
        let me = WorkerId(at as u16);
        let mut local = VecDeque::new();
        while let Some(output) = self.actors[at].node.poll() {
            match output {
                Output::Send { to, message } if to == me => local.push_back(message),
                Output::Send { to, message } => self.post(me, to, &message),
                Output::Serve {
                    from,
                    id,
                    target,
                    payload,
                    references,
                    deadline,
                } => {
                    self.look_timely(at, payload, deadline);
                    self.serve(at, from, id, target, payload, &references);
                }
                Output::Stop { from, id } => {
                    self.actors[at].stopped.insert((from, id));
                }
                Output::Ended { token, ending, .. } => self.end(at, token, ending),
                Output::Broken(rref, _) => {
                    self.actors[at].values.insert(rref);
                }
                Output::Release(rref) => {
                    self.actors[at].values.remove(&rref);
                    self.look_released(rref);
                }
                Output::Joined => {
                    self.joined += 1;
                    self.actors[at].has_joined = true;
                }
                Output::Refused(why) => self.harm.push(why),
                Output::Left(how) => {
                    self.look_left(at, &how);
                    self.note(|| Event::Gone { at });
                    self.actors[at].has_left = Some(how);
                }
                Output::Named(..) => {}
                Output::Up(of) => self.note(|| Event::Up { at, of }),
                Output::Down(worker, ..) => {
                    self.tell(|| format!("{at} has lost {worker}"));
                    self.look_stopped(at, worker);
                    self.note(|| Event::Down { at, of: worker });
                }
            }
            if let Some(message) = local.pop_front() {
                let now = self.now;
                self.actors[at].node.handle_message(now, me, message);
            }
        }
    }

    fn serve(
        &mut self,
        at: usize,
        from: WorkerId,
        id: CallId,
        target: Target,
        job: Job,
        references: &[Reference],
    ) {
        let times = self.carried_out.entry(job.0).or_default();
        *times += 1;
        if *times > 1 {
            self.harm
                .push(format!("job {} was carried out {times} times", job.0));
        }
        let is_message = is_message(&target);
        if matches!(target, Target::Function(_)) {
            self.note(|| Event::Served { at, from, job });
        }
        let shares = self.shares_of(at, references);
        for share in &shares {
            // A function runs only when all its references are confirmed: so the owner has the value.
            self.look_confirmed(at, job, *share);
            self.look_held(at, *share);
        }
        if let Target::Fetch(rref) = target
            && !self.actors[at].values.contains(&rref)
        {
            let what = format!("the value of {rref} was asked for and is not there");
            self.harm.push(what);
        }
        if is_message || matches!(target, Target::Fetch(_)) {
            let now = self.now;
            let outcome = Outcome::Value {
                payload: job,
                references: Vec::new(),
            };
            self.actors[at].node.finish(now, from, id, outcome);
            return;
        }
        self.actors[at]
            .running
            .push((from, id, target, job, shares));
    }

    fn end(&mut self, at: usize, job: u64, ending: Ending<Job>) {
        if let Ending::Answered(Outcome::Value {
            payload,
            references,
        }) = &ending
        {
            if payload.0 != job {
                self.harm
                    .push(format!("job {job} was answered with {}", payload.0));
            }
            for share in self.shares_of(at, references) {
                self.look_held(at, share);
                self.actors[at].held.push(share);
            }
        }
        if !matches!(ending, Ending::Answered(_))
            && let Some(rref) = self.creations.get(&job)
        {
            self.doubtful.insert(*rref);
        }
        self.look_ended(at, job, &ending);
        self.note(|| Event::Ended {
            at,
            job,
            ending: ending.clone(),
        });
        let was = self.ended.insert(job, (WorkerId(at as u16), ending));
        if was.is_some() {
            self.harm.push(format!("job {job} ended twice"));
        }
    }

    /// Says what happens, if that is wanted.
    fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(told) = self.told {
            told(&format!("{:>12} {}", self.now.0, what()));
        }
    }

    /// The next thing happens: a message comes, or a timer is due. False if there is nothing.
    pub fn step(&mut self) -> bool {
        let wire = self.network.next();
        let met = self
            .meetings
            .first()
            .map_or(Nanos::NEVER, |meeting| meeting.0);
        let timer = self.actors.iter().map(Actor::due).min();
        let timer = timer.unwrap_or(Nanos::NEVER);
        let next = wire.min(timer).min(met);
        if next == Nanos::NEVER {
            return false;
        }
        self.now = self.now.max(next);
        let now = self.now;
        if met == next {
            self.meet();
        } else if wire == next {
            if let Some(packet) = self.network.take(now) {
                self.arrive(packet);
            }
        } else {
            for at in 0..self.actors.len() {
                if self.actors[at].due() <= now {
                    self.actors[at].node.handle_time(now);
                    self.pump(at);
                }
            }
        }
        true
    }

    /// Time passes until `is_done`; that it never is, is harm.
    pub fn run_until(&mut self, mut is_done: impl FnMut(&Self) -> bool) {
        for _ in 0..200_000 {
            if is_done(self) || !self.step() {
                break;
            }
        }
        if !is_done(self) {
            self.harm.push("it does not come to an end".into());
        }
    }

    /// Time passes.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.now < until {
            if !self.step() {
                // Time passes all the same.
                self.now = until;
            }
        }
    }
}

impl Actor {
    /// When it has something to do by itself.
    fn due(&self) -> Nanos {
        match self.node.next_timer() {
            _ if self.is_dead => Nanos::NEVER,
            Nanos::NEVER => Nanos::NEVER,
            timer => timer.max(self.paused_until),
        }
    }
}
