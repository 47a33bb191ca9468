//! Calls over shared memory, where large tensors are read in place, and over TCP.

#![allow(unreachable_pub)] // The modules of a test are its own.

mod carried;

use carried::Pair;
use rendez::control::Path;
use rendez::engine::{Config, Engine, Require};

fn engine(task: &str, set: impl FnOnce(&mut Config)) -> Engine {
    let mut config = Config::new(format!("/job:{task}_{}/task:0", std::process::id()));
    (
        config.shards,
        config.share_cores,
        config.arena.segment_bytes,
    ) = (1, true, 16 << 20);
    config.poll = rendez::drive::PollPolicy::Park;
    set(&mut config);
    Engine::start(config).expect("an engine")
}

fn is_by(engines: [&Engine; 2], path: Path) {
    for engine in engines {
        let connected = engine.connected();
        assert_eq!(connected.len(), 1);
        assert_eq!(connected[0].path, path, "{}", connected[0].why);
    }
}

#[test]
fn calls_over_shared_memory_lend_their_tensors() {
    let (one, two) = (engine("shm_one", |_| ()), engine("shm_two", |_| ()));
    let pair = Pair::new([&one, &two]);
    is_by([&one, &two], Path::Shm);
    pair.carries_tensors();
    pair.lends_large_tensors();
    pair.ends();
}

#[test]
fn calls_over_tcp_carry_their_tensors() {
    let by_tcp = |config: &mut Config| {
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        config.require = Require::Tcp;
    };
    let (one, two) = (engine("tcp_one", by_tcp), engine("tcp_two", by_tcp));
    let pair = Pair::new([&one, &two]);
    is_by([&one, &two], Path::Tcp);
    pair.carries_tensors();
    pair.ends();
}
