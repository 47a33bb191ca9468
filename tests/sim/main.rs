//! Simulation: many shards in one thread, under virtual time, over a fabric that misbehaves by seed.
//!
//! ```text
//! cargo test --test sim                    a few hundred seeds, the regressions, and one world for each rule
//! SEEDS=10000 cargo test --test sim seeds  more of them
//! SEED=42 cargo test --test sim seeds      one of them again
//! SEEDS=10000 FIRST=5000 …                 those from 5000 on
//! FAILURES=1 …                             no further than to the first that fails
//! STATE=timers_alone …                     which of them come to a state (`src/core/reached.rs`); not with --release
//! ```

#![allow(unreachable_pub)] // The modules of a test are its own.

mod check;
mod clocks;
mod control;
mod dials;
mod disturb;
mod fairness;
mod graphs;
mod hands;
mod held;
mod landings;
mod model;
#[path = "../number/mod.rs"]
mod number;
mod operate;
mod overload;
mod regressions;
mod returned;
mod rules;
mod unread;
mod waiting;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use dials::Dials;
use number::{count, number};
use world::World;

/// Seeds of a plain `cargo test`.
const SEEDS: u64 = 300;

/// Runs one world; what went wrong, if anything did. A panic of the engine is a failure as well.
pub fn run(dials: Dials) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| World::new(dials).run())) {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// What something gives, and how often it came to a state meanwhile; `None` in a build that does not count that.
pub fn reaching<T>(state: &str, what: impl FnOnce() -> T) -> (T, Option<u64>) {
    let before = times(state);
    let given = what();
    let after = times(state);
    (
        given,
        after.zip(before).map(|(after, before)| after - before),
    )
}

#[cfg(debug_assertions)]
fn times(state: &str) -> Option<u64> {
    Some(rendez::reached::times(state))
}

#[cfg(not(debug_assertions))]
fn times(_: &str) -> Option<u64> {
    None
}

#[test]
fn seeds() {
    if let Some(seed) = number("SEED") {
        let dials = Dials::of_seed(seed);
        eprintln!("{dials:#?}");
        World::new(dials).run().unwrap();
        return;
    }
    let first = number("FIRST").unwrap_or(0);
    let mut failed = Vec::new();
    for seed in first..first + count("SEEDS", SEEDS) {
        let state = std::env::var("STATE").unwrap_or_default();
        let (outcome, times) = reaching(&state, || run(Dials::of_seed(seed)));
        if times.is_some_and(|times| times > 0) {
            eprintln!("seed {seed} comes to {state}");
        }
        if let Err(fault) = outcome {
            eprintln!("SEED={seed} cargo test --test sim seeds  # {fault}");
            failed.push(seed);
        }
        if failed.len() as u64 >= count("FAILURES", 20) {
            break;
        }
    }
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
}
