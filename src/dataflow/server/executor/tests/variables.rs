//! Variables that another thread holds: what wants one of them waits beside the shards.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::graph::{Builder, Import, Output, floats};
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
