//! Random programs in random worlds, by seed: `SEEDS=10000 cargo test -p rendez-rpc seeds`, `SEED=42` for one of them.

use super::*;

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SEEDS").unwrap_or(300)).collect(),
    }
}

fn faults(dice: &mut Dice) -> Faults {
    Faults {
        lose: [0, 0, 5, 30][dice.below(4) as usize],
        repeat: [0, 5, 50][dice.below(3) as usize],
        delay: Duration::from_micros([10, 1_000, 30_000][dice.below(3) as usize]),
    }
}

/// One act of a random worker.
fn act(world: &mut World, may_kill: &mut bool) {
    let count = world.actors.len() as u64;
    let (at, to) = (
        world.dice.below(count) as usize,
        world.dice.below(count) as usize,
    );
    if world.actors[at].is_dead {
        return;
    }
    let held = world.actors[at].held.clone();
    let some = |world: &mut World| -> Vec<Share> {
        let wanted = world.dice.below(3) as usize;
        (0..wanted.min(held.len()))
            .map(|_| held[world.dice.below(held.len() as u64) as usize])
            .collect()
    };
    // Without a deadline a lost message would never end.
    let patience = match world.faults.lose {
        0 if world.dice.chance(50) => None,
        _ => Some(Duration::from_micros(1 + world.dice.below(100_000))),
    };
    match world.dice.below(10) {
        0..=2 => {
            let shares = some(world);
            world.call(at, to, plain(), patience, &shares);
        }
        3 => drop(world.create(at, to, patience)),
        4 if !held.is_empty() => {
            let share = held[world.dice.below(held.len() as u64) as usize];
            let to = usize::from(share.owner.0);
            world.call(
                at,
                to,
                Target::Fetch(share.rref),
                Some(Duration::from_millis(50)),
                &[],
            );
        }
        5 | 6 if !held.is_empty() => {
            let share = held[world.dice.below(held.len() as u64) as usize];
            world.release(at, share);
        }
        7 | 8 if !world.actors[at].running.is_empty() => {
            let which = world.dice.below(world.actors[at].running.len() as u64) as usize;
            let shares = some(world);
            world.finish(at, which, &shares);
        }
        9 if *may_kill && world.dice.chance(5) => {
            *may_kill = false;
            world.kill(at);
        }
        _ => {
            let time = Duration::from_micros(world.dice.below(5_000));
            world.run_for(time);
        }
    }
}

#[test]
fn every_call_ends_once_and_no_value_is_freed_while_used_or_kept_for_ever() {
    for seed in seeds() {
        let mut dice = Dice::new(seed ^ 0xabcd);
        let (count, faults) = (2 + dice.below(3) as u16, faults(&mut dice));
        let mut may_kill = dice.chance(30);
        let mut world = World::new(seed, count, QUIET);
        world.faults = faults;
        for _ in 0..200 {
            act(&mut world, &mut may_kill);
        }
        // The network heals: then all comes to rest.
        world.faults = QUIET;
        world.settle();
        world.drop_all();
        world.settle();
        let alive = world
            .actors
            .iter()
            .enumerate()
            .filter(|(_, actor)| !actor.is_dead);
        for (at, actor) in alive {
            let counts = actor.node.reference_counts();
            assert_eq!(
                counts,
                Default::default(),
                "seed {seed}: worker {at} keeps something, {faults:?}"
            );
            assert!(
                actor.values.is_empty(),
                "seed {seed}: worker {at} keeps {:?}",
                actor.values
            );
        }
        let open = (0..world.asked)
            .filter(|job| !world.ended.contains_key(job))
            .count();
        let is_dead = world.actors.iter().any(|actor| actor.is_dead);
        assert!(
            open == 0 || is_dead,
            "seed {seed}: {open} calls have not ended"
        );
        assert!(
            world.harm.is_empty(),
            "seed {seed}, {faults:?}: {:?}",
            world.harm
        );
    }
}
