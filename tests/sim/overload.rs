//! Overload: ten times the work that turns can do. What is admitted is done in bounded time, what is not is refused at
//! once by name, nothing grows, and afterwards nothing is left.

use std::collections::VecDeque;

use rendez::ground::{Code, Key, Nanos, StepId, catalogue};
use rendez::testing::solo::Queues;

use crate::dials::Dials;
use crate::hands::number_of;
use crate::world::World;

/// Commands that one shard takes in a turn.
const PER_TURN: usize = 32;
/// Commands that may wait.
const MAILBOX: usize = 256;

#[test]
fn what_is_admitted_is_done_and_the_rest_is_refused_by_name() {
    // Bytes of a value, how many of them at least are done, and how many ticks at most one of them takes. Large ones go
    // as fast as a ring of 64 KiB takes them.
    for (len, least, longest) in [(8, 10_000, 50), (600, 5_000, 250), (8_000, 500, 400)] {
        let mut dials = Dials::calm(1);
        dials.queues = Queues {
            mailbox: MAILBOX,
            ..Queues::default()
        };
        // More comes for those who wait than there is place for what is not waited for: it needs none. It is the sender
        // that refuses.
        dials.settings.line_window = 1_000;
        dials.settings.table.values = 64;
        dials.settings.table.parked_bytes = 2_000 * 600;
        dials.settings.table.parked_bytes_per_step = 2_000 * 600;
        let mut world = World::new(dials);
        world.ticks(50);
        let (done, worst) = storm(&mut world, len);
        assert!(done >= least, "{len} bytes: {done} were done");
        assert!(worst <= longest, "{len} bytes: one took {worst} ticks");
        for step in 1..=4 {
            for solo in world.nodes.iter_mut().flat_map(|node| &mut node.solos) {
                solo.finish(StepId(step));
            }
        }
        world.settle().unwrap();
    }
}

/// How many values were done, and the ticks that the slowest of them took.
fn storm(world: &mut World, len: usize) -> (u64, u64) {
    let edges: Vec<_> = (0..64)
        .map(|at| Key::between("t0", "t1", &format!("e{at}")).unwrap())
        .collect();
    let mut answers = VecDeque::new();
    let mut waits = VecDeque::new();
    let [mut full, mut refused, mut done, mut number] = [0_u64; 4];
    // Of each edge, the last value that came.
    let mut last = vec![0; edges.len()];
    let mut worst = 0;
    for tick in 0..800_u64 {
        // The storm, and then a while in which what was admitted is done.
        for _ in 0..if tick < 400 { 10 * PER_TURN } else { 0 } {
            number += 1;
            let (step, at) = (StepId(1 + number % 4), number as usize % edges.len());
            let Ok(tensor) = world.made(0, number, len) else {
                refused += 1;
                continue;
            };
            match world.nodes[0].solos[0].hand(step, &edges[at], tensor) {
                Ok(answer) => answers.push_back((tick, step, at, answer)),
                Err(status) => {
                    assert_eq!(status.reason(), catalogue::MAILBOX_FULL, "{status}");
                    full += 1;
                }
            }
        }
        world.tick().unwrap();
        while let Some((since, step, at, answer)) = answers.pop_front() {
            match answer.take() {
                None => {
                    answers.push_front((since, step, at, answer));
                    break;
                }
                Some(Ok(())) => {
                    let waiting = world.nodes[1].solos[0].recv(step, &edges[at], Nanos::NEVER);
                    waits.push_back((tick, at, waiting));
                }
                Some(Err(status)) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    assert!(status.message().contains("limit"), "{status}");
                    refused += 1;
                }
            }
            // Admitted commands wait for those before them, and for nothing else.
            assert!(
                tick - since <= (MAILBOX / PER_TURN + 2) as u64,
                "answered late"
            );
        }
        waits.retain(|(since, at, waiting)| {
            let Some(outcome) = waiting.take() else {
                return true;
            };
            let received = outcome.unwrap();
            let got = number_of(received.tensor.host().unwrap());
            assert_eq!(got as usize % edges.len(), *at, "a value of another edge");
            let before = std::mem::replace(&mut last[*at], got);
            assert!(before < got, "{got} came after {before}");
            worst = worst.max(tick - since);
            done += 1;
            false
        });
    }
    assert!(
        waits.is_empty() && answers.is_empty(),
        "{} wait",
        waits.len()
    );
    assert!(full > 50_000, "{full} of {number} were refused at the door");
    assert_eq!(full + refused + done, number, "each ended once");
    (done, worst)
}
