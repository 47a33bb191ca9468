//! The suite: what each promise of the fabric looks like from above.

use rendez::fabric::{DownReason, Landing, Outcome, Port, PostRefusal, Token, Write};
use rendez::ground::MemoryKind;
use rendez::memory::{DeviceMemory, DevicePtr, Tensor};

use crate::world::{Event, World, frame, pattern, tensor};

/// Sizes around everything that is done differently: the tail, a cache line, a page, the longest.
fn sizes(body_max: usize) -> Vec<usize> {
    let mut sizes = vec![
        0, 1, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096,
    ];
    sizes.extend([body_max - 1, body_max]);
    sizes.retain(|&size| size <= body_max);
    sizes
}

pub(crate) fn bodies(world: &mut World) {
    let body_max = world.ports[0].caps(world.qps[0]).body_max;
    let mut expected = Vec::new();
    let mut number = 0;
    for size in sizes(body_max) {
        for split in [0, size / 3, size.min(16), size.saturating_sub(1), size] {
            let body = pattern(number, size);
            world.send(0, &frame(1, number, size), [&body[..split], &body[split..]]);
            expected.push(body);
            number += 1;
        }
    }
    world.until(1, expected.len());
    for (number, (event, expected)) in world.take_log(1).into_iter().zip(expected).enumerate() {
        let Event::Frame { frame: got, body } = event else {
            panic!("{event:?}")
        };
        let sent = frame(1, number as u64, expected.len());
        assert_eq!(
            got.words[..6],
            sent.words[..6],
            "the frame is as posted, without a stamp"
        );
        assert_eq!(body, expected, "body of frame {number}");
    }
    // A short body may lie in the tail already.
    let mut told = frame(1, 99, 11);
    told.words[6] = u64::from_le_bytes(*b"already ");
    told.words[7] = u64::from_le_bytes(*b"in\0\0\0\0\0\0");
    world.send(1, &told, [&[], &[]]);
    world.until(0, 1);
    assert!(matches!(&world.log[0][0], Event::Frame { body, .. } if body == b"already in\0"));
}

pub(crate) fn full(world: &mut World) {
    let body_max = world.ports[0].caps(world.qps[0]).body_max;
    let (mut sent, mut seen) = (0, 0);
    for size in [0, 16, 17, 100, body_max, 0, body_max / 2 + 1] {
        for _ in 0..3 {
            let body = pattern(0, size);
            let mut refused = 0;
            // A faulty port refuses with room left; the ring itself is full only after some refusals in a row.
            while refused < 50 {
                match world.ports[0].post_send(world.qps[0], &frame(1, sent, size), [&body, &[]]) {
                    Ok(()) => sent += 1,
                    Err(refusal) => {
                        assert_eq!(refusal, PostRefusal::Full);
                        refused += 1;
                    }
                }
                assert!(
                    sent - seen <= world.window,
                    "more posted than there is room for"
                );
            }
            assert!(
                sent - seen >= 2,
                "there is always room for two of the longest"
            );
            world.until(1, (sent - seen) as usize);
            for event in world.take_log(1) {
                let Event::Frame { frame, body: got } = event else {
                    panic!("{event:?}")
                };
                assert_eq!(frame.words[2], seen, "nothing lost or doubled by refusals");
                assert_eq!(got, body);
                seen += 1;
            }
            world.rest();
        }
    }
}

pub(crate) fn malformed(world: &mut World) {
    let qp = world.qps[0];
    let body_max = world.ports[0].caps(qp).body_max;
    let long = vec![0; body_max + 1];
    let cases: [(_, [&[u8]; 2]); 5] = [
        (frame(1, 0, body_max + 1), [&long, &[]]),
        (frame(1, 0, 40), [&long[..39], &[]]),
        (frame(1, 0, 40), [&[], &[]]),
        (frame(1, 0, 0), [&long[..1], &[]]),
        (frame(0xf0, 0, 0), [&[], &[]]),
    ];
    for (told, body) in cases {
        // The faulty port may say "full" first.
        let refusal = (0..100)
            .map(|_| {
                world.ports[0]
                    .post_send(qp, &told, body)
                    .expect_err("malformed")
            })
            .find(|&refusal| refusal != PostRefusal::Full);
        assert_eq!(refusal, Some(PostRefusal::Malformed), "{told:?}");
    }
    world.send(0, &frame(1, 5, 0), [&[], &[]]);
    world.until(1, 1);
    assert!(matches!(&world.log[1][..], [Event::Frame { frame, .. }] if frame.words[2] == 5));
}

pub(crate) fn landings(world: &mut World) {
    for (number, size) in [1, 16, 17, 64, 4096, 16 << 10, (1 << 20) + 3, 0]
        .into_iter()
        .enumerate()
    {
        for slack in [0, 1, 100] {
            let bytes = pattern(number as u64, size);
            let landing = Landing {
                index: number as u32,
                generation: slack as u32,
            };
            let region = world.open(1, landing, (size + slack).max(1));
            world.write(0, number as u64, tensor(bytes.clone()), landing, region);
            world.until(1, 1);
            world.until(0, 1);
            let events = world.take_log(1);
            let [
                Event::Landed {
                    landing: at,
                    len,
                    buffer,
                },
            ] = &events[..]
            else {
                panic!("{events:?}")
            };
            assert_eq!((*at, *len), (landing, size as u64));
            assert_eq!(buffer[..size], bytes[..], "write of {size}");
            assert_eq!(
                buffer.len(),
                (size + slack).max(1),
                "the whole buffer comes back"
            );
            let events = world.take_log(0);
            let [
                Event::Wrote {
                    token,
                    source,
                    outcome,
                },
            ] = &events[..]
            else {
                panic!("{events:?}")
            };
            assert_eq!((*token, *outcome), (Token(number as u64), Outcome::Done));
            assert_eq!(source.host().unwrap(), bytes, "the source comes back");
        }
    }
}

pub(crate) fn refusals(world: &mut World) {
    let landing = Landing {
        index: 3,
        generation: 9,
    };
    let region = world.open(1, landing, 1000);
    let mut late = region;
    late.offset += 990;
    let mut early = region;
    early.offset = early.offset.wrapping_sub(64);
    let mut other_arena = region;
    other_arena.arena ^= 1;
    let mut stale_block = region;
    stale_block.generation = stale_block.generation.wrapping_sub(1);
    let wrong = [
        (landing, region, 1001),
        (landing, late, 11),
        (landing, early, 10),
        (landing, other_arena, 10),
        (landing, stale_block, 10),
        (
            Landing {
                index: 3,
                generation: 8,
            },
            region,
            10,
        ),
        (
            Landing {
                index: 4,
                generation: 9,
            },
            region,
            10,
        ),
        (
            Landing {
                index: u32::MAX,
                generation: 9,
            },
            region,
            10,
        ),
        (
            Landing {
                index: 77,
                generation: 0,
            },
            region,
            200_000,
        ),
    ];
    let count = wrong.len();
    for (number, (landing, region, len)) in wrong.into_iter().enumerate() {
        world.write(0, number as u64, tensor(pattern(5, len)), landing, region);
    }
    // The last ten bytes are within the range, and so is the whole.
    world.write(0, 100, tensor(pattern(5, 10)), landing, late);
    world.until(0, count + 1);
    let mut tokens: Vec<_> = world
        .take_log(0)
        .into_iter()
        .map(|event| match event {
            Event::Wrote { token, outcome, .. } => (token.0, outcome),
            other => panic!("{other:?}"),
        })
        .collect();
    tokens.sort_by_key(|&(token, _)| token);
    assert_eq!(tokens.pop(), Some((100, Outcome::Done)));
    assert!(
        tokens
            .iter()
            .all(|&(_, outcome)| outcome == Outcome::Refused),
        "{tokens:?}"
    );
    world.until(1, 1);
    let events = world.take_log(1);
    let [
        Event::Landed {
            len: 10, buffer, ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(
        buffer[990..],
        pattern(5, 10)[..],
        "the one good write, and nothing of the others"
    );
    // Index and generation are free again; in use they are refused.
    world.open(1, landing, 10);
    let buffer = world.pool.buffer(10).expect("pool");
    assert!(
        world.ports[1]
            .open_landing(world.qps[1], landing, buffer)
            .is_err(),
        "in use"
    );
    let buffer = world.pool.buffer(10).expect("pool");
    let beyond = Landing {
        index: rendez::fabric::LANDINGS_MAX,
        generation: 0,
    };
    assert!(
        world.ports[1]
            .open_landing(world.qps[1], beyond, buffer)
            .is_err(),
        "out of range"
    );
}

/// A port says at once that it cannot read a device's memory, and hands the write back.
pub(crate) fn device_source(world: &mut World) {
    #[derive(Debug)]
    struct Fake;

    impl DeviceMemory for Fake {
        fn place(&self) -> DevicePtr {
            DevicePtr {
                kind: MemoryKind::Cuda,
                device: 0,
                address: 0xdead_0000_0000_0000,
                size: 1000,
            }
        }
    }

    let landing = Landing {
        index: 3,
        generation: 9,
    };
    let region = world.open(1, landing, 1000);
    let meta = tensor(pattern(5, 1000)).meta();
    let mut write = Write {
        qp: world.qps[0],
        token: Token(1),
        source: Tensor::from_device(meta, Fake).expect("as long as its shape"),
        landing,
        region,
    };
    let refused = loop {
        match world.ports[0].post_write(write) {
            // A faulty port refuses with room left.
            Err(refused) if refused.refusal == PostRefusal::Full => write = refused.write,
            Err(refused) => break refused,
            Ok(()) => panic!("it reads what no host can"),
        }
        world.turn();
    };
    assert_eq!(refused.refusal, PostRefusal::Unreadable);
    assert!(refused.write.source.is_device());
    // The landing is still there for a write that can be made.
    world.write(0, 2, tensor(pattern(5, 1000)), landing, region);
    world.until(0, 1);
    world.until(1, 1);
}

pub(crate) fn closed_while_writing(world: &mut World) {
    // Several chunks, wherever a write goes in chunks.
    const LEN: usize = 4 << 20;
    let mut cut = 0;
    for turns in [0, 1, 3, 10, 40, 1000] {
        let landing = Landing {
            index: 0,
            generation: turns,
        };
        let region = world.open(1, landing, LEN);
        world.write(0, 1, tensor(pattern(1, LEN)), landing, region);
        for _ in 0..turns {
            world.turn();
        }
        world.ports[1].close_landing(world.qps[1], landing);
        // Closing twice, or what was never open, is nothing.
        world.ports[1].close_landing(world.qps[1], landing);
        world.ports[1].close_landing(
            world.qps[1],
            Landing {
                index: 200,
                generation: 0,
            },
        );
        world.until(1, 1);
        world.until(0, 1);
        world.rest();
        let (given, wrote) = (world.take_log(1), world.take_log(0));
        let [Event::Wrote { outcome, .. }] = &wrote[..] else {
            panic!("{wrote:?}")
        };
        match (&given[..], outcome) {
            ([Event::Landed { len, buffer, .. }], Outcome::Done) => {
                assert_eq!(buffer[..*len as usize], pattern(1, LEN)[..]);
            }
            (
                [
                    Event::Quiet {
                        landing: at,
                        buffer,
                    },
                ],
                Outcome::Refused,
            ) => {
                assert_eq!((*at, buffer.len()), (landing, LEN));
                cut += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(cut >= 3, "the test closed during writes");
}

pub(crate) fn overtaking(world: &mut World) {
    let landing = Landing {
        index: 0,
        generation: 0,
    };
    // More turns than there are frames, if each sends a megabyte of it.
    let region = world.open(1, landing, 32 << 20);
    world.write(0, 0, tensor(pattern(2, 32 << 20)), landing, region);
    for number in 0..20 {
        world.turn();
        world.send(0, &frame(1, number, 100), [&[9; 100], &[]]);
    }
    world.until(1, 21);
    let log = world.take_log(1);
    let landed = log
        .iter()
        .position(|event| matches!(event, Event::Landed { .. }));
    assert_eq!(landed, Some(20), "frames do not wait for the write");
}

pub(crate) fn close(world: &mut World) {
    let landing = |index| Landing {
        index,
        generation: 1,
    };
    for index in 0..5 {
        world.open(0, landing(index), 100);
        world.open(1, landing(index), 200);
    }
    let region = world.open(1, landing(9), 4 << 20);
    for token in 0..4 {
        world.write(0, token, tensor(pattern(0, 1 << 20)), landing(9), region);
        world.write(1, token, tensor(pattern(0, 1 << 20)), landing(200), region);
    }
    world.send(0, &frame(1, 1, 0), [&[], &[]]);
    world.ports[0].close(world.qps[0]);
    let qp = world.qps[0];
    // The faulty port may say "full" first.
    let refusal = (0..100)
        .map(|_| {
            world.ports[0]
                .post_send(qp, &frame(1, 1, 0), [&[], &[]])
                .expect_err("closed")
        })
        .find(|&refusal| refusal != PostRefusal::Full);
    assert_eq!(refusal, Some(PostRefusal::Closed));
    world.rest();
    for (side, landings, reason) in [(0, 5, DownReason::Closed), (1, 6, DownReason::PeerClosed)] {
        let log = world.take_log(side);
        let Some(Event::Down { reason: told }) = log.last() else {
            panic!("Down comes last: {log:?}")
        };
        assert_eq!(*told, reason);
        assert_eq!(
            log.iter()
                .filter(|event| matches!(event, Event::Down { .. }))
                .count(),
            1
        );
        let back = |event: &&Event| matches!(event, Event::Quiet { .. } | Event::Landed { .. });
        assert_eq!(
            log.iter().filter(back).count(),
            landings,
            "side {side}: {log:?}"
        );
        let mut tokens: Vec<_> = log
            .iter()
            .filter_map(|event| {
                if let Event::Wrote { token, .. } = event {
                    Some(token.0)
                } else {
                    None
                }
            })
            .collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2, 3], "side {side}");
    }
    for side in 0..2 {
        let buffer = world.pool.buffer(64).expect("pool");
        let qp = world.qps[side];
        assert!(
            world.ports[side]
                .open_landing(qp, landing(0), buffer)
                .is_err(),
            "the id is dead"
        );
        assert_eq!(world.ports[side].caps(qp).body_max, 0);
        let source = tensor(vec![1; 32]);
        let write = Write {
            qp,
            token: Token(1),
            source,
            landing: landing(0),
            region,
        };
        assert_eq!(
            world.ports[side]
                .post_write(write)
                .map_err(|refused| refused.write.token),
            Err(Token(1))
        );
        assert!(world.ports[side].arm(), "nothing is left to do");
    }
}
