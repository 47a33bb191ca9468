//! How near the ring comes to the machine: ratios against a raw cache line in the same run. Ignored: needs two idle
//! cores and `--release`; prints, asserts nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam::utils::CachePadded;
use rendez::fabric::shm::{LinkConfig, LinkMapping};
use rendez::fabric::{Arrival, Caps, PeerWake, Port, PostRefusal, ShmPort, Side, spsc};
use rendez::ground::Nanos;

use crate::world::frame;

pub(crate) const WARM: u64 = 4_000;
pub(crate) const ROUNDS: u64 = 64_000;

pub(crate) fn pin(core: usize) {
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
}

/// Runs `near` here and `far` on the other core; gives half a round trip in nanoseconds. The lowest decile over
/// batches of sixteen: on a shared machine most batches contain other programs' work.
pub(crate) fn half_round_trip(mut near: impl FnMut(u64), far: impl FnOnce() + Send) -> f64 {
    const BATCH: u64 = 16;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            far();
        });
        pin(0);
        (0..WARM).for_each(&mut near);
        let mut batches = Vec::new();
        for first in (WARM..WARM + ROUNDS).step_by(BATCH as usize) {
            let start = Instant::now();
            (first..first + BATCH).for_each(&mut near);
            batches.push(start.elapsed().as_nanos() as f64 / BATCH as f64 / 2.0);
        }
        batches.sort_by(f64::total_cmp);
        batches[batches.len() / 10]
    })
}

/// The machine's own: a word to and fro, on one line, or on a line for each direction. The first is cheaper by about
/// half, because who has just read the line owns it when it answers; two queues, one each way, can only be the second.
fn raw_lines(there: usize, back: usize) -> f64 {
    let lines: [_; 2] = std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0)));
    let (there, back) = (&lines[there], &lines[back]);
    half_round_trip(
        |round| {
            there.store(2 * round + 1, Ordering::Release);
            while back.load(Ordering::Acquire) != 2 * round + 2 {
                std::hint::spin_loop();
            }
        },
        || {
            for round in 0..WARM + ROUNDS {
                while there.load(Ordering::Acquire) != 2 * round + 1 {
                    std::hint::spin_loop();
                }
                back.store(2 * round + 2, Ordering::Release);
            }
        },
    )
}

fn typed() -> f64 {
    let (mut out, mut from_out) = spsc::ring::<[u64; 7]>(64);
    let (mut back, mut from_back) = spsc::ring::<[u64; 7]>(64);
    half_round_trip(
        |round| {
            out.push([round; 7]).expect("one at a time");
            while from_back.pop().is_none() {
                std::hint::spin_loop();
            }
        },
        move || {
            for _ in 0..WARM + ROUNDS {
                let value = loop {
                    if let Some(value) = from_out.pop() {
                        break value;
                    }
                };
                back.push(value).expect("one at a time");
            }
        },
    )
}

fn ports() -> [(ShmPort, rendez::fabric::QpId); 2] {
    let config = LinkConfig::default();
    let mut made = LinkMapping::create(config).expect("memfd");
    let mut opened =
        LinkMapping::open(made.fd().try_clone_to_owned().expect("dup"), config).expect("just made");
    let caps = Caps {
        body_max: usize::MAX,
        one_sided: false,
        read_domain: true,
    };
    [
        made.endpoint(0, Side::Maker),
        opened.endpoint(0, Side::Opener),
    ]
    .map(|endpoint| {
        let mut port = ShmPort::new();
        let qp = port
            .attach(endpoint.expect("first use"), PeerWake::NEVER_SLEEPS, caps)
            .expect("room");
        (port, qp)
    })
}

fn await_frame(port: &mut ShmPort) -> u64 {
    let mut sum = None;
    while sum.is_none() {
        port.poll(Nanos(0), 16, &mut |arrival| {
            if let Arrival::Frame { frame, body, .. } = arrival {
                sum = Some(frame.words[2] + u64::from(body.last().copied().unwrap_or(0)));
            }
        });
    }
    sum.unwrap_or(0)
}

fn frames(len: usize) -> f64 {
    let [(mut one, one_qp), (mut other, other_qp)] = ports();
    let body = Arc::new(vec![1; len]);
    let far_body = Arc::clone(&body);
    half_round_trip(
        |round| {
            one.post_send(one_qp, &frame(1, round, len), [&body, &[]])
                .expect("one at a time");
            await_frame(&mut one);
        },
        move || {
            for _ in 0..WARM + ROUNDS {
                let round = await_frame(&mut other);
                other
                    .post_send(other_qp, &frame(1, round, len), [&far_body, &[]])
                    .expect("one at a time");
            }
        },
    )
}

/// Nanoseconds per frame of a stream one way: the lower quartile over batches of 512.
fn stream(len: usize) -> f64 {
    const FRAMES: u64 = 500_000;
    let [(mut one, one_qp), (mut other, _)] = ports();
    let body = vec![1; len];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for number in 0..FRAMES {
                while let Err(refusal) = one.post_send(one_qp, &frame(1, number, len), [&body, &[]])
                {
                    assert_eq!(refusal, PostRefusal::Full);
                }
            }
        });
        pin(0);
        let mut batches = Vec::new();
        let mut seen = 0;
        while seen < FRAMES {
            let (from, start) = (seen, Instant::now());
            while seen < FRAMES && seen - from < 512 {
                other.poll(Nanos(0), 64, &mut |_| seen += 1);
            }
            batches.push(start.elapsed().as_nanos() as f64 / (seen - from) as f64);
        }
        batches.sort_by(f64::total_cmp);
        batches[batches.len() / 4]
    })
}

#[test]
#[ignore = "a measurement: needs --release and two idle cores"]
#[allow(clippy::print_stdout)]
fn ratios_against_the_raw_cache_line() {
    for _ in 0..3 {
        let one = raw_lines(0, 0);
        let raw = raw_lines(0, 1);
        println!("raw: one line {one:.0} ns, a line each way {raw:.0} ns half a round trip");
        let typed = typed();
        println!("typed queue, 56 B     {typed:.0} ns   {:.2} x", typed / raw);
        for len in [0, 4, 16, 64, 1024, 16 << 10] {
            let half = frames(len);
            println!("shm frame, {len:5} B    {half:.0} ns   {:.2} x", half / raw);
        }
        for len in [0, 64, 1024] {
            println!("shm stream, {len:5} B   {:.1} ns a frame", stream(len));
        }
    }
}
