//! What only sockets have: ends without a word, resets, peers that do not read, garbage, sleep.

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::*;
use crate::fabric::{Doorbell, Token};
use crate::ground::{DType, Shape, TensorMeta};
use crate::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};

const CAPS: Caps = Caps {
    body_max: usize::MAX,
    one_sided: false,
    read_domain: false,
};

/// A port and the bare socket at its other end.
fn port() -> (TcpPort, QpId, TcpStream) {
    let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
    let (qp, far) = connect(&mut port);
    (port, qp, far)
}

fn connect(port: &mut TcpPort) -> (QpId, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (far, _) = listener.accept().expect("it connects");
    (port.attach(near.into(), CAPS).expect("connected"), far)
}

fn frame(number: u64, len: usize) -> Frame {
    let mut frame = Frame::default();
    frame.words[0] = 1 << 32;
    frame.words[1] = (len as u64) << 32;
    frame.words[2] = number;
    frame
}

/// Polls until the connection is down; how many frames came before.
fn until_down(port: &mut TcpPort) -> (u64, DownReason) {
    let (mut frames, mut down) = (0, None);
    for turn in 0..10_000_000u64 {
        port.poll(Nanos(turn * 1000), 16, &mut |arrival| match arrival {
            Arrival::Frame { .. } => frames += 1,
            Arrival::Down { reason, .. } => down = Some(reason),
            other => panic!("{other:?}"),
        });
        if let Some(reason) = down {
            return (frames, reason);
        }
    }
    panic!("never down");
}

#[test]
fn an_end_without_a_word_is_a_reset() {
    for cut in [0, 1, 63] {
        let (mut port, qp, mut far) = port();
        far.write_all(&frame(1, 0).to_bytes()).expect("room");
        far.write_all(&frame(2, 0).to_bytes()[..cut]).expect("room");
        drop(far);
        assert_eq!(until_down(&mut port), (1, DownReason::Reset), "{cut}");
        assert_eq!(port.caps(qp).body_max, 0);
    }
}

#[test]
fn a_goodbye_is_one() {
    let (mut port, _, mut far) = port();
    far.write_all(&super::super::queue_pair::fabric_frame(0xf2, 0).to_bytes())
        .expect("room");
    assert_eq!(until_down(&mut port), (0, DownReason::PeerClosed));
}

#[test]
fn a_reset_is_told_whoever_notices_it() {
    let (mut port, qp, far) = port();
    port.post_send(qp, &frame(1, 0), [&[], &[]]).expect("room");
    port.flush();
    // Unread bytes make the kernel send a reset.
    std::thread::sleep(std::time::Duration::from_millis(20));
    drop(far);
    std::thread::sleep(std::time::Duration::from_millis(20));
    port.post_send(qp, &frame(2, 0), [&[], &[]]).expect("room");
    assert_eq!(until_down(&mut port), (0, DownReason::Reset));
}

/// The system has nothing to say against such a socket: the end is ours to make.
#[test]
fn a_connection_whose_keys_are_used_up_ends_behind_what_the_peer_sent() {
    let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
    let (over_tcp, far_over_tcp) = connect(&mut port);
    // What is written to a Unix stream is there at once.
    let (near, mut far) = UnixStream::pair().expect("two sockets");
    let over_unix = port.attach(near.into(), CAPS).expect("connected");
    far.write_all(&frame(1, 0).to_bytes()).expect("room");
    for (qp, heard) in [(over_unix, 1), (over_tcp, 0)] {
        let line = &mut port.places[(qp.0 & 0xffff) as usize].line;
        line.as_mut().expect("open").socket.seal_at_most(2);
        for number in 0..3 {
            port.post_send(qp, &frame(number, 0), [&[], &[]])
                .expect("room");
            port.flush();
        }
        assert_eq!(until_down(&mut port), (heard, DownReason::Reset));
    }
    drop(far_over_tcp);
}

#[test]
fn garbage_is_corrupt() {
    let mut stamped = frame(1, 0);
    stamped.words[0] |= 7;
    let mut chunk = super::super::queue_pair::fabric_frame(0xf0, 0);
    chunk.words[1] |= 0xffff_ffff << 32;
    let mut answer = super::super::queue_pair::fabric_frame(0xf1, 9);
    answer.words[2] = 1;
    let garbage = [
        vec![0xff; 64],
        stamped.to_bytes().to_vec(),
        chunk.to_bytes().to_vec(),
        answer.to_bytes().to_vec(),
        frame(1, crate::fabric::BODY_MAX + 1).to_bytes().to_vec(),
        b"GET / HTTP/1.1\r\nHost: localhost:1234\r\nUser-Agent: a lost browser\r\n\r\n".to_vec(),
    ];
    for bytes in garbage {
        let (mut port, _, mut far) = port();
        far.write_all(&bytes).expect("room");
        assert_eq!(
            until_down(&mut port),
            (0, DownReason::Corrupt),
            "{bytes:x?}"
        );
        let mut rest = Vec::new();
        let closed = far.read_to_end(&mut rest);
        assert!(rest.is_empty() && closed.is_ok_and(|count| count == 0) || rest.is_empty());
    }
}

#[test]
fn a_peer_that_does_not_read_fills_a_bounded_buffer_and_then_posts_are_refused() {
    let (mut port, qp, far) = port();
    let body = [7; 4096];
    let mut posted = 0u64;
    let mut refusals = 0;
    while refusals < 1000 {
        match port.post_send(qp, &frame(posted, 4096), [&body, &[]]) {
            Ok(()) => posted += 1,
            Err(refusal) => {
                assert_eq!(refusal, PostRefusal::Full);
                refusals += 1;
                port.poll(Nanos(0), 16, &mut |arrival| panic!("{arrival:?}"));
            }
        }
    }
    assert_eq!(port.stats().stalls, 1, "the system is asked to say when");
    assert!(port.arm(), "and nothing keeps the shard awake");
    port.disarm();
    // It reads at last: everything comes, whole and in order.
    let reader = std::thread::spawn(move || {
        let mut far = far;
        let mut next = [0; 64 + 4096];
        for number in 0..posted {
            far.read_exact(&mut next).expect("it is there");
            let head = Frame::from_bytes(next.first_chunk().expect("64"));
            assert_eq!(head.words[2], number);
            assert!(next[64..].iter().all(|&byte| byte == 7));
        }
        // Still open for the thread that polls the port meanwhile.
        far
    });
    while !reader.is_finished() {
        port.poll(Nanos(0), 16, &mut |arrival| panic!("{arrival:?}"));
    }
    drop(reader.join().expect("all of it"));
}

/// A port whose every socket is hot never asks epoll, and may be polled without an end.
#[test]
fn looks_without_a_question_to_epoll_may_be_any_number() {
    let (mut port, _, _far) = port();
    port.unasked = u32::MAX - 1;
    for _ in 0..4 {
        port.poll(Nanos(0), 16, &mut |arrival| panic!("{arrival:?}"));
    }
    assert_eq!(port.unasked, u32::MAX, "there was nothing to ask");
}

#[test]
fn closing_while_the_peer_does_not_read_ends_within_the_bound() {
    let (mut port, qp, _far) = port();
    let body = [7; 4096];
    while port.stats().stalls == 0 {
        let _ = port.post_send(qp, &frame(0, 4096), [&body, &[]]);
        port.poll(Nanos(5), 16, &mut |arrival| panic!("{arrival:?}"));
    }
    port.close(qp);
    port.poll(Nanos(STREAM_LINGER_NS), 16, &mut |arrival| {
        panic!("{arrival:?}")
    });
    let mut down = None;
    port.poll(Nanos(STREAM_LINGER_NS + 5), 16, &mut |arrival| {
        down = Some(format!("{arrival:?}"));
    });
    assert!(down.is_some_and(|text| text.contains("Closed")));
}

#[test]
fn idle_peers_cost_a_poll_nothing() {
    let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
    let mut far: Vec<_> = (0..40).map(|_| connect(&mut port)).collect();
    let (_, busy) = &mut far[33];
    let before = port.stats();
    let (mut seen, mut turns) = (0, 0);
    for number in 0..500 {
        busy.write_all(&frame(number, 0).to_bytes()).expect("room");
        while seen == number {
            turns += 1;
            port.poll(Nanos(0), 16, &mut |_| seen += 1);
        }
    }
    let after = port.stats();
    assert!(
        after.reads - before.reads <= turns * 4 + 600,
        "{after:?} in {turns}"
    );
    // All others are cold by now: one read, and the question, in eight looks.
    assert!(after.epolls - before.epolls <= turns / 8 + 40, "{after:?}");
}

/// Talkers who always have a window of frames here, and one who says a word now and then, be it hot or cold.
#[test]
fn greedy_peers_starve_nobody() {
    const WINDOW: u64 = 256;
    const TALKER: u64 = 0;
    const QUIET: u64 = 1;
    for (talkers, budget, is_quiet_first) in [
        (1, 64, true),
        (3, 64, true),
        (3, 64, false),
        (6, 64, true),
        (6, 64, false),
        (6, 1, true),
        (6, 1, false),
        (40, 64, false),
    ] {
        let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
        let mut pair = || {
            let (near, far) = UnixStream::pair().expect("two sockets");
            (port.attach(near.into(), CAPS).expect("connected"), far)
        };
        let early = is_quiet_first.then(&mut pair);
        let mut far: Vec<_> = (0..talkers).map(|_| (pair(), 0u64)).collect();
        let (_, mut quiet) = early.unwrap_or_else(&mut pair);
        let mut heard = 0;
        for turn in 0..2_500 {
            for ((_, talker), here) in &mut far {
                let more = frame(TALKER, 0)
                    .to_bytes()
                    .repeat((WINDOW - *here) as usize);
                talker.write_all(&more).expect("room for a window");
                *here = WINDOW;
            }
            let asked = turn / 250;
            if turn % 250 == 0 {
                assert_eq!(
                    heard, asked,
                    "{talkers} talkers, {budget} a poll, {is_quiet_first}"
                );
                quiet.write_all(&frame(QUIET, 0).to_bytes()).expect("room");
            }
            port.poll(Nanos(turn), budget, &mut |arrival| match arrival {
                Arrival::Frame { frame, .. } if frame.words[2] == QUIET => heard += 1,
                Arrival::Frame { qp, .. } => {
                    let of = far.iter_mut().find(|((known, _), _)| *known == qp);
                    of.expect("one of ours").1 -= 1;
                }
                other => panic!("{other:?}"),
            });
        }
    }
}

/// What is sent of large writes in one poll is bounded for all peers together; frames go out beside it.
#[test]
fn a_poll_sends_a_bounded_part_of_writes_to_many() {
    const PEERS: usize = 32;
    const LEN: usize = 300_000;
    let config = ArenaConfig {
        segment_bytes: 2 << 20,
        bytes_max: 2 << 20,
        huge_pages: HugePages::Off,
    };
    let region = Pool::new(ArenaId(3), config)
        .expect("2 MiB")
        .buffer(LEN)
        .expect("room")
        .region();
    let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
    let mut peers: Vec<_> = (0..PEERS)
        .map(|_| {
            let (near, far) = UnixStream::pair().expect("two sockets");
            far.set_nonblocking(true).expect("set");
            (port.attach(near.into(), CAPS).expect("connected"), far)
        })
        .collect();
    for &(qp, _) in &peers {
        let meta = TensorMeta::new(DType::U8, Shape::new(&[LEN as u64]).expect("one"));
        let source = Tensor::from_bytes(meta.expect("small"), vec![7; LEN].into());
        let write = Write {
            qp,
            token: Token(0),
            source: source.expect("as many bytes"),
            landing: Landing {
                index: 0,
                generation: 5,
            },
            region,
        };
        port.post_write(write).expect("room");
    }
    let mut got = [0; PEERS];
    let mut turns = 0;
    while got.iter().any(|&count| count < LEN + FRAME_BYTES) {
        port.poll(Nanos(0), 64, &mut |arrival| panic!("{arrival:?}"));
        let mut sent = 0;
        for ((_, far), got) in peers.iter_mut().zip(&mut got) {
            let mut bytes = vec![0; 2 * LEN];
            let count = far.read(&mut bytes).unwrap_or(0);
            *got += count;
            sent += count;
        }
        let most = BYTES_PER_LOOK + crate::ground::limits::STREAM_CHUNK_MAX;
        assert!(sent <= most + PEERS * FRAME_BYTES, "{sent} in one poll");
        turns += 1;
        assert!(turns < 10 * PEERS, "each has its turn: {got:?}");
        if turns == 1 {
            // All others wait for their turn; a frame does not.
            let last = got.iter().rposition(|&count| count == 0).expect("most");
            port.post_send(peers[last].0, &frame(1, 0), [&[], &[]])
                .expect("room");
            port.poll(Nanos(0), 64, &mut |arrival| panic!("{arrival:?}"));
            let mut bytes = [0; FRAME_BYTES];
            peers[last].1.read_exact(&mut bytes).expect("it is there");
            assert_eq!(Frame::from_bytes(&bytes), frame(1, 0));
        }
    }
}

#[test]
fn a_socket_that_ends_takes_only_itself_off_the_hot_list() {
    // In one of these many looks it would have cooled anyway.
    for looks in 240..270 {
        let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
        let mut pair = || {
            // What is written to a Unix stream is there at once.
            let (near, far) = UnixStream::pair().expect("two sockets");
            port.attach(near.into(), CAPS).expect("connected");
            far
        };
        let (mut first, mut second, last) = (pair(), pair(), pair());
        let mut say = || {
            for far in [&mut first, &mut second] {
                far.write_all(&frame(1, 0).to_bytes()).expect("room");
            }
        };
        for _ in 0..looks {
            say();
            port.poll(Nanos(0), 16, &mut |_| {});
        }
        drop(last);
        until_down(&mut port);
        say();
        let mut frames = 0;
        for _ in 0..1000 {
            port.poll(Nanos(0), 16, &mut |_| frames += 1);
        }
        assert_eq!(frames, 2, "after {looks} looks");
    }
}

#[test]
fn a_sleeper_is_woken_by_a_socket_and_by_its_doorbell() {
    let (mut port, _, mut far) = port();
    let bell = Doorbell::new().expect("doorbell");
    let sleep = |port: &mut TcpPort, ns| {
        bell.arm();
        assert!(port.arm());
        let woken = bell.wait_beside(port.wake_fd(), Some(Nanos(ns)));
        bell.disarm();
        port.disarm();
        woken.expect("poll")
    };
    assert!(!sleep(&mut port, 1_000_000), "nothing came");
    let late = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        far.write_all(&frame(1, 0).to_bytes()).expect("room");
        far
    });
    assert!(sleep(&mut port, 10_000_000_000), "a frame came");
    let mut frames = 0;
    port.poll(Nanos(0), 16, &mut |_| frames += 1);
    assert_eq!(frames, 1);
    let _far = late.join().expect("sent");
    let wake = bell.wake();
    let ringer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        wake.ring();
    });
    assert!(sleep(&mut port, 10_000_000_000), "it was rung");
    ringer.join().expect("rang");
}

#[test]
fn only_connected_streams_are_attached() {
    let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    assert_eq!(
        port.attach(listener.into(), CAPS),
        Err(TcpError::NotConnected)
    );
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    assert_eq!(port.attach(datagrams.into(), CAPS), Err(TcpError::NoStream));
    let file = std::fs::File::open("/dev/null").expect("it is there");
    assert!(matches!(
        port.attach(file.into(), CAPS),
        Err(TcpError::Os(..))
    ));
}

#[test]
fn only_between_ends_of_one_machine_nothing_is_paced_and_chunks_are_long() {
    let control = |fd: BorrowedFd<'_>| rustix::net::sockopt::tcp_congestion(fd).expect("tcp");
    for (address, is_ours) in [("127.0.0.1:0", true), ("127.0.0.2:0", false)] {
        let listener = TcpListener::bind(address).expect("a free port");
        // From 127.0.0.1, whatever the listener's address is: from another machine, as far as addresses say.
        let near = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("one");
        rustix::net::bind(&near, &"127.0.0.1:0".parse::<SocketAddr>().expect("one")).expect("free");
        rustix::net::connect(&near, &listener.local_addr().expect("bound")).expect("loopback");
        // As if the system's own choice were another one, where it lets us choose.
        let _ = rustix::net::sockopt::set_tcp_congestion(&near, "cubic");
        let system = control(near.as_fd());
        let may_choose = rustix::net::sockopt::set_tcp_congestion(&near, "reno").is_ok();
        rustix::net::sockopt::set_tcp_congestion(&near, &system).expect("it is its own");
        let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
        let qp = port.attach(near, CAPS).expect("connected");
        let line = port.places[(qp.0 & 0xffff) as usize].line.as_ref();
        let socket = &line.expect("attached").socket;
        let is_changed = is_ours && may_choose;
        let expected = if is_changed {
            "reno".to_owned()
        } else {
            system
        };
        assert_eq!(control(socket.as_fd()), expected);
        let longest = if is_ours {
            crate::ground::limits::STREAM_CHUNK_MAX
        } else {
            crate::ground::limits::STREAM_CHUNK_FAR
        };
        assert_eq!(socket.chunk_max(), longest);
    }
}

/// A data connection goes down when its bytes are not acknowledged for the time of the settings, whatever the control
/// plane has set on the socket before.
#[test]
fn a_data_connection_has_the_user_timeout_of_its_port() {
    let config = TcpConfig {
        user_timeout_ms: 7_700,
        ..TcpConfig::default()
    };
    let mut port = TcpPort::new(config).expect("epoll");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    sockopt::set_tcp_user_timeout(&near, 123).expect("set");
    let watched = near.try_clone().expect("a descriptor");
    port.attach(near.into(), CAPS).expect("connected");
    assert_eq!(sockopt::tcp_user_timeout(&watched).expect("asked"), 7_700);
    assert!(sockopt::socket_keepalive(&watched).expect("asked"));
}

/// An idle port looks at its sockets in a few of its polls: what the peer said last was lost with it.
#[test]
fn a_poll_of_one_looks_whatever_the_turn() {
    let (mut port, qp, mut far) = port();
    let mut frames = 0;
    for turn in 0..3000 {
        port.poll(Nanos(turn), 16, &mut |_| frames += 1);
    }
    far.write_all(&frame(1, 0).to_bytes()).expect("room");
    std::thread::sleep(std::time::Duration::from_millis(20));
    port.poll(Nanos(3000), 16, &mut |_| frames += 1);
    assert_eq!(frames, 0, "it is not the socket's turn");
    assert!(port.poll_one(qp, Nanos(3001), 16, &mut |_| frames += 1) > 0);
    assert_eq!(frames, 1);
    // One of another generation names nothing.
    assert_eq!(
        port.poll_one(QpId(qp.0 ^ 1 << 16), Nanos(3002), 16, &mut |_| frames += 1),
        0
    );
}
