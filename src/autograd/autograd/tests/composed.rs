//! Worlds in which the machines stand on remote calls: what they send are calls of the workers of `rendez-rpc`, in its
//! worlds, where workers die, come again, pause, are cut off, join and leave, and do what they do there beside.
//!
//! As in `remote`: a message of the machine is a call without a deadline, which is made again if its receiver is busy;
//! a call of the program brings an envelope, and so does its answer; and that another worker is there, or gone, is told
//! by a thread of its own, later than what comes from it.
//!
//! Messages of the workers are delayed, repeated and reordered, and each that they say they survive is lost singly too.
//! Messages of the machine are calls without a deadline, which are lost with their connections only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rendez::ground::{Nanos, Status, catalogue};
use rendez_rpc::message::{FaultKind, Outcome, Target};
use rendez_rpc::node::Ending;
use rendez_rpc::testing::{Dice, Event, Job, World as Calls};

use super::program::Plan;
use super::world::{Global, Packet, World};
use crate::autograd::rules::Rules;
use crate::autograd::{
    Autograd, COUNTER_MAX, ContextId, Envelope, Message, PassId, WorkerId, codec,
};

/// How often a message is sent again that a busy worker refuses, and after how long first, as in `remote`.
pub(super) const RETRIES: u32 = 20;
const DELAY: Duration = Duration::from_millis(10);
/// Messages that go together at most.
const TOGETHER_MAX: usize = 64;

/// What a call brings.
#[derive(Clone, Debug)]
enum Content {
    Messages {
        to: WorkerId,
        messages: Vec<Message<i64>>,
        tries: u32,
    },
    Call {
        to: WorkerId,
        envelope: Envelope,
        globals: Vec<Global>,
    },
}

/// A call of the program that a worker carries out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) at: WorkerId,
    pub(super) from: WorkerId,
    pub(super) context: ContextId,
    job: u64,
}

/// What a worker hears of another.
#[derive(Clone, Copy, Debug)]
enum Notice {
    Found(WorkerId),
    Lost(WorkerId),
}

pub(super) struct Composed {
    pub(super) world: World,
    pub(super) calls: Calls,
    pub(super) dice: Dice,
    contents: BTreeMap<u64, Content>,
    /// What the answers bring.
    answers: BTreeMap<u64, (Envelope, Vec<Global>)>,
    pub(super) serving: Vec<Served>,
    /// By worker, in order, each not before its time.
    notices: Vec<VecDeque<(Nanos, Notice)>>,
    plan: Plan,
    later: Vec<(Nanos, WorkerId, Content)>,
    /// Passes whose root was to give them up.
    pub(super) given_up: BTreeSet<PassId>,
    /// Who has lost whom, ever.
    pub(super) lost: BTreeSet<(WorkerId, WorkerId)>,
}

const fn rpc(worker: WorkerId) -> usize {
    worker.0 as usize
}

const fn worker(at: usize) -> WorkerId {
    WorkerId(at as u16)
}

impl Composed {
    pub(super) fn new(seed: u64, plan: &Plan, rules: Rules) -> Self {
        let all = rendez_rpc::node::Rules::ALL;
        let weather = &plan.weather;
        let mut calls = Calls::empty(seed, weather.faults, all, weather.is_dynamic);
        if plan.window > 0 {
            (calls.limits.window, calls.limits.waiting) = (plan.window, plan.window);
        }
        (calls.told, calls.events) = (told(), Some(VecDeque::new()));
        calls.loses_survived_only = true;
        let mut dice = Dice::new(seed ^ 0xc0de);
        let count = 2 + dice.below(3) as u16;
        let mut world = World::new(seed, 0, 0);
        world.keep_to(rules);
        world.loses = false;
        let mut composed = Self {
            world,
            calls,
            dice,
            contents: BTreeMap::new(),
            answers: BTreeMap::new(),
            serving: vec![],
            notices: vec![],
            plan: *plan,
            later: vec![],
            given_up: BTreeSet::new(),
            lost: BTreeSet::new(),
        };
        (0..usize::from(count)).for_each(|at| composed.begin(at));
        composed.calls.network.faults.lose = 0;
        composed.calls.populate(count);
        composed.calls.network.faults.lose = weather.faults.lose;
        composed.attend();
        composed
    }

    /// A worker begins a life: others may hold what its former ones gave ids to.
    fn begin(&mut self, at: usize) {
        let first = self.dice.below(COUNTER_MAX >> 2);
        self.world.begin(worker(at), first);
        self.notices
            .resize(self.notices.len().max(at + 1), VecDeque::new());
        self.notices[at].clear();
    }

    /// True if the worker is there, and does something now.
    pub(super) fn is_awake(&self, id: WorkerId) -> bool {
        let actor = &self.calls.actors[rpc(id)];
        let is_there = !actor.is_dead && actor.has_left.is_none();
        is_there && actor.has_joined && actor.paused_until <= self.calls.now
    }

    pub(super) fn awake(&self) -> Vec<WorkerId> {
        let all = (0..self.calls.actors.len()).map(worker);
        all.filter(|id| self.is_awake(*id)).collect()
    }

    /// Takes what has happened, and does what follows at once.
    pub(super) fn attend(&mut self) {
        loop {
            let events = self.calls.events.as_mut();
            if let Some(event) = events.and_then(VecDeque::pop_front) {
                self.happened(event);
            } else if self.world.packets.is_empty() {
                break;
            }
            self.forward();
        }
    }

    /// Says what happens, if that is wanted.
    pub(super) fn tell(&self, at: WorkerId, what: impl FnOnce() -> String) {
        if let Some(told) = self.calls.told {
            told(&format!("{:>12} {} {}", self.calls.now.0, at.0, what()));
        }
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Begun { at } => self.begin(at),
            Event::Gone { at } => {
                self.world.end(worker(at));
                self.serving.retain(|served| served.at != worker(at));
                self.later.retain(|(_, from, _)| *from != worker(at));
            }
            Event::Up { at, of } => self.notice(at, Notice::Found(WorkerId(of.0))),
            Event::Down { at, of } => {
                self.lost.insert((worker(at), WorkerId(of.0)));
                self.notice(at, Notice::Lost(WorkerId(of.0)));
            }
            Event::Served { at, from, job } => self.served(worker(at), WorkerId(from.0), job),
            Event::Ended { at, job, ending } => self.ended(worker(at), job, &ending),
        }
    }

    fn notice(&mut self, at: usize, notice: Notice) {
        let due = self.calls.now.after(self.dice.time(self.plan.lag));
        let after = self.notices[at].back().map_or(Nanos::ZERO, |last| last.0);
        self.notices[at].push_back((due.max(after), notice));
    }

    fn served(&mut self, at: WorkerId, from: WorkerId, Job(job): Job) {
        if !self.world.is_alive(at) {
            return;
        }
        match self.contents.get(&job).cloned() {
            Some(Content::Messages { messages, .. }) => {
                for message in messages {
                    let (bytes, beside) = codec::encode(&message);
                    let message = codec::decode(&bytes, beside).expect("it was encoded so");
                    self.tell(at, || format!("hears from {}: {message:?}", from.0));
                    self.world.deliver(from, at, Packet::Control(message));
                }
            }
            Some(Content::Call {
                envelope, globals, ..
            }) => {
                self.tell(at, || format!("is called by {}: {envelope:?}", from.0));
                self.world.arrive(from, at, &envelope, &globals);
                self.world.with(at, |_| ());
                let context = envelope.context;
                self.serving.push(Served {
                    at,
                    from,
                    context,
                    job,
                });
            }
            // One of the programs of the world of calls.
            None => {}
        }
    }

    fn ended(&mut self, at: WorkerId, job: u64, ending: &Ending<Job>) {
        let content = self.contents.get(&job).cloned();
        let Some(content) = content.filter(|_| self.world.is_alive(at)) else {
            return;
        };
        let is_answered = matches!(ending, Ending::Answered(Outcome::Value { .. }));
        match content {
            Content::Messages { .. } if is_answered => {}
            Content::Messages {
                to,
                messages,
                tries,
            } if is_busy(ending) && tries < self.plan.retries => {
                let delay = DELAY.mul_f64(1.5_f64.powi(tries.cast_signed()));
                let due = self.calls.now.after(delay.min(Duration::from_secs(1)));
                let tries = tries + 1;
                self.later.push((
                    due,
                    at,
                    Content::Messages {
                        to,
                        messages,
                        tries,
                    },
                ));
            }
            Content::Messages { to, messages, .. } => {
                let error = error_of(ending);
                for message in messages {
                    self.world.with(at, |machine| {
                        machine.handle_undelivered(to, message, &error)
                    });
                }
            }
            Content::Call { to, .. } => {
                if let Some((envelope, globals)) = self.answers.remove(&job).filter(|_| is_answered)
                {
                    self.tell(at, || format!("is answered by {}: {envelope:?}", to.0));
                    self.world.arrive(to, at, &envelope, &globals);
                    self.world.with(at, |_| ());
                }
            }
        }
    }

    /// What the machines want to be sent sets out: what goes to one worker, together.
    fn forward(&mut self) {
        let mut packets = VecDeque::from(std::mem::take(&mut self.world.packets));
        while let Some((from, to, packet)) = packets.pop_front() {
            let Packet::Control(message) = packet else {
                continue;
            };
            if !self.world.is_alive(from) {
                continue;
            }
            if from == to {
                self.world.deliver(from, to, Packet::Control(message));
                continue;
            }
            let mut messages = vec![message];
            while let Some((_, _, Packet::Control(next))) = packets
                .front()
                .filter(|next| (next.0, next.1) == (from, to) && messages.len() < TOGETHER_MAX)
            {
                messages.push(next.clone());
                packets.pop_front();
            }
            let tries = 0;
            self.post(
                from,
                Content::Messages {
                    to,
                    messages,
                    tries,
                },
            );
        }
    }

    fn post(&mut self, from: WorkerId, content: Content) {
        let Content::Messages { to, .. } = &content else {
            return;
        };
        let job = self.calls.message(rpc(from), rpc(*to));
        self.contents.insert(job, content);
    }

    /// A call with some of the values of the context.
    pub(super) fn call(&mut self, from: WorkerId, to: WorkerId, context: ContextId) {
        let globals = self.world.some(from, context);
        let envelope = self.world.prepare(from, to, context, &globals, false);
        let Some(envelope) = envelope else {
            return;
        };
        let patience = match self.dice.chance(30) {
            true => Some(self.dice.time(Duration::from_millis(100))),
            false => None,
        };
        let target = Target::Function("f".into());
        let held = &self.calls.actors[rpc(from)].held;
        let shares: Vec<_> = held.first().copied().into_iter().collect();
        let job = self
            .calls
            .call(rpc(from), rpc(to), target, patience, &shares);
        let content = Content::Call {
            to,
            envelope,
            globals,
        };
        self.contents.insert(job, content);
    }

    /// A call is answered, perhaps with values of its context.
    pub(super) fn answer(&mut self, which: usize) {
        let Served {
            at,
            from,
            context,
            job,
        } = self.serving.swap_remove(which);
        let globals = self.world.some(at, context);
        if let Some(envelope) = self.world.prepare(at, from, context, &globals, true) {
            self.answers.insert(job, (envelope, globals));
        }
        self.calls.finish_job(rpc(at), job, &[]);
    }

    /// Time passes.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.calls.now.after(time);
        loop {
            self.attend();
            self.work();
            if self.calls.now >= until {
                break;
            }
            if !self.calls.step() {
                self.calls.now = until;
            }
        }
    }

    /// Those who are awake do what they have to.
    fn work(&mut self) {
        let now = self.calls.now;
        for at in 0..self.calls.actors.len() {
            let id = worker(at);
            if !self.world.is_alive(id) || self.calls.actors[at].paused_until > now {
                continue;
            }
            while let Some((_, notice)) = self.notices[at].pop_front_if(|(due, _)| *due <= now) {
                self.tell(id, || format!("knows {notice:?}"));
                self.world.with(id, |machine| match notice {
                    Notice::Found(other) => machine.handle_worker_joined(other),
                    Notice::Lost(other) => machine.handle_worker_dead(other),
                });
                self.attend();
            }
            while self.world.is_busy(id) && self.dice.chance(60) {
                self.world.work(id);
                self.attend();
            }
        }
        let (due, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(due, _, _)| *due <= now);
        self.later = later;
        let due: Vec<(Nanos, WorkerId, Content)> = due;
        for (_, from, content) in due {
            self.post(from, content);
        }
        self.attend();
    }

    /// The root of a pass waits for its end no longer.
    pub(super) fn give_up(&mut self, pass: PassId) {
        self.tell(pass.root, || format!("gives up {pass}"));
        self.given_up.insert(pass);
        let error = Status::of(catalogue::AUTOGRAD_TIMEOUT, "it took too long");
        let give_up = |machine: &mut Autograd<i64>| machine.give_up(pass, error);
        self.world.with(pass.root, give_up);
    }

    /// True if workers refuse calls for want of a place.
    pub(super) const fn is_narrow(&self) -> bool {
        self.plan.window > 0
    }

    /// True if nothing is under way that the machines want, or wait for.
    fn is_quiet(&self) -> bool {
        let is_busy = |at: usize| {
            let actor = &self.calls.actors[at];
            let is_there = !actor.is_dead && actor.has_left.is_none();
            let has_more = self.world.is_busy(worker(at)) || !self.notices[at].is_empty();
            let has_calls = actor.node.call_counts() != (0, 0);
            is_there && (has_more || has_calls || actor.paused_until > self.calls.now)
        };
        let has_news = self.calls.network.has_news();
        !(0..self.calls.actors.len()).any(is_busy) && self.later.is_empty() && !has_news
    }

    /// Lets everything happen that can: all calls are answered, and nothing else begins.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..400 {
            while !self.serving.is_empty() {
                self.answer(0);
            }
            self.finish_others();
            self.pass(Duration::from_millis(10));
            quiet = if self.is_quiet() { quiet + 1 } else { 0 };
            // What is still under way comes within a few of these.
            if quiet > 8 {
                return;
            }
        }
        self.calls.harm.push("the machines do not settle".into());
    }

    /// The programs of the world of calls end what they carry out.
    fn finish_others(&mut self) {
        for at in 0..self.calls.actors.len() {
            while !self.calls.actors[at].is_dead && !self.calls.actors[at].running.is_empty() {
                self.calls.finish(at, 0, &[]);
            }
        }
        self.attend();
    }
}

/// With `TRACE` in the environment a world says what happens in it.
fn told() -> Option<fn(&str)> {
    let tell: fn(&str) = |what| eprintln!("{what}");
    std::env::var_os("TRACE").map(|_| tell)
}

fn is_busy(ending: &Ending<Job>) -> bool {
    match ending {
        Ending::Busy => true,
        Ending::Answered(Outcome::Fault(fault)) => fault.kind == FaultKind::Busy,
        _ => false,
    }
}

fn error_of(ending: &Ending<Job>) -> Status {
    match ending {
        Ending::Lost(status) => status.clone(),
        other if is_busy(other) => Status::of(catalogue::RPC_BUSY, "it is busy"),
        other => Status::of(catalogue::PEER_LOST, format!("{other:?}")),
    }
}
