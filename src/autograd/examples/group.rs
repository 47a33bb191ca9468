//! Three engines in this process, with an agent and autograd on each.

use std::time::Duration;

use super::parts;
use rendez::engine::{Config, Engine};
use rendez_autograd::remote::Joining;
use rendez_autograd::tape::Tape;
use rendez_autograd::worker::Worker;
use rendez_dataflow::server::executor;
use rendez_rpc::{Agent, Options};

/// The workers' names.
pub(crate) const NAMES: [&str; 3] = ["trainer", "one", "two"];

/// Workers `trainer`, `one` and `two`.
pub(crate) struct Group {
    agents: Vec<Agent>,
    workers: Vec<Worker<Tape>>,
}

fn engine(task: &str) -> Engine {
    let mut config = Config::new(task);
    (
        config.shards,
        config.share_cores,
        config.arena.segment_bytes,
    ) = (1, true, 4 << 20);
    config.poll = rendez::drive::PollPolicy::Park;
    Engine::start(config).expect("an engine")
}

impl Group {
    pub(crate) fn start(example: &str) -> Self {
        let task = |at| format!("/job:{example}_{}/task:{at}", std::process::id());
        let engines: Vec<_> = (0..NAMES.len()).map(|at| engine(&task(at))).collect();
        let named = engines.iter().zip(NAMES).map(|(engine, name)| {
            let worker = rendez_rpc::Worker::new(name, engine.task().to_string());
            worker.at(engine.address().expect("it listens").clone())
        });
        let named: Vec<_> = named.collect();
        let start = |at: usize| {
            let engine = &engines[at];
            // Eager tensors lie in the engine's memory, so that calls bring them without a copy.
            let tape = Tape::with(executor::home(engine.downgrade()));
            let joining = Joining::new(at as u16, tape.clone());
            let options = Options::of_workers(named.clone()).functions(parts::functions(&tape));
            let agent = Agent::init(engine, NAMES[at], joining.options(options)).expect("an agent");
            let worker = joining.attach(&agent).expect("its worker");
            (agent, worker)
        };
        let started: Vec<_> = std::thread::scope(|scope| {
            let start = &start;
            let threads: Vec<_> = (0..NAMES.len())
                .map(|at| scope.spawn(move || start(at)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        let (agents, workers) = started.into_iter().unzip();
        Self { agents, workers }
    }

    /// The trainer's agent and worker.
    pub(crate) fn trainer(&self) -> (&Agent, &Worker<Tape>) {
        (&self.agents[0], &self.workers[0])
    }

    /// Asserts that no context is left anywhere.
    pub(crate) fn check_empty(&self) {
        for _ in 0..5000 {
            let is_empty = |worker: &Worker<Tape>| {
                worker.load().contexts == 0 && worker.engine().kept() == (0, 0)
            };
            if self.workers.iter().all(is_empty) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for worker in &self.workers {
            assert_eq!(worker.load().contexts, 0, "{worker:?}");
            assert_eq!(worker.engine().kept(), (0, 0), "{worker:?}");
        }
    }

    /// Shuts all of them down together.
    pub(crate) fn stop(self) {
        const PATIENCE: Duration = Duration::from_secs(30);
        let leave = |agent: Agent| std::thread::spawn(move || agent.shutdown(PATIENCE));
        let threads: Vec<_> = self.agents.into_iter().map(leave).collect();
        for thread in threads {
            thread.join().expect("no panic").expect("a clean end");
        }
    }
}
