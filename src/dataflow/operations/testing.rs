//! What tests of kernels need: a home, a graph of one node, and tensors by value.

mod gradients;
mod oracle;

use std::sync::Mutex;

use crate::graph::{Builder, NodeBuilder, PartialShape, types};
use crate::kernel::files::Files;
pub(crate) use crate::kernel::testing::grown;
use crate::kernel::{Call, Home, Kernel, Value, Waiting};
use crate::operations::Operations;
use rendez::ground::{DType, Shape, Status, StepId};
use rendez::memory::{ArenaConfig, ArenaId, Element, Pool, Tensor};
use rendez_proto::tensorflow::DataType;

/// A home over an arena of its own, of which every byte is poisoned before a kernel gets it.
pub(crate) fn home() -> Home {
    let config = ArenaConfig {
        bytes_max: 64 << 20,
        ..ArenaConfig::default()
    };
    let pool = Mutex::new(Pool::new(ArenaId(0), config).expect("an arena"));
    Home::new(move |meta| {
        let mut room = pool
            .lock()
            .expect("a pool")
            .builder(meta)
            .map_err(Status::from)?;
        room.bytes_mut().fill(0xff);
        Ok(room)
    })
    .with_files(Files::below("/"))
}

/// A tensor of `values`.
pub(crate) fn tensor<T: Element>(dims: &[u64], values: &[T]) -> Tensor {
    let shape = Shape::new(dims).expect("a shape");
    Tensor::from_vec(values.to_vec(), shape).expect("as many values as the shape has")
}

/// The kernel of a node of `op` with inputs of these types, set up by `with`.
pub(crate) fn kernel(
    op: &str,
    inputs: &[DataType],
    with: impl FnOnce(NodeBuilder<'_>) -> NodeBuilder<'_>,
) -> Result<Box<dyn Kernel>, Status> {
    let sources = inputs.iter().map(|&base| match base {
        DataType::DtResource => ("VarHandleOp", DataType::DtFloat),
        _ => ("Placeholder", base),
    });
    kernel_of(op, sources, with)
}

/// The same with inputs from these operations, of these types.
pub(crate) fn kernel_of(
    op: &str,
    sources: impl IntoIterator<Item = (&'static str, DataType)>,
    with: impl FnOnce(NodeBuilder<'_>) -> NodeBuilder<'_>,
) -> Result<Box<dyn Kernel>, Status> {
    let mut graph = Builder::new(Operations::standard().ops());
    let mut from = vec![];
    for (source, base) in sources {
        let node = graph.node(source).attr("dtype", base);
        let node = match source {
            "Placeholder" => node,
            _ => node.attr("shape", PartialShape::known(&[2]).to_proto()),
        };
        from.push(node.build()?);
    }
    let node = with(graph.node(op).inputs(from).name("n")).build()?;
    Operations::standard().kernel(graph.graph().node(node.node))
}

/// Calls a kernel.
pub(crate) fn call(
    kernel: &dyn Kernel,
    home: &Home,
    inputs: &[Value],
) -> Result<Vec<Value>, Status> {
    let mut outputs = vec![];
    let _ = kernel.is_costly(inputs);
    let step = StepId(1);
    kernel.compute(&mut Call {
        inputs,
        outputs: &mut outputs,
        home,
        step,
        waiting: Waiting::May,
    })?;
    Ok(outputs)
}

/// What an operation without attributes but types makes of tensors.
pub(crate) fn run(op: &str, inputs: &[Tensor]) -> Result<Vec<Tensor>, Status> {
    run_with(op, inputs, |node| node)
}

/// What an operation makes of tensors.
pub(crate) fn run_with(
    op: &str,
    inputs: &[Tensor],
    with: impl FnOnce(NodeBuilder<'_>) -> NodeBuilder<'_>,
) -> Result<Vec<Tensor>, Status> {
    let bases: Vec<_> = inputs
        .iter()
        .map(|input| types::data_type(input.dtype()))
        .collect();
    let kernel = kernel(op, &bases, with)?;
    let inputs: Vec<_> = inputs.iter().cloned().map(Value::Tensor).collect();
    let outputs = call(&*kernel, &home(), &inputs)?;
    outputs.iter().map(Value::tensor).collect()
}

/// The only output of an operation on tensors, with its dimensions.
pub(crate) fn one<T: Element>(op: &str, inputs: &[Tensor]) -> (Vec<u64>, Vec<T>) {
    one_with(op, inputs, |node| node)
}

/// The only output of an operation on tensors, with its dimensions.
pub(crate) fn one_with<T: Element>(
    op: &str,
    inputs: &[Tensor],
    with: impl FnOnce(NodeBuilder<'_>) -> NodeBuilder<'_>,
) -> (Vec<u64>, Vec<T>) {
    let outputs = run_with(op, inputs, with).unwrap_or_else(|status| panic!("{op}: {status}"));
    let [output] = outputs.as_slice() else {
        panic!("{op} has {} outputs", outputs.len());
    };
    let values = output
        .as_slice::<T>()
        .unwrap_or_else(|error| panic!("{op}: {error}"));
    (output.shape().dims().collect(), values.to_vec())
}

/// What an operation says of tensors that it refuses.
pub(crate) fn refusal(op: &str, inputs: &[Tensor]) -> String {
    match run(op, inputs) {
        Ok(outputs) => panic!("{op} made {outputs:?}"),
        Err(status) => status.message().to_owned(),
    }
}

/// True if both are the same within `tolerance`, relative to the larger.
pub(crate) fn is_close(left: &[f64], right: &[f64], tolerance: f64) -> bool {
    let near = |(left, right): (&f64, &f64)| {
        left == right
            || (left.is_nan() && right.is_nan())
            || (left - right).abs() <= tolerance * left.abs().max(right.abs()).max(1.0)
    };
    left.len() == right.len() && left.iter().zip(right).all(near)
}

/// The types that arithmetic has.
pub(crate) const NUMBERS: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
    DType::U8,
];
