//! Two engines whose shards no thread turns but the one that counts.

use std::time::Duration;

use rendez::drive::Driver;
use rendez::engine::{Config, Engine};
use rendez_rpc::Agent;

pub(crate) const TASKS: [&str; 2] = ["/job:a/task:0", "/job:b/task:0"];

/// Both, connected.
pub(crate) fn engines() -> [Engine; 2] {
    let engines = TASKS.map(|task| {
        let mut config = Config::new(task);
        (config.shards, config.share_cores, config.control) = (1, true, false);
        (config.drive, config.arena.segment_bytes) = (Driver::Caller, 4 << 20);
        Engine::start(config).expect("an engine")
    });
    engines[0].connect_local(&engines[1]).expect("a connection");
    engines
}

pub(crate) fn turn(engines: &[Engine; 2]) {
    engines.iter().rev().for_each(|engine| {
        engine.progress();
    });
}

pub(crate) fn end(engines: [Engine; 2], agents: [Agent; 2]) {
    agents.into_iter().for_each(Agent::shutdown_local);
    for engine in engines {
        engine.shutdown(Duration::from_secs(1));
    }
}
