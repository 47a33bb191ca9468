//! How near the ring comes to the machine: ratios against a raw cache line in the same run. Ignored: needs two idle cores
//! and `--release`; prints, asserts nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam::utils::CachePadded;
use rendez::fabric::shm::{Link, LinkConfig};
use rendez::fabric::{Arrival, Caps, PeerWake, Port, Refusal, ShmPort, Side, spsc};
use rendez::ground::Nanos;

use crate::world::frame;

const WARM: u64 = 20_000;
const ROUNDS: u64 = 300_000;

fn pin(core: usize) {
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
}

/// Runs `near` here and `far` on the other core; gives half a round trip in nanoseconds, of the best of ten parts.
fn half_round_trip(mut near: impl FnMut(u64), far: impl FnOnce() + Send) -> f64 {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            far();
        });
        pin(0);
        (0..WARM).for_each(&mut near);
        let part = ROUNDS / 10;
        let mut best = f64::MAX;
        for index in 0..10 {
            let start = Instant::now();
            (0..part).for_each(|round| near(WARM + index * part + round));
            best = best.min(start.elapsed().as_nanos() as f64 / part as f64 / 2.0);
        }
        best
    })
}

fn raw_line() -> f64 {
    let line = CachePadded::new(AtomicU64::new(0));
    half_round_trip(
        |round| {
            line.store(2 * round + 1, Ordering::Release);
            while line.load(Ordering::Acquire) != 2 * round + 2 {
                std::hint::spin_loop();
            }
        },
        || {
            for round in 0..WARM + ROUNDS {
                while line.load(Ordering::Acquire) != 2 * round + 1 {
                    std::hint::spin_loop();
                }
                line.store(2 * round + 2, Ordering::Release);
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
    let mut made = Link::create(config).expect("memfd");
    let mut opened = Link::open(made.fd().try_clone_to_owned().expect("dup"), config).expect("just made");
    let caps = Caps { body_max: usize::MAX, one_sided: false, read_domain: true };
    [made.endpoint(0, Side::Maker), opened.endpoint(0, Side::Opener)].map(|endpoint| {
        let mut port = ShmPort::new();
        let qp = port.attach(endpoint.expect("first use"), PeerWake::NEVER_SLEEPS, caps).expect("room");
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
            one.post_send(one_qp, &frame(1, round, len), [&body, &[]]).expect("one at a time");
            await_frame(&mut one);
        },
        move || {
            for _ in 0..WARM + ROUNDS {
                let round = await_frame(&mut other);
                other.post_send(other_qp, &frame(1, round, len), [&far_body, &[]]).expect("one at a time");
            }
        },
    )
}

/// Nanoseconds per frame of a stream one way.
fn stream(len: usize) -> f64 {
    const FRAMES: u64 = 3_000_000;
    let [(mut one, one_qp), (mut other, _)] = ports();
    let body = vec![1; len];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for number in 0..FRAMES {
                while let Err(refusal) = one.post_send(one_qp, &frame(1, number, len), [&body, &[]]) {
                    assert_eq!(refusal, Refusal::Full);
                }
            }
        });
        pin(0);
        let (mut seen, mut start) = (0, None);
        while seen < FRAMES {
            other.poll(Nanos(0), 64, &mut |_| seen += 1);
            if start.is_none() && seen > FRAMES / 10 {
                start = Some((seen, Instant::now()));
            }
        }
        let (from, start) = start.expect("frames came");
        start.elapsed().as_nanos() as f64 / (seen - from) as f64
    })
}

#[test]
#[ignore = "a measurement: needs --release and two idle cores"]
#[allow(clippy::print_stdout)]
fn ratios_against_the_raw_cache_line() {
    for _ in 0..3 {
        let raw = raw_line();
        println!("raw line {raw:.0} ns half round trip");
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
