//! Random programs in random composed worlds, by seed:
//!
//! ```text
//! SEEDS=100000 cargo test --release -p rendez-autograd --lib seeds   so many of them
//! SEEDS=10000 FIRST=5000 …                                           those from 5000 on
//! SEED=42 …                                                          one of them again
//! SEED=42 TRACE=1 …                                                  and all that happens in it
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(debug_assertions)]
use std::time::Duration;

use super::number::{count, number};
use super::program::{Plan, Seen, live};
#[cfg(debug_assertions)]
use crate::autograd::rules::MachineRule;
use crate::autograd::rules::Rules;

/// Seeds of a plain `cargo test`.
const SEEDS: u64 = 300;

/// Lives through one world; a panic in it is harm as well.
fn try_live(seed: u64, plan: &Plan, rules: Rules) -> Result<Seen, String> {
    let lived = catch_unwind(AssertUnwindSafe(|| live(seed, plan, rules)));
    lived.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.unwrap_or_else(|| "it panicked".into()))
    })
}

#[test]
fn every_pass_ends_and_no_context_is_kept_when_workers_die_pause_or_are_cut_off() {
    if let Some(seed) = number("SEED") {
        let plan = Plan::of(seed);
        eprintln!("{plan:#?}");
        let seen = live(seed, &plan, Rules::ALL).unwrap_or_else(|harm| panic!("{harm}"));
        return eprintln!("{seen:?}");
    }
    let first = number("FIRST").unwrap_or(0);
    let (seeds, most) = (count("SEEDS", SEEDS), count("FAILURES", 20));
    let (mut failed, mut all) = (Vec::new(), Seen::default());
    for seed in first..first + seeds {
        match try_live(seed, &Plan::of(seed), Rules::ALL) {
            Ok(seen) => {
                all.well += seen.well;
                all.badly += seen.badly;
                all.lost += seen.lost;
                all.apart += seen.apart;
                all.given_up += seen.given_up;
                all.dropped += seen.dropped;
            }
            Err(harm) => {
                eprintln!("SEED={seed} cargo test -p rendez-autograd --lib seeds  # {harm}");
                failed.push(seed);
            }
        }
        if failed.len() as u64 >= most {
            break;
        }
    }
    eprintln!("{all:?}");
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    let Seen {
        well,
        badly,
        lost,
        apart,
        given_up,
        ..
    } = all;
    let counts = [well, badly, lost, apart, given_up];
    let has_all = counts.iter().all(|count| *count > 0) && all.dropped > 0;
    assert!(seeds < SEEDS || has_all, "{all:?}");
}

/// How many are tried for one that needs a rule.
#[cfg(debug_assertions)]
const WORLDS: u64 = 6000;

/// Worlds in which a rule is needed: those that need none of it are left out, and it is tried more often.
#[cfg(debug_assertions)]
fn plan(rule: MachineRule, seed: u64) -> Plan {
    let mut plan = Plan::of(seed);
    match rule {
        MachineRule::UntoldReleases => plan.weather.is_dynamic = true,
        MachineRule::UndeliveredFails => (plan.window, plan.retries) = (1, 1),
        MachineRule::DoubtAsked => {
            (plan.weather.kill, plan.weather.pause, plan.weather.cut) = (0, 0, 12);
            (plan.weather.is_dynamic, plan.weather.acts) = (false, 300);
            (plan.fast, plan.unretained, plan.releases) = (false, false, false);
        }
        MachineRule::SessionsCompared => plan.lag = Duration::from_millis(40),
        _ => {}
    }
    plan
}

/// Whether the worlds that repeat messages of the machine come to harm.
#[cfg(debug_assertions)]
fn is_harmed_by_repeats(rules: Rules) -> bool {
    let live = |seed| super::live_with(seed, super::CALM, rules);
    (0..100).any(|seed| catch_unwind(|| live(seed)).is_err())
}

#[test]
#[cfg(debug_assertions)]
fn each_rule_switched_off_shows_harm() {
    let mut wrong = Vec::new();
    for &rule in MachineRule::ALL {
        if rule == MachineRule::MessagesCountOnce {
            // A call brings its message once, whatever the network repeats: other worlds repeat messages.
            assert!(!is_harmed_by_repeats(Rules::ALL));
            assert!(is_harmed_by_repeats(Rules::without(rule)));
            continue;
        }
        let try_with = |seed, rules| try_live(seed, &plan(rule, seed), rules);
        // Of rules that one world in thousands needs, the first such; where it shows no harm any more, all are tried.
        let known = match rule {
            MachineRule::ReleaseRemembered => 786,
            MachineRule::RootCounts => 3266,
            MachineRule::DoubtAsked => 5940,
            _ => 0,
        };
        let shown = std::iter::once(known).chain(0..WORLDS).find_map(|seed| {
            let harm = try_with(seed, Rules::without(rule)).err()?;
            Some((seed, harm, try_with(seed, Rules::ALL)))
        });
        match shown {
            None => wrong.push(format!("{WORLDS} worlds, and none of them needs {rule:?}")),
            Some((seed, harm, Ok(_))) => {
                eprintln!("{rule:?}: seed {seed}, without it: {harm:.200}");
            }
            Some((seed, _, Err(harm))) => {
                wrong.push(format!(
                    "{rule:?}: seed {seed} fails with all rules on: {harm}"
                ));
            }
        }
        if !wrong.is_empty() {
            // Worlds that break a rule in any case may have no end.
            break;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
