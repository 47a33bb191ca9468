//! How near the TCP port comes to a bare socket: ratios in the same run. Ignored: needs two idle cores and
//! `--release`; prints, asserts nothing.

use std::io::{ErrorKind, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rendez::fabric::{AnyPort, Arrival, Caps, Landing, Port, QpId, Token, Write};
use rendez::ground::Nanos;
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Pool};

use crate::speed::{ROUNDS, WARM, half_round_trip, pin};
use crate::world::{frame, tensor};

const MESSAGE: usize = 16 << 20;
const MESSAGES: u32 = 40;

fn raw() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (far, _) = listener.accept().expect("it connects");
    [near, far].map(|stream| {
        stream.set_nodelay(true).expect("TCP");
        stream.set_nonblocking(true).expect("a socket");
        stream
    })
}

fn whole(mut step: impl FnMut(usize) -> std::io::Result<usize>, len: usize) {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(count) => done += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn raw_round_trip() -> f64 {
    let [mut near, mut far] = raw();
    let echo = |stream: &mut TcpStream, is_first: bool| {
        let mut line = [0; 64];
        for receives in [!is_first, is_first] {
            if receives {
                whole(|at| stream.read(&mut line[at..]), 64);
            } else {
                whole(|at| stream.write(&line[at..]), 64);
            }
        }
    };
    half_round_trip(
        |_| echo(&mut near, true),
        move || (0..WARM + ROUNDS).for_each(|_| echo(&mut far, false)),
    )
}

fn port_round_trip(idle: usize) -> f64 {
    let ([mut one, mut other], [one_qp, other_qp], _) = crate::tcp4();
    let mut far_ends = Vec::new();
    for _ in 0..idle {
        let [near, far] = raw();
        far_ends.push(far);
        let caps = Caps {
            body_max: usize::MAX,
            one_sided: false,
            read_domain: false,
        };
        let AnyPort::Tcp(port) = &mut one else {
            unreachable!("made so")
        };
        port.attach(near.into(), caps).expect("connected");
    }
    fn turn(port: &mut AnyPort, qp: QpId, is_first: bool) {
        for receives in [!is_first, is_first] {
            if receives {
                let mut came = 0;
                while came == 0 {
                    port.poll(Nanos(0), 16, &mut |_| came += 1);
                }
            } else {
                port.post_send(qp, &frame(1, 0, 0), [&[], &[]])
                    .expect("one at a time");
                port.flush();
            }
        }
    }
    half_round_trip(
        |_| turn(&mut one, one_qp, true),
        move || (0..WARM + ROUNDS).for_each(|_| turn(&mut other, other_qp, false)),
    )
}

/// Bytes a nanosecond, at the receiver.
fn raw_stream() -> f64 {
    let [mut near, mut far] = raw();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            let message = vec![1; MESSAGE];
            for _ in 0..=MESSAGES {
                whole(|at| far.write(&message[at..]), MESSAGE);
            }
        });
        pin(0);
        let mut message = vec![2; MESSAGE];
        whole(|at| near.read(&mut message[at..]), MESSAGE);
        let start = Instant::now();
        for _ in 0..MESSAGES {
            whole(|at| near.read(&mut message[at..]), MESSAGE);
        }
        f64::from(MESSAGES) * MESSAGE as f64 / start.elapsed().as_nanos() as f64
    })
}

fn port_stream(([mut near, mut far], [near_qp, far_qp], _): crate::Pair) -> f64 {
    let arena = ArenaConfig {
        segment_bytes: 64 << 20,
        bytes_max: 64 << 20,
        huge_pages: HugePages::Off,
    };
    let mut pool = Pool::new(ArenaId(1), arena).expect("a pool");
    // Two landings in turn, so that the next is open before the one before is full.
    let landing = |index| Landing {
        index,
        generation: 0,
    };
    let mut open = |near: &mut AnyPort, index| {
        let mut buffer = pool.buffer(MESSAGE).expect("room");
        buffer.fill(2);
        near.open_landing(near_qp, landing(index), buffer)
            .expect("free")
    };
    let regions = [open(&mut near, 0), open(&mut near, 1)];
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            pin(1);
            let source = tensor(vec![1; MESSAGE]);
            let (mut posted, mut ended) = (0, 0);
            while ended <= MESSAGES {
                while posted <= MESSAGES && posted - ended < 2 {
                    let at = (posted % 2) as usize;
                    let write = Write {
                        qp: far_qp,
                        token: Token(0),
                        source: source.clone(),
                        landing: landing(posted % 2),
                        region: regions[at],
                    };
                    far.post_write(write).expect("room");
                    posted += 1;
                }
                far.poll(Nanos(0), 16, &mut |arrival| {
                    assert!(matches!(arrival, Arrival::Wrote { .. }));
                    ended += 1;
                });
            }
        });
        pin(0);
        let mut start = Instant::now();
        let mut came = 0;
        let mut back = Vec::with_capacity(2);
        while came <= MESSAGES {
            near.poll(Nanos(0), 16, &mut |arrival| {
                let Arrival::Landed {
                    landing, buffer, ..
                } = arrival
                else {
                    panic!("{arrival:?}")
                };
                back.push((landing, buffer));
            });
            for (landing, buffer) in back.drain(..) {
                near.open_landing(near_qp, landing, buffer).expect("free");
                came += 1;
                if came == 1 {
                    start = Instant::now();
                }
            }
        }
        let rate = f64::from(MESSAGES) * MESSAGE as f64 / start.elapsed().as_nanos() as f64;
        while !writer.is_finished() {
            // The last answers are still to go, and then the other side goes.
            near.poll(Nanos(0), 16, &mut |_| {});
        }
        rate
    })
}

#[test]
#[ignore = "a measurement: needs --release and two idle cores"]
#[allow(clippy::print_stdout)]
fn ratios_against_a_bare_socket() {
    for _ in 0..3 {
        let raw = raw_round_trip();
        let alone = port_round_trip(0);
        let crowd = port_round_trip(255);
        println!(
            "64 B half round trip: bare {raw:.0} ns, port {alone:.0} ns, {:.2} x",
            alone / raw
        );
        println!(
            "  with 255 idle peers {crowd:.0} ns, {:.2} x",
            crowd / alone
        );
        let raw = raw_stream();
        let port = port_stream(crate::tcp4());
        println!(
            "16 MiB stream: bare {raw:.2} GB/s, port {port:.2} GB/s, {:.2} x",
            port / raw
        );
        let sealed = port_stream(crate::tcp_tls());
        println!(
            "  under TLS, kept by the process: {sealed:.2} GB/s, {:.2} x the port in clear",
            sealed / port
        );
        match rendez::fabric::kernel_tls() {
            Ok(()) => {
                let sealed = port_stream(crate::tcp_tls_kernel());
                println!(
                    "  under TLS, kept by the kernel: {sealed:.2} GB/s, {:.2} x the port in clear",
                    sealed / port
                );
            }
            Err(missing) => println!("  under TLS, kept by the kernel: not measured: {missing}"),
        }
    }
}
