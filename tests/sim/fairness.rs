//! Fairness: one greedy peer among many, one greedy key among many. What others wait is counted in ticks: a turn each.

use rendez::fabric::AnyPort;
use rendez::ground::{Key, Nanos};

use crate::dials::Dials;
use crate::world::{World, faulty};

/// The receiver, the greedy one, and three who are not.
const TASKS: usize = 5;

fn crowd(seed: u64, is_stream: bool) -> World {
    let mut dials = Dials::calm(seed);
    dials.shards = vec![1; TASKS];
    dials.is_stream = is_stream;
    dials.settings.landing_bytes = 1 << 18;
    dials.settings.connect_timeout_ns = 60_000_000_000;
    let mut world = World::new(dials);
    world.ticks(50);
    world
}

fn key(from: usize, to: usize, edge: &str) -> Key {
    Key::between(&format!("t{from}"), &format!("t{to}"), edge).unwrap()
}

/// The longest that a value of the modest ones takes, each sending one after the other; `greed` acts in each round.
fn slowest(world: &mut World, len: usize, mut greed: impl FnMut(&mut World, u64)) -> usize {
    let mut worst = 0;
    for round in 0..60 {
        greed(world, round);
        let waits: Vec<_> = (2..TASKS)
            .map(|from| {
                let key = key(from, 0, "modest");
                world.give(from, 1, &key, round, len).unwrap();
                world.want(0, 1, &key)
            })
            .collect();
        for waiting in waits {
            let (ticks, number) = world.ticks_until(&waiting, 2_000).expect("it starves");
            assert_eq!(number, round);
            worst = worst.max(ticks);
        }
    }
    worst
}

/// What the greedy peer sends and is not taken holds its own credit and its own memory; and it asks for what no one
/// sends.
fn flood(world: &mut World, round: u64) {
    let mut refused = 0;
    for at in 0..100 {
        let number = round * 100 + at;
        let edge = format!("flood{}", number % 64);
        let len = if at % 10 == 0 { 20_000 } else { 600 };
        let sent = world.give(1, 2, &key(1, 0, &edge), number, len);
        refused += usize::from(sent.is_err());
    }
    for at in 0..10 {
        let never = key(0, 1, &format!("never{}", at + 10 * (round % 10)));
        drop(world.want(1, 2, &never));
    }
    assert!(refused < 100 || round > 10, "it has bounds of its own");
}

#[test]
fn a_peer_that_floods_starves_nobody() {
    for is_stream in [false, true] {
        for len in [8, 500, 10_000] {
            let alone = slowest(&mut crowd(1, is_stream), len, |_, _| {});
            let beside = slowest(&mut crowd(1, is_stream), len, flood);
            assert!(
                beside <= 4 * alone + 20,
                "{len} bytes, stream {is_stream}: {beside} ticks beside a flood, {alone} alone"
            );
        }
    }
}

/// A peer whose large values are all wanted, and that then stands still in the middle of writing them, holds its share
/// of the landing budget, and no more.
#[test]
fn a_peer_that_stalls_leaves_room_for_landings() {
    for is_stream in [false, true] {
        let mut world = crowd(2, is_stream);
        let edges: Vec<_> = (0..40).map(|at| key(1, 0, &format!("large{at}"))).collect();
        for (at, edge) in edges.iter().enumerate() {
            world.give(1, 2, edge, at as u64, 30_000).unwrap();
        }
        world.ticks(20);
        let until = Nanos(world.now() + 5_000_000);
        for port in faulty(&mut world.nodes[1].solos[0]) {
            port.pause(until);
        }
        let waits: Vec<_> = edges.iter().map(|edge| world.want(0, 2, edge)).collect();
        let worst = slowest(&mut world, 30_000, |_, _| {});
        // The standstill lasts a thousand.
        assert!(worst < 200, "stream {is_stream}: {worst} ticks");
        for (at, waiting) in waits.iter().enumerate() {
            let (_, number) = world.ticks_until(waiting, 20_000).expect("it goes on");
            assert_eq!(number, at as u64);
        }
    }
}

/// One key has thousands of values that are not taken, or is asked for thousands of times: others of its link move.
#[test]
fn a_greedy_key_starves_no_other() {
    let mut world = crowd(3, false);
    let greedy = key(2, 0, "greedy");
    let asked = key(2, 0, "asked");
    let worst = slowest(&mut world, 500, |world, round| {
        for at in 0..100 {
            // Far more than the link has credit for, and less than its own table takes.
            if round < 30 {
                world.give(2, 2, &greedy, round * 100 + at, 700).unwrap();
            }
        }
        for _ in 0..5 {
            drop(world.want(0, 2, &asked));
        }
    });
    assert!(worst < 60, "{worst} ticks");
}

/// Values of one key keep their order, whatever their length, when connections break between them.
#[test]
fn a_key_keeps_its_order_across_connections_and_lengths() {
    for seed in 0..20 {
        let mut world = crowd(seed, seed % 2 == 1);
        let edge = key(1, 0, "mixed");
        let mut sent = 0;
        for round in 0..40 {
            for _ in 0..8 {
                let len = [8, 40_000, 900, 16, 5_000][world.rng.below(5) as usize];
                world.give(1, 1, &edge, sent, len).unwrap();
                sent += 1;
            }
            if round % 5 == 4 {
                let solo = &mut world.nodes[(round / 5) % 2].solos[0];
                let task = format!("/job:t{}/task:0", 1 - (round / 5) % 2);
                let task = rendez::ground::device::TaskName::parse(&task).unwrap();
                if let Some((port, qp)) = solo.queue_pair(&task, 0)
                    && let AnyPort::Faulty(port) = &mut solo.ports_mut()[port]
                {
                    port.reset(qp);
                }
            }
            for at in sent - 8..sent {
                let waiting = world.want(0, 1, &edge);
                let (_, number) = world.ticks_until(&waiting, 5_000).expect("it comes");
                assert_eq!(number, at, "seed {seed}");
            }
        }
    }
}
