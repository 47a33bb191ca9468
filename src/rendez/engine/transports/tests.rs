//! Ports that are full: a connection whose links no shard can take ends, and the next one carries tensors.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::port_of;
use super::toy::{PATIENCE, hand_over, stop};
use crate::control::{Path, PathWish};
use crate::engine::{Config, Engine};
use crate::fabric::doorbell::PeerWake;
use crate::fabric::{AnyPort, Caps, Geometry, LoopbackPort, Port as _, QUEUE_PAIRS_MAX, QpId};
use crate::ground::{Key, StepId, catalogue};
use crate::memory::Tensor;
use crate::shard::Call;

const CAPS: Caps = Caps {
    body_max: 4096,
    one_sided: false,
    read_domain: false,
};

/// Two engines of one shard each that meet over this path.
fn pair(test: &str, path: Path) -> [Engine; 2] {
    let engines = [0, 1].map(|index| {
        let mut config = Config::new(format!("/job:{test}_{}/task:{index}", path.name()));
        config.shards = 1;
        config.share_cores = true;
        config.verbs.enabled = false;
        config.arena.segment_bytes = 4 << 20;
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        config.require = PathWish::only(path);
        Engine::start(config).expect("it starts")
    });
    let address = engines[1].tcp_address().expect("it listens").clone();
    engines[0].add_peer(engines[1].task().clone(), address);
    engines
}

/// Does something with the ports of an engine's shard, in its thread.
fn on_ports<T: Send + 'static>(
    engine: &Engine,
    work: impl FnOnce(&mut [AnyPort]) -> T + Send + 'static,
) -> T {
    let (tell, told) = sync_channel(1);
    engine.inner.mailboxes[0].call(Call::Ports(Box::new(move |ports| {
        let _ = tell.send(work(ports));
    })));
    told.recv_timeout(PATIENCE).expect("the shard runs")
}

/// Takes every place of the port of a path.
fn fill(engine: &Engine, path: Path) -> Vec<QpId> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).expect("up to the hard limit");
    on_ports(engine, move |ports| {
        let geometry = Geometry {
            slots: 8,
            payload_bytes: 4096,
        };
        let (socket, peer) = UnixStream::pair().expect("two sockets");
        // It says nothing, and is not read.
        peer.shutdown(Shutdown::Read).expect("it is open");
        let attach = |_| {
            if path == Path::Shm {
                let (_, port) = port_of!(ports, Shm).expect("it has one");
                let (end, _) = LoopbackPort::endpoints(geometry).expect("within bounds");
                port.attach(end, PeerWake::NEVER_SLEEPS, CAPS).ok()
            } else {
                let (_, port) = port_of!(ports, Tcp).expect("it has one");
                let socket = socket.try_clone().expect("a descriptor");
                port.attach(socket.into(), CAPS).ok()
            }
        };
        let taken: Vec<_> = (0..QUEUE_PAIRS_MAX).map_while(attach).collect();
        // The sockets stay open.
        std::mem::forget(peer);
        taken
    })
}

fn close(engine: &Engine, path: Path, taken: Vec<QpId>) {
    on_ports(engine, move |ports| {
        for qp in taken {
            if path == Path::Shm {
                port_of!(ports, Shm).expect("it has one").1.close(qp);
            } else {
                port_of!(ports, Tcp).expect("it has one").1.close(qp);
            }
        }
    });
}

/// Waits until a connection lasts for longer than a useless one does.
fn await_steady(engines: &[Engine; 2]) {
    let began = Instant::now();
    let mut since = began;
    while since.elapsed() < Duration::from_secs(1) {
        assert!(began.elapsed() < PATIENCE, "no connection lasts");
        if engines.iter().any(|engine| engine.connected().is_empty()) {
            since = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whichever side it is, and neither takes the other for connected until something times out.
#[test]
fn a_peer_that_a_full_port_cannot_take_is_hung_up_on_and_met_again() {
    for path in [Path::Shm, Path::Tcp] {
        for full in [0, 1] {
            let engines = pair("full", path);
            let mut taken = fill(&engines[full], path);
            assert_eq!(taken.len(), QUEUE_PAIRS_MAX, "{path:?}");
            engines[0].connect(engines[1].task());
            let began = Instant::now();
            let (mut was_there, mut ends) = ([false; 2], [0; 2]);
            while ends.contains(&0) {
                assert!(began.elapsed() < PATIENCE, "{path:?} {full}: {ends:?}");
                for (at, engine) in engines.iter().enumerate() {
                    let is_there = !engine.connected().is_empty();
                    ends[at] += usize::from(was_there[at] && !is_there);
                    was_there[at] = is_there;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            close(&engines[full], path, taken.split_off(QUEUE_PAIRS_MAX / 2));
            await_steady(&engines);
            hand_over(&engines, 100);
            stop(engines);
        }
    }
}

/// Two engines of one process, of which one has no room for the other: what waits at either is told, and when there is
/// room they are connected.
#[test]
fn a_full_port_for_loopback_is_told_to_both_engines() {
    for full in [0, 1] {
        let engines = ["a", "b"].map(|name| {
            let mut config = Config::new(format!("/job:{name}/task:0"));
            (config.shards, config.share_cores, config.control) = (1, true, false);
            config.arena.segment_bytes = 4 << 20;
            config.connect_timeout = 2 * PATIENCE;
            Engine::start(config).expect("it starts")
        });
        let mut taken = on_ports(&engines[full], |ports| {
            let (_, port) = port_of!(ports, Loopback).expect("it has one");
            let geometry = Geometry {
                slots: 8,
                payload_bytes: 4096,
            };
            let attach = |_| {
                let (end, _) = LoopbackPort::endpoints(geometry).expect("within bounds");
                port.attach_local(end, PeerWake::NEVER_SLEEPS).ok()
            };
            (0..QUEUE_PAIRS_MAX).map_while(attach).collect::<Vec<_>>()
        });
        assert_eq!(taken.len(), QUEUE_PAIRS_MAX);
        let waiting = [("a", "b", 1), ("b", "a", 0)].map(|(from, to, at)| {
            let key = Key::between(from, to, "never").expect("a key");
            let recv = engines[at].step(StepId(1)).recv(&key);
            recv.deadline(PATIENCE).start().expect("it waits")
        });
        for engine in &engines {
            while engine.stats()[0].waiting == 0 {
                std::thread::yield_now();
            }
        }
        let connect = || engines[0].connect_local(&engines[1]).expect("they are two");
        connect();
        for recv in waiting {
            let status = recv.wait().expect_err("nothing comes");
            assert_eq!(status.reason(), catalogue::PEER_LOST, "{status}");
            assert!(status.message().contains("QUEUE_PAIRS_MAX"), "{status}");
        }
        let freed = taken.split_off(QUEUE_PAIRS_MAX / 2);
        on_ports(&engines[full], move |ports| {
            let (_, port) = port_of!(ports, Loopback).expect("it has one");
            freed.into_iter().for_each(|qp| port.close(qp));
        });
        // A place is free when its queue pair is down.
        let began = Instant::now();
        for round in 0.. {
            assert!(began.elapsed() < PATIENCE, "no value comes");
            connect();
            let key = Key::between("a", "b", &round.to_string()).expect("a key");
            let sent = engines[0].step(StepId(2)).send(&key, Tensor::scalar(7u8));
            let recv = engines[1].step(StepId(2)).recv(&key);
            if sent.is_ok() && recv.deadline(PATIENCE / 20).wait().is_ok() {
                break;
            }
        }
        stop(engines);
    }
}
