//! Contexts, passes and optimizers over agents on real engines, in one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{DistributedOptimizer, Joining};
use crate::autograd::{Mode, Options as PassOptions};
use crate::optim::{Adam, Parameter, Rule, Sgd};
use crate::tape::{Tape, Var};
use crate::worker::{Scope, Worker, current_context};
use rendez::engine::{Config, Engine};
use rendez::ground::{Shape, Status, catalogue};
use rendez::memory::Tensor;
use rendez_rpc::{Agent, Context, Error, Functions, Observer, Options, Pending, RRef};

mod contexts;
mod joining;
mod references;

fn row(values: &[f64]) -> Tensor {
    let shape = Shape::new(&[values.len() as u64]).expect("a row");
    Tensor::from_vec(values.to_vec(), shape).expect("a tensor")
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec::<f64>().expect("doubles")
}

/// What all workers of these tests can be called for; `wait` ends when it is `open`.
fn functions(tape: &Tape, open: &Arc<AtomicBool>) -> Functions {
    let open = Arc::clone(open);
    let wait = move || {
        while !open.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let weights = Arc::new(Parameter::new(tape, row(&[2.0, -1.0])).expect("doubles"));
    let held = Arc::clone(&weights);
    let scale = move |x: Var| -> Result<Var, Error> { x.mul(&held.var()).map_err(Error::local) };
    let held = Arc::clone(&weights);
    // Scales, and has the others of the way do so too.
    let relay = move |way: Vec<String>, x: Var| -> Result<Var, Error> {
        let x = x.mul(&held.var()).map_err(Error::local)?;
        let Some((next, rest)) = way.split_first() else {
            return Ok(x);
        };
        let agent = Context::current().expect("it is called").agent();
        agent.rpc_sync(next, "relay", (rest.to_vec(), x))
    };
    let held = Arc::clone(&weights);
    let parameter = move || -> RRef<Parameter> {
        let agent = Context::current().expect("it is called").agent();
        RRef::to_object(&agent, Parameter::clone(&held))
    };
    let context = || current_context().map(|context| context.to_wire());
    let held = Arc::clone(&weights);
    let scale_kept = move |x: RRef<Var>| -> Result<Var, Error> {
        let x = x.to_here()?;
        x.mul(&held.var()).map_err(Error::local)
    };
    let held = Arc::clone(&weights);
    let scale_both = move |x: Var, y: Var| -> Result<Vec<Var>, Error> {
        let both = [x, y].map(|one| one.mul(&held.var()));
        both.into_iter()
            .map(|one| one.map_err(Error::local))
            .collect()
    };
    let held = Arc::clone(&weights);
    let scale_often = move |x: Var| -> Result<Vec<Var>, Error> {
        let each = (0..2100).map(|_| x.mul(&held.var()).map_err(Error::local));
        each.collect()
    };
    let held = Arc::clone(&weights);
    let loss = move |x: Var| -> Result<Var, Error> {
        let scaled = x.mul(&held.var()).map_err(Error::local)?;
        scaled.total().map_err(Error::local)
    };
    Functions::new()
        .add("scale", scale)
        .add("relay", relay)
        .add("weights", move || weights.var().tensor().clone())
        .add("parameter", parameter)
        .add("context", context)
        .add("scale_kept", scale_kept)
        .add("scale_both", scale_both)
        .add("scale_often", scale_often)
        .add("loss", loss)
        .add("wait", wait)
}

struct Group {
    agents: Vec<Agent>,
    workers: Vec<Worker<Tape>>,
    open: Arc<AtomicBool>,
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

/// Counts what observers before it have heard of workers that came.
struct Finds(Arc<AtomicUsize>);

impl Observer for Finds {
    fn found(&self, _: rendez_rpc::WorkerId) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Group {
    fn start(test: &str, count: usize) -> Self {
        Self::start_with(test, count, |options| options)
    }

    fn start_with(test: &str, count: usize, set: impl Fn(Options) -> Options + Sync) -> Self {
        let open: Arc<AtomicBool> = Arc::default();
        let found: Arc<AtomicUsize> = Arc::default();
        let task = |at| format!("/job:{test}_{}/task:{at}", std::process::id());
        let engines: Vec<_> = (0..count).map(|at| engine(&task(at))).collect();
        let named: Vec<_> = engines
            .iter()
            .enumerate()
            .map(|(at, engine)| {
                let worker = rendez_rpc::Worker::new(format!("w{at}"), engine.task().to_string());
                worker.at(engine.address().expect("it listens").clone())
            })
            .collect();
        let start = |at: usize| {
            let joining = Joining::new(&engines[at]);
            let functions = functions(joining.tape(), &open);
            let options = Options::of_workers(named.clone()).functions(functions);
            let options =
                set(joining.options(options)).observer(Arc::new(Finds(Arc::clone(&found))));
            let agent = Agent::init(&engines[at], &format!("w{at}"), options).expect("an agent");
            let worker = joining.attach(&agent).expect("its worker");
            (agent, worker)
        };
        let started: Vec<_> = std::thread::scope(|scope| {
            let start = &start;
            let threads: Vec<_> = (0..count)
                .map(|at| scope.spawn(move || start(at)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        // Heard later, it would undo what a test says of a worker.
        assert!(Self::until(
            || found.load(Ordering::SeqCst) >= count * (count - 1)
        ));
        let (agents, workers) = started.into_iter().unzip();
        Self {
            agents,
            workers,
            open,
        }
    }

    /// Waits until `what` holds: messages are under way for a moment.
    fn until(what: impl Fn() -> bool) -> bool {
        (0..20_000).any(|_| {
            let holds = what();
            if !holds {
                std::thread::sleep(Duration::from_millis(1));
            }
            holds
        })
    }

    fn are_empty(workers: &[Worker<Tape>]) -> bool {
        let is_empty =
            |worker: &Worker<Tape>| worker.load().contexts == 0 && worker.engine().kept() == (0, 0);
        Self::until(|| workers.iter().all(is_empty))
    }

    /// Shuts all of them down together.
    fn leave(self) {
        assert!(Self::are_empty(&self.workers));
        let patience = Duration::from_secs(30);
        let leave = |agent: Agent| std::thread::spawn(move || agent.shutdown(patience));
        let threads: Vec<_> = self.agents.into_iter().map(leave).collect();
        for thread in threads {
            thread.join().expect("no panic").expect("a clean end");
        }
    }
}

/// What worker 1 and, after it, those of `way` make of `x`.
fn relay(agent: &Agent, way: &[&str], x: Var) -> Var {
    let way: Vec<String> = way.iter().map(|name| (*name).to_owned()).collect();
    let relayed = agent.rpc_sync("w1", "relay", (way, x));
    relayed.expect("a call")
}

/// A pass from the sum of `y`.
fn backward_from(scope: &Scope<Tape>, y: &Var) {
    let loss = y.total().expect("a sum");
    scope.backward(&[loss]).expect("a pass");
}

fn gradient_of(scope: &Scope<Tape>, leaf: &Var) -> Vec<f64> {
    let all = scope.gradients().expect("gradients");
    numbers(&all[&leaf.leaf_id().expect("a leaf")])
}

fn both_modes() -> [PassOptions; 2] {
    [Mode::Smart, Mode::Fast].map(|mode| PassOptions {
        mode,
        retain: false,
    })
}

#[test]
fn a_nested_call_runs_in_the_context_of_its_caller() {
    let group = Group::start("nested", 3);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let outside: Option<u64> = agent.rpc_sync("w1", "context", ()).expect("a call");
    assert_eq!(outside, None);
    for options in both_modes() {
        let scope = worker.scope().expect("a context");
        let inside: Option<u64> = agent.rpc_sync("w1", "context", ()).expect("a call");
        assert_eq!(inside, Some(scope.id().to_wire()));
        let x = worker.engine().leaf(row(&[1.0, 3.0]));
        let y = relay(agent, &["w2", "w0", "w1"], x.clone());
        assert_eq!(numbers(y.tensor()), [16.0, 3.0]);
        let loss = y.total().expect("a sum");
        worker
            .backward(scope.id(), &[loss], options)
            .expect("a pass");
        let all: Vec<BTreeMap<u64, Tensor>> = group
            .workers
            .iter()
            .map(|worker| worker.gradients(scope.id()).expect("gradients"))
            .collect();
        assert_eq!(numbers(&all[0][&x.leaf_id().expect("a leaf")]), [16.0, 1.0]);
        // The weights of w1 were used twice.
        let of = |at: usize| {
            all[at]
                .iter()
                .find(|(id, _)| Some(**id) != x.leaf_id())
                .map(|(_, tensor)| numbers(tensor))
        };
        assert_eq!(
            (of(1), of(2)),
            (Some(vec![16.0, -6.0]), Some(vec![8.0, -3.0])),
            "{options:?}"
        );
    }
    group.leave();
}

#[test]
fn what_a_call_brings_and_nobody_uses_hangs_no_pass() {
    let group = Group::start("unused", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    for (options, is_well) in both_modes().into_iter().zip([true, false]) {
        let scope = worker.scope().expect("a context");
        let used: Var = agent.rpc_sync("w1", "scale", (x.clone(),)).expect("a call");
        drop(
            agent
                .rpc_sync::<Var>("w1", "scale", (x.clone(),))
                .expect("a call whose result is not used"),
        );
        let loss = used.total().expect("a sum");
        let ended = worker.backward(scope.id(), &[loss], options);
        assert_eq!(ended.is_ok(), is_well, "{ended:?}");
        if let Err(error) = ended {
            assert_eq!(error.reason(), catalogue::AUTOGRAD_UNUSED_SEND);
            assert!(
                scope.gradients().expect("gradients").is_empty(),
                "nothing is left of a pass that failed"
            );
        }
    }
    group.leave();
}

#[test]
fn a_pass_through_a_worker_that_is_gone_fails_and_leaves_nothing() {
    let mut group = Group::start("gone", 3);
    let worker = group.workers[0].clone();
    let scope = worker.scope().expect("a context");
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let y = relay(&group.agents[0], &["w2"], x);
    let loss = y.total().expect("a sum");
    group.agents.pop().expect("w2").shutdown_local();
    let error = scope.backward(&[loss]).expect_err("w2 is gone");
    assert!(!error.message().is_empty());
    assert_eq!(worker.load().passes, 0);
    drop(scope);
    assert!(
        Group::are_empty(&group.workers[..2]),
        "{:?}",
        group.workers[1].load()
    );
}

#[test]
fn contexts_of_a_worker_that_is_gone_are_released() {
    let mut group = Group::start("orphans", 3);
    let worker = group.workers[0].clone();
    let scope = worker.scope().expect("a context");
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let _y = relay(&group.agents[0], &["w2"], x);
    assert_eq!(group.workers[2].load().contexts, 1);
    group.agents.remove(0).shutdown_local();
    assert!(Group::are_empty(&group.workers[1..]));
    drop(scope);
}

#[test]
fn an_optimizer_steps_parameters_of_several_workers() {
    let group = Group::start("optimizer", 3);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let parameters: Vec<RRef<Parameter>> = ["w1", "w2"]
        .map(|at| agent.rpc_sync(at, "parameter", ()).expect("a reference"))
        .into();
    let rule = Rule::Sgd(Sgd {
        lr: 0.5,
        ..Sgd::default()
    });
    let optimizer = DistributedOptimizer::new(agent, rule, &parameters).expect("an optimizer");
    let scope = worker.scope().expect("a context");
    let x = worker.engine().constant(row(&[1.0, 3.0]));
    let y = relay(agent, &["w2"], x);
    backward_from(&scope, &y);
    optimizer.step(scope.id()).expect("a step");
    for at in ["w1", "w2"] {
        let stepped: Tensor = agent.rpc_sync(at, "weights", ()).expect("a call");
        assert_eq!(numbers(&stepped), [1.0, 0.5]);
    }
    let context = scope.id();
    drop(scope);
    assert!(Group::are_empty(&group.workers));
    let error: Status = optimizer
        .step(context)
        .expect_err("the context is released");
    assert!(
        error.message().starts_with("Error running optimizer."),
        "{error}"
    );
    drop((optimizer, parameters));
    group.leave();
}

#[test]
fn an_optimizer_that_cannot_be_made_says_why() {
    let group = Group::start("refused", 2);
    let agent = &group.agents[0];
    let parameter: RRef<Parameter> = agent.rpc_sync("w1", "parameter", ()).expect("a reference");
    let rule = Rule::Sgd(Sgd {
        lr: 0.5,
        ..Sgd::default()
    });
    let wrong = Rule::Adam(Adam {
        beta1: 2.0,
        ..Adam::default()
    });
    assert!(DistributedOptimizer::new(agent, wrong, std::slice::from_ref(&parameter)).is_err());
    let twice = vec![parameter.clone(), parameter.clone()];
    let error = DistributedOptimizer::new(agent, rule, &twice).expect_err("the same one twice");
    assert!(
        error.message().starts_with("Error creating optimizer."),
        "{error}"
    );
    drop((parameter, twice));
    group.leave();
}
