//! What tests of servers need: engines that take little, without a control plane.

use rendez::engine::{Config, Engine};

/// The settings of one.
pub(crate) fn config(task: &str) -> Config {
    let mut config = Config::new(task);
    (config.shards, config.share_cores, config.control) = (1, true, false);
    config.arena.segment_bytes = 4 << 20;
    config
}

pub(crate) fn engine(task: &str) -> Engine {
    Engine::start(config(task)).unwrap()
}

/// Those of tasks `a` and `b`, connected.
pub(crate) fn two_engines() -> [Engine; 2] {
    let engines = ["/job:a/task:0", "/job:b/task:0"].map(engine);
    engines[0].connect_local(&engines[1]).unwrap();
    engines
}
