//! Random programs in random worlds, by seed:
//!
//! ```text
//! SEEDS=100000 cargo test --release -p rendez-rpc --lib seeds   so many of them
//! SEEDS=10000 FIRST=5000 …                                      those from 5000 on
//! SEED=42 …                                                     one of them again
//! SEED=42 TRACE=1 …                                             and all that happens in it
//! ```

use crate::node::Rules;
use crate::node::world::{Dice, Weather, run};

/// Seeds of a plain `cargo test`.
const SEEDS: u64 = 400;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_call_ends_once_and_no_value_is_freed_while_used_or_kept_for_ever() {
    if let Some(seed) = number("SEED") {
        let weather = Weather::of(&mut Dice::new(seed));
        eprintln!("{weather:#?}");
        return assert_eq!(run(seed, weather, Rules::ALL), Ok(()));
    }
    let first = number("FIRST").unwrap_or(0);
    let (mut failed, most) = (Vec::new(), number("FAILURES").unwrap_or(20));
    for seed in first..first + number("SEEDS").unwrap_or(SEEDS) {
        if let Err(harm) = run(seed, Weather::of(&mut Dice::new(seed)), Rules::ALL) {
            eprintln!("SEED={seed} cargo test -p rendez-rpc --lib seeds  # {harm}");
            failed.push(seed);
        }
        if failed.len() as u64 >= most {
            break;
        }
    }
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
}
