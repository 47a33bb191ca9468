//! Runs on real engines of one process: loops, branches and failures across two tasks, many at once.

use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::*;
use crate::graph::{Builder, Devices, Import, NodeId, Output, ints, partition};
use crate::operations::Operations;
use crate::server::testing;
use rendez::ground::{Code, DeviceName, FrameIter, Key};
use rendez_proto::tensorflow::DataType;

const PATIENCE: Duration = Duration::from_secs(20);
const A: &str = "/job:a/replica:0/task:0/device:CPU:0";
const B: &str = "/job:b/replica:0/task:0/device:CPU:0";

/// A task: its engine, and its executor.
struct Site {
    engine: Engine,
    executor: Executor,
}

/// Tasks `a` and `b`, connected, of two shards each.
fn sites() -> [Site; 2] {
    let sites = ["/job:a/task:0", "/job:b/task:0"].map(|task| {
        let mut config = testing::config(task);
        config.shards = 2;
        let engine = Engine::start(config).unwrap();
        let executor = Executor::with_kernels(&engine, home(), rows).unwrap();
        Site { engine, executor }
    });
    sites[0].engine.connect_local(&sites[1].engine).unwrap();
    sites
}

/// A graph in the making; nodes name their device.
struct Sketch(Builder);

impl Sketch {
    fn new() -> Self {
        Self(Builder::new(Operations::standard().ops()))
    }

    fn node(&mut self, device: &str, op: &str, inputs: &[Output]) -> Output {
        self.after(device, op, op, inputs, &[])
    }

    fn after(
        &mut self,
        device: &str,
        op: &str,
        name: &str,
        inputs: &[Output],
        controls: &[NodeId],
    ) -> Output {
        let mut node = self
            .0
            .node(op)
            .name(name)
            .device(device)
            .inputs(inputs.iter().copied());
        for &control in controls {
            node = node.control(control);
        }
        node.build().unwrap()
    }

    fn number(&mut self, device: &str, value: i32, after: &[NodeId]) -> Output {
        let mut node = self
            .0
            .node("Const")
            .device(device)
            .attr("dtype", DataType::DtInt32);
        for &control in after {
            node = node.control(control);
        }
        node.attr("value", ints(&[1], &[value])).build().unwrap()
    }

    fn arg(&mut self, device: &str, index: i64, base: DataType) -> Output {
        self.0
            .node("_Arg")
            .device(device)
            .attr("T", base)
            .attr("index", index)
            .build()
            .unwrap()
    }

    fn retval(&mut self, device: &str, index: i64, value: Output) -> Output {
        self.0
            .node("_Retval")
            .device(device)
            .input(value)
            .attr("index", index)
            .build()
            .unwrap()
    }

    fn enter(&mut self, device: &str, data: Output, is_constant: bool) -> Output {
        let node = self.0.node("Enter").device(device).input(data);
        node.attr("frame_name", "loop")
            .attr("is_constant", is_constant)
            .build()
            .unwrap()
    }

    /// Cuts the graph and makes a plan of each task's part.
    fn plans(self, sites: &[Site; 2]) -> [Arc<Plan>; 2] {
        let mut graph = self.0.finish().unwrap();
        let devices = [
            (A, sites[0].engine.incarnation()),
            (B, sites[1].engine.incarnation()),
        ];
        let devices = Devices::new(devices).unwrap();
        let placed: Vec<_> = graph
            .nodes()
            .map(|(id, node)| (id, node.device.clone()))
            .collect();
        for (id, device) in placed {
            let name = DeviceName::parse_full(&device).unwrap();
            graph.assign(id, devices.find(&name).unwrap());
        }
        let ops = Operations::standard().ops().clone();
        let mut parts = partition(graph, &devices, &ops, false).unwrap();
        [A, B].map(|device| {
            let task = DeviceName::parse_full(device).unwrap().task_name().unwrap();
            let part = parts.remove(&task.to_string()).unwrap_or_default();
            let graph = Graph::from_def(part, &ops, Import::Part).unwrap();
            let site = &sites[usize::from(device == B)];
            site.executor.plan(&graph, device).unwrap()
        })
    }
}

type Told = Receiver<Result<Vec<Option<Value>>, Status>>;

fn start(site: &Site, plan: &Arc<Plan>, step: u64, args: Vec<Value>) -> (RunHandle, Told) {
    let (tell, told) = mpsc::channel();
    let done = move |outcome| tell.send(outcome).unwrap();
    (site.executor.run(plan, StepId(step), args, done), told)
}

/// Runs both parts; `args` are those of `a`. What each was told.
fn run_both(
    sites: &[Site; 2],
    plans: &[Arc<Plan>; 2],
    step: u64,
    args: Vec<Value>,
) -> [Result<Vec<Option<Value>>, Status>; 2] {
    let (_, b) = start(&sites[1], &plans[1], step, vec![]);
    let (_, a) = start(&sites[0], &plans[0], step, args);
    let outcomes = [
        a.recv_timeout(PATIENCE).unwrap(),
        b.recv_timeout(PATIENCE).unwrap(),
    ];
    finish(sites, step);
    outcomes
}

fn finish(sites: &[Site; 2], step: u64) {
    for site in sites {
        site.engine.step(StepId(step)).finish();
    }
}

/// Nothing is left of any run: no run, no waiting receive, no parked value.
fn is_clean(sites: &[Site; 2]) {
    let until = Instant::now() + PATIENCE;
    loop {
        let running: usize = sites.iter().map(|site| site.executor.running()).sum();
        let pending: Vec<_> = sites
            .iter()
            .flat_map(|site| site.engine.pending())
            .collect();
        if running == 0 && pending.is_empty() {
            return;
        }
        assert!(
            Instant::now() < until,
            "{running} runs are left, and {pending:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn whole(outcome: Result<Vec<Option<Value>>, Status>) -> Vec<Option<Vec<i64>>> {
    let values = outcome.unwrap();
    values
        .iter()
        .map(|value| value.as_ref().map(numbers))
        .collect()
}

/// Counts from an argument to ten in a loop that `a` leads and whose sum is made on `b`.
fn counting(sketch: &mut Sketch) {
    let from = sketch.arg(A, 0, DataType::DtInt32);
    let limit = sketch.number(A, 10, &[]);
    let entered = sketch.enter(A, from, false);
    let limit = sketch.enter(A, limit, true);
    let merge = sketch.node(A, "Merge", &[entered, entered]);
    let less = sketch.node(A, "Less", &[merge, limit]);
    let condition = sketch.node(A, "LoopCond", &[less]);
    let switch = sketch.node(A, "Switch", &[merge, condition]);
    let body = sketch.node(B, "Identity", &[Output { port: 1, ..switch }]);
    let one = sketch.number(B, 1, &[body.node]);
    let sum = sketch.node(B, "AddV2", &[body, one]);
    let next = sketch.node(A, "NextIteration", &[sum]);
    sketch.0.set_input(merge.node, 1, next).unwrap();
    let exit = sketch.node(A, "Exit", &[switch]);
    sketch.retval(A, 0, exit);
}

#[test]
fn a_loop_goes_round_between_two_tasks() {
    let sites = sites();
    let mut sketch = Sketch::new();
    counting(&mut sketch);
    let plans = sketch.plans(&sites);
    for (step, from, to) in [(1, 0, 10), (2, 7, 10), (3, 12, 12), (4, -5, 10)] {
        let [a, b] = run_both(&sites, &plans, step, vec![Value::Tensor(row(&[from]))]);
        assert_eq!(whole(a), [Some(vec![to])], "from {from}");
        assert_eq!(whole(b), []);
    }
    is_clean(&sites);
}

#[test]
fn what_a_branch_does_not_give_crosses_as_dead() {
    let sites = sites();
    let mut sketch = Sketch::new();
    let value = sketch.arg(A, 0, DataType::DtInt32);
    let truth = sketch.arg(A, 1, DataType::DtBool);
    let switch = sketch.node(A, "Switch", &[value, truth]);
    let one = sketch.number(B, 1, &[]);
    let without = sketch.node(B, "Sub", &[switch, one]);
    let with = sketch.node(B, "AddV2", &[Output { port: 1, ..switch }, one]);
    let merge = sketch.node(A, "Merge", &[without, with]);
    for (index, value) in [merge, without, with, Output { port: 1, ..merge }]
        .into_iter()
        .enumerate()
    {
        let device = if index == 2 { B } else { A };
        sketch.retval(device, if index == 3 { 2 } else { index as i64 % 2 }, value);
    }
    let plans = sketch.plans(&sites);
    for (step, truth) in [(1, true), (2, false), (3, true)] {
        let args = vec![
            Value::Tensor(row(&[5])),
            Value::Tensor(Tensor::scalar(Bool8::from(truth))),
        ];
        let [a, b] = run_both(&sites, &plans, step, args);
        let (merged, without, with) = if truth {
            (6, None, Some(vec![6]))
        } else {
            (4, Some(vec![4]), None)
        };
        assert_eq!(
            whole(a),
            [Some(vec![merged]), without, Some(vec![i64::from(truth)])]
        );
        assert_eq!(whole(b), [with]);
    }
    is_clean(&sites);
}

#[test]
fn a_thousand_steps_run_beside_each_other() {
    let sites = sites();
    let mut sketch = Sketch::new();
    counting(&mut sketch);
    let plans = sketch.plans(&sites);
    let told: Vec<_> = (1..=1000)
        .map(|step| {
            let args = vec![Value::Tensor(row(&[step as i32 % 17]))];
            let (_, b) = start(&sites[1], &plans[1], step, vec![]);
            let (_, a) = start(&sites[0], &plans[0], step, args);
            (step, a, b)
        })
        .collect();
    for (step, a, b) in told {
        let from = step as i64 % 17;
        assert_eq!(
            whole(a.recv_timeout(PATIENCE).unwrap()),
            [Some(vec![from.max(10)])],
            "step {step}"
        );
        assert_eq!(whole(b.recv_timeout(PATIENCE).unwrap()), []);
        finish(&sites, step);
    }
    is_clean(&sites);
}

/// A kernel that fails on `b`, one way or another, beside others that go on; `a` waits for it, and `b` for `a`.
fn failing(name: &str) -> [Result<Vec<Option<Value>>, Status>; 2] {
    let sites = sites();
    let mut sketch = Sketch::new();
    let value = sketch.arg(A, 0, DataType::DtInt32);
    let fails = sketch.after(B, "Identity", name, &[value], &[]);
    let there = sketch.node(A, "Identity", &[fails]);
    let back = sketch.node(B, "Identity", &[there]);
    let slow = sketch.after(B, "Identity", "sleeps_costly", &[value], &[]);
    let sum = sketch.node(B, "AddV2", &[back, slow]);
    sketch.retval(A, 0, there);
    sketch.retval(B, 0, sum);
    let plans = sketch.plans(&sites);
    let outcomes = run_both(&sites, &plans, 1, vec![Value::Tensor(row(&[1]))]);
    is_clean(&sites);
    outcomes
}

#[test]
fn a_failing_kernel_ends_the_step_with_its_own_failure_and_for_others_as_a_consequence() {
    for name in ["fails", "fails_costly"] {
        let [a, b] = failing(name);
        let (a, b) = (a.unwrap_err(), b.unwrap_err());
        assert_eq!(
            b,
            Status::of(catalogue::KERNEL_INPUT, format!("{name} fails"))
        );
        assert!(a.is_derived(), "{a}");
        assert_eq!((a.code(), a.message()), (b.code(), b.message()));
    }
}

#[test]
fn a_kernel_that_breaks_down_or_forgets_its_outputs_is_named() {
    for name in ["breaks", "breaks_costly", "forgets", "forgets_costly"] {
        let [a, b] = failing(name);
        let b = b.unwrap_err();
        assert_eq!(
            (b.reason(), b.code()),
            (catalogue::KERNEL_FAILED, Code::Internal)
        );
        let node = format!("{{{{node {name}}}}} = Identity");
        assert!(b.message().contains(&node), "{b}");
        assert!(a.unwrap_err().is_derived());
    }
}

/// A part of `a` that receives what its client feeds, and sends what its client fetches.
fn served(sites: &[Site; 2]) -> Arc<Plan> {
    let mut sketch = Sketch::new();
    let client = |node: crate::graph::NodeBuilder<'_>, edge: &str| {
        let node = node
            .attr("tensor_name", edge)
            .attr("send_device", A)
            .attr("recv_device", A);
        node.attr("client_terminated", true).build().unwrap()
    };
    let fed = sketch
        .0
        .node("_Recv")
        .device(A)
        .attr("tensor_type", DataType::DtInt32);
    let fed = client(fed, "fed");
    let slow = sketch.after(A, "Identity", "sleeps_costly", &[fed], &[]);
    let sum = sketch.node(A, "AddV2", &[fed, slow]);
    let fetched = sketch.0.node("_Send").device(A).input(sum);
    client(fetched, "fetched");
    let ops = Operations::standard().ops().clone();
    let graph = Graph::from_def(sketch.0.finish().unwrap().to_def(), &ops, Import::Part).unwrap();
    sites[0].executor.plan(&graph, "served").unwrap()
}

fn edge(name: &str) -> Key {
    Key::between("a", "a", name)
        .unwrap()
        .at(FrameIter::default())
}

#[test]
fn feeds_and_fetches_are_sends_and_receives_of_the_step() {
    let sites = sites();
    let plan = served(&sites);
    for number in 1..20 {
        let (_, told) = start(&sites[0], &plan, number, vec![]);
        let step = sites[0].engine.step(StepId(number));
        step.send(&edge("fed"), row(&[number as i32])).unwrap();
        let got = step
            .recv(&edge("fetched"))
            .deadline(PATIENCE)
            .wait()
            .unwrap();
        assert_eq!(got.tensor.as_slice::<i32>().unwrap(), [2 * number as i32]);
        assert_eq!(whole(told.recv_timeout(PATIENCE).unwrap()), []);
        step.finish();
    }
    is_clean(&sites);
}

#[test]
fn a_value_of_another_type_is_refused_by_its_receive() {
    let sites = sites();
    let (_, told) = start(&sites[0], &served(&sites), 1, vec![]);
    let step = sites[0].engine.step(StepId(1));
    step.send(&edge("fed"), Tensor::scalar(1.5f32)).unwrap();
    let status = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(status.reason(), catalogue::TENSOR_DTYPE);
    assert!(
        status.message().contains("{{node _Recv}} = _Recv"),
        "{status}"
    );
    finish(&sites, 1);
    is_clean(&sites);
}

#[test]
fn a_cancelled_run_ends_once_with_that_and_its_step_for_all() {
    let sites = sites();
    let plan = served(&sites);
    // Before its value, while its kernel is called, and after its end.
    for (number, feeds) in [(1, false), (2, true), (3, true)] {
        let (handle, told) = start(&sites[0], &plan, number, vec![]);
        let step = sites[0].engine.step(StepId(number));
        let fetch = step
            .recv(&edge("fetched"))
            .deadline(PATIENCE)
            .start()
            .unwrap();
        if feeds {
            step.send(&edge("fed"), row(&[1])).unwrap();
        }
        let status = Status::of(catalogue::RECV_CANCELLED, "given up");
        if number == 3 {
            fetch.wait().unwrap();
            whole(told.recv_timeout(PATIENCE).unwrap());
            handle.cancel(status);
        } else {
            handle.cancel(status.clone());
            handle.cancel(Status::of(catalogue::DEADLINE, "too late to be told"));
            assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err(), status);
            assert!(fetch.wait().unwrap_err().is_derived());
        }
        assert!(
            told.recv_timeout(Duration::from_millis(20)).is_err(),
            "told once"
        );
        step.finish();
    }
    is_clean(&sites);
}

#[test]
fn an_aborted_step_ends_its_runs_with_what_it_was_aborted_with() {
    let sites = sites();
    let (_, told) = start(&sites[0], &served(&sites), 1, vec![]);
    let status = Status::of(catalogue::PEER_LOST, "a peer is gone");
    sites[0].engine.step(StepId(1)).abort(status.clone());
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err(), status);
    is_clean(&sites);
}

#[test]
fn runs_end_with_their_engine_and_those_that_come_later_at_once() {
    let sites = sites();
    let mut sketch = Sketch::new();
    let fails = sketch
        .0
        .node("_Recv")
        .device(B)
        .attr("tensor_type", DataType::DtInt32);
    let fails = fails
        .attr("tensor_name", "never")
        .attr("send_device", B)
        .attr("recv_device", B);
    let fails = fails.build().unwrap();
    let there = sketch.node(A, "Identity", &[fails]);
    sketch.retval(A, 0, there);
    let plans = sketch.plans(&sites);
    let (_, b) = start(&sites[1], &plans[1], 1, vec![]);
    let (_, a) = start(&sites[0], &plans[0], 1, vec![]);
    sites[1].engine.shutdown(Duration::from_secs(1));
    let b = b.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!((b.code(), b.message()), (Code::Aborted, "Shutdown"));
    a.recv_timeout(PATIENCE).unwrap().unwrap_err();
    let (_, late) = start(&sites[1], &plans[1], 2, vec![]);
    assert_eq!(
        late.recv_timeout(PATIENCE).unwrap().unwrap_err().message(),
        "Shutdown"
    );
    is_clean(&sites);
}

#[test]
fn what_an_executor_is_given_must_fit() {
    let sites = sites();
    let mut sketch = Sketch::new();
    let value = sketch.arg(A, 1, DataType::DtInt32);
    sketch.retval(A, 0, value);
    let plans = sketch.plans(&sites);
    let told = |site: &Site, plan: &Arc<Plan>, args| {
        let (_, told) = start(site, plan, 1, args);
        told.recv_timeout(PATIENCE).unwrap()
    };
    let status = told(&sites[0], &plans[0], vec![]).unwrap_err();
    assert_eq!(status.reason(), catalogue::RUN_ARGUMENTS);
    assert!(
        status
            .message()
            .contains("takes 2 arguments and was given 0"),
        "{status}"
    );
    let status = told(&sites[1], &plans[0], vec![]).unwrap_err();
    assert!(status.message().contains("another executor's"), "{status}");
    let floats = vec![
        Value::Tensor(row(&[1])),
        Value::Tensor(Tensor::scalar(1.0f32)),
    ];
    let status = told(&sites[0], &plans[0], floats).unwrap_err();
    assert_eq!(status.reason(), catalogue::RUN_ARGUMENTS);
    assert!(
        status
            .message()
            .contains("argument 1 is F32, and must be I32"),
        "{status}"
    );
    finish(&sites, 1);
    is_clean(&sites);
}

#[test]
fn what_is_cut_has_names_that_a_worker_takes() {
    let sites = sites();
    let mut sketch = Sketch::new();
    // As the longest name of a client's node is fed.
    let name = format!("_arg_{}_16383_65535", "n".repeat(958));
    let x = sketch.arg(A, 0, DataType::DtInt32);
    let x = sketch.after(A, "Identity", &name, &[x], &[]);
    let y = sketch.after(B, "Identity", "y", &[x], &[]);
    sketch.after(B, "NoOp", "after", &[], &[x.node]);
    sketch.retval(A, 0, y);
    sketch.plans(&sites);
    for site in sites {
        site.engine.shutdown(Duration::ZERO);
    }
}
