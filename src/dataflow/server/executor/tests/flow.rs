//! The rules of the flow one by one, and graphs that break them.

use super::super::plan::Plan;
use super::super::run::{Outside, PlanRun};
use super::*;
use crate::graph::attr::IntoAttr;
use crate::graph::{Builder, Import, NodeId, Output, ints};
use crate::operations::Operations;
use bytes::Bytes;
use rendez::ground::FrameIter;
use rendez_proto::tensorflow::DataType;

const A: &str = "/job:a/replica:0/task:0/device:CPU:0";

/// Counts how often each node ran; nothing is sent, and what is awaited comes when the test says so.
#[derive(Default)]
struct Alone {
    ran: Vec<u32>,
    awaited: Vec<(u64, u32)>,
}

impl Outside for Alone {
    fn send(&mut self, _: u32, _: FrameIter, _: Option<Tensor>) -> Result<(), Status> {
        Ok(())
    }

    fn recv(&mut self, _: u32, at: FrameIter, ticket: u32) -> Result<(), Status> {
        self.awaited.push((at.iter, ticket));
        Ok(())
    }

    fn compute(&mut self, _: u32, _: Vec<Value>, _: u32) {
        panic!("no node of these is costly");
    }

    fn ran(&mut self, node: u32, _: FrameIter, _: bool) {
        self.ran.push(node);
    }
}

fn plan(builder: Builder) -> Result<Plan, Status> {
    let def = builder.finish().unwrap().to_def();
    let graph = Graph::from_def(def, Operations::standard().ops(), Import::Part)?;
    let task = TaskName::parse("/job:a/replica:0/task:0").unwrap();
    let owner = Owner {
        task: &task,
        incarnation: Incarnation(1),
    };
    Plan::new(&graph, "alone", owner, &rows, &KeptKernels::default())
}

fn begin(plan: &Plan) -> (PlanRun, Alone) {
    let (mut run, mut alone) = (PlanRun::default(), Alone::default());
    run.begin(plan, StepId(1), vec![]);
    while run.turn(plan, &home(), &mut alone, 8) {}
    (run, alone)
}

fn number(graph: &mut Builder, value: i32, after: Option<NodeId>) -> Output {
    let mut node = graph.node("Const").attr("dtype", DataType::DtInt32);
    if let Some(after) = after {
        node = node.control(after);
    }
    node.attr("value", ints(&[1], &[value])).build().unwrap()
}

/// A loop that goes round ten times, and waits for a value in each iteration; `parallel` of them at once.
fn waiting_loop(parallel: i64) -> Builder {
    let mut graph = Builder::new(Operations::standard().ops());
    let (zero, ten) = (number(&mut graph, 0, None), number(&mut graph, 10, None));
    let enter = |graph: &mut Builder, data, is_constant: bool| {
        let node = graph.node("Enter").input(data).attr("frame_name", "loop");
        node.attr("parallel_iterations", parallel)
            .attr("is_constant", is_constant)
            .build()
            .unwrap()
    };
    let (zero, ten) = (enter(&mut graph, zero, false), enter(&mut graph, ten, true));
    let merge = graph.put("Merge", &[zero, zero]);
    let less = graph.put("Less", &[merge, ten]);
    let condition = graph.put("LoopCond", &[less]);
    let switch = graph.put("Switch", &[merge, condition]);
    let body = graph.put("Identity", &[Output { port: 1, ..switch }]);
    let got = graph
        .node("_Recv")
        .attr("tensor_type", DataType::DtInt32)
        .attr("tensor_name", "x");
    let got = got
        .attr("send_device", A)
        .attr("recv_device", A)
        .control(body.node)
        .build()
        .unwrap();
    graph.put("AddV2", &[got, body]);
    let one = number(&mut graph, 1, Some(body.node));
    let sum = graph.put("AddV2", &[body, one]);
    let next = graph.put("NextIteration", &[sum]);
    graph.set_input(merge.node, 1, next).unwrap();
    let exit = graph.put("Exit", &[switch]);
    graph
        .node("_Retval")
        .input(exit)
        .attr("index", 0i64)
        .build()
        .unwrap();
    graph
}

#[test]
fn as_many_iterations_run_at_once_as_may() {
    for (parallel, at_once) in [(1, 1), (3, 3), (100, 11)] {
        let plan = plan(waiting_loop(parallel)).unwrap();
        let (mut run, mut alone) = begin(&plan);
        let mut heard = 0;
        while run.outcome(&plan).is_none_or(|outcome| {
            assert_eq!(numbers(outcome.unwrap()[0].as_ref().unwrap()), [10]);
            false
        }) {
            assert!(
                alone.awaited.len() <= at_once,
                "{} of {parallel}",
                alone.awaited.len()
            );
            assert!(
                heard > 0 || alone.awaited.len() == at_once,
                "as many as may"
            );
            // The latest first: an iteration that is over does not end before those before it.
            let (_, ticket) = alone.awaited.pop().expect("it waits for something");
            run.received(&plan, &mut alone, ticket, Ok(Some(row(&[1]))));
            heard += 1;
            while run.turn(&plan, &home(), &mut alone, 8) {}
        }
        // A receive runs also in the last iteration, in which what it waits for is dead.
        assert_eq!(heard, 11);
    }
}

#[test]
fn a_loop_that_is_left_twice_is_refused_and_not_run_on() {
    // The exit hangs on the Merge itself, so every iteration leaves.
    let mut graph = waiting_loop(10);
    let merge = graph.graph().find("Merge").unwrap();
    let exit = graph.put(
        "Exit",
        &[Output {
            node: merge,
            port: 0,
        }],
    );
    graph.put("Identity", &[exit]);
    let plan = plan(graph).unwrap();
    let (mut run, mut alone) = begin(&plan);
    for (_, ticket) in std::mem::take(&mut alone.awaited) {
        run.received(&plan, &mut alone, ticket, Ok(Some(row(&[1]))));
    }
    let status = run.outcome(&plan).expect("nothing is left").unwrap_err();
    assert_eq!(status.reason(), catalogue::GRAPH_FRAME);
    assert!(status.message().contains("{{node Identity_1}}"), "{status}");
}

#[test]
fn a_merge_of_two_that_are_alive_is_refused() {
    let mut graph = Builder::new(Operations::standard().ops());
    let (one, two) = (number(&mut graph, 1, None), number(&mut graph, 2, None));
    graph.put("Merge", &[one, two]);
    let plan = plan(graph).unwrap();
    let (mut run, _) = begin(&plan);
    let status = run.outcome(&plan).unwrap().unwrap_err();
    assert_eq!(status.reason(), catalogue::KERNEL_INPUT);
    assert!(
        status
            .message()
            .starts_with("Merge can not have more than one valid input."),
        "{status}"
    );
}

#[test]
fn a_merge_waits_for_a_dead_node_and_does_not_die_of_it() {
    let mut graph = Builder::new(Operations::standard().ops());
    let (one, two) = (number(&mut graph, 1, None), number(&mut graph, 2, None));
    let truth = graph.put("Less", &[one, two]);
    let switch = graph.put("Switch", &[two, truth]);
    let dead = graph.put("Identity", &[switch]);
    let alive = graph.put("Identity", &[Output { port: 1, ..switch }]);
    let waits = graph.node("NoOp").control(dead.node).build().unwrap();
    let merge = graph.node("Merge").inputs([dead, alive]);
    let merge = merge.control(waits.node).build().unwrap();
    let result = graph.node("_Retval").input(merge).attr("index", 0i64);
    result.build().unwrap();
    let plan = plan(graph).unwrap();
    let (mut run, _) = begin(&plan);
    let results = run.outcome(&plan).unwrap().unwrap();
    assert_eq!(numbers(results[0].as_ref().expect("alive")), [2]);
}

fn argument(graph: &mut Builder, index: i64, base: DataType) -> Output {
    let node = graph.node("_Arg").attr("T", base);
    node.attr("index", index).build().unwrap()
}

fn result(graph: &mut Builder, of: Output, index: i64) {
    let node = graph.node("_Retval").input(of).attr("index", index);
    node.build().unwrap();
}

#[test]
fn a_step_that_was_refused_leaves_nothing_for_the_next() {
    let mut graph = Builder::new(Operations::standard().ops());
    let mut switch = |at: i64| {
        let value = argument(&mut graph, 2 * at, DataType::DtInt32);
        let truth = argument(&mut graph, 2 * at + 1, DataType::DtBool);
        let switch = graph.put("Switch", &[value, truth]);
        Output { port: 1, ..switch }
    };
    let (first, second) = (switch(0), switch(1));
    let gate = graph.node("NoOp").control(second.node).build().unwrap();
    // What came first waits for the gate, which a refusal keeps shut.
    let merge = graph.node("Merge").inputs([second, first]);
    let merge = merge.control(gate.node).build().unwrap();
    result(&mut graph, merge, 0);
    result(&mut graph, Output { port: 1, ..merge }, 1);
    let plan = plan(graph).unwrap();
    let mut run = PlanRun::default();
    let mut step = |values: [i32; 2], truths: [bool; 2]| {
        let pairs = values.into_iter().zip(truths);
        let args = pairs.flat_map(|(value, truth)| {
            let truth = Tensor::scalar(Bool8::from(truth));
            [Value::Tensor(row(&[value])), Value::Tensor(truth)]
        });
        run.begin(&plan, StepId(1), args.collect());
        while run.turn(&plan, &home(), &mut Alone::default(), 8) {}
        run.outcome(&plan).expect("nothing is left")
    };
    step([11, 21], [true, true]).unwrap_err();
    let results = step([12, 22], [false, true]).unwrap();
    assert_eq!(numbers(results[0].as_ref().expect("alive")), [22]);
    assert_eq!(numbers(results[1].as_ref().expect("alive")), [0]);
}

#[test]
fn a_loop_whose_variables_leave_at_different_times_keeps_nothing() {
    let mut graph = Builder::new(Operations::standard().ops());
    let limits = [5, 2].map(|limit| number(&mut graph, limit, None));
    let (zero, one) = (number(&mut graph, 0, None), number(&mut graph, 1, None));
    let added = argument(&mut graph, 0, DataType::DtInt32);
    let mut enter = |data, is_constant: bool| {
        let node = graph.node("Enter").input(data).attr("frame_name", "loop");
        let node = node.attr("parallel_iterations", 1i64);
        node.attr("is_constant", is_constant).build().unwrap()
    };
    let starts = [enter(zero, false), enter(zero, false)];
    let limits = limits.map(|limit| enter(limit, true));
    let steps = [enter(one, true), enter(added, true)];
    let merges = starts.map(|start| graph.put("Merge", &[start, start]));
    for at in 0..2 {
        // The second variable leaves when the first, which goes on, says so.
        let mut goes_on = graph.put("Less", &[merges[0], limits[at]]);
        if at == 0 {
            goes_on = graph.put("LoopCond", &[goes_on]);
        }
        let switch = graph.put("Switch", &[merges[at], goes_on]);
        let sum = graph.put("AddV2", &[Output { port: 1, ..switch }, steps[at]]);
        let next = graph.put("NextIteration", &[sum]);
        graph.set_input(merges[at].node, 1, next).unwrap();
        let exit = graph.put("Exit", &[switch]);
        result(&mut graph, exit, at as i64);
    }
    let plan = plan(graph).unwrap();
    let mut run = PlanRun::default();
    for _ in 0..2 {
        // Too many for a handle, so that it is seen who keeps them.
        let bytes = Bytes::from(7i32.to_ne_bytes().repeat(64));
        let meta = TensorMeta::new(DType::I32, Shape::row(64).unwrap()).unwrap();
        let added = Tensor::from_bytes(meta, bytes.clone()).unwrap();
        run.begin(&plan, StepId(1), vec![Value::Tensor(added)]);
        while run.turn(&plan, &home(), &mut Alone::default(), 8) {}
        let results = run.outcome(&plan).expect("nothing is left").unwrap();
        let results = results
            .iter()
            .map(|result| numbers(result.as_ref().unwrap())[0]);
        assert_eq!(results.collect::<Vec<_>>(), [5, 14]);
        assert!(bytes.is_unique(), "a value outlived its step");
    }
}

#[test]
fn a_switch_wants_one_truth() {
    let mut graph = Builder::new(Operations::standard().ops());
    let value = number(&mut graph, 1, None);
    let truth = graph
        .node("_Arg")
        .attr("T", DataType::DtBool)
        .attr("index", 0i64)
        .build()
        .unwrap();
    graph.put("Switch", &[value, truth]);
    let plan = plan(graph).unwrap();
    let mut run = PlanRun::default();
    let truths = Tensor::from_vec(vec![Bool8::TRUE, Bool8::FALSE], Shape::row(2).unwrap()).unwrap();
    run.begin(&plan, StepId(1), vec![Value::Tensor(truths)]);
    run.turn(&plan, &home(), &mut Alone::default(), 100);
    let status = run.outcome(&plan).unwrap().unwrap_err();
    assert!(
        status
            .message()
            .starts_with("The second input must be a scalar"),
        "{status}"
    );
    assert!(
        status.message().contains("{{node Switch}} = Switch"),
        "{status}"
    );
}

#[test]
fn an_empty_part_ends_at_once() {
    let plan = plan(Builder::new(Operations::standard().ops())).unwrap();
    let (mut run, _) = begin(&plan);
    assert!(run.outcome(&plan).unwrap().unwrap().is_empty());
}

#[test]
fn a_failure_counts_before_its_consequences_and_else_the_first() {
    let root = |text: &str| Status::of(catalogue::KERNEL_INPUT, text);
    let mut run = PlanRun::default();
    for (status, counts) in [
        (root("echo").derived(), root("echo").derived()),
        (root("later echo").derived(), root("echo").derived()),
        (root("cause"), root("cause")),
        (root("other"), root("cause")),
        (root("echo").derived(), root("cause")),
    ] {
        run.fail(status);
        assert_eq!(run.failure(), Some(&counts));
    }
}

#[test]
fn what_makes_no_plan_is_named() {
    let refused = |make: &dyn Fn(&mut Builder)| {
        let mut graph = Builder::new(Operations::standard().ops());
        make(&mut graph);
        plan(graph).unwrap_err()
    };
    let arg = |graph: &mut Builder, index: i64| {
        graph
            .node("_Arg")
            .attr("T", DataType::DtInt32)
            .attr("index", index)
            .build()
            .unwrap()
    };
    let status = refused(&|graph| {
        let _ = arg(graph, 1 << 40);
    });
    assert_eq!(status.reason(), catalogue::GRAPH_ATTR);
    assert!(
        status.message().contains("{{node _Arg}} = _Arg"),
        "{status}"
    );

    let status = refused(&|graph| {
        let value = arg(graph, 0);
        for _ in 0..2 {
            graph
                .node("_Retval")
                .input(value)
                .attr("index", 0i64)
                .build()
                .unwrap();
        }
    });
    assert!(
        status.message().contains("another node gives result 0"),
        "{status}"
    );

    let status = refused(&|graph| {
        let value = arg(graph, 0);
        graph.named("Identity", "unknown", &[value]);
    });
    assert_eq!(status.reason(), catalogue::KERNEL_UNKNOWN, "{status}");

    let recv = |graph: &mut Builder, from: &str, to: &str, life: i64| {
        let node = graph
            .node("_Recv")
            .attr("tensor_type", DataType::DtInt32)
            .attr("tensor_name", "x");
        let node = node.attr("send_device", from).attr("recv_device", to);
        node.attr("send_device_incarnation", life.into_attr())
            .build()
            .unwrap()
    };
    let b = A.replace("job:a", "job:b");
    let status = refused(&|graph| {
        let _ = recv(graph, A, &b, 0);
    });
    assert_eq!(status.reason(), catalogue::DEVICE_FOREIGN_DESTINATION);
    // One more digit is another task.
    let ten = A.replace("task:0", "task:10");
    assert!(
        refused(&|graph| {
            let _ = recv(graph, A, &ten, 0);
        })
        .message()
        .contains("the key's destination is")
    );
    let status = refused(&|graph| {
        let _ = recv(graph, A, A, 7);
    });
    assert_eq!(status.reason(), catalogue::PEER_RESTARTED);
    let status = refused(&|graph| {
        let _ = recv(graph, "/job:a", A, 0);
    });
    assert!(
        status.message().contains("'send_device' is no device"),
        "{status}"
    );
    let status = plan(waiting_loop(0)).unwrap_err();
    assert!(status.message().contains("parallel_iterations"), "{status}");
}
