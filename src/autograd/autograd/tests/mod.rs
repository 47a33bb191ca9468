//! The machine in worlds of several workers.

mod bytes;
mod composed;
mod engine;
mod looks;
mod losses;
#[path = "../../../../tests/number/mod.rs"]
mod number;
mod program;
mod rules;
mod seeds;
mod world;

use super::rules::Rules;
use super::{Body, Message, Mode, Options, Session};
use rendez::ground::{Status, catalogue};
use world::{Outcome, World};

fn name(body: &Body<i64>) -> &'static str {
    match body {
        Body::Joined { .. } => "joined",
        Body::Release { .. } => "release",
        Body::Mark { .. } => "mark",
        Body::Gradient { .. } => "gradient",
        Body::Ack { .. } => "ack",
        Body::Fail { .. } => "fail",
        Body::Forgot => "forgot",
        Body::Doubt { .. } => "doubt",
    }
}

/// A message of the first connection, to any.
fn message(number: u64, body: Body<i64>) -> Message<i64> {
    Message {
        from: Session::default(),
        to: None,
        number,
        body,
    }
}

/// What may happen in a world beside calls, sums and passes.
#[derive(Clone, Copy)]
struct Weather {
    deaths: bool,
    releases: bool,
    fast: bool,
    unretained: bool,
}

const CALM: Weather = Weather {
    deaths: false,
    releases: false,
    fast: false,
    unretained: false,
};

/// Lives through one world, and checks that everything ends, that gradients are right and that nothing is left.
fn live(seed: u64, weather: Weather) -> World {
    live_with(seed, weather, Rules::ALL)
}

fn live_with(seed: u64, weather: Weather, rules: Rules) -> World {
    let workers = 2 + (seed % 4) as u16;
    let mut world = World::new(seed, workers, 5);
    world.keep_to(rules);
    let mut contexts = vec![];
    for _ in 0..=world.rng.below(2) {
        let at = world.pick();
        let context = world.create(at);
        world.leaf(at, context);
        contexts.push(context);
    }
    let mut was_used_up = false;
    for _ in 0..40 + world.rng.below(60) {
        let context = contexts[world.rng.below(contexts.len() as u64) as usize];
        let at = world.pick();
        match world.rng.below(20) {
            0 if weather.deaths && world.living().len() > 1 && world.rng.one_in(4) => {
                world.kill(at)
            }
            1 if weather.releases && world.rng.one_in(4) => world.release(context),
            2 | 3 if world.machine(at).holds(context) => {
                world.leaf(at, context);
            }
            4..=7 => {
                world.sum(at, context);
            }
            8..=11 => {
                let to = world.pick();
                world.call(at, to, context);
            }
            12 => {
                let retain = !weather.unretained || world.rng.one_in(2);
                let mode = if weather.fast && world.rng.one_in(2) {
                    Mode::Fast
                } else {
                    Mode::Smart
                };
                was_used_up |= !retain
                    && world
                        .backward(at, context, Options { mode, retain })
                        .is_some();
                if retain {
                    world.backward(at, context, Options { mode, retain });
                }
            }
            _ => {
                world.step();
            }
        }
    }
    world.drain();
    assert_eq!(world.endless(), [], "passes without an end");
    let is_calm = !weather.deaths && !weather.releases;
    for Outcome { result, .. } in world.outcomes.values() {
        if let Some(Err(error)) = result {
            let of = |reasons: &[&str]| reasons.contains(&error.reason());
            let is_unused =
                weather.fast && of(&[catalogue::AUTOGRAD_UNUSED_SEND, catalogue::AUTOGRAD_MESSAGE]);
            let is_used_up = was_used_up
                && of(&[
                    catalogue::AUTOGRAD_FUNCTION_UNKNOWN,
                    catalogue::AUTOGRAD_GRAPH_FREED,
                ]);
            assert!(!is_calm || is_unused || is_used_up, "{error}");
        }
    }
    if is_calm {
        contexts
            .iter()
            .for_each(|context| world.check_gradients(*context));
    }
    contexts.iter().for_each(|context| world.release(*context));
    world.drain();
    world.check_empty();
    world
}

/// Seeds of a property: from `FIRST` on, `RENDEZ_AUTOGRAD_SEEDS` of them, or 3000.
fn seeds() -> std::ops::Range<u64> {
    let first = number::number("FIRST").unwrap_or(0);
    first..first + number::count("RENDEZ_AUTOGRAD_SEEDS", 3_000)
}

fn went_well(world: &World) -> usize {
    let well = world
        .outcomes
        .values()
        .filter(|outcome| matches!(outcome.result, Some(Ok(()))));
    well.count()
}

#[test]
fn smart_passes_over_a_faulty_network_are_exact_and_always_end_well() {
    let mut passes = 0;
    for seed in seeds() {
        let world = live(seed, CALM);
        passes += world.outcomes.len();
        assert_eq!(went_well(&world), world.outcomes.len(), "seed {seed}");
    }
    assert!(passes > 1000 || seeds().count() < 3000, "{passes} passes");
}

#[test]
fn fast_passes_are_exact_or_end_with_the_functions_that_were_not_used() {
    let weather = Weather {
        deaths: false,
        releases: false,
        fast: true,
        unretained: true,
    };
    let (mut well, mut all) = (0, 0);
    for seed in seeds() {
        let world = live(seed, weather);
        well += went_well(&world);
        all += world.outcomes.len();
    }
    assert!(well > 0 && well < all, "{well} of {all}");
}

#[test]
fn passes_end_when_workers_die() {
    let weather = Weather {
        deaths: true,
        releases: false,
        fast: true,
        unretained: true,
    };
    let (mut well, mut died) = (0, 0);
    for seed in seeds() {
        let world = live(seed, weather);
        well += went_well(&world);
        let is_death = |error: &Status| error.reason() == catalogue::AUTOGRAD_WORKER_DEAD;
        let results = world
            .outcomes
            .values()
            .filter_map(|outcome| outcome.result.as_ref());
        died += results
            .filter(|result| result.as_ref().is_err_and(is_death))
            .count();
    }
    assert!(well > 0 && died > 0, "{well} went well, {died} did not");
}

#[test]
fn passes_end_when_contexts_are_released_under_them() {
    let weather = Weather {
        deaths: false,
        releases: true,
        fast: true,
        unretained: true,
    };
    let mut released = 0;
    for seed in seeds() {
        let world = live(seed, weather);
        let is_release = |error: &Status| {
            [
                catalogue::AUTOGRAD_CONTEXT_RELEASED,
                catalogue::AUTOGRAD_CONTEXT_UNKNOWN,
            ]
            .contains(&error.reason())
        };
        let results = world
            .outcomes
            .values()
            .filter_map(|outcome| outcome.result.as_ref());
        released += results
            .filter(|result| result.as_ref().is_err_and(is_release))
            .count();
    }
    assert!(released > 0);
}

#[test]
fn everything_at_once() {
    let weather = Weather {
        deaths: true,
        releases: true,
        fast: true,
        unretained: true,
    };
    for seed in seeds() {
        live(seed, weather);
    }
}
