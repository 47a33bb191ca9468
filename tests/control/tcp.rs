//! Pairs over TCP on this machine: the way that is taken, the data connections, and the end.

use std::io::{Read, Write};
use std::net::TcpStream;

use rendez::control::{Address, ControlConfig, Path, PathWish, PeerGone, RuntimeKind};
use rendez::control::{PeerUp, Secret};

use super::support::{Answers, BOTH, PATIENCE, Task, config, start_with};

/// Listens on any port of this machine.
pub(crate) fn open(task: &str, incarnation: u64, kind: RuntimeKind) -> ControlConfig {
    let mut config = config(task, incarnation, kind);
    config.tcp_listen = Some("127.0.0.1:0".parse().expect("an address"));
    config
}

pub(crate) fn secret(text: &str) -> Secret {
    Secret::new(text.repeat(16).as_bytes()).expect("long enough")
}

pub(crate) fn start(config: ControlConfig) -> Task {
    let answers = Answers {
        channels: 3,
        ..Answers::default()
    };
    start_with(config, answers)
}

pub(crate) fn address(task: &Task) -> Address {
    task.control.tcp_address().expect("it listens").clone()
}

pub(crate) fn dial(from: &Task, to: &Task, name: &str, wish: PathWish) {
    from.control
        .dial_by(name, address(to), wish, PATIENCE)
        .expect("taken");
}

/// Bytes that one side writes to each of its data connections come out at the other's of the same channel.
pub(crate) fn assert_joined(left: Box<PeerUp>, right: Box<PeerUp>) {
    assert_eq!((left.path, right.path), (Path::Tcp, Path::Tcp));
    assert!(!left.read_domain && !right.read_domain && !left.exit_provable);
    assert!(left.descriptors.link.is_none() && left.descriptors.segments.is_empty());
    let streams = |up: Box<PeerUp>| -> Vec<(u32, TcpStream)> {
        let sockets = up.descriptors.sockets.into_iter();
        let streams = sockets.map(|socket| (socket.channel, TcpStream::from(socket.fd)));
        streams.collect()
    };
    let (left, right) = (streams(left), streams(right));
    assert_eq!((left.len(), right.len()), (3, 3));
    for (channel, (left, right)) in (0..).zip(left.into_iter().zip(right)) {
        assert_eq!((left.0, right.0), (channel, channel));
        for (mut from, mut to) in [(&left.1, &right.1), (&right.1, &left.1)] {
            assert!(from.nodelay().expect("asked"));
            let mut byte = [0];
            let early = to.read(&mut byte).expect_err("nothing yet, and no waiting");
            assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
            from.write_all(&[channel as u8 + 7]).expect("written");
            to.set_nonblocking(false).expect("set");
            to.read_exact(&mut byte).expect("read");
            assert_eq!(byte, [channel as u8 + 7]);
        }
    }
}

#[test]
fn two_tasks_meet_over_tcp() {
    for left in BOTH {
        for right in BOTH {
            for with_secret in [false, true] {
                let made = |task, incarnation, kind| {
                    let mut config = open(task, incarnation, kind);
                    config.secret = with_secret.then(|| secret("one"));
                    start(config)
                };
                let (a, b) = (made("a", 1, left), made("b", 2, right));
                dial(&a, &b, "b", PathWish::Tcp);
                let (at_a, at_b) = (a.up(), b.up());
                assert_eq!((at_a.task.as_str(), at_b.task.as_str()), ("b", "a"));
                assert!(at_a.dialler && !at_b.dialler);
                assert_eq!(at_a.path_why, "TCP is demanded");
                let peer = at_b.peer;
                assert_joined(at_a, at_b);
                a.stop();
                assert!(
                    matches!(b.gone(), (gone, PeerGone::Said { reason }) if gone == peer && reason == "test over")
                );
            }
        }
    }
}

#[test]
fn tasks_of_one_machine_meet_in_shared_memory() {
    for wish in [PathWish::Auto, PathWish::Shm] {
        for kind in BOTH {
            let (a, b) = (start(open("a", 1, kind)), start(open("b", 2, kind)));
            dial(&a, &b, "b", wish);
            let (at_a, at_b) = (a.up(), b.up());
            assert_eq!((at_a.path, at_b.path), (Path::Shm, Path::Shm));
            assert!(at_a.read_domain && at_a.descriptors.link.is_some());
        }
    }
}

#[test]
fn both_dial_and_one_connection_comes_to_be() {
    for round in 0..20 {
        let kind = BOTH[round % 2];
        let (a, b) = (start(open("a", 1, kind)), start(open("b", 2, kind)));
        let wish = [PathWish::Tcp, PathWish::Auto][round / 2 % 2];
        dial(&a, &b, "b", wish);
        dial(&b, &a, "a", wish);
        let (at_a, at_b) = (a.up(), b.up());
        assert_ne!(at_a.dialler, at_b.dialler);
        a.stop();
        assert_eq!(b.gone().0, at_b.peer);
        b.stop();
        assert!(a.events.try_recv().is_err() && b.events.try_recv().is_err());
    }
}
