//! A world of workers whose messages are lost and sent again, delayed, repeated and reordered, and who die, by a seed.

use std::collections::BTreeMap;

use super::engine::{Engine, Local};
use crate::autograd::rules::Rules;
use crate::autograd::{
    Autograd, ContextId, Effect, Envelope, Input, Message, Options, PassId, Start, WorkerId,
};
use rendez::ground::Status;
use rendez::ground::rng::Rng;

/// A value anywhere, in the reference.
pub(super) type Global = usize;

#[derive(Clone, Debug)]
pub(super) enum Reference {
    Leaf(WorkerId, u64),
    Sum(Vec<(Global, i64)>),
    Constant,
}

/// What is under way.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    Control(Message<i64>),
    Call(Envelope, Vec<Global>),
    Death(WorkerId),
}

#[derive(Clone, Debug)]
enum Job {
    Mark(PassId, Vec<Start>),
    Run(PassId, Vec<Input<i64>>),
}

#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) machine: Autograd<i64>,
    pub(super) engine: Engine,
    jobs: Vec<Job>,
    /// Values by context, that calculations and calls may use.
    pub(super) values: BTreeMap<ContextId, Vec<(Local, Global)>>,
    pub(super) is_alive: bool,
}

/// How a pass ended, or that it has not.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) root: Global,
    pub(super) result: Option<Result<(), Status>>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) workers: Vec<Worker>,
    /// What was sent and has not come.
    pub(super) packets: Vec<(WorkerId, WorkerId, Packet)>,
    pub(super) reference: Vec<Reference>,
    pub(super) outcomes: BTreeMap<PassId, Outcome>,
    leaves: u64,
    /// How often a message is repeated: once in so many.
    repeats: u64,
    rules: Rules,
    /// What is sent to the dead is lost; otherwise who brings it says so.
    pub(super) loses: bool,
    pub(super) sent: BTreeMap<&'static str, usize>,
}

impl Worker {
    fn new(machine: Autograd<i64>) -> Self {
        Self {
            machine,
            engine: Engine::default(),
            jobs: vec![],
            values: BTreeMap::new(),
            is_alive: true,
        }
    }
}

impl World {
    pub(super) fn new(seed: u64, workers: u16, repeats: u64) -> Self {
        let worker = |id| Worker::new(Autograd::new(WorkerId(id)));
        Self {
            rng: Rng::new(seed),
            workers: (0..workers).map(worker).collect(),
            packets: vec![],
            reference: vec![],
            outcomes: BTreeMap::new(),
            leaves: 0,
            repeats,
            rules: Rules::ALL,
            loses: true,
            sent: BTreeMap::new(),
        }
    }

    /// All machines keep to these rules.
    pub(super) fn keep_to(&mut self, rules: Rules) {
        self.rules = rules;
        let machines = self.workers.iter_mut().map(|worker| &mut worker.machine);
        machines.for_each(|machine| machine.rules = rules);
    }

    /// A worker begins a life, its first or another, whose ids begin at `counter`.
    pub(super) fn begin(&mut self, id: WorkerId, counter: u64) {
        let mut worker = Worker::new(Autograd::starting_at(id, counter));
        worker.machine.rules = self.rules;
        match self.workers.get_mut(usize::from(id.0)) {
            Some(former) => *former = worker,
            None => self.workers.push(worker),
        }
        // What a former life has begun has no end.
        self.outcomes
            .retain(|pass, outcome| pass.root != id || outcome.result.is_some());
    }

    /// A worker is gone, and this world tells no one.
    pub(super) fn end(&mut self, id: WorkerId) {
        self.worker(id).is_alive = false;
    }

    pub(super) fn is_alive(&self, id: WorkerId) -> bool {
        self.workers[usize::from(id.0)].is_alive
    }

    /// Gives the machine of a worker an input, and does what follows.
    pub(super) fn with(&mut self, id: WorkerId, input: impl FnOnce(&mut Autograd<i64>)) {
        input(&mut self.worker(id).machine);
        self.take_effects(id);
    }

    fn worker(&mut self, id: WorkerId) -> &mut Worker {
        &mut self.workers[usize::from(id.0)]
    }

    pub(super) fn machine(&self, id: WorkerId) -> &Autograd<i64> {
        &self.workers[usize::from(id.0)].machine
    }

    pub(super) fn living(&self) -> Vec<WorkerId> {
        let alive = self.workers.iter().filter(|worker| worker.is_alive);
        alive.map(|worker| worker.machine.worker()).collect()
    }

    pub(super) fn pick(&mut self) -> WorkerId {
        let living = self.living();
        living[self.rng.below(living.len() as u64) as usize]
    }

    pub(super) fn create(&mut self, at: WorkerId) -> ContextId {
        self.worker(at)
            .machine
            .create_context()
            .expect("ids are left")
    }

    pub(super) fn release(&mut self, context: ContextId) {
        let creator = context.worker();
        if self.workers[usize::from(creator.0)].is_alive {
            let _ = self.worker(creator).machine.release_context(context);
            self.take_effects(creator);
        }
    }

    pub(super) fn leaf(&mut self, at: WorkerId, context: ContextId) -> Global {
        self.leaves += 1;
        let id = self.leaves;
        let global = self.refer(Reference::Leaf(at, id));
        let local = self.worker(at).engine.leaf(id);
        self.keep(at, context, local, global);
        global
    }

    fn refer(&mut self, what: Reference) -> Global {
        self.reference.push(what);
        self.reference.len() - 1
    }

    fn keep(&mut self, at: WorkerId, context: ContextId, local: Local, global: Global) {
        self.worker(at)
            .values
            .entry(context)
            .or_default()
            .push((local, global));
    }

    fn value(&mut self, at: WorkerId, context: ContextId) -> Option<(Local, Global)> {
        let values = self.workers[usize::from(at.0)].values.get(&context)?;
        let at = self.rng.below(values.len() as u64) as usize;
        values.get(at).copied()
    }

    /// The value that was made last there.
    pub(super) fn newest(&self, at: WorkerId, context: ContextId) -> Global {
        let values = &self.workers[usize::from(at.0)].values[&context];
        values.last().expect("there is one").1
    }

    pub(super) fn named(&self, at: WorkerId, context: ContextId, global: Global) -> Option<Local> {
        let values = self.workers[usize::from(at.0)].values.get(&context)?;
        values
            .iter()
            .find(|(_, of)| *of == global)
            .map(|(local, _)| *local)
    }

    /// A weighted sum of values there.
    pub(super) fn sum(&mut self, at: WorkerId, context: ContextId) -> Option<Global> {
        let count = 1 + self.rng.below(3);
        let mut terms = vec![];
        for _ in 0..count {
            let weight = self.rng.below(7) as i64 - 3;
            terms.push((self.value(at, context)?, weight));
        }
        Some(self.sum_of(at, context, &terms))
    }

    fn sum_of(
        &mut self,
        at: WorkerId,
        context: ContextId,
        terms: &[((Local, Global), i64)],
    ) -> Global {
        let here = terms
            .iter()
            .map(|((local, _), weight)| (*local, *weight))
            .collect();
        let there = terms
            .iter()
            .map(|((_, global), weight)| (*global, *weight))
            .collect();
        let local = self.worker(at).engine.sum(here);
        let global = self.refer(Reference::Sum(there));
        self.keep(at, context, local, global);
        global
    }

    /// The sum of these values there.
    pub(super) fn total(&mut self, at: WorkerId, context: ContextId, of: &[Global]) -> Global {
        let find = |global: &Global| {
            (
                (
                    self.named(at, context, *global).expect("it is there"),
                    *global,
                ),
                1,
            )
        };
        let terms: Vec<_> = of.iter().map(find).collect();
        self.sum_of(at, context, &terms)
    }

    /// A call (or an answer, which is the same here) with some of the values.
    pub(super) fn call(&mut self, from: WorkerId, to: WorkerId, context: ContextId) {
        let globals = self.some(from, context);
        self.call_with(from, to, context, &globals);
    }

    pub(super) fn call_with(
        &mut self,
        from: WorkerId,
        to: WorkerId,
        context: ContextId,
        globals: &[Global],
    ) {
        let is_reply = self.rng.one_in(2);
        if let Some(envelope) = self.prepare(from, to, context, globals, is_reply) {
            self.packets
                .push((from, to, Packet::Call(envelope, globals.to_vec())));
        }
    }

    /// Records that these values go, and returns what rides along.
    pub(super) fn prepare(
        &mut self,
        from: WorkerId,
        to: WorkerId,
        context: ContextId,
        globals: &[Global],
        is_reply: bool,
    ) -> Option<Envelope> {
        let picked: Vec<_> = globals
            .iter()
            .map(|global| self.named(from, context, *global))
            .collect();
        let requires: Vec<_> = picked.iter().map(Option::is_some).collect();
        let worker = self.worker(from);
        let recorded = worker.machine.record_send(context, to, &requires, is_reply);
        let envelope = recorded.ok().flatten();
        if let Some(envelope) = envelope.as_ref().filter(|envelope| envelope.has_function()) {
            worker.engine.send(context, envelope.message, picked);
        }
        self.take_effects(from);
        envelope
    }

    /// Some of the values there.
    pub(super) fn some(&mut self, at: WorkerId, context: ContextId) -> Vec<Global> {
        let count = self.rng.below(4);
        let picked = (0..count).filter_map(|_| self.value(at, context));
        picked.map(|(_, global)| global).collect()
    }

    pub(super) fn backward(
        &mut self,
        at: WorkerId,
        context: ContextId,
        options: Options,
    ) -> Option<PassId> {
        let root = self.value(at, context)?;
        self.backward_of(at, context, options, &[root])
    }

    /// A pass from one value, or from several.
    pub(super) fn backward_of_some(
        &mut self,
        at: WorkerId,
        context: ContextId,
        options: Options,
    ) -> Option<PassId> {
        let count = 1 + self.rng.below(3);
        let roots: Vec<_> = (0..count).filter_map(|_| self.value(at, context)).collect();
        self.backward_of(at, context, options, &roots)
    }

    pub(super) fn backward_from(
        &mut self,
        at: WorkerId,
        context: ContextId,
        options: Options,
        local: Local,
        root: Global,
    ) -> Option<PassId> {
        self.backward_of(at, context, options, &[(local, root)])
    }

    fn backward_of(
        &mut self,
        at: WorkerId,
        context: ContextId,
        options: Options,
        roots: &[(Local, Global)],
    ) -> Option<PassId> {
        let machine = &mut self.worker(at).machine;
        let pass = machine.start_backward(context, roots.len() as u32, options);
        let pass = pass.ok()?;
        let locals = roots.iter().map(|(local, _)| *local).collect();
        self.worker(at).engine.begin(pass, locals);
        let root = match roots {
            [(_, root)] => *root,
            roots => self.refer(Reference::Sum(
                roots.iter().map(|(_, root)| (*root, 1)).collect(),
            )),
        };
        self.outcomes.insert(pass, Outcome { root, result: None });
        self.take_effects(at);
        Some(pass)
    }

    /// `worker` dies: what it sent may still come, and the others hear of it sooner or later.
    pub(super) fn kill(&mut self, worker: WorkerId) {
        self.worker(worker).is_alive = false;
        self.packets.retain(|(_, to, _)| *to != worker);
        let lost = self.rng.one_in(2);
        self.packets.retain(|(from, _, packet)| {
            !lost || *from != worker || matches!(packet, Packet::Death(_))
        });
        for other in self.living() {
            self.packets.push((worker, other, Packet::Death(worker)));
        }
    }

    /// One thing happens. False if there is nothing left to happen.
    pub(super) fn step(&mut self) -> bool {
        let busy: Vec<_> = self
            .workers
            .iter()
            .enumerate()
            .filter(|(_, worker)| !worker.jobs.is_empty())
            .collect();
        let choices = busy.len() + self.packets.len();
        if choices == 0 {
            return false;
        }
        let choice = self.rng.below(choices as u64) as usize;
        if let Some((worker, _)) = busy.get(choice) {
            self.work(WorkerId(*worker as u16));
            return true;
        }
        let at = self.rng.below(self.packets.len() as u64) as usize;
        if self.rng.one_in(8) {
            // Lost: its sender sends it again, later.
            return true;
        }
        let is_repeated =
            self.rng.one_in(self.repeats) && !matches!(self.packets[at].2, Packet::Call(..));
        let (from, to, packet) = if is_repeated {
            self.packets[at].clone()
        } else {
            self.packets.swap_remove(at)
        };
        self.deliver(from, to, packet);
        true
    }

    /// Lets everything happen that can.
    pub(super) fn drain(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 1_000_000, "it goes on for ever");
        }
    }

    pub(super) fn deliver(&mut self, from: WorkerId, to: WorkerId, packet: Packet) {
        if !self.workers[usize::from(to.0)].is_alive {
            return;
        }
        match packet {
            Packet::Control(message) => self.worker(to).machine.handle_message(from, message),
            Packet::Death(worker) => self.worker(to).machine.handle_worker_dead(worker),
            Packet::Call(envelope, globals) => self.arrive(from, to, &envelope, &globals),
        }
        self.take_effects(to);
    }

    pub(super) fn arrive(
        &mut self,
        from: WorkerId,
        to: WorkerId,
        envelope: &Envelope,
        globals: &[Global],
    ) {
        if self
            .worker(to)
            .machine
            .record_receive(from, envelope)
            .is_err()
        {
            return;
        }
        let node = self
            .worker(to)
            .engine
            .received(envelope.message, globals.len() as u16);
        for (slot, (global, wants)) in (0u16..).zip(globals.iter().zip(&envelope.requires)) {
            if *wants {
                let copy = self.refer(Reference::Sum(vec![(*global, 1)]));
                self.keep(to, envelope.context, Local { node, slot }, copy);
            } else {
                self.refer(Reference::Constant);
            }
        }
    }

    /// True if its engine has something to do.
    pub(super) fn is_busy(&self, id: WorkerId) -> bool {
        !self.workers[usize::from(id.0)].jobs.is_empty()
    }

    /// The engine of a worker does something that it was asked for.
    pub(super) fn work(&mut self, id: WorkerId) {
        let len = self.workers[usize::from(id.0)].jobs.len() as u64;
        let at = self.rng.below(len) as usize;
        let worker = self.worker(id);
        match worker.jobs.swap_remove(at) {
            Job::Mark(pass, starts) => {
                let found = worker.engine.mark(pass, &starts);
                worker.machine.handle_marked(pass, found);
            }
            Job::Run(pass, inputs) => {
                let ran = worker.engine.run(pass, inputs);
                worker.machine.handle_ran(pass, ran);
            }
        }
        self.take_effects(id);
    }

    fn take_effects(&mut self, id: WorkerId) {
        while let Some(effect) = self.worker(id).machine.poll_effect() {
            let worker = self.worker(id);
            match effect {
                Effect::Send { to, message } => {
                    *self.sent.entry(super::name(&message.body)).or_default() += 1;
                    if !self.loses || self.workers[usize::from(to.0)].is_alive {
                        self.packets.push((id, to, Packet::Control(message)));
                    }
                }
                Effect::Mark { pass, starts } => worker.jobs.push(Job::Mark(pass, starts)),
                Effect::Run { pass, inputs } => worker.jobs.push(Job::Run(pass, inputs)),
                Effect::Finish { pass, retain } => worker.engine.finish(pass, retain),
                Effect::Discard { pass } => {
                    worker.engine.discard(pass);
                    worker.jobs.retain(
                        |job| !matches!(job, Job::Mark(of, _) | Job::Run(of, _) if *of == pass),
                    );
                }
                Effect::Forget { context } => {
                    worker.engine.forget(context);
                    worker.values.remove(&context);
                }
                Effect::Ended { pass, result } => {
                    let outcome = self.outcomes.get_mut(&pass).expect("it began here");
                    assert!(
                        outcome.result.replace(result).is_none(),
                        "pass {pass} ended twice"
                    );
                }
            }
        }
    }
}
