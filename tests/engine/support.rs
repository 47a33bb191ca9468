//! What several of these suites need: engines of one process, and patience.

use std::time::{Duration, Instant};

use rendez::engine::{Config, Engine, Require};

/// Longer than anything here takes on the slowest machine: a test that hangs fails instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Settings of one shard that shares its core, without a control plane.
pub(crate) fn config(task: &str) -> Config {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    config.shards = 1;
    config.share_cores = true;
    config.control = false;
    config.arena.segment_bytes = 4 << 20;
    config
}

/// An engine of these settings, changed.
pub(crate) fn engine(task: &str, change: impl FnOnce(&mut Config)) -> Engine {
    let mut config = config(task);
    change(&mut config);
    Engine::start(config).unwrap()
}

/// An engine with a control plane.
pub(crate) fn on_the_network(task: &str, way: Require) -> Engine {
    engine(task, |config| {
        (config.control, config.require) = (true, way);
        if way == Require::Tcp {
            config.listen = Some("127.0.0.1:0".parse().unwrap());
        }
    })
}

/// Waits for what other threads bring about.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}
