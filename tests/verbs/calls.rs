//! Calls over RDMA: over the library that is played in memory, and over real devices where there are two.

use std::time::Duration;

use crate::carried::{self, Pair};
use crate::shim;
use rendez::control::Path;
use rendez::engine::{Config, Engine, Require};

fn config(task: &str, device: &str) -> Config {
    let mut config = Config::new(task);
    (
        config.shards,
        config.share_cores,
        config.arena.segment_bytes,
    ) = (1, true, 16 << 20);
    config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    config.require = Require::Verbs;
    config.verbs.device = Some(device.into());
    config
}

fn carries(one: Config, two: Config) {
    let (one, two) = (
        Engine::start(one).expect("an engine"),
        Engine::start(two).expect("an engine"),
    );
    let pair = Pair::new([&one, &two]);
    for engine in [&one, &two] {
        let connected = engine.connected();
        assert_eq!(connected[0].path, Path::Verbs, "{}", connected[0].why);
    }
    pair.carries_tensors();
    pair.ends();
}

#[test]
fn calls_over_rdma_write_their_large_tensors() {
    shim::reset();
    let played = |task: &str, device: &str| {
        let mut config = config(task, device);
        config.verbs.table = Some(shim::table());
        config
    };
    carries(
        played("/job:rpc_one/task:0", "shim0"),
        played("/job:rpc_two/task:0", "shim1"),
    );
    assert!(shim::seen("WRITE_WITH_IMM") > 0, "large ones are written");
}

/// `scripts/soft-roce.sh` boots a guest with two devices, and names them.
#[test]
#[ignore = "needs two RDMA devices, named by RENDEZ_VERBS_DEVICES"]
fn guest_calls_carry_their_tensors_over_two_devices() {
    let names = std::env::var("RENDEZ_VERBS_DEVICES").expect("RENDEZ_VERBS_DEVICES=one,other");
    let (one, two) = names.split_once(',').expect("two names");
    let real = |task: &str, device: &str| {
        let mut config = config(task, device);
        // Two machines on one: else they would share memory. Emulation is slow.
        config.boot = Some(task.to_owned());
        config.failure_detection = Duration::from_secs(4);
        config.connect_timeout = carried::LONG;
        config
    };
    carries(
        real("/job:rpc_one/task:0", one),
        real("/job:rpc_two/task:0", two),
    );
}
