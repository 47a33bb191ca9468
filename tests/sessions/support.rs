//! Clusters of this machine, graphs to run on them, and workers in processes of their own.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rendez::cluster::{ClusterSpec, HostPort};
use rendez::drive::PollPolicy;
use rendez::engine::{Config, Engine};
use rendez::ground::{Shape, TaskName};
use rendez::memory::Tensor;
use rendez_dataflow::graph::{Builder, Output, PartialShape, floats, ints};
use rendez_dataflow::operations::Operations;
use rendez_dataflow::server::{Load, Server, Session};
use rendez_proto::tensorflow::{DataType, GraphDef};

#[path = "../ports/mod.rs"]
mod ports;

use ports::free_ports;

/// How long anything may take that has no promised bound, before a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of one ps and so many workers, at free ports.
pub(crate) fn spec(workers: u32) -> ClusterSpec {
    let mut ports = (0..=workers).map(|_| {
        let [port] = free_ports();
        HostPort::new("127.0.0.1", port).expect("an address")
    });
    let mut spec = ClusterSpec::new();
    spec.add_job("ps", [(0, ports.next().expect("a port"))])
        .expect("a job");
    spec.add_job("worker", (0..).zip(ports)).expect("a job");
    spec
}

/// Settings for many engines on few cores.
pub(crate) fn config(task: &str) -> Config {
    let mut config = Config::new(task);
    (config.shards, config.share_cores) = (1, true);
    config.poll = PollPolicy::Park;
    config.arena.segment_bytes = 4 << 20;
    config
}

/// A task of the cluster, started in this process.
pub(crate) fn start(spec: &ClusterSpec, task: &str) -> Server {
    start_with(spec, config(task))
}

pub(crate) fn start_with(spec: &ClusterSpec, config: Config) -> Server {
    let task = TaskName::parse(&config.task).expect("a task");
    let builder = Server::builder()
        .cluster(spec.clone())
        .task(task)
        .config(config);
    let server = builder.build().expect("a server");
    server.start().expect("it starts");
    server
}

/// All tasks of the cluster, started in this process: the ps first.
pub(crate) fn start_all(spec: &ClusterSpec) -> Vec<Server> {
    spec.tasks()
        .map(|(task, _)| start(spec, &task.to_string()))
        .collect()
}

/// Waits until no server keeps anything for a step, and then for a session.
pub(crate) fn await_nothing(servers: &[Server]) {
    until("nothing is kept for steps", || {
        servers.iter().all(|server| {
            let engine = server.engine().expect("it runs");
            let is_line = |edge: &str| edge.starts_with("rendez.line");
            let is_left = engine
                .pending()
                .iter()
                .any(|item| !is_line(item.key.edge()));
            server.load().expect("it runs").steps == 0 && !is_left
        })
    });
}

/// Waits until no server keeps anything for a session.
pub(crate) fn await_no_session(servers: &[Server]) {
    until("nothing is kept for sessions", || {
        let is_free = |server: &Server| {
            let engine = server.engine().expect("it runs");
            server.load().expect("it runs") == Load::default() && engine.pending().is_empty()
        };
        servers.iter().all(is_free)
    });
}

pub(crate) fn stop_all(servers: &[Server]) {
    servers
        .iter()
        .for_each(|server| server.stop(Some(Duration::from_millis(500))));
}

/// Looks again and again until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The command that serves one task in a process of its own.
pub(crate) struct Worker(Child);

impl Worker {
    pub(crate) fn start(spec: &ClusterSpec, job: &str, task: &str) -> Self {
        let spec = spec.to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_rendez"))
            .args([
                "serve",
                "--with-parent",
                "--cluster",
                &spec,
                "--job",
                job,
                "--task",
                task,
            ])
            .env_clear()
            .env("RENDEZ_SHARDS", "1")
            .env("RENDEZ_SHARE_CORES", "true")
            .env("RENDEZ_POLL", "park")
            .env("RENDEZ_ARENA_SEGMENT_BYTES", "4MiB")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("it starts"))
    }

    /// How many threads it has whose names begin so.
    pub(crate) fn threads(&self, name: &str) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("it runs");
        let names = tasks.map(|task| {
            let path = task.expect("a thread").path().join("comm");
            std::fs::read_to_string(path).unwrap_or_default()
        });
        names.filter(|known| known.starts_with(name)).count()
    }

    /// Stops it, as one that hangs would be: it is there, and does nothing.
    pub(crate) fn hang(&self) {
        let id = self.0.id().to_string();
        let stopped = Command::new("kill").args(["-STOP", &id]).status();
        assert!(stopped.expect("kill runs").success());
    }

    /// Ends it at once, without a word.
    pub(crate) fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("waited for");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail for one that was killed already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn row(values: &[f32]) -> Tensor {
    let shape = Shape::row(values.len() as u64).expect("a row");
    Tensor::from_vec(values.to_vec(), shape).expect("a tensor")
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.as_slice::<f32>().expect("floats").to_vec()
}

/// A graph that is being built.
pub(crate) struct Draft(pub(crate) Builder);

impl Draft {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Operations::standard().ops()))
    }

    pub(crate) fn finish(self) -> GraphDef {
        self.0.finish().expect("a graph").to_def()
    }

    /// What follows stands there.
    pub(crate) fn on(&mut self, device: &str) -> &mut Self {
        self.0.on(device);
        self
    }

    pub(crate) fn placeholder(&mut self, name: &str) -> Output {
        let node = self.0.node("Placeholder").name(name);
        node.attr("dtype", DataType::DtFloat)
            .build()
            .expect("a placeholder")
    }

    pub(crate) fn constant(&mut self, name: &str, values: &[f32]) -> Output {
        let value = floats(&[values.len() as i64], values);
        self.0.constant(name, value).expect("a constant")
    }

    pub(crate) fn variable(&mut self, name: &str) -> Output {
        let node = self
            .0
            .node("VariableV2")
            .name(name)
            .attr("dtype", DataType::DtFloat);
        let shape = PartialShape::known(&[2]).to_proto();
        node.attr("shape", shape).build().expect("a variable")
    }

    pub(crate) fn node(&mut self, op: &str, name: &str, inputs: &[Output]) -> Output {
        let node = self.0.node(op).name(name).inputs(inputs.iter().copied());
        node.build().expect("a node")
    }

    /// A loop that counts to `turns`, which takes a while.
    pub(crate) fn count(&mut self, name: &str, turns: i32) -> Output {
        let mut number = |part: &str, value: i32| {
            let value = ints(&[], &[value]);
            self.0
                .constant(&format!("{name}/{part}"), value)
                .expect("a constant")
        };
        let (zero, one, limit) = (number("zero", 0), number("one", 1), number("limit", turns));
        let mut enter = |part: &str, from: Output, is_constant: bool| {
            let node = self
                .0
                .node("Enter")
                .name(&format!("{name}/{part}"))
                .input(from);
            let node = node
                .attr("frame_name", name)
                .attr("is_constant", is_constant);
            node.build().expect("an enter")
        };
        let first = enter("first", zero, false);
        let (limit, one) = (enter("to", limit, true), enter("by", one, true));
        let part = |part: &str| format!("{name}/{part}");
        let merge = self.node("Merge", &part("merge"), &[first, first]);
        let less = self.node("Less", &part("less"), &[merge, limit]);
        let goes_on = self.node("LoopCond", &part("cond"), &[less]);
        let switch = self.node("Switch", &part("switch"), &[merge, goes_on]);
        let inside = Output { port: 1, ..switch };
        let next = self.node("AddV2", &part("next"), &[inside, one]);
        let next = self.node("NextIteration", &part("back"), &[next]);
        self.0.set_input(merge.node, 1, next).expect("a loop");
        self.node("Exit", name, &[switch])
    }
}

/// A session on this server, with this graph.
pub(crate) fn session(server: &Server, graph: GraphDef) -> Session {
    let session = Session::on(server).expect("it runs");
    session.create(graph).expect("a session");
    session
}

/// An engine of that name that is no part of the cluster and is connected to the server's; and the server's task.
pub(crate) fn stranger(server: &Server, name: &str) -> (Engine, TaskName) {
    let engine = Engine::start(config(name)).unwrap();
    let target = server.target().unwrap();
    let address = target.strip_prefix("rendez://").unwrap().parse().unwrap();
    engine.add_peer(server.task().clone(), address);
    engine.connect(server.task());
    (engine, server.task().clone())
}

/// A tensor of bytes.
pub(crate) fn bytes(bytes: impl Into<Vec<u8>>) -> Tensor {
    let bytes = bytes.into();
    let shape = Shape::row(bytes.len() as u64).unwrap();
    Tensor::from_vec(bytes, shape).unwrap()
}
