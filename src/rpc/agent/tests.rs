//! Agents on real engines, in one process.

use std::sync::Arc;
use std::time::Duration;

use rendez::engine::{Config, Engine};
use rendez::ground::{DType, Shape, catalogue};
use rendez::memory::Tensor;

use super::*;
use crate::{Context, Functions};

mod calls;
mod cluster;
mod devices;
mod ends;
mod faulty;
mod guests;
mod hostile;
mod keys;
mod lanes;
mod observers;
mod panics;
mod parting;
mod references;
mod reporting;
mod room;
mod rules;
mod shutdown;
mod spans;
mod store;
mod unsent;

/// Longer than anything takes that does not hang.
const LONG: Duration = Duration::from_secs(60);

fn engine(task: &str) -> Engine {
    engine_with(task, |_| {})
}

fn engine_with(task: &str, set: impl FnOnce(&mut Config)) -> Engine {
    let mut config = Config::new(task);
    (
        config.shards,
        config.share_cores,
        config.arena.segment_bytes,
    ) = (1, true, 4 << 20);
    config.poll = rendez::drive::PollPolicy::Park;
    set(&mut config);
    Engine::start(config).expect("an engine")
}

/// Engines that listen at all addresses of this machine, and meet by TCP.
fn engines_everywhere(count: usize, test: &str) -> Vec<Engine> {
    let everywhere = |config: &mut Config| {
        config.listen = Some("0.0.0.0:0".parse().expect("an address"));
        (config.insecure, config.require) = (true, rendez::engine::Require::Tcp);
    };
    (0..count)
        .map(|at| {
            let task = format!("/job:{test}_{}/task:{at}", std::process::id());
            engine_with(&task, everywhere)
        })
        .collect()
}

fn engines(count: usize, test: &str) -> Vec<Engine> {
    (0..count)
        .map(|at| engine(&format!("/job:{test}_{}/task:{at}", std::process::id())))
        .collect()
}

/// Ends when it is told.
fn held() -> (Functions, impl Fn() + Clone) {
    let is_open = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_open);
    let wait = move |number: u32| {
        while !seen.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        number
    };
    let open = move || is_open.store(true, Ordering::Release);
    (Functions::new().add("held", wait), open)
}

/// A group of agents `w0`, `w1`, … with the same functions.
fn group(count: usize, test: &str, functions: &Functions) -> Vec<Agent> {
    group_with(count, test, |options| options.functions(functions.clone()))
}

fn group_with(count: usize, test: &str, set: impl Fn(Options) -> Options + Sync) -> Vec<Agent> {
    start(&engines(count, test), |_, options| set(options))
}

/// The workers `w0`, `w1`, … on these engines.
fn workers(engines: &[Engine]) -> Vec<Worker> {
    let named = engines.iter().enumerate().map(|(at, engine)| {
        let worker = Worker::new(format!("w{at}"), engine.task().to_string());
        worker.at(engine.address().expect("it listens").clone())
    });
    named.collect()
}

/// Their agents, with options that are set by number.
fn start(engines: &[Engine], set: impl Fn(usize, Options) -> Options + Sync) -> Vec<Agent> {
    let workers = workers(engines);
    std::thread::scope(|scope| {
        let (workers, set) = (&workers, &set);
        let threads: Vec<_> = engines
            .iter()
            .enumerate()
            .map(|(at, engine)| {
                scope.spawn(move || {
                    let options = set(at, Options::of_workers(workers.clone()));
                    Agent::init(engine, &format!("w{at}"), options).expect("an agent")
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

/// Shuts all of them down together.
fn shut_down(agents: Vec<Agent>) -> Vec<Result<(), Error>> {
    let leave = |agent: Agent| std::thread::spawn(move || agent.shutdown(LONG));
    let threads: Vec<_> = agents.into_iter().map(leave).collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect()
}
