//! A storm: both sides do everything at random, and a model counts what must come of it.

use std::collections::{BTreeMap, VecDeque};

use rendez::fabric::{Landing, Outcome, Port, PostRefusal, Token, Write};
use rendez::ground::Region;
use rendez::ground::rng::Rng;

use crate::world::{Event, World, frame, pattern, tensor};

/// What one side expects of the future.
#[derive(Default)]
struct Expected {
    /// Frames on their way to this side: number and length.
    frames: VecDeque<(u64, usize)>,
    /// Landings open or closing here, and whether a write was posted for them.
    landings: BTreeMap<(u32, u32), Open>,
    /// Writes posted by this side: their length, and whether the landing was closed meanwhile.
    writes: BTreeMap<u64, (usize, bool)>,
    next: u64,
}

struct Open {
    region: Region,
    written: Option<(u64, usize)>,
    /// By which write.
    token: u64,
    is_closed: bool,
}

/// Runs one storm, closes, and checks that everything came back.
pub(crate) fn storm(mut world: World, seed: u64) {
    // Printed only for a failure: the harness keeps the rest.
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut expected = [Expected::default(), Expected::default()];
    for _ in 0..3_000 {
        let side = rng.below(2) as usize;
        match rng.below(6) {
            0 | 1 => send(&mut world, &mut expected, side, &mut rng),
            2 => open(&mut world, &mut expected[side], side, &mut rng),
            3 => write(&mut world, &mut expected, side, &mut rng),
            4 if rng.one_in(4) => close_landing(&mut world, &mut expected, side, &mut rng),
            _ => {
                world.turn();
            }
        }
        settle(&mut world, &mut expected, false);
    }
    world.rest();
    settle(&mut world, &mut expected, false);
    for expected in &expected {
        assert!(expected.frames.is_empty(), "every frame came");
        assert!(expected.writes.is_empty(), "every write ended");
        assert!(
            expected
                .landings
                .values()
                .all(|open| open.written.is_none() && !open.is_closed)
        );
    }
    world.ports[rng.below(2) as usize].close(world.qps[0]);
    for _ in 0..2 {
        world.rest();
        settle(&mut world, &mut expected, true);
    }
    assert!(
        expected.iter().all(|expected| expected.landings.is_empty()),
        "every buffer came back"
    );
    world.pool.reclaim();
    assert_eq!(world.pool.stats().blocks, 0, "and went home");
}

fn send(world: &mut World, expected: &mut [Expected; 2], side: usize, rng: &mut Rng) {
    let body_max = world.ports[side].caps(world.qps[side]).body_max as u64;
    let len = if rng.one_in(3) {
        rng.below(20)
    } else {
        rng.below(body_max + 1)
    } as usize;
    let number = expected[side].next;
    let body = pattern(number, len);
    let split = rng.below(len as u64 + 1) as usize;
    match world.ports[side].post_send(
        world.qps[side],
        &frame(2, number, len),
        [&body[..split], &body[split..]],
    ) {
        Ok(()) => {
            expected[side].next += 1;
            expected[1 - side].frames.push_back((number, len));
        }
        Err(refusal) => assert_eq!(refusal, PostRefusal::Full),
    }
}

fn open(world: &mut World, expected: &mut Expected, side: usize, rng: &mut Rng) {
    let index = rng.below(8) as u32;
    if expected.landings.keys().any(|&(used, _)| used == index) {
        return;
    }
    let landing = Landing {
        index,
        generation: rng.below(1 << 32) as u32,
    };
    let region = world.open(side, landing, 1 + rng.below(100_000) as usize);
    expected.landings.insert(
        (index, landing.generation),
        Open {
            region,
            written: None,
            token: 0,
            is_closed: false,
        },
    );
}

fn write(world: &mut World, expected: &mut [Expected; 2], side: usize, rng: &mut Rng) {
    let Some((&(index, generation), open)) = expected[1 - side]
        .landings
        .iter_mut()
        .find(|(_, open)| open.written.is_none() && !open.is_closed)
    else {
        return;
    };
    let len = rng.below(open.region.len + 1) as usize;
    let token = rng.next_u64();
    let landing = Landing { index, generation };
    let source = tensor(pattern(token % 97, len));
    let write = Write {
        qp: world.qps[side],
        token: Token(token),
        source,
        landing,
        region: open.region,
    };
    match world.ports[side].post_write(write) {
        Ok(()) => {
            (open.written, open.token) = (Some((token % 97, len)), token);
            expected[side].writes.insert(token, (len, false));
        }
        Err(refused) => assert_eq!(
            (refused.refusal, refused.write.token),
            (PostRefusal::Full, Token(token))
        ),
    }
}

fn close_landing(world: &mut World, expected: &mut [Expected; 2], side: usize, rng: &mut Rng) {
    let [one, other] = expected;
    let (ours, theirs) = if side == 0 {
        (one, other)
    } else {
        (other, one)
    };
    if ours.landings.is_empty() {
        return;
    }
    let at = rng.below(ours.landings.len() as u64) as usize;
    if let Some((&(index, generation), open)) = ours.landings.iter_mut().nth(at) {
        open.is_closed = true;
        if let Some((_, is_closed)) = theirs.writes.get_mut(&open.token) {
            *is_closed = true;
        }
        world.ports[side].close_landing(world.qps[side], Landing { index, generation });
    }
}

/// Checks what came against what was expected. Only the end of a queue pair, and of a landing, excuses anything.
fn settle(world: &mut World, expected: &mut [Expected; 2], is_over: bool) {
    for (side, expected) in expected.iter_mut().enumerate() {
        for event in world.take_log(side) {
            match event {
                Event::Frame { frame, body } => {
                    let (number, len) = expected.frames.pop_front().expect("a frame that was sent");
                    assert_eq!((frame.words[2], body), (number, pattern(number, len)));
                }
                Event::Landed {
                    landing,
                    len,
                    buffer,
                } => {
                    let open = expected
                        .landings
                        .remove(&(landing.index, landing.generation));
                    let (seed, sent) = open
                        .and_then(|open| open.written)
                        .expect("a landing that was written");
                    assert_eq!(len, sent as u64);
                    assert_eq!(buffer[..sent], pattern(seed, sent)[..]);
                }
                Event::Quiet { landing, buffer } => {
                    let open = expected
                        .landings
                        .remove(&(landing.index, landing.generation));
                    let open = open.expect("a landing that was open");
                    assert!(
                        open.is_closed || is_over,
                        "a landing came back that was not closed"
                    );
                    assert_eq!(buffer.len() as u64, open.region.len);
                }
                Event::Wrote {
                    token,
                    source,
                    outcome,
                } => {
                    let (len, is_closed) = expected
                        .writes
                        .remove(&token.0)
                        .expect("a write that was posted");
                    assert_eq!(source.host().unwrap(), pattern(token.0 % 97, len));
                    assert!(
                        outcome == Outcome::Done || (outcome == Outcome::Refused && is_closed),
                        "{outcome:?}, and the landing was closed: {is_closed}"
                    );
                }
                Event::Down { .. } => assert!(is_over, "a queue pair went down by itself"),
            }
        }
    }
}
