//! What the executor itself costs: a trivial node, and a hop between two tasks of one machine. Knows the public face
//! alone; both engines live in this process, and are connected by shared memory as two processes are.
//!
//! `cargo bench --bench executor`
#![allow(clippy::print_stdout, reason = "it prints what it measures")]

#[path = "../tests/allocations/counting_loop.rs"]
mod counting_loop;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rendez::drive::PollPolicy;
use rendez::engine::{Config, Engine};
use rendez::ground::{DeviceName, Status, StepId};
use rendez::memory::Tensor;
use rendez_dataflow::graph::{Builder, Devices, Graph, Import, Output, ints, partition};
use rendez_dataflow::kernel::Value;
use rendez_dataflow::operations::Operations;
use rendez_dataflow::server::executor::{self, Executor, Plan};
use rendez_proto::tensorflow::DataType;

const DEVICES: [&str; 2] = [
    "/job:a/replica:0/task:0/device:CPU:0",
    "/job:b/replica:0/task:0/device:CPU:0",
];
const HOPS: usize = 20;
const NODES: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Steps have numbers that none before them had.
static STEPS: AtomicU64 = AtomicU64::new(1);

/// A task: its engine of one shard, and its executor.
struct Site {
    engine: Engine,
    executor: Executor,
}

fn site(task: &str, core: usize) -> Result<Site, Status> {
    let mut config = Config::new(task);
    config.shards = 1;
    config.cores = vec![core];
    config.poll = PollPolicy::Busy;
    let engine = Engine::start(config)?;
    let home = executor::home(engine.downgrade());
    let executor = Executor::new(&engine, Arc::new(home))?;
    Ok(Site { engine, executor })
}

/// The parts of a graph by task, as plans.
fn plans(sites: &[Site], builder: Builder) -> Result<Vec<Arc<Plan>>, Status> {
    let mut graph = builder.finish()?;
    let lives = sites.iter().map(|site| site.engine.incarnation());
    let devices = Devices::new(DEVICES.into_iter().zip(lives))?;
    let asked: Vec<_> = graph
        .nodes()
        .map(|(id, node)| (id, node.device.clone()))
        .collect();
    for (id, device) in asked {
        let name = DeviceName::parse_full(&device).map_err(Status::from)?;
        if let Some(device) = devices.find(&name) {
            graph.assign(id, device);
        }
    }
    let ops = Operations::standard().ops().clone();
    let mut parts = partition(graph, &devices, &ops, false)?;
    let made = sites.iter().zip(DEVICES).map(|(site, device)| {
        let part = parts.remove(&site.engine.task().to_string());
        let part = part.unwrap_or_default();
        let graph = Graph::from_def(part, &ops, Import::Part)?;
        site.executor.plan(&graph, device)
    });
    made.collect()
}

/// Steps that follow each other: the end of one, in its shard's thread, begins the next.
struct Course {
    executors: Vec<Executor>,
    engines: Vec<Engine>,
    plans: Vec<Arc<Plan>>,
    args: Vec<Value>,
    left: AtomicUsize,
    /// Parts of this step that have not ended.
    open: AtomicUsize,
    times: Mutex<Vec<Duration>>,
    began: Mutex<Instant>,
    done: mpsc::Sender<Result<(), Status>>,
}

impl Course {
    fn step(self: &Arc<Self>) {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        if left == 0 {
            let _ = self.done.send(Ok(()));
            return;
        }
        let step = StepId(STEPS.fetch_add(1, Ordering::Relaxed));
        self.open.store(self.plans.len(), Ordering::Release);
        *self.began.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        for at in (0..self.plans.len()).rev() {
            let args = if at == 0 { self.args.clone() } else { vec![] };
            let course = Arc::clone(self);
            let ended = move |outcome: Result<_, Status>| course.ended(step, outcome.map(drop));
            drop(self.executors[at].run(&self.plans[at], step, args, ended));
        }
    }

    fn ended(self: &Arc<Self>, step: StepId, outcome: Result<(), Status>) {
        if outcome.is_err() {
            let _ = self.done.send(outcome);
            return;
        }
        if self.open.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let took = self
            .began
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed();
        self.times
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(took);
        for engine in &self.engines {
            engine.step(step).finish();
        }
        self.step();
    }
}

/// Runs so many steps. The median time of one.
fn measure(
    sites: &[Site],
    plans: Vec<Arc<Plan>>,
    args: Vec<Value>,
    steps: usize,
) -> Result<Duration, Status> {
    let (done, over) = mpsc::channel();
    let course = Arc::new(Course {
        executors: sites.iter().map(|site| site.executor.clone()).collect(),
        engines: sites.iter().map(|site| site.engine.clone()).collect(),
        plans,
        args,
        left: AtomicUsize::new(steps),
        open: AtomicUsize::new(0),
        times: Mutex::new(Vec::with_capacity(steps)),
        began: Mutex::new(Instant::now()),
        done,
    });
    course.step();
    let gone = |_| Status::of(rendez::ground::catalogue::DEADLINE, "the steps did not end");
    over.recv_timeout(PATIENCE).map_err(gone)??;
    let mut times = course.times.lock().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn arg(graph: &mut Builder, device: &str) -> Result<Output, Status> {
    let node = graph
        .node("_Arg")
        .device(device)
        .attr("T", DataType::DtInt32);
    node.attr("index", 0i64).build()
}

fn end(graph: &mut Builder, device: &str, value: Output) -> Result<(), Status> {
    let node = graph.node("_Retval").device(device).input(value);
    node.attr("index", 0i64).build().map(drop)
}

/// A chain of nodes that hand their input on.
fn chain(nodes: usize, device: impl Fn(usize) -> &'static str) -> Result<Builder, Status> {
    let mut graph = Builder::new(Operations::standard().ops());
    let mut value = arg(&mut graph, device(0))?;
    for at in 1..=nodes {
        value = graph
            .node("Identity")
            .device(device(at))
            .input(value)
            .build()?;
    }
    end(&mut graph, device(nodes), value)?;
    Ok(graph)
}

/// A loop that counts: nine nodes run in each iteration.
fn counting(to: i32) -> Result<Builder, Status> {
    let mut graph = Builder::new(Operations::standard().ops());
    let device = DEVICES[0];
    graph.on(device);
    let from = arg(&mut graph, device)?;
    let limit = graph.constant("limit", ints(&[], &[to]))?;
    let exit = counting_loop::count_up(&mut graph, from, limit)?;
    end(&mut graph, device, exit)?;
    Ok(graph)
}

fn bench() -> Result<(), Status> {
    let sites = [site("/job:a/task:0", 0)?, site("/job:b/task:0", 1)?];
    if let Some(address) = sites[1].engine.address() {
        sites[0]
            .engine
            .add_peer(sites[1].engine.task().clone(), address.clone());
    }
    let value = || vec![Value::Tensor(Tensor::scalar(0i32))];
    let alone = &sites[..1];

    let per_node = |time: Duration, nodes: usize| time.as_nanos() as f64 / nodes as f64;
    let made = plans(alone, chain(NODES, |_| DEVICES[0])?)?;
    let took = measure(alone, made, value(), 2000)?;
    println!(
        "trivial node, chain of {NODES}      {:8.1} ns",
        per_node(took, NODES)
    );
    let made = plans(alone, chain(1, |_| DEVICES[0])?)?;
    let took = measure(alone, made, value(), 20_000)?;
    println!("step of one node              {:8.1} ns", per_node(took, 1));
    let made = plans(alone, counting(NODES as i32)?)?;
    let took = measure(alone, made, value(), 500)?;
    println!(
        "node in a loop, {NODES} iterations {:8.1} ns",
        per_node(took, NODES * 9)
    );

    let made = plans(&sites, chain(HOPS, |at| DEVICES[at % 2])?)?;
    measure(&sites, made.clone(), value(), 2000)?;
    let took = measure(&sites, made, value(), 20_000)?;
    println!(
        "hop of 4 B, chain of {HOPS}       {:8.1} ns",
        per_node(took, HOPS)
    );
    let path = sites[0].engine.connected();
    println!("by {:?}", path.first().map(|peer| peer.path));
    for site in &sites {
        site.engine.shutdown(Duration::from_secs(1));
    }
    Ok(())
}

fn main() -> Result<(), Status> {
    bench()
}
