//! Three processes, with an engine, an agent and autograd in each: this one, which trains, and two that it starts.
#![allow(
    clippy::print_stdout,
    reason = "a process that was started says where it listens"
)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::parts;
use super::training::TRAINER;
use rendez::engine::{Config, Engine};
use rendez_autograd::remote::Joining;
use rendez_autograd::tape::Tape;
use rendez_autograd::worker::Worker;
use rendez_rpc::{Agent, Options};

/// The workers.
const NAMES: [&str; 3] = [TRAINER, "one", "two"];
/// In a process that was started: the name of the example and of the worker, and the addresses of those before it.
const ROLE: &str = "RENDEZ_EXAMPLE_WORKER";
const PATIENCE: Duration = Duration::from_secs(60);

/// The trainer, and the processes of the others.
pub(crate) struct Group {
    agent: Agent,
    worker: Worker<Tape>,
    others: Vec<Other>,
}

/// A process that was started, and its output, which it must be able to write to its end.
struct Other {
    child: Child,
    _output: BufReader<ChildStdout>,
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

/// Joins the group of `example` as worker `name`. `met` has the addresses of workers that listen already; the others
/// dial this one.
fn join(
    engine: &Engine,
    example: &str,
    name: &str,
    met: &[(String, String)],
) -> (Agent, Worker<Tape>) {
    let workers = NAMES.map(|name| {
        let worker = rendez_rpc::Worker::new(name, task(example, name));
        match met.iter().find(|(other, _)| other == name) {
            Some((_, address)) => worker.at(address.parse().expect("an address")),
            None => worker,
        }
    });
    let joining = Joining::new(engine);
    let functions = parts::functions(joining.tape(), joining.worker());
    let options = joining.options(Options::of_workers(workers).functions(functions));
    let agent = Agent::init(engine, name, options).expect("an agent");
    let worker = joining.attach(&agent).expect("its worker");
    (agent, worker)
}

fn task(example: &str, name: &str) -> String {
    format!("/job:{example}_{name}/task:0")
}

/// A worker, if this is its process.
#[test]
fn worker_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut words = role.split(' ').map(str::to_owned);
    let (example, name) = (
        words.next().expect("an example"),
        words.next().expect("a name"),
    );
    let met: Vec<(String, String)> =
        std::iter::from_fn(|| words.next().zip(words.next())).collect();
    let engine = engine(&task(&example, &name));
    println!("listens {}", engine.address().expect("it listens"));
    let (agent, _worker) = join(&engine, &example, &name, &met);
    // Without a limit: it ends when the trainer wants to, or is gone.
    agent.shutdown(Duration::ZERO).expect("all is done");
}

/// Starts the process of worker `name`. Returns it and its address.
fn start(example: &str, name: &str, met: &[(String, String)]) -> (Other, String) {
    let met = met
        .iter()
        .flat_map(|(name, address)| [" ", name, " ", address]);
    let role = format!("{example} {name}{}", met.collect::<String>());
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "group::worker_process", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    let mut lines = output.by_ref().lines().map_while(Result::ok);
    let address = lines.find_map(|line| Some(line.split_once("listens ")?.1.trim().to_owned()));
    let _output = output;
    (Other { child, _output }, address.expect("an address"))
}

impl Group {
    pub(crate) fn start(example: &str) -> Self {
        // Several runs of the tests do not meet.
        let example = format!("{example}_{}", std::process::id());
        let (mut met, mut others) = (vec![], vec![]);
        for name in NAMES.into_iter().skip(1) {
            let (other, address) = start(&example, name, &met);
            others.push(other);
            met.push((name.to_owned(), address));
        }
        let engine = engine(&task(&example, TRAINER));
        let (agent, worker) = join(&engine, &example, TRAINER, &met);
        Self {
            agent,
            worker,
            others,
        }
    }

    /// The trainer's agent and worker.
    pub(crate) const fn trainer(&self) -> (&Agent, &Worker<Tape>) {
        (&self.agent, &self.worker)
    }

    /// Asserts that no context is left anywhere, and nothing that was kept for one. Messages may be under way still.
    pub(crate) fn check_empty(&self) {
        for name in NAMES {
            let load = || -> (u64, u64, u64) {
                let load = self.agent.rpc_sync(name, "part.load", ());
                load.expect("a load")
            };
            let is_empty = (0..5000).any(|_| {
                let is_empty = load() == (0, 0, 0);
                if !is_empty {
                    std::thread::sleep(Duration::from_millis(1));
                }
                is_empty
            });
            assert!(is_empty, "{name} keeps {:?}", load());
        }
    }

    /// Shuts all of them down together.
    pub(crate) fn stop(self) {
        self.agent.shutdown(PATIENCE).expect("a clean end");
        for mut other in self.others {
            let status = other.child.wait().expect("it ended");
            assert!(status.success(), "{status}");
        }
    }
}
