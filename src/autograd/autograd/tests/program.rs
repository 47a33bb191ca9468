//! What the workers of a composed world do, by a seed, and what must be so at its end.

use std::time::Duration;

use rendez::ground::{Status, catalogue};
use rendez_rpc::testing::{Dice, Weather};

use super::composed::{Composed, RETRIES};
use crate::autograd::rules::Rules;
use crate::autograd::{ContextId, Mode, Options, PassId, WorkerId};

/// What may happen, and what is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) weather: Weather,
    /// How late workers hear at most of others that come and go.
    pub(super) lag: Duration,
    /// Passes in fast mode.
    pub(super) fast: bool,
    /// Passes that do not retain the graph.
    pub(super) unretained: bool,
    /// Contexts that are released while they are used.
    pub(super) releases: bool,
    /// Calls under way to one worker, and as many that wait; none for as many as usual.
    pub(super) window: usize,
    /// How often a message that a busy worker refuses is sent again.
    pub(super) retries: u32,
    /// Programs of the world of calls, in percent of acts.
    pub(super) others: u64,
    /// Roots that wait no longer.
    pub(super) impatience: bool,
}

impl Plan {
    /// That of a seed.
    pub(super) fn of(seed: u64) -> Self {
        let dice = &mut Dice::new(seed);
        let mut weather = Weather::of(dice);
        weather.acts = 150;
        weather.is_left = false;
        let mut plan = Self {
            weather,
            lag: Duration::from_micros(dice.pick(&[0, 100, 5_000, 40_000])),
            fast: dice.chance(50),
            unretained: dice.chance(30),
            releases: dice.chance(50),
            window: dice.pick(&[0, 0, 0, 2]),
            retries: RETRIES,
            others: dice.pick(&[0, 0, 30]),
            impatience: false,
        };
        if weather.is_dynamic {
            plan.weather.faults.lose = dice.pick(&[0, 5, 30]);
        }
        plan.impatience = dice.chance(30);
        plan
    }
}

/// What became of the passes of a world.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Seen {
    pub(super) well: usize,
    /// Those that ended with an error.
    pub(super) badly: usize,
    /// Those of them that lost a worker.
    pub(super) lost: usize,
    /// Those that went well whose gradients were there, and right, at a worker that has lost the root.
    pub(super) apart: usize,
    /// Those whose root waited no longer.
    pub(super) given_up: usize,
    /// Messages that were lost singly.
    pub(super) dropped: u64,
}

struct Played {
    composed: Composed,
    contexts: Vec<ContextId>,
    /// Those that were released while they were used.
    released: Vec<ContextId>,
    passes: Vec<(PassId, Options)>,
    apart: usize,
}

/// Lives through one world; what went wrong in it, if anything did.
pub(super) fn live(seed: u64, plan: &Plan, rules: Rules) -> Result<Seen, String> {
    let composed = Composed::new(seed, plan, rules);
    let mut played = Played {
        composed,
        contexts: vec![],
        released: vec![],
        passes: vec![],
        apart: 0,
    };
    for _ in 0..plan.weather.acts {
        played.composed.calls.disturb(&plan.weather);
        played.composed.attend();
        played.act(plan);
        if !played.composed.calls.harm.is_empty() {
            break;
        }
    }
    played.composed.calls.network.heal();
    played.composed.settle();
    played.look();
    played.end();
    let harm = &played.composed.calls.harm;
    match harm.is_empty() {
        true => Ok(played.seen()),
        false => Err(format!("{harm:?}")),
    }
}

fn names_worker(text: &str, of: WorkerId) -> bool {
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let number = of.0.to_string();
    while words.by_ref().any(|word| word == "worker") {
        if words.next() == Some(&number) {
            return true;
        }
    }
    false
}

impl Played {
    fn act(&mut self, plan: &Plan) {
        let awake = self.composed.awake();
        if awake.is_empty() {
            return self.composed.pass(Duration::from_millis(10));
        }
        let dice = &mut self.composed.dice;
        if dice.chance(plan.others) {
            let time = self.composed.calls.act(false);
            return self.composed.pass(time);
        }
        let at = dice.pick(&awake);
        if self.contexts.is_empty() || dice.chance(3) {
            let context = self.composed.world.create(at);
            self.composed.world.leaf(at, context);
            self.contexts.push(context);
        }
        let context = self.composed.dice.pick(&self.contexts);
        let holds = self.composed.world.machine(at).holds(context);
        match self.composed.dice.below(16) {
            0 | 1 if holds => drop(self.composed.world.leaf(at, context)),
            2..=4 => drop(self.composed.world.sum(at, context)),
            5..=7 => {
                let to = self
                    .composed
                    .dice
                    .below(self.composed.world.workers.len() as u64);
                self.composed.call(at, WorkerId(to as u16), context);
            }
            8 => self.backward(at, context, plan),
            9 if plan.impatience && !self.passes.is_empty() => {
                let (pass, _) = self.composed.dice.pick(&self.passes);
                if self.composed.is_awake(pass.root) {
                    self.composed.give_up(pass);
                }
            }
            9 if plan.releases && self.composed.dice.chance(20) => {
                self.composed.world.release(context);
                self.released.push(context);
            }
            10 | 11 => {
                let mut serving = self.composed.serving.iter();
                if let Some(which) = serving.position(|served| served.at == at) {
                    self.composed.answer(which);
                }
            }
            _ => {
                let time = self.composed.dice.time(Duration::from_millis(10));
                self.composed.pass(time);
            }
        }
        self.composed.attend();
    }

    fn backward(&mut self, at: WorkerId, context: ContextId, plan: &Plan) {
        let dice = &mut self.composed.dice;
        let options = Options {
            mode: match plan.fast && dice.chance(50) {
                true => Mode::Fast,
                false => Mode::Smart,
            },
            retain: !plan.unretained || dice.chance(60),
        };
        let pass = self.composed.world.backward_of_some(at, context, options);
        self.composed
            .tell(at, || format!("begins pass {pass:?}, {options:?}"));
        self.passes.extend(pass.map(|pass| (pass, options)));
    }

    fn harm(&mut self, what: String) {
        self.composed.calls.harm.push(what);
    }

    /// Every pass has ended, with the gradients that it has in one place or with an error that has a cause.
    fn look(&mut self) {
        for pass in self.composed.world.endless() {
            self.harm(format!("pass {pass} has no end"));
        }
        for at in self.composed.world.living() {
            let passes = self.composed.world.machine(at).load().passes;
            if passes > 0 {
                self.harm(format!("{passes} passes have no end at worker {}", at.0));
            }
        }
        for (pass, options) in self.passes.clone() {
            let outcome = self.composed.world.outcomes.get(&pass);
            self.composed
                .tell(pass.root, || format!("pass {pass}: {outcome:?}"));
            if let Some(Some(Err(error))) = outcome.map(|outcome| outcome.result.clone())
                && !self.has_cause(pass, options, &error)
            {
                self.harm(format!("pass {pass} failed without a cause: {error}"));
            }
        }
        for context in self.contexts.clone() {
            let wrong = self
                .composed
                .world
                .wrong_gradients(context, |at, pass| self.may_not_know(at, pass));
            wrong.into_iter().for_each(|what| self.harm(what));
        }
        let held = self.composed.world.held_gradients();
        let is_apart = |(at, pass): &(WorkerId, PassId)| self.are_apart(*at, pass.root);
        self.apart = held.into_iter().filter(is_apart).count();
    }

    /// True if one of both has lost the other, ever.
    fn are_apart(&self, one: WorkerId, other: WorkerId) -> bool {
        let lost = &self.composed.lost;
        lost.contains(&(one, other)) || lost.contains(&(other, one))
    }

    /// True if a worker may not know how a pass ended: it has lost its root, or that does not remember the pass.
    fn may_not_know(&self, at: WorkerId, pass: PassId) -> bool {
        self.are_apart(pass.root, pass.context.worker()) || self.are_apart(at, pass.root)
    }

    fn has_cause(&self, pass: PassId, options: Options, error: &Status) -> bool {
        let reason = error.reason();
        let mut of_context = self
            .passes
            .iter()
            .filter(|(of, _)| of.context == pass.context);
        let was_lost = !self.composed.lost.is_empty();
        if reason == catalogue::AUTOGRAD_WORKER_DEAD {
            let names = |of: &WorkerId| names_worker(error.message(), *of);
            return self.composed.lost.iter().any(|(_, of)| names(of));
        }
        let is_used_up = of_context.any(|(_, options)| !options.retain);
        let is_released = self.released.contains(&pass.context);
        match reason {
            _ if was_lost || is_released => true,
            catalogue::AUTOGRAD_TIMEOUT => self.composed.given_up.contains(&pass),
            catalogue::RPC_BUSY => self.composed.is_narrow(),
            catalogue::AUTOGRAD_FUNCTION_UNKNOWN | catalogue::AUTOGRAD_GRAPH_FREED => is_used_up,
            catalogue::AUTOGRAD_UNUSED_SEND | catalogue::AUTOGRAD_MESSAGE => {
                options.mode == Mode::Fast
            }
            _ => false,
        }
    }

    /// All contexts are released; then nothing is left of any of them.
    fn end(&mut self) {
        for context in self.contexts.clone() {
            self.composed.world.release(context);
            self.composed.attend();
        }
        self.composed.settle();
        for (at, what) in self.composed.world.left() {
            self.harm(format!("worker {} keeps {what}", at.0));
        }
        let calls = &mut self.composed.calls;
        calls.settle();
        calls.drop_all();
        calls.settle();
        calls.look_at_rest();
    }

    fn seen(&self) -> Seen {
        let results = self.composed.world.outcomes.values();
        let results = results.filter_map(|outcome| outcome.result.as_ref());
        let errors = results.clone().filter_map(|result| result.as_ref().err());
        let losses = [
            catalogue::AUTOGRAD_WORKER_DEAD,
            catalogue::PEER_LOST,
            catalogue::PEER_RESTARTED,
        ];
        let of_loss = |error: &&Status| losses.contains(&error.reason());
        let is_given_up = |error: &&Status| error.reason() == catalogue::AUTOGRAD_TIMEOUT;
        Seen {
            given_up: errors.clone().filter(is_given_up).count(),
            well: results.filter(|result| result.is_ok()).count(),
            badly: errors.clone().count(),
            lost: errors.filter(of_loss).count(),
            apart: self.apart,
            dropped: self.composed.calls.network.lost(),
        }
    }
}
