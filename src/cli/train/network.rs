//! The network: what is learnt of digits, as a graph whose variables stand on parameter servers.
//!
//! Knows graphs and gradients; nothing of processes, sessions or digits. Each driver makes its graph anew, and the same
//! variables come out of it each time, by name and place.
//!
//! ```text
//!   x [n, 64] ─ MatMul ─ BiasAdd ─ Relu ─ MatMul ─ BiasAdd ─ logits [n, 10] ─ softmax cross entropy with y [n]
//! ```

use std::ops::Range;

use super::digits::{CLASSES, PIXELS, normal};
use rendez::ground::rng::Rng;
use rendez::ground::{DType, Shape, Status};
use rendez::memory::Tensor;
use rendez_dataflow::graph::{
    Builder, DeviceSetter, Graph, NodeId, Output, Strategy, floats, gradients, ints,
};
use rendez_dataflow::operations::Operations;
use rendez_proto::tensorflow::tensor_shape_proto::Dim;
use rendez_proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

/// How wide the hidden layer is.
const HIDDEN: usize = 128;

/// Adam's settings, as its authors have them except the rate.
const RATE: f32 = 0.003;
const DECAYS: [f32; 2] = [0.9, 0.999];
const EPSILON: f32 = 1e-8;

/// What is trained: name, rows and columns. One row is a bias.
const LAYERS: [(&str, usize, usize); 4] = [
    ("hidden/weights", PIXELS, HIDDEN),
    ("hidden/bias", 1, HIDDEN),
    ("output/weights", HIDDEN, CLASSES),
    ("output/bias", 1, CLASSES),
];

/// What Adam keeps for each.
const SLOTS: [&str; 2] = ["/mean", "/variance"];
/// The powers of its decays, one for all.
const POWERS: [&str; 2] = ["power1", "power2"];
/// How many steps were made.
pub(super) const STEPS: &str = "steps";

/// How many steps a worker has taken part in.
pub(super) fn steps_of(worker: u32) -> String {
    format!("steps/worker{worker}")
}

/// The names under which others feed, fetch and run.
pub(super) const TRAIN: &str = "train";
pub(super) const ASSIGN: &str = "assign";
pub(super) const LOSS: &str = "test/loss:0";
pub(super) const ACCURACY: &str = "test/accuracy:0";
pub(super) const TEST: &str = "test";
pub(super) const REPLICA: &str = "tower";

/// The tower of a worker in a graph that drives all.
pub(super) fn tower(worker: u32) -> String {
    format!("{REPLICA}{worker}")
}

/// The feeds of tower or test `scope`: pixels and labels.
pub(super) fn feeds(scope: &str) -> [String; 2] {
    [format!("{scope}/x:0"), format!("{scope}/y:0")]
}

/// What reads a variable.
pub(super) fn read_of(variable: &str) -> String {
    format!("{variable}/read:0")
}

/// What a variable is assigned.
pub(super) fn value_of(variable: &str) -> String {
    format!("{variable}/value:0")
}

/// A variable in a graph.
struct Variable {
    name: String,
    dtype: DataType,
    handle: Output,
    read: Output,
}

/// A graph over the variables, in the making.
struct Network {
    graph: Builder,
    layers: Vec<Variable>,
    slots: Vec<Variable>,
    powers: Vec<Variable>,
    steps: Variable,
    /// One for each worker.
    each: Vec<Variable>,
}

/// How many tasks there are of each job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Jobs {
    pub(super) servers: u32,
    pub(super) workers: u32,
}

/// The device of a worker.
pub(super) fn worker(task: u32) -> String {
    format!("/job:worker/task:{task}")
}

/// Where the driver of a training is.
pub(super) const CHIEF: &str = "/job:chief/task:0";

/// The graph of worker `task`, which trains by itself: between-graph replication, for asynchronous training. Everything
/// but the variables and their updates stands there.
///
/// # Errors
/// None for a worker that there is.
pub(super) fn replica(jobs: Jobs, task: u32) -> Result<Graph, Status> {
    let mut network = Network::new(jobs)?;
    let tower = network.tower(REPLICA, "")?;
    let gradients = network.gradients(tower)?;
    network.train(gradients, task..task + 1)?;
    network.finish(jobs, &worker(task))
}

/// The graph that drives all workers at once: in-graph replication, for synchronous training. Each worker gets a tower
/// of its own, and the mean of their gradients is what is learnt.
///
/// # Errors
/// As [`replica`].
pub(super) fn towers(jobs: Jobs) -> Result<Graph, Status> {
    let mut network = Network::new(jobs)?;
    let mut each = Vec::new();
    for task in 0..jobs.workers {
        let tower = network.tower(&tower(task), &worker(task))?;
        network.graph.on(&worker(task));
        each.push(network.gradients(tower)?);
        network.graph.on("");
    }
    let mut mean = Vec::new();
    for (at, layer) in network.layers.iter().enumerate() {
        let beside = layer.handle.node;
        let parts = each.iter().filter_map(|of| of.get(at).copied());
        let sum = network.graph.node("AddN").inputs(parts).beside(beside);
        let sum = sum.name("mean/sum").build()?;
        let share = floats(&[], &[1.0 / jobs.workers.max(1) as f32]);
        let share = constant(&mut network.graph, beside, share)?;
        let mul = network.graph.node("Mul").input(sum).input(share);
        mean.push(mul.beside(beside).name("mean/share").build()?);
    }
    network.train(mean, 0..jobs.workers)?;
    network.test()?;
    network.finish(jobs, CHIEF)
}

/// The graph of the process that starts, tests and keeps: it assigns and reads all variables, and tests on the chief
/// what was learnt.
///
/// # Errors
/// As [`replica`].
pub(super) fn test(jobs: Jobs) -> Result<Graph, Status> {
    let mut network = Network::new(jobs)?;
    network.test()?;
    network.finish(jobs, CHIEF)
}

/// The names, types and shapes of the variables that a checkpoint keeps: all but those that count a worker's steps.
pub(super) fn variables() -> Vec<(String, DType, Vec<u64>)> {
    let mut all = Vec::new();
    for (name, rows, columns) in LAYERS {
        for slot in ["", SLOTS[0], SLOTS[1]] {
            all.push((format!("{name}{slot}"), DType::F32, dims(rows, columns)));
        }
    }
    for power in POWERS {
        all.push((power.to_owned(), DType::F32, vec![]));
    }
    all.push((STEPS.to_owned(), DType::I64, vec![]));
    all
}

/// What the variables are at first: weights as wide as their inputs want (He's), all else nothing.
///
/// # Errors
/// None: there is one shape for each.
pub(super) fn initial(seed: u64) -> Result<Vec<(String, Tensor)>, Status> {
    let mut random = Rng::new(seed);
    let mut all = Vec::new();
    for (name, dtype, dims) in variables() {
        if dtype == DType::I64 {
            all.push((name, Tensor::scalar(0i64)));
            continue;
        }
        let count: u64 = dims.iter().product();
        let is_weight = dims.len() == 2 && !SLOTS.iter().any(|slot| name.ends_with(slot));
        let width = dims.first().copied().unwrap_or(1).max(1);
        let scale = (2.0 / width as f32).sqrt();
        let power = POWERS.iter().position(|power| name == *power);
        let values = (0..count).map(|_| match power {
            Some(power) => DECAYS[power],
            None if is_weight => scale * normal(&mut random),
            None => 0.0,
        });
        let shape: Shape = super::digits::shape(&dims)?;
        all.push((name, Tensor::from_vec(values.collect(), shape)?));
    }
    Ok(all)
}

fn dims(rows: usize, columns: usize) -> Vec<u64> {
    match rows {
        1 => vec![columns as u64],
        rows => vec![rows as u64, columns as u64],
    }
}

impl Network {
    /// The variables, which ask for no device: that is the setter's affair.
    fn new(jobs: Jobs) -> Result<Self, Status> {
        let mut graph = Builder::new(Operations::standard().ops());
        let (mut layers, mut slots) = (vec![], vec![]);
        let mut assigns = vec![];
        for (name, rows, columns) in LAYERS {
            let dims = dims(rows, columns);
            let layer = variable(
                &mut graph,
                name,
                DataType::DtFloat,
                &dims,
                None,
                &mut assigns,
            )?;
            for slot in SLOTS {
                let name = format!("{name}{slot}");
                let beside = Some(layer.handle.node);
                slots.push(variable(
                    &mut graph,
                    &name,
                    DataType::DtFloat,
                    &dims,
                    beside,
                    &mut assigns,
                )?);
            }
            layers.push(layer);
        }
        let mut powers = vec![];
        for power in POWERS {
            powers.push(variable(
                &mut graph,
                power,
                DataType::DtFloat,
                &[],
                None,
                &mut assigns,
            )?);
        }
        let steps = variable(
            &mut graph,
            STEPS,
            DataType::DtInt64,
            &[],
            None,
            &mut assigns,
        )?;
        let mut each = vec![];
        for worker in 0..jobs.workers {
            let name = steps_of(worker);
            let beside = Some(steps.handle.node);
            each.push(variable(
                &mut graph,
                &name,
                DataType::DtInt64,
                &[],
                beside,
                &mut assigns,
            )?);
        }
        let group = assigns
            .into_iter()
            .fold(graph.node("NoOp"), |group, assign| group.control(assign));
        group.name(ASSIGN).build()?;
        Ok(Self {
            graph,
            layers,
            slots,
            powers,
            steps,
            each,
        })
    }

    /// Pixels in, logits out, on `device`. Gives what was fed as labels, and the logits.
    fn forward(&mut self, scope: &str, device: &str) -> Result<(Output, Output), Status> {
        let graph = &mut self.graph;
        graph.scope(scope).on(device);
        let unknown = |last: Option<usize>| {
            let sizes = [Some(-1), last.map(|last| last as i64)];
            shape(sizes.into_iter().flatten())
        };
        let x = graph.node("Placeholder").attr("dtype", DataType::DtFloat);
        let x = x.attr("shape", unknown(Some(PIXELS))).name("x").build()?;
        let y = graph.node("Placeholder").attr("dtype", DataType::DtInt64);
        let y = y.attr("shape", unknown(None)).name("y").build()?;
        let mut at = x;
        for (layer, pair) in self.layers.chunks(2).enumerate() {
            let [weights, bias] = pair else { continue };
            let product = graph.node("MatMul").input(at).input(weights.read).build()?;
            at = graph
                .node("BiasAdd")
                .input(product)
                .input(bias.read)
                .build()?;
            if layer + 1 < self.layers.len() / 2 {
                at = graph.node("Relu").input(at).build()?;
            }
        }
        graph.scope("").on("");
        Ok((y, at))
    }

    /// The mean loss of a batch, on `device`.
    fn tower(&mut self, scope: &str, device: &str) -> Result<Output, Status> {
        let (labels, logits) = self.forward(scope, device)?;
        let graph = &mut self.graph;
        graph.scope(scope).on(device);
        let each = graph
            .node("SparseSoftmaxCrossEntropyWithLogits")
            .input(logits)
            .input(labels);
        let each = each.build()?;
        let axis = graph.constant("axis", ints(&[1], &[0]))?;
        let loss = graph
            .node("Mean")
            .input(each)
            .input(axis)
            .name("loss")
            .build()?;
        graph.scope("").on("");
        Ok(loss)
    }

    /// The gradients of a loss by the layers.
    fn gradients(&mut self, loss: Output) -> Result<Vec<Output>, Status> {
        let layers: Vec<_> = self.layers.iter().map(|layer| layer.read).collect();
        let found = gradients(&mut self.graph, &[loss], &layers, &[])?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Adam with these gradients, beside the variables, and one step counted, also for these workers.
    fn train(&mut self, gradients: Vec<Output>, workers: Range<u32>) -> Result<(), Status> {
        let Self {
            graph,
            layers,
            slots,
            powers,
            steps,
            each,
        } = self;
        let mut updates = vec![];
        for ((layer, slots), gradient) in layers.iter().zip(slots.chunks(2)).zip(gradients) {
            let beside = layer.handle.node;
            let mut inputs = vec![layer.handle];
            inputs.extend(slots.iter().map(|slot| slot.handle));
            inputs.extend(powers.iter().map(|power| power.read));
            for setting in [RATE, DECAYS[0], DECAYS[1], EPSILON] {
                inputs.push(constant(graph, beside, floats(&[], &[setting]))?);
            }
            inputs.push(gradient);
            let update = graph
                .node("ResourceApplyAdam")
                .inputs(inputs)
                .beside(beside);
            updates.push(update.name(&format!("{}/update", layer.name)).build()?.node);
        }
        let mut last = vec![];
        for (power, decay) in powers.iter().zip(DECAYS) {
            let beside = power.handle.node;
            let decay = constant(graph, beside, floats(&[], &[decay]))?;
            let next = graph
                .node("Mul")
                .input(power.read)
                .input(decay)
                .beside(beside)
                .build()?;
            let assign = graph
                .node("AssignVariableOp")
                .input(power.handle)
                .input(next);
            let assign = updates
                .iter()
                .fold(assign, |assign, update| assign.control(*update));
            last.push(
                assign
                    .attr("dtype", power.dtype)
                    .beside(beside)
                    .build()?
                    .node,
            );
        }
        let one = TensorProto {
            dtype: DataType::DtInt64 as i32,
            tensor_shape: Some(TensorShapeProto::default()),
            int64_val: vec![1],
            ..TensorProto::default()
        };
        let one = constant(graph, steps.handle.node, one)?;
        let each = each.iter().skip(workers.start as usize).take(workers.len());
        for counter in std::iter::once(&*steps).chain(each) {
            let count = graph
                .node("AssignAddVariableOp")
                .input(counter.handle)
                .input(one);
            let count = updates
                .iter()
                .fold(count, |count, update| count.control(*update));
            last.push(
                count
                    .attr("dtype", counter.dtype)
                    .beside(counter.handle.node)
                    .build()?
                    .node,
            );
        }
        let group = last
            .into_iter()
            .fold(graph.node("NoOp"), |group, node| group.control(node));
        group.name(TRAIN).beside(steps.handle.node).build()?;
        Ok(())
    }

    /// Loss and accuracy of what is fed.
    fn test(&mut self) -> Result<(), Status> {
        let (labels, logits) = self.forward("test", "")?;
        let graph = &mut self.graph;
        graph.scope("test");
        let axis = graph.constant("axis", ints(&[1], &[0]))?;
        let last = graph.constant("last", ints(&[], &[1]))?;
        let each = graph
            .node("SparseSoftmaxCrossEntropyWithLogits")
            .input(logits)
            .input(labels);
        let each = each.build()?;
        graph
            .node("Mean")
            .input(each)
            .input(axis)
            .name("loss")
            .build()?;
        let guess = graph.node("ArgMax").input(logits).input(last).build()?;
        let right = graph.node("Equal").input(guess).input(labels).build()?;
        let right = graph
            .node("Cast")
            .input(right)
            .attr("DstT", DataType::DtFloat)
            .build()?;
        graph
            .node("Mean")
            .input(right)
            .input(axis)
            .name("accuracy")
            .build()?;
        graph.scope("");
        Ok(())
    }

    /// The graph, with the variables on the parameter servers and all else that asks for nothing on `worker`.
    fn finish(self, jobs: Jobs, worker: &str) -> Result<Graph, Status> {
        let mut graph = self.graph.finish()?;
        DeviceSetter::new("ps", jobs.servers, worker, Strategy::Bytes)?.apply(&mut graph)?;
        Ok(graph)
    }
}

/// A variable with what reads it, and what assigns what is fed to it.
fn variable(
    graph: &mut Builder,
    name: &str,
    dtype: DataType,
    dims: &[u64],
    beside: Option<NodeId>,
    assigns: &mut Vec<NodeId>,
) -> Result<Variable, Status> {
    let of = || shape(dims.iter().map(|&dim| dim as i64));
    let handle = graph
        .node("VarHandleOp")
        .attr("dtype", dtype)
        .attr("shape", of());
    let handle = handle.attr("shared_name", name).name(name);
    let handle = match beside {
        Some(beside) => handle.beside(beside),
        None => handle,
    };
    let handle = handle.build()?;
    let read = graph
        .node("ReadVariableOp")
        .input(handle)
        .attr("dtype", dtype);
    let read = read
        .beside(handle.node)
        .name(&format!("{name}/read"))
        .build()?;
    let value = graph
        .node("Placeholder")
        .attr("dtype", dtype)
        .attr("shape", of());
    let value = value.name(&format!("{name}/value")).build()?;
    let assign = graph.node("AssignVariableOp").input(handle).input(value);
    let assign = assign
        .attr("dtype", dtype)
        .beside(handle.node)
        .name(&format!("{name}/assign"));
    assigns.push(assign.build()?.node);
    Ok(Variable {
        name: name.to_owned(),
        dtype,
        handle,
        read,
    })
}

/// A constant where `beside` stands.
fn constant(graph: &mut Builder, beside: NodeId, value: TensorProto) -> Result<Output, Status> {
    let base = DataType::try_from(value.dtype).unwrap_or(DataType::DtInvalid);
    let node = graph.node("Const").attr("dtype", base).attr("value", value);
    node.beside(beside).build()
}

fn shape(sizes: impl Iterator<Item = i64>) -> TensorShapeProto {
    let dim = |size| Dim {
        size,
        name: String::new(),
    };
    TensorShapeProto {
        dim: sizes.map(dim).collect(),
        unknown_rank: false,
    }
}

#[cfg(test)]
mod tests;
