//! Tests of the wheel against a map, over all of the clock.

use std::collections::BTreeMap;

use super::Timers;
use crate::ground::Nanos;
use crate::ground::rng::Rng;

/// Everything due by `now`, sorted.
fn due(timers: &mut Timers, now: Nanos) -> Vec<u32> {
    let mut all: Vec<u32> = std::iter::from_fn(|| timers.pop(now)).collect();
    all.sort_unstable();
    all
}

#[test]
fn fires_what_a_map_fires() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut timers = Timers::new();
        // By waiter: the number of its timer, and its deadline.
        let mut model: BTreeMap<u32, (u32, Nanos)> = BTreeMap::new();
        let mut now = Nanos(rng.next_u64() >> rng.below(64));
        for _ in 0..2_000 {
            let waiter = rng.below(200) as u32;
            match rng.below(4) {
                0 => {
                    if let Some((timer, _)) = model.remove(&waiter) {
                        timers.clear(timer);
                    }
                }
                1 | 2 => {
                    // Near and far, in the past too, and right at the end of time.
                    let ahead = rng.next_u64() >> rng.below(64);
                    let deadline = if rng.one_in(10) {
                        Nanos(now.0 / 2)
                    } else {
                        now + ahead
                    };
                    if deadline != Nanos::NEVER && !model.contains_key(&waiter) {
                        model.insert(waiter, (timers.set(waiter, deadline), deadline));
                    }
                }
                _ => {
                    now = match timers.next() {
                        Some(next) if rng.one_in(2) => next.max(now),
                        _ => now + (rng.next_u64() >> rng.below(64)) / 8,
                    };
                    let expected: Vec<u32> = model
                        .iter()
                        .filter(|(_, (_, deadline))| *deadline <= now)
                        .map(|(waiter, _)| *waiter)
                        .collect();
                    model.retain(|_, (_, deadline)| *deadline > now);
                    assert_eq!(due(&mut timers, now), expected, "seed {seed} at {now:?}");
                    assert!(
                        timers.next().is_none_or(|next| next > now),
                        "asked again only later"
                    );
                }
            }
            let earliest = model.values().map(|(_, deadline)| *deadline).min();
            assert!(timers.next() <= earliest || earliest.is_none());
            assert_eq!(timers.next().is_some(), earliest.is_some());
        }
    }
}

#[test]
fn following_its_own_time_it_arrives_at_the_deadline() {
    let mut timers = Timers::new();
    timers.set(7, Nanos(123_456_789_012_345));
    let mut asked = 0;
    loop {
        let next = timers.next().expect("a deadline stands");
        assert!(next <= Nanos(123_456_789_012_345));
        asked += 1;
        if timers.pop(next).is_some() {
            assert_eq!(next, Nanos(123_456_789_012_345));
            break;
        }
    }
    assert!(
        asked <= 10,
        "woken {asked} times, and once a level would do"
    );
}
