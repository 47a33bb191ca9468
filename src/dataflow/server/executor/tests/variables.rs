//! Variables that another thread holds: what wants one of them waits beside the shards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::graph::{Builder, Import, Output, floats};
use crate::kernel::variables::Variable;
use crate::operations::Operations;
use crate::server::testing;
use rendez_proto::tensorflow::{DataType, TensorShapeProto};

const PATIENCE: Duration = Duration::from_secs(20);

/// A plan of what `write` makes of a variable and a number.
fn writer(
    executor: &Executor,
    source: &str,
    write: impl FnOnce(&mut Builder, Output, Output),
) -> Arc<Plan> {
    let operations = Operations::standard();
    let mut graph = Builder::new(operations.ops());
    let variable = graph.node(source).name("v");
    let variable = variable.attr("dtype", DataType::DtFloat);
    let variable = variable.attr("shape", TensorShapeProto::default());
    let variable = variable.attr("shared_name", "v").build().unwrap();
    let one = graph.constant("one", floats(&[], &[1.0])).unwrap();
    write(&mut graph, variable, one);
    let def = graph.finish().unwrap().to_def();
    let part = Graph::from_def(def, operations.ops(), Import::Part).unwrap();
    executor.plan(&part, source).unwrap()
}

#[test]
fn no_shard_waits_for_a_variable_that_another_thread_holds() {
    let engine = testing::engine("/job:a/task:0");
    let home = Arc::new(super::super::home(engine.downgrade()));
    let executor = Executor::new(&engine, Arc::clone(&home)).unwrap();
    let start = |plan: &Arc<Plan>, step| {
        let (tell, told) = mpsc::channel();
        let done = move |outcome| tell.send(outcome).unwrap();
        executor.run(plan, StepId(step), vec![], done);
        told
    };
    let plan = |source: &str, op: &'static str, inputs: fn(Output, Output) -> Vec<Output>| {
        writer(&executor, source, |graph, variable, one| {
            let node = graph.node(op).name(op);
            node.inputs(inputs(variable, one)).build().unwrap();
        })
    };
    let descent: fn(Output, Output) -> Vec<Output> = |variable, one| vec![variable, one, one];
    let two: fn(Output, Output) -> Vec<Output> = |variable, one| vec![variable, one];
    let writers = [
        ("VariableV2", "Assign", two, 1.0),
        ("VarHandleOp", "AssignVariableOp", two, 1.0),
        ("VariableV2", "AssignAdd", two, 6.0),
        ("VarHandleOp", "AssignSubVariableOp", two, 4.0),
        ("VariableV2", "ApplyGradientDescent", descent, 4.0),
    ];
    let other = writer(&executor, "VariableV2", |_, _, _| {});
    let variable = home.variables.find("", "v");
    for (step, (source, op, inputs, after)) in (1..).step_by(2).zip(writers) {
        variable.assign(Tensor::scalar(5f32));
        let writer = plan(source, op, inputs);
        let held = variable.hold();
        let writes = start(&writer, step);
        let runs = start(&other, step + 1);
        let ran = runs
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("{op} keeps the shard"));
        ran.unwrap();
        assert!(writes.try_recv().is_err(), "{op} waits");
        drop(held);
        writes.recv_timeout(PATIENCE).unwrap().unwrap();
        let content = variable.read().unwrap();
        assert_eq!(content.item::<f32>().unwrap(), after, "{op}");
    }
    engine.shutdown(Duration::ZERO);
}

/// Notes whether it was given the variable, and ends well either way.
#[derive(Debug)]
struct Tries {
    variable: Arc<Variable>,
    was_refused: Arc<AtomicBool>,
    holds: Arc<AtomicBool>,
}

impl Kernel for Tries {
    fn compute(&self, call: &mut Call<'_>) -> Result<(), Status> {
        let is_held = call.hold(&self.variable).is_ok();
        let noted = match is_held {
            true => &self.holds,
            false => &self.was_refused,
        };
        noted.store(true, Ordering::Release);
        call.outputs.push(Value::Tensor(row(&[1])));
        Ok(())
    }
}

#[test]
fn a_kernel_that_goes_on_without_what_it_would_wait_for_is_called_again() {
    let engine = testing::engine("/job:a/task:0");
    let home = home();
    let variable = home.variables.find("", "v");
    let notes = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let [was_refused, holds] = notes.each_ref().map(Arc::clone);
    let known = Arc::clone(&variable);
    let executor = Executor::with_kernels(&engine, home, move |_| {
        Ok(Box::new(Tries {
            variable: Arc::clone(&known),
            was_refused: Arc::clone(&notes[0]),
            holds: Arc::clone(&notes[1]),
        }))
    });
    let executor = executor.unwrap();
    let operations = Operations::standard();
    let mut graph = Builder::new(operations.ops());
    graph.constant("one", floats(&[], &[1.0])).unwrap();
    let def = graph.finish().unwrap().to_def();
    let part = Graph::from_def(def, operations.ops(), Import::Part).unwrap();
    let plan = executor.plan(&part, "tries").unwrap();
    let held = variable.hold();
    let (tell, told) = mpsc::channel();
    executor.run(&plan, StepId(1), vec![], move |outcome| {
        tell.send(outcome.map(drop)).unwrap();
    });
    let until = std::time::Instant::now() + PATIENCE;
    while !was_refused.load(Ordering::Acquire) {
        assert!(std::time::Instant::now() < until, "it is called");
        std::thread::yield_now();
    }
    drop(held);
    told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(holds.load(Ordering::Acquire), "it is called once");
    engine.shutdown(Duration::ZERO);
}
