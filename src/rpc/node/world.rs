//! Worlds: some workers, and a network between them that loses, delays, repeats and reorders by a seed. Virtual time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rendez::ground::{Nanos, Status, catalogue};

use super::*;
use crate::codec::{Malformed, OnWire, Reader, Writer, decode, encode};
use crate::id::{ForkId, GlobalId};

/// Numbers by a seed: SplitMix64 (Steele, Lea, Flood).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A payload: the number of the job that the call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Job(pub(crate) u64);

impl OnWire for Job {
    fn write(&self, writer: &mut Writer) {
        writer.number(self.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.number().map(Self)
    }
}

/// What goes wrong, in percent of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lose: u64,
    pub(crate) repeat: u64,
    /// The most that a message is delayed: differently, so that they overtake each other.
    pub(crate) delay: Duration,
}

/// A share that a worker's program holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    pub(crate) rref: RRefId,
    pub(crate) owner: WorkerId,
    /// `None` at the owner.
    pub(crate) fork: Option<ForkId>,
}

/// A worker, with the program that a world plays for it.
pub(crate) struct Actor {
    pub(crate) node: Node<Job, u64>,
    pub(crate) held: Vec<Share>,
    /// Values that this worker keeps.
    pub(crate) values: BTreeSet<RRefId>,
    /// Calls that it carries out, each with the references that came with it.
    pub(crate) running: Vec<(WorkerId, CallId, Target, Job, Vec<Share>)>,
    pub(crate) stopped: BTreeSet<(WorkerId, CallId)>,
    pub(crate) is_dead: bool,
    pub(crate) has_left: Option<Result<(), Vec<String>>>,
    next_id: u64,
}

/// Some workers and the network.
pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) faults: Faults,
    pub(crate) now: Nanos,
    pub(crate) actors: Vec<Actor>,
    wires: BTreeMap<(Nanos, u64), (WorkerId, WorkerId, Vec<u8>)>,
    sent: u64,
    next_job: u64,
    /// How each call ended, by its job: (the caller, the end).
    pub(crate) ended: BTreeMap<u64, (WorkerId, Ending<Job>)>,
    /// How often each job was carried out.
    pub(crate) carried_out: BTreeMap<u64, u64>,
    pub(crate) asked: u64,
    /// Creations, by job.
    creations: BTreeMap<u64, RRefId>,
    /// Values whose creation was given up: they may be there, or not.
    doubtful: BTreeSet<RRefId>,
    /// What went wrong, as the world saw it.
    pub(crate) harm: Vec<String>,
    pub(crate) joined: usize,
}

pub(crate) fn limits() -> Limits {
    Limits {
        window: 8,
        waiting: 64,
        serving: 64,
        retry: Duration::from_millis(20),
        retry_max: Duration::from_millis(100),
        greeting: Duration::from_millis(10),
        probing: Duration::from_millis(5),
        ..Limits::default()
    }
}

fn group() -> Group {
    let hello = Hello {
        roster: 7,
        name: "w".into(),
        task: String::new(),
        address: String::new(),
        wants_answer: false,
    };
    Group {
        hello,
        is_dynamic: false,
    }
}

impl World {
    pub(crate) fn new(seed: u64, count: u16, faults: Faults) -> Self {
        let actor = |at: u16| Actor {
            node: Node::new(WorkerId(at), u32::from(at) + 1, group(), limits()),
            held: Vec::new(),
            values: BTreeSet::new(),
            running: Vec::new(),
            stopped: BTreeSet::new(),
            is_dead: false,
            has_left: None,
            next_id: 0,
        };
        let mut world = Self {
            dice: Dice::new(seed),
            faults,
            now: Nanos(1),
            actors: (0..count).map(actor).collect(),
            wires: BTreeMap::new(),
            sent: 0,
            next_job: 0,
            ended: BTreeMap::new(),
            carried_out: BTreeMap::new(),
            asked: 0,
            creations: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            harm: Vec::new(),
            joined: 0,
        };
        for at in 0..count {
            let now = world.now;
            let node = &mut world.actors[usize::from(at)].node;
            (0..count)
                .filter(|other| *other != at)
                .for_each(|other| node.add_peer(now, WorkerId(other)));
            node.join(now);
            world.pump(usize::from(at));
        }
        let all = usize::from(count);
        world.run_until(|world| world.joined == all);
        world
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
                is_early: false,
            });
        }
        references
    }

    /// Worker `at` calls another.
    pub(crate) fn call(
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
    pub(crate) fn create(&mut self, at: usize, to: usize, patience: Option<Duration>) -> Share {
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
    pub(crate) fn release(&mut self, at: usize, share: Share) {
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
    pub(crate) fn finish(&mut self, at: usize, which: usize, shares: &[Share]) {
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
    pub(crate) fn pump(&mut self, at: usize) {
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
                    ..
                } => {
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
                Output::Joined => self.joined += 1,
                Output::Refused(why) => self.harm.push(why),
                Output::Left(how) => self.actors[at].has_left = Some(how),
                Output::Named(..) | Output::Up(_) | Output::Down(..) => {}
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
        let shares = self.shares_of(at, references);
        for share in &shares {
            // A function runs only when all its references are confirmed: so the owner has the value.
            self.look_held(at, *share);
        }
        if let Target::Fetch(rref) = target {
            if !self.actors[at].values.contains(&rref) {
                self.harm.push(format!(
                    "the value of {rref} was asked for and is not there"
                ));
            }
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
        let was = self.ended.insert(job, (WorkerId(at as u16), ending));
        if was.is_some() {
            self.harm.push(format!("job {job} ended twice"));
        }
    }

    /// A program that holds a confirmed share finds the value, as long as its owner lives.
    fn look_held(&mut self, at: usize, share: Share) {
        let owner = &self.actors[usize::from(share.owner.0)];
        let is_known = owner.node.knows(share.rref);
        // Where a worker died, a share may have lost its parent.
        let is_whole = self
            .actors
            .iter()
            .all(|actor| !actor.is_dead && actor.has_left.is_none());
        if is_whole && !is_known && !self.doubtful.contains(&share.rref) {
            self.harm.push(format!(
                "worker {at} holds {} and its owner has let it go",
                share.rref
            ));
        }
    }

    fn look_released(&mut self, rref: RRefId) {
        for at in 0..self.actors.len() {
            let actor = &self.actors[at];
            let holds = actor.held.iter().any(|share| {
                share.rref == rref && share.fork.is_none_or(|fork| actor.node.is_confirmed(fork))
            });
            if holds && !actor.is_dead && actor.has_left.is_none() && !self.doubtful.contains(&rref)
            {
                self.harm
                    .push(format!("{rref} was released while worker {at} holds it"));
            }
        }
    }

    fn post(&mut self, from: WorkerId, to: WorkerId, message: &Message<Job>) {
        if self.dice.chance(self.faults.lose) {
            return;
        }
        let copies = 1 + u64::from(self.dice.chance(self.faults.repeat));
        let bytes = encode(message);
        for _ in 0..copies {
            let most = self.faults.delay.as_nanos() as u64;
            let delay = 1_000 + self.dice.below(most);
            self.sent += 1;
            self.wires
                .insert((self.now + delay, self.sent), (from, to, bytes.clone()));
        }
    }

    /// The next thing happens: a message comes, or a timer is due. False if there is nothing.
    pub(crate) fn step(&mut self) -> bool {
        let wire = self.wires.keys().next().map_or(Nanos::NEVER, |key| key.0);
        let alive = |actor: &&Actor| !actor.is_dead;
        let timer = self
            .actors
            .iter()
            .filter(alive)
            .map(|actor| actor.node.next_timer())
            .min();
        let timer = timer.unwrap_or(Nanos::NEVER);
        if wire == Nanos::NEVER && timer == Nanos::NEVER {
            return false;
        }
        self.now = self.now.max(wire.min(timer));
        let now = self.now;
        if wire <= timer {
            if let Some((_, (from, to, bytes))) = self.wires.pop_first() {
                let at = usize::from(to.0);
                if !self.actors[at].is_dead {
                    match decode(&bytes) {
                        Ok(message) => self.actors[at].node.handle_message(now, from, message),
                        Err(error) => self.harm.push(error.to_string()),
                    }
                    self.pump(at);
                }
            }
            return true;
        }
        for at in 0..self.actors.len() {
            if !self.actors[at].is_dead && self.actors[at].node.next_timer() <= now {
                self.actors[at].node.handle_time(now);
                self.pump(at);
            }
        }
        true
    }

    pub(crate) fn run_until(&mut self, mut is_done: impl FnMut(&Self) -> bool) {
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
    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.now < until && self.step() {}
    }

    /// A worker dies, and the others are told.
    pub(crate) fn kill(&mut self, at: usize) {
        self.actors[at].is_dead = true;
        let status = Status::of(catalogue::PEER_LOST, "it died");
        let now = self.now;
        for other in 0..self.actors.len() {
            if !self.actors[other].is_dead {
                self.actors[other]
                    .node
                    .handle_lost(now, WorkerId(at as u16), &status);
                self.pump(other);
            }
        }
        self.wires
            .retain(|_, (from, to, _)| usize::from(from.0) != at && usize::from(to.0) != at);
    }

    /// Ends all running calls, again and again, until none is left and the network is quiet.
    pub(crate) fn settle(&mut self) {
        for _ in 0..2_000 {
            for at in 0..self.actors.len() {
                while !self.actors[at].is_dead && !self.actors[at].running.is_empty() {
                    self.finish(at, 0, &[]);
                }
            }
            self.run_for(Duration::from_millis(10));
            let is_quiet = self
                .actors
                .iter()
                .filter(|actor| !actor.is_dead)
                .all(|actor| {
                    actor.running.is_empty()
                        && actor.node.call_counts() == (0, 0)
                        && actor.node.references.is_at_rest()
                        && actor.node.outstanding().is_empty()
                });
            if is_quiet {
                return;
            }
        }
        let what: Vec<_> = self
            .actors
            .iter()
            .map(|actor| actor.node.outstanding())
            .collect();
        self.harm.push(format!("it does not settle: {what:?}"));
    }

    /// All programs drop what they hold.
    pub(crate) fn drop_all(&mut self) {
        for at in 0..self.actors.len() {
            while let Some(&share) = self.actors[at].held.first() {
                self.release(at, share);
            }
        }
    }
}

impl<P, T> Node<P, T> {
    fn knows(&self, rref: RRefId) -> bool {
        self.references.owns(rref)
    }

    fn is_confirmed(&self, fork: ForkId) -> bool {
        self.references.is_confirmed(fork)
    }
}
