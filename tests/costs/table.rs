//! What the matching table costs, in nanoseconds. Ignored: it measures, and holds nothing.
//!
//! `cargo test --release --test costs -- --ignored --nocapture table`

use std::hint::black_box;
use std::time::Instant;

use rendez::ground::rng::Rng;
use rendez::ground::{FrameIter, Nanos, StepId};
use rendez::rendezvous::{KeyId, Limits, ReceiveOutcome, Sent, Slot, Table};

/// As large as a tensor's handle.
type Value = [u64; 12];

/// What a dependent multiplication costs: three cycles, on most machines. All else is to be read against it.
fn multiplication() -> f64 {
    least(|| {
        let start = Instant::now();
        let mut x = black_box(3_u64);
        for _ in 0..10_000 {
            x = x.wrapping_mul(black_box(0x9e37_79b9_7f4a_7c15));
        }
        black_box(x);
        nanos(start, 10_000)
    })
}

/// What a random read of a line costs in 256 MiB, when the next does not depend on it.
fn far_read() -> f64 {
    let lines = vec![[1_u64; 8]; 1 << 22];
    let mut rng = Rng::new(4);
    least(|| {
        let start = Instant::now();
        let mut sum = 0;
        for _ in 0..10_000 {
            sum += lines[rng.below(1 << 22) as usize][0];
        }
        black_box(sum);
        nanos(start, 10_000)
    })
}

fn slot(key: u32) -> Slot {
    Slot {
        step: StepId(77),
        key: KeyId(key),
        at: FrameIter::default(),
    }
}

fn value(number: u64) -> Value {
    [number; 12]
}

fn nanos(since: Instant, count: usize) -> f64 {
    since.elapsed().as_nanos() as f64 / count as f64
}

/// The least of many short measurements: what it costs when nothing else takes the core.
fn least(mut measure: impl FnMut() -> f64) -> f64 {
    (0..400).map(|_| measure()).fold(f64::INFINITY, f64::min)
}

fn send_then_recv(table: &mut Table<Value, u64>, slots: &[Slot], rounds: usize) -> f64 {
    let start = Instant::now();
    for round in 0..rounds {
        for &slot in slots {
            let parked = table.send(Nanos(1), slot, black_box(value(round as u64)), 96);
            assert!(matches!(parked, Ok(Sent::Parked { .. })));
            match table.recv(Nanos(1), slot, 5, Nanos::NEVER) {
                Ok(ReceiveOutcome::Ready { value, .. }) => {
                    assert_eq!(black_box(value)[0], round as u64)
                }
                _ => panic!("a value was parked"),
            }
        }
    }
    nanos(start, rounds * slots.len())
}

fn recv_then_send(
    table: &mut Table<Value, u64>,
    slots: &[Slot],
    rounds: usize,
    deadline: Nanos,
) -> f64 {
    let start = Instant::now();
    for round in 0..rounds {
        for &slot in slots {
            let waiting = table.recv(Nanos(1), slot, round as u64, deadline);
            assert!(matches!(waiting, Ok(ReceiveOutcome::Waiting { .. })));
            match table.send(Nanos(1), slot, black_box(value(round as u64)), 96) {
                Ok(Sent::Matched { waiter, value, .. }) => {
                    assert_eq!((waiter, black_box(value)[0]), (round as u64, round as u64));
                }
                _ => panic!("a receive waited"),
            }
        }
    }
    nanos(start, rounds * slots.len())
}

/// Receives what is parked at random slots, in bursts, and parks it again untimed. Gives the median burst's cost of
/// one receive, without and with a touch of the burst before.
fn probe_parked(keys: u32, touch: bool) -> f64 {
    const BURST: usize = 32;
    let mut table = Table::<Value, u64>::new(Limits::default()).expect("room");
    for key in 0..keys {
        assert!(
            table
                .send(Nanos(1), slot(key), value(u64::from(key)), 96)
                .is_ok()
        );
    }
    let mut rng = Rng::new(9);
    let mut costs = Vec::new();
    let mut got: Vec<Option<Value>> = vec![None; BURST];
    for _ in 0..4000 {
        let mut burst: Vec<u32> = (0..BURST)
            .map(|_| rng.below(u64::from(keys)) as u32)
            .collect();
        if keys as usize >= BURST * 100 {
            burst.sort_unstable();
            burst.dedup();
            let swap = rng.below(burst.len() as u64) as usize;
            burst.rotate_left(swap);
        } else {
            burst.truncate(1);
        }
        let slots: Vec<Slot> = burst.iter().map(|&key| slot(key)).collect();
        let repeat = if slots.len() == 1 { BURST } else { 1 };
        let start = Instant::now();
        for _ in 0..repeat {
            if touch {
                black_box(table.touch(&slots));
            }
            for (slot, got) in slots.iter().zip(&mut got) {
                match table.recv(Nanos(1), *slot, 5, Nanos::NEVER) {
                    Ok(ReceiveOutcome::Ready { value, .. }) => *got = Some(value),
                    _ => panic!("parked"),
                }
            }
            if repeat > 1 {
                let value = got[0].take().expect("received");
                assert!(table.send(Nanos(1), slots[0], value, 96).is_ok());
            }
        }
        costs.push(nanos(start, repeat * slots.len()));
        if repeat == 1 {
            for (slot, got) in slots.iter().zip(&mut got) {
                assert!(
                    table
                        .send(Nanos(1), *slot, got.take().expect("received"), 96)
                        .is_ok()
                );
            }
        }
    }
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

#[test]
#[ignore = "measures, and holds nothing"]
fn costs() {
    eprintln!(
        "a multiplication {:.2} ns, a far read {:.1} ns",
        multiplication(),
        far_read()
    );
    for keys in [1_u32, 64, 1024, 16_384] {
        let mut table = Table::new(Limits::default()).expect("room");
        let slots: Vec<Slot> = (0..keys).map(slot).collect();
        let rounds = (16_384 / keys as usize).max(1);
        let pair = least(|| send_then_recv(&mut table, &slots, rounds));
        let reverse = least(|| recv_then_send(&mut table, &slots, rounds, Nanos::NEVER));
        let timed = least(|| recv_then_send(&mut table, &slots, rounds, Nanos(30_000_000_000)));
        eprintln!(
            "{keys:>6} warm keys: send+recv {pair:5.1} ns, recv+send {reverse:5.1} ns, with deadline {timed:5.1} ns"
        );
    }
    for keys in [1, 10_000, 100_000, 1_000_000] {
        let plain = probe_parked(keys, false);
        let touched = probe_parked(keys, true);
        let what = if keys == 1 { "recv+send" } else { "recv" };
        eprintln!(
            "{keys:>7} parked: {what} {plain:6.1} ns, after a touch of the burst {touched:6.1} ns (p50)"
        );
    }
}
