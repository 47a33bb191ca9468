//! After warm-up neither a node nor an iteration of a loop asks anything of the heap: counted in the shard's own
//! thread, by the kernels of the first node and of the last.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rendez::engine::{Config, Engine};
use rendez::ground::{Status, StepId, catalogue};
use rendez::memory::{Bool8, Tensor};
use rendez_dataflow::graph::{Builder, Graph, Import, Node};
use rendez_dataflow::kernel::Value;
use rendez_dataflow::kernel::{Call, Home, Kernel};
use rendez_dataflow::operations::Operations;
use rendez_dataflow::server::executor::Executor;
use rendez_proto::tensorflow::DataType;

use crate::{counting, counting_loop};

static FIRST: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);

/// Kernels on single integers, which lie in their tensors.
#[derive(Debug)]
struct Small {
    op: &'static str,
    counts: Option<&'static AtomicU64>,
}

fn small(node: &Node) -> Result<Box<dyn Kernel>, Status> {
    let counts = match node.name.as_str() {
        "first" => Some(&FIRST),
        "last" => Some(&LAST),
        _ => None,
    };
    let op = node.op.name();
    Ok(Box::new(Small { op, counts }))
}

impl Kernel for Small {
    fn compute(&self, call: &mut Call<'_>) -> Result<(), Status> {
        let number = |index: usize| -> Result<i32, Status> {
            let tensor = call.inputs[index].tensor()?;
            Ok(tensor.as_slice::<i32>()?[0])
        };
        let value = match self.op {
            "Const" => Tensor::scalar(1i32),
            "AddV2" => Tensor::scalar(number(0)? + number(1)?),
            "Less" => Tensor::scalar(Bool8::from(number(0)? < number(1)?)),
            _ => call.inputs[0].tensor()?,
        };
        call.outputs.push(Value::Tensor(value));
        if let Some(counts) = self.counts {
            counts.store(counting::so_far(), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A chain, a loop behind it, and another chain.
fn graph() -> Result<Graph, Status> {
    let mut graph = Builder::new(Operations::standard().ops());
    let arg = |graph: &mut Builder, index: i64| {
        let node = graph.node("_Arg").attr("T", DataType::DtInt32);
        node.attr("index", index).build()
    };
    let (from, limit) = (arg(&mut graph, 0)?, arg(&mut graph, 1)?);
    let mut value = graph.node("Identity").name("first").input(from).build()?;
    for _ in 0..200 {
        value = graph.node("Identity").input(value).build()?;
    }
    let mut value = counting_loop::count_up(&mut graph, value, limit)?;
    for _ in 0..200 {
        value = graph.node("Identity").input(value).build()?;
    }
    let last = graph.node("Identity").name("last").input(value).build()?;
    graph
        .node("_Retval")
        .input(last)
        .attr("index", 0i64)
        .build()?;
    let def = graph.finish()?.to_def();
    Graph::from_def(def, Operations::standard().ops(), Import::Part)
}

#[test]
fn the_counter_counts() {
    let one = counting::calls(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(one, 2);
}

#[test]
fn nodes_and_iterations_ask_nothing_of_the_heap_once_warm() {
    let mut config = Config::new("/job:a/task:0");
    config.shards = 1;
    config.share_cores = true;
    config.control = false;
    let engine = Engine::start(config).expect("an engine");
    let none = |_| {
        Err(Status::of(
            catalogue::ARENA_FULL,
            "these kernels allocate nothing",
        ))
    };
    let executor = Executor::with_kernels(&engine, Arc::new(Home::new(none)), small);
    let executor = executor.expect("an executor");
    let plan = executor
        .plan(&graph().expect("a graph"), "small")
        .expect("a plan");
    for step in 1..=5 {
        let args = [0i32, 300].map(|number| Value::Tensor(Tensor::scalar(number)));
        let (tell, told) = mpsc::channel();
        executor.run(&plan, StepId(step), args.to_vec(), move |outcome| {
            tell.send(outcome).expect("the channel is open");
        });
        let outcome = told.recv_timeout(Duration::from_secs(20)).expect("an end");
        let value = outcome.expect("a result")[0].clone().expect("a live one");
        assert_eq!(
            value
                .tensor()
                .expect("a tensor")
                .as_slice::<i32>()
                .expect("a number"),
            [300]
        );
        let asked = LAST.load(Ordering::Relaxed) - FIRST.load(Ordering::Relaxed);
        if step == 1 {
            assert!(asked > 0, "the counter counts what the first run asks for");
        } else {
            assert_eq!(asked, 0, "run {step}");
        }
    }
}
