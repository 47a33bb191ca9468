//! Rules: for each of the sixteen rules of the peer protocol, a world that needs it.
//!
//! Such a world passes with every rule on, and an invariant fails in it with that one rule off. Switches exist with
//! debug assertions only.
#![cfg(debug_assertions)]

use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Once;

use rendez::channel::{Rule, Rules};
use rustix::process::Signal;

use crate::dials::Dials;
use crate::{SEEDS, count, number};

/// Runs worlds until one needs the rule: it passes with all rules, and fails without this one.
fn needs(rule: Rule, worlds: impl Iterator<Item = Dials>) {
    say_no_panics_of_this_thread();
    let mut count = 0;
    let mut shown = None;
    for dials in worlds {
        count += 1;
        let seed = dials.seed;
        let without = crate::run(dials.clone().with(Rules::without(rule)));
        if let Err(harm) = without {
            shown = Some((seed, harm, crate::run(dials)));
            break;
        }
    }
    IS_MUTE.set(false);
    let Some((seed, harm, with)) = shown else {
        panic!("{count} worlds, and none of them needs {rule:?}")
    };
    eprintln!("{rule:?}: seed {seed}, without it: {harm}");
    assert_eq!(with, Ok(()), "seed {seed} fails with all rules on");
}

thread_local! {
    /// Panics of this thread are expected.
    static IS_MUTE: Cell<bool> = const { Cell::new(false) };
}

/// Tests of this file run side by side, beside others whose panics are to be told.
fn say_no_panics_of_this_thread() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_MUTE.get() {
                told(panic);
            }
        }));
    });
    IS_MUTE.set(true);
}

/// Worlds: that of the seed which is known to need the rule, where few do, and then all.
fn seeds(known: u64, change: impl Fn(&mut Dials)) -> impl Iterator<Item = Dials> {
    std::iter::once(known).chain(0..1000).map(move |seed| {
        let mut dials = Dials::plain(seed);
        change(&mut dials);
        dials
    })
}

/// Runs some more of the worlds that need a rule, with all rules on: one for sixteen of those that `seeds` runs.
fn holds(change: impl Fn(&mut Dials)) {
    let first = number("FIRST").unwrap_or(0);
    let more = count("SEEDS", SEEDS).div_ceil(16);
    for seed in first..first + more {
        let mut dials = Dials::of_seed(seed);
        change(&mut dials);
        let outcome = crate::run(dials);
        assert_eq!(outcome, Ok(()), "seed {seed} with this rule's dials");
    }
}

macro_rules! rule {
    ($name:ident, $rule:ident $(from $seed:literal)?, |$dials:ident| $change:expr) => {
        #[test]
        fn $name() {
            let change = |$dials: &mut Dials| $change;
            needs(Rule::$rule, seeds(0 $(+ $seed)?, change));
            holds(change);
        }
    };
}

rule!(
    rule_01_requested_needs_no_credit,
    RequestedNeedsNoCredit,
    |dials| dials.settings.line_window = 20
);
rule!(rule_02_ordinals, Ordinals, |dials| dials.read_domain =
    false);
rule!(rule_03_cancel_answered, CancelAnswered, |dials| dials
    .cancel_one_in =
    3);
rule!(rule_04_write_spends_grant, WriteSpendsGrant, |dials| {
    dials.settings.lease = false;
    dials.bytes_max = 8_000;
    dials.faults.reset_one_in = 300;
});
rule!(rule_05_quiet, Quiet from 611, |dials| dials
    .cancel_one_in =
    3);
rule!(rule_06_lease_stays, LeaseStays, |dials| {
    dials.read_domain = true;
    dials.settings.lease = true;
    dials.bytes_max = 8_000;
    dials.hold_one_in = 2;
});

/// The child that [`rule_07_sealed`] lets run into the harm.
const CHILD: &str = "RENDEZ_SIM_UNSEALED";

/// A world whose tasks do not seal their memory, and take it away once it is mapped.
fn unsealed() -> Dials {
    let mut dials = Dials::calm(7);
    dials.read_domain = true;
    dials.is_unsealed = true;
    dials.bytes_max = 8_000;
    dials
}

/// Without the rule the harm is a fault, which ends the process: so it is another one that has it.
#[test]
fn rule_07_sealed() {
    if std::env::var_os(CHILD).is_some() {
        let outcome = crate::run(unsealed().with(Rules::without(Rule::Sealed)));
        panic!("it lives, with {outcome:?}");
    }
    let mut world = crate::World::new(unsealed());
    assert_eq!(world.run(), Ok(()));
    assert!(world.refused > 0, "a descriptor without seals is refused");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rules::rule_07_sealed"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let bus = Some(Signal::BUS.as_raw());
    assert_eq!(child.status.signal(), bus, "{child:?}");
}

rule!(
    rule_08_kept_until_acknowledged,
    KeptUntilAcknowledged,
    |dials| dials.faults.reset_one_in = 300
);
rule!(rule_09_restarts, Restarts, |dials| dials.restart_one_in =
    100);
rule!(rule_10_interning, Interning, |dials| {
    dials.settings.interned = 2;
    dials.faults.reset_one_in = 300;
});
rule!(rule_11_abort_told, AbortTold, |dials| dials.abort_one_in =
    1);
/// Not run any further than to the harm: these are fewer tombstones than `limits` allows, and an abort that is
/// forgotten while it is still told on goes round for ever.
#[test]
fn rule_12_grace() {
    let change = |dials: &mut Dials| {
        dials.one_sided_one_in = 1;
        dials.settings.table.tombstones = 2;
        (dials.steps, dials.bytes_max) = (12, 1_000);
        (dials.abort_one_in, dials.finish_one_in) = (0, 0);
        (dials.loss_one_in, dials.restart_one_in) = (0, 0);
    };
    needs(Rule::Grace, seeds(0, change));
}

rule!(
    rule_13_parks_until_connected,
    ParksUntilConnected,
    |dials| dials.hurry = 32
);
rule!(
    rule_14_no_order_between_lanes,
    NoOrderBetweenLanes from 707,
    |dials| dials.bytes_max = 8_000
);
rule!(rule_15_landing_budget, LandingBudget, |dials| {
    dials.settings.lease = false;
    dials.settings.landing_bytes = 1 << 12;
    dials.bytes_max = 8_000;
});
rule!(rule_16_duplicates, Duplicates from 197, |dials| dials
    .faults
    .reset_one_in =
    300);
