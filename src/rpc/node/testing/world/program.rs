//! Programs: what the workers of a world do, by a seed, and what happens to them meanwhile; then all comes to rest, or
//! all leave.

use std::time::Duration;

use super::{Actor, Dice, Faults, Share, World};
use crate::message::Target;
use crate::node::Rules;

/// Workers that a world has at most, dead ones too.
const WORKERS_MAX: usize = 7;
/// How long a shutdown may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What may happen in a world, one in so many acts each; never for zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// What goes wrong with messages.
    pub faults: Faults,
    /// A worker dies.
    pub kill: u64,
    /// A dead worker begins another life.
    pub restart: u64,
    /// A worker does nothing for a while.
    pub pause: u64,
    /// Nothing passes between two workers for a while.
    pub cut: u64,
    /// Workers join and leave as they like.
    pub is_dynamic: bool,
    /// All leave together at the end, with work under way.
    pub is_left: bool,
    /// How much is done.
    pub acts: u64,
    /// Calls that are made while all leave.
    pub follow_ups: u64,
    /// Calls of one worker that may wait or run at another; none for as many as usual.
    pub serving: usize,
}

impl Weather {
    /// That of a seed.
    pub fn of(dice: &mut Dice) -> Self {
        let delay = Duration::from_micros(dice.pick(&[10, 1_000, 30_000]));
        let is_dynamic = dice.chance(20);
        Self {
            faults: Faults {
                // What a group that grows says of itself is not repeated: a real network loses it with the connection.
                lose: if is_dynamic {
                    0
                } else {
                    dice.pick(&[0, 0, 5, 30])
                },
                repeat: dice.pick(&[0, 5, 50]),
                delay,
            },
            kill: dice.pick(&[0, 0, 60, 20]),
            restart: dice.pick(&[0, 10, 40]),
            pause: dice.pick(&[0, 0, 30]),
            cut: dice.pick(&[0, 0, 30]),
            is_dynamic,
            is_left: dice.chance(30),
            acts: 200,
            follow_ups: 20,
            serving: 0,
        }
    }
}

/// Lives through one world, and says to `told` what happens; what went wrong in it, if anything did.
///
/// # Errors
/// What went wrong.
pub fn run(
    seed: u64,
    weather: Weather,
    rules: Rules,
    told: Option<fn(&str)>,
) -> Result<(), String> {
    let mut dice = Dice::new(seed ^ 0xabcd);
    let mut world = World::empty(seed, weather.faults, rules, weather.is_dynamic);
    if weather.serving > 0 {
        world.limits.serving = weather.serving;
    }
    world.told = told;
    world.network.faults.lose = 0;
    world.populate(2 + dice.below(3) as u16);
    world.network.faults.lose = weather.faults.lose;
    for _ in 0..weather.acts {
        world.disturb(&weather);
        let time = world.act(weather.faults.lose > 0);
        world.run_for(time);
        if !world.harm.is_empty() {
            break;
        }
    }
    if weather.is_left {
        world.leave_all(weather.follow_ups);
    } else {
        // The network heals: then all comes to rest.
        world.network.heal();
        world.settle();
        world.drop_all();
        world.settle();
        world.look_at_rest();
    }
    match world.harm.is_empty() {
        true => Ok(()),
        false => Err(format!("{:?}", world.harm)),
    }
}

impl World {
    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.dice.below(one_in) == 0
    }

    /// Something is broken, perhaps.
    pub fn disturb(&mut self, weather: &Weather) {
        let living = self.living();
        if living.len() > 1 && self.happens(weather.kill) {
            let at = self.dice.pick(&living);
            return self.die(at);
        }
        let dead: Vec<usize> = (0..self.actors.len())
            .filter(|&at| self.actors[at].is_dead)
            .collect();
        if !dead.is_empty() && self.happens(weather.restart) {
            let at = self.dice.pick(&dead);
            return self.restart(at);
        }
        if weather.is_dynamic && self.actors.len() < WORKERS_MAX && self.happens(40) {
            return self.join();
        }
        if weather.is_dynamic && living.len() > 2 && self.happens(60) {
            let at = self.dice.pick(&living);
            return self.leave(at);
        }
        if living.is_empty() {
            return;
        }
        let time = Duration::from_millis(self.dice.pick(&[1, 20, 60, 200]));
        let (at, other) = (self.dice.pick(&living), self.dice.pick(&living));
        if self.happens(weather.pause) {
            self.pause(at, time);
        } else if at != other && self.happens(weather.cut) {
            self.cut(at, other, time);
        }
    }

    /// One act of a worker that is there. How much time passes then.
    pub fn act(&mut self, is_lossy: bool) -> Duration {
        let now = self.now;
        let mut acting = self.living();
        acting.retain(|&at| self.actors[at].has_joined && self.actors[at].paused_until <= now);
        if acting.is_empty() {
            return Duration::from_millis(10);
        }
        let at = self.dice.pick(&acting);
        let to = self.dice.below(self.actors.len() as u64) as usize;
        let held = self.actors[at].held.clone();
        // Without a deadline a lost message would never end.
        let patience = match is_lossy {
            false if self.dice.chance(50) => None,
            _ => Some(Duration::from_micros(1 + self.dice.below(100_000))),
        };
        match self.dice.below(10) {
            0..=2 => {
                let shares = self.some(&held);
                self.call(at, to, Target::Function("f".into()), patience, &shares);
            }
            3 => drop(self.create(at, to, patience)),
            4 if !held.is_empty() => {
                let share = self.dice.pick(&held);
                self.fetch(at, share, patience);
            }
            5 | 6 if !held.is_empty() => {
                let share = self.dice.pick(&held);
                if !self.is_fetched(at, share) {
                    self.release(at, share);
                }
            }
            7 | 8 if !self.actors[at].running.is_empty() => {
                let count = self.actors[at].running.len() as u64;
                let which = self.dice.below(count) as usize;
                let shares = self.some(&held);
                self.finish(at, which, &shares);
            }
            _ => return self.dice.time(Duration::from_millis(5)),
        }
        Duration::ZERO
    }

    /// Worker `at` asks for a value, as an agent does: not for one that is known to be gone, and the share stays until
    /// there is an answer.
    fn fetch(&mut self, at: usize, share: Share, patience: Option<Duration>) {
        let is_gone = |fork| self.actors[at].node.is_gone(fork);
        if !share.fork.is_some_and(is_gone) {
            let (owner, target) = (usize::from(share.owner.0), Target::Fetch(share.rref));
            let job = self.call(at, owner, target, patience, &[]);
            self.actors[at].fetching.push((job, share));
        }
    }

    fn is_fetched(&self, at: usize, share: Share) -> bool {
        let mut fetching = self.actors[at].fetching.iter();
        fetching.any(|(job, of)| *of == share && !self.ended.contains_key(job))
    }

    fn some(&mut self, held: &[Share]) -> Vec<Share> {
        let wanted = self.dice.below(3) as usize;
        (0..wanted.min(held.len()))
            .map(|_| self.dice.pick(held))
            .collect()
    }

    /// A worker wants to leave.
    pub fn leave(&mut self, at: usize) {
        let (now, deadline) = (self.now, self.now.after(PATIENCE));
        self.is_left = true;
        self.actors[at].node.leave(now, deadline);
        self.pump(at);
    }

    /// All leave together; what runs ends by and by, and calls on before it does.
    fn leave_all(&mut self, mut calls: u64) {
        let until = self.now.after(PATIENCE);
        for at in self.living() {
            self.leave(at);
        }
        while self.now <= until && !self.living().is_empty() && self.harm.is_empty() {
            for at in self.living() {
                if self.actors[at].running.is_empty() || self.actors[at].paused_until > self.now {
                    continue;
                }
                let to = self.dice.below(self.actors.len() as u64) as usize;
                if calls > 0 && self.dice.chance(50) {
                    calls -= 1;
                    let patience = Some(Duration::from_millis(200));
                    self.call(at, to, Target::Function("f".into()), patience, &[]);
                }
                if self.dice.chance(30) {
                    self.finish(at, 0, &[]);
                    let held = std::mem::take(&mut self.actors[at].held);
                    for share in held {
                        self.actors[at].held.push(share);
                        self.release(at, share);
                    }
                }
            }
            self.run_for(Duration::from_millis(3));
        }
        self.run_for(Duration::from_millis(500));
        for at in self.living() {
            let what = self.actors[at].node.outstanding();
            self.harm
                .push(format!("the shutdown of worker {at} has no end: {what:?}"));
        }
    }

    /// Ends all running calls, again and again, until none is left and the network is quiet.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..400 {
            for at in 0..self.actors.len() {
                while !self.actors[at].is_dead && !self.actors[at].running.is_empty() {
                    self.finish(at, 0, &[]);
                }
            }
            self.run_for(Duration::from_millis(10));
            let is_quiet = self
                .actors
                .iter()
                .filter(|actor| !actor.is_dead && actor.has_left.is_none())
                .all(|actor| {
                    actor.running.is_empty()
                        && actor.node.call_counts() == (0, 0)
                        && actor.node.references.is_at_rest()
                        && actor.node.outstanding().is_empty()
                });
            let is_awake = self
                .actors
                .iter()
                .all(|actor| actor.paused_until <= self.now);
            let is_quiet = is_quiet && is_awake && !self.network.has_news();
            quiet = if is_quiet { quiet + 1 } else { 0 };
            // What is still under way comes within a few of these.
            if quiet > 5 {
                return;
            }
        }
        let tell = |actor: &Actor| match actor.is_dead {
            true => "dead".to_owned(),
            false => format!(
                "{:?} {:?} {:?}",
                actor.node.states(),
                actor.node.outstanding(),
                actor.node.reference_counts()
            ),
        };
        let what: Vec<_> = self.actors.iter().map(tell).collect();
        self.harm.push(format!("it does not settle: {what:?}"));
    }

    /// All programs drop what they hold.
    pub fn drop_all(&mut self) {
        for at in 0..self.actors.len() {
            while let Some(&share) = self.actors[at].held.first() {
                self.release(at, share);
            }
        }
    }
}
