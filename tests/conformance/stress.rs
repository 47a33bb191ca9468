//! Two threads, a million messages: what single-threaded tests cannot see.

use rendez::fabric::{
    AnyPort, Arrival, Doorbell, Geometry, LoopbackPort, PeerWake, Port, PostRefusal, QpId,
};
use rendez::ground::Nanos;

use crate::world::frame;

const MESSAGES: u64 = 1_000_000;

/// Length and filling of message `number`: one in sixteen goes through the payload ring.
fn message(number: u64) -> (usize, u8) {
    let len = if number.is_multiple_of(16) {
        17 + number.wrapping_mul(2_654_435_761) % 500
    } else {
        number % 17
    };
    (len as usize, (number ^ (number >> 8)) as u8)
}

fn geometry() -> Geometry {
    Geometry {
        slots: 64,
        payload_bytes: 8 << 10,
    }
}

#[test]
fn a_million_messages_cross_threads_in_order_and_whole() {
    let (maker, opener) = LoopbackPort::endpoints(geometry()).expect("valid");
    let sender = std::thread::spawn(move || {
        let mut port = LoopbackPort::new();
        let qp = port
            .attach_local(maker, PeerWake::NEVER_SLEEPS)
            .expect("room");
        for number in 0..MESSAGES {
            let (len, fill) = message(number);
            let body = [fill; 600];
            while let Err(refusal) = port.post_send(qp, &frame(1, number, len), [&body[..len], &[]])
            {
                assert_eq!(refusal, PostRefusal::Full);
                std::thread::yield_now();
            }
        }
        port
    });
    let mut port = LoopbackPort::new();
    port.attach_local(opener, PeerWake::NEVER_SLEEPS)
        .expect("room");
    let mut next = 0;
    while next < MESSAGES {
        let done = port.poll(Nanos(0), 64, &mut |arrival| {
            let Arrival::Frame { frame, body, .. } = arrival else {
                panic!("{arrival:?}")
            };
            let (len, fill) = message(next);
            assert_eq!(
                (frame.words[2], frame.words[5], body.len()),
                (next, !next, len)
            );
            assert!(body.iter().all(|&byte| byte == fill));
            next += 1;
        });
        if done == 0 {
            std::thread::yield_now();
        }
    }
    sender.join().expect("the sender's own checks");
}

#[test]
fn no_wake_is_lost() {
    let bells = [(); 2].map(|()| Doorbell::new().expect("doorbell"));
    let wakes = [bells[1].wake(), bells[0].wake()];
    let (maker, opener) = LoopbackPort::endpoints(geometry()).expect("valid");
    let mut ends = [maker, opener].into_iter().zip(wakes);
    let ports = [(); 2].map(|()| {
        let mut port = LoopbackPort::new();
        let (endpoint, wake) = ends.next().expect("two");
        let qp = port.attach_local(endpoint, wake).expect("room");
        (AnyPort::Loopback(port), qp)
    });
    pass_a_token(20_000, bells, ports);
}

#[test]
fn no_wake_of_a_socket_is_lost() {
    let bells = [(); 2].map(|()| Doorbell::new().expect("doorbell"));
    let ([one, other], [first, second], _) = crate::tcp4();
    pass_a_token(5_000, bells, [(one, first), (other, second)]);
}

/// Two sides that sleep whenever they have nothing to do pass a token to and fro. A lost wake hangs the test.
fn pass_a_token(rounds: u64, bells: [Doorbell; 2], ports: [(AnyPort, QpId); 2]) {
    let mut sides = Vec::new();
    for (first, (bell, (mut port, qp))) in bells.into_iter().zip(ports).enumerate() {
        sides.push(std::thread::spawn(move || {
            let (mut seen, mut slept) = (0, 0);
            if first == 0 {
                port.post_send(qp, &frame(1, 0, 0), [&[], &[]])
                    .expect("an empty ring");
                port.flush();
            }
            while seen < rounds {
                let mut came = 0;
                port.poll(Nanos(0), 8, &mut |_| came += 1);
                for _ in 0..came {
                    seen += 1;
                    port.post_send(qp, &frame(1, seen, 0), [&[], &[]])
                        .expect("one at a time");
                }
                port.flush();
                if came == 0 {
                    bell.arm();
                    if port.arm() {
                        slept += 1;
                        bell.wait_beside(port.wake_fd(), None).expect("poll");
                    }
                    bell.disarm();
                    port.disarm();
                }
            }
            slept
        }));
    }
    let slept: u64 = sides
        .into_iter()
        .map(|side| side.join().expect("no panic"))
        .sum();
    assert!(slept > 0, "one of them slept");
}
