//! What the faulty port adds: it does go wrong, within the promises, and the same way for the same seed.

use rendez::fabric::faulty::Faults;
use rendez::fabric::{AnyPort, DownReason, FaultyPort, Landing, Port};
use rendez::ground::Nanos;

use crate::world::{Event, World, frame, pattern, tensor};

fn world(faults: Faults, seed: u64) -> World {
    let (ports, qps, window) = crate::loopback();
    let [one, other] = ports;
    let wrap = |port, seed| AnyPort::Faulty(Box::new(FaultyPort::new(port, faults, seed)));
    World::new(([wrap(one, seed), wrap(other, seed + 1)], qps, window))
}

const WILD: Faults = Faults {
    latency_min_ns: 100,
    latency_max_ns: 60_000,
    refuse_one_in: 4,
    reset_one_in: 0,
    pause_one_in: 50,
    pause_max_ns: 20_000,
    unopened_one_in: 0,
    linger_one_in: 0,
    linger_max_ns: 0,
};

fn port(world: &mut World, side: usize) -> &mut FaultyPort {
    match &mut world.ports[side] {
        AnyPort::Faulty(port) => port,
        _ => unreachable!("made so above"),
    }
}

/// A run in a few words: which kinds of event came when.
fn run(seed: u64) -> Vec<(u64, usize, String)> {
    let mut world = world(WILD, seed);
    let mut story = Vec::new();
    for number in 0..40 {
        let landing = Landing {
            index: number as u32,
            generation: 0,
        };
        let region = world.open(1, landing, 5_000);
        world.write(0, number, tensor(pattern(number, 5_000)), landing, region);
        world.send(0, &frame(1, number, 100), [&[1; 100], &[]]);
        for side in 0..2 {
            for event in world.take_log(side) {
                story.push((
                    world.now,
                    side,
                    format!("{:?}", std::mem::discriminant(&event)),
                ));
            }
        }
    }
    story
}

#[test]
fn the_same_seed_gives_the_same_story() {
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn faults_do_happen() {
    let mut world = world(WILD, 3);
    let mut order = Vec::new();
    for number in 0..60 {
        let landing = Landing {
            index: number as u32,
            generation: 0,
        };
        let region = world.open(1, landing, 100);
        world.write(0, number, tensor(pattern(number, 100)), landing, region);
        world.send(0, &frame(1, number, 0), [&[], &[]]);
    }
    world.until(1, 120);
    world.until(0, 60);
    for event in world.take_log(1) {
        match event {
            Event::Landed {
                landing, buffer, ..
            } => {
                assert_eq!(
                    buffer[..],
                    pattern(u64::from(landing.index), 100)[..],
                    "late, but whole"
                );
                order.push((true, u64::from(landing.index)));
            }
            Event::Frame { frame, .. } => order.push((false, frame.words[2])),
            other => panic!("{other:?}"),
        }
    }
    let frames: Vec<_> = order
        .iter()
        .filter(|(landed, _)| !landed)
        .map(|&(_, number)| number)
        .collect();
    assert!(frames.is_sorted(), "frames keep their order");
    let landed: Vec<_> = order
        .iter()
        .filter(|(landed, _)| *landed)
        .map(|&(_, number)| number)
        .collect();
    assert!(!landed.is_sorted(), "landings do not");
    world.rest();
    let counts = port(&mut world, 0).counts();
    assert!(counts.refused > 0 && counts.held > 0, "{counts:?}");
    assert!(counts.pauses > 0, "{counts:?}");
}

#[test]
fn a_reset_gives_everything_back_on_both_sides() {
    let mut lost = 0;
    for seed in 0..30 {
        let mut world = world(
            Faults {
                reset_one_in: 40,
                ..WILD
            },
            seed,
        );
        let mut open = [0, 0];
        let mut posted = 0;
        for number in 0..200 {
            for (side, open) in open.iter_mut().enumerate() {
                let qp = world.qps[side];
                let buffer = world.pool.buffer(3_000).expect("pool");
                let landing = Landing {
                    index: number as u32,
                    generation: 1,
                };
                *open += usize::from(world.ports[side].open_landing(qp, landing, buffer).is_ok());
            }
            let sent = world.ports[0].post_send(world.qps[0], &frame(1, number, 0), [&[], &[]]);
            posted += usize::from(sent.is_ok());
            world.turn();
        }
        world.rest();
        for (side, open) in open.into_iter().enumerate() {
            let log = world.take_log(side);
            let Some(Event::Down { reason }) = log.last() else {
                panic!("Down comes, and last: {:?}", log.last())
            };
            assert!(
                matches!(reason, DownReason::Reset | DownReason::PeerClosed),
                "{reason:?}"
            );
            assert_eq!(
                log.iter()
                    .filter(|event| matches!(event, Event::Quiet { .. }))
                    .count(),
                open
            );
            if side == 1 {
                let numbers: Vec<_> = log
                    .iter()
                    .filter_map(|event| {
                        if let Event::Frame { frame, .. } = event {
                            Some(frame.words[2])
                        } else {
                            None
                        }
                    })
                    .collect();
                assert!(numbers.is_sorted());
                lost += posted - numbers.len();
            }
        }
        world.pool.reclaim();
        assert_eq!(world.pool.stats().blocks, 0);
    }
    assert!(lost > 0, "a reset loses something now and then");
}

#[test]
fn a_paused_side_stands_still() {
    let mut world = world(Faults::default(), 0);
    port(&mut world, 1).pause(Nanos(50_000));
    world.send(0, &frame(1, 0, 0), [&[], &[]]);
    while world.now < 49_000 {
        world.turn();
        assert!(world.log[1].is_empty());
    }
    world.until(1, 1);
}
