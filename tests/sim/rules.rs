//! Rules: for each of the sixteen rules of the peer protocol, a world that needs it.
//!
//! Such a world passes with every rule on, and an invariant fails in it with that one rule off. Switches exist with
//! debug assertions only.
#![cfg(debug_assertions)]

use rendez::channel::{Rule, Rules};

use crate::dials::Dials;

/// Runs worlds until one needs the rule: it passes with all rules, and fails without this one.
fn needs(rule: Rule, worlds: impl Iterator<Item = Dials>) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
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
    std::panic::set_hook(hook);
    let Some((seed, harm, with)) = shown else {
        panic!("{count} worlds, and none of them needs {rule:?}")
    };
    eprintln!("{rule:?}: seed {seed}, without it: {harm}");
    assert_eq!(with, Ok(()), "seed {seed} fails with all rules on");
}

fn seeds(change: impl Fn(&mut Dials)) -> impl Iterator<Item = Dials> {
    (0..400).map(move |seed| {
        let mut dials = Dials::of_seed(seed);
        change(&mut dials);
        dials
    })
}

macro_rules! rule {
    (unproved: $name:ident, $rule:ident, |$dials:ident| $change:expr) => {
        #[test]
        #[ignore = "no world shows the harm of this rule's absence yet"]
        fn $name() {
            needs(Rule::$rule, seeds(|$dials: &mut Dials| $change));
        }
    };
    ($name:ident, $rule:ident, |$dials:ident| $change:expr) => {
        #[test]
        fn $name() {
            needs(Rule::$rule, seeds(|$dials: &mut Dials| $change));
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
rule!(unproved: rule_04_write_spends_grant, WriteSpendsGrant, |dials| {
    dials.bytes_max = 8_000
});
rule!(rule_05_quiet, Quiet, |dials| dials.cancel_one_in = 3);
rule!(unproved: rule_06_lease_stays, LeaseStays, |dials| {
    dials.read_domain = true;
    dials.settings.lease = true;
});
rule!(
    rule_08_kept_until_acknowledged,
    KeptUntilAcknowledged,
    |dials| dials.faults.reset_one_in = 300
);
rule!(rule_09_restarts, Restarts, |dials| dials.restart_one_in =
    100);
rule!(unproved: rule_10_interning, Interning, |dials| dials
    .faults
    .reset_one_in =
    300);
rule!(rule_11_abort_told, AbortTold, |dials| dials.abort_one_in =
    1);
rule!(unproved: rule_12_grace, Grace, |dials| dials.one_sided_one_in = 2);
rule!(
    rule_13_parks_until_connected,
    ParksUntilConnected,
    |dials| dials.hurry = 32
);
rule!(
    rule_14_no_order_between_lanes,
    NoOrderBetweenLanes,
    |dials| dials.bytes_max = 8_000
);
rule!(unproved: rule_15_landing_budget, LandingBudget, |dials| dials
    .settings
    .landing_bytes =
    1 << 12);
rule!(rule_16_duplicates, Duplicates, |dials| dials
    .faults
    .reset_one_in =
    300);
