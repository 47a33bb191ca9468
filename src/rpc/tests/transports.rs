//! Calls over shared memory, where large tensors are read in place, and over TCP.

mod carried;

use std::time::{Duration, Instant};

use carried::{LONG, Pair, bytes, made, pattern};
use rendez::control::Path;
use rendez::engine::{Config, Engine, Require};
use rendez::memory::Tensor;
use rendez_rpc::{Agent, RRef};

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

/// Large tensors are read where they are: nothing is copied, as counted at both sides.
fn lends_large_tensors(pair: &Pair) {
    let len = 3_000_000;
    let [one, two] = [&pair.agents[0], &pair.agents[1]];
    let copied = || {
        let all = [one, two].map(|agent| agent.engine().stats());
        let all = all.iter().flatten();
        all.map(|stats| stats.copied_foreign + stats.copied_leased)
            .sum::<u64>()
    };
    let leases = |agent: &Agent| {
        agent
            .engine()
            .stats()
            .iter()
            .map(|stats| stats.leases)
            .sum::<u64>()
    };
    let before = copied();
    // Those of before go home when their owners hear that they are not read any more.
    let since = Instant::now();
    while (leases(one), leases(two)) != (0, 0) {
        assert!(since.elapsed() < LONG, "leases go home");
        std::thread::sleep(Duration::from_millis(1));
    }
    let tensor = made(one.engine(), len).expect("memory");
    let _: bool = one.rpc_sync("two", "keep", (tensor,)).expect("an answer");
    assert_eq!(leases(two), 1, "an argument is lent");
    let result: Tensor = one
        .rpc_sync("two", "make", (len as u64,))
        .expect("an answer");
    assert_eq!(leases(one), 1, "a result is lent");
    let value: RRef<Tensor> = one
        .remote("two", "make", (len as u64,))
        .expect("a reference");
    let value = value.to_here().expect("a value");
    assert_eq!(leases(one), 2, "a reference's value is lent");
    assert_eq!(
        (bytes(&result), bytes(&value)),
        (pattern(len), pattern(len))
    );
    assert_eq!(copied(), before, "nothing was copied");
    drop((result, value));
    pair.kept.lock().expect("no panic").clear();
}

#[test]
fn calls_over_shared_memory_lend_their_tensors() {
    let (one, two) = (engine("shm_one", |_| ()), engine("shm_two", |_| ()));
    let pair = Pair::new([&one, &two]);
    is_by([&one, &two], Path::Shm);
    pair.carries_tensors();
    lends_large_tensors(&pair);
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
